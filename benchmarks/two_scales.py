"""Do values by module carry if their search trains at two scales, and is chosen along all axes?

Four searches of begins.py's base, half of whose trials train at twice the depth and tokens, beside
begins.py's own, which trained and were chosen near the base, and beside others at the base alone
that took as much FLOP and were chosen by the same ladder (docs/results/cpu.md has the commands):

    python benchmarks/two_scales.py --sites SITES0 SITES1 SITES2 SITES3 --long LONG0 LONG1
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import begins
import measured
from recipes_compared import paired

from completedp.evidence.figures.headline import GLOBAL, MODULE

DATA = measured.FOLDER / "two-scales.json.xz"
SITES, LONG, BASE = "at two scales", "at the base, as much FLOP", "at the base"
START = "shared global"
ARMS = (START, GLOBAL, MODULE)


def searches(way: str) -> list[dict[str, Any]]:
    """What base_gain.py wrote of one way to search, search by search."""
    return begins.searches() if way == BASE else measured.read(DATA)[way]


def means(way: str, arm: str, place: int) -> list[float]:
    """The mean loss of an arm at a scale, search by search."""
    return [each["scales"][place]["means"][arm] for each in searches(way)]


def gain(one: tuple[str, str], other: tuple[str, str], place: int) -> tuple[float, float, float]:
    """How far one way and arm end below another at a scale, in nats, with an interval of 95 % over
    the searches that both have."""
    mine, theirs = means(*one, place), means(*other, place)
    count = min(len(mine), len(theirs))
    return paired(theirs[:count], mine[:count])


GAINS = (
    ((SITES, MODULE), (SITES, START)),
    ((SITES, MODULE), (SITES, GLOBAL)),
    ((SITES, GLOBAL), (SITES, START)),
    ((SITES, MODULE), (BASE, MODULE)),
    ((SITES, GLOBAL), (BASE, GLOBAL)),
    ((LONG, MODULE), (LONG, START)),
    ((LONG, MODULE), (LONG, GLOBAL)),
    ((SITES, MODULE), (LONG, MODULE)),
    ((SITES, GLOBAL), (LONG, GLOBAL)),
)
"""What is compared with what: ways and arms."""


def losses_table() -> str:
    """Markdown: every search's mean losses at every scale."""
    ratios = [row["flops_ratio"] for row in searches(SITES)[0]["scales"]]
    titles = ("FLOP", "trained", "search", *ARMS)
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for place, ratio in enumerate(ratios):
        for way in (BASE, LONG, SITES):
            for number, losses in enumerate(
                zip(*(means(way, a, place) for a in ARMS), strict=True)
            ):
                cells = " | ".join(f"{loss:.4f}" for loss in losses)
                lines.append(f"| x{ratio:.0f} | {way} | {number} | {cells} |")
    return "\n".join(lines)


def gains_table() -> str:
    """Markdown: what ends below what, by how many nats."""
    ratios = [row["flops_ratio"] for row in searches(SITES)[0]["scales"]]
    titles = ("", "ends below", "searches", *(f"x{ratio:.0f}" for ratio in ratios))
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for one, other in GAINS:
        count = min(len(searches(way)) for way, _ in (one, other))
        found = [gain(one, other, place) for place in range(len(ratios))]
        cells = [f"{mean:.4f} [{low:.4f}, {high:.4f}]" for mean, low, high in found]
        names = [f"*{arm}* {way}" for way, arm in (one, other)]
        if one[0] == other[0]:
            names[1] = f"*{other[1]}*"
        lines.append(f"| {' | '.join([*names, str(count), *cells])} |")
    return "\n".join(lines)


def main() -> None:
    """Keep what is in the folders, if there are any; print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sites", nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--long", nargs="*", default=[], metavar="FOLDER")
    args = parser.parse_args()
    if args.sites:
        measured.write(DATA, {SITES: kept(args.sites), LONG: kept(args.long)})
    print(losses_table(), gains_table(), sep="\n\n")


def kept(folders: Sequence[str]) -> list[dict[str, Any]]:
    """What base_gain.py wrote there."""
    return [json.loads((Path(folder) / "base-gain.json").read_text()) for folder in folders]


if __name__ == "__main__":
    main()
