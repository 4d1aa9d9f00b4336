"""Early stopping: on families of curves like real ones, what it stops and what it never does."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from completedp.search.stopping import AT_LEAST, RECENT, SMOOTHED_OVER, EarlyStop

NOISE = 0.05
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
            if done < steps and rule.hopeless(curve.losses[:done].tolist()):
                break
        seen, loss, status = curve.losses[:done], curve.end, "ok"
        if done < steps:
            loss, status = rule.estimate(seen.tolist()), "stopped"
            found.estimates[number] = loss
        rule.tell(seen.astype(np.float32), loss, status)
        found.ends.append(curve.end)
        found.trained.append(done)
    return found


def whole(rule: EarlyStop, count: int, steps: int, end: float = 3.0) -> None:
    """Tell the rule of so many trainings that went to their end."""
    for seed in range(count):
        curve = parallel(end, steps, seed)
        rule.tell(curve.losses, curve.end, "ok")


@pytest.mark.parametrize("steps", [100, 400])
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
        assert rule.estimate(bad.losses[:length].tolist()) == pytest.approx(
            3.7, abs=4 * NOISE / math.sqrt(SMOOTHED_OVER)
        )


def test_nothing_is_stopped_before_enough_is_known() -> None:
    """The worst of curves goes on until AT_LEAST trials have been seen to their end."""
    steps = 100
    rule = EarlyStop(steps)
    terrible = parallel(50.0, steps).losses.tolist()
    whole(rule, AT_LEAST - 1, steps)
    for _ in range(AT_LEAST):  # these say nothing of how curves end
        rule.tell(terrible[:40], 50.0, "stopped")
    assert not rule.hopeless(terrible[:60])
    whole(rule, 1, steps)
    assert rule.hopeless(terrible[:60])


def test_judged_at_marks_alone() -> None:
    """Before a quarter of its steps no trial is stopped, and from there the worse half is."""
    steps = 400
    rule = EarlyStop(steps)
    for number in range(40):
        curve = parallel(3.0 + number / 10, steps, number)
        rule.tell(curve.losses, curve.end, "ok")
    bad, good = parallel(6.5, steps).losses.tolist(), parallel(3.5, steps).losses.tolist()
    assert not rule.hopeless(bad[:99])
    assert rule.hopeless(bad[:100])
    assert rule.hopeless(bad[:300])
    assert not any(rule.hopeless(good[:length]) for length in range(1, steps))


def test_diverged_trials_change_nothing() -> None:
    """However many diverge, with whatever curves, judgements and estimates stay as they were."""
    steps = 100
    rule, other = EarlyStop(steps), EarlyStop(steps)
    rng = np.random.default_rng(0)
    for seed in range(60):
        curve = parallel(3.0 + seed / 60, steps, seed)
        for each in (rule, other):
            each.tell(curve.losses, curve.end, "ok")
        length = int(rng.integers(0, steps))
        wild = np.where(rng.random(length) < 0.5, 1e9, -1e9)
        other.tell(wild, math.inf, "diverged")
    for end in np.linspace(2.5, 4.5, 20):
        losses = parallel(float(end), steps).losses[:60].tolist()
        assert rule.hopeless(losses) == other.hopeless(losses)
        assert rule.estimate(losses) == other.estimate(losses)


@pytest.mark.parametrize("steps", [1, 5, SMOOTHED_OVER - 1, SMOOTHED_OVER])
def test_trainings_too_short_to_judge_are_left_alone(steps: int) -> None:
    """With no more steps than a mean takes, nothing is ever stopped."""
    rule = EarlyStop(steps)
    whole(rule, 2 * AT_LEAST, steps)
    terrible = parallel(50.0, steps).losses.tolist()
    assert not any(rule.hopeless(terrible[:length]) for length in range(steps + 1))


def test_short_trainings_are_judged_once_there_is_a_mean() -> None:
    """A little longer than a mean, the bad are stopped when it is complete, the good are not."""
    steps = SMOOTHED_OVER + 5
    rule = EarlyStop(steps)
    whole(rule, AT_LEAST, steps)
    bad, good = parallel(3.5, steps).losses.tolist(), parallel(2.5, steps).losses.tolist()
    assert not rule.hopeless(bad[: SMOOTHED_OVER - 1])
    assert rule.hopeless(bad[:SMOOTHED_OVER])
    assert not rule.hopeless(good[:SMOOTHED_OVER])
    assert rule.estimate(bad[:SMOOTHED_OVER]) == pytest.approx(3.5, abs=4 * NOISE)


def test_the_bar_rises_as_the_search_improves() -> None:
    """What old trials were like is forgotten: neither the bar nor an estimate is theirs."""
    steps, overfit = 100, 0.5
    rule = EarlyStop(steps)
    for seed in range(2 * RECENT):
        curve = parallel(3.0 + seed / (2 * RECENT), steps, seed)
        rule.tell(curve.losses, curve.end + overfit, "ok")
    middling = parallel(3.2, steps).losses[:60].tolist()
    assert not rule.hopeless(middling)
    assert rule.estimate(middling) == pytest.approx(3.2 + overfit, abs=NOISE)
    whole(rule, RECENT, steps, end=2.5)
    assert rule.hopeless(middling)
    assert rule.estimate(middling) == pytest.approx(3.2, abs=NOISE)
