"""Sweep: do the best values of a hyperparameter stay put as a model or its training grows?

A grid of octaves x scales x seeds x parameterisations. It is a study like any search, whose trials
are listed beforehand: it resumes, it may grow, and other machines can join. Trials that are the
same in every number (parameterisations agree at the base, for one) are trained once. The verdict:
the optimum at each scale, its drift from the base's in octaves, and the loss that using the base's
optimum costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.common.checks import several
from completedp.common.errors import CompletedpError
from completedp.common.files import plain, user_path, write_json, write_text_atomically
from completedp.common.process import only_process
from completedp.common.surface import option
from completedp.evidence.config import BASE, SweepGrid
from completedp.evidence.optimum import Optimum, drift_text, find_optimum, loss_at, place_text
from completedp.evidence.plots import require_matplotlib, sweep_svg
from completedp.studies.cells import Wanted
from completedp.studies.config import WorkerConfig
from completedp.studies.listed import listed_losses, listed_spec, made_of, plan_of, trials_by_scale
from completedp.studies.objective import runner_of
from completedp.studies.outlook import outlook
from completedp.studies.run import open_study, start
from completedp.studies.session import say_outlook
from completedp.studies.spec import Site, StudySpec
from completedp.studies.store import Store
from completedp.studies.typed import call_of
from completedp.tasks.config import EVAL_EXAMPLES
from completedp.tasks.losses import ModelLoss
from completedp.tasks.task import MakeModel, Task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

STUDY = "sweep"


@dataclass(frozen=True, order=True)
class Point:
    """One trial of a sweep."""

    axis: str
    factor: int
    parameterisation: str
    octaves: tuple[float, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """The verdict on one curve: one parameterisation at one scale."""

    parameterisation: str
    axis: str
    factor: int
    optimum: Optimum
    drift: tuple[float, ...] | None
    """Octaves from the base's optimum; None where either is not bracketed."""
    cost: float | None
    """Loss lost by using the base's optimum here."""
    losses: list[Any]
    """By octaves and seed; None where a trial diverged."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep found. Prints as a table."""

    grid: SweepGrid
    """What was varied, and where."""
    lines: list[Line]
    """For each set of rules and each size: every loss, the best value, its drift, what it costs to
    keep the base's."""
    out: Path
    """The folder with the drawing and every loss."""
    start: tuple[float | None, ...] = ()
    """The recipe's values that octaves count from; None where one has no number of its own, as a
    multiplier has none."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        lines = [asdict(line) for line in self.lines]
        return {"grid": self.grid.to_dict(), "start": list(self.start), "lines": lines}

    def __str__(self) -> str:
        return sweep_text(self.grid, self.lines, self.start)

    __repr__ = __str__


def sweep(
    make: MakeModel | str | None,
    base: Scale | None = None,
    vary: str | Sequence[str] = "lr",
    axis: str | Sequence[str] = "width",
    factors: Sequence[int] = (1, 2, 4),
    data: Any = None,
    *,
    octaves: Sequence[float] = SweepGrid.octaves,
    second_octaves: Sequence[float] = SweepGrid.second_octaves,
    parameterisations: Sequence[str] = ("completedp",),
    seeds: int = 3,
    out: str | Path = "runs/sweep",
    store: str | None = None,
    recipe: Recipe | str | Path | None = None,
    loss: ModelLoss | str | None = None,
    overrides: Mapping[str, str] | None = None,
    context: int | None = None,
    eval_examples: int = EVAL_EXAMPLES,
    slots: int | None = None,
    device: str = "auto",
    compile: bool = True,
    quiet: bool = False,
) -> SweepResult:
    """Where the best values are at each scale, how far they drift, and what that costs.

    Model, data and loss are as for `search`; `vary` names one or two coordinates ("lr", or
    "lr/type/qkv"), `axis` one axis or several. The same call resumes. `octaves` are log2 of what
    the base's value is multiplied by; drifts are in octaves, losses and costs in nats.

    >>> import completedp as cdp
    >>> base = cdp.Scale(width=64, depth=1, batch=256, tokens=1_024)
    >>> found = cdp.sweep(None, base, vary="lr", axis="width", factors=(1, 2), octaves=(-1, 0, 1),
    ...                   data="tokens", context=64, seeds=1, eval_examples=4, slots=1,
    ...                   compile=False, quiet=True)
    >>> [(line.axis, line.factor) for line in found.lines]
    [('base', 1), ('width', 2)]
    """
    call = call_of(sweep, locals())
    grid = SweepGrid(
        vary=several(vary),
        axes=several(axis),
        factors=several(factors),
        octaves=several(octaves),
        second_octaves=several(second_octaves),
        parameterisations=several(parameterisations),
        seeds=seeds,
    )
    task, begin = start(
        make,
        data,
        base=base,
        recipe=recipe,
        loss=loss,
        context=context,
        eval_examples=eval_examples,
        overrides=overrides,
    )
    options = WorkerConfig(slots=slots, device=device, compile=compile)
    ahead = outlook(sweep_trials(grid, task, begin), store_of(Path(out), store), STUDY)
    say_outlook(runner_of(task, options), begin, ahead, less="fewer factors or seeds", quiet=quiet)
    return run_sweep(grid, task, begin, Path(out), options, store=store, quiet=quiet, call=call)


def sweep_trials(grid: SweepGrid, task: Task, recipe: Recipe) -> dict[Scale, int]:
    """How many trials a sweep trains at each scale."""
    spec = _spec(grid, task, recipe)
    return trials_by_scale(spec, task, _wanted(grid, spec, task).values())


def store_of(out: Path, store: str | None) -> str:
    """Where the trials of a sweep are kept."""
    return store or str(user_path(out) / "sweep.db")


def run_sweep(
    grid: SweepGrid,
    task: Task,
    recipe: Recipe,
    out: Path,
    options: WorkerConfig,
    *,
    store: str | None = None,
    quiet: bool = False,
    call: str | None = None,
) -> SweepResult:
    """Run what is not yet run, judge, and write verdict.json and sweep.svg."""
    require_matplotlib()
    folder = user_path(out)
    spec = _spec(grid, task, recipe)
    wanted = _wanted(grid, spec, task)  # what cannot be trained is said before anything is
    with only_process(folder), Store(store_of(out, store)) as opened:
        study = open_study(opened, STUDY, spec)
        start = tuple(_start(recipe, name) for name in grid.coordinates)
        done = listed_losses(study, spec, task, wanted, options, quiet=quiet)
        result = SweepResult(grid=grid, lines=judge(grid, done), out=folder, start=start)
        write_json(folder / "verdict.json", result.to_dict() | made_of(spec, call))
        write_text_atomically(folder / "sweep.svg", sweep_svg(grid, result.lines))
    return result


def judge(config: SweepGrid, done: dict[Point, float]) -> list[Line]:
    """The optimum of every curve, against that of the same parameterisation's base."""
    grid = [np.array(octaves) for octaves in config.grid]
    shape = [len(octaves) for octaves in grid]
    lines = []
    for name in config.parameterisations:
        base: Optimum | None = None
        for axis, factor in config.scales:
            losses = np.array(
                [
                    [done[Point(axis, factor, name, octaves, s)] for s in range(config.seeds)]
                    for octaves in itertools.product(*config.grid)
                ]
            ).reshape(*shape, config.seeds)
            found = find_optimum(grid, losses)
            base = base or found
            drift = cost = None
            if base.octaves and found.octaves and found.loss is not None:
                drift = tuple(a - b for a, b in zip(found.octaves, base.octaves, strict=True))
                there = loss_at(grid, losses, base.octaves)
                cost = max(0.0, there - found.loss) if math.isfinite(there) else None
            lines.append(
                Line(
                    parameterisation=name,
                    axis=axis,
                    factor=factor,
                    optimum=found,
                    drift=drift,
                    cost=cost,
                    losses=plain(losses.tolist()),
                )
            )
    return lines


