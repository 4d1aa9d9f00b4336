"""Does the best learning rate stay put over x8 in width, depth, batch and tokens? On a GPU.

    python benchmarks/transfer.py DATA OUT

Makes a small recipe of global values (OUT/recipe.json) and sweeps its learning rate over ten
octaves, along each axis by 2, 4 and 8, with three seeds and the rules of completedp, mup and sp.
DATA is a folder made by `completedp data` with a BPE of 4096 tokens. It goes on where it stopped;
about 20 minutes on one H200. Every trial is in data/transfer-trials.jsonl, and docs/transfer.md's
tables are made of them (`make docs`).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from completedp.evidence.config import SweepGrid
from completedp.evidence.sweep import Line, Point, judge, sweep
from completedp.lm.shape import Shape
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

BASE = Scale(width=64, depth=2, batch=16 * 256, tokens=16 * 256 * 1024)
TRIALS = Path(__file__).parent / "data" / "transfer-trials.jsonl"
RULES = ("completedp", "mup", "sp")
GRID = SweepGrid(
    octaves=tuple(float(octave) for octave in range(-4, 6)),
    axes=("width", "depth", "batch", "tokens"),
    factors=(1, 2, 4, 8),
    parameterisations=RULES,
)


def base_recipe(data: str) -> Recipe:
    """Usual values; the embedding starts near 1, so that the first blocks do not drown it."""
    task = make_task(None, data, shape=Shape(head_dim=32))
    recipe = task.recipe(BASE, lr=2.0**-7, weight_decay=0.05, eps=1e-10, init_std=0.1)
    log2 = {"init_std/type/embedding": 3.0}
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def lines() -> list[Line]:
    """Every curve's verdict, from the trials of the file."""
    done: dict[Point, float] = {}
    for text in TRIALS.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        loss = row.pop("loss")
        row["octaves"] = tuple(row["octaves"])
        done[Point(**row)] = math.inf if loss is None else loss
    return judge(GRID, done)


def drift_table(found: list[Line]) -> str:
    """Markdown: drift, best loss and cost at every scale, by rules."""
    by = {(line.parameterisation, line.axis, line.factor): line for line in found}
    rows = ["| scale | " + " | ".join(f"{name} | | " for name in RULES) + "|"]
    rows.append("| --- " * (1 + 3 * len(RULES)) + "|")
    rows.append("| | " + "drift | best | cost | " * len(RULES))
    for axis, factor in GRID.scales:
        cells = ["base" if factor == 1 else f"{axis} x{factor}"]
        for name in RULES:
            line = by[name, axis, factor]
            if name == "sp" and axis not in ("width", "base"):
                assert line.losses == by["mup", axis, factor].losses
                cells += ["as mup", "", ""]
                continue
            drift = "" if factor == 1 or line.drift is None else f"{line.drift[0]:+.2f}"
            cost = "" if factor == 1 or line.cost is None else f"{line.cost:.3f}"
            cells += [drift, f"{line.optimum.loss:.3f}", cost]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(row.replace("  ", " ").rstrip() for row in rows)


def batch_table(found: list[Line]) -> str:
    """Markdown: what a larger batch costs at learning rates up to the base's best, in nats."""
    means = {}
    for line in found:
        if line.axis in ("base", "batch"):
            losses = np.array(line.losses, dtype=float).mean(axis=-1)  # None is NaN: diverged
            means[line.parameterisation, line.factor] = losses
    base = means["completedp", 1]
    shown = range(int(np.argmin(base)) + 1)
    octaves = " | ".join(f"{GRID.octaves[i]:+.0f}" for i in shown)
    rows = [f"| octaves from 2^-7 | {octaves} |", "| --- " * (1 + len(shown)) + "|"]
    for factor in GRID.factors[1:]:
        for name, said in (("completedp", "by the rule"), ("mup", "nothing scaled")):
            above = means[name, factor] - base
            cells = " | ".join(f"{above[i]:+.2f}" for i in shown)
            rows.append(f"| batch x{factor}, {said} | {cells} |")
    return "\n".join(rows)


def main() -> None:
    """Sweep, or go on, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    base_recipe(arguments.data).save(out / "recipe.json")
    found = sweep(
        None,
        data=arguments.data,
        out=out,
        recipe=out / "recipe.json",
        octaves=GRID.octaves,
        axis=GRID.axes,
        factors=GRID.factors,
        parameterisations=RULES,
    )
    print(found)


if __name__ == "__main__":
    main()
