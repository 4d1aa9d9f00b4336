"""Which part of the token rule costs what: rate, betas, decay and eps, one left out at a time.

    completedp data stdlib --out stdlib --tokenizer bytes
    python benchmarks/token_rule.py OUT.json --data stdlib --context 64 --slots 8 \
        --recipe benchmarks/data/decay-base.json --target tokens=8

    python benchmarks/token_rule.py OUT.json --data TOKENS --slots 45 --target tokens=8   # a GPU

The recipe is carried to the target without the rule for tokens, with all of it (the paper's
exponent of 1/2), and with all but one part, each with several learning rates: a part that is left
out must not win by a rate that happens to suit it. docs/results/betas.md has the table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

import measured
from recipes_compared import paired
from variants import measure, moved, target_parser

from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, Rules, Shift
from completedp.theory.scale import Scale

FIRST_SEED = 8_400_000
FOUND = {
    "cpu": measured.FOLDER / "token-rule.json",
    "gpu": measured.FOLDER / "token-rule-gpu.json",
}
WHOLE = Rules(beta_rule="power")


def without(hyperparameter: str) -> Rules:
    """The whole rule, but for the tokens' part in one hyperparameter of every role."""
    shifts = tuple(
        Shift(
            role=role,
            hyperparameter=hyperparameter,
            axis="tokens",
            by=-WHOLE.exponents(role, hyperparameter)["tokens"],
        )
        for role in Role
    )
    return WHOLE.chosen(shifts=shifts)


ARMS: dict[str, tuple[Rules, tuple[float, ...]]] = {
    "no rule for tokens": (
        WHOLE.chosen(axes=tuple(axis for axis in AXES if axis != "tokens")),
        (-1.0, 0.0, 1.0),
    ),
    "the whole rule": (WHOLE, (0.0, 1.0, 2.0)),
    "betas kept": (WHOLE.chosen(beta_rule="keep"), (0.0, 1.0, 2.0)),
    "decay kept": (without("weight_decay"), (0.0, 1.0, 2.0)),
    "eps kept": (without("eps"), (0.0, 1.0, 2.0)),
}
"""Rules, and octaves by which rates are moved: under the rule they are 1.5 octaves lower at x8."""


def found(where: str) -> dict[str, Any]:
    """What was measured, kept in the repository."""
    return json.loads(FOUND[where].read_text(encoding="utf-8"))


def table(of: Mapping[str, Any]) -> str:
    """Losses, and what each arm is above no rule, both at their best rates, on the same seeds."""
    lines = [
        "| target | | learning rates | loss | best, above no rule |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in of["scales"]:
        losses = {(arm, octaves): each for arm, octaves, each in row["losses"]}
        best = {
            arm: min((each for (name, _), each in losses.items() if name == arm), key=sum)
            for arm in ARMS
        }
        for (arm, octaves), each in losses.items():
            gain = ""
            if each is best[arm] and arm != "no rule for tokens":
                mean, low, high = paired(each, best["no rule for tokens"])
                gain = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
            scale = Scale(**row["scale"])
            mean = statistics.fmean(each)
            lines.append(f"| {scale} | {arm} | {octaves:+g} octaves | {mean:.4f} | {gain} |")
    return "\n".join(lines)


def main() -> None:
    """Train all of them side by side."""
    args = target_parser((__doc__ or "").split("\n")[0]).parse_args()

    def variants(recipe: Recipe) -> dict[tuple[Any, ...], Recipe]:
        return {
            (arm, octaves): moved(recipe.with_rules(**vars(rules)), lr=octaves)
            for arm, (rules, several) in ARMS.items()
            for octaves in several
        }

    print(table(measure(args, variants, FIRST_SEED)))


if __name__ == "__main__":
    main()
