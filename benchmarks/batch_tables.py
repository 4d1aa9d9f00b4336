"""What a larger batch costs, and what its betas have to do with it: tables of lr-batch's losses.

python benchmarks/batch_tables.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import transfer
from readings import best_rate, curves
from recipes_compared import paired

LR_BATCH = Path(__file__).parent.parent / "docs" / "results" / "lr-batch.json"
_RULE, _LONGER, _KEPT = "square-root rule", "square-root rule, longer memory", ", betas kept"
_NONE = "no rule for the batch"
_BASES = {
    _RULE: "8,192 steps ([lr-batch](results.md#lr-batch))",
    f"{_RULE}{_KEPT}": "8,192 steps, the betas kept",
    _LONGER: "8,192 steps, betas of 0.95 and 0.99",
    f"{_LONGER}{_KEPT}": "8,192 steps, betas of 0.95 and 0.99, kept",
}
_PAIRS = {_RULE: (0.9, 0.95), _LONGER: (0.95, 0.99)}
_LARGEST = 8


def cost_table() -> str:
    """What a larger batch costs over the base's own loss, at the base's best rate, carried."""
    lines = ["| base | x2 | x4 | x8 |", "| --- " * 4 + "|"]
    found = transfer.lines()
    means = {
        line.factor: np.array(line.losses, dtype=float).mean(axis=-1)
        for line in found
        if line.axis in ("base", "batch") and line.parameterisation == "completedp"
    }
    best = int(np.argmin(means[1]))
    short = (f"{means[factor][best] - means[1][best]:.2f}" for factor in (2, 4, 8))
    lines.append(f"| 1,024 steps ([transfer](transfer.md)) | {' | '.join(short)} |")
    rows = json.loads(LR_BATCH.read_text())["numbers"]["curves"]
    at = {(row["line"], row["factor"]): row for row in rows}
    for line, told in _BASES.items():
        base = at[line, 1]["loss"]
        above = (at[line, f]["loss"] + at[line, f]["cost"] - base for f in (2, 4, 8))
        cells = " | ".join(f"{each:.2f}".replace("-0.00", "0.00") for each in above)
        lines.append(f"| {told} | {cells} |")
    return "\n".join(lines)


def memories_table() -> str:
    """At the largest batch: betas by the rule and kept, from two pairs, at the best of their
    rates."""
    of = curves("lr-batch")
    titles = ("betas at the base", "there, by the rule", "loss", "kept", "kept is lower by")
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for line, betas in _PAIRS.items():
        rule, kept = (best_rate(of[name, _LARGEST]) for name in (line, f"{line}{_KEPT}"))
        mean, low, high = paired(rule, kept)
        there = [1 - (1 - beta) * _LARGEST for beta in betas]
        cells = (
            f"{_betas(betas)} | {_betas(there)} | {np.mean(rule):.3f} | {np.mean(kept):.3f} | "
            f"{mean:.3f} +- {(high - low) / 2:.3f}"
        )
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def rules_table() -> str:
    """What following the rule ends above leaving all as it is: at the best rates of each, and at
    the base's best rate, which the rule raises."""
    of = curves("lr-batch")
    tried = (("by the rule", _RULE), ("the betas kept", f"{_RULE}{_KEPT}"))
    titles = [
        f"{what}, {when}" for what, _ in tried for when in ("rates tuned again", "the base's rate")
    ]
    lines = [f"| batch | {' | '.join(titles)} |", "| --- " * 5 + "|"]
    for factor in (2, 4, 8):
        none, cells = of[_NONE, factor], []
        for _, line in tried:
            rule = of[line, factor]
            at_base = [[seeds[0.0][seed] for seed in sorted(seeds[0.0])] for seeds in (rule, none)]
            for pair in ([best_rate(rule), best_rate(none)], at_base):
                mean, low, high = paired(*pair)
                cells.append(f"{mean:+.3f} +- {(high - low) / 2:.3f}")
        lines.append(f"| x{factor} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _betas(betas: list[float] | tuple[float, ...]) -> str:
    """Both, and the steps that they average over."""
    steps = [1 / (1 - beta) for beta in betas]
    return f"{betas[0]:.2g}, {betas[1]:.2g}: {steps[0]:.3g} and {steps[1]:.3g} steps"


if __name__ == "__main__":
    print(cost_table(), memories_table(), rules_table(), sep="\n\n")
