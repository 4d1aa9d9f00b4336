"""Search engines: what they are, and random search; registry.py has their names.

An engine is a fold over finished trials in the order they finished; the random numbers of trial n
come from the study's seed and n alone. So its state is a function of the store: every worker
rebuilds the same one, none needs a lock, and a search that resumes is the search that never
stopped, with nothing to save.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.common.surface import option
from completedp.theory.hparams import Values


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where a search may go, and where it starts: log2 coordinates."""

    low: np.ndarray
    high: np.ndarray
    start: np.ndarray

    def __post_init__(self) -> None:
        for name in ("low", "high", "start"):
            value = np.array(getattr(self, name), dtype=np.float64)  # the caller may change theirs
            value.setflags(write=False)
            object.__setattr__(self, name, value)
        if self.start.ndim != 1 or not self.low.shape == self.high.shape == self.start.shape:
            raise CompletedpError(
                f"bounds of shapes {self.low.shape}, {self.high.shape} and start "
                f"{self.start.shape} must be vectors of one length"
            )
        if not len(self.start):
            raise CompletedpError("bounds have no coordinate: give at least one to search")
        inside = (self.low <= self.start) & (self.start <= self.high)
        inside &= np.isfinite(self.low) & np.isfinite(self.high)
        if not inside.all():
            i = int(np.argmin(inside))
            raise CompletedpError(
                f"coordinate {i}: start {self.start[i]} must be within its finite bounds "
                f"[{self.low[i]}, {self.high[i]}]"
            )

    @property
    def dimensions(self) -> int:
        """How many coordinates there are."""
        return len(self.start)

    def clip(self, point: np.ndarray) -> np.ndarray:
        """The nearest point within."""
        return np.clip(point, self.low, self.high)


@dataclass(frozen=True, kw_only=True, eq=False)
class Proposal:
    """A new trial: where in the space, with which seed, and at which of the study's sites."""

    point: np.ndarray
    seed: int
    site: int = 0


ABSURD = 1e12
"""No loss of a run that went well is larger."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """A finished trial as an engine takes it in."""

    number: int
    point: np.ndarray
    loss: float
    """Infinite where it diverged."""
    improved: bool
    """Whether it is the best so far."""
    estimated: bool
    """It was stopped early: its loss is a forecast."""


class Engine(ABC):
    """Proposes points and learns from what they were worth.

    Subclasses take their options as keyword arguments, and override `_learn` (one finished trial)
    and `_propose` (a point, from the generator of its trial).
    """

    def __init__(self, bounds: Bounds, seed: int) -> None:
        self.bounds = bounds
        self.seed = seed
        self.told = self.diverged = 0
        """How many trials were told, and how many of them diverged."""
        self.best_loss = math.inf
        self.best_point = bounds.start.copy()
        """The luckiest trial so far; the start until one has finished."""

    @property
    def centre(self) -> np.ndarray:
        """Where the search began, or the last of its stages."""
        return self.bounds.start

    def tell(self, number: int, point: np.ndarray, loss: float, *, estimated: bool = False) -> None:
        """Learn from a finished trial; to be called in finishing order. Infinity is divergence.

        An `estimated` loss is the forecast of a trial that was stopped: never the best one.
        """
        # NaN, -inf and absurd numbers can only be faults: no better than divergence.
        loss = float(loss) if abs(loss) < ABSURD else math.inf
        point = np.array(point, dtype=np.float64)
        if point.shape != self.bounds.start.shape:
            raise CompletedpError(
                f"trial {number} has {point.size} coordinates where the study has "
                f"{self.bounds.dimensions}"
            )
        improved = loss < self.best_loss and not estimated
        if improved:
            self.best_loss, self.best_point = loss, point.copy()
        self.told += 1
        self.diverged += loss == math.inf
        self._learn(
            Told(number=number, point=point, loss=loss, improved=improved, estimated=estimated)
        )

    def ask(self, number: int) -> np.ndarray:
        """The point of trial `number`, within bounds; the start itself for the first."""
        if number == 0:
            return self.bounds.start.copy()
        return self.bounds.clip(self._propose(number, np.random.default_rng([self.seed, number])))

    def propose(self, number: int) -> Proposal | None:
        """Trial `number`: its point, and a seed of its own (below 2^31); None if not known yet."""
        seed = int(np.random.default_rng([self.seed, number, 1]).integers(2**31))
        return Proposal(point=self.ask(number), seed=seed)

    def recommend(self) -> np.ndarray:
        """The point the engine would use now."""
        return self.best_point.copy()

    def describe(self) -> dict[str, float]:
        """Numbers for the live view."""
        return {"best_loss": self.best_loss, "told": self.told, "diverged": self.diverged}

    def _learn(self, trial: Told) -> None:  # noqa: B027 - random search learns nothing
        """Take in one finished trial."""

    @abstractmethod
    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """A point for a trial; nothing here may change what later calls return."""


def around_start(bounds: Bounds, box: float | None) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper ends of the bounds, or of what is within `box` octaves of the start."""
    reach = math.inf if box is None else box
    low = np.maximum(bounds.low, bounds.start - reach)
    return low, np.minimum(bounds.high, bounds.start + reach)


