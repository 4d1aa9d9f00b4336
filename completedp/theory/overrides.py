"""Overrides: regular expressions on tensors' names that say their module types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from completedp.common.errors import CompletedpError
from completedp.theory.roles import MODULE_TYPES


def check_overrides(overrides: Mapping[Any, Any]) -> None:
    """Raise where a pattern is no regular expression, or its type is not known."""
    for pattern, module_type in overrides.items():
        try:
            re.compile(pattern)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise CompletedpError(
                f"override {pattern!r} is not a regular expression: {error}"
            ) from None
        if not isinstance(module_type, str) or module_type not in MODULE_TYPES:
            raise CompletedpError(
                f"override {pattern!r}: unknown module type {module_type!r}: "
                f"choose from {', '.join(MODULE_TYPES)}"
            )


def merged(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Both, in the order in which they are tried; of a pattern in both, the first's type."""
    return dict(first) | {p: t for p, t in then.items() if p not in first}
