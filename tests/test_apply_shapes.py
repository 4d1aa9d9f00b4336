"""Shapes of people's own making: transposed heads, blocks under any key, and single numbers."""

from collections.abc import Callable

import pytest
import torch
from helpers import error_of
from own_models import VOCAB, NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.plan import plan

SMALL, LARGE = (cdp.Scale(width=w, depth=d, batch=64, tokens=6400) for w, d in ((32, 2), (64, 4)))


class MyLinear(nn.Module):
    """Keeps its weight as [in, out]."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def with_head(head: nn.Module, size: cdp.Scale) -> NanoGPT:
    model = NanoGPT(size.width, size.depth)
    model.lm_head = head  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("outputs", [VOCAB, 500])
def test_a_transposed_head_scales_with_the_stream(outputs: int) -> None:
    """Of a head of a class of its own, the side that is as wide as the stream is the fan-in."""
    recipe = cdp.Recipe.for_model(with_head(MyLinear(32, outputs), SMALL), SMALL, lr=0.01)
    head = plan(with_head(MyLinear(64, outputs), LARGE), recipe, LARGE)["lm_head.weight"]
    assert (head.info.type, head.info.width, head.width_ratio) == ("unembedding", 64, 2)
    assert head.lr == pytest.approx(0.005)


def test_a_head_that_does_not_read_the_stream_is_refused() -> None:
    """Where neither side is as wide as the stream, nobody can tell the fan-in."""
    message = error_of(classify, with_head(MyLinear(48, 500), SMALL))
    assert "cannot tell the role of 1 tensor: lm_head.weight [48, 500]" in message


def test_a_transposed_head_does_not_pass_for_a_place_of_positions() -> None:
    """With as many positions as features, the token embedding is still the other table."""
    model = with_head(MyLinear(32, VOCAB), SMALL)
    model.wpe = nn.Embedding(32, 32)
    assert classify(model).structure.embedding == "wte"


def keyed(size: cdp.Scale, key: Callable[[int], str]) -> NanoGPT:
    """A model whose blocks are in a dictionary."""
    model = NanoGPT(size.width, size.depth)
    blocks = {key(number): block for number, block in enumerate(model.h)}
    model.h = nn.ModuleDict(blocks)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    "key", [str, lambda n: str(n + 1), lambda n: str(10 * n + 7), lambda n: f"block_{n}"]
)
def test_blocks_are_counted_whatever_their_keys(key: Callable[[int], str]) -> None:
    """A dictionary's blocks are numbered in their order, and there are as many as there are."""
    found = classify(keyed(SMALL, key))
    assert found.depth == 2
    layers = {t.layer for t in found if t.name.startswith(f"h.{key(1)}.")}
    assert layers == {2}


class Tempered(NanoGPT):
    """With numbers that are learnt: one for each block, and one for the logits."""

    def __init__(self, size: cdp.Scale) -> None:
        super().__init__(size.width, size.depth)
        self.temp = nn.Parameter(torch.tensor(1.0))
        for block in self.h:
            block.attn.tau = nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    "names",
    [
        {"tau": "sink_bias", "temp": "output_norm"},
        {"tau": "q_norm", "temp": "output_bias"},
        {"tau": "qkv_bias", "temp": "output_norm_bias"},
    ],
)
def test_a_single_number_is_a_vector_of_one(names: dict[str, str]) -> None:
    """With an override it has a plan, of a width that does not grow, and keeps its own start."""
    recipe = cdp.Recipe.for_model(Tempered(SMALL), SMALL, overrides=names)
    planned = plan(Tempered(LARGE), recipe, LARGE)
    planned.initialise(0)
    for name in ("temp", "h.3.attn.tau"):
        assert planned[name].info.width == 1
        assert planned.map.parameters()[name].item() == 1
    assert planned.check(planned.adamw()).passed
