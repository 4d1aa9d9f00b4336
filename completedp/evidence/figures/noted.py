"""Which figure a study is of, kept beside it, for reports: its store may have any name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass

from completedp.common.errors import CompletedpError
from completedp.studies.store import Store, Study

_NOTE = "figure"


@dataclass(frozen=True, kw_only=True)
class OfFigure:
    """A figure at a size, and whether its verdict is written."""

    name: str
    size: str
    ended: bool = False


def note_figure(study: Study, of: OfFigure) -> None:
    """Keep it."""
    study.set_note(_NOTE, asdict(of))


def noted_figure(study: Study) -> OfFigure | None:
    """What was kept; None where nothing was, or somebody changed the store."""
    try:
        return OfFigure(**(study.get_note(_NOTE) or {}))
    except TypeError:
        return None


def note_verdict(url: str, name: str, size: str) -> None:
    """Keep in a store that a figure of it has its verdict, which no store that is gone undoes."""
    with suppress(CompletedpError), Store(url, create=False) as store:
        for study in map(store.study, store.studies()):
            if noted_figure(study) == OfFigure(name=name, size=size):
                note_figure(study, OfFigure(name=name, size=size, ended=True))
