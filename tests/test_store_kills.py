"""Workers are killed, servers restart, many write at once: no trial is lost or finished twice."""

import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from postgres_server import PASSWORD, Server
from version_1 import write_store

from completedp.studies import database
from completedp.studies.engines import Proposal
from completedp.studies.store import Finished, Store, Study

KILLS, WORKERS = 30, 4
TRIALS_PER_KILL = 20
TOTAL = (KILLS + 2) * TRIALS_PER_KILL
LEASE = 0.3
PATIENCE = 60.0
# Children of a server process that has the imports done start in milliseconds.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["completedp.studies.store", "pytest", "sqlalchemy"])


def zeros(number: int) -> Proposal:
    return Proposal(point=np.zeros(79), seed=number)


def worker(url: str, log: str, total: int) -> None:
    """Claim, work a few milliseconds, finish and log it, until `total` trials are finished."""
    dice = random.Random(os.getpid())
    told: list[Finished] = []
    with Store(url, create=False) as store, Path(log).open("w") as lines:
        study = store.study()

        def propose(number: int) -> Proposal:
            told.extend(study.finished_since(len(told)))
            assert [done.sequence for done in told] == list(range(len(told)))
            return Proposal(point=np.full(79, float(number)), seed=number)

        while study.counts()["finished"] < total:
            claim = study.claim(f"worker {os.getpid()}", propose, lease_seconds=LEASE)
            if claim is None:
                time.sleep(0.01)
                continue
            time.sleep(dice.uniform(0.0, 0.004))
            lost = study.extend([claim], lease_seconds=LEASE) if dice.random() < 0.2 else []
            loss = dice.random()
            if study.finish(claim, loss=loss, status="ok", steps=1, curve=[loss]):
                assert not lost
                lines.write(f"{claim.number} {loss!r}\n")
                lines.flush()


def started(target: Any, *arguments: Any) -> BaseProcess:
    process = FORKSERVER.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def test_killed_workers_lose_nothing(url: str, tmp_path: Path) -> None:
    """After 30 SIGKILLs at random moments every trial of the budget is finished exactly once.

    What was read of the finished trials on the way is what stands there at the end, and what a
    worker was told it had written is there as it wrote it.
    """
    dice = random.Random(0)
    logs = [str(tmp_path / f"log{n}") for n in range(KILLS + WORKERS)]
    with Store(url) as store:
        study = store.create_study("tune", {"trials": 2 * TRIALS_PER_KILL})
        workers = [started(worker, url, logs.pop(), TOTAL) for _ in range(WORKERS)]
        seen: list[Finished] = []
        for kill in range(KILLS):
            # Budget is given in pieces, so that there is work to be killed at on any machine.
            wait_for(study, (kill + 1) * TRIALS_PER_KILL)
            study.set_budget((kill + 3) * TRIALS_PER_KILL)
            time.sleep(dice.uniform(0.0, 0.05))
            victim = workers.pop(dice.randrange(WORKERS))
            assert victim.exitcode is None
            os.kill(victim.pid or 0, signal.SIGKILL)
            workers.append(started(worker, url, logs.pop(), TOTAL))
            victim.join()
            assert victim.exitcode == -signal.SIGKILL
            seen += study.finished_since(len(seen))
        wait_for(study, TOTAL)
        for process in workers:
            process.join(PATIENCE)
            assert process.exitcode == 0
        finished = study.finished_since(0)
        assert [one.sequence for one in finished] == list(range(TOTAL))
        assert sorted(one.number for one in finished) == list(range(TOTAL))
        assert [(a.number, a.loss) for a in seen] == [(b.number, b.loss) for b in finished][
            : len(seen)
        ]
        losses = {one.number: one.loss for one in finished}
        texts = [log.read_text() for log in tmp_path.glob("log*")]
        written = [line.split() for text in texts for line in text.splitlines()]
        assert len(written) >= TOTAL - KILLS
        assert len({number for number, _ in written}) == len(written)
        for number, loss in written:
            assert losses[int(number)] == float(loss)
        for row in study.trials():
            assert row.seed == row.number
            assert row.point.tolist() == [row.number] * 79
        taken_over = sum(row.attempt > 1 for row in study.trials())
        assert taken_over >= KILLS / 10  # the kills did hit trials that were running
    if not url.startswith("postgresql"):
        connection = sqlite3.connect(url)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def wait_for(study: Study, finished: int) -> None:
    """Until so many trials are finished."""
    deadline = time.monotonic() + PATIENCE
    while (counts := study.counts())["finished"] < finished:
        assert time.monotonic() < deadline, counts
        time.sleep(0.02)


