"""Trust-region searches: the paper's, and `recombine`, the default.

Both draw from a box around a centre and shrink it when it stops paying. The paper's centre is the
best trial so far: with noise that is the luckiest one, and near a cliff one that happened not to
fall. The default believes no single trial:

- its centre is the log-rank-weighted mean of the best twenty;
- a ridge regression on the recent trials (slopes and curvatures, one each a coordinate) leans the
  box towards where the loss falls, each coordinate only as far as its slope is certain;
- a logistic regression on which of them diverged thins out the points likely to diverge;
- the box shrinks and grows with the rate at which trials are still among the best.

A trial that was stopped early comes with a forecast of its loss: one more point to regress on, with
less weight, and never one to centre on.

Only recent trials count, so old luck is forgotten; a stale one, asked of a centre long left, is
one more point to regress on.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from completedp.studies.engines import Bounds, Engine, Told

BOX = 1.0  # octaves to either side of the centre that the box begins with
SHRINK, PATIENCE = 0.7, 100  # the paper's: by how much its box shrinks, after so many trials


class TrustRegion(Engine):
    """The paper's trust-region random search.

    Points are uniform in a box around the best trial so far; the box shrinks whenever so many
    finished trials in a row bring no improvement.
    """

    def __init__(self, bounds: Bounds, seed: int) -> None:
        super().__init__(bounds, seed)
        self.radius = BOX
        self._since_improvement = 0

    def _learn(self, trial: Told) -> None:
        self._since_improvement = 0 if trial.improved else self._since_improvement + 1
        if self._since_improvement >= PATIENCE:
            self.radius *= SHRINK
            self._since_improvement = 0

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(
            np.maximum(self.bounds.low, self.best_point - self.radius),
            np.minimum(self.bounds.high, self.best_point + self.radius),
        )

    def describe(self) -> dict[str, float]:
        return super().describe() | {"radius": self.radius}


REFIT_EVERY = 10  # finished trials between two fits: asks stay fast, and ten change little
RECENT = 200  # trials that a new one is compared with, to see whether the box still pays
GOOD = 10  # a trial is a success when it is among this many best of those
SUCCESS_RATE = 0.1  # the box keeps its size at this rate of successes
ADAPT = 0.05  # how fast the box changes: its log by this much for each success
FLOOR = 0.3 * BOX  # the smallest box: a smaller one drowns in noise
ELITE = 20  # trials, the best of the recent ones, whose mean is the centre
CANDIDATES = 4  # points drawn for each one asked
FORECAST = 0.25  # what a stopped trial counts in the regression
DOUBT = 3.0  # the squared t-value at which a slope moves its coordinate half way
SAFE = 0.12  # the risk of divergence up to which a recommendation leans like the box does


class Recombine(Engine):
    """Trust region around the weighted mean of the best of the recent trials."""

    def __init__(self, bounds: Bounds, seed: int) -> None:
        super().__init__(bounds, seed)
        self.radius = BOX
        self._memory = max(300, 6 * bounds.dimensions)
        self._trials: deque[Told] = deque(maxlen=self._memory + REFIT_EVERY)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._fitted_at = 0
        self._centre: np.ndarray | None = None
        self._model: _Quadratic | None = None
        self._risk: Risk | None = None

    def _learn(self, trial: Told) -> None:
        if len(self._recent) >= 2 * GOOD:
            bar = np.partition(self._recent, GOOD - 1)[GOOD - 1]
            success = trial.loss < bar and not trial.estimated
            # Below the floor only for divergence: the region may be narrower than the box.
            if success or trial.loss == math.inf or self.radius > FLOOR:
                self.radius *= math.exp(ADAPT * (success - SUCCESS_RATE))
            self.radius = min(max(self.radius, 0.1 * FLOOR), BOX)
        if not trial.estimated:
            self._recent.append(trial.loss)
        self._trials.append(trial)

    def _fit(self) -> None:
        """Centre and models from the trials up to the last multiple of REFIT_EVERY.

        Of those alone, whenever the first ask comes after them: so all workers agree.
        """
        newer = self.told % REFIT_EVERY if self.told >= REFIT_EVERY else 0
        if self.told - newer == self._fitted_at:
            return
        self._fitted_at = self.told - newer
        known = list(self._trials)[: len(self._trials) - newer][-self._memory :]
        points = np.array([trial.point for trial in known])
        losses = np.array([trial.loss for trial in known])
        whole = np.array([not trial.estimated for trial in known])
        finite = np.isfinite(losses)
        self._risk = Risk.fit(points, ~finite) if 5 <= finite.sum() <= len(known) - 5 else None
        points, losses, whole = points[finite], losses[finite], whole[finite]
        self._centre = self._model = None
        if not whole.any():
            return
        if len(losses) >= max(20, self.bounds.dimensions // 2):
            self._model = _Quadratic.fit(points, losses, np.where(whole, 1.0, FORECAST))
        count = min(ELITE, max(1, len(losses) // 3), int(whole.sum()))
        best = np.argsort(np.where(whole, losses, math.inf), kind="stable")[:count]
        weights = math.log(count + 0.5) - np.log(np.arange(1, count + 1))
        self._centre = weights @ points[best] / weights.sum()

    def _lean(self) -> tuple[np.ndarray, np.ndarray]:
        """The centre, and the step from it that the model would take within the box."""
        self._fit()
        centre = self.best_point if self._centre is None else self._centre
        if self._model is None:
            return centre, np.zeros_like(centre)
        return centre, self._model.step(centre, self.radius)

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        centre, step = self._lean()
        # Anywhere between no step and the whole: the model may be wrong, or the step too long.
        drawn = centre + rng.random((CANDIDATES, 1)) * step
        drawn += rng.uniform(-self.radius, self.radius, drawn.shape)
        drawn = self.bounds.clip(drawn)
        if self._risk is not None:
            risk = self._risk.predict(drawn)
            kept = rng.random(CANDIDATES) > risk
            drawn = drawn[kept] if kept.any() else drawn[[np.argmin(risk)]]
        if self._model is None:
            return drawn[0]
        return drawn[np.argmin(self._model.predict(drawn))]

    def recommend(self) -> np.ndarray:
        """The centre, leaning half a step where that is not more likely to diverge."""
        centre, step = self._lean()
        ahead = self.bounds.clip(centre + 0.5 * step)
        if self._risk is not None:
            here, there = self._risk.predict(np.array([centre, ahead]))
            if there > max(here, SAFE):
                return centre.copy()
        return ahead

    def describe(self) -> dict[str, float]:
        return super().describe() | {"radius": self.radius}


@dataclass(frozen=True)
class _Quadratic:
    """Loss as slopes and curvatures, one each a coordinate: Bayesian ridge regression."""

    mean: np.ndarray
    scale: float
    """Where the trials are and how far they spread: what the coefficients are relative to."""
    level: float
    slopes: np.ndarray
    curvatures: np.ndarray
    certainty: np.ndarray
    """From 0 to 1: how far each slope is to be believed."""

    @classmethod
    def fit(cls, points: np.ndarray, losses: np.ndarray, weights: np.ndarray) -> _Quadratic:
        n, d = points.shape
        mean, scale = points.mean(0), max(float(points.std(0).mean()), 1e-9)
        losses = capped(losses)
        unit, level = losses.std() + 1e-12, losses.mean()
        u = (points - mean) / scale
        # The second column is a curvature that all coordinates share, which few trials suffice for.
        shared = (u**2).sum(1, keepdims=True) / math.sqrt(d)
        features = np.hstack([np.ones((n, 1)), shared, u, u**2])
        root_weights = np.sqrt(weights)
        features *= root_weights[:, None]
        target = root_weights * (losses - level) / unit
        gram, moment = features.T @ features, features.T @ target
        best = (-math.inf, gram, moment, 1.0)
        for strength in (1.0, 10.0, 100.0, 1000.0):  # the likeliest ridge, noise integrated out
            ridge = np.repeat([1e-6, 1e-3, strength, 10.0 * strength], [1, 1, d, d])
            root = np.linalg.cholesky(gram + np.diag(ridge))
            half = np.linalg.solve(root, moment)
            noise = max(float(target @ target - half @ half), 1e-9) / n
            evidence = 0.5 * np.log(ridge).sum() - np.log(np.diag(root)).sum()
            evidence -= 0.5 * n * math.log(noise)
            if evidence > best[0]:
                best = (evidence, root, half, noise)
        _, root, half, noise = best
        inverse = np.linalg.inv(root)
        solved = inverse.T @ half
        slopes = solved[2 : 2 + d]
        t_squared = slopes**2 / (noise * (inverse**2).sum(0)[2 : 2 + d])
        return cls(
            mean=mean,
            scale=scale,
            level=level + unit * solved[0],
            slopes=unit * slopes,
            curvatures=2.0 * unit * (solved[2 + d :] + solved[1] / math.sqrt(d)),
            certainty=t_squared / (t_squared + DOUBT),
        )

    def predict(self, points: np.ndarray) -> np.ndarray:
        u = (points - self.mean) / self.scale
        return self.level + u @ self.slopes + 0.5 * u**2 @ self.curvatures

    def step(self, centre: np.ndarray, radius: float) -> np.ndarray:
        """To the bottom along each coordinate, or to the box's side if that is nearer."""
        slope = self.slopes + self.curvatures * (centre - self.mean) / self.scale
        reach = radius / self.scale
        bent = self.curvatures * reach > np.abs(slope)  # the bottom is within the box
        bottom = -slope / np.where(bent, self.curvatures, 1.0)
        return self.scale * self.certainty * np.where(bent, bottom, -reach * np.sign(slope))


