"""Scales as users give them: themselves, or by how much larger than the base they are."""

from __future__ import annotations

from collections.abc import Sequence

from completedp.common.checks import check_is, several
from completedp.theory.scale import Ratios, Scale

BASE = "base"
Where = Scale | Ratios | str
"""A scale, or ratios to the base, or those as a text: "depth=2,tokens=2", or "base"."""


def scales_of(name: str, given: Where | Sequence[Where], base: Scale) -> list[Scale]:
    """The scales that an argument of that name means; one alone is a list of one.

    >>> base = Scale(width=64, depth=1, batch=256, tokens=1_024)
    >>> scales_of("rungs", ["depth=2", Ratios(depth=2)], base) == [base.times(Ratios(depth=2))] * 2
    True
    """
    return [_scale_of(name, each, base) for each in several(given)]


def _scale_of(name: str, given: Where, base: Scale) -> Scale:
    if given == BASE:
        return base
    ratios = Ratios.parse(given) if isinstance(given, str) else given
    if isinstance(ratios, Ratios):
        return base.times(ratios)
    wanted = 'Scales, Ratios to the base, or such a text as "depth=2,tokens=2"'
    check_is(name, ratios, Scale, wanted)
    return ratios
