"""What is lost by never tuning at the target: a recipe there, with every learning rate moved.

    python benchmarks/regret.py OUT.json --data TOKENS --recipe default \
        --target width=4,depth=2,batch=4,tokens=8 --octaves -1 -0.5 0 0.5 1

The target is in ratios to the recipe's base. The regret is the mean loss with the recipe's own
rates less that of the best ones, on the same seeds: the noise of runs that share a seed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import measured
from recipes_compared import paired
from variants import moved, runner_of, target_parser

from completedp.theory.recipe import Recipe

FIRST_SEED = 8_000_000
FOUND = measured.FOLDER / "regret.json"


def regret(losses: Mapping[float, Sequence[float]]) -> tuple[float, float, float]:
    """What the best of the rates gains over the recipe's own, by seed, and an interval of 95 %."""
    best = min(losses, key=lambda octaves: statistics.fmean(losses[octaves]))
    return paired(losses[0.0], losses[best])


def found() -> dict[str, Any]:
    """What was measured of the recipe that ships, kept in the repository."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def table(of: Mapping[str, Any]) -> str:
    """The mean loss for every rate, and the gain over the recipe's own on the same seeds."""
    losses = dict(of["losses"])
    lines = ["| learning rates | loss | gain |", "| --- | --- | --- |"]
    for octaves, each in losses.items():
        mean, low, high = paired(losses[0.0], each)
        gain = f"{mean:.4f} [{low:.4f}, {high:.4f}]" if octaves else ""
        lines.append(f"| {octaves:+g} octaves | {statistics.fmean(each):.4f} | {gain} |")
    return "\n".join(lines)


def main() -> None:
    """Train all of them side by side."""
    parser = target_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--octaves", type=float, nargs="+", default=[-1.0, -0.5, 0.0, 0.5, 1.0])
    args = parser.parse_args()
    recipe = Recipe.find(args.recipe)
    scale = recipe.base.times(args.target)
    runner = runner_of(args, recipe)
    losses = {octaves: [float("inf")] * args.seeds for octaves in sorted({0.0, *args.octaves})}
    trials = [
        runner.trial(moved(recipe, lr=octaves), scale, FIRST_SEED + i, (octaves, i))
        for octaves, i in product(losses, range(args.seeds))
    ]
    for outcome in runner.run(trials, scale, count=len(trials)):
        octaves, i = outcome.key
        losses[octaves][i] = outcome.loss
    for octaves, each in losses.items():
        print(f"  {octaves:+g} octaves  {statistics.fmean(each):.4f}  {each}")
    mean, low, high = regret(losses)
    print(f"at {scale}: regret {mean:.4f} [{low:.4f}, {high:.4f}]")
    kept = {"recipe": args.recipe, "scale": scale.to_dict(), "losses": list(losses.items())}
    args.out.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
