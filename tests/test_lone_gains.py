"""Gains that a block holds itself, as LayerScale's and ReZero's: they end branches, their blocks
do not."""

import warnings

import pytest
import torch
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
