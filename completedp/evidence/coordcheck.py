"""The coordinate check: do features move by the same amount at every width and depth?

What is expected is the theory's criterion, written here on its own and not read off the table of
rules, so that a wrong exponent in the table shows:

    own, change   no growth with width; with depth, a hidden tensor's own contribution goes as
                  m_L^(alpha-1), and everything else stays, also what the model returns
    initial       hidden outputs neither grow nor shrink; logits shrink as m_N^-1/2. Not so those of
                  a tied embedding: that of the token which was read is the square of its own row,
                  and stays, so that no slope is asked for
"""

from __future__ import annotations

from completedp.evidence.measure import BLOCKS, LOGITS, OUTPUT, STREAM
from completedp.evidence.rows import Row
from completedp.evidence.scaling import Measurement
from completedp.theory.roles import MODULE_TYPES, Role

_HAS_DEPTH_RULE = ("completep", "completedp")
TOLERANCE = 0.15
"""Of a slope. With three seeds sound rules stay within it, and an exponent that is off by 1/4 does
not: benchmarks/planted_errors.py."""


def expected_slope(quantity: str, module_type: str, axis: str, alpha: float) -> float | None:
    """The slope of a well-scaled model, or None where none is asked for."""
    role = MODULE_TYPES.get(module_type)
    if quantity == "own":
        hidden = role is not None and role.in_blocks
        return alpha - 1.0 if axis == "depth" and hidden else 0.0
    if quantity == "change":
        return 0.0 if module_type in (STREAM, BLOCKS, LOGITS, OUTPUT, "unembedding") else None
    if quantity == "initial" and role is not None and role.is_matrix:
        return -0.5 if axis == "width" and role is Role.OUTPUT_WEIGHT else 0.0
    return None


def coordinate_rows(measurement: Measurement, tolerance: float | None = None) -> list[Row]:
    """Judge one axis of one parameterisation."""
    rows, rules = [], measurement.rules
    tolerance = measurement.tolerance(TOLERANCE) if tolerance is None else tolerance
    alpha = rules.alpha if rules.parameterisation in _HAS_DEPTH_RULE else 1.0
    for quantity, kind in measurement.values:
        expected = expected_slope(quantity, kind, measurement.axis, alpha)
        if expected is not None:
            rows.append(measurement.row((quantity, kind), expected, tolerance))
    return rows
