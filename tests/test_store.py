"""The store: leases, late writers, budgets and errors, on SQLite and on PostgreSQL."""

import math
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from helpers import error_of
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from postgres_server import PASSWORD, Server
from version_1 import write_store

from completedp.common.errors import CompletedpError
from completedp.studies import database
from completedp.studies.config import LONGEST_LEASE_SECONDS
from completedp.studies.database import check_no_half_url, without_password
from completedp.studies.engines import Proposal
from completedp.studies.store import Claim, Store, Study
from completedp.studies.study import IMPOSSIBLE

SPEC = {"trials": 6, "space": {"kind": "type", "depth": 4}, "seed": 3}
LONG = 1000.0
EXPIRED = 0.0
"""A lease that has run out when it is given: what a dead worker leaves, without the wait."""


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


@pytest.fixture
def study(store: Store) -> Study:
    return store.create_study("tune", SPEC)


def propose(number: int) -> Proposal:
    point = np.array([number, -0.1, 1e-300, 1e300])
    return Proposal(point=point, seed=100 + number, site=number % 3)


def forbidden(number: int) -> Proposal:
    raise AssertionError(f"nothing new was to be proposed, but {number} was")


def claim(study: Study, lease: float = LONG, *, new: bool = True, worker: str = "w") -> Claim:
    claimed = study.claim(worker, propose if new else forbidden, lease_seconds=lease)
    assert claimed is not None
    return claimed


def finish(study: Study, claimed: Claim, loss: float = 1.0) -> bool:
    return study.finish(claimed, loss=loss, status="ok", steps=2, curve=[2.0, loss])


def rows(study: Study) -> list[str]:
    return [repr(row) for row in study.trials()]


def test_claims_are_the_proposals_in_order(study: Study) -> None:
    """Numbers count from 0 to the budget, all of a proposal comes back to the bit, then None."""
    claims = [claim(study) for _ in range(6)]
    assert study.claim("w", forbidden, lease_seconds=LONG) is None
    for number, claimed in enumerate(claims):
        new = propose(number)
        assert (claimed.number, claimed.attempt) == (number, 1)
        assert (claimed.seed, claimed.site) == (new.seed, new.site)
        assert claimed.point.tobytes() == new.point.tobytes()
        assert claimed.point.flags.writeable
    assert len({claimed.token for claimed in claims}) == 6


def test_an_expired_trial_is_run_again(study: Study) -> None:
    """A dead worker's trial comes first, as it was, with one more attempt."""
    claim(study)
    dead = claim(study, EXPIRED)
    again = claim(study, new=False)
    assert (again.number, again.attempt, again.seed) == (dead.number, 2, dead.seed)
    assert again.site == dead.site == 1
    assert again.point.tobytes() == dead.point.tobytes()
    assert again.token != dead.token
    assert claim(study).number == 2


def test_expired_trials_are_run_again_beyond_the_budget(study: Study) -> None:
    """When every number is used up, what has expired can still be claimed."""
    claims = [claim(study, EXPIRED if number == 5 else LONG) for number in range(6)]
    assert claim(study, new=False).number == claims[5].number
    assert study.claim("w", forbidden, lease_seconds=LONG) is None


def test_a_late_worker_cannot_write(study: Study) -> None:
    """After a takeover the first worker's result, heartbeat and release change nothing."""
    late = claim(study, EXPIRED)
    successor = claim(study, new=False)
    assert not finish(study, late, 0.1)
    assert study.extend([late, successor], lease_seconds=LONG) == [late]
    before = rows(study)
    study.release(late)
    assert rows(study) == before
    assert finish(study, successor, 0.2)
    assert not finish(study, late, 0.1)
    assert [done.loss for done in study.finished_since(0)] == [0.2]


def test_a_finished_row_is_never_written_again(study: Study) -> None:
    """Finishing, extending or releasing a finished trial leaves its row as it is."""
    done = claim(study)
    assert finish(study, done, 0.5)
    before = rows(study)
    assert not finish(study, done, 0.1)
    assert study.extend([done], lease_seconds=LONG) == [done]
    study.release(done)
    assert claim(study).number == 1
    assert rows(study)[0] == before[0]


def test_an_expired_lease_without_a_successor_still_counts(study: Study) -> None:
    """A worker that was slow, but not replaced, may finish or renew."""
    slow, slower = claim(study), claim(study)
    assert study.extend([slow, slower], lease_seconds=0.0) == []  # over at once
    assert finish(study, slow)
    assert study.extend([slower], lease_seconds=LONG) == []
    assert claim(study).number == 2


