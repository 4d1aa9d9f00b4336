"""The tutorial's commands work, one after the other, with smaller numbers."""

import pydoc_data.topics
import re
import shlex
from pathlib import Path

import pytest
import torch

from completedp.cli.main import _parse

PAGE = Path(__file__).parent.parent / "docs" / "tutorial.md"
SMALLER = {
    "--trials 64": "--trials 4",
    "--slots 16": "--slots 4",
    "--tokens 300K": "--tokens 10240",
    "--tokens 1M": "--tokens 40960",
    "search best": "search best --seeds 1",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """What the reader is told to type, with smaller numbers."""
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    for old, new in SMALLER.items():
        assert any(old in line for line in lines), old
        lines = [line.replace(old, new) for line in lines]
    return lines


@pytest.mark.slow
def test_the_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each ends with 0 and leaves what the next one needs; the last block of Python runs there."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    topics = list(pydoc_data.topics.topics.values())
    Path("own.txt").write_text("\n<|endoftext|>\n".join(topics), encoding="utf-8")
    with torch.compiler.set_stance("force_eager"):
        for line in commands():
            name, *arguments = shlex.split(line)
            assert name == "completedp"
            assert _parse(arguments).run() in (0, 1 if "check" in line else 0), line
    assert "blocks.3.mlp.up.weight" in capsys.readouterr().out
    assert Path("runs/target/result.json").is_file()
    names: dict[str, object] = {}
    exec(compile(blocks("python")[-1], PAGE.name, "exec"), names)
    assert isinstance(names["optimizer"], torch.optim.AdamW)


def test_the_text_is_made_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of Python writes documents, each ended as the page says."""
    monkeypatch.chdir(tmp_path)
    block = blocks("python")[0].replace('.rglob("*.py")', '.glob("a*.py")')
    exec(compile(block, PAGE.name, "exec"), {})
    assert Path("own.txt").read_text(encoding="utf-8").count("\n<|endoftext|>\n") > 80
