"""A live line for people at a terminal, plain lines now and then for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

PLAIN_INTERVAL = 5.0
"""Seconds between plain lines."""
_BAR = 24
"""Columns of a bar, where there is room for one."""


class Reporter:
    """Progress of one thing with a known number of steps, to standard error.

    `waiting` says what happens until the first step is done, such as compiling.
    """

    def __init__(
        self, title: str, steps: int, start: int = 0, *, quiet: bool = False, waiting: str = ""
    ) -> None:
        self._title, self._steps, self._step = title, steps, start
        self._said = time.monotonic()
        self._left = TimeLeft()
        self._note = waiting
        self._bar: Progress | None = None
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(_Line(self), console=Console(stderr=True))
            self._bar.add_task(title, total=None)
            self._bar.start()
        elif waiting and not quiet:
            self._print()

    def update(self, step: int, note: Callable[[], str], part: float | None = None) -> None:
        """Show that `step` steps are done; `note` is called only when it will be seen.

        `part` is the part of the whole work that is done, where steps do not all take as long or
        some are half done: the time that is left goes by it.
        """
        if self._quiet:
            return
        self._step = step
        self._left.tell(step / max(1, self._steps) if part is None else part)
        now = time.monotonic()
        if self._bar is not None:
            self._note = note()
        elif now - self._said >= PLAIN_INTERVAL or step >= self._steps:
            self._said, self._note = now, note()
            self._print()

    def line(self, width: int | None = None) -> str:
        """How it stands, in so many columns."""
        left = 0.0 if self._step >= self._steps else self._left.seconds()
        count = f"{self._step}/{self._steps}"
        eta = "" if left is None else f"ETA {duration(left)}"
        if width is None:
            return " ".join(filter(None, [self._title, count, self._note, eta]))
        return fitted(self._title, count, eta, self._note, self._step / max(1, self._steps), width)

    def _print(self) -> None:
        try:
            print(self.line(), file=sys.stderr, flush=True)
        except OSError:  # nobody reads any more: that is no reason to stop
            self._quiet = True

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()


class TimeLeft:
    """How long work still takes, by the part of it that was done since it got going.

    The first that is told of only starts the clock: what came before was set-up and compiling.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None

    def tell(self, part: float) -> None:
        """So much of it is done."""
        self._last = self._clock(), part
        self._first = self._first or self._last

    def seconds(self) -> float | None:
        """Seconds left; None while there is nothing to go by."""
        if self._first is None or self._last is None:
            return None
        (began, before), (now, part) = self._first, self._last
        if part <= before or now <= began:
            return None
        rate = (part - before) / (now - began)
        return max(0.0, (1.0 - part) / rate - (self._clock() - now))


def fitted(title: str, count: str, eta: str, note: str, part: float, width: int) -> str:
    """A line of at most so many columns: a bar where there is room, and as much of the note.

    >>> fitted("search: trials", "12/300", "ETA 2:03", "best 3.1, 2 diverged, slots full", 0.04, 48)
    'search: trials 12/300 ETA 2:03 best 3.1'
    """
    room = width - len(f"{count} {eta} ")
    title = title if len(title) <= room else f"{title[: room - 1]}…"
    line = " ".join(filter(None, [title, count, eta]))
    kept = ""
    for piece in note.split(", "):  # whole pieces: half a number is worse than none
        longer = f"{kept}, {piece}" if kept else piece
        if len(line) + 1 + len(longer) > width:
            break
        kept = longer
    if kept == note and len(line) + len(note) + _BAR + 2 <= width:
        done = round(_BAR * min(1.0, max(0.0, part)))
        line = " ".join(filter(None, [title, "━" * done + "─" * (_BAR - done), count, eta]))
    return " ".join(filter(None, [line, kept]))[:width]


class _Line(ProgressColumn):
    """A reporter's line, made anew whenever the terminal is drawn."""

    max_refresh = None

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._reporter = reporter
        self._console = Console(stderr=True)

    def render(self, task: Task) -> Text:
        return Text(self._reporter.line(self._console.width))


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
