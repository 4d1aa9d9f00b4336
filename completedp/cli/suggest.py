"""Did you mean: what was mistyped on a command line, and what it was likely meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence

_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_PARTS = re.compile(r"\{([a-z,-]+)\}")


def mistyped(
    words: Sequence[str], verbs: Collection[str], help_of: Callable[[Sequence[str]], str]
) -> str | None:
    """A line on the first command or flag that there is none of; None where there are all.

    `help_of` gives the help of a command, which names its parts and its flags.
    """
    command: list[str] = []
    choices: Collection[str] = verbs
    for word in words:
        if word.startswith("-") or not choices:
            break
        if word not in choices:
            return f"there is no command {_shown(command, word)}{_near(word, choices)}"
        command.append(word)
        parts = _PARTS.search(help_of(command).partition("\n\n")[0])
        choices = parts[1].split(",") if parts and len(command) == 1 else ()
    if not command:
        return None
    flags = set(_FLAG.findall(help_of(command)))
    for word in words[len(command) :]:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in flags:
            return f"completedp {' '.join(command)} has no {word!r:.60}{_near(flag, flags)}"
    return None


def _shown(command: Sequence[str], word: str) -> str:
    return repr(" ".join(["completedp", *command, word[:60]]))


def _near(word: str, known: Collection[str]) -> str:
    """A hint, where anything is like it; a word that begins another is like it."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    near += [each for each in sorted(known) if each.startswith(word) and each not in near]
    return f": did you mean {' or '.join(near[:2])}?" if near else ""
