"""Draw docs/width.svg, the README's picture: where the best learning rate is, width by width.

    python benchmarks/transfer_picture.py

From the trials in benchmarks/data/transfer-trials.jsonl (`benchmarks/transfer.py` made them).
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

from completedp.evidence.plots import pyplot, svg_text

ROOT = Path(__file__).parent.parent
TRIALS = ROOT / "benchmarks" / "data" / "transfer-trials.jsonl"
PICTURE = ROOT / "docs" / "width.svg"
BASE_WIDTH, BASE_LOG2_LR = 64, -7
PANELS = {"sp": "without the rules", "completedp": "with the rules"}
COLOURS = ("#9ecae1", "#4292c6", "#2171b5", "#08306b")


def losses(parameterisation: str) -> dict[int, dict[float, float]]:
    """Mean loss over seeds by width and log2 of the learning rate; none where a seed diverged."""
    found: dict[tuple[int, float], list[float | None]] = defaultdict(list)
    for line in TRIALS.read_text().splitlines():
        trial = json.loads(line)
        if trial["axis"] in ("base", "width") and trial["parameterisation"] == parameterisation:
            (octave,) = trial["octaves"]
            key = BASE_WIDTH * trial["factor"], BASE_LOG2_LR + octave
            found[key].append(trial["loss"])
    curves: dict[int, dict[float, float]] = defaultdict(dict)
    for (width, octave), seeds in sorted(found.items()):
        ended = [loss for loss in seeds if loss is not None]
        if len(ended) == len(seeds):
            curves[width][octave] = mean(ended)
    return dict(curves)


def main() -> None:
    """Two panels: a curve a width, its best point marked."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 2.9), sharey=True, layout="constrained")
    for axis, (parameterisation, title) in zip(axes, PANELS.items(), strict=True):
        for (width, curve), colour in zip(losses(parameterisation).items(), COLOURS, strict=True):
            axis.plot(list(curve), list(curve.values()), color=colour, label=f"width {width}")
            best = min(curve, key=lambda octave: curve[octave])
            axis.plot(best, curve[best], "o", color=colour)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("log2 of the learning rate at the base", fontsize=9)
        axis.set_ylim(4.25, 5.75)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("validation loss", fontsize=9)
    axes[1].legend(fontsize=8)
    PICTURE.write_text(svg_text(figure), encoding="utf-8")


if __name__ == "__main__":
    main()
