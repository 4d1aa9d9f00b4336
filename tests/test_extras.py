"""Optional packages: the table is pyproject.toml's, and a missing one is one line."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from completedp.common.errors import CompletedpError
from completedp.common.extras import EXTRAS, import_extra


def test_the_table_is_the_projects() -> None:
    """Every extra but `all` is in the table, with the same packages."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    declared = {
        extra: tuple(re.split(r"[\[>=]", requirement)[0] for requirement in requirements)
        for extra, requirements in project["project"]["optional-dependencies"].items()
    }
    assert declared.pop("all") == ("completedp",)
    assert declared == EXTRAS


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs the package and the extra to install are named; what is there is imported."""
    monkeypatch.setitem(sys.modules, "cmaes", None)
    words = 'juggling needs cmaes: pip install "completedp[optuna]"'
    with pytest.raises(CompletedpError, match=re.escape(words)):
        import_extra("cmaes", "juggling")
    monkeypatch.setitem(sys.modules, "cmaes", sys)
    assert import_extra("cmaes", "juggling") is sys
