"""Searching: a study is worked on, stopped, resumed and shared, and what cannot be is one line."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import error_of
from studies import (
    BASE,
    CONTEXT,
    LONG,
    STEPS,
    finished_once,
    make_recipe,
    make_study,
    objective_of,
    searched,
    settings,
    write_tokens,
)
from version_1 import old_spec, write_store

from completedp.common.errors import CompletedpError
from completedp.lm.shape import Shape
from completedp.studies import worker
from completedp.studies.config import StudyConfig, WorkerConfig
from completedp.studies.run import start_from
from completedp.studies.status import MANY_ATTEMPTS, status
from completedp.studies.stopping import AT_LEAST
from completedp.studies.store import Claim, Store, Study
from completedp.studies.worker import Fold, Progress, _died_here, _here, make_fold, work
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.rules import Rules
from completedp.training.config import TrainConfig
from completedp.training.loop import train
from completedp.training.trials import Outcome


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def other_data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("other"), "quite another text")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_a_worker_finishes_the_budget(data: str, store: Store, tmp_path: Path) -> None:
    """Every number is finished once, and number 0 is the start, with the loss that `train` has."""
    study = make_study(store, data, trials=5)
    rows = searched(study, data, slots=2)
    assert finished_once(rows, 5)
    assert {(r.state, r.status, r.attempt, r.steps) for r in rows} == {("finished", "ok", 1, STEPS)}
    assert len({r.seed for r in rows}) == 5
    assert rows[0].point.tolist() == study.spec["space"]["start"]
    alone = TrainConfig(
        data=data,
        out=str(tmp_path / "alone"),
        context=CONTEXT,
        seed=rows[0].seed,
        shape=Shape(head_dim=8),
        eval_sequences=8,
        device="cpu",
    )
    result = train(alone, recipe=make_recipe(), quiet=True)
    assert rows[0].loss == pytest.approx(result.valid_loss, abs=1e-4)
    assert rows[0].curve is not None
    assert rows[0].curve[-1] == pytest.approx(result.train_loss, abs=1e-4)
    assert all(abs((r.loss or 0.0) - (rows[0].loss or 0.0)) > 1e-4 for r in rows[1:])


def test_a_trial_is_trained_at_its_point(data: str, store: Store, tmp_path: Path) -> None:
    """What stands in the store as a point's loss is what `train` finds for its recipe and seed."""
    study = make_study(store, data, trials=2, engine="random", reach=1.0)
    row = searched(study, data)[1]
    names = study.spec["space"]["coordinates"]
    recipe = make_recipe()
    moved = recipe.hyperparameters.with_vector(names, row.point)
    alone = TrainConfig(
        data=data,
        out=str(tmp_path / "alone"),
        context=CONTEXT,
        seed=row.seed,
        shape=Shape(head_dim=8),
        eval_sequences=8,
        device="cpu",
    )
    result = train(alone, recipe=replace(recipe, hyperparameters=moved), quiet=True)
    assert row.loss == pytest.approx(result.valid_loss, abs=1e-4)


@pytest.mark.parametrize("engine", ["recombine", "trust-region", "random"])
def test_resuming_is_never_having_stopped(data: str, store: Store, engine: str) -> None:
    """A budget of 12 in two pieces gives the points, seeds and losses of 12 at once."""
    whole = searched(make_study(store, data, name="whole", trials=12, engine=engine), data)
    assert len(searched(make_study(store, data, trials=6, engine=engine), data)) == 6
    pieces = searched(make_study(store, data, trials=12, engine=engine), data)
    assert finished_once(pieces, 12)
    assert [r.point.tolist() for r in pieces] == [r.point.tolist() for r in whole]
    assert [r.seed for r in pieces] == [r.seed for r in whole]
    assert [r.loss for r in pieces] == [r.loss for r in whole]


