"""The comparison of search engines: judged by truth, twice the same."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "search_engines.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python benchmarks/search_engines.py ARGUMENTS`."""
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_engines_are_judged_by_truth() -> None:
    """Engines are judged by the truth of what they recommend, twice the same."""
    sizes = ("--dimensions", "4", "--in-flight", "4", "--landscapes", "base", "--seeds", "0", "1")
    first, second = (run(*sizes, "--trials", "60", "--json") for _ in range(2))
    assert first.returncode == 0, first.stderr
    rows = json.loads(first.stdout)["table"]
    assert [row["engine"] for row in rows] == ["trust-region", "recombine"]
    assert all(row["left"]["60"] < 100 for row in rows)
    again = json.loads(second.stdout)["table"]
    assert [row["left"] for row in again] == [row["left"] for row in rows]


def test_an_unknown_landscape_is_quoted() -> None:
    """A kind of landscape that there is not is refused with its name."""
    result = run("--landscapes", "alps")
    assert result.returncode == 2
    assert "alps" in result.stderr


def test_too_few_trials_are_refused() -> None:
    """A number of trials that cannot be looked at is refused with its value."""
    result = run("--trials", "3")
    assert result.returncode == 2
    assert "trials = 3" in result.stderr
