"""Models by the names of their functions: what is wrong with one is a line that says what to do."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import command

OWN = """
from own_models import NanoGPT

def good(scale):
    return NanoGPT(scale.width, scale.depth)

def of_sizes(width, depth):
    return NanoGPT(width, depth)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with such functions in it, to work in."""
    (tmp_path / "named_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("named_models", None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        # Of another size of heads than the recipe's: the search is of this model, too.
        ("named_models:good", "`completedp search start --model named_models:good`"),
        ("named_models:of_sizes", "asks for width, depth, and is given one completedp.Scale"),
        ("named_models:gud", "has no function 'gud', and has good, of_sizes\n"),
    ],
)
def test_errors_name_what_to_do(
    model: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line that names the model, and what to type or to write."""
    sizes = ("--width", "64", "--depth", "2", "--batch", "1024", "--tokens", "65536")
    code, _, said = command(monkeypatch, capsys, "plan", "--model", model, *sizes)
    assert code == 2
    assert words in said
    assert said.count("\n") == 1
