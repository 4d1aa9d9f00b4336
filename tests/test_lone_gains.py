"""Gains that a block holds itself, as LayerScale's and ReZero's: they end branches, their blocks
do not. And gains that are modules of any kind."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from models import scale
from own_models import Block, NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.plan import plan
from completedp.apply.probe import probe

BASE, LARGE = scale(depth=4), scale(depth=8)
NAMED = {"gamma_1": "attn_post_norm", "gamma_2": "mlp_post_norm"}


class Scaled(Block):
    """A gain after each branch, of as many numbers as the stream has features, or of one; and
    perhaps a factor of its own."""

    def __init__(self, width: int, *, one: bool = False, factor: float = 1.0) -> None:
        super().__init__(width)
        size = () if one else (width,)
        self.gamma_1 = nn.Parameter(torch.full(size, 0.1))
        self.gamma_2 = nn.Parameter(torch.full(size, 0.1))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * self.factor * self.attn(self.ln_1(x))
        return x + self.gamma_2 * self.mlp(self.ln_2(x))


def make(at: cdp.Scale, *, one: bool = False, factor: float = 1.0) -> nn.Module:
    model = NanoGPT(at.width, 0)
    model.h = nn.ModuleList(Scaled(at.width, one=one, factor=factor) for _ in range(at.depth))
    return model


@pytest.mark.parametrize("one", [False, True])
def test_they_are_seen_to_end_their_branches(one: bool) -> None:
    """The probe finds what they were named for right, and the multipliers go into them alone."""
    assert not probe(classify(make(BASE, one=one), NAMED)).faults
    recipe = cdp.Recipe.for_model(make(BASE, one=one), BASE, overrides=NAMED)
    found = plan(make(LARGE, one=one), recipe, LARGE)
    assert found["h.0.gamma_1"].init_value == pytest.approx(0.05)
    assert found["h.0.attn.c_proj.weight"].multiplier == 1.0
    assert "folded multiplier" not in found["h.0.attn.c_proj.weight"].explain("lr")


@pytest.mark.parametrize("look", [False, True])
def test_a_block_has_no_hook(look: bool) -> None:
    """A hook on the block would multiply the stream too: refused with the tensor's name."""
    recipe = cdp.Recipe.for_model(make(BASE), BASE, overrides=NAMED, probe=look)
    message = error_of(plan, make(LARGE), recipe, LARGE, multipliers="hook", probe=look)
    assert "h.0.gamma_1 ends the attn branch and has no module of its own" in message
    assert 'use multipliers="fold"' in message


def test_a_factor_beside_them_is_seen() -> None:
    """What else a branch is multiplied by is compared with the base's."""
    recipe = cdp.Recipe.for_model(make(BASE), BASE, overrides=NAMED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan(make(LARGE, factor=0.5), recipe, LARGE)
    assert any("the attn branch = 0.5" in str(line.message) for line in caught)


class Gain(nn.Module):
    """Multiplies by something that it makes of its vector, which starts at 0."""

    def __init__(self, gain: Callable[[Tensor], Tensor], width: int, normed: bool) -> None:
        super().__init__()
        self.scale, self.gain, self.normed = nn.Parameter(torch.zeros(width)), gain, normed

    def forward(self, x: Tensor) -> Tensor:
        return (F.rms_norm(x, x.shape[-1:]) if self.normed else x) * self.gain(self.scale)


class Ended(Block):
    def __init__(self, width: int, gain: Callable[[Tensor], Tensor], normed: bool) -> None:
        super().__init__(width)
        self.post_1, self.post_2 = (Gain(gain, width, normed) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_1(self.attn(self.ln_1(x)))
        return x + self.post_2(self.mlp(self.ln_2(x)))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("gain", "way"),
    [(lambda g: 1 + g, "fold"), (torch.exp, "hook"), (lambda g: 2 * torch.sigmoid(g), "hook")],
    ids=["1 + g", "exp", "sigmoid"],
)
def test_gains_that_are_modules_carry_the_multiplier(
    gain: Callable[[Tensor], Tensor], way: str, normed: bool
) -> None:
    """What ends in a gain of any kind is multiplied by what the plan says: folded where the gain is
    what it stores, or that and 1, and else by a hook."""

    def ended(at: cdp.Scale) -> nn.Module:
        model = NanoGPT(at.width, 0)
        model.h = nn.ModuleList(Ended(at.width, gain, normed) for _ in range(at.depth))
        return model

    named = {"post_1": "attn_post_norm", "post_2": "mlp_post_norm"}
    recipe = cdp.Recipe.for_model(ended(BASE), BASE, overrides=named, no_decay=["hidden_norm"])
    model = ended(LARGE)
    found = plan(model, recipe, LARGE)
    assert found.ways["attn"] == found.ways["mlp"] == way
    found.initialise()
    for layer, block in enumerate(model.h):
        for module, factor in zip(
            (block.post_1, block.post_2), found.residual_multipliers[layer], strict=True
        ):
            x = torch.randn(3, LARGE.width)
            once = F.rms_norm(x, x.shape[-1:]) if normed else x
            torch.testing.assert_close(module(x), factor * once)