def test_a_released_trial_is_next(study: Study) -> None:
    """What a worker gives back is the next to be claimed, as if it had not been tried."""
    given_back = claim(study)
    study.release(given_back)
    study.release(given_back)  # twice is once
    again = claim(study, new=False)
    assert (again.number, again.attempt) == (given_back.number, 1)
    assert not finish(study, given_back)
    assert finish(study, again)


def test_the_budget_is_only_raised(study: Study, store: Store) -> None:
    """A higher budget gives more trials, a lower one changes nothing; the spec's trials follow."""
    for _ in range(6):
        claim(study)
    assert study.set_budget(2) == 6
    assert study.claim("w", forbidden, lease_seconds=LONG) is None
    assert study.set_budget(7) == 7
    assert claim(study).number == 6
    assert study.claim("w", forbidden, lease_seconds=LONG) is None
    assert study.spec["trials"] == store.study().spec["trials"] == 7
    assert store.create_study("tune", SPEC | {"trials": 7}).name == "tune"
    for bad in (0, -1, 2.5, True, "many"):
        assert f"trials = {bad!r}" in error_of(study.set_budget, bad)


def test_studies_do_not_meet(store: Store) -> None:
    """Two studies of a store have their own numbers, sequences, budgets and notes."""
    first, second = store.create_study("a", SPEC), store.create_study("b", SPEC)
    late = claim(first, EXPIRED)
    assert claim(second).number == 0
    other = claim(second)
    assert finish(second, other, 0.3)
    assert second.set_budget(50) == 50
    second.set_note("n", {"x": 1})
    assert not finish(second, late)
    assert second.extend([late], lease_seconds=LONG) == [late]
    assert first.finished_since(0) == []
    assert first.get_note("n") is None
    assert claim(first, new=False).number == 0
    assert [done.sequence for done in second.finished_since(0)] == [0]
    assert first.counts()["budget"] == 6
    assert store.studies() == ["a", "b"]


def test_everything_comes_back(study: Study) -> None:
    """A finished trial's values are read as they were written; curves may be left out."""
    claimed = claim(study, worker="node1:77")
    result = {"valid": 1.25, "nested": {"list": [1, 2]}}
    curve = [2.5, 2.25, 0.1]
    assert study.finish(claimed, loss=0.1, status="ok", steps=3, curve=curve, result=result)
    claim(study)
    row, running = study.trials()
    assert (row.number, row.state, row.attempt, row.worker) == (0, "finished", 1, "node1:77")
    assert (row.seed, row.sequence, row.loss, row.status, row.steps) == (100, 0, 0.1, "ok", 3)
    assert row.result == result
    assert row.curve is not None
    assert row.curve.dtype == np.float32
    assert row.curve.tolist() == np.float32(curve).tolist()
    assert row.point.tobytes() == propose(0).point.tobytes()
    assert row.finished_at is not None
    assert row.started_at <= row.finished_at < row.lease_until
    assert running.state == "running"
    nothing = (running.sequence, running.finished_at, running.loss, running.status)
    assert (*nothing, running.steps, running.curve, running.result) == (None,) * 7
    assert study.trials(curves=False)[0].curve is None
    assert study.finished_since(0)[0].curve is None
    (done,) = study.finished_since(0, curves=True)
    assert done.curve is not None
    assert done.curve.tolist() == row.curve.tolist()


@pytest.mark.parametrize("loss", [math.inf, math.nan, -math.inf])
def test_divergence_is_an_infinite_loss(study: Study, loss: float) -> None:
    """A loss that is no number is kept as infinite, its curve too, and counted."""
    claimed = claim(study)
    curve = [1.0, 1e300, math.nan]
    assert study.finish(claimed, loss=loss, status="diverged", steps=3, curve=curve)
    (done,) = study.finished_since(0, curves=True)
    assert done.loss == math.inf
    assert done.curve is not None
    assert np.array_equal(done.curve, np.float32([1, math.inf, math.nan]), equal_nan=True)
    assert study.counts()["diverged"] == 1


def test_finished_since_is_in_the_order_of_finishing(study: Study) -> None:
    """Sequences count up as trials finish, whatever their numbers; a cursor reads on from there."""
    claims = [claim(study) for _ in range(5)]
    for number in (3, 0, 4):
        finish(study, claims[number], loss=number)
    assert [(d.sequence, d.number) for d in study.finished_since(0)] == [(0, 3), (1, 0), (2, 4)]
    finish(study, claims[1])
    assert [(d.sequence, d.number) for d in study.finished_since(3)] == [(3, 1)]
    assert study.finished_since(4) == []


