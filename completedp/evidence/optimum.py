"""Where the best value of a hyperparameter is, from losses on a grid of octaves, with its error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The bottom of a curve of loss against log2 of a value."""

    octave: float | None
    """Where it is; None where the lowest loss is at an end of the grid, so not bracketed."""
    error: float | None
    """Standard error over seeds; None with one seed."""
    loss: float | None
    """The fitted loss there; the lowest measured one where it is not bracketed."""


def find_optimum(octaves: np.ndarray, losses: np.ndarray) -> Optimum:
    """The optimum of losses [octaves, seeds]; infinite where a trial diverged.

    A parabola through the lowest mean loss and its two neighbours gives the place. Each seed's own
    parabola, at the same three octaves, gives the spread.
    """
    means = losses.mean(axis=1)
    lowest = int(np.argmin(means))
    if not math.isfinite(means[lowest]):
        return Optimum(octave=None, error=None, loss=None)
    around = slice(lowest - 1, lowest + 2)
    inside = 0 < lowest < len(octaves) - 1
    if not inside or not np.isfinite(means[around]).all():
        return Optimum(octave=None, error=None, loss=float(means[lowest]))
    place, loss = _bottom(octaves[around], means[around])
    own = np.array([_bottom(octaves[around], column)[0] for column in losses[around].T])
    seeds = len(own)
    error = float(own.std(ddof=1) / math.sqrt(seeds)) if seeds > 1 else None
    return Optimum(octave=place, error=error, loss=loss)


def loss_at(octaves: np.ndarray, losses: np.ndarray, octave: float) -> float:
    """The mean loss at any octave of the grid.

    Around the lowest point it is on the parabola that `find_optimum` takes, so that at the optimum
    itself the two agree; elsewhere on straight lines between the points.
    """
    means = losses.mean(axis=1)
    lowest = int(np.argmin(means))
    around = slice(max(0, lowest - 1), lowest + 2)
    x, y = octaves[around], means[around]
    if len(x) == 3 and np.isfinite(y).all() and x[0] <= octave <= x[2]:
        return float(np.polyval(np.polyfit(x, y, 2), octave))
    return float(np.interp(octave, octaves, means))


def _bottom(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The lowest point of the parabola through three points, kept between the outer two."""
    curvature, slope, constant = np.polyfit(x - x[1], y, 2)
    if not curvature > 0:  # a seed's noise can turn its three points over
        lowest = int(np.argmin(y))
        return float(x[lowest]), float(y[lowest])
    step = float(np.clip(-slope / (2 * curvature), x[0] - x[1], x[2] - x[1]))
    return float(x[1]) + step, float(curvature * step**2 + slope * step + constant)
