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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from completedp.common.errors import CompletedpError
from completedp.common.process import answered_signals
from completedp.studies.cells import work_of
from completedp.studies.engines import Engine, Proposal
from completedp.studies.objective import Objective
from completedp.studies.spent import note_device
from completedp.studies.stopping import EarlyStop
from completedp.studies.store import Claim, Study
from completedp.studies.study import IMPOSSIBLE
from completedp.studies.unchanged import check_unchanged
from completedp.theory.scale import Scale
from completedp.training.devices import device_name
from completedp.training.trials import Outcome, Stack, Trial

_WAIT_SECONDS = 1.0
_MACHINE = 0xEFFFFFFC
"""What Linux calls the space of process numbers that no container has."""
_FAREWELL_SECONDS = 5.0
"""How long a store that does not answer is asked to take the trials back."""


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

    def propose(self, number: int) -> Proposal | None:
        """A new trial, if the engine has one."""
        self.catch_up()
        return self.engine.propose(number)


@dataclass
class Progress:
    """What a worker has done, for the live view."""

    steps: int = 0
    trials: int = 0
    work: float = 0.0
    """Of its trials, steps that were saved by an early end included, by what a step of each takes
    (`work_of` the trial is the whole)."""
    busy: float = 1.0
    """Part of the slots that had a trial."""
    waits_for: Mapping[str, int] = field(default_factory=dict)
    """Where nothing is left to claim: who has trials in hand, and how many."""


def make_fold(study: Study, objective: Objective) -> Fold:
    """The study's engine and stopping rule, told nothing yet."""
    stopping = EarlyStop(objective.recipe.base.steps) if objective.spec.stop_early else None
    return Fold(study, objective.engine(study), stopping)


def work(
    study: Study,
    objective: Objective,
    *,
    name: str | None = None,
    report: Callable[[Fold, Progress], None] | None = None,
) -> None:
    """Run trials until the study's budget is finished, by this worker or another.

    Ctrl-C and SIGTERM end it, with its trials given back; what was trained of them is lost.
    """
    name = name or f"{_here()}-{os.getpid()}"
    for worker in filter(_died_here, study.workers()):  # nobody has to wait for their leases
        study.take_back(worker=worker)
    fold = make_fold(study, objective)
    fold.catch_up()
    left = study.counts()
    if left["finished"] >= left["budget"]:
        return
    check_unchanged(study, objective)
    note_device(study, name, device_name(objective.runner.device))
    lease, done = objective.options.lease, Progress()
    waiting: deque[Trial[Claim]] = deque()
    """Claimed, and of another scale than the one that trains now."""

    waits_for = "stopping when what is computed now returns, to give the trials back"
    with answered_signals(waits_for, hold=False) as signals, _kept_alive(study, lease) as held:

        def claim_one() -> Claim | None:
            with signals.held():  # what is claimed and not known of could not be given back
                claim = study.claim(name, fold.propose, lease_seconds=lease)
                if claim is not None:
                    held.add(claim)
            return claim

        def claimed() -> Trial[Claim] | None:
            """The next trial to train; points of no plan are written down on the way."""
            while (claim := claim_one()) is not None:
                # A model that this machine cannot make is no fault of the point: raised as it is.
                objective.task.blank(objective.site(claim.site).scale)
                try:
                    return objective.trial(claim)
                except CompletedpError as error:
                    nothing = {"status": IMPOSSIBLE, "result": {"reason": str(error)}}
                    study.finish(claim, loss=math.inf, steps=0, curve=[], **nothing)
                    held.discard(claim)
            return None

        def of_scale(scale: Scale) -> Iterator[Trial[Claim]]:
            """Trials of one scale, whatever their rules, until one of another comes up."""
            while not waiting and (trial := claimed()) is not None:
                if trial.plan.target != scale:
                    waiting.append(trial)
                else:
                    yield trial

        def stop(running: Sequence[tuple[Trial[Claim], list[float]]]) -> list[bool]:
            if fold.stopping is None:
                return [False] * len(running)
            return fold.stopping.hopeless([(t.key.number, losses) for t, losses in running])

        def progress(steps: int) -> None:
            done.steps += steps
            if report is not None:
                report(fold, done)

        while True:
            trial = waiting.popleft() if waiting else claimed()
            if trial is not None:
                done.waits_for = {}
                scale, counts = trial.plan.target, study.counts()
                left = counts["budget"] - counts["finished"]
                stack = objective.runner.stack(scale, objective.at_most(scale, left))

                each_step = work_of(scale) / scale.steps

                def seen(steps: int, stack: Stack = stack, each_step: float = each_step) -> None:
                    done.busy = stack.busy_steps / max(1, stack.slot_steps)
                    done.work += each_step * steps
                    progress(steps)

                trials = chain([trial], of_scale(scale))
                for outcome in stack.run(trials, stop=stop, progress=seen):
                    _finish(study, fold, outcome)
                    held.discard(outcome.key)
                    done.trials += 1
                    done.work += each_step * (scale.steps - len(outcome.losses))
                continue
            counts = study.counts()
            if counts["finished"] >= counts["budget"]:
                break
            done.busy, done.waits_for = 0.0, study.workers()
            progress(0)
            time.sleep(_WAIT_SECONDS)  # others still run; should they die, their trials come back
    fold.catch_up()
    if report is not None:
        report(fold, done)


def _here() -> str:
    """Where processes have the numbers that they have here: this machine, or a container on it."""
    host = socket.gethostname()
    try:
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # no Linux
        return host
    return host if space == _MACHINE else f"{host}/{space}"


def _died_here(worker: str) -> bool:
    """Whether a worker, by its name, was a process from here that is gone."""
    where, _, process = worker.rpartition("-")
    if where != _here() or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # another user's, or the number of no process
        pass
    return False


def _finish(study: Study, fold: Fold, outcome: Outcome[Claim]) -> None:
    fold.catch_up()
    loss, result = outcome.loss, None
    if outcome.status == "stopped" and fold.stopping is not None:
        loss = fold.stopping.estimate(outcome.key.point, outcome.losses)
        result = {"estimated": True}
    study.finish(
        outcome.key,
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
        pause = lease / 4
        while not over.wait(pause):
            # A store that is gone is for `work` to wait for and say; here it is tried again soon.
            # Of lost claims `finish` writes nothing.
            pause = _WAIT_SECONDS
            with suppress(CompletedpError):
                study.extend(list(held), lease_seconds=lease, patience=0.0)
                pause = lease / 4

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()
        with suppress(CompletedpError):  # what is not given back runs out
            study.release(*held, patience=_FAREWELL_SECONDS)
