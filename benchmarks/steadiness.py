"""How runs of one recipe differ between seeds, and where its learning rate lands. On a GPU.

    python benchmarks/steadiness.py DATA benchmarks/data/transfer-search OUT.json --part seeds
    python benchmarks/steadiness.py DATA benchmarks/data/transfer-search OUT.json --part axes

Two recipes of transfer_search.py. `seeds`: some warm-ups and learning rates on many seeds, at its
base and at twice the width, depth and batch with four times the tokens. `axes`: higher learning
rates along each axis alone and along all, to see on which the best one moves.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from transfer_search import BASE, FRESH, UNSEEN, Lab, View

from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios

RATIOS = {
    "base": Ratios(),
    "width": Ratios(width=2),
    "depth": Ratios(depth=2),
    "batch": Ratios(batch=2, tokens=2),
    "tokens": Ratios(tokens=4),
    "x2": UNSEEN["x2"],
}
UPWARDS = [(0.02, lr) for lr in (0.0, 0.5, 1.0, 1.5)]
PARTS = {
    "seeds": {
        "base": ([(w, lr) for w in (0.02, 0.1, 0.3) for lr in (0.0, -1.0, -2.0)], 16),
        "x2": ([(0.02, 0.0), (0.1, 0.0), (0.3, 0.0), (0.02, -1.0), (0.1, -1.0)], 6),
    },
    "axes": {where: (UPWARDS, 3 if where == "x2" else 4) for where in RATIOS},
}
"""(warm-up, log2 of the learning rate's factor) and the number of seeds, at each scale."""


def variant(recipe: Recipe, warmup: float, lr_log2: float) -> Recipe:
    """The recipe with another warm-up and all learning rates moved."""
    moved = recipe.with_values(lr=recipe.values.lr * 2.0**lr_log2)
    return replace(moved, schedule=replace(recipe.schedule, warmup=warmup))


def main() -> None:
    """Train all variants at both scales; a table, and every loss in a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("searches", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=tuple(PARTS), required=True)
    args = parser.parse_args()
    tuned = Recipe.load(args.searches / "globals.json")
    found = np.load(args.searches / "type-multi-0.npz")
    recipes = {"start": tuned, "type-multi-0": View(tuned, "type").recipe_at(found["recommended"])}
    lab = Lab(args.data, 32, tiny=False)
    rows = []
    for where, (grid, count) in PARTS[args.part].items():
        scale = BASE.times(RATIOS[where])
        cells = [(name, *cell) for name in recipes for cell in grid]
        seeds = range(count)
        wanted = [
            (variant(recipes[n], w, lr), FRESH + 100 + s) for n, w, lr in cells for s in seeds
        ]
        began = time.monotonic()
        losses = np.array(lab.losses(wanted, scale, 32)).reshape(len(cells), -1)
        print(f"{where}: {len(wanted)} runs in {time.monotonic() - began:.0f} s")
        for (name, warmup, lr), own in zip(cells, losses, strict=True):
            ended = own[np.isfinite(own)]
            print(
                f"  {name:<13} warm-up {warmup:<4} lr {2**lr:<5.3g} {ended.mean():.4f}, "
                f"between seeds {ended.std(ddof=1):.4f}, diverged {len(own) - len(ended)}",
                flush=True,
            )
            values = [float(x) if np.isfinite(x) else None for x in own]
            rows.append(
                {"where": where, "recipe": name, "warmup": warmup, "lr": 2**lr, "losses": values}
            )
        args.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
