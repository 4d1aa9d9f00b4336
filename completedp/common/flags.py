"""How a field of a config reads as a flag, where its own name and words would not do."""

from __future__ import annotations

from typing import Any

from tyro.conf import arg


def off(words: str) -> Any:
    """Of what is on if nothing is said: the flag is `--no-NAME`, and `words` say what that does."""
    return arg(help=words, help_behavior_hint="")


def part(words: str) -> Any:
    """Of a part that some defaults have and others lack: `--NAME` adds it, `--no-NAME` leaves it
    out, whichever there is."""
    return arg(
        help=words,
        help_behavior_hint=lambda default: "(this leaves it out)" if default == "True" else "",
    )


def named(name: str) -> Any:
    """A flag of another name than the field's."""
    return arg(name=name)
