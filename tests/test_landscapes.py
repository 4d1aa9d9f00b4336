"""Landscapes: what they claim to be, and a simulated cluster that is asynchronous."""

import math
import statistics

import numpy as np
import pytest
from landscapes import GAP, KINDS, Landscape, simulate

from completedp.common.errors import CompletedpError
from completedp.studies.engines import Engine, Told
from completedp.studies.registry import make_engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimensions", [1, 20, 79])
def test_the_start_is_a_gap_above_the_optimum(kind: str, dimensions: int) -> None:
    """From start to optimum there is the gap, both are safe, and no point found is lower."""
    landscape = Landscape(kind, dimensions, 0)
    bottom = landscape.truth(landscape.optimum)
    assert landscape.truth(landscape.start) - bottom == pytest.approx(GAP, rel=0.01)
    assert landscape.remaining(landscape.truth(landscape.start)) == pytest.approx(100.0)
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.1, 1.0):
        for _ in range(50):
            point = landscape.optimum + scale * rng.normal(size=dimensions)
            assert landscape.truth(point) > bottom - 1e-6


def test_a_landscape_is_its_kind_size_and_seed() -> None:
    """The same three give the same landscape; another seed or kind gives another."""
    first, again, other = (Landscape("base", 20, seed) for seed in (1, 1, 2))
    point = np.full(20, 0.3)
    assert first.truth(point) == again.truth(point) != other.truth(point)
    assert Landscape("cliff", 20, 1).truth(point) != first.truth(point)


@pytest.mark.parametrize("kind", ["base", "noisy"])
def test_measurements_scatter_around_the_truth(kind: str) -> None:
    """Where nothing diverges the mean of many runs is the truth and their spread the noise."""
    landscape = Landscape(kind, 20, 0)
    rng = np.random.default_rng(0)
    runs = [landscape.measure(landscape.start, rng) for _ in range(2000)]
    assert statistics.mean(runs) == pytest.approx(landscape.truth(landscape.start), abs=1e-3)
    assert statistics.stdev(runs) == pytest.approx(KINDS[kind].noise, rel=0.1)


def test_too_high_costs_more_than_too_low() -> None:
    """In one dimension an octave above the optimum is dearer than an octave below."""
    landscape = Landscape("base", 1, 3)
    above, below = (landscape._bowl(landscape.optimum + x) for x in (0.5, -0.5))
    assert above > 1.2 * below


def test_runs_diverge_beyond_the_cliff() -> None:
    """High enough everything diverges, at the edge some seeds do, and the truth counts them."""
    landscape = Landscape("cliff", 20, 0)
    rng = np.random.default_rng(0)
    high = np.full(20, 8.0)
    assert all(landscape.measure(high, rng) == math.inf for _ in range(20))
    edge = max(np.linspace(0.0, 8.0, 2000), key=lambda x: -abs(landscape._beyond(x * high / 8)))
    point = edge * high / 8
    share = np.mean([landscape.measure(point, rng) == math.inf for _ in range(400)])
    assert 0.35 < share < 0.65
    assert landscape.truth(point) - 3.0 - landscape._bowl(point) == pytest.approx(0.25, abs=0.03)


def test_cliffs_are_closer_where_they_should_be() -> None:
    """In a box of one octave `cliff` loses far more trials than `base`."""

    def lost(kind: str) -> float:
        landscape, rng = Landscape(kind, 79, 0), np.random.default_rng(0)
        runs = [landscape.measure(rng.uniform(-1, 1, 79), rng) for _ in range(300)]
        return float(np.mean(np.isinf(runs)))

    assert lost("base") < 0.3 < lost("cliff") < 0.9


class Recorder(Engine):
    """Asks the start, and writes down what happens."""

    def __init__(self, landscape: Landscape) -> None:
        super().__init__(landscape.bounds, 0)
        self.finished: list[int] = []
        self.most_running = 0
        self.asked = 0

    def _learn(self, trial: Told) -> None:
        self.finished.append(trial.number)

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        self.asked += 1
        self.most_running = max(self.most_running, self.asked + 1 - len(self.finished))
        return self.bounds.start


def test_the_simulated_cluster_is_asynchronous() -> None:
    """Every trial finishes once, as many run as allowed and no more, and they overtake."""
    landscape = Landscape("base", 3, 0)
    engine = Recorder(landscape)
    truths = simulate(engine, landscape, 90, 16, 0, at=[10, 90])
    assert sorted(engine.finished) == list(range(90))
    assert engine.finished != sorted(engine.finished)
    assert engine.most_running == 16
    assert truths == [landscape.truth(landscape.start)] * 2
    assert simulate(Recorder(landscape), landscape, 5, 16, 0) == truths[:1]


def test_a_simulation_repeats() -> None:
    """The same engine, landscape and seed give the same truths."""
    landscape = Landscape("cliff", 8, 1)
    runs = [
        simulate(make_engine("recombine", landscape.bounds, 2), landscape, 80, 8, 5, at=[40, 80])
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_the_default_needs_far_fewer_trials_than_the_paper() -> None:
    """In 79 dimensions with 100 at once, 300 trials of the default beat 1,000 of the paper's."""
    left: dict[str, list[float]] = {"recombine": [], "trust-region": []}
    for seed in range(50, 55):
        landscape = Landscape("base", 79, seed)
        for name, trials in (("recombine", 300), ("trust-region", 1000)):
            engine = make_engine(name, landscape.bounds, seed)
            (truth,) = simulate(engine, landscape, trials, 100, seed)
            left[name].append(landscape.remaining(truth))
    assert statistics.median(left["recombine"]) < 0.8 * statistics.median(left["trust-region"])


def test_unknown_landscapes_are_one_line() -> None:
    """A kind that is not there lists those that are."""
    with pytest.raises(CompletedpError, match="landscape 'moon' is unknown: use one of base"):
        Landscape("moon", 2, 0)
    with pytest.raises(CompletedpError, match="dimensions = 0 must be at least 1"):
        Landscape("base", 0, 0)
