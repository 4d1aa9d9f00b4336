"""How a study stands, from its store alone: trials, rate, what is best, who is at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from completedp.common.checks import printable
from completedp.studies.cells import NAME as CELLS
from completedp.studies.objective import engine_of
from completedp.studies.spec import StudySpec
from completedp.studies.store import Study, TrialRow
from completedp.studies.study import IMPOSSIBLE

MANY_ATTEMPTS = 5
"""A trial begun more often is shown: its workers may die of it."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a study stands."""

    name: str
    counts: dict[str, int]
    stopped: int
    best_loss: float | None
    start_loss: float | None
    """Of a search's first trial, which is the start itself."""
    per_minute: float
    """Trials finished a minute, over the last hundred."""
    eta_seconds: float | None
    workers: dict[str, int]
    """Trials that each worker has in hand."""
    deadly: dict[int, int]
    """Trials that many workers died in, and how often each was begun."""
    impossible: str | None
    """Why the first trial of no plan has none."""
    engine: dict[str, float]

    @property
    def has_trained(self) -> bool:
        """Whether any trial came to a loss."""
        counts = self.counts
        return counts["finished"] > counts["diverged"] + counts["impossible"]

    def lines(self) -> str:
        """For people."""
        counts = self.counts
        eta = "" if self.eta_seconds is None else f", {self.eta_seconds / 60:.0f} min left"
        best = "none yet" if self.best_loss is None else f"{self.best_loss:.4f}"
        start = "" if self.start_loss is None else f" (start {self.start_loss:.4f})"
        state = ", ".join(f"{key} {value:.3g}" for key, value in self.engine.items())
        working = ", ".join(f"{name} ({n})" for name, n in self.workers.items()) or "nobody"
        lines = [
            f"{self.name}: {counts['finished']}/{counts['budget']} trials, "
            f"{self.per_minute:.1f} a minute{eta}",
            f"best {best}{start}; {counts['diverged']} diverged, {self.stopped} stopped early",
            f"{counts['impossible']} impossible, the first: {self.impossible}"
            if counts["impossible"]
            else "",
            f"engine: {state}" if state else "",
            f"at work: {working}; {counts['expired']} trials wait for a worker",
            *(
                f"trial {number} was begun {times} times: its workers die, look at their logs"
                for number, times in list(self.deadly.items())[:3]
            ),
        ]
        return printable("\n".join(filter(None, lines)))

    __str__ = lines


def status(study: Study) -> Status:
    """How a study stands, from its store alone."""
    rows, counts = study.trials(curves=False), study.counts()
    done = sorted((r for r in rows if r.finished_at is not None), key=lambda r: r.sequence or 0)
    rate = _rate(done[-100:])
    left = counts["budget"] - counts["finished"]
    # Losses at other sites than the first, the base, are not to be compared with those there.
    measured = [r.loss for r in done if r.status == "ok" and r.loss is not None and r.site == 0]
    searched = study.spec.get("engine") != CELLS  # the first of a list is any of its trials
    first = next((r.loss for r in done if searched and r.number == 0 and r.status == "ok"), None)
    return Status(
        name=study.name,
        counts=counts,
        stopped=sum(row.status == "stopped" for row in rows),
        best_loss=min(measured, default=None),
        start_loss=first,
        per_minute=60 * rate,
        eta_seconds=left / rate if rate and left else None,
        workers=study.workers(),
        deadly={
            row.number: row.attempt
            for row in rows
            if row.state == "running" and row.attempt > MANY_ATTEMPTS
        },
        impossible=next((_reason(row) for row in rows if row.status == IMPOSSIBLE), None),
        engine=_engine_state(study),
    )


def _reason(row: TrialRow) -> str:
    return str((row.result or {}).get("reason", "not known"))


def _rate(rows: Sequence[TrialRow]) -> float:
    """Trials finished a second, pauses left out: no trial takes as long as nobody working may."""
    ends = [row.finished_at for row in rows if row.finished_at is not None]
    longest = max((end - row.started_at for row, end in zip(rows, ends, strict=True)), default=0.0)
    gaps = [min(after - before, longest) for before, after in pairwise(ends)]
    span = sum(gaps) + (ends[0] - rows[0].started_at if rows else 0.0)
    return len(ends) / span if span > 0 else 0.0


def _engine_state(study: Study) -> dict[str, float]:
    """What the engine says of itself, beyond what the trials do."""
    engine = engine_of(StudySpec.from_dict(study.spec), study)
    for trial in study.finished_since(0):
        trial.tell(engine)
    told = ("best_loss", "told", "diverged")
    return {key: value for key, value in engine.describe().items() if key not in told}
