"""The headline's target again: its recipes on other tokens and seeds, and those of a second search.

The runs are `carried.py`'s and `base_gain.py`'s; docs/results/headline.md has the commands.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import headline_tables
import measured

from completedp.evidence.figures.headline import (
    FIGURE,
    GLOBAL,
    MODULE,
    UNIFORM,
    Run,
    times_shown,
)
from completedp.theory.scale import Ratios

FOUND = measured.FOLDER / "target-again.json"
SECOND = measured.FOLDER / "second-search.json"
TIMES = 1.5
TARGET = Ratios(width=4, depth=2, batch=4, tokens=24)


def found() -> dict[str, Any]:
    """The losses and speed-ups, as the figure writes its own."""
    return _judged(_again())


def second() -> dict[str, Any]:
    """The same of the second search."""
    return {"numbers": json.loads(SECOND.read_text(encoding="utf-8"))}


def both() -> dict[str, Any]:
    """Of these runs and the figure's together: the texts differ, and with them all losses by as
    much, which is taken out."""
    row = headline_tables.found()["numbers"]["scales"][-1]
    first = {Run(arm, 0): each for arm, each in row["losses"].items()}
    first[Run(GLOBAL, 0, TIMES)] = row["longer"][f"{TIMES:g}"]
    again = _again()
    apart = statistics.fmean(
        statistics.fmean(first[run]) - statistics.fmean(again[run]) for run in first
    )
    return _judged({run: [*first[run], *(x + apart for x in again[run])] for run in first})


def table() -> str:
    """Markdown: the speed-ups of the figure's runs, of these, of both, and of a second search."""
    lines = ["| search | runs | seeds | over uniform | over global |", "| --- " * 5 + "|"]
    every = [
        ("first", "the figure's", headline_tables.found()),
        ("first", "again", found()),
        ("first", "both", both()),
        ("second", "on the same tokens", second()),
    ]
    for search, runs, of in every:
        row = of["numbers"]["scales"][-1]
        cells = [times_shown(row[f"speedup_over_{arm}"]) for arm in (UNIFORM, GLOBAL)]
        lines.append(f"| {search} | {runs} | {len(row['losses'][MODULE])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _again() -> dict[Run, list[float]]:
    once, longer = json.loads(FOUND.read_text(encoding="utf-8"))["scales"]
    runs = {Run(arm, 0): [*each.values()] for arm, each in once["losses"].items()}
    return runs | {Run(GLOBAL, 0, TIMES): [*longer["losses"][GLOBAL].values()]}


def _judged(losses: Mapping[Run, Sequence[float]]) -> dict[str, Any]:
    seeds = min(map(len, losses.values()))
    at = replace(FIGURE.sizes["gpu"], scales=(TARGET,), seeds=(seeds,), around=())
    return {"numbers": FIGURE.judge(at, losses, {}).numbers}