def test_resuming_stops_the_same_trials_early(data: str, store: Store) -> None:
    """The stopping rule, too, knows after a break what it knew: the same trials are stopped."""
    recipe = make_recipe(steps=30)

    def study(name: str, trials: int) -> Study:
        return make_study(
            store, data, name=name, recipe=recipe, trials=trials, engine="random", stop_early=True
        )

    whole = searched(study("whole", 30), data)
    for trials in (22, 30):
        pieces = searched(study("pieces", trials), data)
    outcomes = [(r.status, r.steps, r.loss) for r in pieces]
    assert outcomes == [(r.status, r.steps, r.loss) for r in whole]
    stopped = [r for r in pieces if r.status == "stopped"]
    assert len(stopped) >= 2
    for row in stopped:
        assert row.number >= 20
        assert row.steps == 20
        assert row.result == {"estimated": True}
        assert row.loss is not None
        assert 0.0 < row.loss < 10.0


def test_a_trial_taken_over_is_judged_by_what_is_known(data: str, store: Store) -> None:
    """A worker that begins with another's trial stops it early, if that is hopeless."""
    recipe = make_recipe(steps=30)
    study = make_study(store, data, recipe=recipe, trials=AT_LEAST + 1, stop_early=True)
    fold = make_fold(study, objective_of(study, data))
    claims = [study.claim("w", fold.propose, lease_seconds=LONG) for _ in range(AT_LEAST + 1)]
    for claim in filter(None, claims[1:]):
        study.finish(claim, loss=0.1, status="ok", steps=30, curve=[0.1] * 30)
    assert claims[0] is not None
    study.release(claims[0])
    row = searched(study, data)[0]
    assert (row.status, row.steps, row.attempt) == ("stopped", 20, 1)


def test_early_stopping_is_off_unless_asked_for(data: str, store: Store) -> None:
    """Without it every trial is trained to its end, as in the paper."""
    study = make_study(store, data, recipe=make_recipe(steps=25), trials=30, engine="random")
    assert {(r.status, r.steps) for r in searched(study, data, slots=4)} == {("ok", 25)}


def test_a_search_of_version_1_goes_on(data: str, store: Store, tmp_path: Path) -> None:
    """A search begun by an older version is found, shown and finished as if begun by this one."""
    study = make_study(store, data, trials=3)
    write_store(str(tmp_path / "old.db"), old_spec(study.spec, vocab=257), {})
    whole = searched(make_study(store, data, trials=5), data)
    with Store(str(tmp_path / "old.db")) as old:
        assert status(old.study()).counts["budget"] == 3
        rows = searched(make_study(old, data, trials=5), data)
    assert [(r.seed, r.point.tolist(), r.loss) for r in rows] == [
        (r.seed, r.point.tolist(), r.loss) for r in whole
    ]


class StopError(Exception):
    """What the tests below raise in the middle of work."""


@pytest.mark.parametrize("kind", [StopError, KeyboardInterrupt])
def test_interrupted_work_is_given_back_at_once(
    data: str, store: Store, kind: type[BaseException]
) -> None:
    """What was running is there to be taken over at once, as it was, and nothing is run twice."""
    study = make_study(store, data, trials=8)

    def interrupt(fold: Fold, done: Progress) -> None:
        if done.trials >= 3:
            raise kind

    with pytest.raises(kind):
        work(study, objective_of(study, data, slots=3), report=interrupt)
    before = study.trials()
    counts = study.counts()
    assert counts["running"] == counts["expired"] == 3
    assert counts["finished"] == 3
    rows = searched(study, data, slots=3)
    assert finished_once(rows, 8)
    for old, new in zip(before, rows, strict=False):
        assert (old.number, old.seed, old.point.tolist()) == (
            new.number,
            new.seed,
            new.point.tolist(),
        )
        assert new.attempt == 1  # what was given back was not died of
        assert old.state == "running" or old.loss == new.loss


def test_two_workers_share_a_study(data: str, store: Store, tmp_path: Path) -> None:
    """Two workers at once finish a study together, both of them some of it, no trial twice."""
    study = make_study(store, data, trials=12)
    together = threading.Barrier(2, timeout=LONG)
    faults: list[BaseException] = []
    folds: dict[str, Fold] = {}

    def run(name: str) -> None:
        def report(fold: Fold, done: Progress) -> None:
            if name not in folds:
                folds[name] = fold
                together.wait()

        try:
            with Store(str(tmp_path / "store.db"), create=False) as mine:
                own = mine.study()
                work(own, objective_of(own, data, slots=2), name=name, report=report)
        except BaseException as fault:
            faults.append(fault)
            together.abort()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    rows = study.trials()
    assert finished_once(rows, 12)
    assert {r.worker for r in rows} == {"one", "two"}
    assert {r.attempt for r in rows} == {1}
    assert folds["one"].engine.best_loss == folds["two"].engine.best_loss
    assert folds["one"].seen == folds["two"].seen == 12


