"""The README's code runs as printed."""

import re
from pathlib import Path

import pytest
import torch

import completedp as cdp

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every Python block of the README runs, one after the other, in one session."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert "blocks.0-15.attn.qkv.weight" in capsys.readouterr().out
    assert isinstance(names["optimizer"], torch.optim.AdamW)
    assert cdp.Recipe.load("recipe.json").rules.alpha == 0.5


def test_links_lead_somewhere() -> None:
    """Every file that the README and the docs link to is there."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
