"""How Adam's memories should follow batch and tokens: by the batch rule, or not at all.

    python benchmarks/beta_rules.py OUT.json --data TOKENS --target tokens=16 --slots 18
    python benchmarks/beta_rules.py OUT.json --data TOKENS --target width=2,depth=2,batch=8,tokens=4

and the second again with batch=32. The recipe is carried to the target (ratios to its base) under
each `beta_rule`, with its learning rates as planned and moved: a rule must win with the best of its
rates, not with one that happens to suit it. docs/results/betas.md has the table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from itertools import product
from typing import Any

import measured
from recipes_compared import paired
from variants import measure, moved, target_parser

from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

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
    recipe = Recipe.find(of["recipe"])
    for row in of["scales"]:
        scale = Scale(**row["scale"])
        r = recipe.rules.r(scale / recipe.base)
        losses = {(rule, octaves): each for rule, octaves, each in row["losses"]}
        for octaves in sorted({octaves for _, octaves in losses}):
            power, keep = losses["power", octaves], losses["keep", octaves]
            mean, low, high = paired(power, keep)
            lines.append(
                f"| {scale} | {scale.steps:,} | {r:g} | {octaves:+g} octaves | "
                f"{statistics.fmean(power):.4f} | {statistics.fmean(keep):.4f} | "
                f"{mean:.3f} [{low:.3f}, {high:.3f}] |"
            )
    return "\n".join(lines)


def main() -> None:
    """Train all of them side by side."""
    parser = target_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--octaves", type=float, nargs="+", default=[-1.0, 0.0, 1.0])
    args = parser.parse_args()

    def variants(recipe: Recipe) -> dict[tuple[Any, ...], Recipe]:
        return {
            (rule, octaves): moved(recipe.with_rules(beta_rule=rule), lr=octaves)
            for rule, octaves in product(RULES, args.octaves)
        }

    print(table(measure(args, variants, FIRST_SEED)))


if __name__ == "__main__":
    main()
