"""The store's tables: studies, one row per trial, notes, and which store of which version it is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

VERSION = 3
SQLITE_CLOCK = "completedp_now"
"""The function that a connection to SQLite must bring with it."""


class now(FunctionElement[float]):  # noqa: N801 - reads like the SQL functions it stands among
    """Seconds since 1970 in UTC when the statement runs: PostgreSQL's clock, or the process's."""

    type = sa.Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return f"{SQLITE_CLOCK}()"


@compiles(now, "postgresql")
def _postgres_now(*_: Any, **__: Any) -> str:
    # Not now(): that is when the transaction began, perhaps long before it got its lock.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


# The prefix keeps the names apart from others' in a shared PostgreSQL database.
TABLES = sa.MetaData()
SCHEMA = sa.Table(
    "completedp_schema",
    TABLES,
    sa.Column("version", sa.Integer, primary_key=True),
    # Drawn when the store is made: another store under the same name has another.
    sa.Column("identity", sa.Text, nullable=False),
)
STUDIES = sa.Table(
    "completedp_studies",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("budget", sa.BigInteger, nullable=False),
)
TRIALS = sa.Table(
    "completedp_trials",
    TABLES,
    sa.Column("study", sa.ForeignKey(STUDIES.c.id), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("site", sa.Integer, nullable=False, server_default="0"),
    sa.Column("point", sa.LargeBinary, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("finished_at", sa.Double),
    sa.Column("sequence", sa.BigInteger),
    sa.Column("loss", sa.Double),
    sa.Column("status", sa.Text),
    sa.Column("steps", sa.BigInteger),
    sa.Column("curve", sa.LargeBinary),
    sa.Column("result", sa.Text),
    sa.UniqueConstraint("study", "sequence"),
)
NOTES = sa.Table(
    "completedp_notes",
    TABLES,
    sa.Column("study", sa.ForeignKey(STUDIES.c.id), primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# Spelled out, not a parameter: only then does SQLite see that the index applies.
RUNNING = TRIALS.c.state == sa.literal_column("'running'")
sa.Index(
    "completedp_running",
    TRIALS.c.study,
    TRIALS.c.number,
    sqlite_where=RUNNING,
    postgresql_where=RUNNING,
)
