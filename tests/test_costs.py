"""Cost before work: FLOP against torch's own count, what is left of a study, refusals, dry runs."""

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_models
import pytest
import timings
import torch
from studies import BASE, CONTEXT, make_recipe, make_study, objective_of, planted, write_tokens
from torch.utils.flop_counter import FlopCounterMode

from completedp.cli import costs
from completedp.cli.main import main
from completedp.common.errors import DataWarning
from completedp.evidence.figures import run as figure_run
from completedp.evidence.figures.figure import Found
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.sweeps import Sweep
from completedp.lm.reference import ReferenceModel
from completedp.lm.shape import Shape
from completedp.studies.config import LADDER
from completedp.studies.outlook import left_of, outlook, searched
from completedp.studies.spec import StudySpec
from completedp.studies.store import Store
from completedp.tasks.losses import transformer_loss
from completedp.tasks.task import make_task
from completedp.theory.scale import Scale
from completedp.training import cost as training_costs
from completedp.training import estimate
from completedp.training.cost import (
    MEMORIES,
    PEAKS,
    Cost,
    Speed,
    gpu_speed,
    memory_of,
    training_cost,
    utilisation,
)
from completedp.training.estimate import estimate_run, estimate_trials, sample

CPU = torch.device("cpu")
SIZES = "--width 16 --head-dim 8 --depth 1 --batch 64 --tokens 640 --context 16 --eval-sequences 4"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("costs"))


