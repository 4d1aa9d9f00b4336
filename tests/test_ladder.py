"""The ladder: planted losses say who goes on, and a real one is climbed on fresh seeds."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from studies import BASE, make_recipe, make_study, objective_of, write_tokens

from completedp.studies.ladder import START, Standing, climb, measure
from completedp.studies.objective import Objective
from completedp.studies.store import Store
from completedp.studies.worker import make_fold
from completedp.theory.scale import Ratios, Scale
from completedp.training.slots import Slots
from completedp.training.trials import Outcome, Trial

SCALES = [BASE.times(Ratios(tokens=2.0**rung)) for rung in range(4)]
Losses = Callable[[str, int, int], float]


@dataclass
class Planted:
    """Stands for a runner: candidates are their own names, `losses` says what each is worth."""

    losses: Losses
    """Of a candidate, on a rung, with a seed; infinite where it diverges."""
    trained: list[tuple[str, int, int]] = field(default_factory=list)

    def trial(self, recipe: str, scale: Scale, seed: int, key: Any) -> Any:
        plan: Any = recipe, SCALES.index(scale), seed
        return Trial(plan=plan, seed=seed, steps=scale.steps, key=key)

    def run(
        self, trials: list[Trial[Any]], scale: Scale, *, count: int, progress: Callable[[int], None]
    ) -> Iterator[Outcome[Any]]:
        assert count == len(trials)
        for trial in reversed(trials):  # outcomes come in no order
            self.trained.append(trial.plan)  # type: ignore[arg-type]
            loss = self.losses(*self.trained[-1])
            finite = math.isfinite(loss)
            progress(trial.steps if finite else 1)
            valid = loss if finite else None
            yield Outcome(trial=trial, status="ok", losses=[], valid_loss=valid)


def climbed(losses: Losses, names: Iterable[str], **options: Any) -> tuple[Planted, list[Any]]:
    """The ladder with planted losses: what was trained, and the names on each rung, best first."""
    planted: Any = Planted(losses)
    candidates: Any = {name: name for name in names}
    rungs = climb(planted, candidates, **({"scales": SCALES, "seeds": 2} | options))
    return planted, [[standing.candidate for standing in rung.standings] for rung in rungs]


def test_the_better_half_goes_on() -> None:
    """Each rung has the better half of the last one's, until there is none but the start."""
    names = [START, *"abcdefg"]
    planted, rungs = climbed(lambda name, rung, seed: names.index(name) + 0.1 * seed, names)
    assert rungs == [names, names[:4], names[:2]]
    assert len(planted.trained) == len(set(planted.trained)) == 2 * (8 + 4 + 2)


def test_the_start_always_goes_on() -> None:
    """The worst of all still stands on the last rung, if it is the start."""
    names = [START, *"abcd"]
    _, rungs = climbed(lambda name, rung, seed: -names.index(name), names)
    assert rungs == [["d", "c", "b", "a", START], ["d", "c", "b", START], *[["d", "c", START]] * 2]


def test_what_wins_at_the_base_alone_is_not_chosen() -> None:
    """A candidate far ahead at the base and behind on the next rung is not first, nor goes on."""

    def losses(name: str, rung: int, seed: int) -> float:
        return {START: 2.0, "solid": 1.9, "overfit": 2.5 if rung else 1.0, "bad": 3.0}[name]

    _, rungs = climbed(losses, [START, "solid", "overfit", "bad"])
    assert rungs[0][0] == "overfit"
    assert rungs[1] == ["solid", START, "overfit"]
    assert rungs[2] == ["solid", START]


def test_diverged_candidates_are_last() -> None:
    """One seed that diverges outweighs every loss, and a standing keeps it as infinite."""

    def losses(name: str, rung: int, seed: int) -> float:
        return {START: 9.0, "fine": 8.0, "wild": math.inf if seed % 2 else 0.1}[name]

    planted: Any = Planted(losses)
    candidates: Any = {name: name for name in ("wild", START, "fine")}
    rung = measure(planted, candidates, BASE, seeds=(1, 2, 3))
    assert [standing.candidate for standing in rung.standings] == ["fine", START, "wild"]
    assert rung.standings[-1].losses == (math.inf, 0.1, math.inf)  # by seed, though run backwards
    assert rung.to_dict()["standings"][-1]["losses"].count(None) == 2  # type: ignore[index]
    _, rungs = climbed(losses, ["wild", START, "fine"], seeds=3)
    assert "wild" not in rungs[1]


def test_ties_go_to_the_start() -> None:
    """What is not better than the start is not placed before it."""
    _, rungs = climbed(lambda name, rung, seed: 2.0, [START, "a", "b"])
    assert [rung[0] for rung in rungs] == [START] * 2  # then nothing else is left
    _, rungs = climbed(lambda name, rung, seed: math.inf, [START, "a"])
    assert rungs[-1][0] == START


