"""Where users are: in Python, or at the command line, where an option is written as a flag.

Errors that advise an option name it as it is typed there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command that is being run."""

    model: str | None = None
    """The user's own model, as `--model` names it."""
    typed: tuple[str, ...] = ()
    """Its words, after the program's name."""


_running: list[Command] = []


@contextmanager
def running(command: Command) -> Iterator[None]:
    """While a command runs, in all of its threads."""
    _running.append(command)
    try:
        yield
    finally:
        _running.pop()


def override(pattern: str = "REGEX", module_type: str = "TYPE") -> str:
    """An override as a user writes it where they are.

    >>> override("n1", "attn_norm")
    "overrides={'n1': 'attn_norm'}"
    """
    if command() is None:
        return f"overrides={{{pattern!r}: {module_type!r}}}"
    return f"--override {shlex.quote(f'{pattern}={module_type}')}"


def option(name: str) -> str:
    """An option as a user writes it where they are.

    >>> option("z_loss")
    'z_loss'
    """
    return name if command() is None else f"--{name.replace('_', '-')}"


def with_rule(name: str, choice: str) -> str:
    """A recipe with another rule, as a user makes one where they are.

    >>> with_rule("beta_rule", "keep")
    'recipe.with_rules(beta_rule="keep")'
    """
    if command() is None:
        return f'recipe.with_rules({name}="{choice}")'
    return f"`completedp recipe change RECIPE {option(name)} {choice} --out NEW.json`"


def command() -> Command | None:
    """The command that is being run; None in Python."""
    return _running[-1] if _running else None