def _start(recipe: Recipe, coordinate: str) -> float | None:
    """The recipe's value of a coordinate, its global multiplier included, if that is a value of all
    tensors."""
    name, _, where = coordinate.partition("/")
    value = recipe.values.to_dict().get(name) if where == "global" else None
    return None if value is None else value * 2 ** recipe.hyperparameters.log2.get(coordinate, 0.0)


def sweep_text(config: SweepGrid, lines: list[Line], start: Sequence[float | None] = ()) -> str:
    """The verdict as a table."""
    wide = 16 * len(config.vary)
    known = [name for name, value in zip(config.vary, start, strict=False) if value is not None]
    titles = "".join(f" {name:>9}" for name in known)
    out = [
        f"{' and '.join(config.vary)}, octaves from the recipe's value",
        f"{'':<11} {'scale':>10} {'optimum':>{wide}}{titles} {'drift':>{wide // 2}} "
        f"{'best loss':>10} {'cost':>8}",
    ]
    for line in lines:
        best = line.optimum
        place = place_text(best.octaves, best.errors)
        drift = "" if line.drift is None else ", ".join(f"{x:+.2f}" for x in line.drift)
        loss = "diverged" if best.loss is None else f"{best.loss:.4f}"
        cost = "" if line.cost is None else f"{line.cost:.4f}"
        scale = _scale_words(line)
        values = "".join(
            f" {'' if best.octaves is None else f'{value * 2 ** best.octaves[at]:.3g}':>9}"
            for at, value in enumerate(start)
            if value is not None
        )
        out.append(
            f"{line.parameterisation:<11} {scale:>10} {place:>{wide}}{values} "
            f"{drift:>{wide // 2}} {loss:>10} {cost:>8}"
        )
    if known:
        columns = " and ".join(known)
        out.append(f"{columns}: the value at the base, which the rules carry to the scale")
    for name in config.parameterisations:
        mine = [line for line in lines if line.parameterisation == name]
        drifts = [abs(x) for line in mine for x in line.drift or ()]
        costs = [line.cost for line in mine if line.cost is not None]
        out.append(f"{name}: the best {' and '.join(config.vary)} {drift_text(drifts, costs)}")
    for line in lines:
        if line.optimum.octaves is None and line.optimum.lowest is not None:
            ends = ", ".join(f"{octave:+g}" for octave in line.optimum.lowest)
            out.append(
                f"{line.parameterisation} {_scale_words(line)} is lowest at {ends}, beside an end "
                f"of the grid or runs that diverged: give {option('octaves')} around it"
            )
    return "\n".join(out)


