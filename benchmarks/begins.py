"""Where values by module begin, and what they gain over it: several searches of every arm.

Two searches of one kind differ by more than their seeds of training do, so the interval is over
searches. Each is a run of base_gain.py with a `--search-seed` of its own (docs/results/cpu.md has
the command), and this keeps what they wrote:

    python benchmarks/begins.py OUT0 OUT1 OUT2 OUT3
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measured
from recipes_compared import paired

from completedp.evidence.figures.headline import BEGINS, FROM_UNIFORM, GLOBAL, MODULE, UNIFORM

DATA = measured.FOLDER / "begins.json.xz"
BEGUN = {MODULE: "shared global", FROM_UNIFORM: "shared uniform"}
GAINS = (
    *BEGUN.items(),
    (GLOBAL, BEGUN[MODULE]),
    (UNIFORM, BEGUN[FROM_UNIFORM]),
    *BEGINS.items(),
    (UNIFORM, GLOBAL),
)
"""Which arm is compared with which."""


def searches() -> list[dict[str, Any]]:
    """What base_gain.py wrote, search by search."""
    return measured.read(DATA)["searches"]


def gains() -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """By arm and what it is compared with: how far below it ends at every scale, in nats, with an
    interval of 95 % over searches."""
    means = [[row["means"] for row in each["scales"]] for each in searches()]
    return {
        (arm, other): [
            paired([of[other] for of in at], [of[arm] for of in at])
            for at in zip(*means, strict=True)
        ]
        for arm, other in GAINS
    }


def losses_table() -> str:
    """Markdown: every search's mean losses at every scale."""
    rows = [(number, row) for number, each in enumerate(searches()) for row in each["scales"]]
    arms = list(rows[0][1]["means"])
    lines = [f"| FLOP | search | {' | '.join(arms)} |", "| --- " * (len(arms) + 2) + "|"]
    rows.sort(key=lambda pair: pair[1]["flops_ratio"])
    for number, row in rows:
        cells = [f"{row['means'][arm]:.4f}" for arm in arms]
        lines.append(f"| x{row['flops_ratio']:.0f} | {number} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gains_table() -> str:
    """Markdown: what is below what, by how many nats."""
    ratios = [row["flops_ratio"] for row in searches()[0]["scales"]]
    lines = [
        f"| | ends below | {' | '.join(f'x{ratio:.0f}' for ratio in ratios)} |",
        "| --- " * (len(ratios) + 2) + "|",
    ]
    for (arm, other), at in gains().items():
        cells = [f"{mean:.4f} [{low:.4f}, {high:.4f}]" for mean, low, high in at]
        lines.append(f"| *{arm}* | *{other}* | {' | '.join(cells)} |")
    return "\n".join(lines)


def worth() -> float:
    """Nats for a factor of e in tokens at the largest scale, by *global* trained for longer."""
    last = [each["scales"][-1] for each in searches()]
    (length,) = last[0]["longer"]
    falls = [row["means"][GLOBAL] - statistics.fmean(row["longer"][length]) for row in last]
    return statistics.fmean(falls) / math.log(float(length))


def main(folders: Sequence[str]) -> None:
    """Keep what is in the folders, if there are any; print the tables."""
    if folders:
        files = [Path(folder) / "base-gain.json" for folder in folders]
        measured.write(DATA, {"searches": [json.loads(file.read_text()) for file in files]})
    print(losses_table(), gains_table(), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
