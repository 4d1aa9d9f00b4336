"""Did you mean: what was mistyped on a command line, and what it was likely meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from completedp.common.checks import did_you_mean

_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_CHANGE = ": it is the recipe's, and `completedp recipe change` makes one with another"
_PARTS = re.compile(r"\{([a-z,-]+)\}")


def mistyped(
    words: Sequence[str], verbs: Collection[str], help_of: Callable[[Sequence[str]], str]
) -> str | None:
    """A line on the first command or flag that there is none of; None where there are all.

    `help_of` gives the help of a command, which names its parts and its flags.
    """
    command = known_command(words, verbs, help_of)
    choices = verbs if not command else _parts(command, help_of)
    word = words[len(command)] if len(words) > len(command) else "-"
    if choices and not word.startswith("-"):
        return f"there is no command {_shown(command, word)}{_near(word, choices)}"
    if not command:
        return None
    flags = set(_FLAG.findall(help_of(command)))
    for word in words[len(command) :]:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in flags:
            near = _near(flag, flags) or (_CHANGE if _is_of_a_recipe(flag, flags, help_of) else "")
            return f"completedp {' '.join(command)} has no {word!r:.60}{near}"
    return None


def _is_of_a_recipe(
    flag: str, flags: Collection[str], help_of: Callable[[Sequence[str]], str]
) -> bool:
    return "--recipe" in flags and flag in _FLAG.findall(help_of(("recipe", "change")))


def known_command(
    words: Sequence[str], verbs: Collection[str], help_of: Callable[[Sequence[str]], str]
) -> list[str]:
    """The words that name a command, a verb and perhaps a part of it, as far as there is one."""
    command: list[str] = []
    choices: Collection[str] = verbs
    for word in words:
        if word not in choices:
            break
        command.append(word)
        choices = _parts(command, help_of)
    return command


def _parts(command: Sequence[str], help_of: Callable[[Sequence[str]], str]) -> Collection[str]:
    """What a verb's help says that it has."""
    found = _PARTS.search(help_of(command).partition("\n\n")[0]) if len(command) == 1 else None
    return found[1].split(",") if found else ()


def _shown(command: Sequence[str], word: str) -> str:
    return repr(" ".join(["completedp", *command, word[:60]]))


def _near(word: str, known: Collection[str]) -> str:
    near = did_you_mean(word, known)
    return near and f": {near}"
