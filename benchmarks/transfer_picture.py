"""Draw docs/width.svg, the README's picture: where the best learning rate is, width by width.

    python benchmarks/transfer_picture.py

From the measurements of `completedp figure lr-width --size gpu` in docs/results.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from readings import RESULTS, ROOT, curves

from completedp.evidence.plots import pyplot, svg_text

PICTURE = ROOT / "docs" / "width.svg"
PANELS = {
    "without the rules": {"sp": (1, 2, 4, 8)},
    "with the rules": {"completedp": (1, 2, 4, 8), "completedp, from x2 on": (8,)},
}
"""Lines of the figure, and which of their factors: the last line begins at twice the width."""
COLOURS = {64: "#9ecae1", 128: "#6baed6", 256: "#4292c6", 512: "#2171b5", 1024: "#08306b"}


def main() -> None:
    """Two panels: a curve a width, its fitted best point marked."""
    written = json.loads((RESULTS / "lr-width.json").read_text(encoding="utf-8"))
    setting = written["setting"]
    first, base = math.log2(setting["values"]["lr"]), setting["base"]["width"]
    rows: dict[Any, Any] = {(r["line"], r["factor"]): r for r in written["numbers"]["curves"]}
    measured = curves("lr-width")
    plt = pyplot()
    figure, axes = plt.subplots(
        1, 2, figsize=(7.6, 3.0), sharex=True, sharey=True, layout="constrained"
    )
    for axis, (title, lines) in zip(axes, PANELS.items(), strict=True):
        for line, factor in [(name, factor) for name, each in lines.items() for factor in each]:
            width = base * factor * (2 if "from x2" in line else 1)
            losses = sorted(measured[line, factor].items())
            octaves = [first + octave for octave, _ in losses]
            means = [float(np.mean(list(seeds.values()))) for _, seeds in losses]
            axis.plot(octaves, means, color=COLOURS[width], label=f"width {width:,}")
            best = rows[line, factor]
            axis.plot(first + best["octaves"], best["loss"], "o", color=COLOURS[width])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("log2 of the learning rate at the base", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("validation loss", fontsize=9)
    axes[1].legend(fontsize=8, loc="upper left")
    PICTURE.write_text(svg_text(figure), encoding="utf-8")


if __name__ == "__main__":
    main()
