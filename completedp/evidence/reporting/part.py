"""Part: one thing that a report shows, with what was found of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from completedp.common.checks import is_finite
from completedp.evidence.report import Report
from completedp.studies.candidates import MEANINGS
from completedp.theory.evidence import Rung

PASS, FAIL, OPEN = "pass", "fail", "not settled"
MEASURED, UNFINISHED = "measured", "not finished"
LEFT_OUT = "left out"
"""Of what cannot be read."""
_WORST = (LEFT_OUT, FAIL, UNFINISHED, OPEN, PASS)
LONGEST = 12
"""Rows of a table that are shown without being asked for."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One claim, what was measured, and the verdict."""

    claim: str
    measured: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """A section of the report."""

    title: str
    says: str
    """What it is about, in a sentence."""
    body: Callable[[Report], None]
    """Writes its drawings and tables."""
    source: str = ""
    """Where the paper has it."""
    paper: str = ""
    """What the paper found."""
    lead: str = ""
    """The one sentence that a page of it begins with, where there is such a one."""
    outcomes: Sequence[Outcome] = ()
    found: str = ""
    """What was found, in a few words, for the summary."""
    command: str | None = None
    """What made it."""
    size: str = ""
    """Of a figure: at which size."""

    @property
    def verdict(self) -> str:
        """The worst of its outcomes; where there is nothing to judge, that it was measured."""
        words = {outcome.verdict for outcome in self.outcomes}
        return next((word for word in _WORST if word in words), MEASURED)


DATA, STORE = "DATA", "STORE"
"""For the reader to fill in: a study knows its data by their digest, and not where they are."""


def command(*words: str, **options: object) -> str:
    """A command as one would type it; options that are None are left out.

    >>> command("sweep", vary=("lr",), factors=(1, 2), out="my runs")
    "completedp sweep --vary lr --factors 1 2 --out 'my runs'"
    """
    parts = ["completedp", *words]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None or value is False or value in ((), []):
            continue
        if value is True:
            parts.append(flag)
        elif isinstance(value, tuple | list):
            parts += [flag, *map(str, value)]  # every digit: others would be another run
        else:
            parts += [flag, str(value)]
    return shlex.join(parts)


def typed_in(data: Mapping[str, Any]) -> str | None:
    """The command, or the call in Python, that a file says it was made by."""
    typed = data.get("command")
    return typed if isinstance(typed, str) else None


def unless(value: Any, usual: str) -> str | None:
    """A value for a command, where it is not the usual one, which is left out."""
    return None if value in (None, usual) else str(value)


def shown(value: Any) -> str:
    """A plain value for people."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return str(value)


def table(report: Report, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table, folded where it is long."""
    if not rows:
        return
    if len(rows) > LONGEST:
        report.fold(f"{len(rows)} rows")
    report.table(header, rows)
    if len(rows) > LONGEST:
        report.unfold()


def drawn(report: Report, path: Path, words: str) -> None:
    """A drawing from a file, or a line that says that there is none."""
    try:
        svg = path.read_text("utf-8", errors="replace")
    except OSError:
        report.paragraph(f"There is no drawing: {path.name} is missing.", "quiet")
        return
    report.drawing(svg, words)


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    return float(value) if is_finite(value) else None


def ladder(report: Report, rungs: Iterable[Rung], chosen: str | None) -> None:
    """Every rung, as a table of its standings: candidate, loss, and what it is."""
    report.paragraph(
        "Means over fresh seeds, which the search never saw; +- is one standard error.",
        "quiet",
    )
    for rung in rungs:
        seeds = max(len(standing.losses) for standing in rung.standings)
        report.paragraph(f"At {rung.scale}, {seeds} seed{'s' * (seeds > 1)}:")
        rows = [
            [
                f"{standing.candidate} (chosen)"
                if standing.candidate == chosen
                else standing.candidate,
                str(standing).replace(" ", "\u00a0"),
                MEANINGS.get(standing.candidate, ""),
            ]
            for standing in rung.standings
        ]
        header = ["candidate", "loss, nats", "what it is"]
        told = len(header) if any(row[-1] for row in rows) else -1
        table(report, header[:told], [row[:told] for row in rows])
