"""Does the best learning rate stay put over x8 in width, depth, batch and tokens? On a GPU.

    python benchmarks/transfer.py DATA OUT

Makes a small recipe of global values (OUT/recipe.json) and sweeps its learning rate over ten
octaves, along each axis by 2, 4 and 8, with three seeds and the rules of completedp, mup and sp.
DATA is a folder made by `completedp data` with a BPE of 4096 tokens. It goes on where it stopped;
about 20 minutes on one H200. The result is docs/transfer.md's table and plot.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from completedp.evidence.config import SweepConfig
from completedp.evidence.sweep import sweep_from
from completedp.lm.shape import Shape
from completedp.studies.config import WorkerConfig
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

BASE = Scale(width=64, depth=2, batch=16 * 256, tokens=16 * 256 * 1024)


def base_recipe(data: str) -> Recipe:
    """Usual values; the embedding starts near 1, so that the first blocks do not drown it."""
    task = make_task(None, data, shape=Shape(head_dim=32))
    recipe = task.recipe(BASE, lr=2.0**-7, weight_decay=0.05, eps=1e-10, init_std=0.1)
    log2 = {"init_std/type/embedding": 3.0}
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def main() -> None:
    """Sweep, or go on, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    base_recipe(arguments.data).save(out / "recipe.json")
    config = SweepConfig(
        data=arguments.data,
        out=str(out),
        recipe=str(out / "recipe.json"),
        octaves=tuple(float(octave) for octave in range(-4, 6)),
        axes=("width", "depth", "batch", "tokens"),
        factors=(1, 2, 4, 8),
        parameterisations=("completedp", "mup", "sp"),
    )
    print(sweep_from(config, WorkerConfig()))


if __name__ == "__main__":
    main()