@dataclass(frozen=True)
class Risk:
    """The chance that a point diverges: logistic regression with a ridge."""

    mean: np.ndarray
    scale: float
    weights: np.ndarray

    @classmethod
    def fit(cls, points: np.ndarray, diverged: np.ndarray) -> Risk:
        mean, scale = points.mean(0), max(float(points.std()), 1e-9)
        features = np.hstack([np.ones((len(points), 1)), (points - mean) / scale])
        ridge = np.repeat([1e-3, 3.0], [1, points.shape[1]])
        weights = np.zeros(len(ridge))
        for _ in range(4):  # Newton's method from zero: near enough
            chance = _logistic(features @ weights)
            spread = chance * (1.0 - chance) + 1e-3
            hessian = (features * spread[:, None]).T @ features + np.diag(ridge)
            gradient = features.T @ (chance - diverged) + ridge * weights
            weights = weights - np.linalg.solve(hessian, gradient)
        return cls(mean, scale, weights)

    def predict(self, points: np.ndarray) -> np.ndarray:
        return _logistic(self.weights[0] + (points - self.mean) / self.scale @ self.weights[1:])


def capped(losses: np.ndarray) -> np.ndarray:
    """Losses for a fit: how badly a bad run went says little about the bottom of the bowl."""
    middle = np.median(losses)
    return np.minimum(losses, middle + 3.0 * (middle - np.quantile(losses, 0.1)) + 1e-12)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))
