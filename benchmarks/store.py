"""How long a claim and a finish take: one worker with many trials there, and many workers at once.

    python benchmarks/store.py [--postgres URL] [--trials 5000]

`python tests/postgres_server.py` starts a server and prints a URL. One worker is timed in a new
study and in one of 5,000 finished trials of 79 dimensions: the ratio of the two says whether the
store slows down as it fills. Then 16 processes claim and finish without a pause.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from completedp.studies.engines import Proposal
from completedp.studies.store import Store, Study

DIMENSIONS, STEPS = 79, 200
PROCESSES, CYCLES = 16, 50
LEASE_SECONDS = 3600.0
CURVE = np.linspace(5.0, 4.0, STEPS).tolist()


def propose(number: int) -> Proposal:
    """Any point."""
    point = np.random.default_rng(number).normal(size=DIMENSIONS)
    return Proposal(point=point, seed=number)


def cycles(study: Study, count: int) -> list[float]:
    """Seconds of each of `count` cycles of claim and finish."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        claim = study.claim("benchmark", propose, lease_seconds=LEASE_SECONDS)
        assert claim is not None
        assert study.finish(claim, loss=4.0, status="ok", steps=STEPS, curve=CURVE)
        seconds.append(time.perf_counter() - start)
    return seconds


def process(url: str, name: str, together: Any, results: Any) -> None:
    """One of many workers."""
    with Store(url) as store:
        study = store.study(name)
        together.wait()
        start = time.time()
        results.put((start, cycles(study, CYCLES), time.time()))


def crowd(url: str, name: str) -> tuple[list[float], float]:
    """Seconds of every cycle of all processes, and from the first start to the last end."""
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(PROCESSES), context.Queue()
    workers = [
        context.Process(target=process, args=(url, name, together, results))
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    starts, seconds, ends = zip(*found, strict=True)
    return [one for some in seconds for one in some], max(ends) - min(starts)


def line(what: str, seconds: list[float], wall: float) -> None:
    """One row of the table."""
    median, tail, worst = np.percentile(seconds, [50, 95, 100]) * 1e3
    rate = len(seconds) / wall
    print(f"| {what} | {rate:.0f} | {median:.2f} | {tail:.2f} | {worst:.1f} |")


def measure(kind: str, url: str, trials: int) -> None:
    """All rows of one database."""
    with Store(url) as store:
        name = f"full-{secrets.token_hex(4)}"
        study = store.create_study(name, {"trials": trials + 10**6})
        fresh = store.create_study(f"new-{secrets.token_hex(4)}", {"trials": 10**6})
        cycles(study, trials)
        full, new = [], []
        for _ in range(50):  # in turns, so that whatever else the machine does meets both
            full += cycles(study, 10)
            new += cycles(fresh, 10)
        line(f"{kind}, 1 process, new study", new, sum(new))
        line(f"{kind}, 1 process, {trials} trials", full, sum(full))
        line(f"{kind}, {PROCESSES} processes, {trials} trials", *crowd(url, name))
        start = time.perf_counter()
        count = len(study.finished_since(0))
        read = time.perf_counter() - start
        growth = float(np.median(full) / np.median(new))
        print(f"| {kind}: a cycle with {trials} trials / in a new study: x{growth:.2f}; ", end="")
        print(f"all {count} finished trials read in {read * 1e3:.0f} ms | | | | |")


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--trials", type=int, default=5000)
    options = parser.parse_args()
    print("| claim + finish | cycles a second | median ms | 95% ms | worst ms |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        measure("SQLite", str(Path(folder) / "store.db"), options.trials)
    if options.postgres:
        measure("PostgreSQL", options.postgres, options.trials)


if __name__ == "__main__":
    main()
