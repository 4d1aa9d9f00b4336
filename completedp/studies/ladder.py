"""Ladder: candidates are carried up through scales and re-ranked there on fresh seeds.

What is best at the base by a small margin may owe it to luck, or to a regime that only the base
has. Each rung is a scale (more tokens, then wider and deeper), reached by the recipe's rules; the
better half of the candidates goes on, the start always with them, so that what is chosen is what
transfers, and by how much is known. What was measured is kept: a ladder that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.studies.store import Study
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.runner import Runner

START = "start"
_FRESH = 2**31
"""Seeds of rungs begin here: those of a study's trials are below."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A candidate on a rung."""

    candidate: str
    losses: list[float]
    """By seed; infinite where it diverged."""

    @property
    def mean(self) -> float:
        """The mean loss."""
        return float(np.mean(self.losses))

    @property
    def error(self) -> float:
        """Its standard error."""
        if len(self.losses) < 2 or not math.isfinite(self.mean):
            return math.inf
        return float(np.std(self.losses, ddof=1) / math.sqrt(len(self.losses)))


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One scale and how the candidates did there, best first."""

    scale: Scale
    standings: list[Standing]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON; a diverged trial's loss is null."""
        plain = asdict(self)
        for standing in plain["standings"]:
            standing["losses"] = [x if math.isfinite(x) else None for x in standing["losses"]]
        return plain


class Kept:
    """Losses that were measured before, in a note of a study."""

    NOTE = "measured"

    def __init__(self, study: Study) -> None:
        self._study = study
        self._losses: dict[str, float | None] = study.get_note(self.NOTE) or {}

    def get(self, recipe: Recipe, scale: Scale, seed: int) -> float | None:
        """The loss; infinite where it diverged, None where it was not measured."""
        key = self._key(recipe, scale, seed)
        if key not in self._losses:
            return None
        loss = self._losses[key]
        return math.inf if loss is None else loss

    def put(self, recipe: Recipe, scale: Scale, seed: int, loss: float) -> None:
        """Keep one, on disk at once."""
        plain = loss if math.isfinite(loss) else None
        key = self._key(recipe, scale, seed)
        self._losses[key] = plain
        with suppress(CompletedpError):  # a store that is gone does not end what it no longer keeps
            self._study.change_note(self.NOTE, lambda note: (note or {}) | {key: plain})

    def _key(self, recipe: Recipe, scale: Scale, seed: int) -> str:
        numbers = {k: v for k, v in recipe.to_dict().items() if k != "provenance"}
        text = json.dumps([numbers, scale.to_dict(), seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def climb(
    runner: Runner,
    candidates: dict[str, Recipe],
    scales: Sequence[Scale],
    *,
    seeds: int,
    progress: Callable[[str, int, int], None] | None = None,
    kept: Kept | None = None,
) -> list[Rung]:
    """Measure the candidates on each scale, the better half of them on the next."""
    for scale in scales:  # what cannot be is said before anything is trained
        for name, recipe in candidates.items():
            try:
                runner.trial(recipe, scale, _FRESH, name)
            except CompletedpError as error:
                raise CompletedpError(f"{name} cannot be carried to {scale}: {error}") from None
    rungs = []
    for height, scale in enumerate(scales):
        fresh = [_FRESH + seeds * height + seed for seed in range(seeds)]
        rung = measure(runner, candidates, scale, fresh, progress, kept)
        rungs.append(rung)
        order = [standing.candidate for standing in rung.standings]
        good = {*order[: math.ceil(len(order) / 2)], START}
        candidates = {name: recipe for name, recipe in candidates.items() if name in good}
        if list(candidates) == [START]:  # nothing is left to compare it with
            break
    return rungs


def measure(
    runner: Runner,
    candidates: dict[str, Recipe],
    scale: Scale,
    seeds: Sequence[int],
    progress: Callable[[str, int, int], None] | None = None,
    kept: Kept | None = None,
) -> Rung:
    """Every candidate at one scale on every seed, in slots; what is known is not trained again."""
    losses: dict[tuple[str, int], float] = {}
    trials = []
    for name, recipe in candidates.items():
        for seed in seeds:
            known = None if kept is None else kept.get(recipe, scale, seed)
            if known is None:
                trials.append(runner.trial(recipe, scale, seed, (name, seed)))
            else:
                losses[name, seed] = known
    total, trained = sum(trial.steps for trial in trials), 0

    def count(steps: int) -> None:
        nonlocal trained
        trained += steps
        if progress is not None:
            progress(str(scale), trained, total)

    if trials:
        for outcome in runner.run(trials, scale, count=len(trials), progress=count):
            name, seed = outcome.key
            losses[name, seed] = outcome.loss
            if kept is not None:
                kept.put(candidates[name], scale, seed, outcome.loss)
    standings = [
        Standing(candidate=name, losses=[losses[name, seed] for seed in seeds])
        for name in candidates
    ]
    standings.sort(key=lambda standing: standing.mean)
    return Rung(scale=scale, standings=standings)
