"""Sweeps on a CPU that ask what the figures on a GPU leave open: tables of their verdicts.

    python benchmarks/cpu_sweeps.py

`completedp sweep` made them, with the command that each file has. `past-critical` also has what
`completedp train` found the critical batch to be (docs/results/cpu.md has the command).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from completedp.evidence.figures.figure import spread

DATA = Path(__file__).parent / "data"
DEPTHS = {"1": "depth-sweep", "1/2": "depth-sweep-half"}
PAST_CRITICAL = "past-critical"


def read(name: str) -> dict[str, Any]:
    """What a sweep found."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def rows(name: str) -> Iterator[tuple[str, int, float, float, float, float]]:
    """By parameterisation and factor: how far the best rate moves from the base's, half of its
    interval of 95 %, what keeping the base's costs, and the lowest loss."""
    found = read(name)
    base = {line["parameterisation"]: line for line in found["lines"] if line["factor"] == 1}
    for line in found["lines"]:
        first, seeds = base[line["parameterisation"]], len(line["losses"][0])
        half = spread([line["optimum"]["errors"][0], first["optimum"]["errors"][0]], seeds)
        half = 0.0 if line is first else half
        loss = min(np.mean(each) for each in line["losses"] if None not in each)
        yield line["parameterisation"], line["factor"], line["drift"][0], half, line["cost"], loss


def depth_table() -> str:
    """How far the best rate moves over depth, for both exponents of the residual branches."""
    lines = ["| alpha | x2 | x4 | x8 | keeping the base's costs at x8 |", "| --- " * 5 + "|"]
    for alpha, name in DEPTHS.items():
        found = [row for row in rows(name) if row[1] > 1]
        moved = " | ".join(f"{drift:+.2f} +- {half:.2f}" for _, _, drift, half, _, _ in found)
        lines.append(f"| {alpha} | {moved} | {found[-1][4]:.3f} |")
    return "\n".join(lines)


def batch_table() -> str:
    """The batch rule against none, to beyond the critical batch."""
    titles = ("batch", "steps", "by the rule", "keeping it costs", "lowest loss")
    lines = [f"| {' | '.join([*titles, 'without it', *titles[3:]])} |", "| --- " * 8 + "|"]
    found = {row[:2]: row[2:] for row in rows(PAST_CRITICAL)}
    base = json.loads((DATA / "small-batch-base.json").read_text(encoding="utf-8"))["base"]
    for factor in sorted({factor for _, factor in found}):
        batch = base["batch"] * factor
        cells = [f"{batch:,}", f"{base['tokens'] // batch:,}"]
        for line in ("completedp", "mup"):
            drift, half, cost, loss = found[line, factor]
            moved = f"{drift:+.2f} +- {half:.2f}" if factor > 1 else ""
            cells += [moved, f"{cost:.3f}" if factor > 1 else "", f"{loss:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def critical() -> Iterator[tuple[int, float, float]]:
    """The batch that it was measured at, the critical batch, and its error."""
    for batch, found in read(PAST_CRITICAL)["critical batch"].items():
        assert math.isfinite(found["critical_batch"])
        yield int(batch), found["critical_batch"], found["critical_batch_error"]


if __name__ == "__main__":
    print(depth_table(), batch_table(), *critical(), sep="\n\n")
