"""Variants of a recipe at one target, side by side on the same seeds: what two experiments share.

A file holds the losses of several targets. One that it has is not trained again, and a new one is
added: {"recipe", "text", "first_seed", "scales": [{"scale", "losses": [[*variant, losses], ...]}]}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios
from completedp.training.runner import Runner


def moved(recipe: Recipe, **octaves: float) -> Recipe:
    """The recipe with every value of these kinds times 2**octaves: `moved(recipe, lr=-1)`."""
    tuned = recipe.hyperparameters
    log2 = dict(tuned.log2)
    for tunable, by in octaves.items():
        log2[f"{tunable}/global"] = log2.get(f"{tunable}/global", 0.0) + by
    return replace(recipe, hyperparameters=replace(tuned, log2=log2), evidence=None)


def target_parser(description: str) -> argparse.ArgumentParser:
    """What an experiment at one target is told."""
    parser = recipe_parser(description)
    parser.add_argument("--target", required=True, type=Ratios.parse, metavar="AXIS=RATIO,...")
    return parser


def recipe_parser(description: str) -> argparse.ArgumentParser:
    """What every experiment with a recipe is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser


def runner_of(args: argparse.Namespace, recipe: Recipe) -> Runner:
    """What trains the reference model with a recipe's size of heads."""
    shape = Shape(head_dim=recipe.head_dim or 64)
    task = make_task(None, args.data, context=args.context, shape=shape)
    return Runner(task, slots=args.slots, device=args.device, compile=args.compile)


def measure(
    args: argparse.Namespace,
    variants: Callable[[Recipe], Mapping[tuple[Any, ...], Recipe]],
    first_seed: int,
) -> dict[str, Any]:
    """Train a recipe's variants at the target, and add them to the file.

    `args.steps`, if there are any, are the base's in place of the recipe's.
    """
    recipe = Recipe.find(args.recipe)
    if steps := getattr(args, "steps", None):
        recipe = replace(recipe, base=replace(recipe.base, tokens=recipe.base.batch * steps))
    scale = recipe.base.times(args.target)
    text = Manifest.load(Path(args.data)).digest()
    about = {"recipe": args.recipe, "text": text, "first_seed": first_seed}
    kept = json.loads(args.out.read_text()) if args.out.exists() else about | {"scales": []}
    if not about.items() <= kept.items():
        raise SystemExit(f"{args.out} is of another recipe, text or seed")
    if any(row["scale"] == scale.to_dict() for row in kept["scales"]):
        return kept
    runner, recipes = runner_of(args, recipe), variants(recipe)
    losses = {name: [float("inf")] * args.seeds for name in recipes}
    trials = [
        runner.trial(recipes[name], scale, first_seed + i, (name, i))
        for name, i in product(recipes, range(args.seeds))
    ]
    for outcome in runner.run(trials, scale, count=len(trials)):
        name, i = outcome.key
        losses[name][i] = outcome.loss
    rows = [[*name, each] for name, each in losses.items()]
    kept["scales"].append({"scale": scale.to_dict(), "losses": rows})
    args.out.write_text(json.dumps(kept, indent=1))
    return kept
