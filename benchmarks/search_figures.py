r"""Draw docs/search.svg: engines on a surrogate of real training, and on real training.

    python benchmarks/search_engines.py --landscapes surrogate \
        --engines trust-region cma-es recombine --in-flight 100 \
        --seeds $(seq 0 14) --json > surrogate.json
    python benchmarks/search_figures.py surrogate.json benchmarks/data/search-real.json \
        docs/search.svg

The second file is `real.json` of benchmarks/search_real.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from completedp.evidence.plots import pyplot, svg_text


def draw_surrogate(panel: Any, found: dict[str, Any]) -> None:
    """Medians over seeds, the middle half shaded."""
    for name in dict.fromkeys(run["engine"] for run in found["runs"]):
        runs = [run["left"] for run in found["runs"] if run["engine"] == name]
        looks = [int(look) for look in runs[0]]
        parts = [statistics.quantiles([run[str(n)] for run in runs], n=4) for n in looks]
        (line,) = panel.plot(looks, [part[1] for part in parts], label=name)
        low, high = [part[0] for part in parts], [part[2] for part in parts]
        panel.fill_between(looks, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    panel.set_title("surrogate of real trials, 100 in flight", fontsize=10)
    panel.set_ylabel("% of the gap to the optimum left")


def draw_real(panel: Any, found: dict[str, Any]) -> None:
    """What each search would recommend, measured on fresh seeds; seeds of the search as dots."""
    fresh = found["fresh"]
    start = fresh["start"]["mean"]
    for way in ("trust-region", "recombine"):
        named = [
            name.split(", seed ")[1].split(", ")
            for name in fresh
            if name.startswith(f"{way}, seed ")
        ]
        named = [(int(after), seed) for seed, after in named]
        looks = sorted({after for after, _ in named})
        values = [
            [fresh[f"{way}, seed {seed}, {n}"]["mean"] for after, seed in named if after == n]
            for n in looks
        ]
        (line,) = panel.plot(
            [0, *looks], [start, *map(statistics.mean, values)], "-o", markersize=4, label=way
        )
        for n, each in zip(looks, values, strict=True):
            panel.plot([n] * len(each), each, ".", color=line.get_color(), alpha=0.6)
    panel.set_title("real training, 64 in flight", fontsize=10)
    panel.set_ylabel("validation loss on fresh seeds")


def main() -> None:
    """Two panels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("surrogate", type=Path)
    parser.add_argument("real", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    figure, panels = pyplot().subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    draw_surrogate(panels[0], json.loads(args.surrogate.read_text()))
    draw_real(panels[1], json.loads(args.real.read_text()))
    for panel in panels:
        panel.set_xlabel("trials")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    args.out.write_text(svg_text(figure))


if __name__ == "__main__":
    main()
