"""How Adam's memories should follow a batch that outgrows the tokens: by the rule, or not at all.

    python benchmarks/beta_rules.py OUT.json --data TOKENS --recipe default \
        --target width=2,depth=2,tokens=4 --batches 8 32 --octaves -1 0 1

The recipe is carried to one model and number of tokens with every batch, under each `beta_rule`, with
its learning rates as planned and moved: a rule must win with the best of its rates, not with one that
happens to suit it. Ratios are to the recipe's base. All runs of one batch train side by side.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

from regret import moved

from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios
from completedp.training.runner import Runner

FIRST_SEED = 8_100_000
RULES = ("power", "keep")


def main() -> None:
    """Train all of them, and write after every batch what is known by then."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--target", required=True, type=Ratios.parse, metavar="AXIS=RATIO,...")
    parser.add_argument("--batches", type=float, nargs="+", required=True, metavar="RATIO")
    parser.add_argument("--octaves", type=float, nargs="+", default=[-1.0, 0.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    recipe = Recipe.find(args.recipe)
    task = make_task(
        None, args.data, context=args.context, shape=Shape(head_dim=recipe.head_dim or 64)
    )
    runner = Runner(task, slots=args.slots, device=args.device, compile=args.device != "cpu")
    kept = {
        "recipe": args.recipe,
        "text": Manifest.load(Path(args.data)).digest(),
        "first_seed": FIRST_SEED,
        "batches": [],
    }
    for batch in args.batches:
        ratios = replace(args.target, batch=batch)
        scale = recipe.base.times(ratios)
        by_rule = {rule: recipe.with_rules(beta_rule=rule) for rule in RULES}
        losses = {each: [float("inf")] * args.seeds for each in product(RULES, args.octaves)}
        trials = [
            runner.trial(moved(by_rule[rule], octaves), scale, FIRST_SEED + i, (rule, octaves, i))
            for (rule, octaves), i in product(losses, range(args.seeds))
        ]
        for outcome in runner.run(trials, scale, count=len(trials)):
            rule, octaves, i = outcome.key
            losses[rule, octaves][i] = outcome.loss
        print(f"batch x{batch:g}: {scale}, memories by {recipe.rules.memory_factor(ratios):.3g}")
        for (rule, octaves), each in losses.items():
            print(f"  {rule:6} {octaves:+g} octaves  {statistics.fmean(each):.4f}  {each}")
        kept["batches"].append(
            {
                "ratio": batch,
                "scale": scale.to_dict(),
                "memory_factor": recipe.rules.memory_factor(ratios),
                "losses": [[rule, octaves, each] for (rule, octaves), each in losses.items()],
            }
        )
        args.out.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
