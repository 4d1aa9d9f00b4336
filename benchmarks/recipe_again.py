"""A recipe that ships, under other rules: its ladder measured again, on a GPU.

    python benchmarks/recipe_again.py found.json --recipe default --data TOKENS \
        --rules beta_rule=power beta_rule=keep beta_rule=keep,token_exponent=0.5 \
        --rungs tokens=1 width=2,depth=2,batch=2,tokens=4 width=4,depth=2,batch=4,tokens=8 \
        width=4,depth=2,batch=16,tokens=8 --choose beta_rule=keep
    cp found.json completedp/recipes/default.json

Every choice of rules is a candidate on every rung, on the same fresh seeds. What is written is the
recipe under the rules that are best on the last rung, or under those of `--choose`, with these
rungs as its evidence. The searches that found its values stay in the record; the text's digest
becomes that of TOKENS. Rungs that were measured are kept in found.json.rungs, so that the same
command goes on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from variants import recipe_parser, runner_of

from completedp.common.files import json_text, write_text_atomically
from completedp.lm.tokens import Manifest
from completedp.studies.ladder import measure
from completedp.theory.evidence import Rung
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios

FIRST_SEED = 8_200_000
DEVICE = "NVIDIA H200"


def choices(text: str) -> dict[str, Any]:
    """`beta_rule=keep,token_exponent=0.5` as what `with_rules` takes."""
    pairs = dict(each.split("=") for each in text.split(","))
    return {name: float(of) if name == "token_exponent" else of for name, of in pairs.items()}


def table(names: Sequence[str]) -> str:
    """What recipes that ship were measured at: a row for a rung of each, a column for rules."""
    ladders = {}
    for name in names:
        recipe = Recipe.shipped(name)
        assert recipe.evidence is not None, "a recipe that ships has evidence"
        ladders[name] = recipe.evidence.rungs
    rules = {each.candidate: None for rungs in ladders.values() for each in rungs[-1].standings}
    lines = [
        f"| recipe | scale | {' | '.join(f'`{each}`' for each in rules)} |",
        "| --- " * (2 + len(rules)) + "|",
    ]
    for name, rungs in ladders.items():
        for rung in rungs:
            found = {each.candidate: str(each) for each in rung.standings}
            cells = [found.get(each, "") for each in rules]
            lines.append(f"| `{name}` | {rung.scale} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure rung by rung."""
    parser = recipe_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--rules", nargs="+", required=True, metavar="NAME=VALUE,...")
    parser.add_argument("--rungs", nargs="+", required=True, type=Ratios.parse)
    parser.add_argument("--choose", metavar="NAME=VALUE,...", help="one of the rules")
    args = parser.parse_args()
    recipe = Recipe.find(args.recipe)
    assert recipe.evidence is not None, "a recipe that ships has evidence"
    if args.choose and args.choose not in args.rules:
        parser.error(f"--choose {args.choose} is none of --rules")
    candidates = {text: recipe.with_rules(**choices(text)) for text in args.rules}
    runner = runner_of(args, recipe)
    notes = args.out.with_name(f"{args.out.name}.rungs")
    kept = json.loads(notes.read_text()) if notes.exists() else {"seconds": 0.0, "rungs": []}
    rungs = [Rung.from_dict(each) for each in kept["rungs"]]
    for ratios in args.rungs[len(rungs) :]:
        scale, seeds = recipe.base.times(ratios), range(FIRST_SEED, FIRST_SEED + args.seeds)
        began = monotonic()
        rungs.append(measure(runner, candidates, scale, seeds))
        kept["seconds"] += monotonic() - began
        kept["rungs"] = [rung.to_dict() for rung in rungs]
        write_text_atomically(notes, json_text(kept))
        print(scale, ", ".join(f"{each.candidate} {each}" for each in rungs[-1].standings))
    chosen = args.choose or rungs[-1].standings[0].candidate
    evidence = replace(
        recipe.evidence,
        rungs=tuple(rungs),
        chosen=chosen,
        digest=Manifest.load(Path(args.data)).digest(),
        seconds=dict(Counter(recipe.evidence.seconds) + Counter({DEVICE: round(kept["seconds"])})),
    )
    replace(candidates[chosen], evidence=evidence).save(args.out)
    print(f"{args.out}: {chosen}")


if __name__ == "__main__":
    main()