def test_nothing_finishes_during_a_proposal(study: Study, url: str) -> None:
    """`propose` sees every finished trial, and who would finish one meanwhile has to wait."""
    first, second = claim(study), claim(study)
    finish(study, first)
    seen: list[list[int]] = []
    written: list[bool] = []

    def other() -> None:
        with Store(url) as own:
            written.append(finish(own.study(), second))

    thread = threading.Thread(target=other)

    def slow(number: int) -> Proposal:
        seen.append([done.number for done in study.finished_since(0)])
        thread.start()
        thread.join(0.5)
        seen.append([done.number for done in study.finished_since(0)])
        assert written == []
        return propose(number)

    claimed = study.claim("w", slow, lease_seconds=LONG)
    thread.join()
    assert claimed is not None
    assert seen == [[0], [0]]
    assert written == [True]
    assert [done.number for done in study.finished_since(0)] == [0, 1]


def test_a_failed_proposal_leaves_nothing(study: Study) -> None:
    """When `propose` raises, or has nothing yet, its number is not used, and the store goes on."""

    def broken(number: int) -> Proposal:
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        study.claim("w", broken, lease_seconds=LONG)
    assert study.claim("w", lambda number: None, lease_seconds=LONG) is None
    assert study.trials() == []
    assert claim(study).number == 0


def test_counts_add_up(study: Study) -> None:
    """Budget, running, expired, finished, diverged and impossible are those of the trials."""
    names = ("budget", "running", "expired", "finished", "diverged", "impossible")
    assert study.counts() == dict(zip(names, (6, 0, 0, 0, 0, 0), strict=True))
    claims = [claim(study) for _ in range(5)]
    finish(study, claims[0])
    finish(study, claims[1], math.inf)
    study.finish(claims[2], loss=math.inf, status=IMPOSSIBLE, steps=0, curve=[])
    study.release(claims[3])
    assert study.counts() == dict(zip(names, (6, 2, 1, 3, 1, 1), strict=True))


def test_notes_are_replaced(study: Study, store: Store) -> None:
    """A note is read back as the last one written under its key."""
    assert study.get_note("ladder") is None
    study.set_note("ladder", {"rung": 1})
    study.set_note("best", {"loss": 2.5})
    study.set_note("ladder", {"rung": 2, "losses": [1.0, 2.0]})
    assert store.study("tune").get_note("ladder") == {"rung": 2, "losses": [1.0, 2.0]}
    assert study.get_note("best") == {"loss": 2.5}


def test_a_store_is_still_there_when_opened_again(study: Study, store: Store, url: str) -> None:
    """Closing and opening loses nothing, and the next number follows."""
    finish(study, claim(study))
    claim(study)
    before = rows(study)
    store.close()
    with Store(url, create=False) as again:
        assert again.study().spec == SPEC
        assert rows(again.study()) == before
        assert claim(again.study()).number == 2


def test_threads_may_share_a_store(study: Study) -> None:
    """A heartbeat from another thread works while trials are claimed and finished."""
    held = claim(study)
    study.set_budget(60)
    lost: list[Claim] = []
    over = threading.Event()

    def heartbeat() -> None:
        while not over.is_set():
            lost.extend(study.extend([held], lease_seconds=LONG))

    thread = threading.Thread(target=heartbeat)
    thread.start()
    for _ in range(40):
        assert finish(study, claim(study))
    over.set()
    thread.join()
    assert lost == []
    assert finish(study, held)


def test_a_study_is_its_spec(store: Store) -> None:
    """The same spec, but for its budget, is the same study; another is refused by its first key."""
    store.create_study("tune", SPEC)
    finish(store.create_study("tune", SPEC), claim(store.study()))
    same = {"seed": 3, "space": {"depth": 4, "kind": "type"}, "trials": 6}
    assert store.create_study("tune", same).counts()["finished"] == 1
    assert store.create_study("tune", same | {"trials": 9}).counts()["budget"] == 6
    for change, said in [
        ({"seed": 4}, "has 'seed' = 3, not 4"),
        ({"space": {"kind": "type", "depth": 2}}, "has 'space.depth' = 4, not 2"),
        ({"space": {"kind": "type"}}, "has 'space.depth' = 4, which is missing here"),
        ({"space": {"kind": "type", "depth": 4, "x": 1}}, "has no 'space.x'"),
        ({"space": [1]}, "has 'space' = {'kind': 'type', 'depth': 4}, not [1]"),
        ({"space": [1], "seed": 9}, "has 'seed' = 3, not 9"),  # from which a space follows
    ]:
        message = error_of(store.create_study, "tune", SPEC | change)
        assert said in message
        assert "the study 'tune'" in message
    assert store.studies() == ["tune"]


