"""Which figure a study is of, kept beside it, for reports: its store may have any name."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from completedp.studies.store import Study

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
