"""CheckResult: what a check found. It prints its verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from completedp.evidence.check import Check
from completedp.evidence.rows import Row
from completedp.evidence.text import check_text


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

    def text(self, *, all_rows: bool = False) -> str:
        """A verdict per parameterisation and axis, then the rows that do not pass, or all."""
        return check_text(self.rows, all_rows=all_rows)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "check": self.check,
            "config": self.checked.to_dict(),
            "passed": {name: self.holds(name) for name in self.checked.parameterisations},
            "rows": [row.to_dict() for row in self.rows],
        }
