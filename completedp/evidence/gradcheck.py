"""The gradient check: does AdamW's eps keep its size relative to the gradients it is added to?

The paper's criterion for eps is that it scale as the gradient does (appendix B). So the measured
slope of each tensor's gradient is compared with the exponent that the rules give its eps, or what
else its optimizer adds to gradients; tensors whose optimizer adds nothing are left out. With it go
the invariants of optimisation over batch and duration, which are arithmetic on the rules:

    decay    lr x weight_decay x steps: the fraction of a weight that decays away in a run
    noise    lr^2 x steps: the noise that gradients put into the weights
    floor    lr x eps: eps against gradient noise, as the batch averages it away
    memory   (1 - beta) x steps: the optimizer's memory as a fraction of the run, for each beta
    start    init_std and the forward multipliers, which know nothing of batch and duration

Two rows of Table 1 are known to depart from its own criterion: the output norm's eps
(`MEASURED_OUTPUT_NORM`), and that of QK norms (`qk_norm_slopes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from completedp.evidence.rows import Row, verdict
from completedp.evidence.scaling import Measurement
from completedp.theory.optimizers import LR, WEIGHT_DECAY, Knob
from completedp.theory.roles import MODULE_TYPES, Role
from completedp.theory.rules import AXES, Rules

_STEPS = {"width": 0.0, "depth": 0.0, "batch": -1.0, "tokens": 1.0}
TOLERANCE = 0.2
"""Of a slope; gradients vary more from seed to seed than features do."""
MEASURED_OUTPUT_NORM = -1.0
"""How the output norm's gradient falls with width, against x1 in print."""


def qk_norm_slopes(axis: str, alpha: float) -> tuple[float, float]:
    """Between which slopes the gradient of a gain that all heads share is.

    It is a sum over heads. What is random in each, through the start of the weights behind it,
    averages out as m_N^-1/2, and scales with depth as the branch does, m_L^-alpha. What they have
    in common comes of training, which changes a layer by m_L^(alpha-1) of its start: m_L^-1. Which
    is larger depends on heads, depth and start; at alpha = 1 they differ with the width alone.
    """
    return (-0.5, 0.0) if axis == "width" else (-1.0, -alpha)


def gradient_rows(measurement: Measurement, tolerance: float | None = None) -> list[Row]:
    """Measured gradient slopes against the rules' eps exponents."""
    rows, rules = [], measurement.rules
    tolerance = measurement.tolerance(TOLERANCE) if tolerance is None else tolerance
    for quantity, kind in measurement.values:
        if quantity != "gradient":
            continue
        role = MODULE_TYPES[kind]
        for added in _rows_of(rules, role, lambda knob: knob.power == -1):
            expected = rules.exponents(role, added)[measurement.axis]
            row = measurement.row((quantity, kind), expected, tolerance)
            if row.verdict == "fail" and _is_known(row, role, rules, tolerance):
                row = replace(row, verdict="known")
            rows.append(row)
    return rows


def _is_known(row: Row, role: Role, rules: Rules, tolerance: float) -> bool:
    """Whether the printed table is at fault, in the way that is known of it."""
    if role is Role.OUTPUT_NORM:
        return (
            row.axis == "width"
            and row.expected == 0.0
            and rules.parameterisation != "sp"
            and verdict(row.slope, MEASURED_OUTPUT_NORM, tolerance) == "pass"
        )
    if role is Role.QK_NORM and rules.parameterisation == "completedp":
        low, high = qk_norm_slopes(row.axis, rules.alpha)
        return row.expected == high and low - tolerance <= row.slope <= high + tolerance
    return False


def _rows_of(rules: Rules, role: Role, wanted: Callable[[Knob], bool]) -> list[str]:
    """The rows of the rule table that carry some of a role's knobs, each once."""
    knobs = rules.optimizer_of(role).knobs
    return list(dict.fromkeys(knob.rule for knob in knobs if wanted(knob)))


def invariant_rows(rules: Rules) -> list[Row]:
    """The exponents of the invariants; each has to be what theory says, exactly."""
    rows = []
    horizon = 1.0 - 2.0 * rules.token_exponent  # 0 for the paper's h = 1/2
    for role in Role:
        lr = rules.exponents(role, LR)
        decays = _rows_of(rules, role, lambda knob: knob.name == WEIGHT_DECAY)
        memories = _rows_of(rules, role, lambda knob: knob.is_complement)
        floors = _rows_of(rules, role, lambda knob: knob.power == -1)
        has_lr = rules.weight_decay == "torch"
        for axis in (axis for axis in AXES if axis in rules.axes):
            # Table 1's decay has no m_L^(1-alpha), so with alpha below 1 decay weakens with depth.
            by_depth = rules.alpha - 1.0 if axis == "depth" and role.in_blocks else 0.0
            of_tokens = horizon * (axis == "tokens")
            own = {row: rules.exponents(role, row)[axis] for row in (*decays, *memories, *floors)}
            rate, steps = lr[axis], _STEPS[axis]
            found = [("decay", own[row] + has_lr * rate + steps, by_depth) for row in decays]
            found += [("memory", own[row] + steps, of_tokens) for row in memories]
            if axis in ("batch", "tokens"):
                found.append(("noise", 2 * rate + steps, of_tokens))
                found += [("floor", rate + own[row], 0.0) for row in floors]
                init = rules.exponents(role, "init_std")[axis]
                found.append(("start", init or rules.exponents(role, "multiplier")[axis], 0.0))
            rows += [_invariant(rules, axis, name, role, *pair) for name, *pair in found]
    for axis in ("batch", "tokens"):
        exponent = rules.residual_exponents()[axis]
        rows.append(_invariant(rules, axis, "start", "residual", exponent, 0.0))
    return rows


def _invariant(
    rules: Rules, axis: str, name: str, what: str, exponent: float, expected: float
) -> Row:
    return Row(
        parameterisation=rules.parameterisation,
        axis=axis,
        quantity=name,
        what=str(what),
        expected=expected,
        slope=exponent,
        error=None,
        verdict=verdict(exponent, expected, 1e-9),
    )
