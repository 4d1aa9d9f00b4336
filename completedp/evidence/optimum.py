"""Where the best values of one or two hyperparameters are, from losses on a grid, with the error.

A grid is one array of octaves (log2) for each hyperparameter; losses have its shape, and seeds as
the last dimension; a trial that diverged has an infinite loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Grid = Sequence[np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The bottom of a bowl of loss over log2 of the values."""

    octaves: tuple[float, ...] | None
    """Where it is; None where the lowest loss is at an edge of the grid, so not bracketed."""
    errors: tuple[float, ...] | None
    """Standard errors over seeds; None with one seed."""
    loss: float | None
    """The fitted loss there; the lowest measured one where it is not bracketed."""
    lowest: tuple[float, ...] | None = None
    """Where the lowest mean of the grid is; None where all diverged."""


def drift_text(drifts: Sequence[float], costs: Sequence[float]) -> str:
    """The furthest that an optimum moved, and the most that the base's costs, in words.

    >>> drift_text([0.1, 0.26], [0.0, 0.0114])
    "drifts by up to 0.26 octaves; keeping the base's costs up to 0.0114 nats"
    """
    if not drifts or not costs:
        return "has no optimum within what was tried"
    return (
        f"drifts by up to {max(drifts):.2f} octaves; keeping the base's costs up to "
        f"{max(costs):.4f} nats"
    )


def place_text(octaves: Sequence[float] | None, errors: Sequence[float] | None) -> str:
    """Where an optimum is, with its errors, for people."""
    if octaves is None:
        return "not bracketed"
    sure = ("",) * len(octaves) if errors is None else [f" +- {error:.2f}" for error in errors]
    return ", ".join(f"{octave:+.2f}{each}" for octave, each in zip(octaves, sure, strict=True))


def find_optimum(grid: Grid, losses: np.ndarray) -> Optimum:
    """The optimum: the bottom of a quadratic through the lowest mean loss and its neighbours.

    Each seed's own quadratic, at the same points, gives the spread.
    """
    means = losses.mean(axis=-1)
    if not np.isfinite(means).any():
        return Optimum(octaves=None, errors=None, loss=None)
    lowest = _lowest(means)
    around = _around(lowest)
    at = tuple(float(axis[i]) for axis, i in zip(grid, lowest, strict=True))
    inside = all(0 < i < len(axis) - 1 for i, axis in zip(lowest, grid, strict=True))
    if not inside or not np.isfinite(means[around]).all():
        return Optimum(octaves=None, errors=None, loss=float(means[lowest]), lowest=at)
    near = [axis[part] for axis, part in zip(grid, around, strict=True)]
    place, loss = _bottom(near, means[around])
    seeds = losses.shape[-1]
    errors = None
    if seeds > 1:
        own = np.array([_bottom(near, losses[around][..., seed])[0] for seed in range(seeds)])
        errors = tuple((own.std(axis=0, ddof=1) / math.sqrt(seeds)).tolist())
    return Optimum(octaves=tuple(place.tolist()), errors=errors, loss=loss, lowest=at)


def loss_at(grid: Grid, losses: np.ndarray, octaves: Sequence[float]) -> float:
    """The mean loss anywhere on the grid.

    Around the lowest point it is on the quadratic that `find_optimum` takes, so that at the optimum
    itself the two agree; elsewhere on straight lines between the points.
    """
    means = losses.mean(axis=-1)
    around = _around(_lowest(means))
    near = [axis[part] for axis, part in zip(grid, around, strict=True)]
    inside = all(len(x) == 3 and x[0] <= o <= x[2] for x, o in zip(near, octaves, strict=True))
    if inside and np.isfinite(means[around]).all():
        return float(_quadratic(near, means[around]) @ _terms(np.array(octaves)))
    for axis, octave in zip(reversed(grid), reversed(octaves), strict=True):
        means = np.apply_along_axis(
            lambda values, axis=axis, octave=octave: np.interp(octave, axis, values), -1, means
        )
    return float(means)


def _lowest(means: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.argmin(means), means.shape))


def _around(index: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(max(0, i - 1), i + 2) for i in index)


def _terms(place: np.ndarray) -> np.ndarray:
    """1, every coordinate, and every product of two."""
    pairs = itertools.combinations_with_replacement(range(len(place)), 2)
    return np.array([1.0, *place, *(place[i] * place[j] for i, j in pairs)])


def _quadratic(grid: Grid, losses: np.ndarray) -> np.ndarray:
    """The quadratic nearest to the losses (through them, for one hyperparameter)."""
    rows = np.array([_terms(np.array(place)) for place in itertools.product(*grid)])
    return np.linalg.lstsq(rows, losses.ravel(), rcond=None)[0]


def _bottom(grid: Grid, losses: np.ndarray) -> tuple[np.ndarray, float]:
    """The lowest place of the quadratic around a grid's middle, kept within the grid."""
    size = len(grid)
    middle = np.array([axis[1] for axis in grid])
    shifted = [axis - axis[1] for axis in grid]
    fit = _quadratic(shifted, losses)
    hessian = np.zeros((size, size))
    for term, (i, j) in enumerate(itertools.combinations_with_replacement(range(size), 2)):
        hessian[i, j] += fit[1 + size + term]
        hessian[j, i] += fit[1 + size + term]
    if not (np.linalg.eigvalsh(hessian) > 0).all():  # a seed's noise can turn its points over
        lowest = _lowest(losses)
        place = np.array([axis[i] for axis, i in zip(grid, lowest, strict=True)])
        return place, float(losses[lowest])
    step = -np.linalg.solve(hessian, fit[1 : 1 + size])
    step = np.clip(step, [axis[0] for axis in shifted], [axis[-1] for axis in shifted])
    return middle + step, float(fit @ _terms(step))
