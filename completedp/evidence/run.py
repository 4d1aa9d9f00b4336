"""Run a check: measure along each axis with progress, judge, and write numbers and plot."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from completedp.common.checks import check_one_of
from completedp.common.errors import CompletedpError, ModelWarning
from completedp.common.files import make_folder, user_path, write_json, write_text_atomically
from completedp.common.progress import Reporter
from completedp.evidence.check import Check, make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows, invariant_rows
from completedp.evidence.plots import check_svg, require_matplotlib
from completedp.evidence.result import CheckResult
from completedp.evidence.rows import Row
from completedp.evidence.scaling import Measurement, forewarn, sweep
from completedp.studies.typed import call_of, typed_command
from completedp.tasks.losses import ModelLoss
from completedp.tasks.task import MakeModel
from completedp.theory.recipe import Recipe

COORDCHECK, GRADCHECK = "coordcheck", "gradcheck"
_SEQUENCES = ("widths", "depths", "parameterisations")
_QUICK = (64, 128, 256), (2, 4, 8)
"""Widths and depths of a call in Python."""


def coordcheck(
    make: MakeModel | str | None = None,
    widths: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    *,
    data: Any = None,
    loss: ModelLoss | str | None = None,
    overrides: Mapping[str, str] | None = None,
    parameterisations: Sequence[str] | None = None,
    recipe: Recipe | str | Path | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> CheckResult:
    """Does every feature of a model move by the same amount at every width and depth?

    `make(scale)` gives the model; the reference model if not given. It is trained for a few steps
    at each of `widths` (64, 128, 256) and `depths` (2, 4, 8), on bytes of text or on `data`, by
    next-token cross-entropy or `loss(model, *batch)`. `overrides` name the module types of tensors
    that cannot be told. A Hugging Face config with large heads is checked at the least width that
    it takes times 1, 2 and 4. With a `recipe` the values are those that a plan assigns from it, and
    sizes are its base times 1, 2 and 4 if not given; with `near_limit` it is its rules, multipliers
    and base widths that are checked. Other settings are those of `CheckSettings`: batch, context,
    steps, seeds, alpha, output_norm_eps, lr, near_limit, text, tolerance, device, shape. With
    `out`, the numbers (JSON) and the plot (SVG) go to that folder. What is compared are slopes:
    powers of the width or depth, which have no unit.

    >>> import completedp as cdp
    >>> check = cdp.coordcheck(widths=(64, 128), depths=(1, 2), steps=2, seeds=1, context=16,
    ...                        batch=32, quiet=True)
    >>> sorted({row.axis for row in check.rows})
    ['depth', 'width']
    """
    call = call_of(coordcheck, locals())
    given = {"data": data, "loss": loss, "overrides": overrides, "recipe": recipe}
    sizes = {"widths": widths, "depths": depths, "parameterisations": parameterisations}
    check = make_check(make, **given, settings=_settings(sizes | settings), usual=_QUICK)
    return run_check(COORDCHECK, check, out, quiet=quiet, call=call)


def gradcheck(
    make: MakeModel | str | None = None,
    widths: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    *,
    data: Any = None,
    loss: ModelLoss | str | None = None,
    overrides: Mapping[str, str] | None = None,
    parameterisations: Sequence[str] | None = None,
    recipe: Recipe | str | Path | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> CheckResult:
    """Does AdamW's eps keep its size relative to a model's gradients, and do the invariants hold?

    Arguments are those of `coordcheck`.

    >>> import completedp as cdp
    >>> check = cdp.gradcheck(widths=(64, 128), depths=(1, 2), steps=2, seeds=1, context=16,
    ...                       batch=32, quiet=True)
    >>> len(check.rows) > 20
    True
    """
    call = call_of(gradcheck, locals())
    given = {"data": data, "loss": loss, "overrides": overrides, "recipe": recipe}
    sizes = {"widths": widths, "depths": depths, "parameterisations": parameterisations}
    check = make_check(make, **given, settings=_settings(sizes | settings), usual=_QUICK)
    return run_check(GRADCHECK, check, out, quiet=quiet, call=call)


def run_check(
    name: str,
    check: Check,
    out: str | Path | None = None,
    *,
    quiet: bool = False,
    call: str | None = None,
) -> CheckResult:
    """`coordcheck` or `gradcheck`; with `out`, NAME.json and NAME.svg go there."""
    if name == GRADCHECK and check.steps < 2:
        raise CompletedpError(
            f"steps = {check.steps} leaves no gradient to measure, which is done over the later "
            "half of the steps: take 2 or more"
        )
    folder = None if out is None else user_path(out)
    if folder is not None:  # before minutes of measuring, not after
        require_matplotlib()
        make_folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # which asks for what is done here
        forewarn(check)
        result = judge(name, check, measure_all(check, quiet=quiet))
    if folder is not None:
        write_check(result, folder, call)
    return result


def measure_all(check: Check, *, quiet: bool = False) -> list[Measurement]:
    """Every axis of every parameterisation; both checks judge the same measurements."""
    jobs = [(rules, axis) for rules in check.rules for axis in check.axes]
    runs = [len(check.sizes(axis)) * check.seeds for _, axis in jobs]
    found: list[Measurement] = []
    with Reporter("measure", sum(runs), quiet=quiet) as reporter:
        done = 0
        for (rules, axis), count in zip(jobs, runs, strict=True):

            def progress(step: int, note: str, before: int = done) -> None:
                reporter.update(before + step, lambda: note)

            found.append(sweep(check, rules, axis, progress))
            done += count
        reporter.update(done, lambda: "done")
    return found


def judge(name: str, check: Check, measurements: Sequence[Measurement]) -> CheckResult:
    """Judge every measurement; the gradient check also each parameterisation's invariants."""
    rows: list[Row] = []
    for measurement in measurements:
        judged = coordinate_rows if name == COORDCHECK else gradient_rows
        rows += [*judged(measurement, check.tolerance), *measurement.factor_rows()]
    if name == GRADCHECK:
        for rules in {m.rules.parameterisation: m.rules for m in measurements}.values():
            rows += invariant_rows(rules)
    return CheckResult(check=name, checked=check, rows=rows)


def write_check(result: CheckResult, folder: Path, call: str | None = None) -> None:
    """The numbers as JSON, with the command or the call in Python, and the plot as SVG."""
    noted = {"command": typed_command() or call}
    write_json(folder / f"{result.check}.json", result.to_dict() | noted)
    write_text_atomically(folder / f"{result.check}.svg", check_svg(result))


def _settings(given: Mapping[str, Any]) -> CheckSettings:
    known = [field.name for field in fields(CheckSettings)]
    for name, value in given.items():
        check_one_of("setting", name, known)
        if name in _SEQUENCES and isinstance(value, str | int):
            raise CompletedpError(f"{name} = {value!r} must be a sequence, such as ({value!r},)")
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in _SEQUENCES:
        if name in chosen:
            chosen[name] = tuple(chosen[name])
    return CheckSettings(**chosen)
