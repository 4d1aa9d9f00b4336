"""What may be typed for a flag: numbers as people write them, and what help calls and says of them.

tyro reads these types as Python does, shows a flag that may be left out as `{None}|INT`, and keeps
the line breaks of docstrings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from fractions import Fraction
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from completedp.theory.scale import Factor, Size

_NUMBER = re.compile(r"[+-]?(\d+(_\d+)*(\.\d*)?|\.\d+)(e[+-]?\d{1,4})?", re.IGNORECASE)
_LONGEST = 60
"""Characters of a number that anybody types."""
NOT_GIVEN = "None"
"""May be typed for a flag that may be left out, as Python has it."""


def parse_count(text: str) -> int:
    """A whole number as people write them: 65536, 16_384, 1e9, 16M, 1.5B."""
    factor = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    digits = digits.strip()
    is_number = len(digits) <= _LONGEST and _NUMBER.fullmatch(digits)
    is_number = is_number and math.isfinite(float(digits))
    value = Fraction(digits) * factor if is_number else Fraction(1, 2)  # 8.2B is whole, exactly
    if value.denominator != 1:
        raise ValueError(f"{text!r:.40} is not a whole number (65536, 1e9, 16M)")
    return int(value)


def parse_real(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r:.40} is not a number (0.5, 1e-3)") from None


def parse_size(text: str) -> Size:
    """A whole number, or a factor of the base (4x)."""
    return Factor.parse(text) if text[-1:] in ("x", "X") else parse_count(text)


@dataclass(frozen=True)
class _Kind:
    """A type of flag."""

    made: Any
    """What its values are."""
    metavar: str
    """What help calls them."""
    parse: Callable[[str], Any]

    def one(self, *, optional: bool) -> PrimitiveConstructorSpec[Any]:
        """For a flag of one value."""
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=self.metavar,
            instance_from_str=lambda words: (
                None if optional and words == [NOT_GIVEN] else self.parse(words[0])
            ),
            is_instance=lambda x: (optional and x is None) or isinstance(x, self.made),
            str_from_instance=lambda x: [str(x)],
        )

    def many(self) -> PrimitiveConstructorSpec[Any]:
        """For a flag of several values that may be left out."""
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar=f"{self.metavar} [{self.metavar} ...]",
            instance_from_str=lambda words: (
                None if words == [NOT_GIVEN] else tuple(self.parse(word) for word in words)
            ),
            is_instance=lambda x: (
                x is None or (isinstance(x, tuple) and all(isinstance(y, self.made) for y in x))
            ),
            str_from_instance=lambda x: [NOT_GIVEN] if x is None else [str(y) for y in x],
        )


_KINDS: dict[Any, _Kind] = {
    str: _Kind(str, "STR", str),
    int: _Kind(int, "INT", parse_count),
    float: _Kind(int | float, "FLOAT", parse_real),
    Size: _Kind(int | Factor, "INT|4x", parse_size),
}


def _choice(names: tuple[str, ...]) -> PrimitiveConstructorSpec[Any]:
    """For a flag of one of some names that may be left out."""

    def parse(words: list[str]) -> str | None:
        if words[0] != NOT_GIVEN and words[0] not in names:
            raise ValueError(f"{words[0]!r:.40} is none of {', '.join(names)}")
        return None if words[0] == NOT_GIVEN else words[0]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(names)}}}",
        instance_from_str=parse,
        is_instance=lambda x: x is None or x in names,
        str_from_instance=lambda x: [str(x)],
    )


def value_of_a_flag(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How a flag of a type is read; None where tyro's own way will do."""
    for kind, made in _KINDS.items():
        if info.type in (kind, kind | None):
            return made.one(optional=info.type != kind)
        if info.type == tuple[kind, ...] | None:
            return made.many()
    some = [each for each in get_args(info.type) if each is not NoneType]
    if len(some) == 1 < len(get_args(info.type)) and get_origin(some[0]) is Literal:
        return _choice(get_args(some[0]))
    return None


def reflow_help(registry: ConstructorRegistry) -> None:
    """Have the help of every flag say what it does, and run on to the edge of its box, wherever the
    source breaks it."""
    asking: list[StructTypeInfo] = []

    @registry.struct_rule
    def reflowed(info: StructTypeInfo) -> StructConstructorSpec | None:
        if asking or not is_dataclass(info.type):
            return None
        asking.append(info)  # so that this is tyro's own way, which comes after this rule
        try:
            found = registry.get_struct_spec(info)
        finally:
            asking.pop()
        if not isinstance(found, StructConstructorSpec):
            return None
        return replace(found, fields=tuple(map(_reflowed, found.fields)))


def _reflowed(field: StructFieldSpec) -> StructFieldSpec:
    def words() -> str | None:  # when help is asked for: reading docstrings takes a while
        text = field.helptext() if callable(field.helptext) else field.helptext
        if text and field.default is True:  # the flag is --no-NAME
            text = f"Without {text[0].lower()}{text[1:]}"
        return text and " ".join(text.split())

    return replace(field, helptext=words)
