"""Plant one wrong exponent at a time and see which check notices: the table in docs/checks.md.

    python benchmarks/planted_errors.py

Every exponent of Complete(d)P is moved by +1/2 and by -1/2, one at a time. About two minutes on
two cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from completedp.evidence.check import Check, make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows, invariant_rows
from completedp.evidence.scaling import Measurement, sweep
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, HYPERPARAMETERS, Rules, Shift

SETTINGS = CheckSettings(widths=(64, 128, 256), depths=(2, 4, 8), seeds=1)


def every_shift(by: float) -> Iterator[Shift]:
    """One wrong exponent each: every role, hyperparameter and axis, and the residual multiplier."""
    for hyperparameter in HYPERPARAMETERS:
        for role in Role:
            for axis in AXES:
                yield Shift(role=role, hyperparameter=hyperparameter, axis=axis, by=by)
    for axis in AXES:
        yield Shift(role="residual", hyperparameter="multiplier", axis=axis, by=by)


def has_no_effect(shift: Shift) -> bool:
    """Exponents that nothing uses: vectors are not drawn, only logits have a multiplier, and the
    reference model ties nothing (tests/test_tied.py plants errors in that row)."""
    if shift.role == "residual":
        return False
    role = Role(shift.role)
    if role is Role.TIED_EMBEDDING:
        return True
    if shift.hyperparameter == "init_std":
        return not role.is_matrix
    return shift.hyperparameter == "multiplier" and role is not Role.OUTPUT_WEIGHT


def caught_by(shift: Shift, check: Check, rules: Rules, sound: dict[str, Measurement]) -> list[str]:
    """The checks that fail with that error planted; `sound` are measurements without it."""
    wrong = replace(rules, shifts=(shift,))
    caught = []
    if any(row.verdict == "fail" for row in invariant_rows(wrong)):
        caught.append("invariants")
    if shift.axis not in check.axes:
        return caught
    if shift.hyperparameter == "eps":
        # eps is far below the gradients in these runs, so they are those of the sound rules.
        rows = gradient_rows(replace(sound[shift.axis], rules=wrong), check.tolerance)
        if any(row.verdict == "fail" for row in rows):
            caught.append("gradcheck")
    elif shift.hyperparameter in ("lr", "init_std", "multiplier"):
        rows = coordinate_rows(sweep(check, wrong, shift.axis), check.tolerance)
        if any(row.verdict == "fail" for row in rows):
            caught.append("coordcheck")
    return caught


def main() -> None:
    """Print a Markdown table."""
    rules, check = Rules(), make_check(settings=SETTINGS)
    sound = {axis: sweep(check, rules, axis) for axis in check.axes}
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for by in (0.5, -0.5):
        for shift in every_shift(by):
            if has_no_effect(shift):
                verdict = "no effect"
            else:
                verdict = " + ".join(caught_by(shift, check, rules, sound)) or "NOT CAUGHT"
            found[shift.role, shift.hyperparameter, shift.axis].append(verdict)
    print("| exponent of | role | width | depth | batch | tokens |")
    print("| --- | --- | --- | --- | --- | --- |")
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (role, hyperparameter, _), verdicts in found.items():
        lines[hyperparameter, role].append(" / ".join(dict.fromkeys(verdicts)))
    for (hyperparameter, role), cells in lines.items():
        print(f"| {hyperparameter} | {role} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
