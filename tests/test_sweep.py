"""Sweeps: the optimum of a curve, the verdict over scales, and resumption trial by trial."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from hypothesis import given
from hypothesis import strategies as st
from studies import CONTEXT, OPTIONS, finished_once, make_recipe, write_tokens

from completedp.cli.shared import as_config
from completedp.common.errors import CompletedpError, DataWarning
from completedp.evidence.config import SweepConfig, SweepGrid
from completedp.evidence.optimum import find_optimum, loss_at
from completedp.evidence.reporting.gather import gather
from completedp.evidence.sweep import (
    STUDY,
    Point,
    SweepResult,
    _start,
    judge,
    run_sweep,
    sweep,
    sweep_text,
)
from completedp.lm.shape import Shape
from completedp.studies import worker
from completedp.studies.run import start_from
from completedp.studies.space import check_reached
from completedp.studies.store import Store, TrialRow
from completedp.theory.recipe import Recipe
from completedp.training.config import TrainConfig
from completedp.training.loop import train
from completedp.training.slots import Slots

OCTAVES = np.arange(-3.0, 4.0)


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
    shown = sweep_text(CONFIG, lines, (0.008,))  # two octaves below it is 0.002
    assert [" 0.002 " in row for row in shown.splitlines()] == [
        "-2.00" in row.partition("+-")[0] for row in shown.splitlines()
    ]


def test_what_is_not_bracketed_has_no_drift() -> None:
    """Without an optimum at the base or at a scale there is no drift to report."""
    places = {("completedp", 1): 9.0, ("completedp", 4): 0.0, ("sp", 1): 0.0, ("sp", 4): -9.0}
    lines = judge(CONFIG, planted(places))
    assert [line.drift for line in lines] == [None, None, (0.0,), None]
    text = sweep_text(CONFIG, lines)
    assert text.count("not bracketed") == text.count("beside an end of the grid") == 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    folder = tmp_path_factory.mktemp("sweep")
    make_recipe().save(folder / "recipe.json")
    return SweepConfig(
        data=write_tokens(folder),
        out=str(folder / "unused"),
        recipe=str(folder / "recipe.json"),
        octaves=(-2.0, 0.0, 2.0),
        factors=(1, 2),
        seeds=2,
        context=CONTEXT,
        eval_sequences=8,
    )


def swept(config: SweepConfig, out: Path, **changes: Any) -> SweepResult:
    """A sweep with some settings changed, four trials at a time."""
    config = replace(config, out=str(out), **changes)
    grid, options = as_config(config, SweepGrid), replace(OPTIONS, slots=4)
    return run_sweep(grid, *start_from(config), out, options, store=config.store)


def trials_in(out: Path) -> list[TrialRow]:
    """What a sweep's store holds."""
    with Store(str(out / "sweep.db"), create=False) as store:
        return store.study(STUDY).trials()


@pytest.mark.parametrize("axis", ["width", "depth", "batch", "tokens"])
def test_a_sweep_along_each_axis(small: SweepConfig, tmp_path: Path, axis: str) -> None:
    """A sweep runs every trial of its grid once, and writes trials, plot and verdict, which says of
    which recipe and data it is."""
    found = swept(small, tmp_path, axes=(axis,))
    rows = trials_in(tmp_path)
    assert finished_once(rows, 3 * 2 * 2)
    assert {(row.status, row.attempt) for row in rows} == {("ok", 1)}
    assert [line.factor for line in found.lines] == [1, 2]
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")
    written = json.loads((tmp_path / "verdict.json").read_text())
    assert written.pop("command") is None  # it was made in Python
    with Store(str(tmp_path / "sweep.db"), create=False) as store:
        spec = store.study(STUDY).spec
    assert written.pop("task") == spec["task"]
    assert spec["task"]["data"]
    assert Recipe.from_dict(written.pop("recipe")).base == Recipe.from_dict(spec["recipe"]).base
    assert written == json.loads(json.dumps(found.to_dict()))


def test_a_sweep_of_two_over_two_axes(small: SweepConfig, tmp_path: Path) -> None:
    """Two hyperparameters over two axes share the base; what is the same training runs once."""
    found = swept(
        small,
        tmp_path,
        vary=("lr", "weight_decay"),
        second_octaves=(-1.0, 0.0, 1.0),
        axes=("width", "tokens"),
        parameterisations=("completedp", "sp"),
        seeds=1,
    )
    lines = found.lines
    scales = [(line.axis, line.factor) for line in lines]
    assert scales == [("base", 1), ("width", 2), ("tokens", 2)] * 2
    assert lines[0].losses == lines[3].losses  # parameterisations agree at the base
    assert lines[1].losses != lines[4].losses
    assert np.array(lines[0].losses).shape == (3, 3, 1)
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")
    assert "tokens x2" in str(found)


