"""How weight decay should follow the tokens: by the rule, or less.

    python benchmarks/decay_horizon.py OUT.json --data TOKENS --target tokens=16 --slots 24
    python benchmarks/decay_horizon.py OUT.json --data TOKENS --target width=2,depth=2,tokens=16

By the paper's rule lr x weight decay x steps, which is one over tau (docs/recipes.md), is at the
target what it was at the base. Others find that the best tau falls with the tokens a parameter
(Power Lines, 2505.13738). The recipe is carried to the target (ratios to its base) with every
weight decay moved by some octaves, its learning rates as planned and moved.

On a CPU, from a base of 13 tokens a parameter with tau 2, by rules that leave rate, eps and betas
alone (an hour of one core):

    completedp data stdlib --out stdlib --tokenizer bytes
    python benchmarks/decay_horizon.py OUT.json --data stdlib --context 64 --slots 8 \
        --recipe benchmarks/data/decay-base.json --rates -1 0 1 --target tokens=16

and the same with tokens=4, tokens=1 and width=2,tokens=4. docs/results/horizon.md has the table.
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

FIRST_SEED = 8_300_000
FOUND = measured.FOLDER / "decay-horizon.json"


def found() -> dict[str, Any]:
    """What was measured on a CPU, kept in the repository."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def short_table(of: Mapping[str, Any]) -> str:
    """Each target with the best of the learning rates for every decay: a row a target."""
    decays = sorted({decay for row in of["scales"] for _, decay, _ in row["losses"]})
    titles = [f"{decay:+g} octaves" if decay else "by the rule" for decay in decays]
    lines = [f"| target | {' | '.join(titles)} |", "| --- " * (1 + len(decays)) + "|"]
    for row in of["scales"]:
        best = {
            decay: min(statistics.fmean(each) for _, at, each in row["losses"] if at == decay)
            for decay in decays
        }
        shown = (
            f"**{loss:.3f}**" if loss == min(best.values()) else f"{loss:.3f}"
            for loss in best.values()
        )
        lines.append(f"| {Scale(**row['scale'])} | {' | '.join(shown)} |")
    return "\n".join(lines)


def table(of: Mapping[str, Any]) -> str:
    """Losses at every target, and what a moved decay gains over the rule's on the same seeds."""
    lines = [
        "| target | learning rates | weight decay | loss | lower than by the rule by |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in of["scales"]:
        losses = {(lr, decay): each for lr, decay, each in row["losses"]}
        for (lr, decay), each in sorted(losses.items()):
            mean, low, high = paired(losses[lr, 0.0], each)
            gain = f"{mean:.3f} [{low:.3f}, {high:.3f}]" if decay else ""
            lines.append(
                f"| {Scale(**row['scale'])} | {lr:+g} octaves | {decay:+g} octaves | "
                f"{statistics.fmean(each):.4f} | {gain} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Train all of them side by side."""
    parser = target_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--decays", type=float, nargs="+", default=[-2.0, 0.0, 2.0, 4.0])
    args = parser.parse_args()

    def variants(recipe: Recipe) -> dict[tuple[Any, ...], Recipe]:
        return {
            (rate, decay): moved(recipe, lr=rate, weight_decay=decay)
            for rate, decay in product(args.rates, args.decays)
        }

    print(table(measure(args, variants, FIRST_SEED)))


if __name__ == "__main__":
    main()
