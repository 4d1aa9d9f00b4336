"""Plant one wrong exponent at a time and see which check notices: the table in docs/checks.md.

    python benchmarks/planted_errors.py run     # about 30 minutes on one core; goes on where it stopped
    python benchmarks/planted_errors.py table

Every exponent of Complete(d)P is moved by +1/4 and -1/4, one at a time, and by +1/2 and -1/2 where that
is not caught. What was measured
is in data/planted-errors.json.xz: log2 of root mean squares by size and seed, for the sound rules (with
more seeds, which give the rate of false alarms) and for every error that a run of training can show.
Exponents of eps are judged on the sound rules' gradients, which eps does not move here, and those of
batch and tokens by arithmetic.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.common.files import write_bytes_atomically
from completedp.evidence.check import Check, make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows, invariant_rows
from completedp.evidence.rows import Row
from completedp.evidence.scaling import Measurement, sweep
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, HYPERPARAMETERS, Rules, Shift

DATA = Path(__file__).parent / "data" / "planted-errors.json.xz"
SETTINGS = CheckSettings(widths=(64, 128, 256), depths=(2, 4, 8), batch=512, device="cpu")
SOUND_SEEDS = 24
SIZES = {0.25: "1/4", 0.5: "1/2"}
"""Of errors, with either sign."""
TRAINED = ("lr", "init_std", "multiplier")
NOT_CAUGHT = "not caught"


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


def needs_training(shift: Shift) -> bool:
    """Whether a run has to be made with it; of the others the sound rules' runs say all."""
    return shift.hyperparameter in TRAINED and shift.axis in ("width", "depth")


def caught_by(shift: Shift, check: Check, rules: Rules, sound: dict[str, Measurement]) -> list[str]:
    """The checks that fail with that error planted; `sound` are measurements without it."""
    wrong = replace(rules, shifts=(shift,))
    measured = sweep(check, wrong, shift.axis) if needs_training(shift) else None
    return judged(shift, rules, sound, measured, check.tolerance)


def judged(
    shift: Shift,
    rules: Rules,
    sound: dict[str, Measurement],
    measured: Measurement | None,
    tolerance: float,
) -> list[str]:
    """The checks that fail, given what was measured with the error where it shows in training."""
    wrong, caught = replace(rules, shifts=(shift,)), []
    if failed(invariant_rows(wrong)):
        caught.append("invariants")
    if shift.hyperparameter == "eps" and shift.axis in sound:
        # eps is far below the gradients in these runs, so they are those of the sound rules.
        if failed(gradient_rows(replace(sound[shift.axis], rules=wrong), tolerance)):
            caught.append("gradcheck")
    elif measured is not None and failed(coordinate_rows(measured, tolerance)):
        caught.append("coordcheck")
    return caught


def failed(rows: Sequence[Row]) -> bool:
    """Whether any row did."""
    return any(row.verdict == "fail" for row in rows)


def run() -> None:
    """Measure what is not measured yet, small errors first, and write it down after each."""
    check, rules = make_check(settings=SETTINGS), Rules()
    data = read() if DATA.exists() else {"sound": {}, "planted": {}}
    data["config"] = check.to_dict()
    for axis in check.axes:
        if axis not in data["sound"]:
            print(f"sound {axis}", flush=True)
            data["sound"][axis] = _values(replace(check, seeds=SOUND_SEEDS), rules, axis)
            _write(data)
    for size in SIZES:
        for shift in itertools.chain(every_shift(size), every_shift(-size)):
            known = shift_name(shift) in data["planted"] or has_no_effect(shift)
            if known or not needs_training(shift) or smaller_caught(data, shift):
                continue
            print(f"planted {shift_name(shift)}", flush=True)
            wrong = replace(rules, shifts=(shift,))
            data["planted"][shift_name(shift)] = _values(check, wrong, shift.axis)
            _write(data)


def _values(check: Check, rules: Rules, axis: str) -> dict[str, Any]:
    found = sweep(check, rules, axis).values
    return {" ".join(key): np.round(values, 4).tolist() for key, values in found.items()}


def _write(data: dict[str, Any]) -> None:
    packed = json.dumps(data, separators=(",", ":")).encode()
    write_bytes_atomically(DATA, lzma.compress(packed, preset=6))


def read() -> dict[str, Any]:
    """What was measured."""
    return json.loads(lzma.decompress(DATA.read_bytes()))


def measurement(
    values: dict[str, list[list[float]]], axis: str, rules: Rules, seeds: Sequence[int]
) -> Measurement:
    """A measurement from the file, of some of its seeds."""
    sizes = getattr(SETTINGS, f"{axis}s")
    each = {key: np.array(value)[:, list(seeds)] for key, value in values.items()}
    return Measurement(
        axis, rules, sizes, {(k.split()[0], k.split()[1]): v for k, v in each.items()}
    )


def smaller_caught(data: dict[str, Any], shift: Shift) -> bool:
    """Whether half of that error is seen already, with either sign: then it is seen too."""
    halves = [replace(shift, by=sign * shift.by / 2) for sign in (1, -1)]
    return abs(shift.by) > min(SIZES) and all(seen_by(data, half) for half in halves)


def seen_by(data: dict[str, Any], shift: Shift) -> list[str]:
    """The checks that see an error, by what was measured."""
    rules, seeds = Rules(), range(SETTINGS.seeds)
    sound = {axis: measurement(v, axis, rules, seeds) for axis, v in data["sound"].items()}
    measured = None
    if needs_training(shift):
        values = data["planted"][shift_name(shift)]
        measured = measurement(values, shift.axis, replace(rules, shifts=(shift,)), seeds)
    return judged(shift, rules, sound, measured, SETTINGS.tolerance)


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


def false_alarms(data: dict[str, Any], name: str, tolerance: float) -> tuple[int, int]:
    """How many checks of the sound rules fail, and of how many: each of three seeds of their own."""
    judge, rules = {"coordcheck": coordinate_rows, "gradcheck": gradient_rows}[name], Rules()
    groups = np.arange(SOUND_SEEDS).reshape(-1, SETTINGS.seeds)
    alarms = 0
    for seeds in groups:
        each = [measurement(v, axis, rules, seeds) for axis, v in data["sound"].items()]
        alarms += any(failed(judge(one, tolerance)) for one in each)
    return alarms, len(groups)


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
    data = read()
    print(table(data))
    for name in ("coordcheck", "gradcheck"):
        alarms, of = false_alarms(data, name, SETTINGS.tolerance)
        print(f"false alarms of {name}: {alarms} of {of}")


if __name__ == "__main__":
    main()
