"""Many ranks: a plan on sharded, copied and compiled models, and one run by many processes.

Ranks are CPU processes that talk by gloo, started by torchrun as a user would.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch
from helpers import error_of
from ranks import LONG, RUNS, SEED, TARGET, WAYS, config, made, planned, recipe, run_recipe, trained

from completedp.common.process import only_process
from completedp.lm.prepare import prepare_source
from completedp.training.checkpoint import FILE, find_checkpoint, load_weights, read_step
from completedp.training.loop import train
from completedp.training.metrics import read_metrics

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def torchrun(ranks: int, *command: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks), *command),
    ]


def on_ranks(ranks: int, job: str, out: Path, *arguments: str) -> dict[str, Any]:
    """What a job of ranks.py found."""
    command = torchrun(ranks, str(HERE / "ranks.py"), job, str(out), *arguments)
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(out.read_text())


def verb(folder: Path, name: str, **changes: Any) -> list[str]:
    """`completedp train` as `config` asks for it."""
    asked = vars(config(str(folder), name, **changes))
    shape = vars(asked.pop("shape"))
    recipe().save(folder / "recipe.json")
    command = ["-m", "completedp", "train", "--recipe", str(folder / "recipe.json")]
    for key, value in (asked | shape).items():
        if key == "recipe" or value in (None, False, ()):
            continue
        flag = f"--{key.replace('_', '-')}"
        if value is not True:
            command += [flag, str(value)]
        elif key != "qk_norm":  # on as it is
            command += [flag]
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text for runs."""
    folder = tmp_path_factory.mktemp("ranks")
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs"]
    for i in range(40):
        text = " ".join(words[(i * j) % len(words)] for j in range(1, 60))
        (folder / f"{i:03d}.txt").write_text(text)
    prepare_source(str(folder), str(folder / "tokens"), valid_fraction=0.2)
    return folder


def curve(folder: Path) -> list[tuple[int, float, float]]:
    """Step, training loss and validation loss of every row that has one."""
    rows = [row for row in read_metrics(folder) if {"loss", "valid_loss"} & row.keys()]
    return [(row["step"], row.get("loss", 0.0), row.get("valid_loss", 0.0)) for row in rows]


def noise_of(folder: Path) -> list[float]:
    """What a run measured of its gradients' noise."""
    rows = [row for row in read_metrics(folder) if "noise_scale" in row]
    return [x for row in rows for x in (row["step"], row["noise_scale"], row["critical_batch"])]


def assert_same(ours: Path, theirs: Path, tolerance: float = 1e-9) -> None:
    one, other = curve(ours), curve(theirs)
    assert len(one) == len(other) > 0
    for mine, its in zip(one, other, strict=True):
        assert mine == pytest.approx(its, abs=tolerance)


def assert_as_alone(found: dict[str, Any]) -> None:
    """Every way to wrap has the groups, initial bits and losses of the model as it is."""
    model = made()
    alone = planned(model)
    alone.initialise(SEED)
    wanted = json.loads(json.dumps(trained(model, alone)))
    for way, its in found.items():
        assert its["groups"] == wanted["groups"], way
        if "hooks" in way:  # they multiply by what the buffer would hold
            its["digests"]["residual_multipliers"] = wanted["digests"]["residual_multipliers"]
        assert its["digests"] == wanted["digests"], way
        assert its["losses"] == pytest.approx(wanted["losses"], abs=1e-9), way


@pytest.mark.slow
def test_wrapping_in_any_order_changes_nothing(tmp_path: Path) -> None:
    """Sharded, copied or compiled, before or after: equal groups, initial bits and losses."""
    found = on_ranks(2, "wrap", tmp_path / "found.json")
    assert found.keys() == WAYS.keys()
    assert_as_alone(found)


