"""Small checks of users' values, with errors that quote them."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import Any, TypeGuard

from completedp.common.errors import CompletedpError, one_line


def is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a number that says anything: no bool, and none that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # of NaN this does not hold


def check_number(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf
) -> float:
    """`value` as a plain number, numpy's too; raise unless it is finite, from `low` to `high`."""
    number = _plain(value)
    if not is_finite(number) or not low <= number <= high:
        if math.isfinite(low) and math.isfinite(high):
            wanted = f"a number from {low:g} to {high:g}"
        elif math.isfinite(low):
            wanted = f"a finite number of at least {low:g}"
        else:
            wanted = "a finite number"
        raise CompletedpError(f"{name} = {value!r:.40} must be {wanted}")
    return number


def check_whole(name: str, value: object, *, low: int = 1, high: int = 10**18) -> int:
    """`value` as an int: 1e9 is welcome, and means 10**9; raise unless it is from `low` to `high`.

    >>> check_whole("width", 64.0)
    64
    """
    number = _plain(value)
    if number is None or not low <= number <= high or number != int(number):
        is_large = number is not None and high < number < math.inf
        wanted = f"from {low} to {high}" if high < 10**18 or is_large else f"of at least {low}"
        raise CompletedpError(f"{name} = {value!r:.40} must be a whole number {wanted}")
    return int(number)


def _plain(value: object) -> float | None:
    """An int or a float, whoever's number it was; None of what is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def check_is(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise unless `value` is of a kind; `wanted` says in words what to give."""
    if not isinstance(value, kind):
        shown = one_line(repr(value))
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise CompletedpError(f"{name} = {shown} must be {wanted}")


def several(value: Any) -> tuple[Any, ...]:
    """One or several, as a tuple: a name alone would be taken for its letters.

    >>> several("width"), several(["width", "depth"])
    (('width',), ('width', 'depth'))
    """
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


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
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise CompletedpError(
            f"unknown {what} {value!r:.80}{near and f' ({near})'}: choose from {', '.join(allowed)}"
        )


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A question, where anything is like it; a word that begins another is like it.

    >>> did_you_mean("--widht", ["--width", "--depth"])
    'did you mean --width?'
    """
    bare = {each.lstrip("-"): each for each in sorted(known)}  # dashes make all flags alike
    near = [bare[each] for each in difflib.get_close_matches(word.lstrip("-"), bare, n=1)]
    if word:
        near += [each for each in sorted(known) if each.startswith(word) and each not in near]
    return f"did you mean {' or '.join(near[:2])}?" if near else ""
