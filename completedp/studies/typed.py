"""The command that a study was begun with, or last gone on with: kept beside it, for reports.

A study knows all that its trials depend on, but not where the data are or what a model is called;
what was typed says both. In Python it is the call.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from completedp.common import surface
from completedp.common.errors import CompletedpError
from completedp.studies.database import without_password
from completedp.studies.store import Study
from completedp.theory.scale import Scale

_NOTE = "command"


def typed_command() -> str | None:
    """What the user typed, without passwords; None in Python."""
    running = surface.command()
    if running is None or not running.typed:
        return None
    return shlex.join(["completedp", *map(_without_password, running.typed)])


def note_command(study: Study) -> None:
    """Keep what was typed, where something was."""
    if typed := typed_command():
        study.set_note(_NOTE, {"typed": typed})


def note_call(study: Study, call: str) -> None:
    """Keep a call in Python."""
    study.set_note(_NOTE, {"typed": call})


def call_of(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """A call as it could be written: the arguments that are not as they are if left out.

    What is no plain value goes by a name: a function by its own, anything else by its argument's.

    >>> call_of(math.isclose, {"a": 1, "b": 2.5})
    'cdp.isclose(1, 2.5)'
    """
    words = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in given or _is(given[name], parameter.default):
            continue
        shown = _value(name, given[name])
        positional = parameter.default is parameter.empty and parameter.kind is not _KEYWORD
        words.append(shown if positional else f"{name}={shown}")
    return f"cdp.{function.__name__}({', '.join(words)})"


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _is(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float) and value == default)


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return repr(_without_password(value))
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, Scale):
        return f"cdp.{value!r}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(name, each) for each in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{key!r}: {_value(name, each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    return str(getattr(value, "__name__", name))


def noted_command(study: Study) -> str | None:
    """What was kept; None where nothing was, or somebody changed the store."""
    note = study.get_note(_NOTE)
    typed = note.get("typed") if isinstance(note, dict) else None
    return typed if isinstance(typed, str) else None


def _without_password(word: str) -> str:
    if "://" not in word:
        return word
    flag, equals, url = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        return f"{flag}{equals}{without_password(url)}"
    except CompletedpError:
        return f"{flag}{equals}***"
