"""The recipes that ship, from what the headline found. The search between is on a GPU.

    python benchmarks/shipped_recipes.py begin benchmarks/data/headline/module.json start.json
    completedp search start --data TOKENS --recipe start.json --context 256 --eval-sequences 512 \
        --space type --sites depth=2,tokens=2 --target width=4,depth=2,batch=4,tokens=8 \
        --trials 192 --slots 32 --store default.db --study module
    completedp search best --data TOKENS --store default.db --study module --seeds 3 --slots 6 \
        --rungs width=2,depth=2,batch=2,tokens=4 width=4,depth=2,batch=4,tokens=8 --out found.json
    python benchmarks/shipped_recipes.py ship found.json completedp/recipes/default.json

Then benchmarks/recipe_again.py carried it up a ladder under other rules: it keeps its betas.
The trials are in data/headline/default.db.xz, what was found in default.json beside it.
`strong-global` is made in the same way from global.json, with `--space global --trials 64` and the
study `global`.

`begin` gives the recipe heads of 64, which more models have than 32, and the beta rule `power`,
under which no beta leaves (0, 1) however short a run is. What was measured was measured without
these, so the ladder measures again. `ship` gives module types that the base model had not, biases
and gates, what a plan would lend them, the mean of their role's values: so they can be searched
from there. It says in words what the text was, and adds to the record the global trials that the
headline's per-module search began from.
"""

from __future__ import annotations

import argparse
import lzma
import sqlite3
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

from completedp.evidence.figures.headline import FIGURE, GLOBAL, MODULE
from completedp.studies.spent import covered
from completedp.theory.evidence import Evidence
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.roles import MODULE_TYPES

HEADS = 64
FROM_WIDTH = ("qkv_bias", "attn_out_bias", "mlp_gate", "mlp_out_bias")
FROM_HIDDEN = ("mlp_in_bias", "mlp_gate_bias")
"""Types whose width is the model's, or that of its feed-forward layers' middle."""
TEXT = "English (Wikipedia, books, articles), BPE of 1024 tokens"


TRIALS = Path(__file__).parent / "data" / "headline" / "headline-gpu.db.xz"
SHARED = FIGURE.sizes["gpu"].shared
DEVICE = "NVIDIA H200"


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
    """The same for every type that a reference model or one like it may have, with the whole of its
    evidence."""
    if recipe.evidence is None:
        raise SystemExit("a recipe ships with evidence: one of `completedp search best`")
    width, hidden = recipe.widths["qkv"], recipe.widths["mlp_out"]
    more = dict.fromkeys(FROM_WIDTH, width) | dict.fromkeys(FROM_HIDDEN, hidden)
    more["output_bias"] = 1
    log2 = {**recipe.hyperparameters.log2, **lent(recipe, more)}
    return replace(
        recipe,
        widths={**recipe.widths, **more},
        hyperparameters=replace(recipe.hyperparameters, log2=log2),
        evidence=replace(with_shared_trials(with_digests(recipe.evidence)), text=TEXT),
    )


def with_digests(evidence: Evidence) -> Evidence:
    """Searches of before each said what it had trained on: all had what the ladder had."""
    searches = [replace(each, digest=each.digest or evidence.digest) for each in evidence.searches]
    return replace(evidence, searches=tuple(searches))


def lent(recipe: Recipe, types: Iterable[str]) -> dict[str, float]:
    """Multipliers of types that a recipe does not know: the mean of their role's."""
    log2, found = recipe.hyperparameters.log2, {}
    for new, tunable in product(types, TUNABLE):
        alike = [name for name in recipe.types if MODULE_TYPES[name] is MODULE_TYPES[new]]
        known = [log2.get(f"{tunable}/type/{name}") for name in alike]
        if any(known):
            found[f"{tunable}/type/{new}"] = statistics.fmean(each or 0.0 for each in known)
    return found


def with_shared_trials(evidence: Evidence) -> Evidence:
    """What a per-module recipe of the headline owes to the first trials of the global arm."""
    first = evidence.searches[0]
    if first.study != MODULE:
        return evidence
    shared = replace(first, study=GLOBAL, space="global", trials=SHARED)
    return replace(
        evidence,
        searches=(shared, *evidence.searches),
        seconds=dict(Counter(evidence.seconds) + Counter({DEVICE: round(shared_seconds(), 1)})),
    )


def shared_seconds() -> float:
    """How long the device had them in hand."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "headline.db"
        store.write_bytes(lzma.decompress(TRIALS.read_bytes()))
        with closing(sqlite3.connect(store)) as found:
            spans = found.execute(
                "SELECT started_at, finished_at FROM completedp_trials WHERE study ="
                " (SELECT id FROM completedp_studies WHERE name = ?) ORDER BY sequence LIMIT ?",
                (GLOBAL, SHARED),
            )
            return covered(spans.fetchall())


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