def _scale_words(line: Line) -> str:
    return BASE if line.axis == BASE else f"{line.axis} x{line.factor}"


def _spec(grid: SweepGrid, task: Task, recipe: Recipe) -> StudySpec:
    _check_types(grid.coordinates, task.types(recipe.base))
    return listed_spec(task, recipe, grid.coordinates)


def _check_types(coordinates: Sequence[str], types: Sequence[str]) -> None:
    """Raise where a coordinate would change nothing, as the model has no tensor of its type."""
    for name in coordinates:
        tunable, kind, *rest = name.split("/") if name.count("/") > 1 else (name, "")
        if kind in ("type", "layer") and tunable != "residual" and rest[0] not in types:
            raise CompletedpError(
                f"the model has no {rest[0]!r}, so {name!r} changes nothing: its types are "
                f"{', '.join(types)}"
            )


def _wanted(grid: SweepGrid, spec: StudySpec, task: Task) -> dict[Point, Wanted]:
    """Every point of the grid as a trial; what cannot be trained is said here."""
    recipe = spec.recipe
    found = {}
    for axis, factor in grid.scales:
        scale = recipe.base
        if axis != BASE:
            scale = replace(scale, **{axis: getattr(scale, axis) * factor})
        task.data.examples(scale.batch)
        for name in grid.parameterisations:
            site = Site(scale=scale, rules=replace(recipe.rules, parameterisation=name))
            for octaves in itertools.product(*grid.grid):
                plan_of(spec, task, Wanted(site=site, octaves=octaves, seed=0))
                for seed in range(grid.seeds):
                    point = Point(axis, factor, name, octaves, seed)
                    found[point] = Wanted(site=site, octaves=octaves, seed=seed)
    return found
