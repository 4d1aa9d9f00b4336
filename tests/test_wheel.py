"""The wheel: small, and the package alone."""

import subprocess
import sys
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest
from try_wheel import LARGEST

pytest.importorskip("hatchling")
ROOT = Path(__file__).parent.parent


def strangers(names: list[str]) -> list[str]:
    """Files in a wheel that are neither code, nor a recipe, nor about the wheel."""
    return [
        name
        for name in names
        if not PurePosixPath(name).parts[0].endswith(".dist-info")
        and not (name.startswith("completedp/") and name.endswith(".py"))
        and not (name.startswith("completedp/recipes/") and name.endswith(".json"))
        and name != "completedp/py.typed"
    ]


def test_the_wheel_is_small_and_has_code_alone(tmp_path: Path) -> None:
    """It is no larger than it may be, and brings no trials, benchmarks or tests."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < LARGEST
    names = ZipFile(wheel).namelist()
    assert {"completedp/cli/main.py", "completedp/recipes/default.json"} <= set(names)
    assert strangers(names) == []


def test_strangers_are_seen() -> None:
    """Data inside the package and files beside it are told apart from code."""
    wrong = ["completedp/studies/data/trials.npz", "benchmarks/surrogate.py"]
    assert strangers([*wrong, "completedp/lm/loss.py", "completedp-1.dist-info/METADATA"]) == wrong
