"""The surrogate: a landscape that is known, recovered from trials on it."""

import math
from pathlib import Path

import numpy as np
import pytest
import search_engines
from helpers import error_of
from landscapes import Landscape, simulate
from surrogate import Surrogate

from completedp.studies.registry import make_engine

KNOWN = Landscape("base", 8, seed=3)
STEEP = Landscape("cliff", 8, seed=3)


def trials_on(known: Landscape) -> tuple[np.ndarray, np.ndarray]:
    """Points around the start and the optimum, and what one run at each gave."""
    rng = np.random.default_rng(0)
    part = rng.uniform(0, 1.2, (500, 1))
    points = part * known.optimum + rng.normal(0, 0.8, (500, 8))
    points = np.array([known.bounds.clip(point) for point in points])
    return points, np.array([known.measure(point, rng) for point in points])


@pytest.fixture(scope="module")
def surrogate() -> Surrogate:
    return Surrogate(*trials_on(KNOWN), KNOWN.bounds)


def test_it_predicts_points_it_has_not_seen(surrogate: Surrogate) -> None:
    """Between the trials its truth follows the landscape's, far better than their mean does."""
    rng = np.random.default_rng(1)
    points = rng.uniform(0, 1, (100, 1)) * KNOWN.optimum + rng.normal(0, 0.4, (100, 8))
    safe = [p for p in points if KNOWN._beyond(p) < -0.5]
    known = np.array([KNOWN.truth(p) for p in safe])
    found = np.array([surrogate.loss(p) for p in safe])
    assert len(safe) > 20
    assert np.std(found - known) < 0.4 * np.std(known)


def test_its_noise_is_the_landscapes(surrogate: Surrogate) -> None:
    """Seeds differ by as much as they did in the trials and what the process does not follow."""
    rng = np.random.default_rng(2)
    losses = [surrogate.measure(KNOWN.start, rng) for _ in range(200)]
    spread = np.std([loss for loss in losses if math.isfinite(loss)])
    assert spread == pytest.approx(surrogate.noise, rel=0.3)
    _, known = trials_on(KNOWN)
    assert 0.5 * KNOWN.kind.noise < spread < 0.2 * np.std(known[np.isfinite(known)])


def test_its_optimum_is_good_in_truth(surrogate: Surrogate) -> None:
    """What is best on the surrogate closes most of the gap on the landscape it was made from."""
    assert surrogate.remaining(surrogate.truth(surrogate.start)) == pytest.approx(100)
    assert surrogate.remaining(surrogate.truth(surrogate.optimum)) == pytest.approx(0)
    assert KNOWN._bowl(surrogate.optimum) < 0.5 * KNOWN._bowl(KNOWN.start)


def test_where_trials_diverged_it_may() -> None:
    """Far beyond a cliff a run is more likely to diverge than at the start."""
    rng = np.random.default_rng(3)
    points, losses = trials_on(STEEP)
    assert np.isinf(losses).sum() > 20
    surrogate = Surrogate(points, losses, STEEP.bounds)
    beyond = STEEP.start + 5.0 * STEEP._directions[0]

    def rate(point: np.ndarray) -> float:
        return float(np.mean([math.isinf(surrogate.measure(point, rng)) for _ in range(200)]))

    assert rate(beyond) > rate(STEEP.start)


def test_engines_search_it(surrogate: Surrogate) -> None:
    """A search on the surrogate is repeatable and closes some of its gap."""
    looks = [
        simulate(make_engine("recombine", surrogate.bounds, 0), surrogate, 200, 8, seed=0)
        for _ in range(2)
    ]
    assert looks[0] == looks[1]
    assert surrogate.remaining(looks[0][-1]) < 60


def test_it_is_read_from_a_file(surrogate: Surrogate, tmp_path: Path) -> None:
    """Written trials give the same surrogate; what is no such file is one line."""
    points, losses = trials_on(KNOWN)
    path = tmp_path / "trials.npz"
    bounds = {name: getattr(KNOWN.bounds, name) for name in ("low", "high", "start")}
    np.savez_compressed(path, points=points, losses=losses, **bounds)
    point = KNOWN.optimum / 2
    assert Surrogate.load(path).truth(point) == pytest.approx(surrogate.truth(point))
    (tmp_path / "no.npz").write_text("not trials")
    assert "no.npz" in error_of(Surrogate.load, tmp_path / "no.npz")
    assert "gone.npz" in error_of(Surrogate.load, tmp_path / "gone.npz")
    assert "too few" in error_of(Surrogate, points[:20], losses[:20], KNOWN.bounds)


@pytest.mark.slow
def test_the_shipped_trials_make_a_landscape_to_search() -> None:
    """search_engines.py runs on them in their own dimensions, and a search there gets better."""
    run = search_engines._run(("recombine", "surrogate", 0, 16, 0, 100))
    assert run["dimensions"] == 91
    assert run["left"][100] < 90
