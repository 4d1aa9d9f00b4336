"""The Slurm files of examples/: with commands that stand in for Slurm's, they do their work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import completedp as cdp
from completedp.lm.prepare import prepare_source

ROOT = Path(__file__).parent.parent
SRUN = """#!/bin/bash
for task in $(seq "$TASKS"); do SLURM_PROCID=$((task - 1)) "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """A folder of tokens, and an environment in which srun starts tasks on this machine."""
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps({"text": f"{n} bottles of water. " * 40}) + "\n" for n in range(60))
    )
    prepare_source(str(tmp_path / "own.jsonl"), str(tmp_path / "tokens"), valid_fraction=0.2)
    commands = tmp_path / "bin"
    commands.mkdir()
    texts = {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho localhost\n",
        "completedp": f'#!/bin/bash\nexec {sys.executable} -m completedp "$@"\n',
        "torchrun": f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n',
    }
    for name, text in texts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
    }


SMALL = "--data tokens --context 16 --head-dim 8 --width 16 --depth 1 --batch 64 --tokens 640"


def submit(name: str, more: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a file as Slurm would; what it printed."""
    command = ["bash", str(ROOT / "examples" / name), *SMALL.split(), *more.split()]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_search_is_shared_by_its_tasks(tmp_path: Path, slurm: dict[str, str]) -> None:
    """Two tasks that begin together make one study and finish its budget, each trial once."""
    more = "--space global --trials 6 --slots 1 --eval-sequences 4"
    said = submit("search.sbatch", more, tmp_path, slurm | {"TASKS": "2"})
    assert "search: 6/6 trials" in said


@pytest.mark.slow
def test_a_run_trains_on_all_ranks(tmp_path: Path, slurm: dict[str, str]) -> None:
    """The training file starts as many ranks as a node has devices, and the run ends well."""
    more = "--out run --recipe base.json --eval-sequences 4"
    model = cdp.Transformer(cdp.ModelConfig(vocab=257, width=16, depth=1, head_dim=8))
    base = cdp.Scale(width=16, depth=1, batch=64, tokens=640)
    cdp.Recipe.for_model(model, base, lr=2**-8).save(tmp_path / "base.json")
    submit("train.sbatch", more, tmp_path, slurm | {"TASKS": "1"})
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "ok"
    # Each rank writes its own part of a checkpoint.
    assert len(list((tmp_path / "run").glob("checkpoint-*/*.safetensors"))) == 2


def test_every_file_is_bash() -> None:
    """bash reads each of them without an error."""
    for path in (ROOT / "examples").glob("*.sbatch"):
        subprocess.run(["bash", "-n", str(path)], check=True)
