"""The command line: parse, import what the verb needs, call it, print.

Nothing here imports torch before a verb runs, so that `--help` answers at once. An error the user
can mend is one line on standard error and exit code 2; a check that fails exits with 1.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import tyro
from tyro.conf import OmitArgPrefixes, subcommand

import completedp
from completedp.cli.shared import VERBS, Verb
from completedp.cli.suggest import known_command, mistyped
from completedp.common.checks import printable
from completedp.common.errors import CompletedpError
from completedp.common.surface import Command, running
from completedp.theory.scale import Factor, Size

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


def main() -> None:
    """The `completedp` command."""
    # GNU OpenMP's threads spin while they wait for each other. With any other program on the
    # machine that makes torch 10 to 20 times slower; a short spin costs nothing when alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    warnings.formatwarning = lambda message, *_, **__: f"completedp: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it has no letters for is spelt out
            stream.reconfigure(errors="backslashreplace")
    verb: Verb | None = None
    try:
        if sys.argv[1:] == ["--version"]:
            print(f"completedp {completedp.__version__}")
            sys.exit(0)
        verb = _parse(_or_help(sys.argv[1:]))
        with running(Command(model=getattr(getattr(verb, "action", verb), "model", None))):
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
        _fail(_os_line(error))
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


def parse_count(text: str) -> int:
    """A whole number as people write them: 65536, 16_384, 1e9, 16M, 1.5B."""
    factor = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    try:
        value = int(digits) * factor if re.fullmatch(r"[+-]?[\d_]+", digits) else None
        value = float(digits) * factor if value is None else value
    except ValueError:
        raise ValueError(f"{text!r:.40} is not a whole number (65536, 1e9, 16M)") from None
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise ValueError(f"{text!r:.40} is not a whole number (65536, 1e9, 16M)")
    return int(value)


def parse_real(text: str) -> float:
    """A number; its error quotes what was typed."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r:.40} is not a number (0.5, 1e-3)") from None


def parse_size(text: str) -> Size:
    """A whole number, or a factor of the base (4x)."""
    return Factor.parse(text) if text[-1:] in ("x", "X") else parse_count(text)


_VALUES: dict[Any, tuple[str, Callable[[str], Any], Any]] = {
    str: ("STR", str, str),
    int: ("INT", parse_count, int),
    float: ("FLOAT", parse_real, int | float),
    Size: ("INT|4x", parse_size, int | Factor),
}
"""By the type of a flag: what help calls its value, what reads it, and what that gives."""


def _value_of_a_flag(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """How a flag's value is read, or None where tyro's own way will do.

    Of a flag that may be left out, help shows what may be typed and not `{None}|INT`.
    """
    spec = tyro.constructors.PrimitiveConstructorSpec
    for kind, (metavar, parse, made) in _VALUES.items():
        if info.type in (kind, kind | None):
            optional = info.type != kind
            return spec(
                nargs=1,
                metavar=metavar,
                instance_from_str=lambda args: (
                    None if optional and args[0] == "None" else parse(args[0])
                ),
                is_instance=lambda x: isinstance(x, made) or (optional and x is None),
                str_from_instance=lambda x: [str(x)],
            )
        if info.type == tuple[kind, ...] | None:
            return spec(
                nargs="*",
                metavar=f"{metavar} [{metavar} ...]",
                instance_from_str=lambda args: (
                    None if args == ["None"] else tuple(parse(arg) for arg in args)
                ),
                is_instance=lambda x: (
                    x is None or (isinstance(x, tuple) and all(isinstance(y, made) for y in x))
                ),
                str_from_instance=lambda x: ["None"] if x is None else [str(y) for y in x],
            )
    return None


def _parse(arguments: list[str]) -> Verb:
    """tyro's parse, its boxed errors made one line."""
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_value_of_a_flag)
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
            description="Tune small, transfer to any width, depth, batch and duration.",
            args=words,
            config=(OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
            registry=registry,
        )

    def help_of(command: Sequence[str]) -> str:
        text = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
            parsed([*command, "--help"])
        return text.getvalue()

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parsed(arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        command = known_command(arguments, VERBS, help_of)
        what = mistyped(arguments, VERBS, help_of) or _one_line(said.getvalue())
        _fail(f"{what} (see {' '.join(['completedp', *command, '--help'])})")


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
    text = re.sub(r"^Error parsing (\w+Verb|action): ", "", text)
    return re.sub(r"no type matching .* could be instantiated .*<class '\w+'>: ", "", text)


def _os_line(error: OSError) -> str:
    """What the system says of a file, and what to do about it."""
    what = f"{error.strerror or error}{f' {error.filename!r}' if error.filename else ''}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{what}: make room on the disk and run the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{what}: choose a place that you may write to, or change its permissions"
    if error.errno == errno.EMFILE:
        return f"{what}: raise the limit with `ulimit -n 4096`"
    return what


def _fail(message: str) -> NoReturn:
    print(f"completedp: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)
