"""A recipe that ships, under other rules for its betas: its ladder measured again, on a GPU.

    python benchmarks/recipe_again.py found.json --recipe default --data TOKENS \
        --beta-rules power keep --rungs tokens=1 width=2,depth=2,batch=2,tokens=4 \
        width=4,depth=2,batch=4,tokens=8 width=4,depth=2,batch=16,tokens=8
    cp found.json completedp/recipes/default.json

Every rule is a candidate on every rung, on the same fresh seeds. What is written is the recipe
under the rule that is best on the last rung, with these rungs as its evidence. The searches that
found its values stay in the record; the text's digest becomes that of TOKENS. Rungs that were
measured are kept in found.json.rungs, so that the same command goes on.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import monotonic

from variants import recipe_parser, runner_of

from completedp.common.files import json_text, write_text_atomically
from completedp.lm.tokens import Manifest
from completedp.studies.ladder import measure
from completedp.theory.evidence import Rung
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios

FIRST_SEED = 8_200_000
DEVICE = "NVIDIA H200"


def main() -> None:
    """Measure rung by rung."""
    parser = recipe_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--beta-rules", nargs="+", required=True)
    parser.add_argument("--rungs", nargs="+", required=True, type=Ratios.parse)
    args = parser.parse_args()
    recipe = Recipe.find(args.recipe)
    assert recipe.evidence is not None, "a recipe that ships has evidence"
    candidates = {f"betas by {rule}": recipe.with_rules(beta_rule=rule) for rule in args.beta_rules}
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
    chosen = rungs[-1].standings[0].candidate
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
