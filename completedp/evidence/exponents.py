"""The exponent of a learning-rate rule, from losses over learning rates at several sizes of a run.

At each size (so many times the base's tokens, or batch) the optimum is the bottom of a bowl; the
exponent is the slope of the optima in log2, lr* ~ factor^slope. Errors are from seeds drawn again,
or from how far the optima are from a line, where that is more.

A bowl is flat at its bottom, so an exponent may be badly known and not matter. Therefore also what
it costs: the loss at the largest size if the base's best learning rate is carried there with this
exponent, and the exponents that are as good as the best but for `CLOSE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from completedp.common.files import plain
from completedp.evidence.optimum import Optimum, find_optimum, loss_at

CLOSE = 0.005
"""Nats within which exponents count as equally good."""
MIDDLE = 0.25
"""The token exponent that the learning rates tried are around."""
CANDIDATES = (0.0, 0.25, 0.5)
"""Exponents whose cost is told: no rule, half of the printed one, the printed one."""
_DRAWS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """One size: losses over learning rates."""

    factor: float
    octaves: tuple[float, ...]
    """Learning rates, in octaves from the recipe's at base."""
    losses: np.ndarray
    """By learning rate and seed; infinite where a trial diverged."""

    def mean_of(self, seeds: np.ndarray) -> Size:
        """With the mean of some of its seeds, which may be drawn twice, in place of them all."""
        mean = self.losses[:, seeds].mean(axis=1, keepdims=True)
        return Size(factor=self.factor, octaves=self.octaves, losses=mean)

    @cached_property
    def optimum(self) -> Optimum:
        """The best learning rate."""
        return find_optimum([np.array(self.octaves)], self.losses)

    def loss_at(self, octave: float) -> float | None:
        """The mean loss at a learning rate; None outside what was tried, or beside divergence."""
        if not self.octaves[0] <= octave <= self.octaves[-1]:
            return None
        found = loss_at([np.array(self.octaves)], self.losses, [octave])
        return found if math.isfinite(found) else None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an exponent costs at the largest size, against the fitted one."""

    exponent: float
    loss: float | None
    """None where its learning rate is outside those tried."""
    cost: float | None
    error: float | None
    freedom: int
    """Degrees of freedom of the error: those of the seeds at the base and at the largest size."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """An exponent with its uncertainty, and what others cost."""

    what: str
    """What grows: tokens, batch, ..."""
    sizes: list[Size]
    optima: list[Optimum]
    exponent: float | None
    """None where an optimum is not bracketed by the learning rates tried."""
    error: float | None
    """Standard error, from the seeds or from how far the optima are from a line, whichever is
    larger; None with one seed."""
    freedom: int
    """Its degrees of freedom: those of all seeds, or of the line."""
    costs: list[Cost]
    close: tuple[float, float] | None
    """Exponents from 0 to 1 that cost less than `CLOSE` more than the best of them."""

    @property
    def largest(self) -> Size:
        """Where exponents differ most."""
        return self.sizes[-1]

    def local(self) -> list[float | None]:
        """The exponent from each size to the next; None where one is not known, and at the base."""
        sign = _sign(self.what)
        places = [None if o.octaves is None else o.octaves[0] for o in self.optima]
        found: list[float | None] = [None]
        for i in range(1, len(places)):
            here, before = places[i], places[i - 1]
            step = math.log2(self.sizes[i].factor / self.sizes[i - 1].factor)
            if here is None or before is None:
                found.append(None)
            else:
                found.append(sign * (here - before) / step)
        return found

    def cost_of(self, exponent: float) -> Cost:
        """What one exponent costs, of those that were asked for."""
        return next(cost for cost in self.costs if cost.exponent == exponent)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "what": self.what,
            "exponent": self.exponent,
            "error": self.error,
            "freedom": self.freedom,
            "close": None if self.close is None else list(self.close),
            "costs": [dict(vars(cost)) for cost in self.costs],
            "sizes": [
                {
                    "factor": size.factor,
                    "optimum": None if best.octaves is None else best.octaves[0],
                    "optimum_error": None if best.errors is None else best.errors[0],
                    "best_loss": best.loss,
                    "exponent_since_last": local,
                    "octaves": list(size.octaves),
                    "losses": plain(size.losses.tolist()),
                }
                for size, best, local in zip(self.sizes, self.optima, self.local(), strict=True)
            ],
        }


def reached(factor: float, octave: float, best: float = 0.0) -> tuple[float, float]:
    """The token exponent that gives a learning rate at a horizon, and the octaves that are left.

    The exponent is the one that takes the base's `best` rate there, as far as one from 0 to 1 does;
    what it does not give of the octave, the best rate's own octaves included, is moved alone.

    >>> reached(4.0, -1.0), reached(4.0, -3.0), reached(1.0, -1.0)
    ((0.5, 0.0), (1.0, -1.0), (0.5, -1.0))
    >>> reached(4.0, 0.0, best=1.0)
    (0.5, 1.0)
    """
    doublings = math.log2(factor)
    if not doublings:
        return 0.5, octave
    exponent = min(1.0, max(0.0, (best - octave) / doublings))
    return exponent, octave + exponent * doublings


def fit_exponent(what: str, sizes: Sequence[Size], candidates: Sequence[float]) -> Fit:
    """The exponent that the optima of these sizes have, the first of them the base.

    The learning rate falls with tokens and rises with the batch: exponents of both are above 0.
    """
    optima = [size.optimum for size in sizes]
    exponent = _exponent(what, sizes)
    one = sizes[0].losses.shape[1] == 1
    draws = [] if exponent is None or one else list(_draws(what, sizes))
    error = _spread([found for found, _ in draws], sizes)
    each = sizes[0].losses.shape[1] - 1
    freedom = each * len(sizes)
    if error is not None and (misfit := _misfit(sizes)) > error:
        error, freedom = misfit, len(sizes) - 2
    costs = []
    if exponent is not None:
        for candidate in dict.fromkeys((*candidates, exponent)):
            loss = _carried(what, sizes, candidate)
            best = _carried(what, sizes, exponent)
            cost = None if loss is None or best is None else loss - best
            drawn = [_cost(what, again, candidate, found) for found, again in draws]
            known = [x for x in drawn if x is not None]
            spread = _spread(known, sizes) if cost is not None else None
            costs.append(
                Cost(exponent=candidate, loss=loss, cost=cost, error=spread, freedom=2 * each)
            )
    return Fit(
        what=what,
        sizes=list(sizes),
        optima=optima,
        exponent=exponent,
        error=error,
        freedom=freedom,
        costs=costs,
        close=None if exponent is None else _close(what, sizes),
    )


def _sign(what: str) -> float:
    return 1.0 if what == "batch" else -1.0


def _exponent(what: str, sizes: Sequence[Size]) -> float | None:
    """The slope through all optima; None where one is not known."""
    places = [size.optimum.octaves for size in sizes]
    if any(place is None for place in places):
        return None
    x = np.log2([size.factor for size in sizes])
    y = np.array([place[0] for place in places if place is not None])
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return _sign(what) * slope + 0.0


def _misfit(sizes: Sequence[Size]) -> float:
    """The slope's error by how far the optima are from a line; 0 where two are all there is.

    Seeds know nothing of a line that is bent.
    """
    if len(sizes) < 3:
        return 0.0
    x = np.log2([size.factor for size in sizes])
    y = np.array([size.optimum.octaves[0] for size in sizes if size.optimum.octaves is not None])
    left = y - np.polyval(np.polyfit(x, y, 1), x)
    return math.sqrt(float((left**2).sum()) / (len(x) - 2) / float(((x - x.mean()) ** 2).sum()))


def _carried(what: str, sizes: Sequence[Size], exponent: float) -> float | None:
    """The loss at the largest size with the base's best learning rate, carried there."""
    base = sizes[0].optimum.octaves
    if base is None:
        return None
    moved = _sign(what) * exponent * math.log2(sizes[-1].factor)
    return sizes[-1].loss_at(base[0] + moved)


