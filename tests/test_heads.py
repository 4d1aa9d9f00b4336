"""The size of attention heads: seen by what a model does where nothing tells it, or said not to."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from own_models import NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.heads import HeadSizes, head_dim_by_shapes
from completedp.apply.inspect import inspect_model
from completedp.apply.probe import MOST_PARAMETERS, probe

BASE = cdp.Scale(width=32, depth=2, batch=64, tokens=6400)
WIDE = cdp.Scale(width=64, depth=2, batch=64, tokens=6400)
LARGE = cdp.Scale(width=2048, depth=2, batch=64, tokens=6400)
NOT_VISIBLE = "head size not visible"


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True)


def fused_with_a_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    return F.scaled_dot_product_attention(q, k, v, torch.ones(length, length).tril().log())


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(length, length).tril() == 0, float("-inf"))
    return scores.softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhtk,bhsk->bhts", q, k)
    return torch.einsum("bhts,bhsk->bhtk", F.softmax(scores, -1), v)


def without_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention, which nobody here knows to be attention."""
    return q @ (k.transpose(-2, -1) @ v)


class Attention(nn.Module):
    """So many heads, of no size that anything tells."""

    def __init__(self, width: int, heads: int, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.attend = heads, attend

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).chunk(3, -1)
        heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return self.c_proj(self.attend(*heads).transpose(1, 2).flatten(-2))


def made(
    scale: cdp.Scale, attend: Callable[..., Tensor] = fused, heads: int | None = None
) -> NanoGPT:
    """A GPT with heads of 16, or with so many heads."""
    with torch.device("meta" if scale == LARGE else "cpu"):
        model = NanoGPT(scale.width, scale.depth)
        for block in model.h:
            block.attn = Attention(scale.width, heads or scale.width // 16, attend)
    return model


ATTENTIONS = [fused, fused_with_a_mask, written_out, by_einsum]


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("heads", [1, 4])
def test_heads_are_seen(attend: Callable[..., Tensor], heads: int) -> None:
    """Fused or written out, of a model that is run and of one too large for it, on meta."""
    for scale in (BASE, LARGE):
        found = classify(made(scale, attend, heads))
        assert bool(probe(found).skipped) == (scale is LARGE)
        assert probe(found).head_dim == head_dim_by_shapes(found) == scale.width // heads
        assert found.head_dim is None  # nothing told it
    assert sum(p.numel() for p in found.model.parameters()) > MOST_PARAMETERS


@pytest.mark.parametrize("target", [WIDE, LARGE])
def test_heads_that_grow_are_refused(target: cdp.Scale) -> None:
    """As many heads at every width are larger ones, which no rule holds for."""
    recipe = cdp.Recipe.for_model(made(BASE, heads=2), BASE)
    assert recipe.head_dim == 16
    message = error_of(cdp.plan, made(target, heads=2), recipe, target)
    assert f"head_dim is {target.width // 2} and was 16 at base" in message
    cdp.plan(made(target), recipe, target)  # more heads of 16


def said(act: Callable[[], object]) -> list[str]:
    """The warnings about heads."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(each.message) for each in caught if NOT_VISIBLE in str(each.message)]


def test_heads_that_nobody_sees_are_said_once() -> None:
    """A plan that grows the width says so in one line, and inspect; `head_dim` is the way out."""
    recipe = cdp.Recipe.for_model(made(BASE, without_softmax), BASE)
    assert recipe.head_dim is None
    unseen = made(WIDE, without_softmax)
    (line,) = said(lambda: cdp.plan(unseen, recipe, WIDE))
    assert line.startswith(f"{NOT_VISIBLE}, so that nobody checks it: keep it the same")
    assert inspect_model(unseen).count(f"caution: {NOT_VISIBLE}") == 1
    assert not said(lambda: cdp.plan(made(BASE, without_softmax), recipe, BASE))  # nothing grew
    assert not said(lambda: cdp.plan(unseen, recipe, WIDE, probe=False))  # who knows better
    (line,) = said(lambda: cdp.plan(made(WIDE), recipe, WIDE))
    assert "not visible in the recipe's base model" in line
    base, wide = made(BASE, without_softmax), made(WIDE, without_softmax)
    for model, size in ((base, 16), (wide, 32)):
        model.h[0].attn.head_dim = size  # type: ignore[assignment]
    told = cdp.Recipe.for_model(base, BASE)
    assert "head_dim is 32 and was 16 at base" in error_of(cdp.plan, wide, told, WIDE)


def test_inspect_says_how_large_heads_are() -> None:
    """Seen or told, of the reference model too."""
    assert inspect_model(made(BASE)).endswith("\nheads of 16")
    reference = cdp.Transformer(cdp.ModelConfig(vocab=64, width=32, depth=1, head_dim=8))
    assert inspect_model(reference).endswith("\nheads of 8")


def test_a_router_is_no_attention() -> None:
    """A softmax of what a product of matrices gives is not all that there is to attention."""
    with HeadSizes() as seen:
        torch.einsum("btd,de->bte", torch.randn(1, 6, 32), torch.randn(32, 4)).softmax(-1)
        torch.randn(2, 4, 6, 6).softmax(-1)
    assert not seen.sizes
    with HeadSizes() as seen:
        for size in (8, 16):
            fused(*(torch.randn(1, 2, 6, size) for _ in range(3)))
    assert seen.sizes == {8, 16}
    assert seen.size is None


class Rotary(nn.Module):
    """Keeps tables, one of them as a buffer, for as many tokens as it was last called with."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.table = torch.arange(x.shape[-2], device=x.device)
        self.register_buffer("angles", self.table * 0.1, persistent=False)
        return x + 0.0 * self.get_buffer("angles")[:, None]


@pytest.mark.parametrize("look", [probe, head_dim_by_shapes])
def test_nothing_is_left_in_the_model(look: Callable[..., object]) -> None:
    """Tables that modules keep would be of six tokens, and without numbers."""
    model = made(BASE)
    for block in model.h:
        block.attn = nn.Sequential(Rotary(), block.attn)
    found = classify(model)
    assert look(found) is not None
    for module in model.modules():
        if isinstance(module, Rotary):
            assert module.table is None
            assert not module._buffers


def test_activations_that_are_computed_again() -> None:
    """A model that keeps none is passed by with the reason, and its heads are seen."""
    from torch.utils.checkpoint import checkpoint

    model = made(BASE)
    for block in model.h:
        block.forward = lambda x, own=block.forward: checkpoint(own, x, use_reentrant=False)
    meta = classify(model.to("meta"))
    assert "does not run on 6 tokens" in probe(meta).skipped
    assert probe(meta).head_dim == 16
