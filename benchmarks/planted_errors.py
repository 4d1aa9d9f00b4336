"""Which check notices which wrong exponent: the table in docs/checks.md.

    python benchmarks/planted_errors.py

Every exponent of Complete(d)P is moved by +1/2 and by -1/2, one at a time. About two minutes on
two cores.
"""

from __future__ import annotations

from collections import defaultdict

from completedp.evidence.config import CheckConfig
from completedp.evidence.planted import caught_by, every_shift, has_no_effect
from completedp.evidence.scaling import axes_of, sweep
from completedp.theory.rules import Rules

CONFIG = CheckConfig(widths=(64, 128, 256), depths=(2, 4, 8), seeds=1)


def main() -> None:
    """Print a Markdown table."""
    rules = Rules()
    sound = {axis: sweep(CONFIG, rules, axis) for axis in axes_of(CONFIG)}
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for by in (0.5, -0.5):
        for shift in every_shift(by):
            if has_no_effect(shift):
                verdict = "no effect"
            else:
                verdict = " + ".join(caught_by(shift, CONFIG, rules, sound)) or "NOT CAUGHT"
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
