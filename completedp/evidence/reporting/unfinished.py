"""A figure without its verdict: what is done of how much, and the command that goes on with it.

Its trials may be in a store anywhere, which says what it is of; the folder of a figure whose store
is elsewhere has only the seconds that it took so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from completedp.common.progress import duration
from completedp.evidence.figures import annealing
from completedp.evidence.figures.figure import SIZES, TINY, cost_text
from completedp.evidence.figures.noted import noted_figure
from completedp.evidence.figures.paper import found_in_paper
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.report import Report
from completedp.evidence.reporting.part import (
    DATA,
    STORE,
    UNFINISHED,
    Outcome,
    Part,
    command,
    number,
)
from completedp.studies.store import Study
from completedp.studies.typed import noted_command

Name = tuple[str, str]
"""A figure's name and its size."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A figure's trials, and whether they may be all there are."""

    part: Part
    is_whole: bool
    """Then a verdict of the same figure on the same page is theirs."""


def named_after(path: Path) -> Name | None:
    """The figure that a file or folder NAME-SIZE is of."""
    name, _, size = path.stem.rpartition("-")
    return (name, size) if name in FIGURES and size in (*SIZES, TINY) else None


def figure_of(study: Study) -> Name | None:
    """The figure that a study says it is of."""
    noted = noted_figure(study)
    if noted is None or noted.name not in FIGURES or noted.size not in FIGURES[noted.name].sizes:
        return None
    return noted.name, noted.size


def begun_figure(
    name: Name,
    studies: Sequence[Study],
    *,
    out: Path | None,
    store: str | None,
    is_judged: bool,
) -> Begun:
    """Of a figure's trials. `out` is where its verdict is or would be, where that is known, and
    `store` where they are if not there."""
    noted = [noted_figure(study) for study in studies]
    ended = is_judged or (bool(noted) and all(each and each.ended for each in noted))
    counts = [study.counts() for study in studies]
    waiting = any(each["finished"] < each["budget"] for each in counts)
    done = _done(name, studies, counts)

    def body(report: Report) -> None:
        report.paragraph(f"All of it: {cost_text(FIGURES[name[0]], name[1])}.")
        report.table(
            ["list or search", "trials finished", "asked for so far"],
            [
                [study.name, each["finished"], each["budget"]]
                for study, each in zip(studies, counts, strict=True)
            ],
        )

    typed = next(filter(None, map(noted_command, studies)), None)
    return Begun(
        part=_part(
            name,
            done,
            body,
            says=f"These are its trials; its verdict is {name[0]}.json." if ended else "",
            ended=ended,
            out=out,
            going_on=typed or _command(name, out=out, store=store),
        ),
        is_whole=ended or (not waiting and not any(noted)),
    )


def begun_elsewhere(name: Name, folder: Path, seconds: Mapping[str, Any]) -> Part:
    """Of a folder that has no trials of it, only how long it took so far."""
    took = number(seconds.get("seconds"))
    trains = FIGURES[name[0]].cost(name[1]).trials > 0
    return _part(
        name,
        "no time yet" if took is None else f"{duration(took)} so far",
        lambda report: None,
        says="Its trials are in a store elsewhere: name that store too." if trains else "",
        out=folder,
        going_on=_command(name, out=folder, store=STORE if trains else None),
    )


def _part(
    name: Name,
    done: str,
    body: Callable[[Report], None],
    *,
    says: str,
    out: Path | None,
    going_on: str,
    ended: bool = False,
) -> Part:
    figure, size = FIGURES[name[0]], name[1]
    said = [f"{figure.claim}.", f"{'Measured' if ended else 'Begun'} at size {size}."]
    if not ended and out is not None and (out / f"{figure.name}.json").exists():
        said.append(f"{figure.name}.json beside it is of another size: going on writes over it.")
    outcome = Outcome(claim=f"{figure.name} at size {size}", measured=done, verdict=UNFINISHED)
    return Part(
        title=figure.name,
        size=size,
        says=" ".join([*said, says]).rstrip(),
        source=figure.paper,
        paper=found_in_paper(figure.name),
        outcomes=[] if ended else [outcome],
        found=done,
        command=going_on,
        body=body,
    )


def _command(name: Name, *, out: Path | None, store: str | None) -> str:
    return command(
        "figure",
        name[0],
        size=name[1],
        data=None if name[1] in (TINY, "cpu") else DATA,
        store=store,
        out=None if out is None else str(out),
    )


def _done(name: Name, studies: Sequence[Study], counts: Sequence[Mapping[str, int]]) -> str:
    """Trials that are finished, of about as many as the figure takes in the end: what it asks for
    next depends on how they end."""
    whole = FIGURES[name[0]].cost(name[1]).trials
    if name[0] == annealing.FIGURE.name:
        return f"{sum(map(_nodes, studies)):,} of {whole:,} intervals"
    whole = max(whole, sum(each["budget"] for each in counts))
    return f"{sum(each['finished'] for each in counts):,} of about {whole:,} trials"


def _nodes(study: Study) -> int:
    """Of a tree of schedules, which has no trials and notes its intervals (tree.py)."""
    notes = takewhile(bool, (study.get_note(f"nodes {number}") for number in count()))
    return sum(len(note["losses"]) for note in notes if note)
