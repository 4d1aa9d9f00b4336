"""Plant one wrong exponent at a time and see what notices: a table of docs/results/checks.md.

    python benchmarks/planted_errors.py run     # ten minutes on one core; goes on where it stopped
    python benchmarks/planted_errors.py table

Every exponent of Complete(d)P is moved by +1/4 and -1/4, one at a time, and by +1/2 and -1/2 where
that is not caught. What was measured is in data/planted-errors.json.xz, for every error that
training can show, and for the sound rules with more seeds, which give the rate of false alarms.
Exponents of eps are judged on the sound rules' gradients, which eps does not move here, and those
of batch and tokens by arithmetic.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from measured import FOLDER, packed, read, unpacked, write

from completedp.evidence import coordcheck, gradcheck
from completedp.evidence.check import Check, make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows, invariant_rows
from completedp.evidence.rows import Row
from completedp.evidence.scaling import Measurement, sweep
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, HYPERPARAMETERS, Rules, Shift

DATA = FOLDER / "planted-errors.json.xz"
SETTINGS = CheckSettings(widths=(64, 128, 256), depths=(2, 4, 8), batch=512, device="cpu")
SOUND_SEEDS = 24
SIZES = {0.25: "1/4", 0.5: "1/2"}
"""Of errors, with either sign."""
TRAINED = ("lr", "init_std", "multiplier")
NOT_CAUGHT = "not caught"
Judge = Callable[[Measurement], list[Row]]


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
    reference model ties nothing (tests/test_tied.py plants errors in that row) and has no bias on
    its embedding."""
    if shift.role == "residual":
        return False
    role = Role(shift.role)
    if role in (Role.TIED_EMBEDDING, Role.INPUT_BIAS):
        return True
    if shift.hyperparameter == "init_std":
        return not role.is_matrix
    return shift.hyperparameter == "multiplier" and role is not Role.OUTPUT_WEIGHT


def needs_training(shift: Shift) -> bool:
    """Whether a run has to be made with it; of the others the sound rules' runs say all."""
    return shift.hyperparameter in TRAINED and shift.axis in ("width", "depth")


def caught_by(shift: Shift, check: Check, rules: Rules, sound: dict[str, Measurement]) -> list[str]:
    """The checks that fail with that error planted; `sound` are measurements without it."""
    wrong = replace(rules, shifts=(shift,))
    measured = sweep(check, wrong, shift.axis) if needs_training(shift) else None
    return judged(shift, rules, sound, measured)


def judged(
    shift: Shift,
    rules: Rules,
    sound: dict[str, Measurement],
    measured: Measurement | None,
) -> list[str]:
    """The checks that fail, given what was measured with the error where it shows in training."""
    wrong, caught = replace(rules, shifts=(shift,)), []
    if failed(invariant_rows(wrong)):
        caught.append("invariants")
    if shift.hyperparameter == "eps" and shift.axis in sound:
        # eps is far below the gradients in these runs, so they are those of the sound rules.
        if failed(gradient_rows(replace(sound[shift.axis], rules=wrong))):
            caught.append("gradcheck")
    elif measured is not None and failed(coordinate_rows(measured)):
        caught.append("coordcheck")
    return caught


def failed(rows: Sequence[Row]) -> bool:
    """Whether any row did."""
    return any(row.verdict == "fail" for row in rows)


def run() -> None:
    """Measure what is not measured yet, small errors first, and write it down after each."""
    check, rules = make_check(settings=SETTINGS), Rules()
    data = read(DATA) or {"config": check.to_dict(), "sound": {}, "planted": {}}
    for axis in check.axes:
        if axis not in data["sound"]:
            print(f"sound {axis}", flush=True)
            data["sound"][axis] = packed(sweep(replace(check, seeds=SOUND_SEEDS), rules, axis))
            write(DATA, data)
    for size in SIZES:
        for shift in itertools.chain(every_shift(size), every_shift(-size)):
            known = shift_name(shift) in data["planted"] or has_no_effect(shift)
            if known or not needs_training(shift) or smaller_caught(data, shift):
                continue
            print(f"planted {shift_name(shift)}", flush=True)
            wrong = replace(rules, shifts=(shift,))
            data["planted"][shift_name(shift)] = packed(sweep(check, wrong, shift.axis))
            write(DATA, data)


