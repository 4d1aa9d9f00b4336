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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from completedp.common.checks import check_whole
from completedp.common.errors import CompletedpError
from completedp.studies.store import Study
from completedp.theory.evidence import Rung, Standing
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.runner import Runner

START = "start"
_FRESH = 2**31
"""Seeds of rungs begin here: those of a study's trials are below."""


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
        words = ("schema", "provenance", "evidence")
        numbers = {k: v for k, v in recipe.to_dict().items() if k not in words}
        text = json.dumps([numbers, scale.to_dict(), seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def trials_to_climb(
    candidates: Mapping[str, Recipe],
    scales: Sequence[Scale],
    *,
    seeds: int,
    kept: Kept,
    of_them: int | None = None,
) -> dict[Scale, int]:
    """How many trials `climb` trains at each scale, at most: who goes on is not known before.

    Those of `kept` are not trained again; `of_them` are as many as climb at all.
    """
    most = min(of_them or len(candidates), len(candidates))
    counts: dict[Scale, int] = {}
    for height, scale in enumerate(scales):
        fresh = _fresh_seeds(seeds, height)
        pairs = [(recipe, seed) for recipe in candidates.values() for seed in fresh]
        known = sum(kept.get(recipe, scale, seed) is not None for recipe, seed in pairs)
        counts[scale] = counts.get(scale, 0) + max(0, most * seeds - known)
        most = min(most, math.ceil(most / 2) + 1)
    return counts


def climb(
    runner: Runner,
    candidates: dict[str, Recipe],
    scales: Sequence[Scale],
    *,
    seeds: int,
    progress: Callable[[Scale, int, int], None] | None = None,
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
        rung = measure(runner, candidates, scale, _fresh_seeds(seeds, height), progress, kept)
        rungs.append(rung)
        order = [standing.candidate for standing in rung.standings]
        good = {*order[: math.ceil(len(order) / 2)], START}
        candidates = {name: recipe for name, recipe in candidates.items() if name in good}
        if list(candidates) == [START]:  # nothing is left to compare it with
            break
    return rungs


def _fresh_seeds(seeds: int, height: int) -> range:
    """Those of a rung."""
    seeds = check_whole("seeds", seeds)
    return range(_FRESH + seeds * height, _FRESH + seeds * (height + 1))


def measure(
    runner: Runner,
    candidates: dict[str, Recipe],
    scale: Scale,
    seeds: Sequence[int],
    progress: Callable[[Scale, int, int], None] | None = None,
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
            progress(scale, trained, total)

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
    return Rung(scale=scale, standings=standings, seeds=tuple(seeds))
