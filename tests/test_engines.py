"""Engines: folds over finished trials that stay in bounds, survive divergence and find better."""

import math
import sys
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import search_engines
from hypothesis import given, settings
from hypothesis import strategies as st
from landscapes import KINDS

from completedp.common.errors import CompletedpError
from completedp.studies import trust_region
from completedp.studies.config import EngineName
from completedp.studies.engines import (
    PAPER_GRID,
    Bounds,
    Engine,
    paper_levels,
)
from completedp.studies.registry import DEFAULT_ENGINE, ENGINES, make_engine
from completedp.theory.hparams import Values

OPTIONAL = {"cma-es": "cmaes", "tpe": "optuna", "gp": "optuna"}
SLOW = ("tpe", "gp")
QUICK = [name for name in ENGINES if name not in SLOW]
History = list[tuple[int, np.ndarray, float]]


def box(dimensions: int, reach: float = 4.0) -> Bounds:
    start = np.linspace(-0.5, 0.5, dimensions)
    return Bounds(low=start - reach, high=start + reach, start=start)


def make(name: str, bounds: Bounds, seed: int = 0) -> Engine:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    if name == "paper-grid":
        levels = [list(x) for x in np.linspace(bounds.low, bounds.high, 5).T]
        return make_engine(name, bounds, seed, levels=levels)
    return make_engine(name, bounds, seed)


def bowl(point: np.ndarray, number: int) -> float:
    noise = np.random.default_rng([7, number]).normal()
    return 3.0 + 0.05 * float(((point - 1.2) ** 2).mean()) + 0.001 * float(noise)


def with_cliff(point: np.ndarray, number: int) -> float:
    return math.inf if point[0] > 1.0 or number % 13 == 5 else bowl(point, number)


def drive(
    engine: Engine,
    objective: Callable[[np.ndarray, int], float],
    trials: int,
    in_flight: int,
    order: int = 0,
) -> tuple[History, list[np.ndarray]]:
    """Keep some trials running, finish a random one each time; what was told, what was asked."""
    rng = np.random.default_rng(order)
    running: list[int] = []
    told: History = []
    asked: list[np.ndarray] = []
    while len(told) < trials:
        while len(running) < in_flight and len(asked) < trials:
            running.append(len(asked))
            asked.append(engine.ask(len(asked)))
        number = running.pop(int(rng.integers(len(running))))
        told.append((number, asked[number], objective(asked[number], number)))
        engine.tell(*told[-1])
    return told, asked


def retell(engine: Engine, history: History) -> Engine:
    for trial in history:
        engine.tell(*trial)
    return engine


@pytest.mark.parametrize("name", ENGINES)
def test_same_seed_same_sequence(name: str) -> None:
    """The same seed and finishing order give the same points, another seed gives others."""
    trials = 15 if name in SLOW else 60
    first, again, other = (
        drive(make(name, box(4), seed), with_cliff, trials, 8)[1] for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first[1:], other[1:])


