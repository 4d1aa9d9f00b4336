"""Rows: the lines of a check, each a measured slope beside the one that theory expects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from completedp.common.files import plain

FACTOR = "factor"
"""The quantity of rows of what a model itself multiplies by, on top of every rule."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a check."""

    parameterisation: str
    axis: str
    quantity: str
    what: str
    """Module type, or role for invariants."""
    expected: float
    slope: float
    error: float | None
    verdict: str
    """pass, fail, or known: where the printed table itself departs from its criterion."""
    values: tuple[float, ...] = ()
    """Root mean squares by size."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; where runs diverged, None for a number."""
        return plain(asdict(self))


TIED_TOLERANCE = 0.25
"""Of a slope, in models whose embedding makes the logits, too. At sizes that a check can afford
they are farther from their limits than others, by up to 0.24 (benchmarks/model_checks.py)."""


def verdict(slope: float, expected: float, tolerance: float) -> str:
    """Pass when the slope is where it should be; NaN never passes."""
    return "pass" if abs(slope - expected) <= tolerance else "fail"
