"""Compare search engines on real training, on a GPU.

    python benchmarks/search_real.py DATA OUT [--seeds 0 1 2 3] [--paper-seeds 0 1]
    python benchmarks/search_real.py DATA OUT --space global --budget 200 --paper-seeds

First the global values of a small model are tuned. From there the paper's search gets `--trials`
(1000) trials and the default engine `--budget` (300), each also with early stopping, with every
seed (the paper's, which takes longest, with `--paper-seeds` alone); all are per-module searches
(type x depth) with the same slots. What each would recommend after 100, 300 and 1000 trials, and
the start, is then trained again on fresh seeds: that is the loss that counts. With `--space global`
the searches compared are for the global values themselves, from the usual ones.
OUT/search.db holds every trial (the same command goes on),
OUT/real.json the table, OUT/trials.npz points and losses for the surrogate of search_engines.py.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.lm.shape import Shape
from completedp.studies.config import StudyConfig, WorkerConfig
from completedp.studies.ladder import measure
from completedp.studies.objective import Objective
from completedp.studies.run import best, open_study, spec_from
from completedp.studies.stopping import MARK, SMOOTHED_OVER
from completedp.studies.store import Store, Study
from completedp.studies.worker import work
from completedp.tasks.config import Sources
from completedp.tasks.task import Task, task_from
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

LOOKS = (100, 300, 1000)
PAPER, OURS = "trust-region", "recombine"
STOPPING = ", stop early"
TINY = {"width": 16, "depth": 2, "context": 16, "sequences": 4, "steps": 30, "head_dim": 8}
SMALL = {"width": 64, "depth": 4, "context": 256, "sequences": 16, "steps": 512, "head_dim": 32}


def usual_recipe(task: Task, size: dict[str, int]) -> Recipe:
    """Where the global search starts."""
    batch = size["context"] * size["sequences"]
    base = Scale(
        width=size["width"], depth=size["depth"], batch=batch, tokens=batch * size["steps"]
    )
    return task.recipe(base, lr=2.0**-6, init_std=0.1, weight_decay=0.05)


def search(
    store: Store, name: str, start: Recipe, config: StudyConfig, task: Task, **options: Any
) -> Study:
    """Run one study, or what is left of it."""
    study = open_study(store, name, spec_from(replace(config, **options), task, start))
    work(study, objective_of(study, config.data))
    print(f"{name}: {study.counts()}", flush=True)
    return study


def objective_of(study: Study, data: str) -> Objective:
    """A study's trials on this machine."""
    return Objective.of(study, Sources(data=data), WorkerConfig())


def recommended(study: Study, objective: Objective, after: int) -> np.ndarray:
    """What the engine would have recommended when so many trials had finished."""
    engine = objective.engine()
    for trial in study.finished_since(0)[:after]:
        trial.tell(engine)
    return engine.recommend()


def foresight(studies: list[Study]) -> dict[str, float]:
    """What can be known early of the last 100 trials of searches without stopping, on average.

    How far their final losses spread, and how these go with the loss a quarter and half way there.
    """
    found: dict[str, list[float]] = {"spread": [], "quarter": [], "half": []}
    for study in studies:
        rows = [row for row in study.trials(curves=True) if row.status == "ok"][-100:]
        ends = np.array([row.loss for row in rows])
        curves = [row.curve for row in rows if row.curve is not None]
        if len(curves) < len(rows) or len(rows) < 3:
            continue
        found["spread"].append(float(ends.std()))
        for name, part in (("quarter", 0.25), ("half", 0.5)):
            mark = max(SMOOTHED_OVER, round(part * len(curves[0])))
            there = [np.mean(curve[mark - SMOOTHED_OVER : mark]) for curve in curves]
            found[name].append(float(np.corrcoef(there, ends)[0, 1]))
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def export(studies: list[Study], path: Path) -> None:
    """Whole and diverged trials of the per-module searches, for the surrogate.

    With the smoothed losses at a quarter of their steps, for benchmarks/stop_early.py.
    """
    rows = [row for s in studies for row in s.trials(curves=True) if row.status != "stopped"]
    of_space = studies[0].spec["space"]
    mark = max(SMOOTHED_OVER, round(MARK * max(row.steps or 0 for row in rows)))
    curves = [row.curve if row.curve is not None else () for row in rows]
    passed = [np.mean(c[mark - SMOOTHED_OVER : mark]) if len(c) >= mark else np.nan for c in curves]
    np.savez_compressed(
        path,
        points=np.array([row.point for row in rows], dtype=np.float16),
        losses=np.array([row.loss for row in rows], dtype=np.float32),
        quarter=np.array(passed, dtype=np.float32),
        coordinates=np.array(of_space["coordinates"]),
        **{name: np.array(of_space[name], dtype=np.float32) for name in ("low", "high", "start")},
    )


