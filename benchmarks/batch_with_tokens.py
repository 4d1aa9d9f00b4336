"""Tokens that grow by the batch alone: does the best learning rate stay, and from which base on?

    completedp data stdlib --out stdlib --tokenizer bytes
    python benchmarks/batch_with_tokens.py OUT.json --data stdlib --context 64 --slots 8 \
        --recipe benchmarks/data/decay-base.json --steps 400 --times 8

Batch and tokens so many times the base's: the steps are the base's, and by the paper's rules every
value is too. Less noise in as many steps may ask for a higher rate all the same. `--times 1` is the
base. Again with other `--steps`, of a shorter or longer base, all in one file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import measured
import numpy as np
from variants import measure, moved, recipe_parser

from completedp.evidence.figures.figure import spread
from completedp.evidence.optimum import find_optimum, loss_at
from completedp.theory.recipe import Recipe
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios

FIRST_SEED = 8_500_000
FOUND = measured.FOLDER / "batch-with-tokens.json"
OCTAVES = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


def found() -> dict[str, Any]:
    """What was measured, kept in the repository."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def rows(of: Mapping[str, Any]) -> Iterator[tuple[int, int, float, float, float]]:
    """Steps, times the base's batch, and from the base: how far the best rate moves, half of its
    interval, and what keeping the base's best costs."""
    by_steps: dict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for row in of["scales"]:
        scale, losses = row["scale"], dict(row["losses"])
        found = np.array([losses[octave] for octave in sorted(losses)])
        by_steps[scale["tokens"] // scale["batch"]][scale["batch"]] = found
    grid = [np.array(OCTAVES)]
    for steps, curves in sorted(by_steps.items()):
        base = min(curves)
        first = find_optimum(grid, curves[base])
        for batch, losses in sorted(curves.items()):
            best = find_optimum(grid, losses)
            if not (best.octaves and best.errors and first.octaves and first.errors):
                yield steps, batch // base, math.nan, math.nan, math.nan
                continue
            half = spread([best.errors[0], first.errors[0]], losses.shape[1])
            cost = loss_at(grid, losses, first.octaves) - (best.loss or math.nan)
            yield steps, batch // base, best.octaves[0] - first.octaves[0], half, max(0.0, cost)


def table(of: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| steps of the base | batch and tokens | best rate moves by, octaves | keeping it costs |",
        "| --- | --- | --- | --- |",
    ]
    for steps, times, drift, half, cost in rows(of):
        if times > 1:
            lines.append(f"| {steps:,} | x{times} | {drift:+.2f} +- {half:.2f} | {cost:.4f} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """What it is told."""
    found = recipe_parser((__doc__ or "").split("\n")[0])
    found.add_argument("--steps", type=int, required=True, help="of the base")
    found.add_argument("--times", type=float, required=True, help="the base's batch and tokens")
    return found


def main() -> None:
    """Train one base at one of its batches."""
    args = parser().parse_args()
    args.target = Ratios(batch=args.times, tokens=args.times)

    def variants(recipe: Recipe) -> dict[tuple[Any, ...], Recipe]:
        recipe = recipe.with_rules(**vars(Rules()))
        return {(octave,): moved(recipe, lr=octave) for octave in OCTAVES}

    print(table(measure(args, variants, FIRST_SEED)))


if __name__ == "__main__":
    main()
