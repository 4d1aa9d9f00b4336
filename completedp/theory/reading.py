"""Reading: JSON objects checked against what they must hold; a fault is a line with its key."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from completedp.common.checks import did_you_mean
from completedp.common.errors import CompletedpError


def checked(cls: type, where: str, data: Any, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """A JSON object's items, checked against the fields of a dataclass of numbers and strings."""
    plain = {"str": str, "float": (int, float), "int": int}
    keys = {f.name: types.get(f.name) or plain[str(f.type)] for f in fields(cls)}
    required = {
        f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
    }
    check_keys(where, data, keys, required=required)
    return dict(data)


def check_keys(
    where: str, data: Any, keys: Mapping[str, Any], *, required: Collection[str]
) -> None:
    """Raise unless `data` is an object with these keys, of these types, the required ones there."""
    if not isinstance(data, dict):
        raise CompletedpError(f"{where or 'a recipe'} must be a JSON object, not {data!r:.40}")
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in keys:
            near = did_you_mean(str(key), keys)
            where = f"{path_of(prefix, key)}{near and f' ({near})'}"
            raise CompletedpError(f"unknown key {where}: choose from {', '.join(keys)}")
    for key in keys:
        if key not in data:
            if key in required:
                raise CompletedpError(f"key {prefix}{key} is missing")
            continue
        value = data[key]
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            raise CompletedpError(f"{prefix}{key} = {value!r:.60} has the wrong type")


def path_of(prefix: str, key: str) -> str:
    """A key of the user's, made safe to print on one line."""
    return prefix + repr(key)[1:-1]


def check_numbers(where: str, values: list[Any]) -> list[float]:
    """The values, if all of them are numbers."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise CompletedpError(f"{where} must hold numbers, not {value!r}")
    return values
