"""The command that a study was begun with, or last gone on with: kept beside it, for reports.

A study knows all that its trials depend on, but not where the data are or what a model is called;
what was typed says both.
"""

from __future__ import annotations

import shlex

from completedp.common import surface
from completedp.common.errors import CompletedpError
from completedp.studies.database import without_password
from completedp.studies.store import Study

_NOTE = "command"


def typed_command() -> str | None:
    """What the user typed, without passwords; None in Python."""
    running = surface.command()
    if running is None or not running.typed:
        return None
    return shlex.join(["completedp", *map(_without_password, running.typed)])


def note_command(study: Study) -> None:
    """Keep what was typed, where something was."""
    if typed := typed_command():
        study.set_note(_NOTE, {"typed": typed})


def noted_command(study: Study) -> str | None:
    """What was kept; None where nothing was, or somebody changed the store."""
    note = study.get_note(_NOTE)
    typed = note.get("typed") if isinstance(note, dict) else None
    return typed if isinstance(typed, str) else None


def _without_password(word: str) -> str:
    if "://" not in word:
        return word
    flag, equals, url = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        return f"{flag}{equals}{without_password(url)}"
    except CompletedpError:
        return f"{flag}{equals}***"
