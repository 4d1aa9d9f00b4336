"""The recipes that ship, from what the headline found. The search between is on a GPU.

    python benchmarks/shipped_recipes.py begin benchmarks/data/headline/module.json start.json
    completedp search start --data TOKENS --recipe start.json --context 256 --space type \
        --sites depth=2,tokens=2 --target width=4,depth=2,batch=4,tokens=8 --trials 192
    completedp search best --data TOKENS --seeds 3 --out found.json \
        --rungs width=2,depth=2,batch=2,tokens=4 width=4,depth=2,batch=4,tokens=8
    python benchmarks/shipped_recipes.py ship found.json completedp/recipes/default.json

`begin` gives the recipe heads of 64, which more models have than 32, and the beta rule `power`,
under which no beta leaves (0, 1) however short a run is. What was measured was measured without
these, so the ladder measures again. `ship` adds the widths of what the reference model may have and
did not: biases and gates.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from completedp.theory.recipe import Recipe

HEADS = 64
FROM_WIDTH = ("qkv_bias", "attn_out_bias", "mlp_gate", "mlp_out_bias")
FROM_HIDDEN = ("mlp_in_bias", "mlp_gate_bias")
"""Types whose width is the model's, or that of its feed-forward layers' middle."""


def begin(recipe: Recipe) -> Recipe:
    """Where the search of the recipe that ships starts."""
    widths = {**recipe.widths, "q_norm": HEADS, "k_norm": HEADS}
    before = recipe.evidence
    return replace(
        recipe,
        head_dim=HEADS,
        widths=widths,
        rules=replace(recipe.rules, beta_rule="power"),
        evidence=None if before is None else replace(before, rungs=(), chosen=None),
    )


def ship(recipe: Recipe) -> Recipe:
    """The same with every type that a reference model or one like it may have."""
    width, hidden = recipe.widths["qkv"], recipe.widths["mlp_out"]
    more = dict.fromkeys(FROM_WIDTH, width) | dict.fromkeys(FROM_HIDDEN, hidden)
    return replace(recipe, widths={**recipe.widths, **more, "output_bias": 1})


def main() -> None:
    """One step or the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("step", choices=("begin", "ship"))
    parser.add_argument("recipe", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    step = {"begin": begin, "ship": ship}[args.step]
    step(Recipe.load(args.recipe)).save(args.out)


if __name__ == "__main__":
    main()
