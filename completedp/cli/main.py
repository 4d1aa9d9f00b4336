"""The command line: parse, import what the verb needs, call it, print.

Nothing here imports torch before a verb runs, so that `--help` answers at once. An error the user
can mend is one line on standard error and exit code 2; a check that fails exits with 1.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Annotated, Any, NoReturn

import tyro
from tyro.conf import OmitArgPrefixes, subcommand

import completedp
from completedp.cli.shared import VERBS, Verb
from completedp.cli.suggest import known_command, mistyped
from completedp.cli.values import reflow_help, value_of_a_flag
from completedp.common.checks import printable
from completedp.common.errors import CompletedpError, one_line
from completedp.common.files import os_line
from completedp.common.surface import Command, running

# The verbs, in the order in which help lists them: a new one is a file and a line here.
# isort: off
from completedp.cli import (  # noqa: F401 - each enters itself in VERBS
    quickstart,
    rules,
    plan,
    recipe,
    inspect,
    data,
    train,
    coordcheck,
    search,
    sweep,
    fit_horizon,
    figure,
    report,
    bench,
    doctor,
)
# isort: on


def _said_once(said: set[str]) -> Callable[..., str]:
    """Warnings as lines; what several parts of a command have to say is said once."""

    def line(message: Warning | str, *_: Any, **__: Any) -> str:
        if (text := str(message)) in said:
            return ""
        said.add(text)
        return f"completedp: {text}\n"

    return line


def main() -> None:
    """The `completedp` command."""
    # GNU OpenMP's threads spin while they wait for each other. With any other program on the
    # machine that makes torch 10 to 20 times slower; a short spin costs nothing when alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    warnings.formatwarning = _said_once(set())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it has no letters for is spelt out
            stream.reconfigure(errors="backslashreplace")
    verb: Verb | None = None
    try:
        if sys.argv[1:] == ["--version"]:
            print(f"completedp {completedp.__version__}")
            sys.exit(0)
        typed = sys.argv[1:]
        verb = _parse(_or_help(typed))
        model = getattr(getattr(verb, "action", verb), "model", None)
        with running(Command(model=model, typed=tuple(typed))):
            sys.exit(verb.run())
    except CompletedpError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        resumes = verb is not None and verb.goes_on()
        again = ": the same command goes on where it stopped" if resumes else ""
        print(f"completedp: interrupted{again}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        _fail(os_line(error))
    except UnicodeEncodeError as error:  # surrogates are how Python has bytes that are no UTF-8
        if not re.search(r"[\udc80-\udcff]", str(error.object)):
            raise
        _fail(f"{str(error.object)[:200]!r} has bytes that are not UTF-8: give it another name")
    except (RuntimeError, MemoryError) as error:
        # torch's own words for it, on CPU and GPU; any other such error is a fault of ours.
        words = "out of memory|can't allocate memory"
        if not isinstance(error, MemoryError) and not re.search(words, str(error)):
            raise
        _fail("out of memory: take a smaller --micro-batch, --width, --depth or --vocab")


def _or_help(arguments: list[str]) -> list[str]:
    """A bare command, or one that needs to be told which of its parts, asks for help."""
    parts = len(arguments) == 1 and "action" in getattr(
        VERBS.get(arguments[0]), "__dataclass_fields__", ()
    )
    return [*arguments, "--help"] if parts or not arguments else arguments


def _parse(arguments: list[str]) -> Verb:
    """tyro's parse, its boxed errors made one line."""
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(value_of_a_flag)
    reflow_help(registry)
    verbs: Any = tuple(
        Annotated[cls, subcommand(name, description=cls.__doc__)] for name, cls in VERBS.items()
    )
    union: Any = verbs[0]
    for verb in verbs[1:]:
        union = union | verb

    def parsed(words: Sequence[str]) -> Verb:
        return tyro.cli(
            union,
            prog="completedp",
            description="Tune small, transfer to any width, depth, batch and duration. "
            "`completedp --version` says which one this is.",
            args=words,
            config=(OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
            registry=registry,
        )

    def help_of(command: Sequence[str]) -> str:
        text = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
            parsed([*command, "--help"])
        return text.getvalue()

    def refuse(what: str) -> NoReturn:
        command = known_command(arguments, VERBS, help_of)
        _fail(f"{what} (see {' '.join(['completedp', *command, '--help'])})")

    if {"-h", "--help"} & {*arguments}:  # of a command that is not there, tyro shows that of all
        named = list(takewhile(lambda word: not word.startswith("-"), arguments))
        unsure = len(named) > 1 or (named and named[0] not in VERBS)
        if unsure and (what := mistyped(named, VERBS, help_of)):
            refuse(what)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parsed(arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        refuse(mistyped(arguments, VERBS, help_of) or _one_line(said.getvalue()))


def _one_line(box: str) -> str:
    """What a boxed message of tyro's says before its first rule, without its title."""
    lines = [line.strip(" │╭╮╰╯|+") for line in box.splitlines()[1:]]
    body: list[str] = []
    for line in lines:
        if line and set(line) <= {"─", "-"}:  # a plain dash where the terminal has no lines
            if body:
                break
            continue
        body.append(line)
    text = " ".join(filter(None, body))
    text = re.sub(r"^Error parsing (\w+Verb|action|__tyro-dummy-inner__[\w.]*): ", "", text)
    return re.sub(r"no type matching .* could be instantiated .*<class '\w+'>: ", "", text)


def _fail(message: str) -> NoReturn:
    print(f"completedp: error: {printable(one_line(message))}", file=sys.stderr)
    sys.exit(2)
