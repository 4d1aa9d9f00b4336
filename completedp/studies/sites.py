"""A search at several scales at once: it gains where all of them do, not where the base alone does.

What is best at one scale by a small margin may owe it to that scale: its edge of stability, its few
layers, its short run. So trials go to the sites in turn, a round to each, and the engine is told by
how much a trial beats the start at its own site. The first trials of a site are the start itself;
until they have finished, what else finishes there waits to be told.
"""

from __future__ import annotations

import math

import numpy as np

from completedp.studies.engines import Engine, Proposal, Told

ROUND = 32
"""Trials in a row at one site: enough to fill its slots."""
STARTS = 4
"""Trials of the start at each site: their mean is what others are compared with."""


def site_of(number: int, sites: int) -> int:
    """Where a trial trains: a round at each site in turn."""
    return number // ROUND % sites


def trials_by_site(trials: int, sites: int) -> list[int]:
    """How many of the first trials each site has.

    >>> trials_by_site(96, 2), trials_by_site(70, 2), trials_by_site(7, 1)
    ([64, 32], [38, 32], [7])
    """
    whole, rest = divmod(trials, ROUND * sites)
    return [whole * ROUND + min(max(rest - place * ROUND, 0), ROUND) for place in range(sites)]


class SeveralSites(Engine):
    """An engine whose trials are spread over sites. All that it does follows from trial numbers."""

    def __init__(self, inner: Engine, sites: int) -> None:
        super().__init__(inner.bounds, inner.seed)
        self._inner, self._sites = inner, sites
        self._starts: list[list[float]] = [[] for _ in range(sites)]
        self._waiting: list[list[Told]] = [[] for _ in range(sites)]

    def propose(self, number: int) -> Proposal | None:
        proposed = super().propose(number)
        assert proposed is not None
        return Proposal(point=proposed.point, seed=proposed.seed, site=self._site(number))

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        return self.bounds.start.copy() if self._is_start(number) else self._inner.ask(number)

    def tell(self, number: int, point: np.ndarray, loss: float, *, estimated: bool = False) -> None:
        self.told += 1
        self.diverged += not math.isfinite(loss)
        site = self._site(number)
        told = Told(number=number, point=point, loss=loss, improved=False, estimated=estimated)
        self._waiting[site].append(told)
        if self._is_start(number):
            self._starts[site].append(loss)
        if len(self._starts[site]) < STARTS:
            return
        level = self._level(site)
        for each in self._waiting[site]:
            gain = each.loss - level if math.isfinite(level) else math.inf
            self._inner.tell(each.number, each.point, gain, estimated=each.estimated)
        self._waiting[site].clear()
        self.best_loss, self.best_point = self._inner.best_loss, self._inner.best_point

    def recommend(self) -> np.ndarray:
        return self._inner.recommend()

    def describe(self) -> dict[str, float]:
        """As the inner engine's, with how far below the start's, in nats, its best loss is."""
        own = {"told": self.told, "diverged": self.diverged}
        gain = {"gain": -self.best_loss} if math.isfinite(self.best_loss) else {}
        return self._inner.describe() | own | gain

    def _level(self, site: int) -> float:
        """The start's loss at a site; infinite where it diverges more often than not."""
        finite = [loss for loss in self._starts[site] if math.isfinite(loss)]
        return float(np.mean(finite)) if 2 * len(finite) > STARTS else math.inf

    def _site(self, number: int) -> int:
        return site_of(number, self._sites)

    def _is_start(self, number: int) -> bool:
        return number < ROUND * self._sites and number % ROUND < STARTS
