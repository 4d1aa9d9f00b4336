"""The training loop: resume, divergence, accumulation, and what a run folder holds."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import error_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import completedp as cdp
from completedp.common import surface
from completedp.common.errors import CompletedpError, ScaleWarning
from completedp.common.process import only_process
from completedp.lm.prepare import prepare_source
from completedp.lm.reference import ReferenceModel, meta_model
from completedp.lm.shape import Shape
from completedp.theory.evidence import Evidence
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training import loop
from completedp.training.checkpoint import FILE, load_weights, read_step
from completedp.training.config import TrainConfig
from completedp.training.folder import Result, recipe_digest
from completedp.training.loop import train
from completedp.training.metrics import read_metrics
from completedp.training.trials import is_divergence

SHAPE = Shape(head_dim=8)
BASE = Scale(width=16, depth=2, batch=64, tokens=64 * 100)
LONG = 64 * 600  # tokens of a run that is still going when a test interrupts it


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs"]
    for i in range(60):
        text = " ".join(words[(i * j) % len(words)] for j in range(1, 80))
        (folder / f"{i:03d}.txt").write_text(text)
    out = folder / "tokens"
    prepare_source(str(folder), str(out), valid_fraction=0.1)
    return str(out)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return Recipe.for_model(
        meta_model(ReferenceModel(vocab=257, shape=SHAPE).config(BASE)), BASE, lr=2.0**-7
    )


def config(data: str, out: Path, **changes: object) -> TrainConfig:
    settings = {"context": 16, "shape": SHAPE, "log_every": 1, "eval_sequences": 8}
    return TrainConfig(data=data, out=str(out), **(settings | changes))  # type: ignore[arg-type]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / FILE)


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_metrics(folder) if "loss" in row]


@contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive its test, whatever becomes of that."""
    process = subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload]
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_run_warns_of_its_recipe(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """What there is to doubt of the recipe at the run's scale is said before it starts."""
    wider = config(data, tmp_path / "wide", width=32, stop_after=1)
    with pytest.warns(ScaleWarning, match="width x2, depth x1"):
        train(wider, recipe=recipe, quiet=True)


def test_runs_begun_before_evidence_go_on() -> None:
    """The digest that a run is known by is the one of before, whatever is known of the recipe."""
    reference = Recipe.shipped("adamw-reference")
    before = "da9642c9dec8d8ea1fd6d2ede1b7fc986698e5689e2533e6d60913b1bc5886f0"
    known = replace(reference, evidence=Evidence(text="novels"))
    assert recipe_digest(reference) == recipe_digest(known) == before
    assert recipe_digest(reference.with_values(lr=0.5)) != before


def test_rows_are_written_in_the_order_of_steps(
    data: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where losses are read some steps later, as on a GPU: a tracker drops what goes back."""
    read = loop._Run._read

    def later(run: loop._Run, interrupted: bool = False) -> None:
        read(run, interrupted)
        run.read_at = run.step + 20

    monkeypatch.setattr(loop._Run, "_read", later)
    train(config(data, tmp_path / "run", eval_every=25), recipe=recipe, quiet=True)
    rows = [(row["step"], "valid_loss" in row) for row in read_metrics(tmp_path / "run")]
    assert rows == sorted(rows)
    assert [step for step, is_judged in rows if is_judged][:3] == [25, 50, 75]


def test_resume_is_bit_equal(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """100 steps equal 50 steps, a stop, and 50 more: weights, moments and metrics, to the bit."""
    whole = train(config(data, tmp_path / "whole"), recipe=recipe, quiet=True)
    part = config(data, tmp_path / "parts", stop_after=50)
    assert train(part, recipe=recipe, quiet=True).status == "stopped"
    parts = train(replace(part, stop_after=None), recipe=recipe, quiet=True)
    assert (whole.status, parts.status, parts.steps) == ("ok", "ok", 100)
    assert whole.valid_loss == parts.valid_loss
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert first.keys() == second.keys()
    assert any(key.startswith("optimizer/exp_avg_sq/") for key in first)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert [step for step, _ in losses(tmp_path / "parts")] == list(range(1, 101))


def test_killed_run_resumes_to_the_same_end(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A run killed with SIGKILL goes on from its checkpoint and ends bit-equal."""
    recipe.save(tmp_path / "recipe.json")
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "completedp", "train", "--data", data, "--out", str(out)]
    command += ["--recipe", str(tmp_path / "recipe.json"), "--context", "16", "--head-dim", "8"]
    command += ["--log-every", "1", "--eval-sequences", "8", "--checkpoint-every", "7"]
    command += ["--tokens", str(LONG)]
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and (read_step(out) or 0) < 14:
            pass
    assert 14 <= (read_step(out) or 0) < LONG // BASE.batch
    assert not (out / "result.json").exists()
    asked = config(data, out, checkpoint_every=0, tokens=LONG)
    resumed = train(asked, recipe=recipe, quiet=True)
    straight = config(data, tmp_path / "straight", checkpoint_every=0, tokens=LONG)
    assert resumed.valid_loss == train(straight, recipe=recipe, quiet=True).valid_loss
    assert losses(out) == losses(tmp_path / "straight")


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_a_run_is_open_to_whom_the_umask_says(
    umask: int, data: str, recipe: Recipe, tmp_path: Path
) -> None:
    """Who may read a run's other files may read its checkpoint."""
    before = os.umask(umask)
    try:
        train(config(data, tmp_path / "run", stop_after=1), recipe=recipe, quiet=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
    assert FILE in modes
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_a_checkpoint_is_read_while_its_run_replaces_it(tmp_path: Path) -> None:
    """A checkpoint always reads as one of those that its run wrote, never as a mixture."""
    for step in ("7", "14" * 20):  # of different lengths
        save_file({}, tmp_path / step, metadata={"step": step, "extra": "{}", "run": "{}"})
    replaces = (
        "import itertools, os\n"
        f"for step in itertools.cycle(('7', '{'14' * 20}')):\n"
        f"    os.link(step, 'new'); os.replace('new', '{FILE}')"
    )
    with running([sys.executable, "-c", replaces], cwd=tmp_path):
        while not (tmp_path / FILE).exists():
            pass
        steps = {read_step(tmp_path) for _ in range(5_000)}
    assert steps <= {7, int("14" * 20)}


@pytest.mark.parametrize(
    ("steps", "given", "every"),
    [
        (585, None, 58),
        (20_000, None, 500),
        (3, None, 1),
        (585, 0, 0),
        (20_000, 2_000, 2_000),
    ],
)
def test_a_run_has_checkpoints_whatever_its_length(
    steps: int, given: int | None, every: int
) -> None:
    """A tenth of the run is lost at most, and 500 steps, unless another number is given."""
    asked = TrainConfig(data="tokens", out="runs/a", checkpoint_every=given)
    assert asked.save_every(steps) == every


def test_a_run_says_where_it_goes_on(
    data: str, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that was begun is told of: with a checkpoint its step, without one that it is lost;
    a new one is not."""
    part = config(data, tmp_path / "run", stop_after=50)
    train(part, recipe=recipe)
    assert "checkpoint" not in capsys.readouterr().err
    train(replace(part, stop_after=60), recipe=recipe)
    assert "goes on after step 50 of 100" in capsys.readouterr().err
    for file in (tmp_path / "run").glob(f"{Path(FILE).stem}*"):
        file.unlink()
    train(replace(part, stop_after=10), recipe=recipe)
    assert "no checkpoint yet: from the first step again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_interrupted_run_loses_nothing(
    data: str, recipe: Recipe, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C or SIGTERM saves at the end of the step, and the same command ends bit-equal."""
    recipe.save(tmp_path / "recipe.json")
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "completedp", "train", "--data", data, "--out", str(out)]
    command += ["--recipe", str(tmp_path / "recipe.json"), "--context", "16", "--head-dim", "8"]
    command += ["--log-every", "1", "--eval-sequences", "8", "--checkpoint-every", "0"]
    command += ["--tokens", str(LONG)]
    with running(command, stderr=subprocess.PIPE) as process:
        while process.poll() is None and len(read_metrics(out)) < 5:
            pass
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.splitlines()[-1].endswith("the same command goes on where it stopped")
    assert 5 <= (read_step(out) or 0) < LONG // BASE.batch
    train(config(data, out, tokens=LONG), recipe=recipe, quiet=True)
    train(config(data, tmp_path / "straight", tokens=LONG), recipe=recipe, quiet=True)
    assert losses(out) == losses(tmp_path / "straight")


def test_two_processes_do_not_share_a_folder(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A folder that a process trains into is refused to another."""
    with only_process(tmp_path / "run"), pytest.raises(CompletedpError, match="another process"):
        train(config(data, tmp_path / "run"), recipe=recipe, quiet=True)


def test_changed_data_is_another_run(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A run does not go on with other tokens under the same path; the path itself may change."""
    shutil.copytree(data, tmp_path / "tokens")
    asked = config(str(tmp_path / "tokens"), tmp_path / "run", stop_after=5)
    train(asked, recipe=recipe, quiet=True)
    train(replace(asked, data=data, stop_after=6), recipe=recipe, quiet=True)
    (tmp_path / "new.txt").write_text("\n<|endoftext|>\n".join(f"{i} " * 40 for i in range(40)))
    shutil.rmtree(tmp_path / "tokens")
    prepare_source(str(tmp_path / "new.txt"), str(tmp_path / "tokens"), valid_fraction=0.5)
    with pytest.raises(CompletedpError, match="its data had other contents"):
        train(replace(asked, stop_after=7), recipe=recipe, quiet=True)


def test_evaluation_does_not_depend_on_batching(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """Whatever the micro-batch, the same windows are evaluated."""
    found = []
    for micro in (None, 1, 2, 4):
        asked = config(
            data, tmp_path / f"{micro}", micro_batch=micro, eval_sequences=7, dtype="float64"
        )
        found.append(train(asked, recipe=recipe, quiet=True).valid_loss)
    assert found == pytest.approx([found[0]] * 4, abs=1e-9)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\x00", b"[" * 100_000, b"{}"])
def test_broken_run_files_are_one_line(
    data: str, recipe: Recipe, tmp_path: Path, name: str, content: bytes
) -> None:
    """A run folder with a broken file is one line that names it."""
    asked = config(data, tmp_path / "run", stop_after=2)
    train(asked, recipe=recipe, quiet=True)
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(CompletedpError, match=r"run|seed") as caught:
        train(asked, recipe=recipe, quiet=True)
    assert "\n" not in str(caught.value)


def edit_checkpoint(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change a checkpoint's tensors, its metadata kept."""
    with safe_open(folder / FILE, "pt") as file:
        metadata = file.metadata()
    tensors = weights(folder)
    change(tensors)
    save_file(tensors, folder / FILE, metadata)


QKV = "blocks.0.attn.qkv.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update({f"model/{QKV}": t[f"model/{QKV}"][:1].clone()}),
        lambda t: t.update({f"model/{QKV}": t[f"model/{QKV}"].long()}),
        lambda t: t.pop(f"model/{QKV}"),
        lambda t: t.pop(f"optimizer/exp_avg/{QKV}"),
        lambda t: t.update({f"optimizer/exp_avg/{QKV}": torch.zeros(3)}),
    ],
    ids=["shape", "dtype", "weight missing", "moment missing", "moment shape"],
)
def test_wrong_checkpoints_are_refused(
    data: str, recipe: Recipe, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    """A checkpoint that is not exactly this model's is one line, and nothing is trained from it."""
    asked = config(data, tmp_path / "run", stop_after=2)
    train(asked, recipe=recipe, quiet=True)
    edit_checkpoint(tmp_path / "run", change)
    with pytest.raises(CompletedpError, match=r"qkv"):
        train(replace(asked, stop_after=4), recipe=recipe, quiet=True)


def test_finished_run_is_not_run_again(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """The same command on a finished run returns its result."""
    asked = config(data, tmp_path / "run", stop_after=None)
    first = train(asked, recipe=recipe, quiet=True)
    assert train(asked, recipe=recipe, quiet=True) == first


def test_run_folder_of_another_run_is_refused(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A folder that holds another run is an error that names what differs, and is not touched."""
    asked = config(data, tmp_path / "run", stop_after=2)
    train(asked, recipe=recipe, quiet=True)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(CompletedpError, match="another run: its seed is 0, here it is 1"):
        train(replace(asked, seed=1), recipe=recipe, quiet=True)
    with pytest.raises(CompletedpError, match="its depth is not given, here it is 2; "):
        train(replace(asked, depth=2), recipe=recipe, quiet=True)
    with pytest.raises(CompletedpError, match="another run: its recipe had other contents"):
        train(asked, recipe=recipe.with_values(lr=0.5), quiet=True)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}


def test_advice_names_an_option_as_it_is_written(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """An error that advises an option has a flag for a command, and in Python the argument."""
    asked = config(data, tmp_path / "run", stop_after=1)
    train(asked, recipe=recipe, quiet=True)
    other = replace(asked, seed=1)
    assert error_of(train, other, recipe=recipe, quiet=True).endswith("choose another out")
    with surface.running(surface.Command()):
        assert error_of(train, other, recipe=recipe, quiet=True).endswith("choose another --out")


def test_accumulation_changes_nothing_but_rounding(
    data: str, recipe: Recipe, tmp_path: Path
) -> None:
    """Four micro-batches give the curve of one batch, in float64 to rounding."""
    shared = {"dtype": "float64", "stop_after": 20}
    whole = config(data, tmp_path / "whole", **shared)
    parts = config(data, tmp_path / "parts", micro_batch=1, **shared)
    train(whole, recipe=recipe, quiet=True)
    train(parts, recipe=recipe, quiet=True)
    for (_, a), (_, b) in zip(losses(tmp_path / "whole"), losses(tmp_path / "parts"), strict=True):
        assert a == pytest.approx(b, abs=1e-9)


def test_divergence_is_a_result(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A run that blows up ends as `diverged` with its last finite loss, without an exception."""
    wild = recipe.with_values(lr=1e4, weight_decay=0.0)
    asked = config(data, tmp_path / "run")
    result = train(asked, recipe=wild, quiet=True)
    assert result.status == "diverged"
    assert result.steps < 100
    assert result.last_finite_loss is not None
    assert result.valid_loss is None
    rows = losses(tmp_path / "run")
    last = rows[-1][1]
    assert last is None or is_divergence(last, rows[0][1])
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert Result(**saved) == result


def test_training_learns(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """Loss on held-out text ends well below that of the first step."""
    asked = config(data, tmp_path / "run")
    result = train(asked, recipe=recipe, quiet=True)
    assert result.valid_loss is not None
    assert result.valid_loss < 0.75 * losses(tmp_path / "run")[0][1]
    assert result.valid_bits_per_byte == pytest.approx(result.valid_loss / 0.6931, rel=0.01)


def test_seed_decides_everything(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """Equal seeds give equal curves, other seeds others."""
    curves = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        asked = config(data, tmp_path / name, seed=seed, stop_after=5)
        train(asked, recipe=recipe, quiet=True)
        curves[name] = losses(tmp_path / name)
    assert curves["a"] == curves["b"] != curves["c"]


def test_full_disk_keeps_the_previous_checkpoint(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A checkpoint that cannot be written is one line of error, and the old one still loads."""
    recipe.save(tmp_path / "recipe.json")
    out = tmp_path / "run"
    command = [sys.executable, "-m", "completedp", "train", "--data", data, "--out", str(out)]
    command += ["--recipe", str(tmp_path / "recipe.json"), "--context", "16", "--head-dim", "8"]
    first = subprocess.run([*command, "--stop-after", "10"], capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    size = (out / FILE).stat().st_size

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    full = subprocess.run(
        [*command, "--stop-after", "20"], capture_output=True, text=True, preexec_fn=small_files
    )
    assert full.returncode == 2
    errors = [line for line in full.stderr.splitlines() if "error" in line]
    assert len(errors) == 1
    assert "the one of step 10 is kept" in errors[0]
    assert read_step(out) == 10
    left = {"checkpoint.safetensors", "config.json", "metrics.jsonl", "plan.json", "recipe.json"}
    assert {path.name for path in out.iterdir()} == left | {"result.json", ".lock"}
    rest = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert rest.returncode == 0
    assert json.loads(rest.stdout)["status"] == "ok"


def test_foreign_checkpoint_is_refused(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A file that is no checkpoint of ours is a one-line error, and nothing is unpickled."""
    out = tmp_path / "run"
    out.mkdir()
    torch.save({"step": 1}, out / FILE)
    asked = config(data, out)
    with pytest.raises(CompletedpError, match="not a readable checkpoint"):
        train(asked, recipe=recipe, quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 63}, "not a whole number of sequences"),
        ({"micro_batch": 3}, "micro_batch 3 does not divide"),
        ({"tokens": 10}, "fewer than one batch"),
        ({"width": 20}, "not divisible by head_dim"),
        ({"context": 4096, "batch": 4096, "tokens": 8192}, "fewer than one window"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
        ({"shape": Shape(head_dim=16)}, "head_dim is 16 and was 8 at base"),
    ],
)
def test_impossible_runs_leave_nothing(
    data: str, recipe: Recipe, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    """A run that cannot be is one line, and no folder is made."""
    asked = config(data, tmp_path / "run", **changes)
    with pytest.raises(CompletedpError, match=message):
        train(asked, recipe=recipe, quiet=True)
    assert not (tmp_path / "run").exists()


def test_clipping_warns(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """Gradient clipping is off by default and warns that it changes what eps is compared with."""
    asked = config(data, tmp_path / "run", clip=1.0, stop_after=2)
    with pytest.warns(UserWarning, match="clipping"):
        train(asked, recipe=recipe, quiet=True)


def test_compiled_run_agrees(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """A compiled run follows the plain one to rounding."""
    plain = config(data, tmp_path / "plain", dtype="float64", stop_after=5)
    train(plain, recipe=recipe, quiet=True)
    train(replace(plain, out=str(tmp_path / "compiled"), compile=True), recipe=recipe, quiet=True)
    pairs = zip(losses(tmp_path / "plain"), losses(tmp_path / "compiled"), strict=True)
    for (_, a), (_, b) in pairs:
        assert a == pytest.approx(b, abs=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_follows_cpu(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """On a GPU, float32 follows the CPU closely and bfloat16 within 2% over 50 steps."""
    cpu = config(data, tmp_path / "cpu", device="cpu", stop_after=50)
    train(cpu, recipe=recipe, quiet=True)
    for dtype, tolerance in (("float32", 1e-2), ("bfloat16", 2e-2)):
        out = tmp_path / dtype
        train(replace(cpu, out=str(out), device="cuda", dtype=dtype), recipe=recipe, quiet=True)
        for (_, a), (_, b) in zip(losses(tmp_path / "cpu"), losses(out), strict=True):
            assert a == pytest.approx(b, rel=tolerance)


def test_weights_are_not_all_of_a_model(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """Weights of a run whose plan left multipliers to hooks are loaded with a warning, and those of
    one that diverged are not."""
    run = tmp_path / "run"
    result = train(config(data, run), recipe=recipe, quiet=True)
    model = ReferenceModel(vocab=257, shape=SHAPE)(BASE)
    load_weights(model, run)
    planned = json.loads((run / "plan.json").read_text())
    planned["multipliers"]["attn"] = "hook"
    (run / "plan.json").write_text(json.dumps(planned))
    with pytest.warns(cdp.ModelWarning, match=r"plan\.attach"):
        load_weights(model, run)
    ended = result.to_dict() | {"status": "diverged"}
    (run / "result.json").write_text(json.dumps(ended))
    assert "diverged" in error_of(load_weights, model, run)
