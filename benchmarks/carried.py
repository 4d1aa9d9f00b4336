"""What recipes come to where no search has trained, side by side on the same fresh seeds.

    python benchmarks/carried.py OUT.json --data TOKENS --seeds 3 \
        --recipes uniform=benchmarks/data/headline/uniform.json module=found.json \
        --targets width=4 batch=4 tokens=8 width=4,depth=2,batch=4,tokens=24

Targets are in ratios to the base, which the recipes share; `--octaves -0.5 0.5` trains them with
all learning rates moved, too. A file has every loss: one that it has is not trained again, whatever
was asked for with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from variants import moved, runner_of

from completedp.lm.tokens import Manifest
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.runner import Runner

FIRST_SEED = 9_000_000

Losses = dict[str, dict[str, float]]
"""By name and seed."""


def losses_at(found: dict[str, Any], scale: Scale) -> Losses:
    """What a file has of a scale: its own place there, which what comes is added to."""
    for row in found["scales"]:
        if row["scale"] == scale.to_dict():
            return row["losses"]
    found["scales"].append({"scale": scale.to_dict(), "losses": {}})
    return found["scales"][-1]["losses"]


def candidates(recipes: Iterable[str], octaves: Iterable[float]) -> dict[str, Recipe]:
    """NAME=FILE as recipes by name, and those with their rates moved."""
    found: dict[str, Recipe] = {}
    for text in recipes:
        name, _, file = text.rpartition("=")
        recipe = Recipe.find(file)
        if (name or file) in found:
            raise SystemExit(f"two recipes are called {name or file}: name them, NAME=FILE")
        found[name or file] = recipe
        found |= {f"{name or file} {by:+g}": moved(recipe, lr=by) for by in octaves}
    return found


def check_same(kept: dict[str, Any], recipes: dict[str, Recipe]) -> None:
    """Note which recipe has which name; one of that name whose losses a file has must be it."""
    known = kept.setdefault("recipes", {})
    for name, recipe in recipes.items():
        bare = replace(recipe, evidence=None, provenance={}).to_dict()
        digest = hashlib.blake2b(json.dumps(bare).encode(), digest_size=8).hexdigest()
        if known.setdefault(name, digest) != digest:
            raise SystemExit(f"{name} was another recipe when its losses were measured: rename it")


def train(
    runner: Runner, recipes: dict[str, Recipe], scale: Scale, seeds: int, known: Losses
) -> None:
    """Add the losses that are not known yet."""
    trials = [
        runner.trial(recipe, scale, FIRST_SEED + seed, (name, str(seed)))
        for (name, recipe), seed in product(recipes.items(), range(seeds))
        if str(seed) not in known.get(name, {})
    ]
    for outcome in runner.run(trials, scale, count=len(trials)) if trials else ():
        name, seed = outcome.key
        known.setdefault(name, {})[seed] = outcome.loss


def main() -> None:
    """Train what is missing, target by target, and print the means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--recipes", nargs="+", required=True, metavar="NAME=FILE")
    parser.add_argument("--targets", nargs="+", required=True, type=Ratios.parse)
    parser.add_argument("--octaves", nargs="*", type=float, default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    recipes = candidates(args.recipes, args.octaves)
    first = next(iter(recipes.values()))
    if any((each.base, each.head_dim) != (first.base, first.head_dim) for each in recipes.values()):
        parser.error("the recipes are of several bases: their targets would not be the same")
    about = {"text": Manifest.load(Path(args.data)).digest(), "first_seed": FIRST_SEED}
    kept = json.loads(args.out.read_text()) if args.out.exists() else about | {"scales": []}
    if not about.items() <= kept.items():
        parser.error(f"{args.out} is of another text")
    check_same(kept, recipes)
    runner = runner_of(args, first)
    for ratios in args.targets:
        scale = first.base.times(ratios)
        known = losses_at(kept, scale)
        train(runner, recipes, scale, args.seeds, known)
        args.out.write_text(json.dumps(kept, indent=1))
        asked = {n: [known[n][str(seed)] for seed in range(args.seeds)] for n in recipes}
        means = (f"{name} {statistics.fmean(losses):.4f}" for name, losses in asked.items())
        print(f"{scale}: {', '.join(means)}", flush=True)


if __name__ == "__main__":
    main()
