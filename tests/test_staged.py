"""A search in stages: what each moves, when the second begins, and what it is good for."""

import inspect
import math
from pathlib import Path

import numpy as np
import pytest
from studies import make_study, objective_of, write_tokens

from completedp.studies import staged
from completedp.studies.candidates import FIRST_STAGE, RECOMMENDED, WITHOUT_LR, candidates
from completedp.studies.config import StudyConfig
from completedp.studies.engines import Bounds, Engine, Proposal
from completedp.studies.registry import make_engine
from completedp.studies.session import search
from completedp.studies.sites import ROUND, STARTS, SeveralSites, site_of
from completedp.studies.staged import Staged, first_trials
from completedp.studies.store import Store
from completedp.studies.worker import work

NAMES = ("lr/global", "lr/type/qkv", "lr/type/mlp_in", "schedule/warmup")
GLOBAL, TYPES, SCHEDULE = slice(0, 1), slice(1, 3), slice(3, 4)
FIRST = 64


def make(bounds: Bounds, seed: int) -> Engine:
    return make_engine("recombine", bounds, seed)


def make_staged(
    names: tuple[str, ...] = NAMES, make: staged.Make = make, **options: bool
) -> Staged:
    size = len(names)
    bounds = Bounds(low=np.full(size, -4.0), high=np.full(size, 4.0), start=np.zeros(size))
    return Staged(bounds, 0, coordinates=names, first=FIRST, make=make, **options)


def proposed(engine: Engine, number: int) -> Proposal:
    found = engine.propose(number)
    assert found is not None
    return found


def bowl(point: np.ndarray) -> float:
    return float(((point - 1.0) ** 2).sum())


def tell_all(engine: Engine, numbers: range) -> None:
    for number in numbers:
        point = proposed(engine, number).point
        engine.tell(number, point, bowl(point))


def test_a_stage_moves_its_own_coordinates() -> None:
    """The first moves the global values, the second the types around what the first found, and
    both the schedule."""
    engine = make_staged()
    first = [proposed(engine, number).point for number in range(1, FIRST)]
    assert all((point[TYPES] == 0.0).all() for point in first)
    assert np.ptp([point[GLOBAL] for point in first]) > 0.5
    assert np.ptp([point[SCHEDULE] for point in first]) > 0.5
    tell_all(engine, range(FIRST))
    middle = engine.recommend()
    assert middle[GLOBAL] == pytest.approx(1.0, abs=0.3)
    assert (engine.centre == middle).all()
    then = [proposed(engine, number).point for number in range(FIRST, 2 * FIRST)]
    assert (then[0] == middle).all()
    assert {point[0] for point in then} == {middle[0]}
    assert min(np.ptp([point[i] for point in then]) for i in (1, 2, 3)) > 0.5


def test_the_second_stage_waits_for_all_of_the_first() -> None:
    """While one trial of the first is running nothing is proposed; in whatever order they finish,
    the second then begins."""
    engine = make_staged()
    points = [proposed(engine, number).point for number in range(FIRST)]
    assert engine.propose(FIRST) is None
    for number in reversed(range(FIRST)):
        assert engine.propose(FIRST) is None
        engine.tell(number, points[number], bowl(points[number]))
    assert engine.propose(FIRST) is not None
    assert engine.describe()["stage"] == 2
    assert engine.told == FIRST


def test_it_is_a_function_of_what_finished() -> None:
    """Another worker, told the same trials, proposes the same."""
    one, other = make_staged(), make_staged()
    tell_all(one, range(FIRST + 30))
    for number in range(FIRST + 30):
        other.tell(number, proposed(other, number).point, bowl(proposed(other, number).point))
    for number in range(FIRST + 30, FIRST + 40):
        mine, theirs = proposed(one, number), proposed(other, number)
        assert (mine.point == theirs.point).all()
        assert mine.seed == theirs.seed
    seeds = {proposed(one, number).seed for number in range(FIRST + 40)}
    assert len(seeds) == FIRST + 40  # no trial of the second has the seed of one of the first


def test_a_trial_that_nobody_asked_for_changes_nothing() -> None:
    """What a damaged store says of the second stage before it began is not learnt from."""
    engine, clean = make_staged(), make_staged()
    engine.tell(FIRST + 5, np.ones(4), -100.0)
    assert (engine.best_loss, engine.told) == (math.inf, 0)
    tell_all(engine, range(FIRST))
    tell_all(clean, range(FIRST))
    assert (engine.recommend() == clean.recommend()).all()


def test_the_best_is_the_best_of_both_stages() -> None:
    """A second stage that finds nothing better leaves the best trial where it was, if losses of the
    two compare; else it is that of the last stage that has one."""
    for comparable, best in ((True, -5.0), (False, 0.5)):
        engine = make_staged(comparable=comparable)
        for number in range(FIRST):
            engine.tell(number, proposed(engine, number).point, -5.0 if number == 7 else 1.0)
        assert engine.best_loss == engine.describe()["best_loss"] == -5.0
        engine.tell(FIRST, proposed(engine, FIRST).point, 0.5)
        assert engine.best_loss == engine.describe()["best_loss"] == best


