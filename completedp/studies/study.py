"""A study in a store: trials are claimed for a while, run, and finished once.

A worker *claims* a trial (a lease, renewed by a heartbeat), trains it and *finishes* it. When a
worker dies its lease runs out, and the next claim takes the trial over: same number, point and
seed, one more attempt. No lease is longer than `LONGEST_LEASE_SECONDS`, so that one taken while a
clock was ahead is known for what it is. Each claim has a random token, and only the token in the
row may write to it: who comes back late cannot write over a successor. A finished row is never
written again.

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
from completedp.studies.config import LONGEST_LEASE_SECONDS
from completedp.studies.database import Database
from completedp.studies.engines import Engine, Proposal
from completedp.studies.schema import NOTES, RUNNING, STUDIES, TRIALS, now

_CLOCK_SLACK_SECONDS = 60.0
"""By how much a clock may be set back and leases stay what they are."""
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
# A lease that ends later than any can was taken by a clock that was ahead.
_EXPIRED_NOW = sa.or_(
    TRIALS.c.lease_until <= now(),
    TRIALS.c.lease_until > now() + LONGEST_LEASE_SECONDS + _CLOCK_SLACK_SECONDS,
)
_EXPIRED = (
    sa.select(TRIALS.c.number, TRIALS.c.attempt, TRIALS.c.point, TRIALS.c.seed, TRIALS.c.site)
    .where(_OF_STUDY, RUNNING, _EXPIRED_NOW)
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
    (sa.func.coalesce(sa.func.max(TRIALS.c.number), -1) + 1).label("begun"),
    sa.select(STUDIES.c.budget).where(_THIS_STUDY).scalar_subquery().label("budget"),
    sa.func.count().filter(RUNNING).label("running"),
    sa.func.count().filter(RUNNING, _EXPIRED_NOW).label("expired"),
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
        lease = self._key | {
            "worker": worker,
            "seconds_": min(lease_seconds, LONGEST_LEASE_SECONDS),
        }

        def work(connection: sa.Connection) -> Claim | None:
            budget = self._locked_budget(connection)
            expired = connection.execute(_EXPIRED, self._key).first()
            token = secrets.token_hex(16)
            if expired is not None:
                number, attempt, point, seed, site = self._decoded(
                    expired._asdict(), expired._fields
                ).values()
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
                point, seed = np.asarray(proposed.point, dtype="<f8"), proposed.seed
                site = proposed.site
                row = {"study": self._key["study_"], "number": number, "attempt": attempt}
                row |= {"token": token, "point": point.tobytes(), "seed": int(seed), "site": site}
                connection.execute(_INSERT, lease | row)
            return Claim(
                number=number,
                attempt=attempt,
                point=point.astype(np.float64),
                seed=seed,
                site=site,
                token=token,
            )

        return self._database.run(work, write=True)

    def extend(
        self,
        claims: Sequence[Claim],
        *,
        lease_seconds: float,
        patience: float | None = None,
    ) -> list[Claim]:
        """Renew leases (the heartbeat). Returns the claims that are LOST: drop their trials."""
        held = self._key | {"tokens_": [claim.token for claim in claims]}

        def work(connection: sa.Connection) -> list[Claim]:
            connection.execute(_LOCK, self._key)
            seconds = min(lease_seconds, LONGEST_LEASE_SECONDS)
            connection.execute(_EXTEND, held | {"seconds_": seconds})
            kept = set(connection.scalars(_STILL_HELD, held))
            return [claim for claim in claims if claim.token not in kept]

        return self._database.run(work, write=True, patience=patience) if claims else []

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

    def release(self, *claims: Claim, patience: float | None = None) -> None:
        """Give trials back before they are finished, so that the next claims take them at once.

        What was given back was not died of: the attempt does not count.
        """
        held = self._key | {"tokens_": [claim.token for claim in claims]}

        def work(connection: sa.Connection) -> None:
            connection.execute(_LOCK, self._key)
            connection.execute(_RELEASE, held)

        if claims:
            self._database.run(work, write=True, patience=patience)

    def take_back(
        self, *, worker: str | None = None, numbers: Sequence[int] | None = None
    ) -> list[int]:
        """Take running trials from a worker that is dead or stuck, by its name or their numbers,
        or from all; the next claims take them at once. Returns their numbers.

        Should the worker live after all, it is as if its leases had run out.
        """
        chosen = [_OF_STUDY, RUNNING, _NOT_RELEASED]
        if worker is not None:
            chosen.append(TRIALS.c.worker == worker)
        if numbers is not None:
            chosen.append(TRIALS.c.number.in_(numbers))
        every = sa.select(TRIALS.c.number).where(*chosen).order_by(TRIALS.c.number)

        def work(connection: sa.Connection) -> list[int]:
            self._locked_budget(connection)
            found = list(connection.scalars(every, self._key))
            connection.execute(sa.update(TRIALS).where(*chosen).values(lease_until=0.0), self._key)
            return found

        return self._database.run(work, write=True)

    def workers(self) -> dict[str, int]:
        """Who has trials in hand, and how many."""
        query = (
            sa.select(TRIALS.c.worker, sa.func.count())
            .where(_OF_STUDY, RUNNING, ~_EXPIRED_NOW)
            .group_by(TRIALS.c.worker)
            .order_by(sa.func.min(TRIALS.c.number))
        )
        rows = self._database.run(lambda c: c.execute(query, self._key).all())
        return {worker: count for worker, count in rows}

    def _locked_budget(self, connection: sa.Connection) -> int:
        """The budget, with the study held against other writers."""
        return self._checked(connection.execute(_LOCK, self._key).scalar())

    def _checked(self, budget: int | None) -> int:
        if budget is None:
            raise CompletedpError(
                f"the study {self.name!r} is no longer in {self._database.shown}: somebody deleted "
                "it; restore the store, or start another study"
            )
        return budget

    def set_budget(self, trials: int) -> int:
        """Raise the number of trials; a lower one changes nothing. Returns the budget now."""
        wanted = checked_budget(trials)

        def work(connection: sa.Connection) -> int:
            budget = max(wanted, self._locked_budget(connection))
            connection.execute(_BUDGET, self._key | {"budget": budget})
            return budget

        budget = self._database.run(work, write=True)
        self.spec["trials"] = budget
        return budget

    def finished_since(self, sequence: int, *, curves: bool = False) -> list[Finished]:
        """The finished trials from `sequence` on, in the order of finishing."""
        rows = self._rows(Finished, curves, TRIALS.c.sequence >= sequence, TRIALS.c.sequence)
        for row in rows:
            for name in ("loss", "status"):
                if row[name] is None:
                    raise self._damaged_trial(row, name)
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
        return [self._decoded(dict(row), names) for row in rows]

    def _decoded(self, row: Mapping[Any, Any], names: Sequence[str]) -> dict[str, Any]:
        """A row's values, each what its column says: a file can be damaged, or edited by hand."""
        values = {}
        for name in names:
            try:
                values[name] = _COLUMNS[name](row[name])
            except (ValueError, TypeError, RecursionError):
                raise self._damaged_trial(row, name) from None
        return values

    def _damaged_trial(self, row: Mapping[Any, Any], name: str) -> CompletedpError:
        return CompletedpError(
            f"trial {row['number']!r:.20} of study {self.name!r} in {self._database.shown} is "
            f"damaged, its {name} is {row[name]!r:.40}: restore the store from a copy, or start "
            "the study in a new one"
        )

    def counts(self) -> dict[str, int]:
        """How many trials: the budget; running, and expired among them; finished, and of these
        diverged, and impossible (of no plan).

        A trial that nobody has claimed yet is only a number: budget - running - finished of them.
        """
        row = self._database.run(lambda c: c.execute(_COUNTS, self._key).mappings().one())
        counts = dict(row)
        self._checked(counts["budget"])
        lost = counts.pop("begun") - counts["running"] - counts["finished"]
        if lost:  # whoever waits for them would wait for ever
            raise self.damaged(f"{lost:,} of its trials", "are gone")
        return counts

    def get_note(self, key: str) -> dict[str, Any] | None:
        """What was noted under that key; None where nothing was."""
        query = sa.select(NOTES.c.value).where(*_THIS_NOTE)
        value = self._database.run(lambda c: c.scalar(query, self._key | {"key_": key}))
        return None if value is None else self._note(key, value)

    def _note(self, key: str, text: Any) -> dict[str, Any]:
        try:
            return read_object(text)
        except (ValueError, TypeError, RecursionError):
            raise self.damaged(f"its note {key!r}") from None

    def damaged(self, what: str, how: str = "cannot be read") -> CompletedpError:
        """What to raise where something of the study cannot be read, or is otherwise wrong."""
        return CompletedpError(
            f"the study {self.name!r} in {self._database.shown} is damaged, {what} {how}: "
            "restore the store from a copy, or start the study in a new one"
        )

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
            value = dict(change(None if old is None else self._note(key, old)))
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


