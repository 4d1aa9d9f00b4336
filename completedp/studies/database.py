"""The way to the database under a store: connections, transactions, and what can go wrong.

SQLite is a file for the processes of one machine. It is in WAL mode, where readers and the writer
do not wait for each other; a write takes the lock with its first word (BEGIN IMMEDIATE), because a
transaction that began as a reader cannot always become a writer. `synchronous=NORMAL` survives the
death of any process; a power cut may undo the last moments, never break the file.

PostgreSQL is for several machines. Writers of one study queue at its row (SELECT ... FOR UPDATE),
and times are the server's, so that clocks need not agree.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from completedp.common.checks import check_path
from completedp.common.errors import CompletedpError, one_line
from completedp.common.extras import import_extra
from completedp.common.files import user_path
from completedp.common.terminal import say
from completedp.studies.migrations import MIGRATIONS, new_identity
from completedp.studies.schema import SCHEMA, SQLITE_CLOCK, TABLES, VERSION

PATIENCE_SECONDS = 120.0
"""How long a locked file or a server that restarts is waited for before it is an error."""
_SILENT_SECONDS = 2.0
"""A wait that is longer is told of."""
_LOCK_TIMEOUT_SECONDS = 5.0
"""One wait inside SQLite, where Ctrl-C is not heard; patience is many of them."""
_IDLE_TIMEOUT = "60s"
"""PostgreSQL ends a transaction whose client went silent: a machine that lost power in the middle
of a claim must not hold the study's row until TCP gives up."""
_SQLITE = b"SQLite format 3\0"
"""How such files begin."""
_HALF_URL = re.compile(r"(sqlite|postgres(ql)?)(\+\w+)?(:/?|//)[^/]")
_CREATION_LOCK = 0x636470
"""PostgreSQL's advisory lock for what has no row to lock yet; any number will do."""

T = TypeVar("T")