def smaller_caught(data: dict[str, Any], shift: Shift) -> bool:
    """Whether half of that error is seen already, with either sign: then it is seen too."""
    halves = [replace(shift, by=sign * shift.by / 2) for sign in (1, -1)]
    return abs(shift.by) > min(SIZES) and all(seen_by(data, half) for half in halves)


def seen_by(data: dict[str, Any], shift: Shift) -> list[str]:
    """The checks that see an error, by what was measured."""
    seeds = range(SETTINGS.seeds)
    sound = {axis: unpacked(each, seeds) for axis, each in data["sound"].items()}
    trained = data["planted"][shift_name(shift)] if needs_training(shift) else None
    return judged(shift, Rules(), sound, None if trained is None else unpacked(trained))


def table(data: dict[str, Any]) -> str:
    """Markdown: for every exponent along every axis, the checks that see it wrong."""
    lines = [f"| exponent of | role | {' | '.join(AXES)} |", "| --- " * (2 + len(AXES)) + "|"]
    cells: dict[tuple[str, str], list[str]] = defaultdict(list)
    for shift in every_shift(min(SIZES)):
        if not has_no_effect(shift):
            cells[shift.hyperparameter, str(shift.role)].append(_cell(data, shift))
    lines += [f"| {of} | {role} | {' | '.join(each)} |" for (of, role), each in cells.items()]
    return "\n".join(lines)


def _cell(data: dict[str, Any], shift: Shift) -> str:
    """What catches the smallest error that is caught with either sign."""
    for size, said in SIZES.items():
        both = [seen_by(data, replace(shift, by=by)) for by in (size, -size)]
        if all(both):
            return f"{said}: {', '.join(dict.fromkeys(itertools.chain.from_iterable(both)))}"
    return NOT_CAUGHT


def false_alarms(data: dict[str, Any], judge: Judge, seeds: int) -> tuple[int, int]:
    """How many checks of the sound rules fail, and of how many, each with seeds of its own."""
    groups = np.arange(SOUND_SEEDS).reshape(-1, seeds)
    alarms = 0
    for group in groups:
        each = [unpacked(axis, group.tolist()) for axis in data["sound"].values()]
        alarms += any(failed(judge(one)) for one in each)
    return alarms, len(groups)


def alarms(data: dict[str, Any]) -> str:
    """Markdown: how often sound rules fail, by check and number of seeds."""
    checks: dict[str, tuple[Judge, float]] = {
        "coordcheck": (coordinate_rows, coordcheck.TOLERANCE),
        "gradcheck": (gradient_rows, gradcheck.TOLERANCE),
    }
    lines = ["| check | tolerance | false alarms, three seeds | one seed |", "| --- " * 4 + "|"]
    for name, (judge, tolerance) in checks.items():
        said = [f"{n} of {of}" for n, of in (false_alarms(data, judge, seeds) for seeds in (3, 1))]
        lines.append(f"| {name} | {tolerance:g} | {' | '.join(said)} |")
    return "\n".join(lines)


def shift_name(shift: Shift) -> str:
    """Of a planted error, in the file."""
    return f"{shift.hyperparameter} {shift.role} {shift.axis} {shift.by:+g}"


def main() -> None:
    """Run, or print the table and the false alarms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("run", "table"))
    if parser.parse_args().what == "run":
        run()
        return
    data = read(DATA)
    print(f"{table(data)}\n\n{alarms(data)}")


if __name__ == "__main__":
    main()
