"""Both scaling checks over large ranges, from one set of measurements: docs/checks.md's numbers.

    python benchmarks/scaling_checks.py OUT [--quick]

Writes coordcheck and gradcheck as JSON, SVG and text. Takes about four minutes on an H200.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from completedp.evidence.config import CheckConfig
from completedp.evidence.coordcheck import coordcheck
from completedp.evidence.gradcheck import gradcheck
from completedp.evidence.plots import check_svg
from completedp.evidence.run import measure_all, write_check
from completedp.evidence.scaling import CheckResult
from completedp.evidence.text import check_text

FULL = CheckConfig(
    widths=(64, 128, 256, 512, 1024, 2048),
    depths=(2, 4, 8, 16, 32, 64),
    parameterisations=("completedp", "completep", "mup", "sp"),
)
HALF = CheckConfig(widths=FULL.widths, depths=(4, 8, 16, 32, 64), alpha=0.5)
QUICK = CheckConfig(widths=(64, 128), depths=(2, 4), seeds=1)


def figure(result: CheckResult) -> str:
    """docs/coordcheck.svg: own contributions, with the rules and without."""
    shown = [row for row in result.rows if row.parameterisation in ("completedp", "sp")]
    return check_svg(replace(result, rows=shown), ["own"])


def main() -> None:
    """Measure, judge, write."""
    out = Path(sys.argv[1])
    configs = {"quick": QUICK} if "--quick" in sys.argv else {"alpha-1": FULL, "alpha-half": HALF}
    for name, config in configs.items():
        measurements = measure_all(config)
        for check in (coordcheck, gradcheck):
            result = check(config, measurements)
            write_check(result, out / name)
            text = check_text(result, all_rows=True)
            (out / name / f"{result.check}.txt").write_text(text + "\n")
            print(f"== {name} {result.check}\n{check_text(result)}")
            if check is coordcheck:
                (out / name / "figure.svg").write_text(figure(result))


if __name__ == "__main__":
    main()
