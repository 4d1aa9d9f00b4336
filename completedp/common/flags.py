"""How a field of a config reads as a flag, where its own name and words would not do."""

from __future__ import annotations

from typing import Any

from tyro.conf import arg


def off(words: str) -> Any:
    """Of what is on if nothing is said: the flag is `--no-NAME`, and `words` say what that does."""
    return arg(help=words, help_behavior_hint="")


def named(name: str) -> Any:
    """A flag of another name than the field's."""
    return arg(name=name)
