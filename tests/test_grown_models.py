"""What else may grow in a model: groups of blocks, experts, blocks in several places or lists."""

import warnings
from typing import Any

import pytest
import torch
from families import SIZES, hugging_face
from helpers import error_of
from models import scale
from own_models import MLP, Block, NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.plan import plan

BASE, LARGE = scale(depth=4), scale(width=128, depth=8)


class Group(nn.Module):
    """Some blocks, and a norm after them."""

    def __init__(self, width: int, blocks: list[nn.Module], *, normed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def grouped(at: cdp.Scale, **options: Any) -> nn.Module:
    """Two groups, of half of the blocks each."""
    model = NanoGPT(at.width, 0)
    half = at.depth // 2
    groups = ([Block(at.width) for _ in range(half)] for _ in range(2))
    model.h = nn.ModuleList(Group(at.width, blocks, **options) for blocks in groups)
    return model


def test_the_blocks_of_groups_are_counted() -> None:
    """Groups that grow are more depth, and are planned as the same blocks in one list."""
    recipe = cdp.Recipe.for_model(grouped(BASE), BASE)
    found = plan(grouped(LARGE), recipe, LARGE)
    flat = plan(NanoGPT(LARGE.width, LARGE.depth), recipe, LARGE)
    assert [t.info.layer for t in found.tensors] == [t.info.layer for t in flat.tensors]
    assert [t.values for t in found.tensors] == [t.values for t in flat.tensors]
    two = scale(depth=2)
    assert "has 4 blocks and the base scale says 2" in error_of(
        cdp.Recipe.for_model, grouped(BASE), two
    )


def test_what_is_between_groups_blocks_is_asked() -> None:
    """A norm of a group is in no block, and is not the one before the logits."""
    message = error_of(classify, grouped(BASE, normed=True))
    assert "h.0.norm.weight [64]" in message
    assert "mlp_norm" in message


class InRow(nn.Module):
    """A branch with its norm, as one module in a row of them."""

    def __init__(self, width: int, branch: nn.Module) -> None:
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(width), branch


def test_branches_in_a_row_are_one_block() -> None:
    """Modules of one class whose tensors differ are a block's branches, and no blocks."""
    model = NanoGPT(64, 0)
    for _ in range(3):
        block = Block(64)
        model.h.append(nn.ModuleList([InRow(64, block.attn), InRow(64, block.mlp)]))
    named = {r"\d\.0\.norm": "attn_norm", r"\d\.1\.norm": "mlp_norm"}
    named |= {r"0\.branch\.c_proj": "attn_out", "c_attn": "qkv"}
    named |= {r"1\.branch\.c_proj": "mlp_out", "c_fc": "mlp_in"}
    assert classify(model, named).depth == 3


class Chosen(nn.Module):
    """Experts in a list, and the two that a router chooses for a token."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(MLP(width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        chosen = weights >= weights.topk(2).values[..., -1:]
        parts = zip((weights * chosen).unbind(-1), self.experts, strict=True)
        each = (part[..., None] * expert(x) for part, expert in parts)
        return torch.stack(list(each)).sum(0)


def with_experts(at: cdp.Scale, experts: int = 4) -> nn.Module:
    """A GPT of experts."""
    model = NanoGPT(at.width, at.depth)
    for block in model.h:
        block.mlp = Chosen(at.width, experts)
    return model


def mixtral(at: cdp.Scale, experts: int = 4, chosen: int = 2) -> nn.Module:
    """One of transformers."""
    sizes = {"hidden_size": at.width, "num_hidden_layers": at.depth, "head_dim": 16}
    sizes |= {"num_attention_heads": at.width // 16, "num_key_value_heads": at.width // 16}
    sizes |= {"num_local_experts": experts, "num_experts_per_tok": chosen}
    return hugging_face("mixtral", **(SIZES | sizes))


@pytest.mark.parametrize(
    ("make", "changed", "said"),
    [
        (with_experts, {"experts": 8}, ["experts = 8 and was 4"]),
        (with_experts, {}, []),
        (mixtral, {"experts": 8, "chosen": 2}, ["experts = 8 and was 4"]),
        (mixtral, {"experts": 4, "chosen": 1}, ["experts a token = 1 and was 2"]),
        (mixtral, {}, []),
    ],
)
def test_other_experts_are_warned_of(make: Any, changed: dict[str, int], said: list[str]) -> None:
    """Another number of experts, or of those that a token goes to, is said beside the base's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan(make(LARGE, **changed), cdp.Recipe.for_model(make(BASE), BASE), LARGE)
    lines = [str(w.message) for w in caught if "at base" in str(w.message)]
    assert len(lines) == len(said)
    assert all(start in line for start, line in zip(said, lines, strict=True))


@pytest.mark.parametrize("kind", ["all", "pairs", "wrapped", "tied", "in a group"])
def test_blocks_in_several_places_are_refused(kind: str) -> None:
    """Neither the places nor the blocks are the depth of shared layers: one line names two."""
    one, two = Block(64), Block(64)
    model = NanoGPT(64, 0)
    if kind == "tied":
        for path, parameter in one.named_parameters():
            module, _, key = path.rpartition(".")
            two.get_submodule(module).register_parameter(key, parameter)
    model.h = {
        "all": nn.ModuleList([one] * 4),
        "pairs": nn.ModuleList([one, one, two, two]),
        "wrapped": nn.ModuleList([Group(64, [one]), Group(64, [one])]),
        "tied": nn.ModuleList([one, two]),
        "in a group": nn.ModuleList([Group(64, [one, one]), Group(64, [two, two])]),
    }[kind]
    message = error_of(classify, model)
    first, second = ("h.0.layers.0", "h.0.layers.1") if kind == "in a group" else ("h.0", "h.1")
    assert f"{first} and {second} are one block in several places" in message
