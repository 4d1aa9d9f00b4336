"""Synthetic search problems that look like tuning a transformer, and a simulated cluster.

What a search meets in training, in numbers: coordinates in log2 around a tuned start; a bowl that
is quadratic near its bottom and linear far away, where too high costs more than too low; a few
coordinates that matter and many that hardly do; neighbours that interact; runs that diverge where
a coordinate, or a sum of some, passes a threshold of its own, on a boundary that is wavy and moves
with the seed; and noise between seeds. Here the truth is known, so an engine is judged by what its
recommendation is worth, not by the luckiest loss it saw.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.studies.engines import Bounds, Engine

FLOOR = 3.0
"""The loss at the optimum, in nats."""
GAP = 0.12
"""The start is this much worse than the optimum."""
DIVERGED_COST = 0.5
"""What a diverged run counts above its landscape's loss, in nats, when the truth is averaged."""
SEED_SHIFT = 0.15
"""Standard deviation of a cliff's place between seeds, in octaves."""
REACH = 8.0
"""Bounds: octaves to either side of the start."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What sets one family of landscapes apart."""

    noise: float
    """Standard deviation between seeds, in nats."""
    room: float
    """Octaves from the farther of start and optimum to where a coordinate diverges, on average."""
    mixing: float
    """How strongly a coordinate's best value depends on its partners'."""
    partners: int
    """How many partners each coordinate has."""


KINDS = {
    "base": Kind(noise=0.003, room=5.0, mixing=0.3, partners=2),
    "cliff": Kind(noise=0.003, room=1.0, mixing=0.3, partners=2),
    "noisy": Kind(noise=0.01, room=5.0, mixing=0.3, partners=2),
    "tangled": Kind(noise=0.005, room=3.0, mixing=0.4, partners=8),
    "loud": Kind(noise=0.015, room=5.0, mixing=0.3, partners=2),
}


class Landscape:
    """One problem: a kind, a number of dimensions and a seed."""

    def __init__(self, kind: str, dimensions: int, seed: int) -> None:
        if kind not in KINDS:
            raise CompletedpError(f"landscape {kind!r} is unknown: use one of {', '.join(KINDS)}")
        if dimensions < 1:
            raise CompletedpError(f"dimensions = {dimensions} must be at least 1")
        self.kind = KINDS[kind]
        self.dimensions = n = dimensions
        rng = np.random.default_rng([seed, n, list(KINDS).index(kind)])
        self.start = np.zeros(n)
        self.optimum = rng.normal(0.0, 1.5, n).clip(-REACH / 2, REACH / 2)
        self._mixing = np.eye(n)
        partners = min(self.kind.partners, n - 1)
        for i in range(n):
            others = rng.choice(np.delete(np.arange(n), i), partners, replace=False)
            self._mixing[i, others] = rng.normal(0.0, self.kind.mixing, partners)
        self._steeper = rng.uniform(1.2, 2.5, n)
        self._curvature = 10.0 ** rng.uniform(-2.5, 0.0, n)
        self._curvature *= GAP / self._bowl(self.start)
        self._place_cliffs(rng)

    def _place_cliffs(self, rng: np.random.Generator) -> None:
        """Thresholds on single coordinates, and on sums of three."""
        n = self.dimensions
        triples = [rng.choice(n, min(3, n), replace=False) for _ in range(n // 4)]
        sums = np.zeros((len(triples), n))
        for row, chosen in zip(sums, triples, strict=True):
            row[chosen] = 1.0 / math.sqrt(len(chosen))
        # Not every hyperparameter can make a run diverge; one at least does.
        alone = np.eye(n)[np.append(True, rng.random(n - 1) < 0.5)]
        self._directions = np.vstack([alone, sums])
        count = len(self._directions)
        safe = np.maximum(0.0, self._directions @ self.optimum)
        # Seed and waves move the boundary by less than this first term, mostly.
        self._thresholds = safe + 0.7 + rng.exponential(self.kind.room, count)
        self._wave_of = rng.integers(n, size=count)
        self._wave_phase = rng.uniform(0.0, 2 * math.pi, count)

    def _bowl(self, point: np.ndarray) -> float:
        """The loss above the floor, cliffs aside."""
        away = self._mixing @ (point - self.optimum)
        away = np.where(away > 0, away * self._steeper, away)
        return float(self._curvature @ (np.sqrt(1.0 + away**2) - 1.0))

    def _beyond(self, point: np.ndarray) -> float:
        """How far the point is beyond the nearest cliff, in octaves; negative where it is safe."""
        wave = 0.2 * np.sin(3.0 * point[self._wave_of] + self._wave_phase)
        return float(np.max(self._directions @ point - self._thresholds - wave))

    def truth(self, point: np.ndarray) -> float:
        """The mean loss over seeds; the seeds that diverge cost DIVERGED_COST more."""
        risk = 0.5 * math.erfc(-self._beyond(point) / (SEED_SHIFT * math.sqrt(2.0)))
        return FLOOR + self._bowl(point) + DIVERGED_COST * risk

    def measure(self, point: np.ndarray, rng: np.random.Generator) -> float:
        """One run: a noisy loss, or infinity where it diverges."""
        shift, noise = rng.normal(size=2)
        if self._beyond(point) + SEED_SHIFT * shift > 0:
            return math.inf
        return FLOOR + self._bowl(point) + self.kind.noise * noise

    def remaining(self, truth: float) -> float:
        """The share of the start's gap to the optimum that a true loss leaves, in per cent."""
        bottom = self.truth(self.optimum)
        return 100.0 * (truth - bottom) / (self.truth(self.start) - bottom)

    @property
    def bounds(self) -> Bounds:
        """The box an engine may search."""
        reach = np.full(self.dimensions, REACH)
        return Bounds(low=self.start - reach, high=self.start + reach, start=self.start)


class Problem(Protocol):
    """Anything to search whose truth is known."""

    def truth(self, point: np.ndarray) -> float:
        """The mean loss over seeds."""
        ...

    def measure(self, point: np.ndarray, rng: np.random.Generator) -> float:
        """The loss of one run."""
        ...


def simulate(
    engine: Engine,
    landscape: Problem,
    trials: int,
    in_flight: int,
    seed: int,
    at: Sequence[int] | None = None,
) -> list[float]:
    """Run a search with many trials at once, and give the truth of what it would recommend.

    Trials take about a unit of time, diverged ones a part of it, so they finish out of order. The
    answers are the true losses of `recommend()` after each number of finished trials in `at`
    (without it, after the last).
    """
    wanted = [trials] if at is None else list(at)
    marks = set(wanted)
    running: list[tuple[float, int, np.ndarray, float]] = []
    asked = 0
    found: dict[int, float] = {}
    now = 0.0

    def launch() -> None:
        nonlocal asked
        point = engine.ask(asked)
        rng = np.random.default_rng([seed, asked, 1])
        loss = landscape.measure(point, rng)
        lasts = rng.uniform(0.8, 1.2) * (1.0 if math.isfinite(loss) else rng.uniform(0.1, 1.0))
        heapq.heappush(running, (now + lasts, asked, point, loss))
        asked += 1

    while asked < min(in_flight, trials):
        launch()
    for finished in range(1, trials + 1):
        now, number, point, loss = heapq.heappop(running)
        engine.tell(number, point, loss)
        if asked < trials:
            launch()
        if finished in marks:
            found[finished] = landscape.truth(engine.recommend())
    return [found[count] for count in wanted]