class Database:
    """One process's way to a database: `run` does a piece of work in a transaction."""

    def __init__(self, url: str, *, create: bool, clock: Callable[[], float]) -> None:
        self._open_on_this_thread = threading.local()
        self._path: Path | None = None
        self._file: tuple[int, int] | None = None
        """Which file is open; another one may come to bear its name."""
        self._identity: str | None = None
        """Which store; None until it is open."""
        self._password = ""
        if "://" in url:
            parsed = _parsed(url)
        else:
            check_no_half_url(url)
            check_path("store", url)
            parsed = sa.URL.create("sqlite", database=str(user_path(url)))
        self.is_postgres = parsed.get_backend_name() != "sqlite"
        if self.is_postgres:
            self._password = str(parsed.password or "")
            self.shown = _shown(parsed)
            self._engine = _postgres(parsed)
        else:
            self.shown = repr(parsed.database)
            self._path = Path(parsed.database or "").absolute()  # the process may change folders
            self._check_path(self._path, create)
            self._engine = _sqlite(self._path, clock)
        self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        self._reader = self._engine.execution_options(begin="BEGIN")
        try:
            self._prepare(create)
            read = sa.select(SCHEMA.c.identity)
            self._identity = self._patiently(self._reader, lambda c: c.scalar(read), 0.0)
            self._file = self._file_now()
        except BaseException:
            self.close()
            raise

    def run(
        self,
        work: Callable[[sa.Connection], T],
        *,
        write: bool = False,
        patience: float | None = None,
    ) -> T:
        """What `work` returns, done in one transaction; inside another `run`, in that one.

        `work` is done again when the database was locked or went away meanwhile, for as many
        seconds as there is `patience`; without one, `PATIENCE_SECONDS`.
        """
        current = getattr(self._open_on_this_thread, "connection", None)
        if current is not None:
            return work(current)
        if self._file_now() != self._file:
            raise self._replaced()  # whoever has the old file open would write into nothing
        engine = self._writer if write else self._reader
        return self._patiently(engine, work, PATIENCE_SECONDS if patience is None else patience)

    def lock_creation(self, connection: sa.Connection) -> None:
        """Let one process at a time create; a SQLite writer is alone already."""
        if self.is_postgres:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))

    def close(self) -> None:
        """Close the connections; the last one folds SQLite's -wal file into the database."""
        self._engine.dispose()

    def _patiently(
        self, engine: sa.Engine, work: Callable[[sa.Connection], T], patience: float
    ) -> T:
        began, pause, said = time.monotonic(), 0.01, False
        while True:
            try:
                with engine.begin() as connection, self._marked_open(connection):
                    self._check_identity(connection)
                    return work(connection)
            except UnicodeDecodeError:  # of text in a table, or in what SQLite says of it
                raise CompletedpError(
                    f"the store {self.shown} is damaged (its text is not UTF-8): restore it from "
                    "a copy"
                ) from None
            except DBAPIError as error:
                left = began + patience - time.monotonic()
                if not self._may_pass(error) or left <= 0:
                    raise CompletedpError(self._explanation(error, engine)) from error
                if not said and patience - left > _SILENT_SECONDS:
                    said = True
                    say(f"{self._explanation(error, engine)} (trying again for {left:.0f} s)")
            time.sleep(pause * random.uniform(0.5, 1.0))  # or all who wait come back together
            pause = min(2 * pause, 1.0)

    def _path_is_there(self) -> bool:
        return self._path is not None and self._path.exists()

    def _file_now(self) -> tuple[int, int] | None:
        """The file that bears the store's name; nothing of PostgreSQL."""
        if self._path is None:
            return None
        try:
            about = self._path.stat()
        except FileNotFoundError:
            raise CompletedpError(f"the store {self.shown} is gone: put the file back") from None
        except OSError as error:
            raise CompletedpError(f"cannot open the store {self.shown}: {error.strerror}") from None
        return about.st_dev, about.st_ino

    def _check_identity(self, connection: sa.Connection) -> None:
        """Raise where another store has come in the place of the one that was opened."""
        if self._identity is None:  # not open yet
            return
        try:
            found = connection.scalar(sa.select(SCHEMA.c.identity))
        except DBAPIError as error:
            if self._may_pass(error) or _sqlite_code(error) not in ("", "SQLITE_ERROR"):
                raise
            found = None  # another program's tables, or none
        if found != self._identity:
            raise self._replaced()

    def _replaced(self) -> CompletedpError:
        return CompletedpError(
            f"the store {self.shown} is not the one that was opened: another came in its place; "
            "nothing was written to it; bring the old one back, or begin again with the new one"
        )

    @contextlib.contextmanager
    def _marked_open(self, connection: sa.Connection) -> Iterator[None]:
        self._open_on_this_thread.connection = connection
        try:
            yield
        finally:
            self._open_on_this_thread.connection = None

    def _check_path(self, path: Path, create: bool) -> None:
        try:
            if path.is_dir():
                raise CompletedpError(f"the store {self.shown} is a folder: name a file in it")
            if path.exists():
                return
        except OSError as error:  # a folder on the way that may not be entered, an endless name
            raise CompletedpError(
                f"cannot open the store {self.shown}: {error.strerror}"
            ) from error
        if not create:
            raise CompletedpError(
                f"no store at {self.shown}: start a study there, or mend the path"
            )
        if not path.parent.is_dir():
            raise CompletedpError(
                f"the folder of the store {self.shown} does not exist: create {str(path.parent)!r}"
            )

    def _prepare(self, create: bool) -> None:
        """Create the tables in a new database; check the version of those that are there."""
        # A server that does not answer at first is more likely a slip in the URL than a restart.
        patience = 0.0 if self.is_postgres else PATIENCE_SECONDS
        version = self._patiently(self._reader, self._version, patience)
        if version is None and not create:
            raise CompletedpError(f"no store in {self.shown}: start a study there, or mend the URL")
        if version is None:
            if not self.is_postgres:  # a property of the file; not to be set in a transaction
                alone = self._engine.execution_options(begin="")
                wal = sa.text("PRAGMA journal_mode=WAL")
                self._patiently(alone, lambda c: c.execute(wal).all(), patience)
            version = self._patiently(self._writer, self._create, patience)
        if version in MIGRATIONS:
            version = self._patiently(self._writer, self._migrate, patience)
        if version != VERSION:
            raise CompletedpError(
                f"the store {self.shown} has schema version {version}, this completedp knows "
                f"{VERSION}: upgrade completedp"
            )

    def _version(self, connection: sa.Connection) -> int | None:
        """The schema's version; None in an empty database."""
        inspector = sa.inspect(connection)
        if inspector.has_table(SCHEMA.name):
            return connection.scalar(sa.select(SCHEMA.c.version))
        if not self.is_postgres and inspector.get_table_names():
            raise CompletedpError(
                f"{self.shown} is another program's SQLite file, not a store: name a new file"
            )
        return None

    def _create(self, connection: sa.Connection) -> int | None:
        self.lock_creation(connection)
        version = self._version(connection)
        if version is None:  # nobody was faster
            TABLES.create_all(connection)
            row = {"version": VERSION, "identity": new_identity()}
            connection.execute(sa.insert(SCHEMA).values(row))
            return VERSION
        return version

    def _migrate(self, connection: sa.Connection) -> int | None:
        """Bring an older store to this version, step by step."""
        self.lock_creation(connection)
        version = self._version(connection)
        while version in MIGRATIONS:
            MIGRATIONS[version](connection)
            version += 1
        connection.execute(sa.update(SCHEMA).values(version=version))
        return version

    def _may_pass(self, error: DBAPIError) -> bool:
        if self.is_postgres:
            return isinstance(error, OperationalError) or error.connection_invalidated
        return _sqlite_code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"))

    def _explanation(self, error: DBAPIError, engine: sa.Engine) -> str:
        said = one_line(error.orig)
        if self._password:
            said = said.replace(self._password, "***")
        if self.is_postgres:
            verb = "does not answer" if isinstance(error, OperationalError) else "refuses"
            return f"PostgreSQL at {self.shown} {verb}: {said}"
        code = _sqlite_code(error)
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            if engine is self._writer or not self._path_is_there():
                return f"cannot write the store {self.shown}: make the file and its folder writable"
            return (
                f"cannot read the store {self.shown}, as SQLite keeps files beside it and may not "
                "write there: make its folder writable, or copy the store to a folder of yours"
            )
        if code.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return (
                f"the store {self.shown} cannot be written ({said}): make room on its disk and run "
                "the same command again; nothing that was stored is lost"
            )
        if code.startswith("SQLITE_CORRUPT"):
            return f"the store {self.shown} is damaged ({said}): restore it from a copy"
        if code.startswith("SQLITE_NOTADB"):
            return f"{self.shown} is not a database: name a store's file, or a new one"
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return f"another program keeps the store {self.shown} locked: end it and try again"
        return f"the store {self.shown} failed: {said}"


