"""Sensitivity: how much the loss rises around its optimum, by a Gaussian process.

The process is scikit-learn's, an extra. It is fitted to the better trials of a random search, with
a length of its own for each hyperparameter and a share of noise, so that what a value matters is
told apart from luck.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from completedp.common.extras import import_extra

MOST = 512
"""Trials that are fitted, of the better half: more take long."""
LEAST = 16
"""Trials without which there is no fit."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The process along one hyperparameter, all others at the optimum."""

    octaves: list[float]
    """From the optimum's value."""
    rise: list[float]
    """Nats above the optimum."""
    error: list[float]
    """One standard deviation of the process."""

    @property
    def nearby(self) -> float:
        """The mean rise at the values next to the optimum's."""
        best = min(range(len(self.octaves)), key=lambda i: abs(self.octaves[i]))
        beside = [i for i in (best - 1, best + 1) if 0 <= i < len(self.octaves)]
        return float(np.mean([self.rise[i] for i in beside])) if beside else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def has_processes() -> bool:
    """Whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


def sensitivity(
    points: np.ndarray, losses: np.ndarray, levels: Mapping[str, Sequence[float]]
) -> dict[str, Slice] | None:
    """Slices through the process's lowest trial, by hyperparameter; None with too few trials.

    `points` are log2 of values, [trials, hyperparameters]; `levels` are where slices are taken.
    """
    order = np.argsort(losses, kind="stable")
    order = order[np.isfinite(losses[order])]
    half = order[: max(LEAST, len(order) // 2)]  # the rest is far from the bottom
    kept = half[:: math.ceil(len(half) / MOST) or 1]
    if len(kept) < LEAST:
        return None
    process = import_extra("sklearn.gaussian_process", "the sensitivity around the optimum")
    kernels = process.kernels
    x, y = points[kept], losses[kept]
    middle, spread = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    lengths = np.full(x.shape[1], 2.0)
    kernel = kernels.ConstantKernel(1.0, (1e-3, 1e3)) * kernels.RBF(lengths, (0.2, 1e2))
    fitted = process.GaussianProcessRegressor(
        kernel + kernels.WhiteKernel(0.1, (1e-5, 1e1)), normalize_y=True, random_state=0
    )
    with warnings.catch_warnings():  # a length at its bound is a value that does not matter
        warnings.simplefilter("ignore")
        fitted.fit((x - middle) / spread, y)
    mean = fitted.predict((x - middle) / spread)
    best = x[int(np.argmin(mean))]
    found = {}
    for i, (name, values) in enumerate(levels.items()):
        ordered = np.sort(np.asarray(values, dtype=float))
        inside = (x[:, i].min() - 1e-9 <= ordered) & (ordered <= x[:, i].max() + 1e-9)
        ordered = ordered[inside]  # beyond all trials the process knows nothing
        along = np.repeat(best[None], len(ordered), axis=0)
        along[:, i] = ordered
        rise, error = fitted.predict((along - middle) / spread, return_std=True)
        here = rise[int(np.argmin(np.abs(ordered - best[i])))]
        found[name] = Slice(
            octaves=(ordered - best[i]).tolist(),
            rise=(rise - here).tolist(),
            error=error.tolist(),
        )
    return found
