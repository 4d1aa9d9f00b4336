"""Compare search engines on synthetic landscapes whose truth is known.

    python benchmarks/search_engines.py [--engines trust-region recombine] [--dims 20 79]
        [--in-flight 16 100] [--kinds base cliff noisy] [--seeds 0 1 2 3 4] [--trials 1000]
        [--processes 2] [--out engines.json]

Each cell is the median over seeds of the share of the start's gap to the optimum that is left, in
truth, at the engine's recommendation after 100 / 300 / 1000 trials (over 100: worse than the
start); then how many trials the engine needs for the truth that the paper's search has after all
its trials, on the same landscape with the same seed ("-": not reached).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from completedp.search.engines import DEFAULT_ENGINE, ENGINES, make_engine
from completedp.search.landscapes import KINDS, Landscape, simulate

PAPER = "trust-region"
SHOWN = (100, 300, 1000)
OPTIONS = {"random": {"box": 2.0}, "tpe": {"box": 2.0}, "gp": {"box": 2.0}}
"""Engines without a trust region would lose most trials to cliffs in the whole bounds."""
EVERY = 10
"""Trials between two looks at the recommendation."""

BENCHED = [name for name in ENGINES if name != "grid"]
"""A grid needs levels, which these landscapes have none of."""

Job = tuple[str, str, int, int, int, int]


def run(job: Job) -> dict[str, Any]:
    """One search: what is left of the gap, look by look."""
    name, kind, dimensions, in_flight, seed, trials = job
    landscape = Landscape(kind, dimensions, seed)
    engine = make_engine(name, landscape.bounds, seed, **OPTIONS.get(name, {}))
    looks = list(range(EVERY, trials + 1, EVERY))
    began = time.perf_counter()
    truths = simulate(engine, landscape, trials, in_flight, seed, looks)
    return {
        "engine": name,
        "kind": kind,
        "dimensions": dimensions,
        "in_flight": in_flight,
        "seed": seed,
        "left": {look: landscape.remaining(t) for look, t in zip(looks, truths, strict=True)},
        "diverged": engine.diverged,
        "seconds": time.perf_counter() - began,
    }


def needed(left: dict[int, float], goal: float) -> float:
    """Trials until the goal is reached for good: an engine cannot know which look was lucky."""
    looks = sorted(left)
    missed = [look for look in looks if left[look] > goal]
    if not missed:
        return looks[0]
    return missed[-1] + EVERY if missed[-1] < looks[-1] else math.inf


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each engine and setting: medians over seeds."""

    def setting(run: dict[str, Any]) -> tuple[str, int, int]:
        return run["kind"], run["dimensions"], run["in_flight"]

    goals = {
        (*setting(r), r["seed"]): r["left"][max(r["left"])] for r in runs if r["engine"] == PAPER
    }
    rows = []
    for where, name in product(
        dict.fromkeys(map(setting, runs)), dict.fromkeys(r["engine"] for r in runs)
    ):
        mine = [r for r in runs if setting(r) == where and r["engine"] == name]
        shown = [n for n in SHOWN if n in mine[0]["left"]]
        counts = [
            needed(r["left"], goals[(*where, r["seed"])])
            for r in mine
            if (*where, r["seed"]) in goals
        ]
        rows.append(
            {
                "kind": where[0],
                "dimensions": where[1],
                "in_flight": where[2],
                "engine": name,
                "seeds": len(mine),
                "left": {n: statistics.median(r["left"][n] for r in mine) for n in shown},
                "needed": statistics.median(counts) if counts else None,
                "diverged": statistics.median(r["diverged"] for r in mine),
                "seconds": statistics.median(r["seconds"] for r in mine),
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(
        f"{'landscape':10}{'dims':>5}{'at once':>8}  {'engine':14}"
        f"{'left %':>22}{'needed':>8}{'diverged':>9}{'s':>7}"
    )
    for row in rows:
        left = " / ".join(f"{value:.0f}" for value in row["left"].values())
        count = row["needed"]
        goal = "-" if count is None or count == math.inf else f"{count:.0f}"
        print(
            f"{row['kind']:10}{row['dimensions']:>5}{row['in_flight']:>8}  {row['engine']:14}"
            f"{left:>22}{goal:>8}{row['diverged']:>9.0f}{row['seconds']:>7.1f}"
        )


def main() -> None:
    """Run every combination and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engines", nargs="+", default=[PAPER, DEFAULT_ENGINE], choices=BENCHED)
    parser.add_argument("--dims", nargs="+", type=int, default=[20, 79])
    parser.add_argument("--in-flight", nargs="+", type=int, default=[16, 100])
    parser.add_argument(
        "--kinds", nargs="+", default=["base", "cliff", "noisy"], choices=list(KINDS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    jobs = [
        (name, kind, dims, in_flight, seed, args.trials)
        for kind, dims, in_flight, name, seed in product(
            args.kinds, args.dims, args.in_flight, args.engines, args.seeds
        )
    ]
    with ProcessPoolExecutor(args.processes) as pool:
        runs = list(pool.map(run, jobs))
    rows = table(runs)
    show(rows)
    if args.out is not None:
        args.out.write_text(json.dumps({"table": rows, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