def is_sqlite(path: Path) -> bool:
    """Whether a file is a database of SQLite's, such as a store."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def tables_in(path: Path) -> set[str]:
    """The names of a SQLite file's tables; none where it is damaged, or something else."""
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as file:
        try:
            return {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        except sqlite3.DatabaseError:
            return set()


def check_no_half_url(text: str) -> None:
    """Raise on a URL that lacks a sign: as a path it would be shown, and its password with it."""
    if half := _HALF_URL.match(text):
        raise CompletedpError(
            f"the URL of a database lacks a sign: write {half[1]}{half[3] or ''}://..."
        )


def without_password(store: str) -> str:
    """A store's path or URL as it may be printed, and typed again with PGPASSWORD."""
    if "://" not in store:
        return store
    url = _parsed(store)
    if url.get_backend_name() == "sqlite":
        return store
    plain = sa.URL.create(
        "postgresql",
        username=url.username,
        host=url.host,
        port=url.port,
        database=url.database,
        query={name: x for name, x in url.query.items() if "password" not in name.lower()},
    )
    return plain.render_as_string()


def _parsed(url: str) -> sa.URL:
    """A database URL; whatever is wrong with it, its password is not printed."""
    scheme = url.partition("://")[0]
    if scheme.partition("+")[0] not in ("sqlite", "postgresql", "postgres"):
        raise CompletedpError(
            f"a store cannot be a {scheme}:// URL: give the path of a SQLite file, "
            "or a postgresql:// URL"
        )
    try:
        parsed = sa.make_url(url)
        if "@" in (parsed.host or ""):  # a piece of a password that holds an @
            raise ValueError
    except (ArgumentError, ValueError):
        raise CompletedpError(
            f"cannot read the store's {scheme}:// URL: write "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %40 for an @ in the password"
        ) from None
    if not scheme.startswith("sqlite"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.host or parsed.query or parsed.database in (None, "", ":memory:"):
        raise CompletedpError(f"the store {url!r} names no file: write sqlite:///PATH, or a path")
    return sa.URL.create("sqlite", database=parsed.database)


def _shown(url: sa.URL) -> str:
    """A PostgreSQL URL for messages: no user, no password and no options."""
    host = url.host or url.query.get("host") or "localhost"
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{host}{port}/{url.database or ''}"


def _sqlite(path: Path, clock: Callable[[], float]) -> sa.Engine:
    # isolation_level=None: Python's driver begins no transactions of its own.
    options = {"timeout": _LOCK_TIMEOUT_SECONDS, "isolation_level": None}
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, connect_args=options)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.create_function(SQLITE_CLOCK, 0, clock)

    @event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        if begin := connection.get_execution_options()["begin"]:
            connection.exec_driver_sql(begin)

    return engine


def _postgres(url: sa.URL) -> sa.Engine:
    options = {
        "application_name": "completedp",
        "connect_timeout": 10,
        "keepalives_idle": 30,
        # No prepared statements: their plans would be those of the empty table for too long, and
        # poolers such as PgBouncer do not get on with them.
        "prepare_threshold": None,
    }
    import_extra("psycopg", "a postgresql:// store")
    # READ COMMITTED: what is read after the lock is what the last writer left.
    engine = sa.create_engine(url, connect_args=options, isolation_level="READ COMMITTED")

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_TIMEOUT}'")
        connection.commit()

    return engine


def _sqlite_code(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlite_errorname", "")
