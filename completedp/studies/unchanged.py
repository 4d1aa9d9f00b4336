"""Is a task of the user's own still what it was when its study began?

A study knows a model and a loss by their names and shapes, and the code behind a name may change.
So the loss is computed with the same weights on the same examples whenever a study is gone on with.
"""

from __future__ import annotations

import math

import torch

from completedp.common.errors import CompletedpError
from completedp.lm.reference import ReferenceModel
from completedp.studies.objective import Objective
from completedp.studies.store import Study
from completedp.tasks.data import held_out_batches
from completedp.tasks.task import Task, give_memory
from completedp.theory.recipe import Recipe

MOST_PARAMETERS = 64_000_000
"""Of a model that is run for it, on a CPU."""
_NOTE = "loss with given weights"
_EXAMPLES = 4
_SAME = 1e-3
"""Relative: more than machines and versions round."""


def check_unchanged(study: Study, objective: Objective) -> None:
    """Raise where the model or its loss computes something else than when the study began."""
    now = task_loss(objective.task, objective.recipe)
    if now is None:
        return
    note = study.get_note(_NOTE)
    if note is None:
        study.set_note(_NOTE, {"loss": now})
        return
    before = note.get("loss")
    if not isinstance(before, int | float):
        raise study.damaged(f"its note {_NOTE!r}")
    if not _is_same(now, before):
        raise CompletedpError(
            f"{objective.task.name} or its loss was changed since the study {study.name!r} began: "
            f"with the same weights and examples the loss is {now:.6g}, and was {before:.6g}; "
            "losses of the two cannot be compared, so give the study another name or store, or "
            "undo the change"
        )


def task_loss(task: Task, recipe: Recipe) -> float | None:
    """The loss at the recipe's base with weights that the recipe draws, on a few held-out examples.

    None of the reference model, which is the package's; of a model too large; and of one whose loss
    does not run on a CPU, or is not the same every time.
    """
    if isinstance(task.make, ReferenceModel) and task.loss is None:
        return None
    if sum(p.numel() for p in task.blank(recipe.base).parameters()) > MOST_PARAMETERS:
        return None
    try:
        first, second = _loss(task, recipe), _loss(task, recipe)
    except Exception:  # what fails here fails in a trial too, and is said there; or needs a GPU
        return None
    return first if math.isfinite(first) and _is_same(first, second) else None


def _is_same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=1e-9)


def _loss(task: Task, recipe: Recipe) -> float:
    cpu, data = torch.device("cpu"), task.data
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)  # the user's code may draw numbers, too
        model = task.model(recipe.base)
        planned = task.plan(recipe, recipe.base, model, probe=False)
        give_memory(model, cpu)
        planned.initialise(0)
        model.eval()
        rows = data.evaluation(_EXAMPLES)
        batch, _ = next(iter(held_out_batches(data, rows, _EXAMPLES, cpu)))
        return float(task.batch_loss(model)(*batch).cross_entropy)