@pytest.mark.filterwarnings("ignore:gradient clipping")
def test_many_ranks_train_as_one(folder: Path) -> None:
    """Curves, evaluations and ends are those of one process, and errors of one rank are all's."""
    begun = config(str(folder), "two/begun alone", stop_after=12)
    train(begun, recipe=run_recipe({}), quiet=True)
    with only_process(folder / "two/locked"):
        found = on_ranks(2, "trains", folder / "found.json", str(folder))
    for name, changes in RUNS.items():
        asked = config(str(folder), f"alone/{name}", **changes)
        result = train(asked, recipe=run_recipe(changes), quiet=True)
        assert found[name] == {"status": result.status, "steps": result.steps}
        tolerance = 1e-5 if name == "float32" else 1e-9
        if name != "diverged":  # whose last losses are of any size
            assert result.steps == TARGET.steps
            assert_same(folder / "alone" / name, folder / "two" / name, tolerance)
    alone, sharded = made(), made()
    assert load_weights(alone, folder / "alone/fsdp") == TARGET.steps
    assert load_weights(sharded, folder / "two/fsdp") == TARGET.steps
    for own, other in zip(alone.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-7, atol=1e-9)
    noise = [noise_of(folder / "two" / name) for name in ("fsdp", "ddp")]
    assert len(noise[0]) > 3
    assert noise[0] == pytest.approx(noise[1], rel=1e-9)  # of shards, and of whole copies
    assert found["diverged"]["status"] == "diverged"
    for name, message in {
        "locked": "rank 0: another process is at work in",
        "odd batch": "the batch's 3 sequences do not divide among 2 ranks",
        "micro batch": "micro_batch 8 does not divide the batch's 4 sequences on each of 2 ranks",
        "no data on one rank": "rank 1: no token folder at",
        "another recipe on one rank": "rank 1: its recipe has other contents",
        "full disk on one rank": "could not write the checkpoint of step 5",
    }.items():
        assert found[name].startswith(message)
        assert "\n" not in found[name]
    assert not (folder / "two/odd").exists()
    assert "the one of step 3 is kept" in found["full disk on one rank"]
    assert sorted(path.name for path in (folder / "two/full").glob("*check*")) == [
        "checkpoint-00000003"
    ]
    for break_it, message in (
        (lambda shard: shard.unlink(), "is of another model: .* is in one only"),
        (lambda shard: shard.write_bytes(b"junk"), "is not a readable checkpoint"),
        (_flip_last_byte, "is not as it was written"),
    ):
        copy = folder / f"two/broken by {message}"
        shutil.copytree(folder / "two/full", copy)
        break_it(next(copy.glob("checkpoint-*/*.safetensors")))
        asked = config(str(folder), copy.relative_to(folder).as_posix())
        assert re.search(message, error_of(train, asked, recipe=recipe(), quiet=True))


def _flip_last_byte(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def test_parallel_is_fsdp_or_ddp(folder: Path) -> None:
    """Any other way to be parallel is refused by name."""
    message = error_of(config, str(folder), "run", parallel="tensor")
    assert message == "unknown parallel 'tensor': choose from fsdp, ddp"


def test_the_newest_checkpoint_counts(folder: Path) -> None:
    """Of what a kill between writing one and removing the other leaves, the later step is taken."""
    train(config(str(folder), "newest", stop_after=4), recipe=recipe(), quiet=True)
    run = folder / "newest"
    for name, newest in {
        "checkpoint-00000003": FILE,
        "checkpoint-00000004": FILE,
        ".checkpoint-00000011.part": FILE,
        "checkpoint-00000009": "checkpoint-00000009",
    }.items():
        (run / name).mkdir()
        assert find_checkpoint(run) == run / newest


@pytest.mark.slow
def test_interrupted_ranks_stop_together_and_others_go_on(folder: Path) -> None:
    """SIGTERM saves, and 4 ranks and then 1 go on to the end that one process comes to alone."""
    run = folder / "chain"
    process = subprocess.Popen(
        torchrun(2, *verb(folder, "chain", **LONG)), env=ENVIRONMENT, stderr=PIPE, text=True
    )
    while process.poll() is None and len(read_metrics(run)) < 5:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert said.count("the same command goes on where it stopped") == 1
    assert "Warning" not in said
    stopped = read_step(run)
    assert stopped is not None
    assert 5 <= stopped < 190
    saved = [path.suffix for path in (run / f"checkpoint-{stopped:08d}").iterdir()]
    assert sorted(saved) == [".json", ".safetensors", ".safetensors"]

    found = on_ranks(4, "goes_on", folder / "four.json", str(folder), str(stopped + 5))
    assert found.pop("run") == ["stopped", stopped + 5]
    assert len(found) == 3
    assert_as_alone(found)
    assert [path.name for path in run.glob("*check*")] == [f"checkpoint-{stopped + 5:08d}"]

    assert train(config(str(folder), "chain", **LONG), recipe=recipe(), quiet=True).steps == 200
    train(config(str(folder), "straight", **LONG), recipe=recipe(), quiet=True)
    assert_same(run, folder / "straight")
