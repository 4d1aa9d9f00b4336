"""Examples in docstrings do what they show."""

import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import completedp as cdp
import completedp.theory
from completedp.lm.prepare import prepare_source

THEORY = [
    f"completedp.theory.{found.name}" for found in pkgutil.iter_modules(completedp.theory.__path__)
]
PUBLIC = sorted({sys.modules[getattr(cdp, name).__module__].__name__ for name in cdp.__all__})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a user's, with a folder `tokens` in it."""
    place = tmp_path_factory.mktemp("doctests")
    documents = (f"{number} words of text. " * 100 for number in range(20))
    (place / "own.txt").write_text("\n<|endoftext|>\n".join(documents))
    prepare_source(str(place / "own.txt"), str(place / "tokens"), valid_fraction=0.2)
    return place


@pytest.mark.parametrize("name", sorted({*THEORY, *PUBLIC}))
def test_examples_in_docstrings(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example gives what stands under it."""
    monkeypatch.chdir(folder)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_every_public_name_has_an_example() -> None:
    """Whoever looks a name up sees it used."""
    finder = doctest.DocTestFinder(exclude_empty=True, recurse=False)
    for name in cdp.__all__:
        found = finder.find(getattr(cdp, name), name)
        assert any(test.examples for test in found), name
