"""What the headline came to: tables of docs/results/headline.json, and of its arms at a wider base.

python benchmarks/headline_tables.py
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from completedp.evidence.figures.headline import times_shown
from completedp.theory.scale import Scale

FOUND = Path(__file__).parent.parent / "docs" / "results" / "headline.json"
WIDER = Path(__file__).parent / "data" / "base-gain-gpu.json"


def found() -> dict[str, Any]:
    """What the figure wrote."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def wider_base() -> dict[str, Any]:
    """What base_gain.py wrote, as the figure writes it."""
    return {"numbers": json.loads(WIDER.read_text(encoding="utf-8"))}


def summary(of: Mapping[str, Any]) -> str:
    """A sentence on what was run, where and for how long."""
    trials = max(of["numbers"]["trials"].values())
    hours = f", {of['gpu_hours']:.2f} hours of a GPU" if of["gpu_hours"] else ""
    return (
        f"Size `{of['size']}`: {trials} trials an arm, on {of['device']} with torch "
        f"{of['versions']['torch']}: {of['seconds']:,.0f} s{hours}."
    )


def losses(of: Mapping[str, Any]) -> str:
    """Every arm at every scale, with the standard error of its seeds."""
    rows = of["numbers"]["scales"]
    arms, lengths = list(rows[0]["losses"]), list(rows[0]["longer"])
    titles = [*arms, *(f"global, {length} times the tokens" for length in lengths)]
    lines = _head(["FLOP", "scale", "seeds", *titles])
    for row in rows:
        cells = [*(row["losses"][arm] for arm in arms), *(row["longer"][n] for n in lengths)]
        scale = Scale(**row["scale"])
        first = f"x{row['flops_ratio']:,.0f} | {scale} | {len(cells[0])}"
        lines.append(f"| {first} | {' | '.join(map(_shown, cells))} |")
    return "\n".join(lines)


def speedups(of: Mapping[str, Any]) -> str:
    """How many times the tokens every other arm needs for the loss of per-module values."""
    rows = of["numbers"]["scales"]
    others = [arm for arm in rows[0]["losses"] if f"speedup_over_{arm}" in rows[0]]
    lines = _head(["FLOP", *(f"over {arm}" for arm in others)])
    for row in rows:
        cells = [times_shown(row[f"speedup_over_{arm}"]) for arm in others]
        lines.append(f"| x{row['flops_ratio']:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rates(of: Mapping[str, Any]) -> str:
    """The loss at the target where every learning rate is moved there."""
    curves = of["numbers"]["learning rates at the target"]
    octaves = [octave for octave, _ in next(iter(curves.values()))]
    lines = _head(["values", *(f"{octave:+g} octaves" for octave in octaves), "regret"])
    for arm, curve in curves.items():
        cells = [f"{loss:.4f}" if loss is not None else "diverged" for _, loss in curve]
        regret = f"{of['numbers']['regret'][arm]:.4f}"
        lines.append(f"| {arm} | {' | '.join(cells)} | {regret} |")
    return "\n".join(lines)


def _head(titles: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]


def _shown(each: Sequence[float | None]) -> str:
    known = [loss for loss in each if loss is not None]
    if len(known) < len(each):
        return "diverged"
    error = statistics.stdev(known) / math.sqrt(len(known))
    return f"{statistics.fmean(known):.4f} +- {error:.4f}"


if __name__ == "__main__":
    here = found()
    print(summary(here), losses(here), speedups(here), rates(here), sep="\n\n")
