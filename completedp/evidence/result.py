"""CheckResult: what a check found. It prints its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from completedp.common.surface import option
from completedp.common.terminal import columns, fitted
from completedp.evidence.check import Check
from completedp.evidence.measure import BLOCKS
from completedp.evidence.rows import Row
from completedp.evidence.text import check_text

NARROW = 64
"""Widths below it are far from the limit that slopes are of."""
SPAN = 4
"""Sizes that differ by less say little of a slope: what has not settled yet tilts it."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckResult:
    """The rows of a check, and what they say together."""

    check: str
    """`coordcheck` or `gradcheck`."""
    checked: Check
    rows: list[Row]

    @property
    def passed(self) -> bool:
        """Whether no row failed, of any parameterisation asked for."""
        return not self.failures()

    def holds(self, parameterisation: str, axis: str | None = None) -> bool:
        """Whether no row failed of one parameterisation, along one axis if given."""
        return not self.failures(parameterisation, axis)

    def failures(self, parameterisation: str | None = None, axis: str | None = None) -> list[Row]:
        """The rows that failed: all of them, or those of a parameterisation and an axis."""
        return [
            row
            for row in self.rows
            if parameterisation in (None, row.parameterisation)
            and axis in (None, row.axis)
            and row.verdict == "fail"
        ]

    @property
    def doubts(self) -> list[str]:
        """Of a check that failed: what may fail sound rules, too."""
        return [] if self.passed else list(_doubts(self.checked))

    @property
    def unchecked(self) -> list[str]:
        """What a verdict says nothing of."""
        lines = list(_axes_left_out(self.checked))
        if self.check == "coordcheck" and all(row.what != BLOCKS for row in self.rows):
            lines.append(
                "what blocks add to their stream, and with it the factors of branches: the model "
                "calls no block as a module, so none was seen; call them, or see gradcheck"
            )
        return lines

    def text(self, *, all_rows: bool = False) -> str:
        """A verdict per parameterisation and axis, then the rows that do not pass, or all."""
        told = [f"not checked: {line}" for line in self.unchecked]
        told += [f"in doubt: {line}" for line in self.doubts]
        told = [fitted(line, columns()) for line in told]
        return "\n".join([check_text(self.rows, all_rows=all_rows), *told])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "check": self.check,
            "config": self.checked.to_dict(),
            "passed": {name: self.holds(name) for name in self.checked.parameterisations},
            "doubts": self.doubts,
            "unchecked": self.unchecked,
            "rows": [row.to_dict() for row in self.rows],
        }


def _axes_left_out(checked: Check) -> Iterator[str]:
    for axis in ("width", "depth"):
        if axis not in checked.axes:
            (size,) = checked.sizes(axis)
            yield f"{axis}, of one size ({size}); {option(f'{axis}s')} takes two or more"


def _doubts(checked: Check) -> Iterator[str]:
    if checked.recipe is not None and not checked.near_limit:
        yield (
            "a recipe's own start and rates are far from the limit at small sizes, where rows fail "
            f"with every rule right; whether its rules are: {option('near_limit')}"
        )
    if checked.seeds == 1:
        yield (
            "on one seed sound rules have failed 7 times in 24 (docs/results/checks.md): take 3 "
            f"({option('seeds')})"
        )
    for axis in checked.axes:
        sizes = checked.sizes(axis)
        if max(sizes) < SPAN * min(sizes):
            yield (
                f"{axis}s of {min(sizes)} to {max(sizes)} are too near each other for a slope: "
                f"{option(f'{axis}s')} with {SPAN} times between the smallest and the largest"
            )
    if min(checked.widths) < NARROW:
        yield f"slopes are those of wide models: {option('widths')} of {NARROW} and more are nearer"