@pytest.mark.parametrize("vary", ["lr/type/qkv", "residual/depth/1", "schedule/warmup"])
def test_any_coordinate_may_be_swept(small: SweepConfig, tmp_path: Path, vary: str) -> None:
    """A type's, a layer's or the schedule's value is varied like a global one."""
    (line, _) = swept(small, tmp_path, vary=(vary,), octaves=(0.0, 2.0, 4.0), seeds=1).lines
    (low,), (middle,), (high,) = line.losses
    assert low != middle != high


def test_octaves_count_from_the_recipe_s_own_values(small: SweepConfig, tmp_path: Path) -> None:
    """A recipe that a search has moved is swept around where it is: octave 0 is the recipe."""
    recipe = make_recipe()
    moved = replace(recipe.hyperparameters, log2={"lr/global": 1.0})
    losses = []
    for name, start in (
        ("moved", replace(recipe, hyperparameters=moved)),
        ("plain", make_recipe(lr=2 * recipe.values.lr)),
    ):
        start.save(tmp_path / f"{name}.json")
        found = swept(small, tmp_path / name, recipe=str(tmp_path / f"{name}.json"), seeds=1)
        losses.append([line.losses for line in found.lines])
    assert losses[0] == losses[1]


def test_equal_trials_are_trained_once(small: SweepConfig, tmp_path: Path) -> None:
    """At the base, where parameterisations agree, each point is trained for one of them."""
    names = ("completedp", "sp", "mup")
    found = swept(small, tmp_path, parameterisations=names, axes=("depth",))
    grid = 3 * 2  # octaves x seeds
    # One base; at depth x2 sp and mup are the same.
    assert finished_once(trials_in(tmp_path), grid + 2 * grid)
    assert len(found.lines) == 3 * 2
    losses = {(line.parameterisation, line.factor): line.losses for line in found.lines}
    assert losses["sp", 2] == losses["mup", 2] != losses["completedp", 2]


def test_a_sweep_goes_on_where_it_stopped(
    small: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption what is missing is run, the rest kept, and the verdict is the same."""
    whole = swept(small, tmp_path / "whole")
    finish, ended = worker._finish, []

    def interrupted(*arguments: Any) -> None:
        if len(ended) == 5:
            raise KeyboardInterrupt
        ended.append(finish(*arguments))

    monkeypatch.setattr(worker, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(small, tmp_path / "again")
    before = {row.number: row.loss for row in trials_in(tmp_path / "again") if row.loss is not None}
    assert len(before) == 5
    monkeypatch.setattr(worker, "_finish", finish)
    resumed = swept(small, tmp_path / "again")
    rows = trials_in(tmp_path / "again")
    assert finished_once(rows, 12)
    assert {row.number: row.loss for row in rows if row.number in before} == before
    for a, b in zip(whole.lines, resumed.lines, strict=True):
        assert np.array(a.losses) == pytest.approx(np.array(b.losses), abs=1e-5)


def test_a_finished_sweep_trains_nothing(
    small: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sweep again, or a part of it, is read from its store."""
    whole = swept(small, tmp_path)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Slots, "run", forbidden)
    assert swept(small, tmp_path).lines == whole.lines
    assert swept(small, tmp_path, factors=(1,)).lines == whole.lines[:1]


def test_a_trial_of_a_sweep_is_the_trial_alone(small: SweepConfig, tmp_path: Path) -> None:
    """A point of the grid has the validation loss that `train` finds for it."""
    _, wide = swept(small, tmp_path / "sweep").lines
    alone = TrainConfig(
        data=small.data,
        out=str(tmp_path / "alone"),
        width=32,
        context=CONTEXT,
        seed=1,
        shape=Shape(head_dim=8),
        eval_sequences=8,
        device="cpu",
    )
    result = train(alone, recipe=make_recipe(lr=2.0**-4), quiet=True)
    assert wide.losses[2][1] == pytest.approx(result.valid_loss, abs=1e-4)


def test_a_sweep_in_python_is_the_verb_s(small: SweepConfig, tmp_path: Path) -> None:
    """`sweep` of functions and plain values finds what the config's does, and its page has the
    call."""
    found = sweep(
        None,
        vary="lr",
        axis="width",
        factors=(1, 2),
        data=small.data,
        octaves=small.octaves,
        seeds=2,
        out=tmp_path / "python",
        recipe=make_recipe(),
        context=CONTEXT,
        eval_examples=8,
        slots=4,
        device="cpu",
        compile=False,
        quiet=True,
    )
    assert found.lines == swept(small, tmp_path / "verb").lines
    (part,) = gather([str(tmp_path / "python")])
    assert part.command is not None
    assert part.command.startswith("cdp.sweep(None, ")
    assert f"data={small.data!r}" in part.command


