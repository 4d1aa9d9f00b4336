"""Lab: where a figure's trials are trained. Its studies are in one store, so that they resume."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.evidence.figures.figure import TINY, Setting, all_diverged
from completedp.evidence.figures.noted import OfFigure, note_figure
from completedp.lm.prepare import prepare_source
from completedp.lm.reference import ReferenceModel
from completedp.lm.shape import Shape
from completedp.studies.candidates import recommended_after
from completedp.studies.cells import Cells, Wanted
from completedp.studies.config import REACH, WorkerConfig
from completedp.studies.listed import list_trials, listed_spec, plan_of
from completedp.studies.objective import Objective, search_spec
from completedp.studies.registry import DEFAULT_ENGINE
from completedp.studies.run import best, open_study
from completedp.studies.session import shown_rungs, work_shown
from completedp.studies.spec import StudySpec
from completedp.studies.spent import covered
from completedp.studies.store import Store, Study
from completedp.tasks.task import Task, make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

Name = TypeVar("Name")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a trial ended."""

    loss: float
    """On held-out text; infinite where it diverged."""
    first: float
    lowest: float
    last: float
    """Training losses: of the first step, the lowest over some steps, and of the last stable ones;
    infinite where there was no stable step."""


class Lab:
    """A store of studies, the text, the model and the loss that they train by, and how.

    What is no study, such as a run with its weights, goes to the folder.
    """

    def __init__(
        self,
        name: str,
        size: str,
        store: Store,
        *,
        data: Any,
        model: Any = None,
        loss: Any = None,
        overrides: Mapping[str, str] | None = None,
        options: WorkerConfig,
        quiet: bool = False,
        folder: Path = Path(),
    ) -> None:
        self.name, self.size, self.store, self.folder = name, size, store, folder
        self.data, self.model, self.loss, self.overrides = data, model, loss, overrides or {}
        self.options, self.quiet = options, quiet

    @property
    def digest(self) -> str:
        """Of the data: equal for equal data alone."""
        return make_task(self.model, self.data).data.digest

    def task(self, setting: Setting, shape: Mapping[str, Any] | None = None) -> Task:
        """What is trained; `shape` changes the reference model's."""
        if self.model is not None and shape:
            raise CompletedpError(
                f"{self.name} changes the reference model's {', '.join(shape)}: leave --model out"
            )
        return make_task(
            self.model,
            self.data,
            loss=self.loss,
            overrides=self.overrides,
            context=setting.context,
            shape=Shape(head_dim=setting.head_dim, **(shape or {})),
            eval_examples=setting.eval_examples,
        )

    def recipe(self, task: Task, setting: Setting) -> Recipe:
        """The setting's global values at its base.

        The reference model's embedding starts near 1, or its first blocks would drown it; a model
        of the user's own starts as they usually do.
        """
        recipe = self.plain_recipe(task, setting)
        if not isinstance(task.make, ReferenceModel):
            return recipe
        log2 = {"init_std/type/embedding": 3.0}
        return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))

    def plain_recipe(self, task: Task, setting: Setting) -> Recipe:
        """The same, with one initial scale for every matrix."""
        if not isinstance(task.make, ReferenceModel):
            own = {name: setting.values[name] for name in ("lr", "weight_decay")}
            return task.recipe(setting.base, **own)
        return task.recipe(setting.base, **setting.values)

    def check_stable(self) -> None:
        """Raise where every trial so far diverged: then nothing was measured."""
        studies = map(self.store.study, self.store.studies())
        losses = [trial.loss for study in studies for trial in study.finished_since(0)]
        if losses and not any(map(math.isfinite, losses)):
            raise all_diverged(self.name, len(losses))

    def opened(self, name: str, spec: StudySpec) -> Study:
        """A study of the figure, new or to go on with, which says what it is of."""
        study = open_study(self.store, name, spec)
        note_figure(study, OfFigure(name=self.name, size=self.size))
        return study

    def listed(
        self, name: str, task: Task, recipe: Recipe, coordinates: Sequence[str]
    ) -> ListedStudy:
        """A study of listed trials that vary some coordinates."""
        return ListedStudy(self, name, task, recipe, coordinates)

    def rates_by_module(self, task: Task, recipe: Recipe, *, trials: int, seeds: int) -> Recipe:
        """A recipe's learning rates by module, searched; the recipe itself where that is best on
        fresh seeds."""
        name, space = "learning rates by module", "kronecker"
        search = self.search(name, task, recipe, space=space, tunables=("lr",), trials=trials)
        return search.best((), seeds)

    def search(
        self,
        name: str,
        task: Task,
        recipe: Recipe,
        *,
        space: str,
        tunables: Sequence[str],
        trials: int,
        sites: Sequence[Scale] = (),
        targets: Sequence[Scale] = (),
        engine: str = DEFAULT_ENGINE,
        seed: int = 0,
    ) -> FinishedSearch:
        """A search from a recipe, worked on until its trials are finished."""
        spec = search_spec(
            task,
            recipe,
            trials=trials,
            space=space,
            tunables=tunables,
            reach=REACH,
            targets=targets,
            engine=engine,
            seed=seed,
            stop_early=False,
            sites=sites,
        )
        study = self.opened(name, spec)
        # Of the study's own spec, whose fitted values another machine may have rounded otherwise.
        objective = Objective(StudySpec.from_dict(study.spec), task, self.options)
        counts = study.counts()
        if counts["finished"] < counts["budget"]:
            work_shown(study, objective, title=f"{self.name}: {name}", quiet=self.quiet)
        return FinishedSearch(study, objective, quiet=self.quiet)