def test_a_worker_waits_for_the_others_trials(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing left to claim a worker stays until others have finished, or takes over."""
    monkeypatch.setattr(worker, "_WAIT_SECONDS", 0.02)
    study = make_study(store, data, trials=2)
    fold = make_fold(study, objective_of(study, data))
    claims = [study.claim("other", fold.propose, lease_seconds=LONG) for _ in range(2)]
    assert claims[0] is not None
    assert claims[1] is not None
    looks: list[int] = []
    waited: list[dict[str, int]] = []

    def report(fold: Fold, done: Progress) -> None:
        looks.append(study.counts()["finished"])
        waited.append(dict(done.waits_for))
        if len(looks) == 2:
            study.finish(claims[0], loss=1.0, status="ok", steps=1, curve=[1.0])
        if len(looks) == 4:
            study.release(claims[1])

    work(study, objective_of(study, data), name="me", report=report)
    rows = study.trials()
    assert [(r.worker, r.attempt) for r in rows] == [("other", 1), ("me", 1)]
    assert rows[0].loss == 1.0
    assert waited[:3] == [{"other": 2}, {"other": 2}, {"other": 1}]
    assert waited[-1] == {}


def test_a_process_of_another_container_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers mean other processes here, on the same machine by the same name."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    name = f"{_here()}-{dead.pid}"
    assert _died_here(name)
    monkeypatch.setattr("completedp.studies.worker._MACHINE", 1)  # so this is a container
    assert not _died_here(name)
    assert _died_here(f"{_here()}-{dead.pid}")


def test_trials_of_a_killed_process_of_this_machine_are_taken_at_once(
    data: str, store: Store
) -> None:
    """A worker that was killed here is not waited for until its leases end; a live one, or one of
    another machine, keeps its trials."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here = _here()
    names = [f"{here}-{dead.pid}", f"{here}-{os.getpid()}", f"elsewhere-{dead.pid}", f"{here}-x"]
    study = make_study(store, data, trials=4)
    fold = make_fold(study, objective_of(study, data))
    claims = [study.claim(name, fold.propose, lease_seconds=LONG) for name in names]

    def report(fold: Fold, done: Progress) -> None:
        if done.waits_for:  # of the others nothing was taken: they finish
            assert done.waits_for == dict.fromkeys(names[1:], 1)
            for claim in claims[1:]:
                assert claim is not None
                study.finish(claim, loss=1.0, status="ok", steps=1, curve=[1.0])

    work(study, objective_of(study, data), name="me", report=report)
    assert [(r.worker, r.attempt) for r in study.trials()] == [
        ("me", 2),
        *((name, 1) for name in names[1:]),
    ]


def test_a_slow_worker_keeps_its_trials(data: str, store: Store) -> None:
    """Leases are renewed while the trials run, however much longer than a lease they take."""
    study = make_study(store, data, trials=2)
    expired = []

    def slow(fold: Fold, done: Progress) -> None:
        if not expired:
            time.sleep(2.5)
            expired.append(study.counts()["expired"])

    work(study, objective_of(study, data, slots=2, lease=2.0), report=slow)
    assert expired == [0]
    assert {r.attempt for r in study.trials()} == {1}


def test_a_late_worker_writes_over_nothing(data: str, store: Store) -> None:
    """A worker whose trial was taken over and finished by another leaves that result."""
    study = make_study(store, data, trials=1)

    def lose(fold: Fold, done: Progress) -> None:
        row = study.trials()[0]
        if row.worker == "late":
            token = token_of(study, 0)
            claim = Claim(
                number=0, attempt=1, point=row.point, seed=row.seed, site=row.site, token=token
            )
            study.release(claim)
            successor = study.claim("successor", fold.propose, lease_seconds=LONG)
            assert successor is not None
            assert study.finish(successor, loss=0.5, status="ok", steps=1, curve=[0.5])

    work(study, objective_of(study, data), name="late", report=lose)
    (row,) = study.trials()
    assert (row.worker, row.loss) == ("successor", 0.5)


def token_of(study: Study, number: int) -> str:
    """The token that a running trial's row holds."""
    from completedp.studies.schema import TRIALS

    query = TRIALS.select().where(TRIALS.c.number == number)
    return study._database.run(lambda c: c.execute(query).mappings().one())["token"]


def test_a_trial_that_many_workers_died_in_is_run_again(data: str, store: Store) -> None:
    """Kills say nothing of a trial: however often it was begun, it is shown, and trained."""
    study = make_study(store, data, trials=3)
    fold = make_fold(study, objective_of(study, data))
    for _ in range(MANY_ATTEMPTS + 1):
        study.claim("victim", fold.propose, lease_seconds=0.0)
    found = status(study)
    assert found.deadly == {0: MANY_ATTEMPTS + 1}
    assert "trial 0 was begun 6 times" in found.lines()
    rows = searched(study, data)
    assert finished_once(rows, 3)
    assert rows[0].attempt == MANY_ATTEMPTS + 2
    assert {(row.status, row.steps) for row in rows} == {("ok", STEPS)}
    assert status(study).deadly == {}


def test_divergence_is_an_outcome(data: str, store: Store) -> None:
    """Trials that diverge have an infinite loss and count; the best is of those that did not."""
    study = make_study(
        store, data, trials=12, space="global", tunables=("lr",), reach=60.0, engine="random"
    )
    rows = searched(study, data, slots=3)
    assert finished_once(rows, 12)
    diverged = [r for r in rows if r.status == "diverged"]
    assert 2 <= len(diverged) <= 10
    assert {r.loss for r in diverged} == {math.inf}
    assert all((r.steps or 0) < STEPS for r in diverged)
    found = status(study)
    assert found.counts["diverged"] == len(diverged)
    assert found.best_loss == min(r.loss for r in rows if r.loss is not None)
    json.dumps(asdict(found), allow_nan=False)


def test_points_without_a_plan_are_impossible(data: str, store: Store) -> None:
    """Where no training can be planned (beta rounds to 1) a trial is impossible, and says why."""
    tunables = ("one_minus_beta1",)
    study = make_study(
        store, data, trials=8, space="global", tunables=tunables, reach=64.0, engine="random"
    )
    rows = searched(study, data)
    assert finished_once(rows, 8)
    hopeless = [r for r in rows if r.point[0] < -55]
    assert hopeless
    assert {(r.status, r.steps, r.loss) for r in hopeless} == {("impossible", 0, math.inf)}
    reasons = [r.result["reason"] for r in hopeless if r.result is not None]
    assert len(reasons) == len(hopeless)
    assert all("beta1" in reason for reason in reasons)
    assert rows[0].status == "ok"
    found = status(study)
    assert found.counts["impossible"] == len(hopeless)
    assert found.has_trained
    none = {"finished": len(hopeless), "impossible": len(hopeless), "diverged": 0}
    assert not replace(found, counts=found.counts | none).has_trained
    assert found.counts["diverged"] == sum(r.status == "diverged" for r in rows)
    assert found.impossible == reasons[0]
    assert f"{len(hopeless)} impossible, the first: {reasons[0]}" in found.lines()


def test_a_validation_loss_that_is_no_number_is_divergence(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that ends well and cannot be evaluated counts as diverged, whatever is shown."""
    study = make_study(store, data, trials=2)
    made = worker._finish

    def spoiled(study: Study, fold: Fold, outcome: Outcome[Claim]) -> None:
        made(study, fold, replace(outcome, valid_loss=math.nan))

    monkeypatch.setattr(worker, "_finish", spoiled)
    rows = searched(study, data)
    assert {(r.status, r.loss) for r in rows} == {("diverged", math.inf)}
    json.dumps(asdict(status(study)), allow_nan=False)


def test_a_store_that_goes_away_is_one_line(data: str, store: Store, tmp_path: Path) -> None:
    """A store deleted in the middle ends the worker with one line, and its heartbeat quietly."""
    study = make_study(store, data, trials=20)

    def delete(fold: Fold, done: Progress) -> None:
        (tmp_path / "store.db").unlink()
        time.sleep(0.6)

    message = error_of(work, study, objective_of(study, data, lease=1.0), report=delete)
    assert "is gone" in message


def test_a_worker_with_other_tokens_is_refused(data: str, other_data: str, store: Store) -> None:
    """Tokens that are not the study's are one line that names the folder."""
    study = make_study(store, data)
    assert repr(other_data) in error_of(objective_of, study, other_data)
    assert "nowhere" in error_of(objective_of, study, "nowhere")
    assert study.counts()["running"] == 0


def test_an_unknown_study_is_one_line(data: str, store: Store) -> None:
    """A study that is not there is one line that quotes it and names those that are."""
    make_study(store, data)
    message = error_of(store.study, "tune2")
    assert "'tune2'" in message
    assert "only tune" in message


def test_two_studies_of_one_name_are_one_line(data: str, store: Store) -> None:
    """Another space under the same name is refused, and leaves the study's budget alone."""
    study = make_study(store, data, trials=4)
    for changes, words in (
        ({"tunables": ("lr", "eps")}, "'space.coordinates', not "),
        ({"tunables": ("eps", *TUNABLE[:2], *TUNABLE[3:])}, "'space.coordinates'[0] = 'lr/"),
        ({"stop_early": True}, "'stop_early' = False, not True"),
        ({"space": "type"}, "space.kind"),
        ({"reach": 2.0}, "space.low"),
        ({"engine": "random"}, "'engine' = 'recombine', not 'random'"),
        ({"seed": 5}, "'seed' = 0, not 5"),
        ({"context": 32}, "'task.unit' = 16, not 32"),
        ({"recipe": make_recipe(lr=2.0**-5)}, "recipe.values.lr"),
        ({"recipe": make_recipe().with_schedule(kind="wsd")}, "recipe.schedule.kind"),
    ):
        assert words in error_of(make_study, store, data, **{"trials": 400, **changes})
    assert study.counts()["budget"] == store.study().spec["trials"] == 4


def test_another_text_is_another_study(data: str, other_data: str, store: Store) -> None:
    """The same settings over another text are another study."""
    make_study(store, data)
    assert "'task.data'" in error_of(make_study, store, other_data)


def test_the_budget_is_only_raised(data: str, store: Store) -> None:
    """`trials` above the budget raises it, below it changes nothing."""
    assert make_study(store, data, trials=4).spec["trials"] == 4
    assert make_study(store, data, trials=6).spec["trials"] == 6
    assert make_study(store, data, trials=2).spec["trials"] == 6
    assert store.study().counts()["budget"] == 6


def test_studies_may_be_opened_at_once(data: str, tmp_path: Path) -> None:
    """Many that open one study at the same moment, with budgets of their own, all find it."""
    together = threading.Barrier(8, timeout=LONG)
    found: list[object] = []

    def run(trials: int) -> None:
        with Store(str(tmp_path / "store.db")) as mine:
            together.wait()
            try:
                found.append(make_study(mine, data, trials=trials).name)
            except CompletedpError as fault:
                found.append(fault)

    threads = [threading.Thread(target=run, args=(trials,)) for trials in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["tune"] * 8
    with Store(str(tmp_path / "store.db")) as store:
        assert store.study().counts()["budget"] == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": "cube"}, "unknown space 'cube'"),
        ({"engine": "magic"}, "'magic'"),
        ({"engine": "paper-grid"}, "the paper's grid has no"),
        ({"tunables": ("lr", "momentum")}, "'momentum'"),
        ({"tunables": ()}, "tunables = []"),
        ({"context": 17}, "batch of 64 tokens is not a whole number of sequences of 17"),
        ({"context": 64 * 64}, "batch of 64 tokens is not a whole number of sequences of 4096"),
        ({"recipe": make_recipe(), "shape": Shape(head_dim=7)}, "not divisible by head_dim 7"),
        ({"target": ("wdth=2",)}, "'wdth=2'"),
        ({"target": ("batch=16,tokens=1",)}, "leaves no room"),
        ({"data": "nowhere"}, "'nowhere'"),
    ],
)
def test_impossible_studies_are_not_stored(
    data: str, store: Store, changes: dict[str, Any], words: str
) -> None:
    """What cannot be searched is one line, and no study of it is left behind."""
    changes = {"data": data} | changes
    assert words in error_of(make_study, store, changes.pop("data"), **changes)
    assert store.studies() == []


def test_too_little_text_is_one_line(store: Store, tmp_path: Path) -> None:
    """Text shorter than a window is one line before there is a study."""
    data = write_tokens(tmp_path)
    recipe = make_recipe()
    long = replace(recipe, base=replace(BASE, batch=2**14, tokens=2**16))
    message = error_of(make_study, store, data, recipe=long, context=2**14)
    assert "fewer than one window of context 16384" in message
    assert store.studies() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trials": 0}, "trials = 0"),
        ({"trials": 10**30}, "trials = 1000"),
        ({"seed": -1}, "seed = -1"),
        ({"reach": math.nan}, "reach = nan"),
        ({"reach": 65.0}, "reach = 65.0"),
        ({"z_loss": -1.0}, "z_loss = -1.0"),
        ({"context": 0}, "context = 0"),
        ({"eval_sequences": 0}, "eval_sequences = 0"),
        ({"recipe": " "}, "recipe is empty"),
    ],
)
def test_impossible_settings(changes: dict[str, Any], words: str) -> None:
    """A setting that cannot be is one line that quotes it."""
    assert words in error_of(settings, "data", **changes)