def test_an_impossible_scale_is_said_before_training(small: SweepConfig, tmp_path: Path) -> None:
    """A factor at which the rules break is one line, before any trial, and leaves nothing."""
    message = error_of(swept, small, tmp_path / "sweep", axes=("batch",), factors=(1, 16))
    assert "the largest r it can take" in message
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("lrr", "'lrr"),
        ("lr/type/qkw", "qkw"),
        ("eps/type/mlp_gate", "no 'mlp_gate'"),
        ("schedule/decay", "decay"),
        ("lr/depth/9", "9"),
    ],
)
def test_what_cannot_be_varied_is_one_line(
    small: SweepConfig, tmp_path: Path, vary: str, words: str
) -> None:
    """A coordinate that the recipe does not have is quoted, and nothing is left behind."""
    assert words in error_of(swept, small, tmp_path / "sweep", vary=(vary,))
    assert not (tmp_path / "sweep").exists()


def test_another_sweep_in_the_folder_is_refused(small: SweepConfig, tmp_path: Path) -> None:
    """A folder that holds another sweep is one line that says what differs, and keeps it."""
    swept(small, tmp_path)
    for changes, words in (
        ({"z_loss": 0.1}, "'task.z_loss' = 0.0001, not 0.1"),
        ({"vary": ("eps",)}, "'space.coordinates'[0] = 'lr/global', not 'eps/global'"),
    ):
        message = error_of(swept, small, tmp_path, **changes)
        assert words in message
        assert "another name or store" in message
    assert len(trials_in(tmp_path)) == 12


def test_a_broken_store_is_one_line(small: SweepConfig, tmp_path: Path) -> None:
    """A sweep.db that is something else is not written over."""
    (tmp_path / "sweep.db").write_text("not a database, and longer than a header would be " * 9)
    assert "is not a database" in error_of(swept, small, tmp_path)


def test_a_sweep_may_grow(small: SweepConfig, tmp_path: Path) -> None:
    """More octaves, seeds and scales add trials to those that are there, which stay as they are."""
    swept(small, tmp_path)
    before = trials_in(tmp_path)
    octaves = (*small.octaves, 3.0)
    found = swept(small, tmp_path, octaves=octaves, seeds=3, axes=("width", "depth"))
    rows = trials_in(tmp_path)
    assert finished_once(rows, 4 * 3 * 3)
    for old, new in zip(before, rows, strict=False):
        assert (old.site, old.seed, old.loss, old.attempt) == (
            new.site,
            new.seed,
            new.loss,
            new.attempt,
        )
    assert np.array(found.lines[0].losses).shape == (4, 3)
    assert swept(small, tmp_path).lines[0].losses == [row[:2] for row in found.lines[0].losses[:3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"octaves": (0.0, 1.0)}, "three or more"),
        ({"octaves": (1.0, 0.0, 2.0)}, "increasing"),
        ({"factors": (2, 4)}, "must start with 1"),
        ({"parameterisations": ()}, "one or more"),
        ({"seeds": 0}, "seeds = 0"),
        ({"vary": ("lr", "eps", "init_std")}, "one or two"),
        ({"axes": ("width", "width")}, "each once"),
        ({"out": " "}, "out is empty"),
    ],
)
def test_impossible_sweeps(changes: dict[str, object], message: str) -> None:
    """A sweep that cannot be is one line."""
    with pytest.raises(CompletedpError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_octaves_count_from_the_value_with_its_global_multiplier() -> None:
    """A recipe whose learning rate was doubled for all tensors is swept around the doubled one."""
    recipe = Recipe.shipped("adamw-reference")
    doubled = replace(recipe.hyperparameters, log2={"lr/global": 1.0})
    assert _start(recipe, "lr/global") == recipe.values.lr
    assert _start(replace(recipe, hyperparameters=doubled), "lr/global") == 2 * recipe.values.lr
    assert _start(recipe, "lr/type/qkv") is None


def test_an_axis_that_is_none_is_named() -> None:
    """What may grow is listed where something else is asked for."""
    message = error_of(SweepGrid, axes=("heads",))
    assert message == "unknown axis 'heads': choose from width, depth, batch, tokens"


def test_a_schedule_that_cannot_go_so_far_is_one_line() -> None:
    """Two octaves that would be one and the same warm-up are no sweep."""
    recipe = make_recipe()
    recipe = replace(recipe, schedule=replace(recipe.schedule, warmup=0.1))
    check_reached(recipe, ["schedule/warmup", "lr/global"], [3.0, 9.0])
    said = error_of(check_reached, recipe, ["schedule/warmup"], [4.0])
    assert "schedule/warmup would be 1.6 at +4 octaves" in said


def test_a_sweep_says_how_often_its_text_is_read(small: SweepConfig, tmp_path: Path) -> None:
    """A scale of a sweep that goes over its text many times is told of, as a search's is."""
    with pytest.warns(DataWarning):
        swept(small, tmp_path, axes=("tokens",), factors=(1, 64), seeds=1)
