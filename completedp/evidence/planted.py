"""Plant one wrong exponent at a time and see which check notices: the checks, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from completedp.evidence.config import CheckConfig
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows, invariant_rows
from completedp.evidence.scaling import Measurement, axes_of, sweep
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, HYPERPARAMETERS, Rules, Shift


def every_shift(by: float) -> Iterator[Shift]:
    """One wrong exponent each: every role, hyperparameter and axis, and the residual multiplier."""
    for hyperparameter in HYPERPARAMETERS:
        for role in Role:
            for axis in AXES:
                yield Shift(role=role, hyperparameter=hyperparameter, axis=axis, by=by)
    for axis in AXES:
        yield Shift(role="residual", hyperparameter="multiplier", axis=axis, by=by)


def has_no_effect(shift: Shift) -> bool:
    """Exponents that nothing uses: vectors are not drawn, and only logits have a multiplier."""
    if shift.role == "residual":
        return False
    role = Role(shift.role)
    if shift.hyperparameter == "init_std":
        return not role.is_matrix
    return shift.hyperparameter == "multiplier" and role is not Role.OUTPUT_WEIGHT


def caught_by(
    shift: Shift, config: CheckConfig, rules: Rules, sound: dict[str, Measurement]
) -> list[str]:
    """The checks that fail with that error planted; `sound` are measurements without it."""
    wrong = replace(rules, shifts=(shift,))
    caught = []
    if any(row.verdict == "fail" for row in invariant_rows(wrong)):
        caught.append("invariants")
    if shift.axis not in axes_of(config):
        return caught
    if shift.hyperparameter == "eps":
        # eps is far below the gradients in these runs, so they are those of the sound rules.
        rows = gradient_rows(replace(sound[shift.axis], rules=wrong), config.tolerance)
        if any(row.verdict == "fail" for row in rows):
            caught.append("gradcheck")
    elif shift.hyperparameter in ("lr", "init_std", "multiplier"):
        rows = coordinate_rows(sweep(config, wrong, shift.axis), config.tolerance)
        if any(row.verdict == "fail" for row in rows):
            caught.append("coordcheck")
    return caught
