"""Stopwatch: how long something took in all its parts, those that were killed among them.

The time so far is written to a file every few seconds; the next part adds to what it finds there.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from completedp.common.checks import is_finite
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, write_json

EVERY = 5.0
"""Seconds between writes: what a kill may lose."""


class Stopwatch:
    """Runs while it is entered. `finished` removes the file, when the whole has been noted."""

    def __init__(self, path: Path, every: float = EVERY) -> None:
        self._path, self._every = path, every
        self._before = _seconds_in(path)
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    @property
    def seconds(self) -> float:
        """Of all parts until now."""
        return self._before + time.monotonic() - self._began

    def finished(self) -> None:
        """Forget the parts."""
        self._end()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Stopwatch:
        self._began = time.monotonic()
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stop.is_set():
            self._end()
            self._note()

    def _end(self) -> None:
        self._stop.set()
        self._writer.join()

    def _write(self) -> None:
        while not self._stop.wait(self._every):
            self._note()

    def _note(self) -> None:
        try:
            write_json(self._path, {"seconds": round(self.seconds, 1)})
        except OSError:  # a full disk is for the work itself to complain of
            return


def _seconds_in(path: Path) -> float:
    """What earlier parts took; a file that says nothing sensible counts as nothing."""
    if not path.exists():
        return 0.0
    try:
        found = read_json(path, "note of the seconds")["seconds"]
    except (CompletedpError, KeyError):
        return 0.0
    return float(found) if is_finite(found) and found >= 0 else 0.0
