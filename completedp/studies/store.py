"""The store: studies in a SQLite file or a PostgreSQL database, shared by all their workers.

What a study does with its trials is in study.py, how the database is reached in database.py.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from completedp.apply.model_map import SIZED
from completedp.common.checks import check_is
from completedp.common.errors import CompletedpError
from completedp.studies.database import Database
from completedp.studies.schema import STUDIES
from completedp.studies.study import Claim, Finished, Study, TrialRow, checked_budget, read_object

__all__ = ["Claim", "Finished", "Store", "Study", "TrialRow"]


class Store:
    """Studies in a SQLite file (a path, or sqlite:///PATH) or PostgreSQL (postgresql://...).

    Every process opens its own; threads may share one. With `create=False` there must be a store.
    `clock` is for SQLite; PostgreSQL has its own.
    """

    def __init__(
        self, url: str | Path, *, create: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        check_is("store", url, (str, Path), "a path, or a URL such as postgresql://HOST/DATABASE")
        self._database = Database(str(url), create=create, clock=clock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's connections."""
        self._database.close()

    def create_study(self, name: str, spec: Mapping[str, Any]) -> Study:
        """A new study; or the one of that name, if its spec is the same but for its `trials`.

        `spec` is plain JSON. Its `trials` is the budget, which `Study.set_budget` may raise.
        """
        _check_name(name, "a study cannot be named")
        spec = _plain(spec, name)
        row = {"name": name, "spec": json.dumps(spec), "budget": checked_budget(spec.get("trials"))}

        def work(connection: sa.Connection) -> Study | None:
            self._database.lock_creation(connection)
            if self._find(connection, name) is None:
                connection.execute(sa.insert(STUDIES), row)
            return self._find(connection, name)

        study = self._database.run(work, write=True)
        assert study is not None
        if difference := _first_difference(study.spec, spec):
            raise CompletedpError(
                f"the study {name!r} in {self._database.shown} {difference}: "
                "give this one another name or store, or the same settings"
            )
        return study

    def study(self, name: str | None = None) -> Study:
        """The study of that name; without a name the only one there is."""
        names = self.studies()
        where = self._database.shown
        if not names:
            raise CompletedpError(f"there is no study in {where} yet: start one")
        if name is None and len(names) > 1:
            raise CompletedpError(f"name one of the studies in {where}: {', '.join(names)}")
        wanted = names[0] if name is None else name
        found = self._database.run(lambda connection: self._find(connection, wanted))
        if found is None:
            raise CompletedpError(f"no study {wanted!r} in {where}, only {', '.join(names)}")
        return found

    def studies(self) -> list[str]:
        """The names of all studies, oldest first."""
        query = sa.select(STUDIES.c.name).order_by(STUDIES.c.id)
        found = self._database.run(lambda connection: list(connection.scalars(query)))
        for name in found:
            _check_name(name, f"the store {self._database.shown} is damaged: it has a study named")
        return found

    def _find(self, connection: sa.Connection, name: str) -> Study | None:
        row = connection.execute(sa.select(STUDIES).where(STUDIES.c.name == name)).first()
        if row is None:
            return None
        study = Study(self._database, row.id, name, {})
        try:
            study.spec = read_object(row.spec) | {"trials": checked_budget(row.budget)}
        except (ValueError, TypeError, RecursionError):  # of which a CompletedpError is one
            raise study.damaged("its spec or budget") from None
        return study


def _check_name(name: Any, what: str) -> None:
    """Raise unless a name can be shown: escape codes in it would reach the terminal."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise CompletedpError(f"{what} {name!r:.60}: give it a printable name")


def _plain(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The spec as it will come back from the database."""
    try:
        return json.loads(json.dumps(dict(spec), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CompletedpError(f"the spec of study {name!r} is not plain JSON: {error}") from error


_INCIDENTAL = ("trials", "schema", "evidence")
"""Keys of a spec and its recipe that no trial depends on: the budget, and what is known of the
start, which an older version may have written in another way; besides the sizes of what its model
does, which an older version did not measure."""
_SEEN_LATER = "head_dim"
"""Of a recipe: an older version did not see that of every model, and wrote none."""
_ROUNDING = 1e-8
"""Of itself, by which a number may differ and be the same: nobody means so little."""


def _first_difference(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> str:
    """In words, the first key that is not the same in two specs; empty when they are equal."""
    keys = [*new, *(key for key in old if key not in new)]
    for key in sorted(keys, key="space".__eq__):  # which follows from the others
        if key in _INCIDENTAL or key.startswith(SIZED):
            continue
        path = f"{where}{key}"
        if key not in old:
            return f"has no {path!r}"
        if key not in new:
            return f"has {path!r} = {old[key]!r:.60}, which is missing here"
        before, after = old[key], new[key]
        if key == _SEEN_LATER and before is None:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            if inner := _first_difference(before, after, f"{path}."):
                return inner
        elif isinstance(before, list) and isinstance(after, list):
            if len(before) != len(after):
                return f"has {len(before)} {path!r}, not {len(after)}"
            for i, pair in enumerate(zip(before, after, strict=True)):
                if not _equal(*pair):
                    return f"has {path!r}[{i}] = {pair[0]!r:.60}, not {pair[1]!r:.60}"
        elif not _equal(before, after):
            return f"has {path!r} = {before!r:.60}, not {after!r:.60}"
    return ""


def _equal(one: Any, other: Any) -> bool:
    """Whether they are the same; fractions, which machines round differently, up to rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=1e-12)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return one == other