def test_a_standing_has_a_mean_and_its_error() -> None:
    """The error is the standard deviation over the root of the seeds; of one seed it is unknown."""
    standing = Standing(candidate="a", losses=[1.0, 2.0, 3.0, 4.0])
    assert standing.mean == 2.5
    assert standing.error == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
    assert Standing(candidate="a", losses=[1.0]).error == math.inf
    assert Standing(candidate="a", losses=[1.0, math.inf]).error == math.inf


@pytest.mark.parametrize("seeds", [1, 4, 1500])
def test_every_rung_has_fresh_seeds(seeds: int) -> None:
    """No seed is on two rungs, and none is one that a study's trials can have."""
    planted, rungs = climbed(
        lambda name, rung, seed: float(name == START), [START, "a"], seeds=seeds
    )
    used = [seed for name, _, seed in planted.trained if name == "a"]
    assert len(rungs) > 1
    assert len(used) == len(set(used)) == seeds * len(rungs)
    assert min(used) >= 2**31


def test_seeds_of_trials_are_below_those_of_rungs(data: str, tmp_path: Path) -> None:
    """A study's trials have seeds below 2^31, each its own, whatever the study's seed is."""
    with Store(str(tmp_path / "store.db")) as store:
        study = make_study(store, data, seed=2**31, engine="random")
        propose = make_fold(study, objective_of(study, data)).propose
        seeds = [propose(number).seed for number in range(200)]
    assert len(set(seeds)) == 200
    assert 0 <= min(seeds) <= max(seeds) < 2**31


def test_progress_counts_every_step() -> None:
    """Steps are counted on each rung up to its total, a diverged trial's only as far as it went."""
    told: list[tuple[Scale, int, int]] = []

    def losses(name: str, rung: int, seed: int) -> float:
        return math.inf if name == "wild" else 1.0

    climbed(
        losses,
        [START, "wild"],
        scales=SCALES[:1],
        seeds=1,
        progress=lambda scale, done, total: told.append((scale, done, total)),
    )
    assert told == [(BASE, 1, 2 * BASE.steps), (BASE, 1 + BASE.steps, 2 * BASE.steps)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("ladder"))


@pytest.fixture(scope="module")
def objective(data: str, tmp_path_factory: pytest.TempPathFactory) -> Objective:
    with Store(str(tmp_path_factory.mktemp("store") / "store.db")) as store:
        return objective_of(make_study(store, data), data, slots=4)


def test_a_real_ladder(objective: Objective) -> None:
    """A learning rate that is far too low loses to the start, at the base and at a larger scale."""
    recipe = make_recipe()
    low, wild = recipe.with_values(lr=2.0**-14), recipe.with_values(lr=1e30)
    scales = [BASE, BASE.times(Ratios(width=2, depth=2, tokens=2))]
    rungs = climb(objective.runner, {"low": low, START: recipe, "wild": wild}, scales, seeds=2)
    assert [[s.candidate for s in rung.standings] for rung in rungs] == [
        [START, "low", "wild"],
        [START, "low"],
    ]
    assert rungs[0].standings[2].mean == math.inf
    assert rungs[1].scale.width == 2 * BASE.width
    first, second = rungs[0].standings[0].losses
    assert first != second  # seeds differ


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({"width": 1.3}, "width 21 is not divisible by head_dim 8"),
        ({"batch": 1.1, "tokens": 2}, "batch of 70 tokens is not a whole number of sequences"),
        ({"batch": 16, "tokens": 1}, "the largest r it can take"),
    ],
)
def test_an_impossible_rung_is_said_before_training(
    objective: Objective,
    monkeypatch: pytest.MonkeyPatch,
    ratios: dict[str, float],
    words: str,
) -> None:
    """A rung that cannot be is one line, before the rungs below it cost anything."""

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Slots, "run", forbidden)
    scales = [BASE, BASE.times(Ratios(**ratios))]
    assert words in error_of(climb, objective.runner, {START: make_recipe()}, scales, seeds=1)


def test_candidates_are_measured_as_they_are(objective: Objective) -> None:
    """On the base with one seed, a candidate's loss is that of its recipe in a slot alone."""
    recipe = make_recipe(lr=2.0**-7)
    rung = measure(objective.runner, {START: make_recipe(), "a": recipe}, BASE, seeds=(5,))
    losses = {standing.candidate: standing.losses for standing in rung.standings}
    runner = objective.runner
    (alone,) = runner.run([runner.trial(recipe, BASE, 5, None)], BASE, count=1)
    assert losses["a"] == pytest.approx([alone.valid_loss], abs=1e-5)
    assert losses["a"] != losses[START]