def main() -> None:
    """Search, measure again and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--space", choices=("kronecker", "global"), default="kronecker")
    parser.add_argument("--paper-seeds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--budget", type=int, default=300)
    parser.add_argument("--global-trials", type=int, default=192)
    parser.add_argument("--fresh", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="a model for trying this script")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    size = TINY if args.tiny else SMALL
    shape = Shape(head_dim=size["head_dim"])
    config = StudyConfig(data=args.data, context=size["context"], shape=shape)
    task = task_from(config)
    with Store(str(args.out / "search.db")) as store:
        start_path = args.out / "globals.json"
        usual = usual_recipe(task, size)
        if args.space == "global":
            start = usual
        else:
            options = {"space": "global", "trials": args.global_trials, "stop_early": False}
            tuned = search(store, "global", usual, config, task, **options)
            if not start_path.exists():
                found = best(tuned, objective_of(tuned, args.data), seeds=args.fresh)
                found.recipe.save(start_path)
            start = Recipe.load(start_path)
        ways = {
            PAPER: {"engine": "trust-region", "trials": args.trials, "stop_early": False},
            PAPER + STOPPING: {"engine": "trust-region", "trials": args.trials, "stop_early": True},
            OURS: {"engine": "recombine", "trials": args.budget, "stop_early": False},
            OURS + STOPPING: {"engine": "recombine", "trials": args.budget, "stop_early": True},
        }
        studies = {
            (way, seed): search(
                store,
                f"{way}, {seed}",
                start,
                config,
                task,
                seed=seed,
                space=args.space,
                **options,
            )
            for seed in args.seeds
            for way, options in ways.items()
            if not way.startswith(PAPER) or seed in args.paper_seeds
        }
        objective = objective_of(next(iter(studies.values())), args.data)
        candidates = {"start": start}
        for (way, seed), study in studies.items():
            mine = objective_of(study, args.data)
            finished = study.counts()["finished"]
            for after in sorted({look for look in LOOKS if look < finished} | {finished}):
                point = recommended(study, mine, after)
                candidates[f"{way}, seed {seed}, {after}"] = mine.space.recipe(start, point)
        fresh = [2_000_003 + seed for seed in range(args.fresh)]
        rung = measure(objective.runner, candidates, start.base, fresh)
        found = {
            s.candidate: {
                "mean": s.mean if math.isfinite(s.mean) else None,
                "error": s.error if math.isfinite(s.error) else None,
            }
            for s in rung.standings
        }
        for name in candidates:
            mean, error = found[name]["mean"], found[name]["error"]
            print(f"{name:<40} {mean or math.inf:.4f} +- {error or math.inf:.4f}")
        steps = {
            f"{way}, seed {seed}": sum(row.steps or 0 for row in study.trials(curves=False))
            for (way, seed), study in studies.items()
        }
        print(json.dumps({"steps": steps}, indent=1))
        print(foresight([study for (way, _), study in studies.items() if way == OURS]))
        (args.out / "real.json").write_text(json.dumps({"fresh": found, "steps": steps}, indent=1))
        export(list(studies.values()), args.out / "trials.npz")


if __name__ == "__main__":
    main()
