"""Sweeps: the optimum of a curve, the verdict over scales, and resumption trial by trial."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from completedp.common.errors import CompletedpError
from completedp.evidence.config import SweepConfig
from completedp.evidence.optimum import find_optimum, loss_at
from completedp.evidence.sweep import TRIALS, Point, judge, read_trials, sweep, sweep_text
from completedp.lm.prepare import prepare_source
from completedp.lm.reference import meta_model
from completedp.lm.shape import Shape
from completedp.lm.transformer import ModelConfig
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.config import TrainConfig
from completedp.training.loop import train
from completedp.training.slots import Slots, Trial

torch.set_num_threads(1)
OCTAVES = np.arange(-3.0, 4.0)
BASE = Scale(width=16, depth=1, batch=64, tokens=64 * 20)


def bowl(place: float, seeds: int = 3, bottom: float = 2.0, noise: float = 0.0) -> np.ndarray:
    """Losses [octaves, seeds] of a parabola, each seed shifted by its own amount."""
    shifts = np.linspace(-noise, noise, seeds)
    return bottom + 0.1 * (OCTAVES[:, None] - place - shifts) ** 2


@given(place=st.floats(-1.9, 1.9))
def test_the_bottom_of_a_parabola_is_found(place: float) -> None:
    """The optimum of an exact parabola is its bottom, without error."""
    found = find_optimum([OCTAVES], bowl(place))
    assert found.octaves == pytest.approx((place,), abs=1e-9)
    assert found.loss == pytest.approx(2.0, abs=1e-9)
    assert found.errors == pytest.approx((0.0,), abs=1e-9)


def test_seeds_give_the_error() -> None:
    """Seeds whose optima are at -0.1, 0 and 0.1 give their standard error."""
    found = find_optimum([OCTAVES], bowl(0.0, noise=0.1))
    assert found.errors == pytest.approx((0.1 / math.sqrt(3),))
    assert find_optimum([OCTAVES], bowl(0.0, seeds=1)).errors is None


@pytest.mark.parametrize("place", [-3.0, 3.0, -9.0])
def test_an_optimum_at_an_end_is_not_bracketed(place: float) -> None:
    """The lowest loss at an end of the grid says nothing of where the optimum is."""
    assert find_optimum([OCTAVES], bowl(place)).octaves is None


def test_an_optimum_beside_divergence_is_not_bracketed() -> None:
    """Next to a diverged trial there is no curve to fit, and with all diverged no loss."""
    losses = bowl(0.0)
    losses[4] = math.inf
    assert find_optimum([OCTAVES], losses).octaves is None
    assert find_optimum([OCTAVES], np.full((7, 2), math.inf)).loss is None


@given(place=st.floats(-1.9, 1.9))
def test_using_an_optimum_at_its_own_scale_costs_nothing(place: float) -> None:
    """The loss read off at the optimum is the optimum's."""
    found = find_optimum([OCTAVES], bowl(place))
    assert found.octaves is not None
    assert loss_at([OCTAVES], bowl(place), found.octaves) == pytest.approx(found.loss)


def test_losses_far_from_the_optimum_are_on_lines() -> None:
    """Away from the lowest point the loss is on the line through two points of the grid."""
    losses = bowl(0.0, seeds=1)
    assert loss_at([OCTAVES], losses, [2.5]) == pytest.approx((losses[5, 0] + losses[6, 0]) / 2)


@given(x=st.floats(-1.4, 1.4), y=st.floats(-0.9, 0.9))
def test_the_bottom_of_a_bowl_in_two(x: float, y: float) -> None:
    """Two hyperparameters that interact have their joint optimum found, and it costs nothing."""
    second = np.arange(-2.0, 3.0)
    a, b = np.meshgrid(OCTAVES - x, second - y, indexing="ij")
    losses = (2.0 + 0.1 * a**2 + 0.08 * a * b + 0.2 * b**2)[..., None].repeat(2, axis=-1)
    found = find_optimum([OCTAVES, second], losses)
    assert found.octaves == pytest.approx((x, y), abs=1e-6)
    assert found.errors == pytest.approx((0.0, 0.0), abs=1e-6)
    assert loss_at([OCTAVES, second], losses, found.octaves or ()) == pytest.approx(found.loss)
    assert loss_at([OCTAVES, second], losses, (3.0, 2.0)) == pytest.approx(losses[-1, -1, 0])


