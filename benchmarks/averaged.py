"""Is a mean of recommendations better than one? On landscapes as noisy as training a small base.

    python benchmarks/averaged.py           # seconds on two cores

What is left of the gap between start and optimum, in truth, at what one search recommends at its
end, at the mean of what it recommended in its second half, at the mean of two searches of half the
trials, at that of two whole ones, and at what a search of twice the trials recommends.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from landscapes import Landscape, simulate

from completedp.studies.registry import make_engine

KIND, DIMENSIONS, TRIALS, IN_FLIGHT, EVERY = "loud", 65, 256, 32, 8
SEEDS = range(100, 124)


class Recorded:
    """A landscape that keeps the points whose truth is asked for."""

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape
        self.points: list[np.ndarray] = []

    def truth(self, point: np.ndarray) -> float:
        """Kept, and the landscape's."""
        self.points.append(point.copy())
        return self._landscape.truth(point)

    def measure(self, point: np.ndarray, rng: np.random.Generator) -> float:
        """The landscape's."""
        return self._landscape.measure(point, rng)


def recommended(landscape: Landscape, trials: int, seed: int) -> list[np.ndarray]:
    """What a search recommends, look by look."""
    asked = Recorded(landscape)
    engine = make_engine("recombine", landscape.bounds, seed)
    simulate(engine, asked, trials, IN_FLIGHT, seed, range(EVERY, trials + 1, EVERY))
    return asked.points


def compared(seed: int) -> dict[str, float]:
    """The share of the gap that is left, in per cent, on one landscape."""
    landscape = Landscape(KIND, DIMENSIONS, seed)
    one, other = (recommended(landscape, TRIALS, 7 * seed + number) for number in (1, 2))
    twice = recommended(landscape, 2 * TRIALS, 7 * seed + 3)
    half = len(one) // 2
    points = {
        "one search": one[-1],
        "mean over its second half": np.mean(one[half:], axis=0),
        "mean of two of half the trials": (one[half - 1] + other[half - 1]) / 2,
        "mean of two": (one[-1] + other[-1]) / 2,
        "one of twice the trials": twice[-1],
    }
    return {name: landscape.remaining(landscape.truth(each)) for name, each in points.items()}


def main() -> None:
    """Print the means over landscapes, with their standard errors."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = list(pool.map(compared, SEEDS))
    for name in found[0]:
        left = [each[name] for each in found]
        error = statistics.stdev(left) / len(left) ** 0.5
        print(f"{name:<32}{statistics.fmean(left):5.1f} +- {error:.1f} %")


if __name__ == "__main__":
    main()
