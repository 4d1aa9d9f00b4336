"""What the verbs of the command line share."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, TypeVar

Config = TypeVar("Config")


def print_json(data: Any) -> None:
    """One JSON document; a number that JSON has no word for is a fault of ours."""
    print(json.dumps(data, indent=2, allow_nan=False))


def as_config(verb: Any, config: type[Config]) -> Config:
    """The part of a verb that is the config which it adds its own options to."""
    names = [field.name for field in fields(config)]  # type: ignore[arg-type]
    return config(**{name: getattr(verb, name) for name in names})
