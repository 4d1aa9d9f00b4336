"""Ladder: candidates are carried up through scales and re-ranked there on fresh seeds.

What is best at the base by a small margin may owe it to luck, or to a regime that only the base
has. Each rung is a scale (more tokens, then wider and deeper), reached by the recipe's rules; the
better half of the candidates goes on, the start always with them, so that what is chosen is what
transfers, and by how much is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from completedp.common.errors import CompletedpError
from completedp.theory.evidence import Rung, Standing
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.runner import Runner

START = "start"
_FRESH = 2**31
"""Seeds of rungs begin here: those of a study's trials are below."""


def climb(
    runner: Runner,
    candidates: dict[str, Recipe],
    scales: Sequence[Scale],
    *,
    seeds: int,
    progress: Callable[[str, int, int], None] | None = None,
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
        rung = measure(runner, candidates, scale, fresh, progress)
        rungs.append(rung)
        kept = [standing.candidate for standing in rung.standings]
        kept = kept[: math.ceil(len(kept) / 2)]
        candidates = {name: recipe for name, recipe in candidates.items() if name in (*kept, START)}
        if list(candidates) == [START]:  # nothing is left to compare it with
            break
    return rungs


def measure(
    runner: Runner,
    candidates: dict[str, Recipe],
    scale: Scale,
    seeds: Sequence[int],
    progress: Callable[[str, int, int], None] | None = None,
) -> Rung:
    """Every candidate at one scale on every seed, in slots."""
    trials = [
        runner.trial(recipe, scale, seed, (name, seed))
        for name, recipe in candidates.items()
        for seed in seeds
    ]
    total, trained = sum(trial.steps for trial in trials), 0

    def count(steps: int) -> None:
        nonlocal trained
        trained += steps
        if progress is not None:
            progress(str(scale), trained, total)

    ended = runner.run(trials, scale, count=len(trials), progress=count)
    losses = {outcome.key: outcome.loss for outcome in ended}
    standings = [
        Standing(candidate=name, losses=[losses[name, seed] for seed in seeds])
        for name in candidates
    ]
    standings.sort(key=lambda standing: standing.mean)
    return Rung(scale=scale, standings=standings, seeds=tuple(seeds))
