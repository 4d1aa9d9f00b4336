"""Worker: claim trials, train them in slots, write down how they ended, until none are left.

Any number of workers, on any machines, work on one study. Each keeps its own fold of the engine
over the finished trials and asks it for new points; leases, renewed by a thread of their own, say
which trials are being worked on. A worker that is killed loses nothing but its unfinished trials'
time: others take them over.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.common.process import held_signals
from completedp.studies.engines import Engine
from completedp.studies.objective import Objective
from completedp.studies.stopping import EarlyStop
from completedp.studies.store import Claim, Study
from completedp.training.slots import Outcome, Trial

_WAIT_SECONDS = 1.0


class Fold:
    """The engine and the stopping rule, told every finished trial of a study in order."""

    def __init__(self, study: Study, engine: Engine, stopping: EarlyStop | None) -> None:
        self.study, self.engine, self.stopping = study, engine, stopping
        self.seen = 0
        """Finished trials told so far."""

    def catch_up(self) -> None:
        """Tell what has finished since the last time."""
        for trial in self.study.finished_since(self.seen, curves=self.stopping is not None):
            trial.tell(self.engine)
            if self.stopping is not None and trial.curve is not None:
                self.stopping.tell(trial.number, trial.point, trial.curve, trial.loss, trial.status)
            self.seen = trial.sequence + 1

    def propose(self, number: int) -> tuple[np.ndarray, int]:
        """A new trial's point and seed."""
        self.catch_up()
        seed = int(np.random.default_rng([self.study.spec["seed"], number, 1]).integers(2**31))
        return self.engine.ask(number), seed


@dataclass
class Progress:
    """What a worker has done, for the live view."""

    steps: int = 0
    trials: int = 0
    busy: float = 1.0
    """Part of the slots that had a trial."""


def make_fold(study: Study, objective: Objective) -> Fold:
    """The study's engine and stopping rule, told nothing yet."""
    stopping = EarlyStop(objective.recipe.base.steps) if study.spec["stop_early"] else None
    return Fold(study, objective.engine(), stopping)


def work(
    study: Study,
    objective: Objective,
    *,
    name: str | None = None,
    report: Callable[[Fold, Progress], None] | None = None,
) -> None:
    """Run trials until the study's budget is finished, by this worker or another.

    Ctrl-C and SIGTERM end it between steps, with its trials given back.
    """
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    fold = make_fold(study, objective)
    fold.catch_up()
    left = study.counts()
    if left["finished"] >= left["budget"]:
        return
    slots = objective.slots(trials=left["budget"] - left["finished"])
    lease, done = objective.options.lease, Progress()

    with held_signals() as interrupted, _kept_alive(study, lease) as held:

        def trials() -> Iterator[Trial]:
            while (claim := study.claim(name, fold.propose, lease_seconds=lease)) is not None:
                held.add(claim)
                trial = None
                with suppress(CompletedpError):  # far out there are points of no plan
                    trial = objective.trial(claim)
                if trial is None:
                    study.finish(claim, loss=math.inf, status="diverged", steps=0, curve=[])
                    held.discard(claim)
                else:
                    yield trial

        def stop(running: Sequence[tuple[Trial, list[float]]]) -> list[bool]:
            if fold.stopping is None:
                return [False] * len(running)
            return fold.stopping.hopeless([(t.label.number, losses) for t, losses in running])

        def progress(steps: int) -> None:
            done.steps += steps
            done.busy = slots.busy_steps / max(1, slots.slot_steps)
            if report is not None:
                report(fold, done)
            if interrupted():
                raise KeyboardInterrupt

        while True:
            for outcome in slots.run(trials(), stop=stop, progress=progress):
                _finish(study, fold, outcome)
                held.discard(outcome.trial.label)
                done.trials += 1
            counts = study.counts()
            if counts["finished"] >= counts["budget"]:
                break
            time.sleep(_WAIT_SECONDS)  # others still run; should they die, their trials come back
            progress(0)
    fold.catch_up()
    if report is not None:
        report(fold, done)


def _finish(study: Study, fold: Fold, outcome: Outcome) -> None:
    fold.catch_up()
    loss, result = outcome.valid_loss, None
    if outcome.status == "stopped" and fold.stopping is not None:
        loss, result = (
            fold.stopping.estimate(outcome.trial.label.point, outcome.losses),
            {"estimated": True},
        )
    loss = math.inf if loss is None else loss
    study.finish(
        outcome.trial.label,
        loss=loss,
        status=outcome.status if math.isfinite(loss) else "diverged",
        steps=len(outcome.losses),
        curve=outcome.losses,
        result=result,
    )


@contextmanager
def _kept_alive(study: Study, lease: float) -> Iterator[set[Claim]]:
    """The claims that are held: renewed by a thread, and given back when the work ends early."""
    held: set[Claim] = set()
    over = threading.Event()

    def renew() -> None:
        while not over.wait(lease / 4):
            # A store that is gone is for `work` to say; of lost claims `finish` writes nothing.
            with suppress(CompletedpError):
                study.extend(list(held), lease_seconds=lease)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()
        with suppress(CompletedpError):  # what is not given back runs out
            for claim in held:
                study.release(claim)
