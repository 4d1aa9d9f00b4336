"""The terminal: how wide it is, and lines and tables that fit it without a number being cut.

Rich is imported where a table is drawn: a help waits for none.
"""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 180
"""Columns where there is no terminal, as in a file."""
_NARROWEST = 40
"""Columns below which words, and so numbers, would be cut."""
_ENDLESS = 100_000
"""Columns where there is room for everything."""


def columns() -> int:
    """Those of the terminal."""
    return shutil.get_terminal_size((WIDE, 24)).columns


def fitted(text: str, width: int, indent: str | None = None) -> str:
    """Text whose long lines go on in the next, indented: by four columns if not told otherwise.

    >>> print(fitted("  lr = 0.0078125 (value) x 2.00119 (global) x 0.25 (width 4^-1)", 40))
      lr = 0.0078125 (value) x 2.00119
          (global) x 0.25 (width 4^-1)
    """
    lines = []
    for line in text.splitlines():
        own = " " * (len(line) - len(line.lstrip()) + 4)
        further = own if indent is None else indent
        room = max(_NARROWEST, width)
        lines.append(textwrap.fill(line, room, subsequent_indent=further, break_on_hyphens=False))
    return "\n".join(lines)


def say(line: str) -> None:
    """A line on standard error that cannot wait for the end; if nobody reads it, that is all."""
    with suppress(OSError, ValueError):
        print(f"completedp: {line}", file=sys.stderr, flush=True)


def table_width(table: Table) -> int:
    """Columns that a table takes with nothing in it broken."""
    from rich.console import Console

    return Console(width=_ENDLESS).measure(table).maximum


def drawn(table: Table, width: int) -> str:
    """A table as lines; it is wider than asked for where it would be cut."""
    from rich.console import Console

    text = io.StringIO()
    room = max(width, Console(width=_ENDLESS).measure(table).minimum)
    Console(file=text, width=room, color_system=None).print(table, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
