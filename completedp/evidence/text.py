"""Checks as text for a terminal: a verdict per parameterisation and axis, then the rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from completedp.apply.table import NARROWEST
from completedp.common.terminal import columns, drawn, fitted, table_width
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
    width, parts = columns(), list[str]()
    for name in dict.fromkeys(row.parameterisation for row in rows):
        mine = [row for row in rows if row.parameterisation == name]
        for axis in dict.fromkeys(row.axis for row in mine):
            title = f"{name:<11} {axis:<7} "
            said = _summary([row for row in mine if row.axis == axis])
            parts.append(fitted(title + said, width, " " * len(title)))
    shown = [row for row in rows if all_rows or row.verdict != "pass"]
    if shown:
        table = _table(shown)
        if table_width(table) > width:
            others = table_width(_table(shown, room=1)) - 1
            table = _table(shown, room=max(NARROWEST, width - others))
        parts += ["", drawn(table, width), ""]
    for role in dict.fromkeys(MODULE_TYPES[row.what] for row in rows if row.verdict == "known"):
        parts.append(fitted(f"known: {KNOWN[role]}", width))
    return "\n".join(parts).rstrip()


def _summary(rows: list[Row]) -> str:
    failed = [row for row in rows if row.verdict == "fail"]
    worst = max(rows, key=lambda row: abs(row.slope - row.expected) * (row.verdict != "known"))
    verdict = f"FAIL  {len(failed)} of {len(rows)} rows" if failed else f"pass  {len(rows)} rows"
    return (
        f"{verdict}, furthest from theory: {worst.quantity} {worst.what} "
        f"{worst.slope:+.2f} (expected {worst.expected:+.2f})"
    )


def _table(rows: list[Row], room: int | None = None) -> Table:
    """With `room` columns for names, which go on in the next line, where it is to be narrow."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=room is not None)
    table.add_column("parameterisation" if room is None else "rules", no_wrap=True)
    for name in ("axis", "quantity"):
        table.add_column(name, no_wrap=True)
    table.add_column("tensor", max_width=room, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("expected", "slope", "+-"):
        table.add_column(name, justify="right", no_wrap=True)
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
