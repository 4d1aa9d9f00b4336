"""Both scaling checks over large ranges, from one set of measurements: docs/checks.md's numbers.

    python benchmarks/scaling_checks.py OUT [--quick]

Writes coordcheck and gradcheck as JSON, SVG and text. Takes about four minutes on an H200.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from completedp.evidence.check import make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.plots import check_svg
from completedp.evidence.result import CheckResult
from completedp.evidence.run import COORDCHECK, GRADCHECK, judge, measure_all, write_check

FULL = CheckSettings(
    widths=(64, 128, 256, 512, 1024, 2048),
    depths=(2, 4, 8, 16, 32, 64),
    parameterisations=("completedp", "completep", "mup", "sp"),
)
HALF = CheckSettings(widths=FULL.widths, depths=(4, 8, 16, 32, 64), alpha=0.5)
QUICK = CheckSettings(widths=(64, 128), depths=(2, 4), seeds=1)


def figure(result: CheckResult) -> str:
    """docs/coordcheck.svg: own contributions, with the rules and without."""
    shown = [row for row in result.rows if row.parameterisation in ("completedp", "sp")]
    return check_svg(replace(result, rows=shown), ["own"])


def main() -> None:
    """Measure, judge, write."""
    out = Path(sys.argv[1])
    configs = {"quick": QUICK} if "--quick" in sys.argv else {"alpha-1": FULL, "alpha-half": HALF}
    for name, settings in configs.items():
        check = make_check(settings=settings)
        measurements = measure_all(check)
        for result in (judge(each, check, measurements) for each in (COORDCHECK, GRADCHECK)):
            write_check(result, out / name)
            (out / name / f"{result.check}.txt").write_text(result.text(all_rows=True) + "\n")
            print(f"== {name} {result.check}\n{result}")
            if result.check == COORDCHECK:
                (out / name / "figure.svg").write_text(figure(result))


if __name__ == "__main__":
    main()