def test_machines_may_round_differently(store: Store) -> None:
    """A study goes on where a fitted value of its spec differs in the last digits, and no more."""
    first = {"lr": 0.019738461457073853, "bounds": [0.0, 0.1 + 0.2], "beta2": 0.999999}
    store.create_study("tune", SPEC | first | {"sites": [{"rules": {"h": 0.1 + 0.2}}, [0.7]]})
    again = {"lr": 0.01973846145707387, "bounds": [1e-17, 0.3], "beta2": 0.999999}
    again |= {"sites": [{"rules": {"h": 0.3}}, [0.7]]}
    assert store.create_study("tune", SPEC | again).name == "tune"
    for change, said in [
        ({"lr": 0.01974}, "has 'lr' = 0.019738461457073853, not 0.01974"),
        ({"bounds": [0.0, 0.3001]}, "has 'bounds'[1] = 0.30000000000000004, not 0.3001"),
        ({"beta2": 0.9999999}, "has 'beta2' = 0.999999, not 0.9999999"),
        ({"sites": [{"rules": {"h": 0.31}}, [0.7]]}, "has 'sites'[0] = "),
        ({"sites": [{"rules": {"h": 0.3}}, [0.7, 1.0]]}, "has 'sites'[1] = [0.7], not [0.7, 1.0]"),
    ]:
        assert said in error_of(store.create_study, "tune", SPEC | again | change)


def test_a_head_size_that_was_not_seen_then(store: Store) -> None:
    """A study goes on whose recipe has no head size, where one is seen now; not with another."""
    store.create_study("tune", SPEC | {"recipe": {"head_dim": None}})
    store.create_study("seen", SPEC | {"recipe": {"head_dim": 16}})
    assert store.create_study("tune", SPEC | {"recipe": {"head_dim": 16}}).name == "tune"
    message = error_of(store.create_study, "seen", SPEC | {"recipe": {"head_dim": 8}})
    assert "has 'recipe.head_dim' = 16, not 8" in message


def test_impossible_studies(store: Store) -> None:
    """A study without a name, a budget or plain JSON is one line."""
    for name in ("", "  ", "a\nb", "\ud800"):
        assert f"cannot be named {name!r}" in error_of(store.create_study, name, SPEC)
    assert "trials = None" in error_of(store.create_study, "a", {})
    assert "trials = 0" in error_of(store.create_study, "a", {"trials": 0})
    for value in (math.nan, object()):
        spec = {"trials": 1, "x": value}
        assert "study 'a' is not plain JSON" in error_of(store.create_study, "a", spec)
    assert store.studies() == []


def test_unknown_studies(store: Store) -> None:
    """An unknown name lists those there are; no name will do only when there is one study."""
    assert "there is no study" in error_of(store.study)
    assert "there is no study" in error_of(store.study, "a")
    store.create_study("a", SPEC)
    assert store.study().name == "a"
    assert "no study 'c'" in error_of(store.study, "c")
    store.create_study("b", SPEC)
    assert error_of(store.study).endswith(": a, b")
    assert error_of(store.study, "c").endswith("only a, b")


def test_a_newer_schema_is_refused(store: Store, url: str) -> None:
    """A store of a later version is one line that names both versions."""
    with store._database._engine.execution_options(begin="BEGIN").begin() as connection:
        connection.execute(sa.text("UPDATE completedp_schema SET version = 99"))
    assert "schema version 99, this completedp knows 3: upgrade" in error_of(Store, url)


def test_a_store_of_version_1_goes_on(url: str) -> None:
    """A store without sites keeps its trials, all at site 0, and they are taken over and go on."""
    write_store(url, SPEC, {0: 2.5, 1: None})
    for _ in range(2):  # the second time there is nothing left to mend
        with Store(url, create=False) as store:
            study = store.study()
            assert study.spec == SPEC
            assert [done.loss for done in study.finished_since(0)][:1] == [2.5]
            assert [(row.seed, row.site) for row in study.trials()][:2] == [(100, 0), (101, 0)]
    with Store(url) as store:
        study = store.create_study("tune", SPEC)
        again = claim(study, new=False)
        assert (again.number, again.attempt, again.site) == (1, 2, 0)
        assert again.point.tolist() == [1.0] * 3
        assert finish(study, again)
        assert [claim(study).site for _ in range(4)] == [propose(n).site for n in range(2, 6)]