def test_sites_begin_anew_with_the_second_stage() -> None:
    """At two sites the trials of either stage go in turn, and begin with its own start at each."""

    def at_two(bounds: Bounds, seed: int) -> Engine:
        return SeveralSites(make(bounds, seed), 2)

    engine = make_staged(make=at_two)
    tell_all(engine, range(FIRST))
    found = [proposed(engine, FIRST + number) for number in range(2 * ROUND)]
    assert [p.site for p in found] == [site_of(FIRST + n, 2) for n in range(2 * ROUND)]
    at_centre = [n for n, p in enumerate(found) if (p.point == engine.centre).all()]
    assert at_centre == [site * ROUND + n for site in range(2) for n in range(STARTS)]
    for count in (1, 2, 3, 5):
        assert first_trials(count) % (ROUND * count) == 0
        assert first_trials(count) >= 128


def test_what_modules_have_in_common_is_found_sooner() -> None:
    """Where all modules want the same change and each a little of its own, stages find more in as
    many noisy trials than types from the beginning."""
    types = tuple(f"{value}/type/m{i}" for value in ("lr", "eps") for i in range(25))
    names = ("lr/global", "eps/global", *types)
    own = np.random.default_rng(1).normal(0, 0.4, len(types))
    common = np.repeat([1.8, -1.5], 25)

    def loss(point: np.ndarray, of_types: bool) -> float:
        log2 = point if of_types else np.repeat(point[:2], 25) + point[2:]
        return float(((log2 - common - own) ** 2).mean())

    def found(engine: Engine, of_types: bool) -> float:
        rng = np.random.default_rng(0)
        for number in range(256):
            point = proposed(engine, number).point
            engine.tell(number, point, loss(point, of_types) + 0.1 * rng.normal())
        return loss(engine.recommend(), of_types)

    size = len(types)
    bounds = Bounds(low=np.full(size, -4.0), high=np.full(size, 4.0), start=np.zeros(size))
    alone = found(make(bounds, 0), of_types=True)
    assert found(make_staged(names), of_types=False) < 0.5 * alone


@pytest.mark.parametrize(
    ("tunables", "stages"),
    [
        (("lr", "warmup"), True),
        (("lr/global", "lr/type/qkv"), True),
        (("lr/global", "residual/depth/1"), True),
        (("lr/type/qkv", "lr/type/mlp_in"), False),
        (("lr/global", "warmup"), False),
        (("warmup", "power"), False),
    ],
)
def test_named_coordinates_may_leave_nothing_to_a_stage(
    tmp_path: Path, tunables: tuple[str, ...], stages: bool
) -> None:
    """Coordinates of one kind alone are searched as they are, from the first trial on."""
    data = write_tokens(tmp_path)
    with Store(str(tmp_path / "s.db")) as store:
        study = make_study(store, data, space="staged", tunables=tunables)
        engine = objective_of(study, data).engine(study)
    assert isinstance(engine, Staged) == stages
    second = proposed(engine, 1).point
    moved = [name for name, x in zip(study.spec["space"]["coordinates"], second, strict=True) if x]
    assert moved
    assert stages or len(moved) == len(tunables)


def test_it_is_the_default() -> None:
    """A search of which nothing is said goes in stages, in Python and on the command line."""
    assert StudyConfig(data="tokens").space == "staged"
    assert inspect.signature(search).parameters["space"].default == "staged"


def test_a_search_in_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study goes through both stages, resumed in the middle of each, and its candidates keep the
    global learning rate that the first stage found."""
    monkeypatch.setattr(staged, "ROUND", 1)
    monkeypatch.setattr(staged, "_FIRST", 6)
    data = write_tokens(tmp_path)
    tunables = ("lr", "init_std", "warmup")
    with Store(str(tmp_path / "s.db")) as store:
        for trials in (4, 9, 14):
            study = make_study(store, data, trials=trials, space="staged", tunables=tunables)
            objective = objective_of(study, data)
            work(study, objective)
        rows = study.trials()
        assert len(rows) == 14
        names = objective.space.coordinates
        types = [i for i, name in enumerate(names) if "/type/" in name]
        lr = names.index("lr/global")
        assert not np.array([row.point for row in rows[:6]])[:, types].any()
        later = np.array([row.point for row in rows[6:]])
        assert len(set(later[:, lr])) == 1
        assert np.ptp(later[1:, types], axis=0).min() > 0
        found = candidates(study, objective)
    middle = found[FIRST_STAGE].hyperparameters.log2["lr/global"]
    assert middle == later[0, lr] != 0.0
    kept = found[WITHOUT_LR].hyperparameters.log2
    assert kept["lr/global"] == middle
    assert not any(kept[name] for name in names if name.startswith("lr/type/"))
    moved = found[RECOMMENDED].hyperparameters.log2
    assert any(moved[name] for name in names if name.startswith("lr/type/"))
