"""The terminal: how wide it is, and lines and tables that fit it without a number being cut."""

from __future__ import annotations

import io
import shutil
import textwrap

from rich.console import Console
from rich.table import Table

WIDE = 180
"""Columns where there is no terminal, as in a file."""
_NARROWEST = 40
"""Columns below which words, and so numbers, would be cut."""
_ENDLESS = Console(width=100_000)
"""Where there is room for everything."""


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


def table_width(table: Table) -> int:
    """Columns that a table takes with nothing in it broken."""
    return _ENDLESS.measure(table).maximum


def drawn(table: Table, width: int) -> str:
    """A table as lines; it is wider than asked for where it would be cut."""
    text = io.StringIO()
    room = max(width, _ENDLESS.measure(table).minimum)
    Console(file=text, width=room, color_system=None).print(table, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
