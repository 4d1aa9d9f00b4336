"""A search in two stages: values of the whole model first, then those of its module types.

From far off, most of what sixty values of single modules gain is a global value in disguise, and it
takes long to find that way. So the first trials move the global values alone, and the rest start
where those ended and move the module types. Both move the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from completedp.studies.engines import Bounds, Engine, Proposal, Told
from completedp.studies.sites import ROUND
from completedp.studies.space import STAGED, Space

Make = Callable[[Bounds, int], Engine]
"""An engine of a stage, from its bounds and a seed."""
_FIRST = 128
"""About how many trials the first stage takes: a dozen and more for each of its coordinates."""


def first_trials(sites: int) -> int:
    """The trials of the first stage: whole rounds at every site.

    >>> first_trials(1), first_trials(2), first_trials(3)
    (128, 128, 192)
    """
    rounds = ROUND * sites
    return -(-_FIRST // rounds) * rounds


def has_stages(space: Space) -> bool:
    """Whether a space is searched in stages: where coordinates were named, one may have none."""
    if space.kind != STAGED:
        return False
    is_global, is_schedule = _kinds(space.coordinates)
    return bool(is_global.any() and (~is_global & ~is_schedule).any())


def _kinds(coordinates: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Which coordinates are the whole model's, and which the schedule's."""
    is_global = np.array([name.split("/")[1] == "global" for name in coordinates])
    return is_global, np.array([name.startswith("schedule/") for name in coordinates])


class Staged(Engine):
    """An engine for the global coordinates, and after `first` trials one for the others.

    The second begins when all trials of the first have finished, so that every worker has it begin
    at the same point; until then there is nothing to propose. Losses of the two are `comparable`
    unless the engines are told something else: the gain over where the stage began.
    """

    def __init__(
        self,
        bounds: Bounds,
        seed: int,
        *,
        coordinates: Sequence[str],
        first: int,
        make: Make,
        comparable: bool = True,
    ) -> None:
        super().__init__(bounds, seed)
        self._comparable = comparable
        is_global, is_schedule = _kinds(coordinates)
        self._later = ~is_global
        self._first, self._make = first, make
        self._stages = [_Stage(make, bounds, is_global | is_schedule, bounds.start, seed)]

    @property
    def centre(self) -> np.ndarray:
        return self._stages[-1].begin

    def propose(self, number: int) -> Proposal | None:
        later = number >= self._first
        if later and len(self._stages) == 1:
            return None
        return self._stages[later].propose(number - later * self._first)

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        proposed = self.propose(number)
        return self.centre if proposed is None else proposed.point

    def tell(self, number: int, point: np.ndarray, loss: float, *, estimated: bool = False) -> None:
        if number >= self._first and len(self._stages) == 1:
            return  # asked by nobody: a store that somebody changed
        super().tell(number, point, loss, estimated=estimated)

    def _learn(self, trial: Told) -> None:
        later = trial.number >= self._first
        stage = self._stages[later]
        stage.tell(trial, trial.number - later * self._first)
        if not later and stage.engine.told == self._first:
            own_seed = int(np.random.default_rng([self.seed, self._first, 2]).integers(2**31))
            begin = stage.recommend()
            self._stages.append(_Stage(self._make, self.bounds, self._later, begin, own_seed))
        if not self._comparable:  # then the best is that of the last stage that has one
            known = [each for each in self._stages if math.isfinite(each.engine.best_loss)]
            last = known[-1] if known else stage
            self.best_loss, self.best_point = last.engine.best_loss, last.best_point()

    def recommend(self) -> np.ndarray:
        return self._stages[-1].recommend()

    def describe(self) -> dict[str, float]:
        """As the current stage's, but for what is known of all trials."""
        return self._stages[-1].engine.describe() | super().describe() | {"stage": self.stage}

    @property
    def stage(self) -> int:
        """The current one: 1 or 2."""
        return len(self._stages)


class _Stage:
    """An engine over some of the coordinates, from where the stage begins; the others stay."""

    def __init__(
        self, make: Make, bounds: Bounds, moved: np.ndarray, begin: np.ndarray, seed: int
    ) -> None:
        self.begin, self._moved = bounds.clip(begin), moved
        within = Bounds(low=bounds.low[moved], high=bounds.high[moved], start=self.begin[moved])
        self.engine = make(within, seed)

    def propose(self, number: int) -> Proposal | None:
        proposed = self.engine.propose(number)
        if proposed is None:
            return None
        point = self._whole(proposed.point)
        return Proposal(point=point, seed=proposed.seed, site=proposed.site)

    def tell(self, trial: Told, number: int) -> None:
        point = trial.point[self._moved]
        self.engine.tell(number, point, trial.loss, estimated=trial.estimated)

    def recommend(self) -> np.ndarray:
        return self._whole(self.engine.recommend())

    def best_point(self) -> np.ndarray:
        return self._whole(self.engine.best_point)

    def _whole(self, point: np.ndarray) -> np.ndarray:
        whole = self.begin.copy()
        whole[self._moved] = point
        return whole
