"""Early stopping: on families of curves like real ones, what it stops and what it never does."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from completedp.studies.stopping import AT_LEAST, LEARNT_FROM, RECENT, SMOOTHED_OVER, EarlyStop

NOISE = 0.05
NUMBERS = itertools.count()
"""A number for each trial that no test asks about by its number."""
POINT = np.zeros(3)
"""Where trials are whose curves do not depend on it."""
CHECK_EVERY = 20


@dataclass
class Curve:
    """A training: the losses of its steps, and where it ends on held-out text."""

    losses: np.ndarray
    end: float


def power_laws(count: int, steps: int, seed: int) -> Iterator[Curve]:
    """Random points: floors, amplitudes and exponents differ, so that curves cross."""
    rng = np.random.default_rng(seed)
    step = np.arange(1, steps + 1)
    for _ in range(count):
        badness = rng.exponential()
        height = (3.0 + 0.15 * badness) * math.exp(0.1 * rng.normal())
        clean = 2.0 + 0.1 * badness + height * (step + 3.0) ** -(0.35 + 0.05 * rng.normal())
        yield Curve(clean + NOISE * rng.normal(size=steps), float(clean[-1]))


def parallel(end: float, steps: int, seed: int = 0) -> Curve:
    """A curve of one shape, ending there."""
    clean = 3.0 * np.arange(1, steps + 1) ** -0.4
    noise = NOISE * np.random.default_rng(seed).normal(size=steps)
    return Curve(clean - clean[-1] + end + noise, end)


@dataclass
class Searched:
    """What a search with the rule did with its curves."""

    ends: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    estimates: dict[int, float] = field(default_factory=dict)
    """Of the trials that were stopped."""


def search(curves: Iterator[Curve], steps: int) -> Searched:
    """One trial after the other, judged every few steps as slots do."""
    rule, found = EarlyStop(steps), Searched()
    for number, curve in enumerate(curves):
        done = 0
        while done < steps:
            done = min(steps, done + CHECK_EVERY)
            if done < steps and rule.hopeless([(number, curve.losses[:done])])[0]:
                break
        seen, loss, status = curve.losses[:done], curve.end, "ok"
        if done < steps:
            loss, status = rule.estimate(POINT, seen.tolist()), "stopped"
            found.estimates[number] = loss
        rule.tell(number, POINT, seen.astype(np.float32), loss, status)
        found.ends.append(curve.end)
        found.trained.append(done)
    return found


def whole(rule: EarlyStop, count: int, steps: int, end: float = 3.0) -> None:
    """Tell the rule of so many trainings that went to their end."""
    for seed in range(count):
        curve = parallel(end, steps, seed)
        rule.tell(next(NUMBERS), POINT, curve.losses, curve.end, "ok")


def hopeless(rule: EarlyStop, losses: list[float]) -> bool:
    """Whether a trial that is first seen now is to be stopped."""
    return rule.hopeless([(next(NUMBERS), losses)])[0]


@pytest.mark.parametrize("steps", [160, 400])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_random_search_saves_steps_and_keeps_the_best(steps: int, seed: int) -> None:
    """Of 300 trials at least 30% of the steps are saved, and of the best tenth 1 at most."""
    found = search(power_laws(300, steps, seed), steps)
    assert sum(found.trained) <= 0.7 * 300 * steps
    best = np.argsort(found.ends)[:30].tolist()
    assert best[0] not in found.estimates
    assert len(found.estimates.keys() & set(best)) <= 1


@pytest.mark.parametrize("steps", [100, 400])
def test_stopped_trials_are_estimated_near_their_ends(steps: int) -> None:
    """Estimates err by less than the losses differ, keep their order, and none is the best."""
    found = search(power_laws(300, steps, seed=3), steps)
    ends = np.array([found.ends[number] for number in found.estimates])
    estimates = np.array(list(found.estimates.values()))
    assert np.abs(estimates - ends).mean() < 0.5 * np.std(found.ends)
    assert np.corrcoef(estimates, ends)[0, 1] > 0.9
    assert estimates.min() > min(found.ends)


def test_an_estimate_of_a_known_shape_is_exact_to_noise() -> None:
    """Where all curves fall alike, a stopped one's end is known to the noise of its mean."""
    steps = 200
    rule = EarlyStop(steps)
    whole(rule, AT_LEAST, steps)
    for length in (50, 60, 100):
        bad = parallel(3.7, steps, seed=99)
        assert rule.estimate(POINT, bad.losses[:length].tolist()) == pytest.approx(
            3.7, abs=4 * NOISE / math.sqrt(SMOOTHED_OVER)
        )


def test_nothing_is_stopped_before_enough_is_known() -> None:
    """The worst of curves goes on until AT_LEAST trials have been seen to their end."""
    steps = 100
    rule = EarlyStop(steps)
    terrible = parallel(50.0, steps).losses.tolist()
    whole(rule, AT_LEAST - 1, steps)
    for _ in range(5):  # these say nothing of how curves end
        rule.tell(next(NUMBERS), POINT, terrible[:40], 50.0, "stopped")
    assert not hopeless(rule, terrible[:60])
    whole(rule, 1, steps)
    assert hopeless(rule, terrible[:60])


def test_judged_at_marks_alone() -> None:
    """Before a quarter of its steps no trial is stopped, and from there the bad ones are."""
    steps = 400
    rule = EarlyStop(steps)
    for number in range(40):
        curve = parallel(3.0 + number / 10, steps, number)
        rule.tell(next(NUMBERS), POINT, curve.losses, curve.end, "ok")
    bad, good = parallel(6.5, steps).losses.tolist(), parallel(3.5, steps).losses.tolist()
    assert not hopeless(rule, bad[:99])
    assert hopeless(rule, bad[:100])
    assert hopeless(rule, bad[:300])
    assert not any(hopeless(rule, good[:length]) for length in range(1, steps))


