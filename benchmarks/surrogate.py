"""A landscape made from real trials: a Gaussian process through the losses of a search's trials.

Where synthetic landscapes are what we think training looks like, this is what some training did
look like, cheap enough to search thousands of times. The process has a linear part, a quadratic
part in each coordinate, a bowl that all share and a smooth rest; its sizes and the noise are those
that make the trials most likely. Which points diverge is a logistic regression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from landscapes import DIVERGED_COST

from completedp.common.errors import CompletedpError
from completedp.studies.engines import Bounds
from completedp.studies.trust_region import Risk, capped

_MOST = 4_000
"""Trials kept; a Gaussian process takes the third power of their number."""
TRIALS = Path(__file__).parent / "data" / "trials.npz"
"""Trials of `benchmarks/search_real.py`, for search_engines.py."""
_FITTED_ON = 800
"""Trials by which the sizes of its parts are chosen."""


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Standard deviations of the parts, in units of the losses' own, and the rest's reach."""

    linear: float = 1.0
    quadratic: float = 0.2
    bowl: float = 1.0
    rest: float = 0.5
    reach: float = 1.0
    noise: float = 0.3

    def kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Covariances of the values at points a and b."""
        d = a.shape[1]
        a_squared, b_squared = (a**2).sum(1), (b**2).sum(1)
        squares = a_squared[:, None] + b_squared - 2 * a @ b.T
        return (
            1.0
            + self.linear**2 * a @ b.T / d
            + self.quadratic**2 * a**2 @ (b**2).T / d
            + self.bowl**2 * np.outer(a_squared / d, b_squared / d)
            + self.rest**2 * np.exp(-np.maximum(squares, 0.0) / (2 * d * self.reach**2))
        )


class Surrogate:
    """The loss of a model's training as a function of a point, from trials that were trained."""

    def __init__(self, points: np.ndarray, losses: np.ndarray, bounds: Bounds) -> None:
        finite = np.isfinite(losses)
        if finite.sum() < 50:
            raise CompletedpError(
                f"{int(finite.sum())} finished trials are too few for a surrogate: 50 at least"
            )
        self.bounds = bounds
        self.dimensions = bounds.dimensions
        self.start = bounds.start
        diverged = int((~finite).sum())
        self._risk = Risk.fit(points, ~finite) if diverged >= 5 else None
        kept = np.flatnonzero(finite)[-_MOST:]
        self._unit = float((points[kept] - bounds.start).std()) or 1.0
        x, losses = self._scaled(points[kept]), capped(losses[kept])
        self._mean, self._spread = float(losses.mean()), float(losses.std()) or 1.0
        y = (losses - self._mean) / self._spread
        self._sizes = _most_likely(x, y)
        factor = np.linalg.cholesky(_covariance(self._sizes, x))
        self._x, self._alpha = x, np.linalg.solve(factor.T, np.linalg.solve(factor, y))
        self.noise = self._sizes.noise * self._spread
        """Standard deviation between seeds, in nats."""
        self.optimum = self._descend()

    @classmethod
    def load(cls, path: str | Path) -> Surrogate:
        """From the trials that a benchmark wrote."""
        try:
            with np.load(path, allow_pickle=False) as data:
                bounds = Bounds(**{name: data[name] for name in ("low", "high", "start")})
                return cls(data["points"].astype(float), data["losses"].astype(float), bounds)
        except (OSError, KeyError, ValueError) as error:
            raise CompletedpError(f"no trials to be read from {str(path)!r}: {error}") from None

    def loss(self, point: np.ndarray) -> float:
        """The mean loss over seeds that do not diverge."""
        value = float(self._sizes.kernel(self._scaled(point[None]), self._x)[0] @ self._alpha)
        return self._mean + self._spread * value

    def truth(self, point: np.ndarray) -> float:
        """The mean loss over seeds; those that diverge cost DIVERGED_COST more."""
        return self.loss(point) + DIVERGED_COST * self._chance(point)

    def measure(self, point: np.ndarray, rng: np.random.Generator) -> float:
        """One run: a noisy loss, or infinity where it diverges."""
        if rng.random() < self._chance(point):
            return math.inf
        return self.loss(point) + self.noise * rng.normal()

    def remaining(self, truth: float) -> float:
        """The share of the start's gap to the optimum that a true loss leaves, in per cent."""
        bottom = self.truth(self.optimum)
        return 100.0 * (truth - bottom) / (self.truth(self.start) - bottom)

    def _scaled(self, points: np.ndarray) -> np.ndarray:
        return (points - self.bounds.start) / self._unit

    def _chance(self, point: np.ndarray) -> float:
        return 0.0 if self._risk is None else float(self._risk.predict(point[None])[0])

    def _descend(self) -> np.ndarray:
        """The lowest point there is where trials have been: down the slope from the best of them.

        Beyond the trials the quadratic part goes on for ever, so the way ends where they do.
        """
        low, high = self._x.min(0), self._x.max(0)
        values = self._sizes.kernel(self._x, self._x) @ self._alpha
        found, lowest = self.start, self.truth(self.start)
        for index in np.argsort(values)[:5]:
            x = self._x[index].copy()
            for step in range(300):
                x = np.clip(x - 0.5 / (1 + step / 30) * self._slope(x), low, high)
            point = self.bounds.clip(self.start + self._unit * x)
            if self.truth(point) < lowest:
                found, lowest = point, self.truth(point)
        return found

    def _slope(self, x: np.ndarray) -> np.ndarray:
        """The direction in which the loss rises fastest, of length one."""
        s, d = self._sizes, len(x)
        near = np.exp(-((self._x - x) ** 2).sum(1) / (2 * d * s.reach**2)) * self._alpha
        slope = (
            s.linear**2 * self._x.T @ self._alpha / d
            + s.quadratic**2 * 2 * x * ((self._x**2).T @ self._alpha) / d
            + s.bowl**2 * 2 * x * ((self._x**2).sum(1) @ self._alpha) / d**2
            + s.rest**2 * ((self._x - x) * near[:, None]).sum(0) / (d * s.reach**2)
        )
        return slope / max(float(np.linalg.norm(slope)), 1e-12)


def _covariance(sizes: _Sizes, x: np.ndarray) -> np.ndarray:
    return sizes.kernel(x, x) + (sizes.noise**2 + 1e-6) * np.eye(len(x))


def _most_likely(x: np.ndarray, y: np.ndarray) -> _Sizes:
    """Sizes by which the trials are most likely, one at a time over a coarse grid."""
    chosen = np.random.default_rng(0).permutation(len(x))[:_FITTED_ON]
    x, y = x[chosen], y[chosen]

    def unlikely(sizes: _Sizes) -> float:
        try:
            factor = np.linalg.cholesky(_covariance(sizes, x))
        except np.linalg.LinAlgError:
            return math.inf
        white = np.linalg.solve(factor, y)
        return float(0.5 * white @ white + np.log(np.diag(factor)).sum())

    best = _Sizes()
    lowest = unlikely(best)
    for _ in range(3):
        for name in ("linear", "quadratic", "bowl", "rest", "reach", "noise"):
            for factor in (0.25, 0.5, 0.7, 1.4, 2.0, 4.0):
                tried = replace(best, **{name: getattr(best, name) * factor})
                cost = unlikely(tried)
                if cost < lowest:
                    best, lowest = tried, cost
    return best