def _vector(data: Any) -> np.ndarray:
    return _finite(np.frombuffer(_bytes(data), "<f8").astype(np.float64))


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ValueError
    return values


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes | memoryview):
        raise TypeError
    return bytes(data)


def _curve(data: Any) -> np.ndarray | None:
    return None if data is None else np.frombuffer(_bytes(data), "<f4").astype(np.float32)


def _result(text: Any) -> dict[str, Any] | None:
    return None if text is None else read_object(text)


def read_object(text: Any) -> dict[str, Any]:
    """A JSON object from a column; a ValueError or TypeError where there is none."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _only(*types: type) -> Callable[[Any], Any]:
    """A value as it is, if it is of one of these types. NaN is none: nothing compares with it."""

    def check(value: Any) -> Any:
        if not isinstance(value, types) or value != value:
            raise TypeError
        return value

    return check


_MAYBE = type(None)


def _time(value: Any) -> float | None:
    """Seconds since 1970, of which a calendar knows no more than some; None is checked by SQL."""
    if value is not None and not (isinstance(value, float | int) and abs(value) < 1e11):
        raise TypeError
    return value


_COLUMNS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("number", "attempt", "seed", "site"), _only(int)),
    **dict.fromkeys(("sequence", "steps"), _only(int, _MAYBE)),
    **dict.fromkeys(("lease_until", "started_at", "finished_at"), _time),
    "loss": _only(float, int, _MAYBE),
    **dict.fromkeys(("state", "worker"), _only(str)),
    "status": _only(str, _MAYBE),
    "point": _vector,
    "curve": _curve,
    "result": _result,
}
"""How a column is read."""
