"""A study is not gone on with by other code under the same names."""

from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from studies import write_tokens
from torch import Tensor, nn

from completedp.studies.session import Search, search
from completedp.tasks import same_code
from completedp.tasks.losses import next_token_loss
from completedp.theory.scale import Scale

CONTEXT = 16
BASE = Scale(width=16, depth=2, batch=4 * CONTEXT, tokens=4 * CONTEXT * 4)
CHANGED = "was changed since the study 'search' began"
NOTE = "loss with given weights"
PENALTY = 0.0


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("unchanged"))


def searched(tokens: str, folder: Path, trials: int, make: Any = own.nano, **more: Any) -> Search:
    return search(
        make,
        BASE,
        tokens,
        trials,
        str(folder / "s.db"),
        CONTEXT,
        space="global",
        eval_examples=8,
        slots=1,
        device="cpu",
        compile=False,
        quiet=True,
        **more,
    )


def relu_forward(mlp: Any, x: Tensor) -> Tensor:
    return mlp.c_proj(F.relu(mlp.c_fc(x)))


def silu_forward(mlp: Any, x: Tensor) -> Tensor:
    return mlp.c_proj(F.silu(mlp.c_fc(x)))


def seeing_forward(attention: Any, x: Tensor) -> Tensor:
    q, k, v = (
        t.unflatten(-1, (-1, own.HEAD)).transpose(1, 2) for t in attention.c_attn(x).chunk(3, -1)
    )
    y = F.scaled_dot_product_attention(q, k, v)
    return attention.c_proj(y.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize(
    ("module", "forward"),
    [
        (own.MLP, relu_forward),
        (own.MLP, silu_forward),
        (own.CausalSelfAttention, seeing_forward),
    ],
)
def test_a_model_that_computes_something_else_does_not_go_on(
    module: type[nn.Module],
    forward: Any,
    tokens: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another activation, or no causal mask, is told though losses at the start are near ln V."""
    searched(tokens, tmp_path, 1).close()
    with monkeypatch.context() as patched:
        patched.setattr(module, "forward", forward)
        assert CHANGED in error_of(searched, tokens, tmp_path, 2)
    searched(tokens, tmp_path, 2).close()


def penalised(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that has a penalty in training alone."""
    loss = next_token_loss(model, inputs, targets)
    return loss * (1 + PENALTY) if model.training else loss


def test_a_loss_that_changed_in_training_alone_does_not_go_on(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed for training is compared, too."""
    searched(tokens, tmp_path, 1, loss=penalised).close()
    monkeypatch.setitem(globals(), "PENALTY", 0.5)
    message = error_of(searched, tokens, tmp_path, 2, loss=penalised)
    assert CHANGED in message
    assert "loss in training is" in message


@pytest.mark.filterwarnings("ignore:.*trains one trial at a time")
def test_dropout_is_compared_where_the_generator_is_the_same(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rate is told; a machine that draws other numbers goes on all the same."""
    searched(tokens, tmp_path, 1, own.nano_with_dropout).close()
    searched(tokens, tmp_path, 2, own.nano_with_dropout).close()

    def other(scale: Scale) -> nn.Module:
        return own.NanoGPT(scale.width, scale.depth, dropout=0.5)

    other.__qualname__, other.__module__ = "nano_with_dropout", own.__name__
    assert CHANGED in error_of(searched, tokens, tmp_path, 3, other)
    monkeypatch.setattr(same_code, "_draws", lambda: "another machine's")
    searched(tokens, tmp_path, 3, other).close()


def test_a_study_of_an_older_version_goes_on_and_is_compared_better_from_then(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note of the loss at the start alone is compared by that, and the others are added to it."""
    with searched(tokens, tmp_path, 1) as study:
        whole = study.study.get_note(NOTE)
        assert whole is not None
        study.study.set_note(NOTE, {"loss": 1.0005 * whole["loss"]})
    searched(tokens, tmp_path, 2).close()
    monkeypatch.setattr(own.MLP, "forward", relu_forward)
    assert CHANGED in error_of(searched, tokens, tmp_path, 3)


def test_no_rounding_is_a_change(tokens: str, tmp_path: Path) -> None:
    """Other products, by as much as another machine rounds them, are the same code."""
    searched(tokens, tmp_path, 1).close()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(own.MLP, "forward", in_double)
        searched(tokens, tmp_path, 2).close()


def in_double(mlp: Any, x: Tensor) -> Tensor:
    hidden = F.gelu(F.linear(x.double(), mlp.c_fc.weight.double(), mlp.c_fc.bias.double()))
    out = F.linear(hidden, mlp.c_proj.weight.double(), mlp.c_proj.bias.double())
    return out.to(x.dtype)


def test_a_loss_that_is_chaotic_is_not_compared_far_from_the_start(tokens: str) -> None:
    """What rounding alone would change is left out, so that no machine refuses another's study."""

    class Chaotic(nn.Module):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__()
            self.inner = own.NanoGPT(width, depth)

        def forward(self, tokens: Tensor) -> Tensor:
            logits = self.inner(tokens)
            spread = logits.std()
            return logits + torch.sin(1e6 * logits) * (spread > 1)

    from completedp.tasks.task import make_task

    task = make_task(
        lambda scale: Chaotic(scale.width, scale.depth), tokens, context=CONTEXT, eval_examples=8
    )
    assert list(same_code.task_losses(task, task.recipe(BASE))) == ["loss"]
