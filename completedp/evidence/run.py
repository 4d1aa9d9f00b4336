"""Run a check: measure along each axis with progress, judge, and write numbers and plot."""

from __future__ import annotations

import json
from pathlib import Path

from completedp.common.files import write_text_atomically
from completedp.common.progress import Reporter
from completedp.evidence.config import CheckConfig
from completedp.evidence.coordcheck import coordcheck
from completedp.evidence.gradcheck import gradcheck
from completedp.evidence.plots import check_svg, require_matplotlib
from completedp.evidence.scaling import CheckResult, Measurement, axes_of, sweep
from completedp.theory.rules import Rules

CHECKS = {"coordcheck": coordcheck, "gradcheck": gradcheck}


def measure_all(config: CheckConfig, *, quiet: bool = False) -> list[Measurement]:
    """Every axis of every parameterisation; both checks judge the same measurements."""
    rules = [
        Rules(parameterisation=name, alpha=config.alpha, output_norm_eps=config.output_norm_eps)
        for name in config.parameterisations
    ]
    jobs = [(rule, axis) for rule in rules for axis in axes_of(config)]
    runs = [len(config.widths if axis == "width" else config.depths) for _, axis in jobs]
    found: list[Measurement] = []
    with Reporter("measure", sum(runs) * config.seeds, quiet=quiet) as reporter:
        done = 0
        for (rule, axis), count in zip(jobs, runs, strict=True):

            def progress(step: int, note: str, before: int = done) -> None:
                reporter.update(before + step, lambda: note)

            found.append(sweep(config, rule, axis, progress))
            done += count * config.seeds
        reporter.update(done, lambda: "done")
    return found


def run_check(
    name: str, config: CheckConfig, out: str | Path | None = None, *, quiet: bool = False
) -> CheckResult:
    """`coordcheck` or `gradcheck`; with `out`, NAME.json and NAME.svg go there."""
    if out is not None:  # before minutes of measuring, not after
        require_matplotlib()
        Path(out).mkdir(parents=True, exist_ok=True)
    result = CHECKS[name](config, measure_all(config, quiet=quiet))
    if out is not None:
        write_check(result, Path(out))
    return result


def write_check(result: CheckResult, folder: Path) -> None:
    """The numbers as JSON and the plot as SVG."""
    write_text_atomically(folder / f"{result.check}.json", json.dumps(result.to_dict(), indent=2))
    write_text_atomically(folder / f"{result.check}.svg", check_svg(result))