CONFIG = SweepConfig(
    data="unused", out="unused", factors=(1, 4), parameterisations=("completedp", "sp"), seeds=2
)


def planted(places: dict[tuple[str, int], float]) -> dict[Point, float]:
    """Trials whose optima are where `places` says, by parameterisation and factor."""
    return {
        Point("base" if factor == 1 else "width", factor, name, (octave,), seed): 2.0
        + 0.1 * (octave - place) ** 2
        for (name, factor), place in places.items()
        for octave in CONFIG.octaves
        for seed in range(CONFIG.seeds)
    }


def test_the_verdict_finds_a_planted_drift() -> None:
    """An optimum that moves by two octaves has a drift of -2 and costs what it does."""
    places = {("completedp", 1): 0.25, ("completedp", 4): 0.25, ("sp", 1): 0.0, ("sp", 4): -2.0}
    lines = judge(CONFIG, planted(places))
    by_name = {(line.parameterisation, line.factor): line for line in lines}
    assert by_name["completedp", 4].drift == pytest.approx((0.0,), abs=1e-9)
    assert by_name["sp", 4].drift == pytest.approx((-2.0,))
    assert by_name["sp", 4].cost == pytest.approx(0.4)
    assert "-2.00" in sweep_text(CONFIG, lines)


def test_what_is_not_bracketed_has_no_drift() -> None:
    """Without an optimum at the base or at a scale there is no drift to report."""
    places = {("completedp", 1): 9.0, ("completedp", 4): 0.0, ("sp", 1): 0.0, ("sp", 4): -9.0}
    lines = judge(CONFIG, planted(places))
    assert [line.drift for line in lines] == [None, None, (0.0,), None]
    assert sweep_text(CONFIG, lines).count("not bracketed") == 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    folder = tmp_path_factory.mktemp("sweep")
    for i in range(60):
        (folder / f"{i:03d}.txt").write_text(f"sweep {i} over {i * i} " * 12)
    prepare_source(str(folder), str(folder / "tokens"), valid_fraction=0.1)
    model = ModelConfig(vocab=257, width=16, depth=1, head_dim=8)
    Recipe.for_model(meta_model(model), BASE, lr=2.0**-6).save(folder / "recipe.json")
    return SweepConfig(
        data=str(folder / "tokens"),
        out=str(folder / "unused"),
        recipe=str(folder / "recipe.json"),
        octaves=(-2.0, 0.0, 2.0),
        factors=(1, 2),
        seeds=2,
        slots=4,
        context=16,
        eval_sequences=8,
        device="cpu",
        compile=False,
    )


@pytest.mark.parametrize("axis", ["width", "depth", "batch", "tokens"])
def test_a_sweep_along_each_axis(small: SweepConfig, tmp_path: Path, axis: str) -> None:
    """A sweep runs every trial of its grid once, and writes trials, verdict and plot."""
    config = replace(small, out=str(tmp_path), axes=(axis,))
    lines = sweep(config, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / TRIALS).read_text().splitlines()]
    assert len(rows) == len(read_trials(tmp_path)) == 3 * 2 * 2
    assert [line.factor for line in lines] == [1, 2]
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")
    assert len(json.loads((tmp_path / "verdict.json").read_text())["lines"]) == 2


def test_a_sweep_of_two_over_two_axes(small: SweepConfig, tmp_path: Path) -> None:
    """Two hyperparameters over two axes share the base; what is the same training runs once."""
    config = replace(
        small,
        out=str(tmp_path),
        hyperparameters=("lr", "weight_decay"),
        second_octaves=(-1.0, 0.0, 1.0),
        axes=("width", "tokens"),
        parameterisations=("completedp", "sp"),
        seeds=1,
    )
    lines = sweep(config, quiet=True)
    scales = [(line.axis, line.factor) for line in lines]
    assert scales == [("base", 1), ("width", 2), ("tokens", 2)] * 2
    assert lines[0].losses == lines[3].losses  # parameterisations agree at the base
    assert lines[1].losses != lines[4].losses
    assert np.array(lines[0].losses).shape == (3, 3, 1)
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")
    assert "tokens x2" in sweep_text(config, lines)


