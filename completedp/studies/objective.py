"""Objective: from a study's spec and its task to trials that this machine can train."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from completedp.apply.plan import Plan
from completedp.common.checks import check_each_once, check_number, check_whole
from completedp.common.errors import CompletedpError
from completedp.studies.cells import NAME as CELLS
from completedp.studies.cells import Cells, read_cells, read_sites
from completedp.studies.config import WorkerConfig
from completedp.studies.engines import PAPER_GRID, Bounds, Engine, paper_levels
from completedp.studies.registry import make_engine
from completedp.studies.relative import Where, scales_of
from completedp.studies.sites import ROUND, SeveralSites
from completedp.studies.space import Space, make_space
from completedp.studies.spec import Site, StudySpec
from completedp.studies.staged import Staged, first_trials, has_stages
from completedp.studies.study import Claim, Study
from completedp.tasks.config import Sources
from completedp.tasks.task import Task, same_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.runner import Runner
from completedp.training.trials import Trial

PAPER_ENGINE = "paper-grid"


def search_spec(
    task: Task,
    recipe: Recipe,
    *,
    trials: int,
    space: str,
    tunables: Sequence[str] | None,
    reach: float,
    targets: Where | Sequence[Where],
    engine: str,
    seed: int,
    stop_early: bool,
    sites: Where | Sequence[Where] = (),
) -> StudySpec:
    """A search from a recipe, with trials at its base, and in turn at the other `sites`.

    What cannot be trained or searched is said here, before a study of it is stored.
    """
    trials = check_whole("trials", trials)
    seed = check_whole("seed", seed, low=0, high=2**31)
    reach = check_number("reach", reach, low=0, high=64)
    used, others = (
        scales_of(name, given, recipe.base)
        for name, given in (("targets", targets), ("sites", sites))
    )
    if engine == PAPER_ENGINE:  # as far as the paper's values are
        tunables = tuple(PAPER_GRID) if tunables is None else tunables
        levels = paper_levels([f"{tunable}/{space}" for tunable in tunables], recipe.values)
        reach = max([reach, *(abs(level) for each in levels for level in each)])
    made = make_space(
        recipe,
        space,
        types=task.types(recipe.base),
        tunables=tunables,
        reach=reach,
        scales=(*used, *others),
    )
    check_each_once("site", [recipe.base, *others])
    if others and stop_early:
        raise CompletedpError(
            "stop_early compares the loss curves of one scale: search at the base alone, or leave "
            "it off"
        )
    spec = StudySpec(
        engine=engine,
        seed=seed,
        stop_early=stop_early,
        space=made,
        recipe=recipe,
        sites=tuple(Site(scale=scale, rules=recipe.rules) for scale in (recipe.base, *others)),
        task=task.identity(recipe.base),
        trials=trials,
    )
    engine_of(spec)
    check_sites(spec, task)
    return spec


def engine_of(spec: StudySpec, study: Study | None = None) -> Engine:
    """A study's engine, told nothing yet; it takes no data to make one."""
    bounds = spec.space.bounds
    if spec.engine == CELLS:
        return Cells(bounds, spec.seed, study=study)
    options = {}
    if spec.engine == PAPER_ENGINE:
        options["levels"] = paper_levels(spec.space.coordinates, spec.recipe.values)

    def make(bounds: Bounds, seed: int) -> Engine:
        engine = make_engine(spec.engine, bounds, seed, **options)
        return SeveralSites(engine, len(spec.sites)) if len(spec.sites) > 1 else engine

    if has_stages(spec.space):
        first, coordinates = first_trials(len(spec.sites)), spec.space.coordinates
        alone = len(spec.sites) == 1
        return Staged(
            bounds, spec.seed, coordinates=coordinates, first=first, make=make, comparable=alone
        )
    return make(bounds, spec.seed)


def check_sites(spec: StudySpec, task: Task) -> None:
    """Raise where the recipe cannot be carried to one of the study's sites, or trained there."""
    for site in spec.sites:
        task.data.examples(site.scale.batch)
        task.plan(site.recipe(spec.recipe), site.scale)


def runner_of(task: Task, options: WorkerConfig) -> Runner:
    """What trains a task's trials as a worker was told to."""
    return Runner(task, slots=options.slots, device=options.device, compile=options.compile)


class Objective:
    """A study's trials on this machine."""

    def __init__(
        self, spec: StudySpec, task: Task, options: WorkerConfig, study: Study | None = None
    ) -> None:
        self.spec, self.task, self.options, self._study = spec, task, options, study
        self._sites = list(spec.sites)
        _check_same(spec, task)
        check_sites(spec, task)
        self.runner = runner_of(task, options)

    @classmethod
    def of(cls, study: Study, sources: Sources, options: WorkerConfig) -> Objective:
        """A stored study's, from what a worker was given."""
        spec = StudySpec.from_dict(study.spec)
        task = same_task(sources, spec.task, spec.recipe)
        return cls(spec, task, options, study)

    @property
    def recipe(self) -> Recipe:
        """Where the study starts."""
        return self.spec.recipe

    @property
    def space(self) -> Space:
        """What it searches."""
        return self.spec.space

    def engine(self, study: Study | None = None) -> Engine:
        """The study's engine, told nothing yet."""
        return engine_of(self.spec, study)

    def site(self, number: int) -> Site:
        """Where trials of that number train: one of the spec's, or of a list that may grow."""
        if number >= len(self._sites) and self._study is not None:
            self._sites = read_sites(self._study)
        return self._sites[number]

    def at_most(self, scale: Scale, left: int) -> int:
        """How many of `left` trials can be at a scale at once, as far as that is known."""
        if self.spec.engine != CELLS or self._study is None:
            return left if len(self.spec.sites) == 1 else min(left, ROUND)
        listed = (self.site(cell.site).scale for cell in read_cells(self._study))
        return min(left, sum(each == scale for each in listed))

    def recipe_at(self, site: Site, point: np.ndarray) -> Recipe:
        """The recipe of a point, as a site carries it."""
        return site.recipe(self.space.recipe(self.recipe, point))

    def plan(self, site: int, point: np.ndarray) -> Plan:
        """The plan of a point at a site."""
        where = self.site(site)
        return self.task.plan(self.recipe_at(where, point), where.scale)

    def trial(self, claim: Claim) -> Trial[Claim]:
        """A claim as something to train; a CompletedpError where its point has no plan."""
        site = self.site(claim.site)
        return self.runner.trial(self.recipe_at(site, claim.point), site.scale, claim.seed, claim)


def _check_same(spec: StudySpec, task: Task) -> None:
    """The task is the study's, or an error that says what of it is not."""
    mine = task.identity(spec.recipe.base)
    for key, value in spec.task.items():
        if mine.get(key) == value:
            continue
        if key == "data" and task.data.manifest is not None:
            raise CompletedpError(
                f"the tokens in {task.data.name!r} are not the study's: prepare them from the same "
                "text with the same tokenizer"
            )
        if key == "data":
            raise CompletedpError(f"the data of {task.data.name} are not the study's")
        if key == "parameters":
            raise CompletedpError(
                f"the model {task.name} has other parameters than the study's at {spec.recipe.base}"
            )
        raise CompletedpError(
            f"the study's {key} is {value!r:.80}, and here it is {mine.get(key)!r:.80}: give the "
            "same model, loss and data"
        )
