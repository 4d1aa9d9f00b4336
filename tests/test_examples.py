"""The examples: each runs as its docstring says, learns something and leaves nothing behind."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NAMES = ["fsdp2", "hf_trainer", "lightning_module", "nanogpt", "plain_loop"]
NEEDS = {"hf_trainer": "accelerate", "lightning_module": "pytorch_lightning"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_every_example_is_tested() -> None:
    """The scripts in the folder are those that the tests below run."""
    assert [path.stem for path in SCRIPTS] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short(name: str) -> None:
    """It has fewer than 80 lines, says how to run it, and plans an ordinary model."""
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) < 80
    assert f"examples/{name}.py" in (ast.get_docstring(ast.parse(text)) or "")
    assert "cdp.plan(" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_learns(name: str, tmp_path: Path) -> None:
    """It exits with 0, its loss falls by more than 1, and the folder it ran in stays empty."""
    pytest.importorskip("transformers")
    pytest.importorskip(NEEDS.get(name, "torch"))
    command = [sys.executable, *(TORCHRUN if name == "fsdp2" else []), EXAMPLES / f"{name}.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    losses = [float(x) for x in re.findall(r"\bloss\W+(\d+\.\d+)", result.stdout)]
    assert len(losses) > 4, result.stdout
    assert losses[-1] < losses[0] - 1
    assert not list(tmp_path.iterdir())
