"""A study's trials for other programs: as CSV, or as an Optuna study for its dashboard."""

from __future__ import annotations

import csv
import io
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from completedp.common.errors import CompletedpError, first_line
from completedp.common.extras import import_extra
from completedp.common.files import check_replaceable, write_text_atomically
from completedp.studies.database import tables_in
from completedp.studies.spec import StudySpec
from completedp.studies.store import Study, TrialRow


def export_csv(study: Study, path: Path) -> int:
    """Every trial as a row; returns how many."""
    names = StudySpec.from_dict(study.spec).space.coordinates
    rows = study.trials(curves=False)
    head = ("number", "state", "status", "loss", "steps", "site", "seed", "attempt", "worker")
    check_replaceable(path, ",".join(head), "table of trials")
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*head, "started_at", "finished_at", *names])
    for row in rows:
        own = [getattr(row, name) for name in head]
        times = [_utc(row.started_at), _utc(row.finished_at)]
        writer.writerow([*own, *times, *(float(x) for x in row.point)])
    try:
        write_text_atomically(path, text.getvalue())
    except OSError as error:
        raise CompletedpError(
            f"cannot write {str(path)!r} ({error.strerror}): make room, or name another file; what "
            "was there is as it was"
        ) from None
    return len(rows)


def export_optuna(study: Study, storage: str) -> int:
    """Finished trials into an Optuna study, for its dashboard; returns how many."""
    optuna = import_extra("optuna", "an Optuna study")
    space = StudySpec.from_dict(study.spec).space
    ranges = {
        name: optuna.distributions.FloatDistribution(float(low), float(high))
        for name, low, high in zip(
            space.coordinates, space.bounds.low, space.bounds.high, strict=True
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
        reason = first_line(error).replace(storage, shown)
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
    except (SQLAlchemyError, ValueError):  # a port that is no number; not shown, for its password
        shown = "the Optuna storage" if "@" in storage else repr(storage)
        raise CompletedpError(
            f"{shown} is no URL of a database: give one such as sqlite:///optuna.db"
        ) from None
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise CompletedpError(
                f"{storage!r} names no file: give one such as sqlite:///optuna.db"
            )
        path = Path(url.database)
        if not path.parent.is_dir():
            raise CompletedpError(f"{storage!r}: there is no folder {str(path.parent)!r}")
        is_there = path.exists() and path.stat().st_size
        if is_there and "version_info" not in tables_in(path):
            raise CompletedpError(f"{storage!r} is a file of something else: name another")
    return url.render_as_string(hide_password=True)


def _optuna_trial(optuna: Any, row: TrialRow, ranges: dict[str, Any]) -> Any:
    """Diverged and stopped trials are shown as pruned; only whole ones have a value."""
    states = optuna.trial.TrialState
    whole = row.status == "ok"
    point = np.clip(row.point, [d.low for d in ranges.values()], [d.high for d in ranges.values()])
    trial = optuna.trial.create_trial(
        state=states.COMPLETE if whole else states.PRUNED,
        params=dict(zip(ranges, (float(x) for x in point), strict=True)),
        distributions=ranges,
        value=row.loss if whole else None,
        user_attrs={name: getattr(row, name) for name in ("status", "site", "seed", "worker")},
    )
    if row.started_at is not None and row.finished_at is not None:
        trial.datetime_start = datetime.fromtimestamp(row.started_at)
        trial.datetime_complete = datetime.fromtimestamp(row.finished_at)
    return trial


def _utc(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