def test_a_lease_of_a_clock_that_was_ahead_does_not_hold(tmp_path: Path) -> None:
    """A lease that ends later than any can is over: its worker's clock was ahead."""
    clock = Clock()
    with Store(str(tmp_path / "store.db"), clock=clock) as store:
        study = store.create_study("tune", SPEC)
        clock.now += 7200.0
        ahead = claim(study, 60.0)
        clock.now -= 7200.0
        assert study.counts()["expired"] == 1
        assert study.workers() == {}
        assert claim(study, new=False).number == ahead.number
        assert not finish(study, ahead)


def test_no_lease_is_longer_than_the_longest(tmp_path: Path) -> None:
    """Whatever a worker asks for, it is free after ten minutes of silence."""
    clock = Clock()
    with Store(str(tmp_path / "store.db"), clock=clock) as store:
        study = store.create_study("tune", SPEC)
        held = claim(study, 1e9)
        study.extend([held], lease_seconds=1e9)
        clock.now += LONGEST_LEASE_SECONDS - 1
        assert study.claim("w", lambda number: None, lease_seconds=LONG) is None
        clock.now += 1
        assert claim(study, new=False).number == held.number


def test_trials_can_be_taken_back(study: Study) -> None:
    """Of a worker, by number or all: they are next, with the attempt counted, and are late."""
    claims = [claim(study, worker=name) for name in ("dead", "dead", "alive", "stuck")]
    assert study.workers() == {"dead": 2, "alive": 1, "stuck": 1}
    assert study.take_back(worker="nobody") == []
    assert study.take_back(worker="dead") == [0, 1]
    assert study.take_back(worker="dead") == []  # once
    assert study.take_back(numbers=[3, 5]) == [3]
    assert study.workers() == {"alive": 1}
    assert study.extend(claims, lease_seconds=LONG) == [claims[0], claims[1], claims[3]]
    again = claim(study, new=False)
    assert (again.number, again.attempt) == (0, 2)
    assert not finish(study, claims[0])
    assert finish(study, claims[1])  # nobody had taken it over
    assert study.take_back() == [0, 2]
    assert study.counts()["finished"] == 1


