"""Optuna's samplers as engines, for comparison: TPE and a Gaussian process.

Finished trials enter a study in memory in finishing order, and every ask has a sampler of its own,
seeded by its trial, so these engines are folds like the others. They know nothing of trials in
flight, and they are slow with many trials of many coordinates.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from completedp.common.extras import import_extra
from completedp.studies.engines import Bounds, Engine, Told, around_start

_STARTUP = 10
"""Trials that are drawn at random before a sampler has a say."""


class OptunaEngine(Engine):
    """What the two samplers share; `box` is as in random search."""

    name = ""

    def __init__(self, bounds: Bounds, seed: int, *, box: float | None = None) -> None:
        super().__init__(bounds, seed)
        self._low, self._high = around_start(bounds, box)
        self._optuna = optuna = import_extra("optuna", f"engine {self.name!r}")
        self._worst: float | None = None
        """The worst finite loss, which stands for divergence."""
        said = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every new study
        self._study = optuna.create_study()
        optuna.logging.set_verbosity(said)
        self._space: Any = {
            f"{i}": optuna.distributions.FloatDistribution(float(low), float(high))
            for i, (low, high) in enumerate(zip(self._low, self._high, strict=True))
        }
        self._waiting: list[np.ndarray] = []
        """Points that diverged before any loss was finite."""

    def _sampler(self, seed: int) -> Any:
        raise NotImplementedError

    def _learn(self, trial: Told) -> None:
        point, loss = trial.point, trial.loss
        if math.isfinite(loss):
            self._worst = loss if self._worst is None else max(loss, self._worst)
            for diverged in self._waiting:
                self._enter(diverged, self._worst)
            self._waiting = []
            self._enter(point, loss)
        elif self._worst is None:
            self._waiting.append(point)
        else:
            self._enter(point, self._worst)

    def _enter(self, point: np.ndarray, loss: float) -> None:
        params = {f"{i}": float(x) for i, x in enumerate(np.clip(point, self._low, self._high))}
        trial = self._optuna.trial.create_trial(
            params=params, distributions=self._space, value=loss
        )
        self._study.add_trial(trial)

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental features, and fits that stop early
            self._study.sampler = self._sampler(int(rng.integers(2**32)))
            asked = self._study.ask(self._space)
            # Out of the way: a failed trial is one that no sampler looks at.
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        return np.array([asked.params[name] for name in self._space])


class TPE(OptunaEngine):
    """Optuna's tree-structured Parzen estimator."""

    name = "tpe"

    def _sampler(self, seed: int) -> Any:
        return self._optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=_STARTUP, constant_liar=False
        )


class GaussianProcess(OptunaEngine):
    """Optuna's Gaussian process with expected improvement."""

    name = "gp"

    def _sampler(self, seed: int) -> Any:
        return self._optuna.samplers.GPSampler(seed=seed, n_startup_trials=_STARTUP)
