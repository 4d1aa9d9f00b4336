"""How Adam's memories should follow batch and tokens: by the batch rule, or not at all.

    python benchmarks/beta_rules.py OUT.json --data TOKENS --target tokens=16 --slots 18
    python benchmarks/beta_rules.py OUT.json --data TOKENS --target width=2,depth=2,batch=8,tokens=4

and the second again with batch=32. The recipe is carried to the target (ratios to its base) under
each `beta_rule`, with its learning rates as planned and moved: a rule must win with the best of its
rates, not with one that happens to suit it. A target that OUT.json has is not trained again, and a
new one is added. docs/results/betas.md has the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import measured
from recipes_compared import paired
from regret import moved

from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.runner import Runner

FIRST_SEED = 8_100_000
RULES = ("power", "keep")
FOUND = measured.FOLDER / "beta-rules.json"


def found() -> dict[str, Any]:
    """What was measured of the recipe that ships, kept in the repository."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def table(of: Mapping[str, Any]) -> str:
    """Both rules at every target with every rate, and what keeping gains on the same seeds."""
    lines = [
        "| target | steps | r | learning rates | by the rule | kept | kept is lower by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in of["scales"]:
        scale = Scale(**row["scale"])
        losses = {(rule, octaves): each for rule, octaves, each in row["losses"]}
        for octaves in sorted({octaves for _, octaves in losses}):
            power, keep = losses["power", octaves], losses["keep", octaves]
            mean, low, high = paired(power, keep)
            lines.append(
                f"| {scale} | {scale.steps:,} | {row['memory_factor']:g} | {octaves:+g} octaves | "
                f"{statistics.fmean(power):.4f} | {statistics.fmean(keep):.4f} | "
                f"{mean:.3f} [{low:.3f}, {high:.3f}] |"
            )
    return "\n".join(lines)


def main() -> None:
    """Train all of them side by side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--target", required=True, type=Ratios.parse, metavar="AXIS=RATIO,...")
    parser.add_argument("--octaves", type=float, nargs="+", default=[-1.0, 0.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    recipe = Recipe.find(args.recipe)
    scale = recipe.base.times(args.target)
    about = {
        "recipe": args.recipe,
        "text": Manifest.load(Path(args.data)).digest(),
        "first_seed": FIRST_SEED,
    }
    kept = json.loads(args.out.read_text()) if args.out.exists() else about | {"scales": []}
    assert about.items() <= kept.items(), f"{args.out} is of another recipe, text or seed"
    if any(row["scale"] == scale.to_dict() for row in kept["scales"]):
        print(f"{args.out} has {scale}")
        return
    shape = Shape(head_dim=recipe.head_dim or 64)
    task = make_task(None, args.data, context=args.context, shape=shape)
    runner = Runner(task, slots=args.slots, device=args.device, compile=args.device != "cpu")
    by_rule = {rule: recipe.with_rules(beta_rule=rule) for rule in RULES}
    losses = {each: [float("inf")] * args.seeds for each in product(RULES, args.octaves)}
    trials = [
        runner.trial(moved(by_rule[rule], octaves), scale, FIRST_SEED + i, (rule, octaves, i))
        for (rule, octaves), i in product(losses, range(args.seeds))
    ]
    for outcome in runner.run(trials, scale, count=len(trials)):
        rule, octaves, i = outcome.key
        losses[rule, octaves][i] = outcome.loss
    kept["scales"].append(
        {
            "scale": scale.to_dict(),
            "memory_factor": by_rule["power"].rules.memory_factor(args.target),
            "losses": [[rule, octaves, each] for (rule, octaves), each in losses.items()],
        }
    )
    args.out.write_text(json.dumps(kept, indent=1))
    print(table(kept))


if __name__ == "__main__":
    main()
