"""What several test files share: the one-line error, and small reference models with recipes."""

import itertools
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from completedp.cli.main import main
from completedp.common.errors import CompletedpError

BASE = {"width": 64, "depth": 2, "batch": 1024, "tokens": 64 * 1024}


def spelt_out(name: str) -> list[str]:
    """The names that one with ranges and choices in its places stands for: a.0-2.{q,k}."""
    places = []
    for word in re.findall(r"\{[^}]*\}|[^.]+", name):
        choices = word.strip("{}").split(",")
        if re.fullmatch(r"[\d,-]+", word):
            ends = [[int(end) for end in each.split("-")] for each in choices]
            choices = [str(n) for each in ends for n in range(each[0], each[-1] + 1)]
        places.append(choices)
    return [".".join(words) for words in itertools.product(*places)]


def error_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message of the CompletedpError that the call raises, which must be one line."""
    with pytest.raises(CompletedpError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[Any, str, str]:
    """Exit code, output and errors of a command, in this process."""
    monkeypatch.setattr(sys, "argv", ["completedp", *words])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main sets its own
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    return stopped.value.code, said.out, said.err
