"""The command that a study was begun with, or last gone on with: kept beside it, for reports.

A study knows all that its trials depend on, but not where the data are or what a model is called;
what was typed says both. In Python it is the call.
"""

from __future__ import annotations

import inspect
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from completedp.common import surface
from completedp.common.errors import CompletedpError
from completedp.studies.database import without_password
from completedp.studies.store import Study
from completedp.theory.scale import Ratios, Scale

_NOTE = "command"
_LONG, _MANY = 500, 100
"""Letters and items of a value beyond which nobody would read it."""


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

    A function goes by its name; what is no plain value, or a long one, by its argument's.

    >>> call_of(math.isclose, {"a": 1, "b": 2.5})
    'cdp.isclose(1, 2.5)'
    """
    words = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in given or _is(given[name], parameter.default):
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            words += [f"{key}={_written(value) or key}" for key, value in given[name].items()]
            continue
        shown = _written(given[name]) or name
        positional = parameter.default is parameter.empty and parameter.kind is not _KEYWORD
        words.append(shown if positional else f"{name}={shown}")
    return f"cdp.{function.__name__}({', '.join(words)})"


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _is(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float) and value == default)


def _written(value: Any) -> str | None:
    """A value as Python has it; None of what is too long, or cannot be written."""
    shown = _plain(value)
    return shown if shown is not None and len(shown) <= _LONG else None


def _plain(value: Any) -> str | None:
    if isinstance(value, str):
        return repr(_without_password(value))
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else None
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, Scale | Ratios):
        return f"cdp.{value!r}"
    if isinstance(value, list | tuple):
        each = _all_written(value)
        return None if each is None else f"[{', '.join(each)}]"
    if isinstance(value, Mapping):
        keys, values = _all_written(list(value)), _all_written(list(value.values()))
        if keys is None or values is None:
            return None
        return f"{{{', '.join(f'{key}: {each}' for key, each in zip(keys, values, strict=True))}}}"
    return _function(value)


def _all_written(values: Sequence[Any]) -> list[str] | None:
    """All of them as Python has them; None where one cannot be written, or where they are many."""
    found: list[str] = []
    if len(values) > _MANY:
        return None
    for value in values:
        if (shown := _written(value)) is None:
            return None
        found.append(shown)
    return found


def _function(value: Any) -> str | None:
    """A function or class by its name: in a module that can be imported, as the text that finds it.

    None of what has no name to be found by: a lambda, a method of some instance, an object.
    """
    name = getattr(value, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier() or hasattr(value, "__self__"):
        return None
    module = getattr(value, "__module__", None)
    is_script = module in (None, "__main__")
    found = None if is_script else getattr(sys.modules.get(module), name, None)
    return repr(f"{module}:{name}") if found is value else name


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
