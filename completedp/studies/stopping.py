"""Stop early: a trial that lags behind the others at a quarter of its steps goes no further.

Its smoothed loss there is compared with those of the trials that passed the mark last, running ones
included: a search improves, so older trials would be a low bar. The worse half is stopped. The
engine is told the loss that a stopped trial would have ended at, from a regression of the finished
trials' ends on their losses there and on their points: curves cross, and where they do is a matter
of the hyperparameters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from completedp.studies.trust_region import capped

MARK = 0.25
"""The part of its steps after which a trial is judged."""
STOPPED = 0.5
"""The part of the trials that is stopped there."""
SMOOTHED_OVER = 20
"""Steps whose mean is compared: single batches are noise."""
RECENT = 30
"""Trials compared with."""
LEARNT_FROM = 300
"""Finished trials that estimates come from."""
AT_LEAST = 20
"""Trials to have been seen to their end before any is stopped."""
RIDGE = 100.0
"""Against a slope of the ends in each coordinate, in trials times octaves squared."""

Losses = Sequence[float] | np.ndarray


class EarlyStop:
    """Judges running trials by the curves of others."""

    def __init__(self, steps: int) -> None:
        self._mark = max(SMOOTHED_OVER, round(MARK * steps))
        self._steps = steps
        self._there: dict[int, float] = {}
        """Smoothed losses of the last trials at the mark, by their numbers."""
        self._judged: set[int] = set()
        """Running trials that were let pass."""
        self._completed: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=LEARNT_FROM)
        """Points, curves and ends."""

    def tell(self, number: int, point: np.ndarray, curve: Losses, loss: float, status: str) -> None:
        """Learn from a finished trial; a diverged one says nothing of how good losses look."""
        seen = number in self._judged
        self._judged.discard(number)
        if status == "diverged":
            self._there.pop(number, None)
            return
        curve = np.asarray(curve, dtype=np.float64)
        if not seen:  # passed the mark at another worker; of ours it is known when they did
            self._pass(number, curve)
        if status == "ok" and math.isfinite(loss):
            self._completed.append((point, curve, loss))

    def hopeless(self, running: Sequence[tuple[int, Losses]]) -> list[bool]:
        """Which of the running trials (numbers, losses so far) are to be stopped.

        Each is judged once, so those it is compared with do not get better meanwhile.
        """
        due = {
            number: losses
            for number, losses in running
            if self._mark <= len(losses) < self._steps and number not in self._judged
        }
        for number, losses in due.items():
            self._pass(number, losses)
        self._judged |= due.keys()
        if not due or len(self._completed) < AT_LEAST:
            return [False] * len(running)
        bar = np.quantile(list(self._there.values()), 1 - STOPPED)
        return [number in due and _smoothed(losses, self._mark) > bar for number, losses in running]

    def estimate(self, point: np.ndarray, losses: Losses) -> float:
        """The loss at which a trial that was stopped would have ended."""
        length = len(losses)
        points = np.array([each for each, _, _ in self._completed])
        then = np.array([_smoothed(curve, length) for _, curve, _ in self._completed])
        ends = capped(np.array([end for _, _, end in self._completed]))
        aside, away = point - points.mean(0), _smoothed(losses, length) - then.mean()
        # As if one more had been as far away as this one and fallen as the others did: beyond them
        # all a slope that they give is not to be trusted.
        features = np.vstack(
            [
                np.column_stack([points - points.mean(0), then - then.mean()]),
                np.append(np.zeros_like(aside), away),
            ]
        )
        ridge = np.append(np.full(len(aside), RIDGE), 1e-12)
        slopes = np.linalg.solve(
            features.T @ features + np.diag(ridge), features.T @ np.append(ends - ends.mean(), away)
        )
        return float(ends.mean() + slopes @ np.append(aside, away))

    def _pass(self, number: int, losses: Losses) -> None:
        if len(losses) >= self._mark:
            self._there[number] = _smoothed(losses, self._mark)
            while len(self._there) > RECENT:
                del self._there[next(iter(self._there))]


def _smoothed(losses: Losses, end: int) -> float:
    return float(np.mean(losses[max(0, end - SMOOTHED_OVER) : end]))
