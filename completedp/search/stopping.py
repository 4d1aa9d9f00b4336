"""Stop early: a trial whose loss curve is among the worse half is not trained to its end.

At a quarter and at half of its steps a trial's smoothed loss is compared with those that recent
trials had there. Measured on real training, the worse half at those points holds almost none of
what turns out best, and its steps are better spent on new points. A stopped trial is told to the
engine with the loss it would have ended at, had it fallen as finished trials did from there on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

FRACTIONS = (0.25, 0.5)
"""Of the steps, where trials are judged."""
SMOOTHED_OVER = 20
"""Steps whose mean is compared: single batches are noise."""
RECENT = 100
"""Trials compared with; the search improves, and so must they."""
AT_LEAST = 20
"""Trials to have been seen to their end before any is stopped."""


class EarlyStop:
    """Judges running trials by the curves of earlier ones. A fold, as engines are."""

    def __init__(self, steps: int) -> None:
        self._marks = sorted({max(SMOOTHED_OVER, round(f * steps)) for f in FRACTIONS})
        self._marks = [mark for mark in self._marks if mark < steps]
        self._there = {mark: deque[float](maxlen=RECENT) for mark in self._marks}
        self._completed: deque[tuple[np.ndarray, float]] = deque(maxlen=RECENT)

    def tell(self, curve: Sequence[float] | np.ndarray, loss: float, status: str) -> None:
        """Learn from a finished trial; a diverged one says nothing of how good losses look."""
        if status == "diverged":
            return
        curve = np.asarray(curve, dtype=np.float64)
        for mark, seen in self._there.items():
            if len(curve) >= mark:
                seen.append(_smoothed(curve, mark))
        if status == "ok" and math.isfinite(loss):
            self._completed.append((curve, loss))

    def hopeless(self, losses: Sequence[float]) -> bool:
        """Whether a running trial is among the worse half at the last mark it has passed."""
        if len(self._completed) < AT_LEAST:
            return False
        passed = [mark for mark in self._marks if len(losses) >= mark]
        if not passed:
            return False
        return _smoothed(losses, passed[-1]) > float(np.median(self._there[passed[-1]]))

    def estimate(self, losses: Sequence[float]) -> float:
        """The loss at which a trial that was stopped would have ended."""
        length = len(losses)
        falls = [loss - _smoothed(curve, length) for curve, loss in self._completed]
        return _smoothed(losses, length) + float(np.median(falls))


def _smoothed(losses: Sequence[float] | np.ndarray, end: int) -> float:
    return float(np.mean(losses[max(0, end - SMOOTHED_OVER) : end]))
