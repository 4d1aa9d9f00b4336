"""The package as its users see it: the public names, their page, and their types."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import api_page
import pytest

import completedp as cdp

ROOT = Path(__file__).parent.parent
USER = """
import completedp as cdp
import torch
from torch import nn

base = cdp.Scale(width=64, depth=4, batch=4096, tokens=1_000_000)
model: nn.Module = cdp.Transformer(cdp.ModelConfig(vocab=64, width=64, depth=4))
recipe: cdp.Recipe = cdp.Recipe.for_model(model, base, lr=2**-8)
plan: cdp.Plan = cdp.plan(model, recipe, base.times(cdp.Ratios(width=2)))
plan.initialise(seed=0)
optimizer: torch.optim.AdamW = plan.adamw()
scheduler = cdp.attach_schedule(optimizer, recipe.schedule, base.steps)
lr: float = plan["blocks.0.attn.qkv.weight"].lr
factor: float = cdp.factors("hidden_weight", cdp.Ratios(width=4)).lr


def make(scale: cdp.Scale) -> nn.Module:
    return cdp.Transformer(cdp.ModelConfig(vocab=64, width=scale.width, depth=scale.depth))


study = cdp.search(make, base, data="tokens", trials=3)
best: cdp.Recipe = study.best(rungs=[base])
passed: bool = cdp.coordcheck(make, widths=(64, 128)).passed
"""
MISTAKES = {
    "base.times(2)": "reportArgumentType",
    "plan.initialize()": "reportAttributeAccessIssue",
    "cdp.Scale(width=64, depth=4, batch=4096)": "reportCallIssue",
}


def test_public_names_are_there() -> None:
    """`__all__` is sorted, every name in it can be had, and nothing public is left out of it."""
    assert cdp.__all__ == sorted(cdp.__all__)
    there = {name: getattr(cdp, name) for name in cdp.__all__}
    assert set(cdp.__all__) <= set(dir(cdp))
    of_ours = {
        name
        for name, value in vars(cdp).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("completedp.")
    }
    assert of_ours | set(cdp._NEED_TORCH) == set(there)


def test_the_page_is_that_of_the_names() -> None:
    """docs/api.md has every public name, as its docstring says: mend it with `make docs`."""
    shown = [name for names in api_page.TOPICS.values() for name in names]
    assert sorted(shown) == cdp.__all__
    assert (ROOT / "docs" / "api.md").read_text() == api_page.as_markdown()


@pytest.mark.skipif(find_spec("pyright") is None, reason="needs pyright")
def test_a_users_types_are_checked(tmp_path: Path) -> None:
    """Pyright, strict on a user's script, finds its mistakes and nothing else."""
    (tmp_path / "right.py").write_text(USER)
    wrong = USER + "".join(f"{line}\n" for line in MISTAKES)
    (tmp_path / "wrong.py").write_text(wrong)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = {"right.py": [], "wrong.py": []}
    for each in json.loads(result.stdout)["generalDiagnostics"]:
        line = Path(each["file"]).read_text().splitlines()[each["range"]["start"]["line"]]
        found[Path(each["file"]).name].append((line, each["rule"]))
    assert found["right.py"] == []
    assert dict(found["wrong.py"]) == MISTAKES