def hasty_worker(url: str, together: Any, trials: int, name: str = "race") -> None:
    """Open a store that nobody has made (or mended) yet, with the others at once, and race."""
    together.wait()
    with Store(url) as store:
        study = store.create_study(name, {"trials": trials})
        while claim := study.claim("w", zeros, lease_seconds=PATIENCE):
            assert study.finish(claim, loss=1.0, status="ok", steps=1, curve=[1.0])


def test_sixteen_workers_at_once(url: str) -> None:
    """Sixteen processes that open a new store and write without a pause meet no error."""
    trials, count = 320, 16
    together = FORKSERVER.Barrier(count)
    workers = [started(hasty_worker, url, together, trials) for _ in range(count)]
    for process in workers:
        process.join(PATIENCE)
        assert process.exitcode == 0
    with Store(url, create=False) as store:
        rows = store.study().trials()
        assert [row.number for row in rows] == list(range(trials))
        assert sorted(row.sequence or 0 for row in rows) == list(range(trials))
        assert {row.attempt for row in rows} == {1}


def test_many_may_bring_an_old_store_up_to_date_at_once(url: str) -> None:
    """Eight processes that open a store of version 1 at the same moment all work on in it."""
    trials, count = 64, 8
    write_store(url, {"trials": trials}, {0: 2.0, 1: None})
    together = FORKSERVER.Barrier(count)
    workers = [started(hasty_worker, url, together, trials, "tune") for _ in range(count)]
    for process in workers:
        process.join(PATIENCE)
        assert process.exitcode == 0
    with Store(url, create=False) as store:
        rows = store.study().trials()
        assert [row.number for row in rows] == list(range(trials))
        assert sorted(row.sequence or 0 for row in rows) == list(range(trials))
        assert rows[0].loss == 2.0


def test_a_server_that_restarts_is_waited_for(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers outlast a crash of PostgreSQL; one that stays away is one line, without password."""
    with Store(postgres.database()) as store:
        study = store.create_study("tune", {"trials": 9})
        held = study.claim("w", zeros, lease_seconds=PATIENCE)
        assert held is not None
        postgres.stop()
        restart = threading.Timer(0.5, postgres.start)
        restart.start()
        assert study.finish(held, loss=2.0, status="ok", steps=1, curve=[])
        restart.join()
        assert [one.loss for one in study.finished_since(0)] == [2.0]
        postgres.stop()
        monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.3)
        try:
            message = error_of(study.counts)
        finally:
            postgres.start()
    assert "does not answer" in message
    assert PASSWORD not in message


def test_a_silent_claim_does_not_stop_the_study(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that goes silent inside a claim loses the lock; when it wakes, it claims anew."""
    monkeypatch.setattr(database, "_IDLE_TIMEOUT", "300ms")
    address = postgres.database()
    awake = threading.Event()
    numbers: list[int] = []

    def sleepy(number: int) -> Proposal:
        numbers.append(number)
        awake.wait(PATIENCE)
        return zeros(number)

    with Store(address) as silent, Store(address) as other:
        study = silent.create_study("tune", {"trials": 9})
        claims: list[Any] = []
        thread = threading.Thread(
            target=lambda: claims.append(study.claim("a", sleepy, lease_seconds=PATIENCE))
        )
        thread.start()
        while not numbers:
            time.sleep(0.01)
        quick = other.study().claim("b", zeros, lease_seconds=PATIENCE)
        awake.set()
        thread.join()
        assert quick is not None
        assert (quick.number, claims[0].number, numbers) == (0, 1, [0, 1])
        assert len(study.trials()) == 2
