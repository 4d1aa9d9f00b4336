"""Overrides: regular expressions on tensors' names that say their module types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from completedp.common.checks import check_is, check_one_of
from completedp.common.errors import CompletedpError
from completedp.theory.roles import MODULE_TYPES


def check_overrides(overrides: Mapping[Any, Any]) -> None:
    """Raise where a pattern is no regular expression, or its type is not known."""
    wanted = "a dict of regular expressions and module types, such as {'n1': 'attn_norm'}"
    check_is("overrides", overrides, Mapping, wanted)
    for pattern, module_type in overrides.items():
        try:
            re.compile(pattern)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise CompletedpError(
                f"override {pattern!r} is not a regular expression: {error}"
            ) from None
        check_one_of(f"module type of override {pattern!r}:", module_type, MODULE_TYPES)


def merged(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Both, in the order in which they are tried; of a pattern in both, the first's type."""
    check_overrides(first)
    check_overrides(then)
    return dict(first) | {p: t for p, t in then.items() if p not in first}