def test_equal_trials_are_trained_once(
    small: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the base, where parameterisations agree, each point is trained for one of them."""
    trained = []
    run = Slots.run

    def counted(self: Slots, trials: list[Trial], **options: object) -> object:
        trained.extend(trials)
        return run(self, trials, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Slots, "run", counted)
    names = ("completedp", "sp", "mup")
    sweep(replace(small, out=str(tmp_path), parameterisations=names, axes=("depth",)), quiet=True)
    grid = 3 * 2  # octaves x seeds
    assert len(trained) == grid + 2 * grid  # one base; at depth x2 sp and mup are the same
    assert len(read_trials(tmp_path)) == 3 * 2 * grid


def test_a_sweep_goes_on_where_it_stopped(small: SweepConfig, tmp_path: Path) -> None:
    """After a crash in the middle of a line, what is missing is run and the rest kept."""
    whole = sweep(replace(small, out=str(tmp_path / "whole")), quiet=True)
    text = (tmp_path / "whole" / TRIALS).read_text()
    again = tmp_path / "again"
    sweep(replace(small, out=str(again)), quiet=True)
    kept = "".join(line + "\n" for line in text.splitlines()[:5])
    (again / TRIALS).write_text(kept + '{"axis": "base", "parame')
    assert len(read_trials(again)) == 5
    resumed = sweep(replace(small, out=str(again)), quiet=True)
    assert (again / TRIALS).read_text().startswith(kept)
    for a, b in zip(whole, resumed, strict=True):
        assert np.array(a.losses) == pytest.approx(np.array(b.losses), abs=1e-5)


def test_a_trial_of_a_sweep_is_the_trial_alone(small: SweepConfig, tmp_path: Path) -> None:
    """A point of the grid has the validation loss that `train` finds for it."""
    sweep(replace(small, out=str(tmp_path / "sweep")), quiet=True)
    found = read_trials(tmp_path / "sweep")
    recipe = Recipe.load(small.recipe)
    alone = TrainConfig(
        data=small.data,
        out=str(tmp_path / "alone"),
        width=32,
        context=16,
        seed=1,
        shape=Shape(head_dim=8),
        eval_sequences=8,
        device="cpu",
    )
    result = train(alone, recipe=recipe.with_values(lr=2.0**-4), quiet=True)
    assert found[Point("width", 2, "completedp", (2.0,), 1)] == pytest.approx(
        result.valid_loss, abs=1e-4
    )


def test_an_impossible_scale_is_said_before_training(small: SweepConfig, tmp_path: Path) -> None:
    """A factor at which the rules break is one line, before any trial, and leaves nothing."""
    config = replace(small, out=str(tmp_path / "sweep"), axes=("batch",), factors=(1, 16))
    with pytest.raises(CompletedpError, match="the largest r it can take"):
        sweep(config, quiet=True)
    assert not (tmp_path / "sweep").exists()


def test_another_sweep_in_the_folder_is_refused(small: SweepConfig, tmp_path: Path) -> None:
    """A folder that holds another sweep is one line that says what differs."""
    sweep(replace(small, out=str(tmp_path)), quiet=True)
    with pytest.raises(CompletedpError, match="another sweep: its z_loss differs"):
        sweep(replace(small, out=str(tmp_path), z_loss=0.1), quiet=True)


def test_a_sweep_may_grow(small: SweepConfig, tmp_path: Path) -> None:
    """More octaves and seeds add trials to those that are there, which are not run again."""
    sweep(replace(small, out=str(tmp_path)), quiet=True)
    before = (tmp_path / TRIALS).read_text()
    octaves = (*small.octaves, 3.0)
    lines = sweep(replace(small, out=str(tmp_path), octaves=octaves, seeds=3), quiet=True)
    assert (tmp_path / TRIALS).read_text().startswith(before)
    assert len(read_trials(tmp_path)) == 4 * 3 * 2
    assert np.array(lines[0].losses).shape == (4, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"octaves": (0.0, 1.0)}, "three or more"),
        ({"octaves": (1.0, 0.0, 2.0)}, "increasing"),
        ({"factors": (2, 4)}, "must start with 1"),
        ({"parameterisations": ()}, "one or more"),
        ({"seeds": 0}, "seeds = 0"),
        ({"slots": 0}, "slots = 0"),
        ({"hyperparameters": ("lr", "eps", "init_std")}, "one or two"),
        ({"axes": ("width", "width")}, "each once"),
        ({"out": " "}, "out is empty"),
    ],
)
def test_impossible_sweeps(changes: dict[str, object], message: str) -> None:
    """A sweep that cannot be is one line."""
    with pytest.raises(CompletedpError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]