def _cost(what: str, sizes: Sequence[Size], exponent: float, fitted: float) -> float | None:
    loss, best = (_carried(what, sizes, each) for each in (exponent, fitted))
    return None if loss is None or best is None else loss - best


def _draws(what: str, sizes: Sequence[Size]) -> Iterator[tuple[float, list[Size]]]:
    """Exponents of seeds drawn again; a draw whose optima are not bracketed gives none.

    One seed's trials stay together, as they share data and initial values.
    """
    rng = np.random.default_rng(0)
    for _ in range(_DRAWS):
        again = []
        for size in sizes:
            count = size.losses.shape[1]
            again.append(size.mean_of(rng.integers(count, size=count)))
        found = _exponent(what, again)
        if found is not None:
            yield found, again


def _spread(drawn: Sequence[float], sizes: Sequence[Size]) -> float | None:
    """The standard error; draws of n seeds vary by (n - 1)/n too little."""
    seeds = sizes[0].losses.shape[1]
    if seeds < 2 or len(drawn) < 2:
        return None
    return float(np.std(drawn)) * math.sqrt(seeds / (seeds - 1))


def _close(what: str, sizes: Sequence[Size]) -> tuple[float, float] | None:
    losses = {n / 100: _carried(what, sizes, n / 100) for n in range(101)}
    known = {exponent: loss for exponent, loss in losses.items() if loss is not None}
    good = [x for x, loss in known.items() if loss < min(known.values()) + CLOSE]
    return (min(good), max(good)) if good else None
