"""The paper's asynchronous CMA-ES, on the `cmaes` package.

CMA-ES moves by generations. Here trials run all the time: when `population` trials of the current
generation have finished, the state is updated with the `population` best of all that finished
since the last update, left-overs of older generations among them.

The engine has to know a trial's generation without being told. A trial's random numbers are its
own, so the current generation would ask the very same point for that number, and an older one,
whose mean and covariance were others, would not: that is the test.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from completedp.common.extras import import_extra
from completedp.studies.engines import Bounds, Engine, Told

_SIGMA = 0.5
"""Octaves that the first generation is spread over."""


class AsyncCMAES(Engine):
    """Asynchronous CMA-ES; without a `population` it is the package's: 4 + 3 ln(dimensions)."""

    def __init__(self, bounds: Bounds, seed: int, *, population: int | None = None) -> None:
        super().__init__(bounds, seed)
        cmaes = import_extra("cmaes", "engine 'cma-es'")
        self._cma: Any = cmaes.CMA(
            mean=bounds.start.copy(), sigma=_SIGMA, population_size=population
        )
        self._new: list[tuple[np.ndarray, float]] = []
        """What finished since the last update."""
        self._of_generation = 0
        """How many of those were asked of the current generation."""

    def _learn(self, trial: Told) -> None:
        self._new.append((trial.point, trial.loss))
        # Another machine may round its last bits differently.
        if np.allclose(trial.point, self.ask(trial.number), rtol=0.0, atol=1e-9):
            self._of_generation += 1
        if self._of_generation < self._cma.population_size:
            return
        # Diverged trials rank last, the farther the worse: nothing else is known of them.
        self._new.sort(key=lambda t: (t[1], np.linalg.norm(t[0] - self._cma.mean)))
        self._cma.tell(self._new[: self._cma.population_size])
        self._new, self._of_generation = [], 0

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        self._cma.reseed_rng(int(rng.integers(2**32)))
        return self._cma.ask()

    def describe(self) -> dict[str, float]:
        return super().describe() | {
            "generation": self._cma.generation,
            "radius": float(self._cma._sigma),
        }
