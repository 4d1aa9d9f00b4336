"""A study in a store: trials are claimed for a while, run, and finished once.

A worker *claims* a trial (a lease, renewed by a heartbeat), trains it and *finishes* it. When a
worker dies its lease runs out, and the next claim takes the trial over: same number, point and
seed, one more attempt. Each claim has a random token, and only the token in the row may write to
it: who comes back late cannot write over a successor. A finished row is never written again.

A study's writes are short transactions, one at a time. So `sequence`, the order of finishing, has
no gaps, and whoever has read up to sequence n has seen all there will ever be up to n. The engines'
fold over finished trials rests on that.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import bindparam

from completedp.common.errors import CompletedpError
from completedp.studies.database import Database
from completedp.studies.engines import Engine, Proposal
from completedp.studies.schema import NOTES, RUNNING, STUDIES, TRIALS, now

IMPOSSIBLE = "impossible"
"""The status of a trial whose point has no plan, such as a beta outside [0, 1)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """A trial that is this worker's to run, until its lease runs out."""

    number: int
    attempt: int
    """1 for the first worker to run it."""
    point: np.ndarray
    seed: int
    site: int
    """Which of the study's sites it trains at."""
    token: str
    """What the row must still hold for this claim to count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """What an engine is told of a finished trial."""

    sequence: int
    number: int
    point: np.ndarray
    site: int
    seed: int
    loss: float
    """Infinite where it diverged."""
    status: str
    curve: np.ndarray | None
    """None unless it was asked for."""

    def tell(self, engine: Engine) -> None:
        """Tell an engine of it."""
        engine.tell(self.number, self.point, self.loss, estimated=self.status == "stopped")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialRow:
    """All that is known of a trial; from `sequence` on it is None while the trial is running."""

    number: int
    state: str
    """running or finished."""
    attempt: int
    worker: str
    seed: int
    site: int
    point: np.ndarray
    lease_until: float
    started_at: float
    """When this attempt began; times are seconds since 1970 in UTC."""
    sequence: int | None
    finished_at: float | None
    loss: float | None
    status: str | None
    steps: int | None
    curve: np.ndarray | None
    result: dict[str, Any] | None


def _next(name: str) -> sa.Select[Any]:
    """0, 1, 2, ...: one more than the largest in a column of this study."""
    every = TRIALS.alias()
    largest = sa.func.max(every.c[name])
    return sa.select(sa.func.coalesce(largest + 1, 0)).where(every.c.study == bindparam("study_"))


# The statements. Parameters that end in _ choose rows; the others are columns to set.
_THIS_STUDY = STUDIES.c.id == bindparam("study_")
_OF_STUDY = TRIALS.c.study == bindparam("study_")
_LEASE = {"state": "running", "started_at": now(), "lease_until": now() + bindparam("seconds_")}
# Other writers of the study wait here for PostgreSQL; a SQLite writer is alone already.
_LOCK = sa.select(STUDIES.c.budget).where(_THIS_STUDY).with_for_update()
_BUDGET = sa.update(STUDIES).where(_THIS_STUDY)
_EXPIRED = (
    sa.select(TRIALS.c.number, TRIALS.c.attempt, TRIALS.c.point, TRIALS.c.seed, TRIALS.c.site)
    .where(_OF_STUDY, RUNNING, TRIALS.c.lease_until <= now())
    .order_by(TRIALS.c.number)
    .limit(1)
)
_TAKE_OVER = sa.update(TRIALS).where(_OF_STUDY, TRIALS.c.number == bindparam("number_"), RUNNING)
_TAKE_OVER = _TAKE_OVER.values(_LEASE)
_NEXT_NUMBER = _next("number")
_INSERT = sa.insert(TRIALS).values(_LEASE)
_HELD = (_OF_STUDY, RUNNING, TRIALS.c.token.in_(bindparam("tokens_", expanding=True)))
_WRITE_HELD = sa.update(TRIALS).where(*_HELD)
_FINISH = _WRITE_HELD.values(
    state="finished", finished_at=now(), sequence=_next("sequence").scalar_subquery()
)
_NOT_RELEASED = TRIALS.c.lease_until > 0
_EXTEND = _WRITE_HELD.where(_NOT_RELEASED).values(lease_until=now() + bindparam("seconds_"))
_RELEASE = _WRITE_HELD.where(_NOT_RELEASED).values(lease_until=0.0, attempt=TRIALS.c.attempt - 1)
_STILL_HELD = sa.select(TRIALS.c.token).where(*_HELD, _NOT_RELEASED)
_DIVERGED = sa.and_(TRIALS.c.loss == math.inf, TRIALS.c.status != IMPOSSIBLE)
_COUNTS = sa.select(
    sa.select(STUDIES.c.budget).where(_THIS_STUDY).scalar_subquery().label("budget"),
    sa.func.count().filter(RUNNING).label("running"),
    sa.func.count().filter(RUNNING, TRIALS.c.lease_until <= now()).label("expired"),
    sa.func.count().filter(~RUNNING).label("finished"),
    sa.func.count().filter(~RUNNING, _DIVERGED).label("diverged"),
    sa.func.count().filter(~RUNNING, TRIALS.c.status == IMPOSSIBLE).label("impossible"),
).where(_OF_STUDY)
_THIS_NOTE = (NOTES.c.study == bindparam("study_"), NOTES.c.key == bindparam("key_"))


class Study:
    """One search: its spec, its budget, its trials. From `Store.create_study` or `Store.study`."""

    def __init__(self, database: Database, key: int, name: str, spec: dict[str, Any]) -> None:
        self.name, self.spec = name, spec
        self._database = database
        self._key = {"study_": key}

    def claim(
        self,
        worker: str,
        propose: Callable[[int], Proposal | None],
        *,
        lease_seconds: float,
    ) -> Claim | None:
        """A trial to run: one whose lease has run out, else a new one; None when there is neither.

        `propose(number)` gives a new trial, or None where there is none yet; its seed is below
        2^63. It is called inside the transaction: `finished_since` is then on the same connection,
        and nothing can finish until the claim is done. All other writers wait meanwhile, so catch
        up with `finished_since` before the claim, and in `propose` only on the few that finished
        since. It may be called twice for a number, when the database went away in between.
        """
        lease = self._key | {"worker": worker, "seconds_": lease_seconds}

        def work(connection: sa.Connection) -> Claim | None:
            budget = connection.execute(_LOCK, self._key).scalar_one()
            expired = connection.execute(_EXPIRED, self._key).first()
            token = secrets.token_hex(16)
            if expired is not None:
                number, attempt, point, seed, site = expired
                attempt += 1
                row = {"number_": number, "attempt": attempt, "token": token}
                connection.execute(_TAKE_OVER, lease | row)
            else:
                number = connection.execute(_NEXT_NUMBER, self._key).scalar_one()
                if number >= budget:
                    return None
                attempt = 1
                proposed = propose(number)
                if proposed is None:
                    return None
                point, seed = np.asarray(proposed.point, dtype="<f8").tobytes(), proposed.seed
                site = proposed.site
                row = {"study": self._key["study_"], "number": number, "attempt": attempt}
                row |= {"token": token, "point": point, "seed": int(seed), "site": site}
                connection.execute(_INSERT, lease | row)
            return Claim(
                number=number,
                attempt=attempt,
                point=_vector(point),
                seed=seed,
                site=site,
                token=token,
            )

        return self._database.run(work, write=True)

    def extend(self, claims: Sequence[Claim], *, lease_seconds: float) -> list[Claim]:
        """Renew leases (the heartbeat). Returns the claims that are LOST: drop their trials."""
        held = self._key | {"tokens_": [claim.token for claim in claims]}

        def work(connection: sa.Connection) -> list[Claim]:
            connection.execute(_LOCK, self._key)
            connection.execute(_EXTEND, held | {"seconds_": lease_seconds})
            kept = set(connection.scalars(_STILL_HELD, held))
            return [claim for claim in claims if claim.token not in kept]

        return self._database.run(work, write=True) if claims else []

    def finish(
        self,
        claim: Claim,
        *,
        loss: float,
        status: str,
        steps: int,
        curve: Sequence[float],
        result: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write a trial's result, once. False when it was taken over or finished meanwhile.

        A loss that is not a finite number is stored as infinite: the trial diverged. A lease that
        ran out with nobody taking over still counts.
        """
        with np.errstate(over="ignore"):  # a diverging loss may be beyond float32
            curve_bytes = np.asarray(curve, dtype="<f4").tobytes()
        row = {
            "loss": float(loss) if math.isfinite(loss) else math.inf,
            "status": status,
            "steps": int(steps),
            "curve": curve_bytes,
            "result": None if result is None else json.dumps(dict(result)),
        }

        def work(connection: sa.Connection) -> bool:
            connection.execute(_LOCK, self._key)
            written = connection.execute(_FINISH, self._key | {"tokens_": [claim.token]} | row)
            return written.rowcount == 1

        return self._database.run(work, write=True)

    def release(self, claim: Claim) -> None:
        """Give a trial back before it is finished, so that the next claim takes it at once.

        What was given back was not died of: the attempt does not count.
        """

        def work(connection: sa.Connection) -> None:
            connection.execute(_LOCK, self._key)
            connection.execute(_RELEASE, self._key | {"tokens_": [claim.token]})

        self._database.run(work, write=True)

    def set_budget(self, trials: int) -> int:
        """Raise the number of trials; a lower one changes nothing. Returns the budget now."""
        wanted = checked_budget(trials)

        def work(connection: sa.Connection) -> int:
            budget = max(wanted, connection.execute(_LOCK, self._key).scalar_one())
            connection.execute(_BUDGET, self._key | {"budget": budget})
            return budget

        budget = self._database.run(work, write=True)
        self.spec["trials"] = budget
        return budget

    def finished_since(self, sequence: int, *, curves: bool = False) -> list[Finished]:
        """The finished trials from `sequence` on, in the order of finishing."""
        rows = self._rows(Finished, curves, TRIALS.c.sequence >= sequence, TRIALS.c.sequence)
        return [Finished(**row) for row in rows]

    def trials(self, *, curves: bool = True) -> list[TrialRow]:
        """Every trial by number, finished or not."""
        return [TrialRow(**row) for row in self._rows(TrialRow, curves, sa.true(), TRIALS.c.number)]

    def _rows(
        self,
        record: type[Finished] | type[TrialRow],
        curves: bool,
        which: sa.ColumnElement[bool],
        order: sa.ColumnElement[Any],
    ) -> list[dict[str, Any]]:
        """Trials of this study as the fields of a record."""
        names = [field.name for field in fields(record)]
        unread = () if curves else ("curve",)  # long, and seldom needed
        columns = [sa.null().label(n) if n in unread else TRIALS.c[n] for n in names]
        query = sa.select(*columns).where(_OF_STUDY, which).order_by(order)
        rows = self._database.run(lambda c: c.execute(query, self._key).mappings().all())
        return [
            {n: _DECODED[n](row[n]) if n in _DECODED else row[n] for n in names} for row in rows
        ]

    def counts(self) -> dict[str, int]:
        """How many trials: the budget; running, and expired among them; finished, and of these
        diverged, and impossible (of no plan).

        A trial that nobody has claimed yet is only a number: budget - running - finished of them.
        """
        row = self._database.run(lambda c: c.execute(_COUNTS, self._key).mappings().one())
        return dict(row)

    def get_note(self, key: str) -> dict[str, Any] | None:
        """What was noted under that key; None where nothing was."""
        query = sa.select(NOTES.c.value).where(*_THIS_NOTE)
        value = self._database.run(lambda c: c.scalar(query, self._key | {"key_": key}))
        return None if value is None else json.loads(value)

    def set_note(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a JSON object with the study, in place of what was there."""
        self.change_note(key, lambda _: value)

    def change_note(
        self, key: str, change: Callable[[dict[str, Any] | None], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Keep what `change` makes of what was there, which nobody else changes meanwhile."""

        def work(connection: sa.Connection) -> dict[str, Any]:
            connection.execute(_LOCK, self._key)
            this = self._key | {"key_": key}
            old = connection.scalar(sa.select(NOTES.c.value).where(*_THIS_NOTE), this)
            value = dict(change(None if old is None else json.loads(old)))
            connection.execute(sa.delete(NOTES).where(*_THIS_NOTE), this)
            row = {"study": self._key["study_"], "key": key, "value": json.dumps(value)}
            connection.execute(sa.insert(NOTES), row)
            return value

        return self._database.run(work, write=True)


def checked_budget(trials: object) -> int:
    """A number of trials, if it is one."""
    if not isinstance(trials, int) or isinstance(trials, bool) or trials < 1:
        raise CompletedpError(f"trials = {trials!r:.40} must be a whole number of at least 1")
    return trials


def _vector(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f8").astype(np.float64)


def _curve(data: bytes | None) -> np.ndarray | None:
    return None if data is None else np.frombuffer(data, "<f4").astype(np.float32)


def _result(text: str | None) -> dict[str, Any] | None:
    return None if text is None else json.loads(text)


_DECODED: dict[str, Callable[[Any], Any]] = {"point": _vector, "curve": _curve, "result": _result}
