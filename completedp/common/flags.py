"""How a field of a config reads as a flag, where its own name and words would not do."""

from __future__ import annotations

from typing import Any

from tyro.conf import arg


def off(words: str) -> Any:
    """Of what is on if nothing is said: the flag is `--no-NAME`, and `words` say what that does."""
    return arg(help=words, help_behavior_hint="")


def part() -> Any:
    """Of a part that some defaults have and others lack: `--NAME` adds it, `--no-NAME` leaves it
    out, whichever there is; cli/values.py puts the help of the one into that of the other."""
    return arg(help_behavior_hint="")


def or_else(words: str, usual: int) -> Any:
    """Of what has a value of its own where nothing else says one: the default's, or `usual`."""
    return arg(
        help=words,
        help_behavior_hint=lambda default: f"else {usual if default == 'None' else default}.",
    )


def named(name: str) -> Any:
    """A flag of another name than the field's."""
    return arg(name=name)
