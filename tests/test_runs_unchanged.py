"""A run of a user's own model is not gone on with by other code under the same names."""

import json
from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch.nn.functional as F
from helpers import error_of
from studies import write_tokens
from torch import Tensor

import completedp as cdp

CONTEXT = 16
BASE = cdp.Scale(width=16, depth=2, batch=4 * CONTEXT, tokens=4 * CONTEXT * 4)
CHANGED = "the model or its loss was changed since the run in"
pytestmark = pytest.mark.filterwarnings("ignore::completedp.ScaleWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("runs"))


def trained(tokens: str, folder: Path, make: Any = own.nano, **more: Any) -> Any:
    recipe = cdp.Recipe.for_model(own.nano(BASE), BASE, lr=2**-6)
    options = {"context": CONTEXT, "device": "cpu", "eval_examples": 8, "quiet": True} | more
    return cdp.train(make, recipe, BASE, tokens, folder / "run", **options)


def relu_forward(mlp: Any, x: Tensor) -> Tensor:
    return mlp.c_proj(F.relu(mlp.c_fc(x)))


@pytest.mark.parametrize("first", ["stopped", "killed", "ended"])
def test_a_model_that_computes_something_else_is_not_trained_on(
    first: str, tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run that stopped, was killed or ended is taken for that of another activation."""
    trained(tokens, tmp_path, stop_after=None if first == "ended" else 2)
    if first == "killed":
        (tmp_path / "run" / "result.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(own.MLP, "forward", relu_forward)
        message = error_of(trained, tokens, tmp_path)
        assert CHANGED in message
        assert "with the same weights and examples the loss is" in message
    assert trained(tokens, tmp_path).status == "ok"


def test_a_run_of_an_older_version_goes_on(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that noted nothing goes on, and is compared from then."""
    trained(tokens, tmp_path, stop_after=2)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    noted = config.pop("given_weights")
    path.write_text(json.dumps(config))
    trained(tokens, tmp_path, stop_after=3)
    assert json.loads(path.read_text())["given_weights"] == noted
    monkeypatch.setattr(own.MLP, "forward", relu_forward)
    assert CHANGED in error_of(trained, tokens, tmp_path)


def test_a_damaged_note_is_told(tokens: str, tmp_path: Path) -> None:
    """What cannot be compared is a line that names the file."""
    trained(tokens, tmp_path, stop_after=2)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    for damaged in ("x", {"loss": "x"}, [3]):
        path.write_text(json.dumps(config | {"given_weights": damaged}))
        assert "config.json' is damaged" in error_of(trained, tokens, tmp_path)


def test_of_the_reference_model_nothing_is_noted(tokens: str, tmp_path: Path) -> None:
    """Its code is the package's."""
    base = cdp.Scale(width=64, depth=1, batch=4 * CONTEXT, tokens=8 * CONTEXT)
    recipe = cdp.Recipe.default().with_rules(axes=("width", "depth"))
    cdp.train(None, recipe, base, tokens, tmp_path, context=CONTEXT, device="cpu", quiet=True)
    assert "given_weights" not in json.loads((tmp_path / "config.json").read_text())