def test_a_study_that_is_deleted_is_one_line(study: Study, store: Store) -> None:
    """Whoever works on it is told, in every way to ask."""
    held = claim(study)
    with store._database._writer.begin() as connection:
        for table in ("completedp_trials", "completedp_studies"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    for ask in (
        lambda: claim(study),
        study.counts,
        study.take_back,
        lambda: study.set_budget(9),
    ):
        assert "is no longer in" in error_of(ask)
    assert not finish(study, held)


def test_a_database_that_is_gone_is_told_of_and_left_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A wait is said while it lasts, and is as long as the patience for it, once."""
    monkeypatch.setattr(database, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(database, "_LOCK_TIMEOUT_SECONDS", 0.01)
    path = tmp_path / "store.db"
    with Store(str(path)) as store:
        study = store.create_study("tune", SPEC)
        held = claim(study)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        message = error_of(study.release, held, patience=0.3)
        assert "locked" in message
        assert "locked" in error_of(study.extend, [held], lease_seconds=LONG, patience=0.0)
        assert time.monotonic() - began < 5.0
        said = capfd.readouterr().err.splitlines()
        assert len(said) == 1
        assert "trying again for" in said[0]
        other.execute("ROLLBACK")
        other.close()


def test_a_lease_runs_out_on_time(tmp_path: Path) -> None:
    """A trial is kept until its lease ends, a heartbeat moves that end, and then it is free."""
    clock = Clock()
    with Store(str(tmp_path / "s.db"), clock=clock) as store:
        study = store.create_study("a", SPEC | {"trials": 1})
        held = claim(study, 10.0)
        clock.now += 9.9
        assert study.claim("w", forbidden, lease_seconds=10.0) is None
        assert study.extend([held], lease_seconds=10.0) == []
        clock.now += 9.9
        assert study.claim("w", forbidden, lease_seconds=10.0) is None
        assert study.counts()["expired"] == 0
        clock.now += 0.1
        assert study.counts()["expired"] == 1
        taken = claim(study, 10.0, new=False)
        assert study.extend([held, taken], lease_seconds=10.0) == [held]
        row = study.trials()[0]
        assert (row.started_at, row.lease_until) == (clock.now, clock.now + 10.0)


def test_the_server_s_clock_counts(postgres: Server) -> None:
    """On PostgreSQL a client whose clock is wrong gets and leaves the same leases as the others."""
    address = postgres.database()
    with Store(address, clock=lambda: 5.0) as wrong, Store(address) as right:
        held = claim(wrong.create_study("a", SPEC))
        assert claim(right.study()).number == 1
        first, second = wrong.study().trials()
        assert abs(first.lease_until - second.lease_until) < LONG / 10
        assert wrong.study().extend([held], lease_seconds=LONG) == []


class Interleavings(RuleBasedStateMachine):
    """Workers that claim, beat, finish, give back and sleep in any order, against a model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(str(Path(self.folder.name) / "s.db"), clock=self.clock)
        self.budget = 3
        self.study = self.store.create_study("a", {"trials": self.budget})
        self.claims: list[Claim] = []
        self.holder: dict[int, Claim] = {}
        self.lease: dict[int, float] = {}
        self.done: list[tuple[int, float]] = []
        self.deaths: dict[int, int] = {}
        self.released: set[int] = set()

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def some(self, index: int) -> Claim | None:
        return self.claims[index % len(self.claims)] if self.claims else None

    def holds(self, claimed: Claim) -> bool:
        finished = any(number == claimed.number for number, _ in self.done)
        return self.holder[claimed.number] is claimed and not finished

    @rule(lease=st.sampled_from([0.0, 5.0, 20.0]))
    def claim(self, lease: float) -> None:
        finished = {number for number, _ in self.done}
        free = [n for n in sorted(self.holder) if n not in finished]
        free = [n for n in free if self.lease[n] <= self.clock.now]
        claimed = self.study.claim("w", propose, lease_seconds=lease)
        if claimed is None:
            assert not free
            assert len(self.holder) == self.budget
            return
        assert claimed.number == (free[0] if free else len(self.holder))
        self.deaths.setdefault(claimed.number, -1)
        if claimed.number not in self.released:
            self.deaths[claimed.number] += 1
        self.released.discard(claimed.number)
        assert claimed.attempt == self.deaths[claimed.number] + 1
        new = propose(claimed.number)
        found = claimed.point.tolist(), claimed.seed, claimed.site
        assert found == (new.point.tolist(), new.seed, new.site)
        self.claims.append(claimed)
        self.holder[claimed.number] = claimed
        self.lease[claimed.number] = self.clock.now + lease

    @rule(index=st.integers(0, 99), loss=st.floats(0, 10))
    def finish(self, index: int, loss: float) -> None:
        if (claimed := self.some(index)) is not None:
            held = self.holds(claimed)
            assert finish(self.study, claimed, loss) == held
            if held:
                self.done.append((claimed.number, loss))

    @rule(indices=st.lists(st.integers(0, 99), max_size=4))
    def extend(self, indices: list[int]) -> None:
        claims = [claimed for i in indices if (claimed := self.some(i)) is not None]
        lost = self.study.extend(claims, lease_seconds=7.0)
        gone = [c for c in claims if not self.holds(c) or c.number in self.released]
        assert lost == gone
        for claimed in claims:
            if claimed not in lost:
                self.lease[claimed.number] = self.clock.now + 7.0

    @rule(index=st.integers(0, 99))
    def release(self, index: int) -> None:
        if (claimed := self.some(index)) is not None:
            self.study.release(claimed)
            if self.holds(claimed):
                self.lease[claimed.number] = 0.0
                self.released.add(claimed.number)

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0]))
    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(trials=st.integers(1, 12))
    def set_budget(self, trials: int) -> None:
        self.budget = max(self.budget, trials)
        assert self.study.set_budget(trials) == self.budget

    @invariant()
    def finished_once_and_in_order(self) -> None:
        found = self.study.finished_since(0)
        assert [(one.number, one.loss) for one in found] == self.done
        assert [one.sequence for one in found] == list(range(len(self.done)))
        assert len({one.number for one in found}) == len(found)


