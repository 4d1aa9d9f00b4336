"""Checks as text for a terminal: a verdict per parameterisation and axis, then the rows."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from completedp.evidence.gradcheck import MEASURED_OUTPUT_NORM
from completedp.evidence.rows import Row
from completedp.theory.roles import MODULE_TYPES, Role

KNOWN = {
    Role.OUTPUT_NORM: "Table 1 prints x1 for the output norm's eps, its gradient falls as "
    f"m_N^{MEASURED_OUTPUT_NORM:g}; output_norm_eps=gradient follows the gradient",
    Role.QK_NORM: "the gradient of a QK norm is a sum over heads: where they are random, as at the "
    "start, it goes as m_N^-1/2 m_L^-alpha, where they agree as m_L^-1; Table 1 prints m_L^-alpha",
}
"""Of the printed table, by role."""


def check_text(rows: Sequence[Row], *, all_rows: bool = False) -> str:
    """The verdicts, the rows that fail (or all), and what is known of the printed table."""
    text = io.StringIO()
    console = Console(file=text, width=110, color_system=None)
    for name in dict.fromkeys(row.parameterisation for row in rows):
        mine = [row for row in rows if row.parameterisation == name]
        for axis in dict.fromkeys(row.axis for row in mine):
            of_axis = [row for row in mine if row.axis == axis]
            console.print(f"{name:<11} {axis:<7} {_summary(of_axis)}", highlight=False)
    shown = [row for row in rows if all_rows or row.verdict != "pass"]
    if shown:
        console.print(_table(shown), highlight=False)
    for role in dict.fromkeys(MODULE_TYPES[row.what] for row in rows if row.verdict == "known"):
        console.print(f"known: {KNOWN[role]}", highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _summary(rows: list[Row]) -> str:
    failed = [row for row in rows if row.verdict == "fail"]
    worst = max(rows, key=lambda row: abs(row.slope - row.expected) * (row.verdict != "known"))
    verdict = f"FAIL  {len(failed)} of {len(rows)} rows" if failed else f"pass  {len(rows)} rows"
    return (
        f"{verdict}, furthest from theory: {worst.quantity} {worst.what} "
        f"{worst.slope:+.2f} (expected {worst.expected:+.2f})"
    )


def _table(rows: list[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("parameterisation", "axis", "quantity", "tensor", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("expected", "slope", "+-"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.parameterisation,
            row.axis,
            row.quantity,
            row.what,
            row.verdict.upper() if row.verdict == "fail" else row.verdict,
            f"{row.expected:+.2f}",
            f"{row.slope:+.2f}",
            "" if row.error is None else f"{row.error:.2f}",
        )
    return table
