"""What early stopping saves and costs, on a surrogate of real training.

    python benchmarks/stop_early.py [--seeds 24] [--slots 64] [--true-ends]

The shipped trials of benchmarks/search_real.py give each point's final loss and its loss at a
quarter of the steps, both from Gaussian processes, with noise that is correlated as it was in the
trials. Searches run on them in rounds of a quarter of a trial, as a stack of slots would, with the
stopping rule of `completedp search` and without; printed are the truth of what they recommend and
the part of the steps that they took. `--true-ends` tells the engine what stopped trials would have
ended at: what a perfect forecast would be worth.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from surrogate import TRIALS, Surrogate

from completedp.common.files import write_json
from completedp.studies.registry import make_engine
from completedp.studies.stopping import SMOOTHED_OVER, EarlyStop

RUNS = (("trust-region", 1000), ("recombine", 210), ("recombine", 300), ("recombine", 600))
STEPS = 4 * SMOOTHED_OVER
"""Of a simulated trial: its quarter is one smoothed loss, written out."""


@cache
def trained() -> tuple[Surrogate, Surrogate, np.ndarray]:
    """Surrogates of the final loss and of that at a quarter, and how their noises go together."""
    with np.load(TRIALS, allow_pickle=False) as data:
        points, ends, quarter = (data[k].astype(float) for k in ("points", "losses", "quarter"))
    final = Surrogate.load(TRIALS)
    seen = np.isfinite(ends) & np.isfinite(quarter)
    early = Surrogate(points[seen], quarter[seen], final.bounds)
    # Of points that were left out, or the residuals would be too small.
    out = np.random.default_rng(0).random(len(points)) < 0.2
    left = [
        (y - np.array([s.loss(p) for p in points[seen & out]]))
        for y, s in (
            (ends[seen & out], Surrogate(points[seen & ~out], ends[seen & ~out], final.bounds)),
            (
                quarter[seen & out],
                Surrogate(points[seen & ~out], quarter[seen & ~out], final.bounds),
            ),
        )
    ]
    usual = left[0] < 3 * np.median(np.abs(left[0]))  # how bad the bad ones are is another matter
    return final, early, np.corrcoef(left[0][usual], left[1][usual])


def search(
    engine_name: str, trials: int, seed: int, slots: int, stopping: bool, true_ends: bool
) -> tuple[float, float]:
    """The truth of the recommendation, and the part of the steps that were trained."""
    final, early, together = trained()
    root = np.linalg.cholesky(together)
    engine, rule = make_engine(engine_name, final.bounds, seed), EarlyStop(STEPS)
    running: dict[int, tuple[np.ndarray, float, np.ndarray, int]] = {}
    asked = quarters = 0
    while True:
        while len(running) < slots and asked < trials:
            point, rng = engine.ask(asked), np.random.default_rng([seed, asked, 1])
            noise = root @ rng.normal(size=2)
            curve = np.full(STEPS, early.loss(point) + early.noise * noise[1])
            running[asked] = (point, final.loss(point) + final.noise * noise[0], curve, 0)
            asked += 1
        if not running:
            return final.truth(engine.recommend()), quarters / (4 * trials)
        quarters += len(running)
        running = {n: (p, end, curve, done + 1) for n, (p, end, curve, done) in running.items()}
        going = [(n, curve[: done * SMOOTHED_OVER]) for n, (_, _, curve, done) in running.items()]
        hopeless = rule.hopeless(going) if stopping else [False] * len(going)
        for (number, losses), stopped in zip(going, hopeless, strict=True):
            point, end, _, done = running[number]
            if stopped or done == 4:
                del running[number]
                loss = rule.estimate(point, losses) if stopped and not true_ends else end
                engine.tell(number, point, loss, estimated=stopped and not true_ends)
                rule.tell(number, point, losses, loss, "stopped" if stopped else "ok")


def main() -> None:
    """Every search with every seed, with and without the rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--true-ends", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep the numbers, as JSON")
    args = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(args.processes) as pool:
        for (name, trials), stopping in product(RUNS, (False, True)):
            found = [
                pool.submit(search, name, trials, seed, args.slots, stopping, args.true_ends)
                for seed in range(args.seeds)
            ]
            truths, parts = np.array([run.result() for run in found]).T
            error = truths.std() / np.sqrt(args.seeds)
            mean, steps = float(truths.mean()), float(parts.mean())
            rows.append(
                {
                    "engine": name,
                    "trials": trials,
                    "stopping": stopping,
                    "loss": mean,
                    "error": float(error),
                    "steps": steps,
                }
            )
            print(
                f"{name:<13} {trials:>5} trials, {'stopping' if stopping else 'whole':<8} "
                f"{truths.mean():.4f} +- {error:.4f}, {parts.mean():.0%} of the steps",
                flush=True,
            )
    if args.out:
        write_json(args.out, rows)


if __name__ == "__main__":
    main()
