"""Compare search engines where the truth is known: on synthetic landscapes, or on a surrogate.

    python benchmarks/search_engines.py [--engines trust-region recombine] [--seeds 0 1 2] [--json]

A run is one engine on one landscape with one seed; it is judged by the truth of what the engine
recommends, look by look, as the share of the start's gap to the optimum that is left (over 100:
worse than the start). `needed` is how many trials an engine takes to reach, for good, the truth
that the paper's search has after all its trials on the same landscape with the same seed.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context
from typing import Any, Literal

import tyro
from landscapes import Landscape, simulate
from surrogate import TRIALS, Surrogate

from completedp.cli.shared import as_config, counted, print_json
from completedp.common.checks import check_number
from completedp.common.errors import CompletedpError
from completedp.studies.registry import make_engine

PAPER = "trust-region"
SHOWN = (100, 300, 1000)
OPTIONS = {"random": {"box": 2.0}, "tpe": {"box": 2.0}, "gp": {"box": 2.0}}
"""Engines without a trust region would lose most trials to cliffs in the whole bounds."""
EVERY = 10
"""Trials between two looks at the recommendation."""

Job = tuple[str, str, int, int, int, int]
SURROGATE = "surrogate"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which engines are compared, and on what."""

    engines: tuple[Literal["recombine", "trust-region", "cma-es", "random", "tpe", "gp"], ...] = (
        "trust-region",
        "recombine",
    )
    """Engines; the paper's is what others are measured by."""
    landscapes: tuple[Literal["base", "cliff", "noisy", "tangled", "loud", "surrogate"], ...] = (
        "base",
        "cliff",
        "noisy",
    )
    """Kinds of synthetic landscape, and the surrogate of real trials."""
    dimensions: tuple[int, ...] = (20, 79)
    """Numbers of coordinates; the surrogate has its own."""
    in_flight: tuple[int, ...] = (16, 100)
    """Trials at once."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Landscapes and searches; medians are over them."""
    trials: int = 1000
    """Trials of each search."""
    processes: int = 2
    """Searches at once."""

    def __post_init__(self) -> None:
        for name in ("engines", "landscapes", "dimensions", "in_flight", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise CompletedpError(f"{name} = {list(values)} must name one or more, each once")
        for name in ("dimensions", "in_flight"):
            for value in getattr(self, name):
                check_number(name, value, low=1, high=10_000)
        for seed in self.seeds:
            check_number("seeds", seed, low=0, high=2**31)
        check_number("trials", self.trials, low=10)
        check_number("processes", self.processes, low=1, high=1024)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def compare(
    config: Comparison, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Every combination, in processes; the runs and their table."""
    jobs = [
        (name, kind, dims, in_flight, seed, config.trials)
        for kind in config.landscapes
        for dims, in_flight, name, seed in product(
            (0,) if kind == SURROGATE else config.dimensions,
            config.in_flight,
            config.engines,
            config.seeds,
        )
    ]
    runs = []
    with _one_thread_each(), ProcessPoolExecutor(config.processes, get_context("spawn")) as pool:
        for run in pool.map(_run, jobs):
            runs.append(run)
            if progress is not None:
                progress(len(runs), len(jobs))
    return {"config": config.to_dict(), "table": _table(runs), "runs": runs}


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """For processes started inside: theirs are small products, which more threads make slower."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _run(job: Job) -> dict[str, Any]:
    """One search: what is left of the gap, look by look."""
    name, kind, dimensions, in_flight, seed, trials = job
    landscape = _surrogate() if kind == SURROGATE else Landscape(kind, dimensions, seed)
    engine = make_engine(name, landscape.bounds, seed, **OPTIONS.get(name, {}))
    looks = list(range(EVERY, trials + 1, EVERY))
    began = time.perf_counter()
    truths = simulate(engine, landscape, trials, in_flight, seed, looks)
    return {
        "engine": name,
        "kind": kind,
        "dimensions": landscape.dimensions,
        "in_flight": in_flight,
        "seed": seed,
        "left": {look: landscape.remaining(t) for look, t in zip(looks, truths, strict=True)},
        "diverged": engine.diverged,
        "seconds": time.perf_counter() - began,
    }


@cache
def _surrogate() -> Surrogate:
    """Fitted once a process, which takes seconds."""
    return Surrogate.load(TRIALS)


def _needed(left: dict[int, float], goal: float) -> float:
    """Trials until the goal is reached for good: an engine cannot know which look was lucky."""
    looks = sorted(left)
    missed = [look for look in looks if left[look] > goal]
    if not missed:
        return looks[0]
    return missed[-1] + EVERY if missed[-1] < looks[-1] else math.inf


def _table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
        shown = [n for n in SHOWN if n in mine[0]["left"]] or [max(mine[0]["left"])]
        counts = [
            _needed(r["left"], goals[(*where, r["seed"])])
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
                "needed": _finite(statistics.median(counts)) if counts else None,
                "diverged": statistics.median(r["diverged"] for r in mine),
                "seconds": statistics.median(r["seconds"] for r in mine),
            }
        )
    return rows


def _finite(count: float) -> float | None:
    return count if math.isfinite(count) else None


def compared_text(found: dict[str, Any]) -> str:
    """The table."""
    lines = [
        f"{'landscape':10}{'dims':>5}{'at once':>8}  {'engine':14}"
        f"{'left %':>22}{'needed':>8}{'diverged':>9}{'s':>7}"
    ]
    for row in found["table"]:
        left = " / ".join(f"{value:.0f}" for value in row["left"].values())
        goal = "-" if row["needed"] is None else f"{row['needed']:.0f}"
        lines.append(
            f"{row['kind']:10}{row['dimensions']:>5}{row['in_flight']:>8}  {row['engine']:14}"
            f"{left:>22}{goal:>8}{row['diverged']:>9.0f}{row['seconds']:>7.1f}"
        )
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Options(Comparison):
    """Compare search engines on landscapes whose truth is known."""

    json: bool = False
    """Print JSON."""


def main() -> None:
    """Compare as the command line says, and print."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    with counted("searches") as progress:
        found = compare(as_config(options, Comparison), progress)
    if options.json:
        print_json(found)
    else:
        print(compared_text(found))


if __name__ == "__main__":
    main()