@pytest.mark.parametrize("name", QUICK)
@given(
    dimensions=st.integers(1, 6),
    trials=st.integers(1, 130),
    in_flight=st.integers(1, 40),
    order=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_a_rebuilt_fold_is_the_one_that_lived(
    name: str, dimensions: int, trials: int, in_flight: int, order: int
) -> None:
    """An engine told the history at once asks and recommends what one that lived it does."""
    bounds = box(dimensions)
    lived = make(name, bounds)
    history, _ = drive(lived, with_cliff, trials, in_flight, order)
    rebuilt = retell(make(name, bounds), history)
    assert rebuilt.describe() == lived.describe()
    assert np.array_equal(rebuilt.recommend(), lived.recommend())
    for number in (trials, trials + 7, trials + 1):
        assert np.array_equal(rebuilt.ask(number), lived.ask(number))


@pytest.mark.parametrize("name", SLOW)
def test_a_rebuilt_optuna_engine_is_the_one_that_lived(name: str) -> None:
    """Optuna's samplers, too, ask the same after a restart, failed asks or not."""
    bounds = box(3)
    lived = make(name, bounds)
    history, _ = drive(lived, with_cliff, 16, 4)
    rebuilt = retell(make(name, bounds), history)
    assert np.array_equal(rebuilt.ask(16), lived.ask(16))
    assert np.array_equal(rebuilt.ask(17), lived.ask(17))


@pytest.mark.parametrize("name", QUICK)
def test_resuming_in_the_middle_changes_nothing(name: str) -> None:
    """A search stopped after 57 trials and rebuilt goes on to the points of one never stopped."""
    bounds = box(5)
    history, asked = drive(make(name, bounds), with_cliff, 120, 1)
    resumed = retell(make(name, bounds), history[:57])
    for number in range(57, 120):
        point = resumed.ask(number)
        assert np.array_equal(point, asked[number])
        resumed.tell(number, point, with_cliff(point, number))


@pytest.mark.parametrize("name", ENGINES)
def test_asks_stay_within_bounds(name: str) -> None:
    """Every ask and recommendation is within bounds, the first is the start, a fixed one stays."""
    start = np.array([0.0, 1.0, 2.0, -1.0])
    below, above = np.array([[0.1, 2.0, 0.0, 0.3], [0.2, 0.0, 0.0, 3.0]])
    bounds = Bounds(low=start - below, high=start + above, start=start)
    engine = make(name, bounds)
    _, asked = drive(engine, bowl, 20 if name in SLOW else 150, 6)
    assert np.array_equal(asked[0], start)
    for point in [*asked, engine.recommend()]:
        assert point.dtype == np.float64
        assert (point >= bounds.low).all()
        assert (point <= bounds.high).all()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("bad", [math.inf, math.nan, -math.inf])
def test_everything_diverging_crashes_nothing(name: str, bad: float) -> None:
    """When all trials diverge the engine counts them, goes on asking and recommends the start."""
    trials = 15 if name in SLOW else 130
    engine = make(name, box(3))
    drive(engine, lambda point, number: bad, trials, 10)
    assert engine.diverged == engine.told == trials
    assert np.array_equal(engine.recommend(), engine.bounds.start)
    assert np.isfinite(engine.ask(trials)).all()
    assert engine.describe()["best_loss"] == math.inf


@pytest.mark.parametrize("name", QUICK)
@given(
    losses=st.lists(
        st.one_of(
            st.floats(-10.0, 10.0), st.floats(), st.sampled_from([math.inf, 3.0, 1e11, 1e308])
        ),
        min_size=30,
        max_size=90,
    )
)
@settings(max_examples=40, deadline=None)
def test_any_losses_are_survived(name: str, losses: list[float]) -> None:
    """Whatever floats come as losses, equal, huge or not a number, points stay finite."""
    engine = make(name, box(3))
    _, asked = drive(engine, lambda point, number: losses[number], len(losses), 5)
    assert np.isfinite(asked).all()
    assert np.isfinite(engine.recommend()).all()
    assert np.isfinite(engine.ask(len(losses))).all()


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_beats_the_start_on_a_bowl(name: str) -> None:
    """On a smooth bowl in six dimensions each engine's recommendation is truly better."""
    engine = make(name, box(6, reach=2.0))
    drive(engine, bowl, 40 if name in SLOW else 300, 8)
    distance = np.abs(engine.recommend() - 1.2).mean()
    assert distance < 0.8 * np.abs(engine.bounds.start - 1.2).mean()


def test_the_papers_box_shrinks_after_exactly_100_trials() -> None:
    """The box is 1; 0.7 of it from the hundredth trial without improvement on, 0.49 after 200."""
    engine: Any = make_engine("trust-region", box(2), 0)
    point = engine.bounds.start
    engine.tell(0, point, 3.0)
    for number in range(1, 100):
        engine.tell(number, point, math.inf if number % 2 else 3.0)
    assert engine.radius == 1.0
    engine.tell(100, point, 3.0)
    assert engine.radius == 0.7
    for number in range(101, 200):
        engine.tell(number, point, 3.1)
    assert engine.radius == 0.7
    engine.tell(200, point, 3.1)
    assert engine.radius == pytest.approx(0.49)


def test_an_improvement_starts_the_papers_count_again() -> None:
    """A better trial, however late, keeps the box for a hundred trials more."""
    engine: Any = make_engine("trust-region", box(2), 0)
    point = engine.bounds.start
    for number in range(100):
        engine.tell(number, point, 3.0)
    engine.tell(100, point, 2.9)
    for number in range(101, 200):
        engine.tell(number, point, 3.0)
    assert engine.radius == 1.0
    engine.tell(200, point, 3.0)
    assert engine.radius == 0.7


def test_the_papers_box_is_around_the_best_trial() -> None:
    """Points fill the box of one octave around the best trial so far, and only that."""
    engine = make_engine("trust-region", box(3), 0)
    best = np.array([1.0, -1.0, 0.5])
    engine.tell(0, engine.bounds.start, 3.0)
    engine.tell(1, best, 2.5)
    engine.tell(2, np.zeros(3), 2.6)
    away = np.array([engine.ask(number) - best for number in range(3, 400)])
    assert np.abs(away).max() <= 1.0
    assert away.max(axis=0) == pytest.approx([1.0] * 3, abs=0.05)
    assert away.min(axis=0) == pytest.approx([-1.0] * 3, abs=0.05)


def test_one_lucky_trial_does_not_carry_the_default_away() -> None:
    """A far point with an impossibly good loss is the paper's centre, and hardly moves ours."""
    bounds = box(5)
    history, _ = drive(make("recombine", bounds), lambda point, number: 3.0 + number % 7, 99, 1)
    lucky = bounds.start + 3.0
    paper, default = (
        retell(make(name, bounds), [*history, (99, lucky, 0.0)])
        for name in ("trust-region", "recombine")
    )
    without = retell(make("recombine", bounds), history)
    assert np.array_equal(paper.recommend(), lucky)
    moved = default.recommend() - without.recommend()
    assert np.linalg.norm(moved) < 0.3 * np.linalg.norm(lucky - without.recommend())


def test_the_default_avoids_what_diverges() -> None:
    """Near a cliff at most two thirds as many points fall beyond it as without the filter."""
    engine: Any = make("recombine", box(6))
    edge = engine.bounds.start[1] + 0.2
    # The best points are at the edge, so the box reaches beyond it.
    drive(engine, lambda p, n: math.inf if p[1] > edge else 3.0 - p[1], 100, 10)

    def lost() -> int:
        return sum(engine.ask(number)[1] > edge for number in range(100, 600))

    filtered = lost()
    engine._risk = None
    assert 0 < filtered < 0.67 * lost()


def test_the_defaults_box_follows_success() -> None:
    """The box shrinks to its floor when nothing gets better, below it only when trials diverge."""
    engine: Any = make_engine("recombine", box(2), 0)
    point = engine.bounds.start
    for number in range(1000):
        engine.tell(number, point, 3.0 + number)
    floor = engine.radius
    assert 0.25 < floor <= 0.3
    for number in range(1000, 1200):
        engine.tell(number, point, math.inf)
    assert engine.radius < 0.6 * floor
    for number in range(1200, 1400):
        engine.tell(number, point, 2.0 - number)
    assert engine.radius == 1.0


@pytest.mark.parametrize("name", QUICK)
def test_a_forecast_is_never_the_best(name: str) -> None:
    """The estimated loss of a stopped trial, however low, is not taken for the best trial's."""
    engine = make(name, box(3))
    measured = engine.ask(1)
    engine.tell(1, measured, 3.0)
    for number in range(2, 6):
        engine.tell(number, engine.ask(number), 1.0, estimated=True)
    assert engine.best_loss == 3.0
    assert np.array_equal(engine.best_point, measured)
    assert engine.told == 5


def test_the_default_centres_on_whole_trials_alone() -> None:
    """Stopped trials move neither the mean of the best nor, by their low losses, the box."""
    engine: Any = make_engine("recombine", box(3), 0)
    rng = np.random.default_rng(0)
    for number in range(18):  # too few for the regression
        point = rng.uniform(-0.1, 0.1, 3) + (number % 2)
        engine.tell(number, point, 1.0 if number % 2 else 3.0, estimated=bool(number % 2))
    assert np.abs(engine.recommend()).max() < 0.1
    before = engine.radius
    for number in range(18, 60):
        engine.tell(number, engine.bounds.start, 3.0)
    for number in range(60, 80):
        engine.tell(number, engine.bounds.start, 0.1, estimated=True)
    assert engine.radius < before


def test_a_forecast_weighs_less_in_the_defaults_regression() -> None:
    """Where forecasts and whole trials at the same points disagree, the whole ones outweigh."""
    leaning = []
    for sign in (1.0, -1.0):
        engine: Any = make_engine("recombine", box(2), 0)
        for number in range(80):
            point = engine.bounds.start + np.random.default_rng(number // 2).uniform(-1, 1, 2)
            whole = number % 2 == 0
            loss = 3.0 + (sign if whole else -sign) * 0.1 * point[0]
            engine.tell(number, point, loss, estimated=not whole)
        engine._fit()
        leaning.append(engine._model.slopes[0])
    assert leaning[0] > 0.01
    assert leaning[1] < -0.01


def test_the_default_is_fitted_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks between two fits make none: a fit is of the trials up to the last multiple of ten."""
    engine: Any = make_engine("recombine", box(2), 0)
    fitted = []
    fit = trust_region._Quadratic.fit

    def counted(points: np.ndarray, *rest: np.ndarray) -> Any:
        fitted.append(len(points))
        return fit(points, *rest)

    monkeypatch.setattr(trust_region._Quadratic, "fit", counted)
    for number in range(60):
        point = engine.ask(number)
        engine.tell(number, point, bowl(point, number))
    engine.ask(60)
    every = trust_region.REFIT_EVERY
    assert fitted == list(range(2 * every, 61, every))


def test_cma_waits_for_its_generation() -> None:
    """An update comes with the P-th finished trial of the generation; left-overs do not count."""
    pytest.importorskip("cmaes")
    engine = make_engine("cma-es", box(3), 0, population=6)

    def generation() -> float:
        return engine.describe()["generation"]

    points = [engine.ask(number) for number in range(10)]
    for number in range(6):
        assert generation() == 0
        engine.tell(number, points[number], bowl(points[number], number))
    assert generation() == 1
    fresh = {number: engine.ask(number) for number in range(10, 16)}
    for number in range(6, 10):
        engine.tell(number, points[number], bowl(points[number], number))
    for number, point in fresh.items():
        assert generation() == 1
        engine.tell(number, point, bowl(point, number))
    assert generation() == 2


def test_cma_updates_with_the_best_of_all_that_finished() -> None:
    """Bad left-overs of an older generation leave the update as it is without them."""
    pytest.importorskip("cmaes")
    recommended = []
    for left_overs in (False, True):
        engine: Any = make_engine("cma-es", box(3), 0, population=6)
        points = [engine.ask(number) for number in range(10)]
        for number in range(6):
            engine.tell(number, points[number], bowl(points[number], number))
        fresh = {number: engine.ask(number) for number in range(10, 16)}
        if left_overs:
            for number in range(6, 10):
                engine.tell(number, points[number], 9.0 + number)
        for number, point in fresh.items():
            engine.tell(number, point, bowl(point, number))
        recommended.append(engine.ask(99))
    assert np.array_equal(*recommended)


def test_grid_points_are_levels() -> None:
    """Every point of the grid search takes each coordinate from its levels, and all get used."""
    levels = [[-1.0, 0.0, 2.0], [0.5]]
    bounds = Bounds(low=[-2, 0], high=[2, 1], start=[0, 0])  # type: ignore[arg-type]
    engine = make_engine("paper-grid", bounds, 0, levels=levels)
    points = np.array([engine.ask(number) for number in range(1, 60)])
    assert set(points[:, 0]) == set(levels[0])
    assert set(points[:, 1]) == {0.5}


def test_the_papers_grid_as_levels() -> None:
    """Levels are log2 multipliers that turn the start's values into the paper's."""
    values = Values(lr=2.0**-8, beta1=0.9)
    levels = paper_levels(["lr/global", "one_minus_beta1/global"], values)
    assert 2.0**-8 * 2.0 ** np.array(levels[0]) == pytest.approx(PAPER_GRID["lr"])
    assert 0.1 * 2.0 ** np.array(levels[1]) == pytest.approx(PAPER_GRID["one_minus_beta1"])
    assert [len(PAPER_GRID[t]) for t in ("lr", "eps", "weight_decay")] == [10, 7, 6]


def test_mistakes_are_one_line() -> None:
    """Unknown names, impossible values and shapes say what to do."""
    bounds = box(2)
    assert DEFAULT_ENGINE in ENGINES
    with pytest.raises(CompletedpError, match="'annealing' is unknown: use one of random, paper-"):
        make_engine("annealing", bounds, 0)
    with pytest.raises(CompletedpError, match="levels for 1 coordinates where the study has 2"):
        make_engine("paper-grid", bounds, 0, levels=[[0.0]])
    with pytest.raises(CompletedpError, match=r"levels \[9.0\] of coordinate 1"):
        make_engine("paper-grid", bounds, 0, levels=[[0.0], [9.0]])
    with pytest.raises(CompletedpError, match="trial 3 has 5 coordinates where the study has 2"):
        make_engine("random", bounds, 0).tell(3, np.zeros(5), 1.0)
    with pytest.raises(CompletedpError, match="no 'lr/type/qkv', only lr/global, eps"):
        paper_levels(["lr/type/qkv"], Values(lr=0.01))
    with pytest.raises(CompletedpError, match=r"coordinate 1: start 3.0 must be within"):
        Bounds(low=np.zeros(2), high=np.ones(2), start=np.array([0.5, 3.0]))
    with pytest.raises(CompletedpError, match="must be vectors of one length"):
        Bounds(low=np.zeros(2), high=np.ones(3), start=np.zeros(2))


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_missing_package_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its optional package an engine says which extra to install."""
    monkeypatch.setitem(sys.modules, OPTIONAL[name], None)
    with pytest.raises(CompletedpError, match=rf"'{name}' needs .*completedp\[optuna\]"):
        make_engine(name, box(2), 0)


def test_names_of_engines_agree() -> None:
    """What the command line offers is what there is; a grid is offered as the paper's."""
    offered = set(get_args(EngineName))
    assert offered == set(ENGINES)
    benched = get_args(get_args(get_type_hints(search_engines.Comparison)["engines"])[0])
    assert set(benched) == set(ENGINES) - {"paper-grid"}
    landscapes = get_args(get_args(get_type_hints(search_engines.Comparison)["landscapes"])[0])
    assert set(landscapes) == {*KINDS, search_engines.SURROGATE}
