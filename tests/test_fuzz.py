"""scripts/fuzz.py: a few cases of each kind work or are refused, and faults are noticed."""

import random
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from completedp.common.errors import CompletedpError

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parent.parent / "scripts" / "fuzz.py"), run_name="fuzz"
)


@pytest.mark.parametrize(
    ("kind", "count"), [("recipes", 60), ("manifests", 60), ("stores", 40), ("checkpoints", 40)]
)
def test_damaged_files_are_read_or_refused(kind: str, count: int) -> None:
    """Whatever is in a file, it is never a traceback; and cases are not all of one outcome."""
    found = SCRIPT["fuzz"](kind, count, seed=11, quiet=True)
    assert found["faults"] == 0
    assert found["refused"] > found["worked"] / 4 > 0


def test_odd_command_lines_are_run_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is on a command line, it ends with 0 or 1, or with one line and 2."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    found = SCRIPT["fuzz"]("commands", 25, seed=11, quiet=True)
    assert found["faults"] == 0
    assert found["refused"] > 0


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (CompletedpError("one line"), "refused"),
        (CompletedpError("two\nlines"), "faults"),
        (CompletedpError(""), "faults"),
        (KeyError("x"), "faults"),
        (None, "worked"),
    ],
)
def test_a_fault_is_noticed(
    error: Exception | None, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a CompletedpError of one line is a refusal; a fault says how to have it again."""

    def case(rng: random.Random) -> None:
        if error is not None:
            raise error

    assert SCRIPT["outcome"](case, "stores", 3, 7) == wanted
    assert ("stores --seed 3 --first 7 --count 1" in capsys.readouterr().out) == (
        wanted == "faults"
    )


def test_cases_repeat() -> None:
    """A case follows from kind, seed and number."""
    data = {"a": [1, {"b": 2.0}], "c": "x"}
    for number in range(50):
        one, two = (SCRIPT["damaged_text"](random.Random(str(number)), data) for _ in range(2))
        assert one == two
