"""What the verbs of the command line share."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from completedp.common.checks import several
from completedp.common.terminal import say

Config = TypeVar("Config")
Flags = Mapping[str, Any]
"""Options of a command by their names, with numbers, words, or tuples of them."""
DATA = "DATA"
"""For the reader to fill in: a command that names the next one may have none."""


class Verb:
    """A command: its fields are its options, its docstring is its help.

    No abstract class: tyro would import typeguard for those, and every help wait for it.
    """

    resumes: ClassVar[bool] = False
    """Whether the same command, when it was interrupted, goes on where it stopped."""

    def goes_on(self) -> bool:
        """The same, of this command."""
        return self.resumes

    def run(self) -> int:
        """Do it, print, and give the exit code."""
        raise NotImplementedError


VERBS: dict[str, type[Verb]] = {}
"""Every verb by its name, in the order in which help lists them."""
AnyVerb = TypeVar("AnyVerb", bound=type[Verb])


def register(name: str) -> Callable[[AnyVerb], AnyVerb]:
    """Enter a verb under its name."""

    def enter(verb: AnyVerb) -> AnyVerb:
        VERBS[name] = verb
        return verb

    return enter


def print_json(data: Any) -> None:
    """One JSON document; a number that JSON has no word for is a fault of ours."""
    print(json.dumps(data, indent=2, allow_nan=False))


def show(data: Any, text: object, as_json: bool) -> int:
    """What a verb found, as JSON or for people; the exit code of one that did its work."""
    if as_json:
        print_json(data)
    else:
        print(text)
    return 0


def name_next(command: str) -> None:
    """The last line of a verb, for people: what most of them do next."""
    say(f"next: {command}")


def typed_with(flags: Flags, verb: str | None = None) -> str:
    """The user's own command with other flags, or another verb with theirs; None leaves one out."""
    names = {name.replace("_", "-"): value for name, value in flags.items()}
    typed = sys.argv[1:] if verb is None else [verb, *sys.argv[2:]]
    words: list[str] = []
    skipping = False
    for word in typed:
        if word.startswith("--"):  # what follows are its values
            skipping = word.partition("=")[0][2:].replace("_", "-") in names
        if not skipping:
            words.append(word)
    for name, value in names.items():
        if value is not None:
            words += [f"--{name}", *map(str, several(value))]
    return f"completedp {shlex.join(words)}"


def as_config(verb: Any, config: type[Config]) -> Config:
    """The part of a verb that is the config which it adds its own options to."""
    names = [field.name for field in fields(config)]  # type: ignore[arg-type]
    return config(**{name: getattr(verb, name) for name in names})


@contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress line of so many done, of how many the first call tells."""
    from completedp.common.progress import Reporter

    with ExitStack() as shown:
        reporters: list[Reporter] = []

        def progress(done: int, total: int) -> None:
            if not reporters:
                reporters.append(shown.enter_context(Reporter(what, total)))
            reporters[0].update(done, lambda: "")

        yield progress
