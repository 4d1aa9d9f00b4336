"""A study goes on with the code that it began with: tasks/same_code.py, noted in its store."""

from __future__ import annotations

from completedp.common.errors import CompletedpError
from completedp.studies.objective import Objective
from completedp.studies.store import Study
from completedp.tasks.same_code import DamagedNoteError, completed, noted, what_changed

_NOTE = "loss with given weights"


def check_unchanged(study: Study, objective: Objective) -> None:
    """Raise where the model or its loss computes something else than when the study began."""
    now, before = noted(objective.task, objective.recipe), study.get_note(_NOTE) or {}
    if not now:
        return
    try:
        changed = what_changed(now, before) if before else None
    except DamagedNoteError:
        raise study.damaged(f"its note {_NOTE!r}") from None
    if changed:
        raise CompletedpError(
            f"{objective.task.name} or its loss was changed since the study {study.name!r} began: "
            f"{changed}; losses of the two cannot be compared, so give the study another name or "
            "store, or undo the change"
        )
    if (whole := completed(before, now)) != before:
        study.set_note(_NOTE, whole)
