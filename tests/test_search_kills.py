"""The search commands end to end: killed, told to stop, started again, joined by a worker."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from studies import CONTEXT, make_recipe, write_tokens

from completedp.studies.store import Finished, Store, Study
from completedp.studies.worker import _here

STEPS = 60
AHEAD = 12
"""Trials that there are always to be done, so that a quick machine is killed at work, too."""
PATIENCE = 60.0
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


class Commands:
    """`completedp search` commands on one study, as processes; none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = write_tokens(folder)
        make_recipe(STEPS).save(folder / "recipe.json")
        self.file = folder / "store.db"
        self.store = Store(str(self.file))
        self.running: list[subprocess.Popen[str]] = []

    def run(self, verb: str, *arguments: str) -> subprocess.Popen[str]:
        """Begin a command on the store."""
        command = [sys.executable, "-m", "completedp", "search", verb, "--store"]
        process = subprocess.Popen(
            [*command, str(self.file), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self.running.append(process)
        return process

    def work(self, verb: str, trials: int = AHEAD, lease: float = 2.0) -> subprocess.Popen[str]:
        """`start` or `worker`: two slots, not compiled."""
        options = ["--data", self.tokens, "--slots", "2", "--no-compile", "--lease", f"{lease}"]
        if verb == "start":
            options += ["--recipe", str(self.folder / "recipe.json"), "--trials", f"{trials}"]
            options += ["--context", f"{CONTEXT}", "--eval-sequences", "8", "--anyway"]
        return self.run(verb, *options)

    def study(self) -> Study:
        """The study, once a `start` has made it."""
        wait_until(lambda: self.store.studies() != [])
        return self.store.study()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.communicate()
    made.store.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_trials(study: Study, process: subprocess.Popen[str]) -> bool:
    """Whether a process has trials in hand; it must not have ended."""
    assert process.poll() is None, process.communicate()
    name = f"{_here()}-{process.pid}"
    rows = study.trials(curves=False)
    return any(row.state == "running" and row.worker == name for row in rows)


def best_of(finished: list[Finished]) -> float:
    return min((one.loss for one in finished), default=float("inf"))


def test_killed_commands_lose_nothing(commands: Commands) -> None:
    """After SIGKILLs at random moments the same command goes on until all is finished once.

    What had finished stays as it was, so the best never gets worse, and a worker that joins for a
    while changes nothing of that.
    """
    dice = random.Random(0)
    starter = helper = commands.work("start")
    study = commands.study()
    seen: list[Finished] = []

    def look() -> None:
        study.set_budget(study.counts()["finished"] + AHEAD)
        now = study.finished_since(0)
        assert [(a.number, a.loss) for a in now[: len(seen)]] == [(b.number, b.loss) for b in seen]
        assert best_of(now) <= best_of(seen)
        seen[:] = now

    def at_work(process: subprocess.Popen[str], finished: int) -> bool:
        look()
        return has_trials(study, process) and len(seen) >= finished

    for kill in range(3):
        victim, before = helper if kill == 1 else starter, len(seen)
        wait_until(lambda victim=victim, before=before: at_work(victim, before + 2))
        for _ in range(dice.randrange(10)):
            time.sleep(dice.uniform(0.0, 0.1))
            look()
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
        if kill == 0:
            helper = commands.work("worker")
        if victim is starter:
            starter = commands.work("start")
    said, complained = starter.communicate(timeout=PATIENCE)
    assert starter.returncode == 0, complained
    total = study.counts()["budget"]
    assert f"search: {total}/{total} trials" in said
    finished = study.finished_since(0)
    assert [(a.number, a.loss) for a in finished[: len(seen)]] == [(b.number, b.loss) for b in seen]
    rows = study.trials()
    assert [row.number for row in rows] == list(range(total))
    assert sorted(row.sequence or 0 for row in rows) == list(range(total))
    assert {row.state for row in rows} == {"finished"}
    assert sum(row.attempt - 1 for row in rows) >= 2  # the kills did hit trials that were running
    assert len({row.worker for row in rows}) >= 2
    looked, _ = commands.run("status", "--json").communicate(timeout=PATIENCE)
    found = json.loads(looked)
    assert found["counts"] == {
        "budget": total,
        "running": 0,
        "expired": 0,
        "finished": total,
        "diverged": sum(row.status == "diverged" for row in rows),
        "impossible": 0,
    }
    assert found["best_loss"] == min(row.loss for row in rows if row.status == "ok")  # type: ignore[type-var]
    assert found["workers"] == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_told_to_stop_gives_its_trials_back(
    commands: Commands, number: signal.Signals
) -> None:
    """On SIGTERM or Ctrl-C the trials in hand are free at once, and the last line says so."""
    make_recipe(200).save(commands.folder / "recipe.json")  # long enough to be caught in
    process = commands.work("start", trials=10**6, lease=600.0)
    study = commands.study()

    def both_at_work() -> bool:
        counts = study.counts()
        return has_trials(study, process) and counts["finished"] > 1 and counts["running"] == 2

    wait_until(both_at_work)
    process.send_signal(number)
    _, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert complained.splitlines()[-1] == (
        "completedp: interrupted: the same command goes on where it stopped"
    )
    assert "Traceback" not in complained
    counts = study.counts()
    assert counts["running"] == counts["expired"] == 2