def test_diverged_trials_change_nothing() -> None:
    """However many diverge, with whatever curves, judgements and estimates stay as they were."""
    steps = 100
    rule, other = EarlyStop(steps), EarlyStop(steps)
    rng = np.random.default_rng(0)
    for seed in range(60):
        curve = parallel(3.0 + seed / 60, steps, seed)
        for each in (rule, other):
            each.tell(seed, POINT, curve.losses, curve.end, "ok")
        length = int(rng.integers(0, steps))
        wild = np.where(rng.random(length) < 0.5, 1e9, -1e9)
        if length % 2:  # judged here while it ran, when nothing was wrong with it yet
            other.hopeless([(1000 + seed, parallel(9.0, steps).losses[:60])])
        other.tell(1000 + seed, POINT, wild, math.inf, "diverged")
    for end in np.linspace(2.5, 4.5, 20):
        losses = parallel(float(end), steps).losses[:60].tolist()
        assert hopeless(rule, losses) == hopeless(other, losses)
        assert rule.estimate(POINT, losses) == other.estimate(POINT, losses)


@pytest.mark.parametrize("steps", [1, 5, SMOOTHED_OVER - 1, SMOOTHED_OVER])
def test_trainings_too_short_to_judge_are_left_alone(steps: int) -> None:
    """With no more steps than a mean takes, nothing is ever stopped."""
    rule = EarlyStop(steps)
    whole(rule, 2 * AT_LEAST, steps)
    terrible = parallel(50.0, steps).losses.tolist()
    assert not any(hopeless(rule, terrible[:length]) for length in range(steps + 1))


def test_short_trainings_are_judged_once_there_is_a_mean() -> None:
    """A little longer than a mean, the bad are stopped when it is complete, the good are not."""
    steps = SMOOTHED_OVER + 5
    rule = EarlyStop(steps)
    whole(rule, AT_LEAST, steps)
    bad, good = parallel(3.5, steps).losses.tolist(), parallel(2.5, steps).losses.tolist()
    assert not hopeless(rule, bad[: SMOOTHED_OVER - 1])
    assert hopeless(rule, bad[:SMOOTHED_OVER])
    assert not hopeless(rule, good[:SMOOTHED_OVER])
    assert rule.estimate(POINT, bad[:SMOOTHED_OVER]) == pytest.approx(3.5, abs=4 * NOISE)


def test_the_bar_rises_as_the_search_improves() -> None:
    """What old trials were like is forgotten: neither the bar nor an estimate is theirs."""
    steps, overfit = 100, 0.5
    rule = EarlyStop(steps)
    for seed in range(2 * RECENT):
        curve = parallel(3.0 + seed / (2 * RECENT), steps, seed)
        rule.tell(next(NUMBERS), POINT, curve.losses, curve.end + overfit, "ok")
    middling = parallel(3.2, steps).losses[:60].tolist()
    assert not hopeless(rule, middling)
    assert rule.estimate(POINT, middling) == pytest.approx(3.2 + overfit, abs=NOISE)
    whole(rule, LEARNT_FROM, steps, end=2.5)
    assert hopeless(rule, middling)
    assert rule.estimate(POINT, middling) == pytest.approx(3.2, abs=NOISE)


def test_each_is_judged_once() -> None:
    """Passed as one of the better, a trial is left alone, whoever comes."""
    steps = 400
    rule = EarlyStop(steps)
    whole(rule, RECENT, steps, end=3.0)
    curve = parallel(2.8, steps).losses
    assert rule.hopeless([(-1, curve[:100])]) == [False]
    whole(rule, RECENT, steps, end=2.5)
    assert rule.hopeless([(-1, curve[:180])]) == [False]
    assert rule.hopeless([(-2, curve[:180])]) == [True]


def test_a_trial_counts_where_it_passed_and_not_again_at_its_end() -> None:
    """The bar is of those that passed last: one that ends long after is not among them again."""
    steps = 400
    rule = EarlyStop(steps)
    whole(rule, AT_LEAST, steps, end=3.0)
    good = parallel(2.0, steps)
    assert rule.hopeless([(-1, good.losses[:100])]) == [False]
    whole(rule, RECENT, steps, end=3.0)
    before = dict(rule._there)
    rule.tell(-1, POINT, good.losses, good.end, "ok")
    assert rule._there == before


def test_those_that_run_are_compared_with_each_other() -> None:
    """A round much better than all before it still loses its worse half."""
    steps = 400
    rule = EarlyStop(steps)
    whole(rule, AT_LEAST, steps, end=5.0)
    running = [(-1 - n, parallel(3.0 + n / 10, steps, n).losses[:100]) for n in range(RECENT)]
    assert rule.hopeless(running) == [n >= RECENT / 2 for n in range(RECENT)]


def test_estimates_know_where_curves_cross() -> None:
    """Where a coordinate decides how far curves fall after the mark, the estimate follows it."""
    steps, rng = 400, np.random.default_rng(0)
    rule = EarlyStop(steps)
    later = np.linspace(0, 1, steps) ** 2

    def crossing(point: np.ndarray, seed: int) -> np.ndarray:
        return parallel(3.0, steps, seed).losses - 0.5 * point[0] * later

    for seed in range(300):
        point = rng.normal(size=3)
        curve = crossing(point, seed)
        rule.tell(seed, point, curve, 3.0 - 0.5 * point[0], "ok")
    for first in (-1.0, 1.0):
        point = np.array([first, 0.0, 0.0])
        found = rule.estimate(point, crossing(point, 999)[:100])
        assert found == pytest.approx(3.0 - 0.5 * first, abs=0.2)