def test_any_interleaving_keeps_the_promises() -> None:
    """Whatever the order of events, each trial finishes once, in sequence, and none is lost."""
    run_state_machine_as_test(Interleavings)


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_a_file_has_several_names(tmp_path: Path, form: str) -> None:
    """A path and its sqlite:/// URL open the same file; closing leaves nothing beside it."""
    path = tmp_path / "with space.db"
    with Store(str(path)) as store:
        store.create_study("a", SPEC)
    with Store(form.format(path)) as store:
        assert store.studies() == ["a"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_of_the_process_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path stays the file it was when the process goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    with Store("store.db") as store:
        store.create_study("a", SPEC)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert claim(store.study()).number == 0


def test_files_that_are_no_store(tmp_path: Path) -> None:
    """A text, another program's database and a folder are refused and left as they were."""
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to be taken for one" * 20)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    for path, said in [(text, "is not a database"), (foreign, "is another program's SQLite file")]:
        before = path.read_bytes()
        message = error_of(Store, str(path))
        assert said in message
        assert repr(str(path)) in message
        assert path.read_bytes() == before
    assert "is a folder" in error_of(Store, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign.db", "notes.txt"]


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    """A missing folder, a missing store and an empty path are one line and create nothing."""
    message = error_of(Store, str(tmp_path / "no" / "store.db"))
    assert f"create {str(tmp_path / 'no')!r}" in message
    assert "no store at" in error_of(Store, str(tmp_path / "x.db"), create=False)
    assert "store is empty" in error_of(Store, " ")
    assert "has a name that is too long" in error_of(Store, str(tmp_path / ("x" * 5000)))
    for address in ("sqlite://", "sqlite:///:memory:", "sqlite://store.db", "sqlite:///a.db?x=1"):
        assert f"{address!r} names no file" in error_of(Store, address)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_becomes_a_store_only_when_asked(tmp_path: Path) -> None:
    """A file of no bytes is a new store, but not to one who expects a store there."""
    path = tmp_path / "store.db"
    path.touch()
    assert "no store in" in error_of(Store, str(path), create=False)
    with Store(str(path)) as store:
        assert store.studies() == []


@pytest.fixture
def powerless() -> Iterator[Path]:
    """A folder, and no power to write where its permissions forbid it, not even for root."""
    with tempfile.TemporaryDirectory() as name:
        folder, me = Path(name), os.geteuid()
        folder.chmod(0o777)
        if me == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(me)
            folder.chmod(0o777)


def test_read_only_stores(powerless: Path) -> None:
    """A file or a folder that may not be written is one line that says what to do."""
    path = powerless / "store.db"
    with Store(str(path)) as store:
        store.create_study("a", SPEC)
    path.chmod(0o444)
    with Store(str(path)) as store:
        message = error_of(store.study().claim, "w", propose, lease_seconds=LONG)
    assert message == f"cannot write the store {str(path)!r}: make the file and its folder writable"
    powerless.chmod(0o555)
    assert "cannot write the store" in error_of(Store, str(powerless / "new.db"))
    powerless.chmod(0o000)
    assert "cannot open the store" in error_of(Store, str(path))


def test_a_deleted_store_is_noticed(tmp_path: Path) -> None:
    """A worker whose file is gone is told so, instead of writing into nothing."""
    path = tmp_path / "store.db"
    with Store(str(path)) as store:
        study = store.create_study("a", SPEC)
        claimed = claim(study)
        path.unlink()
        assert "is gone" in error_of(finish, study, claimed)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_replaced_store_is_noticed(tmp_path: Path, in_place: bool) -> None:
    """A worker whose store is replaced, as a file or within it, is told so and writes nothing."""
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    for each in (path, other):
        with Store(str(each)) as store:
            store.create_study("a", SPEC)
    with Store(str(path)) as store:
        study = store.study("a")
        claimed = claim(study)
        if in_place:
            store.close()  # nobody has the file open at this moment
            path.write_bytes(other.read_bytes())
        else:
            path.unlink()
            with Store(str(path)) as new:
                new.create_study("a", SPEC)
        assert "another came in its place" in error_of(finish, study, claimed)
        assert "another came in its place" in error_of(claim, study)
    with Store(str(path)) as store:
        assert store.study("a").trials() == []


def test_a_replaced_store_is_noticed_anywhere(store: Store, study: Study) -> None:
    """In any database: its identity is compared in every transaction."""
    claimed = claim(study)
    with store._database._engine.execution_options(begin="BEGIN").begin() as connection:
        connection.execute(sa.text("UPDATE completedp_schema SET identity = 'another'"))
    assert "another came in its place" in error_of(finish, study, claimed)
    with store._database._engine.execution_options(begin="BEGIN").begin() as connection:
        connection.execute(sa.text("ALTER TABLE completedp_schema RENAME TO other_schema"))
    assert "another came in its place" in error_of(finish, study, claimed)


def test_a_locked_file_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock held for longer than SQLite waits is outlasted; one that never ends is one line."""
    monkeypatch.setattr(database, "_LOCK_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "store.db"
    with Store(str(path)) as store:
        study = store.create_study("a", SPEC)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.5, other.execute, ["ROLLBACK"])
        timer.start()
        assert claim(study).number == 0
        timer.join()
        monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.2)
        other.execute("BEGIN IMMEDIATE")
        assert "another program keeps the store" in error_of(claim, study)
        other.close()


def test_readers_do_not_stop_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody reads for long, and sees one moment of it, trials are claimed and finished."""
    monkeypatch.setattr(database, "_LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.2)
    path = tmp_path / "store.db"
    with Store(str(path)) as store:
        study = store.create_study("a", SPEC)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        count = "SELECT count(*) FROM completedp_trials"
        assert reader.execute(count).fetchone() == (0,)
        assert finish(study, claim(study))
        assert reader.execute(count).fetchone() == (0,)
        reader.close()


def test_only_these_databases() -> None:
    """The URL of another database is refused without its password."""
    message = error_of(Store, "mysql://me:hush@host/db")
    assert "mysql://" in message
    assert "hush" not in message


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:hu@sh@host/db",
        "postgresql://me:hush@host:hush/db",
        "postgres://me:hush@host:1:2/db",
        "postgresql://me:hush@127.0.0.1:1/db",
        "postgresql://me@127.0.0.1:1/db?password=hush",
        "postgresql://me:hush@127.0.0.1:1/db?sslmode=hush",
        "postgresql://me:hush@127.0.0.1:1/db?unknown=hush",
    ],
)
def test_passwords_are_not_printed(address: str) -> None:
    """A PostgreSQL URL that cannot be read or reached is one line without the password."""
    pytest.importorskip("psycopg")
    message = error_of(Store, address)
    assert "hush" not in message
    assert "sh@" not in message
    assert "postgres" in message


def test_a_server_that_refuses(postgres: Server) -> None:
    """A wrong password and an unknown database are the server's words, without the password."""
    message = error_of(Store, postgres.url("postgres", "not-this"))
    assert "password authentication failed" in message
    assert "not-this" not in message
    message = error_of(Store, postgres.url("nowhere"))
    assert '"nowhere" does not exist' in message
    assert PASSWORD not in message
    assert "no store in" in error_of(Store, postgres.database(), create=False)


def test_a_shared_postgres_database_is_fine(postgres: Server) -> None:
    """Tables of others in the database are no obstacle: ours have names of their own."""
    address = postgres.database()
    engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE trials (number INTEGER)"))
    engine.dispose()
    with Store(address) as store:
        assert claim(store.create_study("a", SPEC)).number == 0


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg a postgresql:// URL says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert 'pip install "completedp[postgres]"' in error_of(Store, "postgresql://me:hush@host/db")


def test_errors_are_the_one_users_see(tmp_path: Path) -> None:
    """Whatever the database says reaches the user as a CompletedpError, with its cause kept."""
    with Store(str(tmp_path / "store.db")) as store:
        study = store.create_study("a", SPEC)
        with sqlite3.connect(tmp_path / "store.db") as connection:
            connection.execute("DROP TABLE completedp_trials")
        connection.close()
        with pytest.raises(CompletedpError, match="no such table") as caught:
            claim(study)
        assert isinstance(caught.value.__cause__, sa.exc.OperationalError)


def test_many_may_open_a_new_store_at_once(url: str) -> None:
    """Stores opened at the same moment on a new database create its tables and study once."""
    together = threading.Barrier(6)
    errors: list[BaseException] = []

    def open_and_claim() -> None:
        together.wait()
        try:
            with Store(url) as store:
                claim(store.create_study("a", SPEC))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Store(url) as store:
        assert [row.number for row in store.study().trials()] == list(range(6))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:SECRET@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgres://me:SECRET@host/db", "postgresql://me@host/db"),
        ("postgresql://me@host/db?password=SECRET&host=x", "postgresql://me@host/db?host=x"),
        ("search.db", "search.db"),
        ("sqlite:///search.db", "sqlite:///search.db"),
    ],
)
def test_a_store_is_printed_without_its_password(url: str, shown: str) -> None:
    """What commands print to be typed next has all of it but the password."""
    assert without_password(url) == shown


@pytest.mark.parametrize("url", ["postgresql:/u:SECRET@h/x", "postgresql//u:SECRET@h/x"])
def test_half_a_url_is_no_path(url: str) -> None:
    """A sign that is missing is told, without what was typed: there is a password in it."""
    said = error_of(check_no_half_url, url)
    assert "lacks a sign: write postgresql://" in said
    assert "SECRET" not in said