class RandomSearch(Engine):
    """Uniform within the bounds, or within `box` octaves of the start."""

    def __init__(self, bounds: Bounds, seed: int, *, box: float | None = None) -> None:
        super().__init__(bounds, seed)
        self._low, self._high = around_start(bounds, box)

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(self._low, self._high)


class GridSearch(Engine):
    """Random search over a discrete grid: each coordinate one of its levels, in log2."""

    def __init__(self, bounds: Bounds, seed: int, *, levels: Sequence[Sequence[float]]) -> None:
        super().__init__(bounds, seed)
        if len(levels) != bounds.dimensions:
            raise CompletedpError(
                f"levels for {len(levels)} coordinates where the study has {bounds.dimensions}"
            )
        self._levels = [np.array(each, dtype=np.float64) for each in levels]
        for i, each in enumerate(self._levels):
            # Written so that NaN is outside too.
            if not (each.size and (each >= bounds.low[i]).all() and (each <= bounds.high[i]).all()):
                raise CompletedpError(
                    f"levels {each.tolist()} of coordinate {i} must be within its bounds "
                    f"[{bounds.low[i]}, {bounds.high[i]}], and at least one"
                )

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.choice(each) for each in self._levels])


PAPER_GRID = {
    "lr": (1e-4, 3e-4, 4e-4, 1e-3, 3e-3, 4e-3, 1e-2, 2e-2, 3e-2, 1e-1),
    "eps": (1e-14, 1e-12, 1e-10, 1e-8, 3e-8, 4e-8, 1e-7),
    "one_minus_beta1": (0.2, 0.15, 0.1, 0.05, 0.001),
    "one_minus_beta2": (0.1, 0.05, 0.02, 0.01, 0.001),
    "weight_decay": (1e-4, 1e-3, 1e-2, 1e-1, 2e-1, 4e-1),
}
"""The values of the paper's global baseline, a random search of 2,048 trials."""


def paper_levels(coordinates: Sequence[str], values: Values) -> list[list[float]]:
    """The paper's grid as log2 multipliers of `values`, for a search over global coordinates."""
    levels = []
    for name in coordinates:
        tunable, _, kind = name.partition("/")
        if kind != "global" or tunable not in PAPER_GRID:
            known = ", ".join(f"{tunable}/global" for tunable in PAPER_GRID)
            raise CompletedpError(
                f"the paper's grid has no {name!r}, only {known}: search with "
                f"{option('space')} global"
            )
        if values.of(tunable) <= 0:
            raise CompletedpError(f"{tunable} = {values.of(tunable)} has no multiplier: above 0")
        levels.append([math.log2(value / values.of(tunable)) for value in PAPER_GRID[tunable]])
    return levels
