"""What `completedp search` does: start or join a study, show it, and take its best recipe."""

from __future__ import annotations

import csv
import math
import sqlite3
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from completedp.common.errors import CompletedpError
from completedp.common.extras import import_extra
from completedp.studies.config import StudyConfig, WorkerConfig
from completedp.studies.ladder import START, Rung, climb
from completedp.studies.objective import Objective, engine_of, scaled, study_spec
from completedp.studies.store import Store, Study, TrialRow
from completedp.studies.worker import Fold, Progress, make_fold, work
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios

RECOMMENDED, LUCKIEST = "recommended", "best trial"
MANY_ATTEMPTS = 5
"""A trial begun more often is shown: its workers may die of it."""


def open_study(store: Store, name: str, config: StudyConfig, recipe: Recipe | None = None) -> Study:
    """A new study, or the one of that name to go on with; a larger budget is granted."""
    spec = study_spec(config, recipe)
    while True:
        try:
            study = store.create_study(name, spec)
            break
        except CompletedpError:
            budget = store.study(name).spec["trials"] if name in store.studies() else None
            if budget in (None, spec["trials"]):
                raise
            spec["trials"] = budget  # perhaps it is the same study but for that
    study.set_budget(config.trials)
    return study


def run_study(
    study: Study,
    data: str,
    options: WorkerConfig,
    report: Callable[[Fold, Progress], None] | None = None,
) -> None:
    """Work on a study until its budget is finished."""
    work(study, Objective(study.spec, data, options), report=report)


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a study stands."""

    name: str
    counts: dict[str, int]
    stopped: int
    best_loss: float | None
    start_loss: float | None
    """Of the first trial, which is the start itself."""
    per_minute: float
    """Trials finished a minute, over the last hundred."""
    eta_seconds: float | None
    workers: dict[str, int]
    """Trials that each worker has in hand."""
    deadly: dict[int, int]
    """Trials that many workers died in, and how often each was begun."""
    engine: dict[str, float]

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
            f"engine: {state}" if state else "",
            f"at work: {working}; {counts['expired']} trials wait to be taken over",
            *(
                f"trial {number} was begun {times} times: its workers die, look at their logs"
                for number, times in list(self.deadly.items())[:3]
            ),
        ]
        return "\n".join(filter(None, lines))


def status(study: Study) -> Status:
    """How a study stands, from its store alone."""
    rows, counts = study.trials(curves=False), study.counts()
    done = sorted((r for r in rows if r.finished_at is not None), key=lambda r: r.sequence or 0)
    rate = _rate(done[-100:])
    left = counts["budget"] - counts["finished"]
    measured = [r.loss for r in done if r.status == "ok" and r.loss is not None]
    first = next((r.loss for r in done if r.number == 0 and r.status == "ok"), None)
    workers: dict[str, int] = {}
    for row in rows:
        if row.state == "running" and row.lease_until > time.time():
            workers[row.worker] = workers.get(row.worker, 0) + 1
    return Status(
        name=study.name,
        counts=counts,
        stopped=sum(row.status == "stopped" for row in rows),
        best_loss=min(measured, default=None),
        start_loss=first,
        per_minute=60 * rate,
        eta_seconds=left / rate if rate and left else None,
        workers=workers,
        deadly={
            row.number: row.attempt
            for row in rows
            if row.state == "running" and row.attempt > MANY_ATTEMPTS
        },
        engine=_engine_state(study),
    )


def _rate(rows: Sequence[TrialRow]) -> float:
    """Trials finished a second, pauses left out: no trial takes as long as nobody working may."""
    ends = [row.finished_at for row in rows if row.finished_at is not None]
    longest = max((end - row.started_at for row, end in zip(rows, ends, strict=True)), default=0.0)
    gaps = [min(after - before, longest) for before, after in pairwise(ends)]
    span = sum(gaps) + (ends[0] - rows[0].started_at if rows else 0.0)
    return len(ends) / span if span > 0 else 0.0


def _engine_state(study: Study) -> dict[str, float]:
    """What the engine says of itself, beyond what the trials do."""
    engine = engine_of(study.spec)
    for trial in study.finished_since(0):
        trial.tell(engine)
    told = ("best_loss", "told", "diverged")
    return {key: value for key, value in engine.describe().items() if key not in told}


@dataclass(frozen=True, kw_only=True)
class Best:
    """What a study recommends, measured again on fresh seeds."""

    recipe: Recipe
    chosen: str
    rungs: list[Rung]

    def lines(self) -> str:
        """For people."""
        out = []
        for rung in self.rungs:
            seeds = len(rung.standings[0].losses)
            out.append(f"{rung.scale}, {seeds} fresh seed{'s' * (seeds > 1)}:")
            out += [f"    {s.candidate:<12} {_shown(s.mean, s.error)}" for s in rung.standings]
        last = {s.candidate: s for s in self.rungs[-1].standings}
        gain = last[START].mean - last[self.chosen].mean
        spread = math.hypot(last[START].error, last[self.chosen].error)
        if self.chosen == START:
            out.append("nothing found beats the start there: its values are kept")
        elif gain == math.inf:
            out.append(f"{self.chosen} trains there, where the start diverges")
        else:
            sure = ", which is within the noise" if gain <= 2 * spread < math.inf else ""
            sure = sure if math.isfinite(spread) else ", on one seed alone"
            out.append(f"{self.chosen} beats the start by {_shown(gain, spread)}{sure}")
        return "\n".join(out)


def _shown(value: float, error: float) -> str:
    """A loss with its error, which one seed does not give."""
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.4f} +- {error:.4f}" if math.isfinite(error) else f"{value:.4f}"


def best(
    study: Study,
    data: str,
    options: WorkerConfig,
    *,
    rungs: Sequence[str] = (),
    seeds: int = 4,
    progress: Callable[[str, int, int], None] | None = None,
) -> Best:
    """The study's recommendation, re-measured against its start at the base and on each rung.

    What wins on the last rung is the recipe, the start included: a search that found nothing says
    so.
    """
    objective = Objective(study.spec, data, options)
    fold = make_fold(study, objective)
    fold.catch_up()
    if fold.seen == 0:
        raise CompletedpError(
            f"no trial of {study.name!r} has finished yet: `completedp search start` works on it"
        )
    base = objective.recipe
    points = {
        START: objective.space.bounds.start,
        RECOMMENDED: fold.engine.recommend(),
        LUCKIEST: fold.engine.best_point,
    }
    candidates: dict[str, Recipe] = {}
    for name, point in points.items():
        recipe = objective.space.recipe(base, point)
        if recipe not in candidates.values():
            candidates[name] = recipe
    scales = [base.base, *(scaled(base.base, Ratios.parse(text)) for text in rungs)]
    climbed = climb(objective, candidates, scales, seeds=seeds, progress=progress)
    chosen = climbed[-1].standings[0]
    if not math.isfinite(chosen.mean):
        raise CompletedpError(
            f"all candidates diverge on {climbed[-1].scale}, the start among them: search from a "
            "recipe that trains there, such as one with a smaller lr"
        )
    provenance = {
        **{k: v for k, v in base.provenance.items() if not k.startswith("rung_")},
        "study": study.name,
        "engine": study.spec["engine"],
        "space": study.spec["space"]["kind"],
        "trials": fold.seen,
        "chosen": chosen.candidate,
    }
    for height, rung in enumerate(climbed):
        provenance[f"rung_{height}_scale"] = str(rung.scale)
        for standing in rung.standings:
            key = f"rung_{height}_{standing.candidate.replace(' ', '_')}"
            provenance[f"{key}_loss"] = round(standing.mean, 5)
            provenance[f"{key}_error"] = round(standing.error, 5)
    provenance = {k: v for k, v in provenance.items() if v not in (math.inf, -math.inf)}
    found = Best(
        recipe=replace(candidates[chosen.candidate], provenance=provenance),
        chosen=chosen.candidate,
        rungs=climbed,
    )
    note = {"chosen": found.chosen, "rungs": [rung.to_dict() for rung in climbed]}
    try:
        study.set_note("best", note)
    except CompletedpError as error:  # what was measured is not to be lost for that
        warnings.warn(f"the ladder is not noted in the study: {error}", stacklevel=2)
    return found


def export_csv(study: Study, path: Path) -> int:
    """Every trial as a row; returns how many."""
    names = study.spec["space"]["coordinates"]
    rows = study.trials(curves=False)
    head = ("number", "state", "status", "loss", "steps", "seed", "attempt", "worker")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*head, "started_at", "finished_at", *names])
        for row in rows:
            own = [getattr(row, name) for name in head]
            times = [_utc(row.started_at), _utc(row.finished_at)]
            writer.writerow([*own, *times, *(float(x) for x in row.point)])
    return len(rows)


def export_optuna(study: Study, storage: str) -> int:
    """Finished trials into an Optuna study, for its dashboard; returns how many."""
    optuna = import_extra("optuna", "an Optuna study")
    of_space = study.spec["space"]
    ranges = {
        name: optuna.distributions.FloatDistribution(low, high)
        for name, low, high in zip(
            of_space["coordinates"], of_space["low"], of_space["high"], strict=True
        )
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = _optuna_url(storage)
    try:
        made = optuna.create_study(storage=storage, study_name=study.name)
    except optuna.exceptions.DuplicatedStudyError:
        raise CompletedpError(
            f"{shown!r} already has a study {study.name!r}: name another file"
        ) from None
    except (ImportError, ValueError, SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        reason = str(error).splitlines()[0].replace(storage, shown)
        raise CompletedpError(
            f"Optuna cannot use {shown!r} ({reason}): give one such as sqlite:///optuna.db"
        ) from None
    finished = [row for row in study.trials(curves=False) if row.state == "finished"]
    made.add_trials([_optuna_trial(optuna, row, ranges) for row in finished])
    return len(finished)


def _optuna_url(storage: str) -> str:
    """The URL without its password; a file that is there must be Optuna's already."""
    try:
        url = sa.make_url(storage)
    except SQLAlchemyError:
        raise CompletedpError(
            f"{storage!r} is no URL of a database: give one such as sqlite:///optuna.db"
        ) from None
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise CompletedpError(
                f"{storage!r} names no file: give one such as sqlite:///optuna.db"
            )
        path = Path(url.database)
        if not path.parent.is_dir():
            raise CompletedpError(f"{storage!r}: there is no folder {str(path.parent)!r}")
        if path.exists() and path.stat().st_size:
            with closing(sqlite3.connect(path)) as file:
                try:
                    tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
                except sqlite3.DatabaseError:
                    tables = set()
            if "version_info" not in tables:
                raise CompletedpError(f"{storage!r} is a file of something else: name another")
    return url.render_as_string(hide_password=True)


def _optuna_trial(optuna: Any, row: TrialRow, ranges: dict[str, Any]) -> Any:
    """Diverged and stopped trials are shown as pruned; only whole ones have a value."""
    states = optuna.trial.TrialState
    whole = row.status == "ok"
    point = np.clip(row.point, [d.low for d in ranges.values()], [d.high for d in ranges.values()])
    return optuna.trial.create_trial(
        state=states.COMPLETE if whole else states.PRUNED,
        params=dict(zip(ranges, (float(x) for x in point), strict=True)),
        distributions=ranges,
        value=row.loss if whole else None,
        user_attrs={"status": row.status, "seed": row.seed, "worker": row.worker},
    )


def _utc(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