@pytest.mark.parametrize("changes", [{"slots": 0}, {"lease": 0.5}, {"lease": math.nan}])
def test_impossible_workers(changes: dict[str, Any]) -> None:
    """A worker that cannot be is one line that quotes the setting."""
    (name, value), *_ = changes.items()
    assert f"{name} = {value!r}" in error_of(WorkerConfig, **changes)


def test_the_papers_grid_is_searched(data: str, store: Store) -> None:
    """The grid of the paper's baseline runs, at its levels, and can be looked at."""
    study = make_study(
        store,
        data,
        trials=3,
        engine="paper-grid",
        space="global",
        tunables=None,
    )
    assert len(study.spec["space"]["coordinates"]) == 5
    message = error_of(make_study, store, data, name="types", engine="paper-grid", tunables=None)
    assert "search with space global" in message
    rows = searched(study, data)
    assert finished_once(rows, 3)
    lr = make_recipe().values.lr * 2 ** rows[1].point[0]
    assert any(lr == pytest.approx(level) for level in (1e-4, 3e-4, 4e-4, 1e-3, 3e-3, 4e-3, 0.01))
    assert status(study).counts["finished"] == 3


def test_no_more_slots_than_trials(data: str, store: Store) -> None:
    """A stack is no larger than the trials that are left to be run, and no larger than asked."""
    study = make_study(store, data)
    objective = objective_of(study, data, slots=5)
    assert [objective.runner.stack(BASE, trials).count for trials in (2, 9)] == [2, 5]


