"""Tune the global values of the recipe that ships with the package, on a GPU.

    python benchmarks/default_recipe.py DATA OUT [--trials 60] [--seconds 300]

Random search over the learning rate, weight decay, eps, betas and three initialisation scales of
the base model, then the best few again on two fresh seeds each; what is best on those is written
to OUT/recipe.json, every trial to OUT/trials.json. DATA is a folder made by `completedp data`
with a BPE of 4096 tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from completedp.theory.recipe import Recipe
from completedp.training.config import TrainConfig
from completedp.training.loop import train

FINALISTS, FRESH_SEEDS = 6, (101, 102)


def draw(rng: random.Random) -> dict[str, float]:
    """A point of the search."""
    return {
        "lr": 2.0 ** rng.uniform(-9.5, -5.5),
        "weight_decay": 10 ** rng.uniform(-2.5, 0.0),
        "eps": 10 ** rng.uniform(-12, -7),
        "beta1": 1 - 10 ** rng.uniform(-1.3, -0.7),
        "beta2": 1 - 10 ** rng.uniform(-2.0, -1.0),
        "init_std": 2.0 ** rng.uniform(-7, -4),
        "embedding": rng.uniform(-1, 6),
        "unembedding": rng.uniform(-4, 1),
    }


def recipe_at(point: dict[str, float]) -> Recipe:
    """The shipped recipe's base with the point's values."""
    shipped = Recipe.default()
    names = ("lr", "weight_decay", "eps", "beta1", "beta2", "init_std")
    values = replace(shipped.values, **{name: point[name] for name in names})
    log2 = {f"init_std/type/{t}": point[t] for t in ("embedding", "unembedding")}
    return replace(
        shipped,
        hyperparameters=replace(shipped.hyperparameters, values=values, log2=log2),
        evidence=None,  # of other values
    )


def loss(point: dict[str, float], data: str, seed: int) -> float:
    """Validation loss of one run; infinite if it diverges."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=data, out=folder, seed=seed, checkpoint_every=0, log_every=1000, compile=True
        )
        result = train(config, recipe=recipe_at(point), quiet=True)
    return float("inf") if result.valid_loss is None else result.valid_loss


def main() -> None:
    """Search, re-measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    rng, began = random.Random(0), time.monotonic()
    start = {"lr": 2.0**-8, "weight_decay": 0.1, "eps": 1e-8, "beta1": 0.9, "beta2": 0.95}
    points = [start | {"init_std": 0.02, "embedding": e, "unembedding": 0.0} for e in (0.0, 5.0)]
    trials = []
    for index in range(args.trials):
        point = points[index] if index < len(points) else draw(rng)
        trials.append({"point": point, "seed": index, "loss": loss(point, args.data, index)})
        print(f"{index} {trials[-1]['loss']:.4f} {time.monotonic() - began:.0f}s", flush=True)
        if time.monotonic() - began > args.seconds:
            break
    best = sorted(trials, key=lambda trial: trial["loss"])[:FINALISTS]
    for trial in [*best, *trials[: len(points)]]:
        trial["fresh"] = [loss(trial["point"], args.data, seed) for seed in FRESH_SEEDS]
        print(f"{trial['loss']:.4f} fresh {trial['fresh']} {trial['point']}", flush=True)
    winner = min(best, key=lambda trial: statistics.mean(trial["fresh"]))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "trials.json").write_text(json.dumps(trials, indent=1))
    recipe = replace(
        recipe_at(winner["point"]),
        provenance={
            "tuned_by": "benchmarks/default_recipe.py",
            "trials": len(trials),
            "valid_loss": statistics.mean(winner["fresh"]),
            "text": "65M tokens of English (Wikipedia, books, articles), BPE of 4096 tokens",
        },
    )
    recipe.save(args.out / "recipe.json")


if __name__ == "__main__":
    main()
