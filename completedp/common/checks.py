"""Small checks of users' values, with errors that quote them."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from typing import Any, TypeGuard

from completedp.common.errors import CompletedpError


def is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a number that says anything: no bool, and none that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # of NaN this does not hold


def check_number(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf
) -> None:
    """Raise unless `value` is a finite number from `low` to `high`."""
    if not is_finite(value) or not low <= value <= high:
        if math.isfinite(low) and math.isfinite(high):
            wanted = f"a number from {low:g} to {high:g}"
        elif math.isfinite(low):
            wanted = f"a finite number of at least {low:g}"
        else:
            wanted = "a finite number"
        raise CompletedpError(f"{name} = {value!r:.40} must be {wanted}")


def printable(text: str) -> str:
    """A text from a file or a database for a terminal: codes that would steer it are spelt out.

    >>> printable("a" + chr(27) + "[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def check_each_once(what: str, values: Iterable[Any]) -> None:
    """Raise where something is given twice, and would count twice."""
    seen: list[Any] = []
    for value in values:
        if value in seen:
            raise CompletedpError(f"the {what} {value} is given twice: give it once")
        seen.append(value)


def check_text(name: str, value: str) -> None:
    """Raise on text that is empty, or that no database takes: bytes that were no UTF-8."""
    if not value.strip() or printable(value) != value:
        raise CompletedpError(f"{name} {value!r:.60} names nothing: give its name as it was shown")


def check_path(name: str, value: str) -> None:
    """Raise on an empty path, which would mean the working folder."""
    if not value.strip():
        raise CompletedpError(f"{name} is empty: give a path")


def check_one_of(what: str, value: object, allowed: Collection[str]) -> None:
    """Raise unless `value` is one of the allowed names, which the error lists."""
    if value not in tuple(allowed):
        raise CompletedpError(f"unknown {what} {value!r}: choose from {', '.join(allowed)}")
