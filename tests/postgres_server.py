"""A PostgreSQL server of one's own, for tests and benchmarks, where its programs are installed.

    python tests/postgres_server.py

starts one, prints the URL of a database and ends it at Ctrl-C or a plain `kill`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

USER, PASSWORD = "tester", "open-sesame"
START_SECONDS = 60


def program(name: str) -> str | None:
    """A program of PostgreSQL, on the path or where Debian keeps it."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(kept[-1]) if kept else None)


def why_not() -> str:
    """What is missing to start a server; empty when nothing is."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed"
    missing = [name for name in ("initdb", "postgres") if program(name) is None]
    return f"no {' and no '.join(missing)} on this machine" if missing else ""


class Server:
    """A server on a socket in `folder`; every `database()` is a new, empty one."""

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self._folder, self._settings = folder, settings
        self._databases = 0
        # PostgreSQL refuses to run as root: then someone without rights runs it.
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {
                "user": "nobody",
                "group": pwd.getpwnam("nobody").pw_gid,
                "extra_groups": [],
            }
        (folder / "password").write_text(PASSWORD)
        command = [program("initdb"), "--no-sync", "--locale=C", "--encoding=UTF8"]
        command += ["--auth=scram-sha-256", "--username", USER, "--pwfile", folder / "password"]
        subprocess.run(
            [*command, "-D", folder / "data"], check=True, capture_output=True, **self._as
        )
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [program("postgres"), "-D", self._folder / "data", "-k", self._folder]
        command += ["-c", "listen_addresses="]
        for setting in self._settings:
            command += ["-c", setting]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._execute("SELECT 1")
                return
            except sa.exc.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self._folder / "log").read_text()
                    raise RuntimeError(f"PostgreSQL does not start: {log_text}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop at once, as a crash would."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def database(self) -> str:
        """The URL of a new database."""
        self._databases += 1
        name = f"test{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str, password: str = PASSWORD) -> str:
        """How to reach a database of this server."""
        return f"postgresql://{USER}:{password}@/{name}?host={self._folder}"

    def _execute(self, statement: str) -> None:
        url = self.url("postgres").replace("postgresql:", "postgresql+psycopg:")
        engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(statement))


@contextmanager
def server(*settings: str) -> Iterator[Server]:
    """A server with some settings (`fsync=off`), gone afterwards."""
    # Not pytest's own folder, which only its user may enter; and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        running = Server(folder, settings)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), server() as own:
        print(own.database(), flush=True)
        signal.pause()