class FinishedSearch:
    """A search of a figure."""

    def __init__(self, study: Study, objective: Objective, *, quiet: bool) -> None:
        self._study, self._objective, self._quiet = study, objective, quiet

    def recommended_after(self, trials: int) -> Recipe:
        """What it recommended when so many trials had finished."""
        objective = self._objective
        point = recommended_after(self._study, objective, trials)
        return objective.space.recipe(objective.recipe, point)

    def seconds_after(self, trials: int) -> float:
        """How long devices had its first so many trials in hand, in the order of finishing."""
        rows = [row for row in self._study.trials(curves=False) if row.finished_at is not None]
        rows.sort(key=lambda row: row.sequence or 0)
        by_worker: dict[str, list[tuple[float, float]]] = {}
        for row in rows[:trials]:
            span = row.started_at, row.finished_at or row.started_at
            by_worker.setdefault(row.worker, []).append(span)
        return sum(map(covered, by_worker.values()))

    def best(self, rungs: Sequence[Scale], seeds: int) -> Recipe:
        """What the ladder chooses; climbed once, and again after more trials."""
        note = self._study.get_note(_FOUND)
        if note is None or _trials_of(found := Recipe.from_dict(note)) != self._trials:
            with shown_rungs(quiet=self._quiet) as progress:
                found = best(
                    self._study, self._objective, rungs=rungs, seeds=seeds, progress=progress
                ).recipe
            self._study.set_note(_FOUND, found.to_dict())
        return found

    @property
    def _trials(self) -> int:
        return self._study.counts()["finished"]


def _trials_of(recipe: Recipe) -> int | None:
    """Of the search that a recipe was found by."""
    searches = recipe.evidence.searches if recipe.evidence else ()
    return searches[-1].trials if searches else None


_FOUND = "found"
"""The note of a search that holds the recipe it ended with."""


class ListedStudy:
    """Trials of one task around one recipe, trained when they are asked for."""

    def __init__(
        self, lab: Lab, name: str, task: Task, recipe: Recipe, coordinates: Sequence[str]
    ) -> None:
        self._lab, self.recipe, self.task = lab, recipe, task
        self._spec = listed_spec(task, recipe, coordinates)
        self._study: Study = lab.opened(name, self._spec)
        self._objective = Objective(self._spec, task, lab.options, self._study)

    def note(self, key: str) -> dict[str, Any] | None:
        """What was noted in the study."""
        return self._study.get_note(key)

    def set_note(self, key: str, value: Mapping[str, Any]) -> None:
        """Note something in the study."""
        self._study.set_note(key, value)

    def check(self, wanted: Wanted) -> None:
        """Raise where a trial cannot be trained."""
        self.task.data.examples(wanted.site.scale.batch)
        plan_of(self._spec, self.task, wanted)

    def take(self, losses: Mapping[Wanted, float]) -> int:
        """Finish trials with losses that were measured before; returns how many trials those are.

        The study must be new: nothing else may be waiting to be trained.
        """
        numbers = list_trials(self._study, self._objective, {trial: trial for trial in losses})
        by_number = {number: losses[trial] for trial, number in numbers.items()}
        engine = Cells(self._objective.space.bounds, 0, study=self._study)
        while claim := self._study.claim("measured before", engine.propose, lease_seconds=60):
            loss = by_number[claim.number]
            status = "ok" if math.isfinite(loss) else "diverged"
            self._study.finish(claim, loss=loss, status=status, steps=0, curve=())
        return len(by_number)

    def trained(self, wanted: Mapping[Name, Wanted]) -> dict[Name, Ended]:
        """How each ended; those that are not trained yet are trained now."""
        numbers = list_trials(self._study, self._objective, wanted)
        counts = self._study.counts()
        if counts["finished"] < counts["budget"]:
            title = f"{self._lab.name}: {self._study.name}"
            work_shown(self._study, self._objective, title=title, quiet=self._lab.quiet)
        every = {row.number: row for row in self._study.finished_since(0, curves=True)}
        return {name: _ended(every[number]) for name, number in numbers.items()}


def _ended(row: Any) -> Ended:
    curve = np.array([] if row.curve is None else row.curve, dtype=np.float64)
    if not len(curve):
        return Ended(loss=row.loss, first=math.inf, lowest=math.inf, last=math.inf)
    over = min(_OVER, len(curve))
    means = np.convolve(curve, np.full(over, 1 / over), mode="valid")
    return Ended(
        loss=row.loss, first=float(curve[0]), lowest=float(means.min()), last=float(means[-1])
    )


_OVER = 8
"""Steps over which training losses are averaged."""


def stdlib_tokens(out: Path) -> str:
    """A folder of the standard library's sources as bytes, made once."""
    folder = str(out / "data")
    prepare_source("stdlib", folder, tokenizer="bytes", valid_fraction=0.03)
    return folder


def check_sources(size: str, data: str | None, model: str | None, loss: str | None) -> None:
    """Raise where the text, the model or the loss cannot be had; on a CPU the standard library's
    text will do."""
    if data is not None:
        make_task(model, data, loss=loss)
    elif size not in (TINY, "cpu"):
        raise CompletedpError(
            f"--size {size} needs text of yours: give --data, a folder made by `completedp data`"
        )
