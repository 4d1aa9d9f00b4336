"""The planted errors of scripts/mutants.py: each still fits the code, and names tests there are."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "mutants.py"), run_name="mutants")
MUTANTS = SCRIPT["read_mutants"]()


def test_there_are_enough_and_none_twice() -> None:
    """At least sixty, each of its own, with a title of its own."""
    assert len(MUTANTS) >= 60
    assert len({(m.file, m.was, m.now) for m in MUTANTS}) == len(MUTANTS)
    assert len({m.title for m in MUTANTS}) == len(MUTANTS)
    assert sum("the audit's" in m.why for m in MUTANTS) == 7


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.title)
def test_every_error_can_be_planted(mutant: Any) -> None:
    """What it replaces is there once, what takes its place is Python, and its tests exist."""
    source = (ROOT / "completedp" / mutant.file).read_text()
    compile(mutant.planted(source), mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("[")[0].partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE)


def test_an_error_that_no_longer_fits_is_told(tmp_path: Path) -> None:
    """A text that is gone, or there twice, is an error of the list."""
    mutant = SCRIPT["Mutant"](file="a.py", was="x = 1", now="x = 2", tests=[])
    assert mutant.planted("x = 1\n") == "x = 2\n"
    for source in ("", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match="times"):
            mutant.planted(source)


def test_the_file_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests do, the tree is then as it was."""
    path = tmp_path / "completedp" / "a.py"
    path.parent.mkdir()
    path.write_text("x = 1\n")
    mutant = SCRIPT["Mutant"](file="a.py", was="x = 1", now="x = 2", tests=["t.py"])
    seen: list[str] = []

    def run_tests(tree: Path, tests: list[str]) -> tuple[bool, str]:
        seen.append(path.read_text())
        raise KeyboardInterrupt

    monkeypatch.setitem(SCRIPT["try_mutant"].__globals__, "run_tests", run_tests)
    with pytest.raises(KeyboardInterrupt):
        SCRIPT["try_mutant"](mutant, tmp_path)
    assert seen == ["x = 2\n"]
    assert path.read_text() == "x = 1\n"
