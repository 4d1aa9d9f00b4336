"""Listed trials: what a sweep or a figure wants trained, each by a name of the asker's own.

Trials that are the same in every number (parameterisations agree at the base, for one) are trained
once, whoever asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from completedp.apply.plan import Plan
from completedp.studies.cells import NAME as CELLS
from completedp.studies.cells import Cell, Wanted, add_cells, add_sites, read_cells, work_of
from completedp.studies.config import WorkerConfig
from completedp.studies.engines import Bounds
from completedp.studies.objective import Objective
from completedp.studies.session import work_shown
from completedp.studies.space import Space, check_coordinates, check_reached
from completedp.studies.spec import Site, StudySpec
from completedp.studies.study import Study
from completedp.studies.typed import typed_command
from completedp.tasks.task import Task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

Name = TypeVar("Name")
_REACH = 64.0
"""Octaves that no list goes beyond."""


def listed_spec(task: Task, recipe: Recipe, coordinates: Sequence[str]) -> StudySpec:
    """A study whose trials are listed; the list may grow, and so is not part of it."""
    check_coordinates(recipe, coordinates)
    return StudySpec(
        engine=CELLS,
        seed=0,
        stop_early=False,
        space=_space(recipe, coordinates),
        recipe=recipe,
        sites=(),
        task=task.identity(recipe.base),
        trials=1,
    )


def made_of(spec: StudySpec, call: str | None = None) -> dict[str, Any]:
    """What a result is of, for its file: the recipe, the model and data, and how it was asked for.

    Losses say nothing without it: two sweeps of one command may be of two texts.
    """
    task, typed = dict(spec.task), typed_command() or call
    return {"recipe": spec.recipe.to_dict(), "task": task, "command": typed}


def plan_of(spec: StudySpec, task: Task, wanted: Wanted) -> Plan:
    """A wanted trial's plan."""
    check_reached(spec.recipe, spec.space.coordinates, wanted.octaves)
    point = spec.space.bounds.start + wanted.octaves
    moved = wanted.site.recipe(spec.space.recipe(spec.recipe, point))
    return task.plan(moved, wanted.site.scale)


def trials_by_scale(spec: StudySpec, task: Task, wanted: Iterable[Wanted]) -> dict[Scale, int]:
    """How many trials are trained at each scale; those that are the same count once."""
    values: dict[tuple[Site, tuple[float, ...]], Any] = {}
    distinct = set()
    for each in wanted:
        place = each.site, each.octaves
        if place not in values:
            values[place] = identity(plan_of(spec, task, each))
        distinct.add((each.site.scale, values[place], each.seed))
    return dict(Counter(scale for scale, _, _ in distinct))


def list_trials(
    study: Study, objective: Objective, wanted: Mapping[Name, Wanted]
) -> dict[Name, int]:
    """The number of every trial by its name; those that the study does not have yet are added."""
    sites = add_sites(study, list(dict.fromkeys(each.site for each in wanted.values())))
    start = objective.space.bounds.start
    values: dict[tuple[int, tuple[float, ...]], Any] = {}

    def same_as(cell: Cell) -> Any:
        """What is equal for equal trainings; a plan is made once for all seeds.

        The last digits of a point are left out: a fitted one is another on another machine.
        """
        place = cell.site, tuple(round(octave, 9) for octave in cell.point)
        if len(sites) == 1:  # points tell them apart, and thousands of plans take a while
            return place, cell.seed
        if place not in values:
            values[place] = identity(objective.plan(cell.site, np.array(place[1])))
        return values[place], cell.seed

    known = {same_as(cell): number for number, cell in enumerate(read_cells(study))}
    cells: dict[Any, Cell] = {}
    mine: dict[Name, Any] = {}
    for name, each in wanted.items():
        there = tuple((start + each.octaves).tolist())
        cell = Cell(sites.index(each.site), there, each.seed)
        same = mine[name] = same_as(cell)
        if same not in known:
            cells.setdefault(same, cell)
    # Larger scales first: they take longest, and what is slow last would run alone.
    order = sorted(cells.values(), key=lambda cell: (-work_of(sites[cell.site].scale), cell.site))
    numbers = {cell: number for number, cell in enumerate(add_cells(study, order))}
    known |= {same: numbers[cell] for same, cell in cells.items()}
    return {name: known[same] for name, same in mine.items()}


def listed_losses(
    study: Study,
    spec: StudySpec,
    task: Task,
    wanted: Mapping[Name, Wanted],
    options: WorkerConfig,
    *,
    quiet: bool = False,
) -> dict[Name, float]:
    """The loss of every trial by its name; those that are not trained yet are trained now."""
    objective = Objective(spec, task, options, study)
    numbers = list_trials(study, objective, wanted)
    work_shown(study, objective, title=study.name, quiet=quiet)
    losses = {row.number: row.loss for row in study.finished_since(0)}
    return {name: losses[number] for name, number in numbers.items()}


def identity(planned: Plan) -> Any:
    """All that an outcome depends on but for the seed: equal for plans of the same training."""
    tensors = tuple((t.init_std, t.optimizer, *t.knobs.values()) for t in planned.tensors)
    multipliers = (*planned.residual_multipliers, planned.output_multiplier)
    return planned.target, multipliers, tensors, planned.recipe.schedule


def _space(recipe: Recipe, coordinates: Sequence[str]) -> Space:
    """Octaves count from where the recipe is, which a search may have moved."""
    start = recipe.hyperparameters.vector(coordinates)
    bounds = Bounds(low=start - _REACH, high=start + _REACH, start=start)
    return Space(kind=CELLS, coordinates=tuple(coordinates), bounds=bounds)
