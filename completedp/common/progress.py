"""A live line for people at a terminal, plain lines now and then for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_INTERVAL = 5.0
"""Seconds between plain lines."""


class Reporter:
    """Progress of one thing with a known number of steps, to standard error."""

    def __init__(self, title: str, steps: int, start: int = 0, *, quiet: bool = False) -> None:
        self._title, self._steps, self._start = title, steps, start
        self._began = self._said = time.monotonic()
        self._bar: Progress | None = None
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[note]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=steps, completed=start, note="")
            self._bar.start()

    def update(self, step: int, note: Callable[[], str]) -> None:
        """Show that `step` steps are done; `note` is called only when it will be seen."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note())
            return
        now = time.monotonic()
        if now - self._said >= PLAIN_INTERVAL or step >= self._steps:
            self._said = now
            done = step - self._start
            left = (now - self._began) / max(1, done) * max(0, self._steps - step)
            eta = f"ETA {duration(left)}" if done > 0 else ""  # nothing is known yet
            try:
                line = f"{self._title} {step}/{self._steps} {note()} {eta}".rstrip()
                print(line, file=sys.stderr, flush=True)
            except OSError:  # nobody reads any more: that is no reason to stop
                self._quiet = True

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()


def say(line: str) -> None:
    """A line on standard error that cannot wait for the end; if nobody reads it, that is all."""
    with suppress(OSError, ValueError):
        print(f"completedp: {line}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """1:02:03 or 2:03; of days their number, since nobody counts their minutes.

    >>> duration(3723), duration(123), duration(1e6)
    ('1:02:03', '2:03', '12 days')
    """
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.0f} days"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