def run(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command, in this process."""
    monkeypatch.setattr(sys, "argv", ["completedp", *words])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_flop_are_those_that_torch_counts() -> None:
    """Six for a weight and token: torch's own count of the matrix products of a step."""
    scale = Scale(width=64, depth=2, batch=128, tokens=128)
    model = ReferenceModel(vocab=257, shape=Shape(head_dim=16))(scale)
    tokens = torch.zeros(2, 64, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        transformer_loss(model, tokens, tokens, z_loss=0.0).total.backward()
    counted = counter.get_total_flops()  # which leaves attention on a CPU out
    found = training_cost(scale, vocab=257, context=64, trials=1).flop
    attention = 12 * scale.depth * scale.width * 64 / 2 * 128
    assert found - attention == pytest.approx(counted, rel=0.02)


def test_a_sample_is_the_arithmetic(data: str, tmp_path: Path) -> None:
    """What a model is tried for agrees with the reference model's formula."""
    with Store(str(tmp_path / "s.db")) as store:
        objective = objective_of(make_study(store, data), data)
    found = sample(objective.task, objective.recipe, BASE, CPU)
    wanted = training_cost(BASE, vocab=257, context=CONTEXT, trials=1).flop / BASE.steps / 4
    assert found.flop == pytest.approx(wanted)
    parameters = sum(p.numel() for p in objective.task.blank(BASE).parameters())
    assert found.state == 16 * parameters
    assert found.kept is not None
    # At least the logits in float32, and less than all activations several times over.
    assert 4 * CONTEXT * 257 < found.kept < 200 * 4 * CONTEXT * 257
    assert found.seconds is not None
    assert found.seconds > 0


def test_time_is_flop_over_speed() -> None:
    """A GPU of twice the peak takes half as long, but for compiling and the steps themselves."""
    cost = Cost(trials=1, steps=0, flop=1e18, shapes=1)
    slow, fast = (gpu_speed(peak, width=256, depth=4, slots=True) for peak in (500, 1000))
    assert cost.compiling(slow) > 0
    training = [cost.seconds(each) - cost.compiling(each) for each in (slow, fast)]
    assert training[0] == pytest.approx(2 * training[1])
    assert training[1] == pytest.approx(1e18 / (1e15 * 0.2))


def test_a_gpu_does_fewer_flop_of_narrow_models() -> None:
    """Trials of many widths take what those of each take at the part of the peak they reach."""
    scales = [Scale(width=width, depth=2, batch=64, tokens=6400) for width in (64, 256, 4096)]
    costs = [training_cost(scale, vocab=257, context=32, trials=3) for scale in scales]
    speed = Speed(device="a GPU", flop_a_second=1e14, by_width=True)
    each = [
        cost.flop / (1e14 * utilisation(scale.width))
        for cost, scale in zip(costs, scales, strict=True)
    ]
    assert sum(costs, Cost()).seconds(speed) == pytest.approx(sum(each))
    plain = Speed(device="a CPU", flop_a_second=1e14)
    assert sum(costs, Cost()).seconds(plain) == pytest.approx(sum(c.flop for c in costs) / 1e14)


def test_what_is_left_of_a_study(data: str, tmp_path: Path) -> None:
    """Finished trials cost nothing more; a store that is not there has none, and is not made."""
    path = str(tmp_path / "s.db")
    with Store(path) as store:
        study = make_study(store, data, trials=6)
        spec = StudySpec.from_dict(study.spec)
        assert searched(spec) == {BASE: 6}
        planted(study, data, [3.0, 2.0])
        assert left_of(study) == {BASE: 4}
    ahead = outlook({BASE: 6}, path, "tune")
    assert (ahead.left, ahead.begun) == ({BASE: 4}, True)
    with Store(path) as store:
        store.study("tune").set_budget(9)
        assert left_of(store.study("tune")) == {BASE: 7}
    assert outlook({BASE: 6}, path, "tune").left == {BASE: 7}  # what was granted stays
    nowhere = outlook({BASE: 6}, str(tmp_path / "none.db"), "tune")
    assert (nowhere.left, nowhere.begun) == ({BASE: 6}, False)
    assert not (tmp_path / "none.db").exists()


def test_more_trials_cost_more(data: str, tmp_path: Path) -> None:
    """Steps, tokens and FLOP are those of all trials together, and of the steps left of a run;
    memory is of what trains at once, and said to be of a trial where that is one of several."""
    with Store(str(tmp_path / "s.db")) as store:
        objective = objective_of(make_study(store, data), data)
    one, ten = (
        estimate_trials(objective.runner, objective.recipe, {BASE: count}, peak=100)
        for count in (1, 10)
    )
    assert (ten.cost.steps, ten.cost.tokens) == (10 * BASE.steps, 10 * BASE.tokens)
    assert one.memory == ten.memory  # of a device that is not here, it is not known how many fit
    assert [" GB a trial\n" in str(each) for each in (one, ten)] == [False, True]
    assert " a trial" not in str(replace(ten, at_once=2))
    assert ten.cost.flop == pytest.approx(10 * one.cost.flop)
    whole, half = (
        estimate_run(objective.task, make_recipe(), BASE, CPU, steps=steps, peak=100)
        for steps in (BASE.steps, BASE.steps // 2)
    )
    assert half.cost.flop == pytest.approx(whole.cost.flop / 2)
    assert half.cost.tokens == BASE.tokens // 2


def test_memory_that_was_not_tried_is_said_to_be_more(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model too large to try, only weights and optimizer are known, and that is said."""
    with Store(str(tmp_path / "s.db")) as store:
        objective = objective_of(make_study(store, data), data)
    tried = estimate_trials(objective.runner, objective.recipe, {BASE: 1})
    monkeypatch.setattr(estimate, "_MOST_STATE", 1)
    untried = estimate_trials(objective.runner, objective.recipe, {BASE: 1})
    assert "more than" not in str(tried)
    assert "more than" in str(untried)
    assert untried.memory < tried.memory
    assert untried.cost == tried.cost


@pytest.mark.parametrize(
    ("words", "trials"),
    [
        (f"search start --data DATA --trials 5 --store OUT/s.db {SIZES}", 5),
        # Three octaves, two seeds, two widths.
        (f"sweep --data DATA --out OUT/sweep --factors 1 2 --octaves -1 0 1 --seeds 2 {SIZES}", 12),
        # Three rates, two seeds, tokens x1 and x2, and the run for the gradient's noise.
        (
            f"fit-horizon --data DATA --out OUT/fit.json --factors 1 2 --batch-factors 1 "
            f"--octaves -1 0 1 --seeds 2 {SIZES}",
            13,
        ),
        (f"train --data DATA --out OUT/run --recipe OWN {SIZES}", 1),
        ("figure lr-width --out OUT/figures", None),
    ],
)
@pytest.mark.parametrize("peak", [(), ("--peak", "989"), ("--peak", "h100")])
def test_a_dry_run_says_the_cost_and_does_nothing(
    words: str,
    trials: int | None,
    peak: tuple[str, ...],
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--dry-run` prints trials, steps, tokens, FLOP and time, exits with 0, and writes nothing."""
    recipe = tmp_path / "own.json"
    make_recipe().save(recipe)
    given = words.replace("DATA", data).replace("OUT", str(tmp_path)).replace("OWN", str(recipe))
    assert run([*given.split(), "--dry-run", "--json", *peak], monkeypatch) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert trials is None or found["trials"] == trials
    known = ("steps", "tokens", "flop", "seconds", "memory_bytes")
    assert min(found[name] for name in known) > 0
    assert ("989 TFLOP/s" in found["device"]) == bool(peak)
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]
    assert run([*given.split(), "--dry-run", *peak], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "FLOP" in said
    assert " GB" in said


@pytest.mark.parametrize("name", ["slots-128", "slots-256", "slots-512"])
def test_a_slot_s_memory_by_arithmetic_is_about_that_on_a_gpu(name: str) -> None:
    """Between the least that was measured on an H200, where the gradient of the logits is written
    over them, and a tenth below the most."""
    found = timings.found("cuda", name)
    config = found["config"]
    batch = config["sequences"] * config["context"]
    scale = Scale(width=config["width"], depth=config["depth"], batch=batch, tokens=batch)
    theory = memory_of(scale, config["vocab"]) / 2**20
    rows = [row["memory_mib_per_slot"] for row in found["rows"] if row["way"] == "slots"]
    assert 0.65 * theory < min(rows)
    assert max(rows) < 1.1 * theory


def test_a_figure_says_which_gpus_are_too_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory is that of its largest trial, and what does not hold it is named."""
    assert PEAKS.keys() == MEMORIES.keys()
    for words, too_small in (
        ("lr-width --size gpu", []),
        ("lr-width --size paper", ["A10", "A100", "H100", "L4", "L40S"]),
        ("lr-width --size cpu --peak A10", []),
    ):
        assert run(["figure", *words.split(), "--dry-run", "--json"], monkeypatch) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["too_small"] == too_small
        assert run(["figure", *words.split(), "--dry-run"], monkeypatch) == 0
        said = capsys.readouterr().out
        number = float(said.partition("memory: about ")[2].partition(" GB for the largest")[0])
        assert number == pytest.approx(found["memory_bytes"] / 1e9, rel=0.05)
        assert ("does not fit" in said) == bool(too_small)
    line = FIGURES["lr-width"]
    assert isinstance(line, Sweep)
    at = line.sizes["gpu"]
    scales = [each.scale(at.setting.base, at.factors[-1]) for each in at.lines]
    widest = max(scales, key=lambda scale: scale.width)
    assert line.cost("gpu").memory_bytes == memory_of(widest, at.setting.vocab)


def test_a_cpu_refuses_a_long_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At cpu size, too, one of more than half an hour begins with --anyway alone, and goes on when
    it was begun."""
    began: list[str] = []

    def begin(name: str, *_: Any, **__: Any) -> Any:
        began.append(name)
        return Found(findings=[], numbers={}, raw=[], text="", svg=""), {}

    monkeypatch.setattr(figure_run, "run_figure", begin)
    words = ["figure", "headline", "--device", "cpu", "--out", str(tmp_path)]
    assert run(words, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "headline would take about 46:05 on 2 CPU cores" in said
    assert "--anyway" in said
    assert not began
    assert run(["figure", "lr-width", *words[2:]], monkeypatch) == 0
    assert run([*words, "--anyway"], monkeypatch) == 0
    with Store(figure_run.store_of(tmp_path, "headline", "cpu")) as store:
        assert run(words, monkeypatch) == 2  # there is a store, and nothing in it
        make_study(store, write_tokens(tmp_path))
    assert run(words, monkeypatch) == 0
    assert began == ["lr-width", "headline", "headline"]


@pytest.mark.parametrize(
    "words",
    [
        "train --data DATA --recipe OWN SIZES",
        "sweep --data DATA --factors 1 2 --octaves -1 0 1 --seeds 1 SIZES",
        "fit-horizon --data DATA --factors 1 2 --octaves -1 0 1 --seeds 1 SIZES",
    ],
)
def test_a_dry_run_needs_no_place_for_results(
    words: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--out` may be left out of what writes nothing, and of nothing else."""
    monkeypatch.chdir(tmp_path)
    make_recipe().save("own.json")
    given = words.replace("DATA", data).replace("OWN", "own.json").replace("SIZES", SIZES).split()
    assert run([*given, "--dry-run"], monkeypatch) == 0
    assert "FLOP" in capsys.readouterr().out
    assert run(given, monkeypatch) == 2
    assert "error: --out is missing" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]


def test_a_cpu_refuses_what_takes_long(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the estimate, the command that would fit and the flag that goes ahead; what
    was begun goes on."""
    monkeypatch.setattr(costs, "SMALLER", (Scale(width=16, depth=1, batch=64, tokens=640),))
    store = str(tmp_path / "s.db")
    words = f"search start --data {data} --trials 30 --store {store} --head-dim 8 --context 16"
    words += " --eval-sequences 4 --device cpu --no-compile --slots 2"
    large = f"{words} --width 128 --depth 4 --tokens 1e13 --batch=4096"
    assert run(large.split(), monkeypatch) == 2
    line = capsys.readouterr().err.strip()
    assert line.count("\n") == 0
    assert "30 trials would take about" in line
    assert "days on CPU" in line
    assert "--anyway" in line
    proposed = line.partition("`completedp ")[2].partition("`")[0].split()
    assert "--tokens" in proposed
    assert "1e13" not in proposed
    assert "--batch=4096" not in proposed
    assert not (tmp_path / "s.db").exists()
    begun = [*proposed, "--trials", "1"]
    assert run(begun, monkeypatch) == 0
    said = capsys.readouterr()
    assert "cost: 1 trial, 10 steps" in said.err
    assert f"next: completedp search best --store {store} --study search --data {data}" in said.err
    monkeypatch.setattr(training_costs, "LONG_ON_CPU", 0.0)
    assert run([*proposed, "--trials", "2"], monkeypatch) == 0  # it was begun
    assert "2/2 trials" in capsys.readouterr().out
    assert run([*proposed, "--trials", "2"], monkeypatch) == 0
    assert "ETA" not in capsys.readouterr().err  # nothing is compiled, or left


def test_a_cpu_refuses_a_long_ladder(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`search best` of hours names rungs that fit, and measures nothing unless `--anyway`."""
    store, out = str(tmp_path / "s.db"), tmp_path / "best.json"
    with Store(store) as opened:
        planted(make_study(opened, data, space="global", tunables=("lr",)), data, [2.5, 2.0])
    words = f"search best --store {store} --data {data} --out {out} --seeds=1 --slots 2".split()
    words += ["--device", "cpu", "--no-compile", "--rungs", "depth=2", "width=8,tokens=1e9"]
    assert run(words, monkeypatch) == 2
    line = capsys.readouterr().err.strip()
    assert line.count("\n") == 0
    assert "trials would take about" in line
    assert "--anyway" in line
    proposed = line.partition("`completedp ")[2].partition("`")[0].split()
    assert proposed[proposed.index("--rungs") :] == ["--rungs", *LADDER, "--seeds", "4"]
    assert "--seeds=1" not in proposed
    assert not out.exists()
    assert run(proposed, monkeypatch) == 0
    assert out.exists()
    monkeypatch.setattr(training_costs, "LONG_ON_CPU", 0.0)
    short = [*words[: words.index("--rungs")], "--rungs", "tokens=3"]
    assert run(short, monkeypatch) == 2
    assert "take lower --rungs, fewer --seeds or a GPU" in capsys.readouterr().err
    assert run([*short, "--anyway"], monkeypatch) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so small a base
@pytest.mark.parametrize(("seeds", "fewer"), [(2, ""), (3, " --seeds 1")])
@pytest.mark.parametrize(
    ("verb", "factors"),
    [("sweep", "--factors 1 2"), ("fit-horizon --batch-factors 1", "--factors 1 4")],
)
def test_a_long_grid_is_refused_with_a_smaller_one(
    verb: str,
    factors: str,
    seeds: int,
    fewer: str,
    data: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where the smallest base would take long too, fewer factors and seeds go with it."""
    estimated = estimate.estimate_trials

    def by_the_trial(*given: Any, **options: Any) -> Any:
        found = estimated(*given, **options)
        return replace(found, seconds=130.0 * found.cost.trials)  # 13 of them are not long

    monkeypatch.setattr(estimate, "estimate_trials", by_the_trial)
    monkeypatch.setattr(costs, "SMALLER", (Scale(width=16, depth=1, batch=64, tokens=640),))
    words = f"{verb} --data {data} --out none.json --octaves -1 0 1 --seeds {seeds} {SIZES}"
    assert run([*words.split(), "--device", "cpu"], monkeypatch) == 2
    proposed = capsys.readouterr().err.partition("`")[2].partition("`")[0]
    assert f" --tokens 640 {factors}{fewer}" in f"{proposed} "
    assert run([*proposed.split()[1:], "--dry-run"], monkeypatch) == 0


def test_anyway_begins(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--anyway` is obeyed; `--peak` without `--dry-run` is a mistake."""
    monkeypatch.setattr(training_costs, "LONG_ON_CPU", 0.0)
    words = f"search start --data {data} --trials 1 --store {tmp_path}/s.db {SIZES} --no-compile"
    assert run(words.split(), monkeypatch) == 2
    assert run([*words.split(), "--anyway"], monkeypatch) == 0
    capsys.readouterr()
    assert run([*words.split(), "--peak", "989"], monkeypatch) == 2
    assert "give --dry-run with it" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so few tokens, and so small a base
def test_a_cpu_asks_before_a_long_run(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train` names a run that fits, and writes nothing; with `--anyway`, up to `--stop-after`, and
    of what was begun it asks nothing."""
    monkeypatch.setattr(costs, "SMALLER", (Scale(width=16, depth=1, batch=64, tokens=640),))
    make_recipe().save(tmp_path / "own.json")
    words = f"train --data {data} --recipe {tmp_path}/own.json --out {tmp_path}/run --head-dim 8"
    words += " --context 16 --eval-sequences 4 --device cpu --width 16 --depth 1 --batch 64"
    long = [*words.split(), "--tokens", "1e13"]
    assert run(long, monkeypatch) == 2
    line = capsys.readouterr().err.strip()
    assert line.count("\n") == 0
    assert "the run would take about" in line
    assert "--anyway" in line
    proposed = line.partition("`completedp ")[2].partition("`")[0].split()
    assert not (tmp_path / "run").exists()
    assert run([*long, "--stop-after", "2"], monkeypatch) == 0
    monkeypatch.setattr(training_costs, "LONG_ON_CPU", 0.0)
    assert run([*long, "--stop-after", "4"], monkeypatch) == 0  # it was begun
    proposed[proposed.index("--out") + 1] = str(tmp_path / "other")
    assert run(proposed, monkeypatch) == 2
    assert run([*proposed, "--anyway"], monkeypatch) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so small a base
@pytest.mark.parametrize("verb", ["search start", "search start --dry-run", "train"])
def test_a_model_that_fails_is_said_before_anything_is_written(
    verb: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a batch breaks, here positions that the model has not, is one line with the sizes."""
    sizes = "--width 16 --depth 1 --batch 256 --tokens 2560 --context 128 --eval-sequences 4"
    words = [*verb.split(), *sizes.split(), "--data", data, "--model", "own_models:nano"]
    out = ("--out", "run") if verb == "train" else ("--store", "search.db")
    words += [out[0], str(tmp_path / out[1])]
    assert run(words, monkeypatch) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "own_models:nano fails on a batch: IndexError" in said
    assert "for every position of the context" in said
    assert said.endswith("(at width 16, depth 1 and 128 tokens a sequence)")
    assert not (tmp_path / out[1]).exists()


def test_a_loss_of_whole_batches_can_be_estimated(data: str) -> None:
    """One that fails on a few examples, and not on as many as a step has, is no mistake."""
    base = Scale(width=16, depth=1, batch=16 * CONTEXT, tokens=32 * CONTEXT)

    def loss(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(tokens) != 16:
            raise RuntimeError("pairs are missing")
        return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    task = make_task(own_models.nano, data, loss=loss, context=CONTEXT)
    assert sample(task, task.recipe(base), base, CPU).seconds is None


def test_a_dry_run_says_how_often_the_data_are_seen(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes over the text are a caution before a run, as they are in it."""
    sizes = "--width 64 --depth 1 --batch 64 --tokens 1M --context 16"
    words = ["train", "--dry-run", *sizes.split(), "--data", data, "--out", str(tmp_path / "run")]
    with pytest.warns(DataWarning, match="1,000,000 tokens are .* passes over"):
        assert run(words, monkeypatch) == 0
    assert not (tmp_path / "run").exists()
