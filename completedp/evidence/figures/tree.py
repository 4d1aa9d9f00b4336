"""Tree: schedules that share their beginnings, trained as a tree in slots, and noted in a store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from completedp.common.progress import Reporter
from completedp.evidence.figures.lab import Lab, ListedStudy
from completedp.evidence.figures.schedules import (
    AnnealingSize,
    Levels,
    children,
    count_nodes,
    planned_with,
    schedule_of,
)
from completedp.studies.objective import runner_of
from completedp.training.trials import State, Trial

_EVERY = 10.0
"""Seconds between notes of nodes: what a kill may lose. Ctrl-C and errors lose nothing."""
_FRESH = 1_000
"""The first seed of those that nothing was chosen by."""


class Tree:
    """The tree of one size in a lab."""

    def __init__(self, lab: Lab, at: AnnealingSize) -> None:
        self._lab, self._at = lab, at
        self._scale = at.setting.base
        self._steps = self._scale.steps // at.intervals
        task = lab.task(at.setting)
        recipe = lab.recipe(task, at.setting)
        # A study of no trials of its own: it has the notes, and says if the task is another.
        self._notes = lab.listed("schedules", task, recipe, ["lr/global"])
        self._plan = task.plan(recipe, self._scale)
        self._runner = runner_of(task, lab.options)

    def grown(self) -> dict[Levels, float]:
        """The loss of every node; infinite where training diverged, and below it."""
        total = count_nodes(self._at.levels, self._at.intervals)
        with _Noted(self._notes, "nodes", every=_EVERY) as noted:
            known = noted.losses
            queue = _Stack(self._wanted((), None, known))
            left = total - len(known)
            with Reporter(
                f"{self._lab.name}: intervals", total, len(known), quiet=self._lab.quiet
            ) as reporter:
                for outcome in self._runner.run(queue, self._scale, count=left) if left else ():
                    node = outcome.key
                    for there in [node, *self._below(node)] if outcome.state is None else [node]:
                        if there not in known:
                            noted.add(there, outcome.loss)
                    if outcome.state is not None:
                        queue.add(self._wanted(node, outcome.state, known))
                    reporter.update(len(known), lambda: "")
        order = sorted(known, key=lambda levels: (len(levels), levels))
        return {levels: known[levels] for levels in order}

    def confirmed(self, schedules: Sequence[Levels]) -> dict[Levels, list[float]]:
        """Losses of whole schedules on fresh seeds."""
        keys = [(*levels, _FRESH + seed) for levels in schedules for seed in range(self._at.seeds)]
        with _Noted(self._notes, "fresh", every=0.0) as noted:
            known = noted.losses
            missing = [key for key in keys if key not in known]
            trials = [self._trial(key[:-1], None, key[-1], key) for key in missing]
            steps = sum(trial.length for trial in trials)
            done = 0
            with Reporter(
                f"{self._lab.name}: fresh seeds, trial-steps", steps, quiet=self._lab.quiet
            ) as reporter:

                def progress(more: int) -> None:
                    nonlocal done
                    done += more
                    reporter.update(done, lambda: "")

                if trials:
                    for outcome in self._runner.run(
                        trials, self._scale, count=len(trials), progress=progress
                    ):
                        noted.add(outcome.key, outcome.loss)
        return {
            levels: [known[*levels, _FRESH + seed] for seed in range(self._at.seeds)]
            for levels in schedules
        }

    def _wanted(
        self, node: Levels, state: State | None, known: dict[Levels, float]
    ) -> list[Trial[Any]]:
        """Trials of a node's children: those below which anything is missing."""
        if len(node) == self._at.intervals:
            return []
        return [
            self._trial(child, state, 0, child)
            for child in children(node, self._at.levels)
            if child not in known or any(there not in known for there in self._below(child))
        ]

    def _trial(self, node: Levels, state: State | None, seed: int, key: Any) -> Trial[Any]:
        """A node from its parent's state on, or all of it from the start."""
        return Trial(
            plan=planned_with(self._plan, schedule_of(node, self._at.intervals)),
            seed=seed,
            steps=self._scale.steps,
            key=key,
            begin=state,
            until=self._steps * len(node),
        )

    def _below(self, node: Levels) -> Iterator[Levels]:
        """Every node that begins with this one."""
        if len(node) < self._at.intervals:
            for child in children(node, self._at.levels):
                yield child
                yield from self._below(child)


class _Noted:
    """Losses that a study's notes have, and those that come while it is entered.

    A note has what came since the one before, so that each is short however many there are.
    """

    def __init__(self, study: ListedStudy, what: str, *, every: float) -> None:
        self.losses: dict[Levels, float] = {}
        self._study, self._what, self._every = study, what, every
        self._number = 0
        while (note := study.note(self._key)) is not None:
            self.losses |= {tuple(levels): loss for levels, loss in note["losses"]}
            self._number += 1
        self._new: dict[Levels, float] = {}
        self._written = time.monotonic()

    def add(self, key: Levels, loss: float) -> None:
        """Note a loss, now or with those of the next seconds."""
        self.losses[key] = self._new[key] = loss
        if time.monotonic() - self._written >= self._every:
            self._write()

    def __enter__(self) -> _Noted:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()

    @property
    def _key(self) -> str:
        return f"{self._what} {self._number}"

    def _write(self) -> None:
        if self._new:
            losses = [[list(key), loss] for key, loss in self._new.items()]
            self._study.set_note(self._key, {"losses": losses})
            # Only now: what interrupts the writing has it written once more, under the same key.
            self._new, self._number = {}, self._number + 1
        self._written = time.monotonic()


class _Stack(Iterator[Trial[Any]]):
    """Trials, the last ones added first; empty now and then, until no slot is at work."""

    def __init__(self, trials: Sequence[Trial[Any]]) -> None:
        self._trials = list(trials)

    def add(self, trials: Sequence[Trial[Any]]) -> None:
        """Children go before all that waits."""
        self._trials += trials

    def __next__(self) -> Trial[Any]:
        if not self._trials:
            raise StopIteration
        return self._trials.pop()
