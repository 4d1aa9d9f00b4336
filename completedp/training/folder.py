"""A run's folder, read: whose run it holds, how far it is, and how it ended.

Files may be another run's, an older version's, edited or damaged: each of these is one line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from completedp.apply.model_map import SIZED
from completedp.common.checks import is_finite
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, user_path
from completedp.common.surface import option
from completedp.tasks.same_code import DamagedNoteError, completed, what_changed
from completedp.theory.recipe import Recipe
from completedp.training.checkpoint import find_checkpoint, read_about
from completedp.training.config import TrainConfig, same_run

STATUSES = ("ok", "diverged", "stopped")


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended."""

    status: str
    """ok, diverged, or stopped (before its last step; the same command goes on)."""
    steps: int
    tokens: int
    train_loss: float | None
    """Cross-entropy of the last step; None where the run diverged in training."""
    valid_loss: float | None
    """Cross-entropy on held-out text, at the end."""
    valid_bits_per_byte: float | None
    last_finite_loss: float | None
    """The last one before divergence, or of all."""
    parameters: int
    seconds: float
    """Of training in this process; a resumed run adds its earlier parts."""
    critical_batch: float | None = None
    """Tokens a step above which more of them gain little; None where it was not measured."""
    critical_batch_error: float | None = None
    noise_scale: float | None = None
    """The same of plain gradients: B_simple. noise.py has what differs."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


CODE = "given_weights"
"""In a run's config.json: what its model and loss compute (tasks/same_code.py)."""


def finished_run(
    folder: Path, config: TrainConfig, identity: dict[str, str], code: Mapping[str, Any]
) -> Result | None:
    """The result of a finished run of this config; a different run in the folder is an error.

    `code` is what the model and its loss compute now, as `same_code.noted` says it.
    """
    if not (folder / "config.json").exists():
        return None
    old = read_json(folder / "config.json", "run's config")
    new = json.loads(json.dumps(config.to_dict()))
    differs = same_run(old, new)
    if differs is not None:
        theirs, ours = (
            "not given" if value is None else repr(value)
            for value in (old.get(differs), new.get(differs))
        )
        raise CompletedpError(
            f"{str(folder)!r} holds another run: its {differs} is {theirs}, here it is {ours}; "
            f"give the same, or choose another {option('out')}"
        )
    for key, value in identity.items():
        if old.get(key) != value:
            what = key.removesuffix("_digest")
            raise CompletedpError(
                f"{str(folder)!r} holds another run: its {what} had other contents; "
                f"choose another {option('out')}"
            )
    _check_same_code(folder, old.get(CODE), code)
    if not (folder / "result.json").exists():
        return None
    result = read_result(folder / "result.json")
    return None if result.status == "stopped" else result


def code_noted(folder: Path, now: Mapping[str, Any]) -> dict[str, Any]:
    """What to write of the code: what the run began with, with what that lacks."""
    path = folder / "config.json"
    before = read_json(path, "run's config").get(CODE) if path.exists() else None
    whole = completed(before if isinstance(before, dict) else {}, now)
    return {CODE: whole} if whole else {}


def _check_same_code(folder: Path, before: Any, now: Mapping[str, Any]) -> None:
    """Raise where the model or its loss computes something else than when the run began."""
    if not before or not now:  # a run of the reference model, or of an older version
        return
    try:
        changed = what_changed(now, before if isinstance(before, dict) else {})
    except DamagedNoteError:
        raise CompletedpError(
            f"{str(folder / 'config.json')!r} is damaged: its {CODE} is {before!s:.60}; "
            "choose another folder, or remove this one to start over"
        ) from None
    if changed:
        raise CompletedpError(
            f"the model or its loss was changed since the run in {str(folder)!r} began: {changed}; "
            f"choose another {option('out')}, or undo the change"
        )


def steps_done(config: TrainConfig) -> int:
    """Steps of a run that are behind it: those of its checkpoint, or of its result."""
    folder = user_path(config.out)
    try:
        if (folder / "result.json").exists():
            result = read_result(folder / "result.json")
            if result.status != "stopped":
                return result.steps
        checkpoint = find_checkpoint(folder)
        return 0 if checkpoint is None else read_about(checkpoint).step
    except (CompletedpError, OSError):  # which `train` says
        return 0


def was_begun(config: TrainConfig) -> bool:
    """Whether a run has taken its folder, be it before its first checkpoint."""
    return (user_path(config.out) / "config.json").exists()


def check_own(checkpoint: Path, identity: dict[str, Any]) -> None:
    """Raise where a checkpoint was written by another run; older ones do not say."""
    theirs = read_about(checkpoint).run
    if theirs is None:
        return
    for key, value in identity.items():
        if theirs.get(key) != value:
            what = key.removesuffix("_digest")
            raise CompletedpError(
                f"the checkpoint {str(checkpoint)!r} is of another run, whose {what} was another: "
                f"choose another {option('out')}, or remove the checkpoint to start over"
            )


def check_extra(checkpoint: Path, extra: dict[str, Any]) -> None:
    """Raise unless what went along with a checkpoint is what `_Run` puts there."""
    noise: Any = extra.get("gradient_noise", [])
    good = (
        is_finite(extra.get("seconds", 0.0))
        and all(
            extra.get(key) is None or is_finite(extra[key])
            for key in ("first_loss", "last_finite_loss")
        )
        and isinstance(noise, list)
        and all(isinstance(row, list) and len(row) == 4 for row in noise)
        and all(is_finite(x) for row in noise for x in row)
    )
    if not good:
        raise CompletedpError(
            f"{str(checkpoint)!r} is damaged: what it says of the run ({extra!s:.60}) cannot be; "
            "remove it to start over"
        )


def read_result(path: Path) -> Result:
    """A run's result, if it is one: a file may have been edited."""
    saved = read_json(path, "run's result")
    known = {field.name: field for field in fields(Result)}
    needed = {name for name, field in known.items() if field.default is MISSING}
    good = needed <= saved.keys() <= known.keys() and saved["status"] in STATUSES
    for name, value in saved.items():
        kind = "" if name not in known else str(known[name].type)
        absent = value is None and "None" in kind
        whole = "int" not in kind or isinstance(value, int)
        good = good and (name == "status" or absent or (is_finite(value) and whole))
    if not good:
        raise CompletedpError(
            f"{str(path)!r} is not a run's result: remove it, and the same command makes it again"
        )
    return Result(**saved)


FIRST_LOSS, TRAINING, VALIDATION = "first loss", "training", "validation"


def where_diverged(result: Mapping[str, Any]) -> str | None:
    """Where a run did, by its result: in the first loss, which no update was before, in training,
    or in validation alone, be it that the last update broke the model; None where it did not."""
    if result.get("status") != "diverged":
        return None
    if result.get("last_finite_loss", 0.0) is None:
        return FIRST_LOSS
    return TRAINING if result.get("train_loss") is None else VALIDATION


def recipe_digest(recipe: Recipe) -> str:
    """Of what a run depends on, written as schema 2 did: runs begun before evidence was go on.

    Sizes are measured, and differ in the last digits from machine to machine.
    """
    plain: dict[str, Any] = recipe.to_dict() | {"schema": 2}
    del plain["evidence"]
    if constants := plain.get("constants"):
        plain["constants"] = {k: v for k, v in constants.items() if not k.startswith(SIZED)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
