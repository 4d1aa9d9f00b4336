"""The headline's target again: what it chose, on other tokens of the text and on other seeds.

    python benchmarks/target_again.py OUT.json --data TOKENS --seeds 0 1 2
    python benchmarks/target_again.py OUT.json --data TOKENS --seeds 0 1 2 --arms longer

The recipes of benchmarks/data/headline are trained at 518 times their base's FLOP, `global` also
for 1.5 times as long (`longer`). Every loss is added to the file; one that it has is not trained
again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import headline_tables
import measured
import torch

from completedp.evidence.figures.headline import (
    FIGURE,
    GLOBAL,
    MODULE,
    UNIFORM,
    Run,
    times_shown,
)
from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.runner import Runner

RECIPES = measured.FOLDER / "headline"
FOUND = measured.FOLDER / "target-again.json"
LONGER, TIMES = "longer", 1.5
ARMS = (UNIFORM, GLOBAL, MODULE, LONGER)
TARGET = Ratios(width=4, depth=2, batch=4, tokens=24)
FIRST_SEED = 9_000_000


def recipe_and_scale(arm: str, target: Ratios) -> tuple[Recipe, Scale]:
    """What an arm trains, and where."""
    recipe = Recipe.load(RECIPES / f"{GLOBAL if arm == LONGER else arm}.json")
    scale = recipe.base.times(target)
    if arm == LONGER:
        scale = replace(scale, tokens=scale.batch * round(scale.steps * TIMES))
    return recipe, scale


def found() -> dict[str, Any]:
    """The losses and speed-ups, as the figure writes its own."""
    return _judged(_again())


def both() -> dict[str, Any]:
    """Of these runs and the figure's together: the texts differ, and with them all losses by as
    much, which is taken out."""
    row = headline_tables.found()["numbers"]["scales"][-1]
    first = {_run(arm): each for arm, each in row["losses"].items()}
    first[_run(LONGER)] = row["longer"][f"{TIMES:g}"]
    again = _again()
    apart = statistics.fmean(
        statistics.fmean(first[run]) - statistics.fmean(again[run]) for run in first
    )
    return _judged({run: [*first[run], *(x + apart for x in again[run])] for run in first})


def table() -> str:
    """Markdown: the speed-ups of the figure's runs, of these, and of both."""
    lines = ["| runs | seeds | over uniform | over global |", "| --- | --- | --- | --- |"]
    every = {"the figure's": headline_tables.found(), "these": found(), "both": both()}
    for name, of in every.items():
        row = of["numbers"]["scales"][-1]
        cells = [times_shown(row[f"speedup_over_{arm}"]) for arm in (UNIFORM, GLOBAL)]
        lines.append(f"| {name} | {len(row['losses'][MODULE])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _again() -> dict[Run, list[float]]:
    kept = json.loads(FOUND.read_text(encoding="utf-8"))["losses"]
    return {_run(arm): [*each.values()] for arm, each in kept.items()}


def _run(arm: str) -> Run:
    return Run(GLOBAL, 0, TIMES) if arm == LONGER else Run(arm, 0)


def _judged(losses: dict[Run, list[float]]) -> dict[str, Any]:
    seeds = min(map(len, losses.values()))
    at = replace(FIGURE.sizes["gpu"], scales=(TARGET,), seeds=(seeds,), around=())
    return {"numbers": FIGURE.judge(at, losses, {}).numbers}


def main() -> None:
    """Train what is missing of the arms and seeds that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[UNIFORM, GLOBAL, MODULE])
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--target", type=Ratios.parse, default=TARGET, metavar="AXIS=RATIO,...")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    scale = recipe_and_scale(MODULE, args.target)[1]
    about = {
        "text": Manifest.load(Path(args.data)).digest(),
        "scale": scale.to_dict(),
        "first_seed": FIRST_SEED,
        "torch": torch.__version__,
    }
    kept = json.loads(args.out.read_text()) if args.out.exists() else about | {"losses": {}}
    if not about.items() <= kept.items():
        raise SystemExit(f"{args.out} is of another text or scale")
    losses: dict[str, dict[str, float]] = kept["losses"]
    wanted = [
        (arm, seed)
        for arm, seed in product(args.arms, args.seeds)
        if str(seed) not in losses.get(arm, {})
    ]
    if not wanted:
        return
    head_dim = recipe_and_scale(MODULE, args.target)[0].head_dim or 64
    task = make_task(None, args.data, context=256, shape=Shape(head_dim=head_dim))
    runner = Runner(task, slots=args.slots, device=args.device, compile=args.compile)
    longest = max((recipe_and_scale(arm, args.target)[1] for arm in args.arms), key=_tokens)
    trials = [
        runner.trial(*recipe_and_scale(arm, args.target), FIRST_SEED + seed, (arm, seed))
        for arm, seed in wanted
    ]
    for outcome in runner.run(trials, longest, count=len(trials)):
        arm, seed = outcome.key
        losses.setdefault(arm, {})[str(seed)] = outcome.loss
        print(f"{arm} {seed}: {outcome.loss:.4f}", flush=True)
        args.out.write_text(json.dumps(kept, indent=1))


def _tokens(scale: Scale) -> int:
    return scale.tokens


if __name__ == "__main__":
    main()
