"""Values: a hyperparameter at base and at the target, with the factors that it came from.

The one place where ratios are raised to powers and factors are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from completedp.theory.scale import Ratios, check_ratios

Trace = tuple[tuple[str, float], ...]
"""Named factors; their product is the value."""


@dataclass(frozen=True)
class Value:
    """One number of a plan.

    >>> Value(base=0.1, target=0.05, trace=(("value", 0.1), ("width 2^-1", 0.5))).explain()
    '0.1 (value) x 0.5 (width 2^-1)'
    """

    base: float
    """On the base model, for the same module type at the same relative depth."""
    target: float
    trace: Trace
    """The factors whose product is the target; of a beta, what 1 - beta is the product of."""

    def times(self, label: str, factor: float) -> Value:
        """The value with one more factor at the target."""
        return replace(self, target=self.target * factor, trace=(*self.trace, (label, factor)))

    def over(self, label: str, divisor: float) -> Value:
        """The value divided by something at the target."""
        term = (label, 1.0 / divisor)
        return replace(self, target=self.target / divisor, trace=(*self.trace, term))

    def explain(self) -> str:
        """The factors in a line."""
        return " x ".join(f"{factor:.6g} ({label})" for label, factor in self.trace)


def powers(exponents: Mapping[str, float], ratios: Ratios) -> Trace:
    """Each ratio to its exponent, those of exponent 0 left out.

    >>> powers({"width": -1.0, "depth": 0.0}, Ratios(width=4, depth=2))
    (('width 4^-1', 0.25),)
    """
    check_ratios(ratios)
    return tuple(
        (f"{axis} {getattr(ratios, axis):g}^{exponent:g}", getattr(ratios, axis) ** exponent)
        for axis, exponent in exponents.items()
        if exponent
    )


def product(trace: Trace) -> float:
    """What the factors make together."""
    return math.prod((factor for _, factor in trace), start=1.0)


def without_ones(trace: Trace) -> Trace:
    """The factors that change something; the value itself always stays."""
    return tuple((label, x) for label, x in trace if label == "value" or x != 1.0)