def test_a_finished_study_is_no_work(data: str, store: Store) -> None:
    """A worker goes to a study's end, reports it, and on a finished one does nothing."""
    study = make_study(store, data, trials=2)
    reports: list[int] = []
    for expected in ([2], []):
        work(study, objective_of(study, data), report=lambda _, done: reports.append(done.trials))
        assert reports[-1:] == expected
        reports.clear()
    assert finished_once(study.trials(), 2)


def test_the_recipe_may_be_a_file_or_the_default(data: str, tmp_path: Path) -> None:
    """A study's config names its recipe; a file that is missing is one line."""
    make_recipe().save(tmp_path / "recipe.json")
    assert start_from(settings(data, recipe=str(tmp_path / "recipe.json")))[1] == make_recipe()
    assert "'nowhere.json'" in error_of(start_from, settings(data, recipe="nowhere.json"))
    assert start_from(StudyConfig(data=data, context=64))[1] == Recipe.default()
    told = StudyConfig(data=data, context=64, width=64, token_exponent=0.25, beta_rule="keep")
    rules = start_from(told)[1].rules
    assert (rules.token_exponent, rules.beta_rule) == (0.25, "keep")
    assert replace(rules, token_exponent=0.5, beta_rule="linear") == Rules()
    too_steep = replace(told, token_exponent=3.0)
    assert "token_exponent = 3.0" in error_of(start_from, too_steep)
    own = StudyConfig(data=data, context=64, model="own_models:nano")
    with pytest.warns(UserWarning, match=r"no base was given: trials are at width 64, depth 4"):
        assert start_from(own)[1].base == Recipe.default().base
