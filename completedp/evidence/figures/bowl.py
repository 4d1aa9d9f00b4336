"""Bowl: a curve of loss over octaves of a hyperparameter, measured where its bottom is.

One or two seeds over the whole range find about where the bottom is; the others are trained around
it alone. A bottom at an end of the range moves the range on, and beside a value that diverges the
step is halved. What is to be trained next depends on the losses alone, so a sweep resumes as it
was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from completedp.evidence.optimum import Optimum, find_optimum, loss_at

Losses = Mapping[float, Mapping[int, float]]
"""By octaves, then by seed; infinite where a trial diverged."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where a curve is measured, and with how many seeds around its bottom."""

    octaves: tuple[float, ...]
    """Even steps, where the first seeds are trained."""
    seeds: int
    first: int = 1
    """Seeds that are trained over the whole range."""
    reach: float = 8.0
    """Octaves from 0 that the range may move on to."""

    @property
    def step(self) -> float:
        """Between neighbours."""
        return self.octaves[1] - self.octaves[0]

    @property
    def trials(self) -> int:
        """About how many it takes: the range, and the other seeds at three or four points."""
        return self.first * len(self.octaves) + round(3.5 * (self.seeds - self.first))

    def moved(self, octaves: float) -> Range:
        """The same range elsewhere, by whole steps."""
        by = round(octaves / self.step) * self.step
        return replace(self, octaves=tuple(octave + by for octave in self.octaves))


def next_points(losses: Losses, over: Range) -> list[tuple[float, int]]:
    """The octaves and seeds to train next; none when the bottom has been measured, or cannot be."""
    if not losses:
        return [(octave, seed) for octave in over.octaves for seed in range(over.first)]
    means = mean_losses(losses)
    there = sorted(means)
    lowest = min(there, key=means.__getitem__)
    if not math.isfinite(means[lowest]):  # everything diverges: smaller values may not
        lowest = there[0]
    if lowest in (there[0], there[-1]):  # on by two steps, as a round takes as long for one
        way = -over.step if lowest == there[0] else over.step
        further = [lowest + way, lowest + 2 * way]
        further = [octave for octave in further if abs(octave) <= over.reach]
        return [(octave, seed) for octave in further for seed in range(over.first)]
    place = there.index(lowest)
    left, right = there[place - 1], there[place + 1]
    wanted = [lowest]
    for side in (left, right):
        if math.isfinite(means[side]):
            wanted.append(side)
        elif abs(side - lowest) > over.step / 4:
            wanted.append((side + lowest) / 2)
    return [
        (octave, seed)
        for octave in wanted
        for seed in range(over.seeds)
        if seed not in losses.get(octave, {})
    ]


def mean_losses(losses: Losses) -> dict[float, float]:
    """Over the seeds that there are."""
    return {octave: float(np.mean(list(seeds.values()))) for octave, seeds in losses.items()}


def bottom(losses: Losses, over: Range) -> Optimum:
    """The optimum, from the points that all seeds were trained at."""
    whole = sorted(octave for octave, seeds in losses.items() if len(seeds) >= over.seeds)
    found = [[losses[octave][seed] for seed in range(over.seeds)] for octave in whole]
    if not whole:
        return Optimum(octaves=None, errors=None, loss=None)
    return find_optimum([np.array(whole)], np.array(found))


def loss_there(losses: Losses, octave: float) -> float | None:
    """The mean loss at any octave within the curve: infinite beside one that diverged.

    None beyond the curve, where nothing was measured.
    """
    means = mean_losses(losses)
    there = sorted(means)
    if not there or not there[0] <= octave <= there[-1]:
        return None
    beside = max(o for o in there if o <= octave), min(o for o in there if o >= octave)
    if not all(math.isfinite(means[o]) for o in beside):
        return math.inf
    there = [o for o in there if math.isfinite(means[o])]
    column = np.array([[means[o]] for o in there])
    return loss_at([np.array(there)], column, [octave])


def points_for(octave: float, losses: Losses, over: Range) -> list[tuple[float, int]]:
    """What to train to know the loss at an octave; nothing where the curve reaches that far."""
    if loss_there(losses, octave) is not None:
        return []
    below = over.octaves[0] + math.floor((octave - over.octaves[0]) / over.step) * over.step
    return [
        (place, seed)
        for place in (below, below + over.step)
        for seed in range(over.first)
        if seed not in losses.get(place, {})
    ]


def planned_octaves(low: float, high: float, step: float = 1.0) -> tuple[float, ...]:
    """Even steps from low to high."""
    return tuple(np.arange(low, high + step / 2, step).tolist())
