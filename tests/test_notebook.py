"""The notebook runs from top to bottom, and is kept without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tutorial.ipynb"


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells run one after the other, the model learns, and the optimizer is as planned."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}:{cell['id']}", "exec"), names)
    losses = names["losses"]
    assert isinstance(losses, list)
    assert sum(losses[-8:]) / 8 < losses[0] - 1
    assert names["plan"].check(names["optimizer"]).passed  # pyright: ignore
    assert "blocks.3.mlp.up.weight" in capsys.readouterr().out
