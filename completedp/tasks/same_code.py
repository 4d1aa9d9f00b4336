"""Does a task of the user's own still compute what it did when a study or a run of it began?

Both know a model and a loss by their names and shapes, and the code behind a name may change. So
losses are computed with the same weights on the same examples whenever one is gone on with.
Where training starts, most models give every token about the same chance, whatever they compute; so
they are also asked with weights far from there, for evaluation and as in training.
"""

from __future__ import annotations

import hashlib
import math
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from completedp.apply.planned import Plan
from completedp.lm.reference import ReferenceModel
from completedp.tasks.data import held_out_batches
from completedp.tasks.task import Task
from completedp.tasks.weights import give_memory
from completedp.theory.recipe import Recipe

MOST_PARAMETERS = 64_000_000
"""Of a model that is run for it, on a CPU."""
_EXAMPLES = 4
_SAME = {"loss": 1e-3, "far": 2e-5, "training": 2e-5}
"""What is computed (the loss at the start, which is all that older notes have; far from it; and far
from it in training), and the relative difference that is none: far more than machines round."""
_DRAWS = "draws"
"""In the note beside them: what the machine's generator draws, on which dropout depends."""
_NUDGE = 1e-6
"""Relative: what weights are moved by to see whether a loss stands the rounding of machines."""
_FAR = 2.0
"""What a unit gives out by the weights that are added, for an input of 1."""


class DamagedNoteError(Exception):
    """What was noted is not what `noted` gives."""


def noted(task: Task, recipe: Recipe) -> dict[str, Any]:
    """What to keep beside a study or a run; nothing of a task that cannot be compared."""
    losses = task_losses(task, recipe)
    return {**losses, _DRAWS: _draws()} if losses else {}


def what_changed(now: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """How two notes differ, if they do, in words; what either lacks is not compared."""
    now = _comparable(now, before)
    for key, tolerance in _SAME.items():
        if key not in now or (key not in before and key != "loss"):  # as in an older version's note
            continue
        loss, was = now[key], before.get(key)
        if not isinstance(was, int | float):
            raise DamagedNoteError
        if not _is_same(loss, was, tolerance):
            where = " in training" if key == "training" else ""
            return (
                f"with the same weights and examples the loss{where} is {loss:.6g}, and was "
                f"{was:.6g}"
            )
    return None


def completed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The older note, with what it lacks."""
    return {**_comparable(now, before), **before}


def _comparable(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Dropout leaves out others on a machine that draws other numbers."""
    same_draws = before.get(_DRAWS, now.get(_DRAWS)) == now.get(_DRAWS)
    return {key: value for key, value in now.items() if same_draws or key != "training"}


def task_losses(task: Task, recipe: Recipe) -> dict[str, float]:
    """Losses at the recipe's base with given weights, on a few held-out examples.

    Nothing of the reference model, which is the package's; of a model too large; and of one whose
    loss does not run on a CPU, or is not the same every time.
    """
    if isinstance(task.make, ReferenceModel) and task.loss is None:
        return {}
    if sum(p.numel() for p in task.blank(recipe.base).parameters()) > MOST_PARAMETERS:
        return {}
    try:
        found, nudged = _losses(task, recipe), _losses(task, recipe, _NUDGE)
    except Exception:  # what fails here fails in a trial too, and is said there; or needs a GPU
        return {}
    stands = {
        key: loss
        for key, loss in found.items()
        if math.isfinite(loss) and _is_same(loss, nudged.get(key, math.nan), _SAME[key] / 2)
    }
    return stands if "loss" in stands else {}


def _is_same(one: float, other: float, tolerance: float) -> bool:
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-9)


def _losses(task: Task, recipe: Recipe, nudge: float = 0.0) -> dict[str, float]:
    """Every loss of `_SAME` that can be computed, with weights that are moved by a part of them."""
    cpu, data = torch.device("cpu"), task.data
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)  # the user's code may draw numbers, too
        model = task.model(recipe.base)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say of a plan is said of the study's
            planned = task.plan(recipe, recipe.base, model, probe=False)
        give_memory(model, cpu)
        planned.initialise(0)
        rows = data.evaluation(_EXAMPLES)
        batch, _ = next(iter(held_out_batches(data, rows, _EXAMPLES, cpu)))

        def loss() -> float:
            torch.manual_seed(0)
            return float(task.batch_loss(model)(*batch).cross_entropy)

        model.eval()
        _nudge_weights(planned, nudge)
        found = {"loss": loss()}
        _move_far(planned, "far")
        _nudge_weights(planned, nudge)
        found["far"] = loss()
        model.train()
        _move_far(planned, "training")  # a change that one mean happens to hide, another shows
        with suppress(Exception):  # such as a penalty on gradients, of which there are none here
            found["training"] = loss()
        return found


def _move_far(planned: Plan, key: str) -> None:
    """Add to every tensor, those that start at a constant too, what makes all of them matter."""
    parameters = planned.map.parameters()
    for tensor in planned.tensors:
        is_vector = len(tensor.info.shape) < 2
        spread = 0.25 if is_vector else _FAR * tensor.info.width**-0.5
        parameters[tensor.name].add_(spread * _drawn(f"{key}/{tensor.name}", tensor.info.shape))


def _nudge_weights(planned: Plan, part: float) -> None:
    """Multiply each weight by nearly 1."""
    if part:
        for name, parameter in planned.map.parameters().items():
            parameter.mul_(1 + part * _drawn(f"nudge/{name}", tuple(parameter.shape)))


def _drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    """Normal numbers that depend on a name alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator)


def _draws() -> str:
    """Equal where a generator of the same seed draws the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kept = functional.dropout(torch.ones(4096), 0.5) > 0
        kept = torch.cat([kept, torch.rand(4096) > 0.5])
    return hashlib.blake2b(bytes(kept.tolist()), digest_size=8).hexdigest()
