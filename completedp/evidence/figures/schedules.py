"""Schedules in steps: a run's intervals at levels that never rise, and what they share."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

from completedp.evidence.figures.figure import Setting
from completedp.theory.schedule import Schedule

Levels = tuple[int, ...]
"""A schedule, or the beginning of one: the level of each interval, 0 the highest rate."""
STEP_DOWN = 2.5
"""The paper's: each level is so many times below the one before."""


@dataclass(frozen=True, kw_only=True)
class AnnealingSize:
    """How large the tree is."""

    setting: Setting
    """Its base is the longest run."""
    levels: int
    intervals: int
    horizons: tuple[int, ...]
    """In intervals, increasing."""
    seeds: int
    """Fresh ones, for the verdict."""


def count_nodes(levels: int, intervals: int) -> int:
    """Interval-runs in the tree: of every length, the ways to go down the levels."""
    return math.comb(intervals + levels, levels) - 1


def children(node: Levels, levels: int) -> list[Levels]:
    """A schedule's next intervals: as high as it is, or lower."""
    return [(*node, level) for level in range(node[-1] if node else 0, levels)]


def schedule_of(levels: Levels, intervals: int) -> Schedule:
    """The schedule of a node, over a whole run; after its end it stays where it was."""
    rest = (levels[-1],) * (intervals - len(levels))
    return Schedule(
        kind="piecewise",
        boundaries=tuple(i / intervals for i in range(1, intervals)),
        levels=tuple(STEP_DOWN**-level for level in (*levels, *rest)),
    )


def planned_with(plan: Any, schedule: Schedule) -> Any:
    """A plan with another schedule, which none of its values depends on."""
    moved = copy.copy(plan)
    moved.recipe = replace(plan.recipe, schedule=schedule)
    return moved
