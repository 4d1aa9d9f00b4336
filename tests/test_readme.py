"""The README's code runs as printed."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

import completedp as cdp
from completedp.studies.relative import scales_of

ROOT = Path(__file__).parent.parent
OWN_MODEL = "MyModel"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's ten lines run as they stand."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    (block,) = (block for block in BLOCKS if OWN_MODEL not in block)
    exec(compile(block, "README.md", "exec"), names)
    assert "blocks.0-15.attn.qkv.weight" in capsys.readouterr().out
    assert isinstance(names["optimizer"], torch.optim.AdamW)


def test_the_printed_plan_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's plan is that of its first block, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    exec(compile(BLOCKS[0], "README.md", "exec"), {})
    shown = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert capsys.readouterr().out in shown


def test_the_block_with_a_users_model_calls_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README calls with a model of the user's own takes those arguments."""
    for name, call in (("search", cdp.search), ("coordcheck", cdp.coordcheck)):
        monkeypatch.setattr(cdp, name, create_autospec(call), raising=False)
    (block,) = (block for block in BLOCKS if OWN_MODEL in block)
    names: dict[str, Any] = {"cdp": cdp, OWN_MODEL: nn.Module}
    exec(compile(block, "README.md", "exec"), names)
    rungs = scales_of("rungs", names["study"].best.call_args.kwargs["rungs"], names["base"])
    assert rungs == [cdp.Scale(width=512, depth=4, batch=16_384, tokens=400_000_000)]
