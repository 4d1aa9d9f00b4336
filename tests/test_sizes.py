"""Sizes: a model's own factors are seen wherever they are, and sound models have none."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, hugging_face
from models import scale
from own_models import HEAD, MLP, Block, CausalSelfAttention, NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.model_map import SIZED
from completedp.apply.plan import plan
from completedp.apply.sizes import BEHIND, MOVED, sizes
from completedp.common.errors import ModelWarning
from completedp.studies.store import _first_difference
from completedp.training.folder import recipe_digest

BASE, LARGE = scale(depth=4), scale(width=128, depth=8)
WIDE = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("n_embd", "n_inner", "n_head"),
)
"""Settings of families that grow with the width."""
Make = Callable[[cdp.Scale], nn.Module]


class Attention(CausalSelfAttention):
    """Written out, with a scale of its own."""

    def __init__(self, width: int, scaled: Callable[[int], float]) -> None:
        super().__init__(width)
        self.scaled = scaled

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        logits = q @ k.transpose(-2, -1) * self.scaled(x.shape[-1])
        unseen = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = logits.masked_fill(unseen, -math.inf).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(-2))


class Fused(CausalSelfAttention):
    """The scale of the logits is taken into the queries."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        q = q * x.shape[-1] ** -0.5
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class OwnLinears(nn.Module):
    """Weights of its own, each product over the square root of its fan-in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4 * width, width))
        self.down = nn.Parameter(torch.randn(width, 4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(F.linear(x, self.up) / math.sqrt(x.shape[-1]))
        return F.linear(y, self.down) / math.sqrt(y.shape[-1])


class Middle(MLP):
    """A factor before the last layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)) / math.sqrt(x.shape[-1]))


class Experts(nn.Module):
    """Two of four, and what they give shrinks with the depth."""

    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(MLP(width) for _ in range(4))
        self.depth = depth

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        kept = weights * (weights >= weights.topk(2, -1).values[..., 1:])
        parts = (kept[..., i : i + 1] * each(x) for i, each in enumerate(self.experts))
        return sum(parts, torch.zeros_like(x)) / math.sqrt(self.depth)


class PerHead(nn.Module):
    """Attention as einsum writes it, with a factor at its end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(heads, width, HEAD)) for _ in "qkv")
        self.wo = nn.Parameter(torch.randn(heads, HEAD, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,hdk->bhtk", x, w) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhtk,hkd->btd", y, self.wo) * (64 / x.shape[-1])


class Cross(Block):
    """Two branches of one kind, and one factor of both."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.cross_attn = CausalSelfAttention(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + (64 / x.shape[-1]) * (self.attn(y) + self.cross_attn(y))
        return x + self.mlp(self.ln_2(x))


class Factor(Block):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.factor * self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def one_block(at: cdp.Scale) -> nn.Module:
    """The second block alone."""
    model = stacked(Factor, at)
    model.h[1].factor = 64 / at.width
    return model


class Functional(NanoGPT):
    """Logits without a module for them, of the head's weight or of the embedding's."""

    def __init__(self, at: cdp.Scale, tied: bool = False, factor: float = 64.0) -> None:
        super().__init__(at.width, at.depth)
        self.tied, self.factor = tied, factor
        if tied:
            del self.lm_head

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        weight = self.wte.weight if self.tied else self.lm_head.weight
        return F.linear(self.ln_f(x) * (self.factor / x.shape[-1]), weight)


class UnitNorm(nn.Module):
    """A stream of length 1, whose features shrink with the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.norm(dim=-1, keepdim=True)


class Outside(NanoGPT):
    """With parts of its own before the blocks and behind them."""

    def __init__(self, at: cdp.Scale, tied: bool = False, **parts: Any) -> None:
        super().__init__(at.width, at.depth)
        self.before, self.behind = parts.get("before"), parts.get("behind")
        if "norm" in parts:
            self.ln_f = parts["norm"](at.width)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        x = self.before(x) if self.before else x
        x = x + self.wpe(torch.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return self.lm_head(self.behind(x) if self.behind else x)


def over_root(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) / math.sqrt(x.shape[-1])


def over_width(x: Tensor) -> Tensor:
    return x / x.shape[-1]


def no_norm(width: int) -> nn.Module:
    return nn.Identity()


def stacked(block: Callable[[int], nn.Module], at: cdp.Scale) -> NanoGPT:
    model = NanoGPT(at.width, 0)
    model.h = nn.ModuleList(block(at.width) for _ in range(at.depth))
    return model


def with_attn(make: Callable[[int], nn.Module]) -> Make:
    def made(at: cdp.Scale) -> nn.Module:
        model = stacked(Block, at)
        for block in model.h:
            block.attn = make(at.width)
        return model

    return made


def with_mlp(make: Callable[..., nn.Module], of_depth: bool = False) -> Make:
    def made(at: cdp.Scale) -> nn.Module:
        model = stacked(Block, at)
        for block in model.h:
            block.mlp = make(at.width, at.depth) if of_depth else make(at.width)
        return model

    return made


TIED = {"wte": "tied_embedding"}
MOVE: dict[str, tuple[Make, str, float]] = {
    "written out": (with_attn(lambda d: Attention(d, lambda n: 8 / n)), "attention's logits", 0.5),
    "by width": (with_attn(lambda d: Attention(d, lambda n: n**-0.5)), "attention's logits", 0.71),
    "queries": (with_attn(Fused), "attention's logits", 0.71),
    "own linear": (with_mlp(OwnLinears), "the mlp branch", 0.5),
    "middle": (with_mlp(Middle), "the mlp branch", 0.71),
    "experts": (with_mlp(Experts, of_depth=True), "the mlp branch", 0.71),
    "einsum": (with_attn(PerHead), "the attn branch", 0.5),
    "two": (lambda at: stacked(Cross, at), "the attn branch", 0.5),
    "one block": (one_block, "the attn branch where it is smallest", 0.5),
    "unit norm": (lambda at: Outside(at, norm=UnitNorm), BEHIND, 0.71),
    "unit norm, tied": (lambda at: Outside(at, True, norm=UnitNorm), BEHIND, 0.71),
    "no norm": (lambda at: Outside(at, norm=no_norm, behind=over_width), BEHIND, 0.5),
    "embeddings": (lambda at: Outside(at, before=over_root), "embeddings in the stream", 0.71),
    "head": (Functional, BEHIND, 0.5),
    "tied": (lambda at: Functional(at, tied=True), BEHIND, 0.5),
}
SOUND: dict[str, Make] = {
    "plain": lambda at: stacked(Block, at),
    "written out": with_attn(lambda width: Attention(width, lambda _: HEAD**-0.5)),
    "experts": with_mlp(Experts),
    "tied": lambda at: Functional(at, tied=True, factor=float(at.width)),
}


def said(make: Make, overrides: dict[str, str] | None) -> list[str]:
    """What is warned of the model in a plan at twice the width and depth."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe = cdp.Recipe.for_model(make(BASE), BASE, overrides=overrides)
        plan(make(LARGE), recipe, LARGE)
    return [str(line.message) for line in caught if line.category is ModelWarning]


@pytest.mark.parametrize("name", MOVE)
def test_what_moves_with_the_size_is_said_in_one_line(name: str) -> None:
    """Wherever the factor is, one line says of what, by how much, and since which size."""
    make, what, ratio = MOVE[name]
    (line,) = said(make, TIED if name == "tied" else None)
    assert "width 64 to 128 and depth 4 to 8" in line
    found = float(line.split(f"{what} x")[1].split(" ")[0])
    assert found == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_have_the_same_sizes_at_every_width_and_depth(name: str) -> None:
    """From width 32 to 256 no size changes by half of what is warned of."""
    found = []
    for width, depth in ((32, 2), (64, 3), (256, 2)):
        model = SOUND[name](scale(width=width, depth=depth))
        found.append(sizes(classify(model, TIED if name == "tied" else None)))
    assert {len(each) for each in found} == {7}
    assert_alike(found)


@pytest.mark.parametrize("family", ["gemma3_text", "gpt2", "mixtral", "olmo2", "deepseek_v3"])
def test_families_have_the_same_sizes_when_they_are_wider(family: str) -> None:
    """Latent attention, experts, norms after branches and shared keys among them."""
    found = []
    for times in (1, 3):
        options = {k: v * times if k in WIDE else v for k, v in FAMILIES[family][0].items()}
        found.append(sizes(classify(hugging_face(family, **options))))
    assert found[0].keys() == found[1].keys() >= {"size: the attn branch", "size: the logits"}
    assert_alike(found)


def assert_alike(found: list[dict[str, float]]) -> None:
    for name in found[0]:
        values = [each[name] for each in found]
        assert max(values) / min(values) < MOVED**0.5, (name, values)


def test_a_plans_own_multipliers_are_no_factors() -> None:
    """What an earlier plan attached to a model is not taken for the model's own."""
    model = stacked(Block, LARGE)
    before = sizes(classify(model))
    recipe = cdp.Recipe.for_model(stacked(Block, BASE), BASE)
    found = plan(model, recipe, LARGE, multipliers="hook")
    found.initialise()
    hooks = [dict(module._forward_hooks) for module in model.modules()]
    assert any(hooks)
    assert sizes(classify(model)) == before
    assert [dict(module._forward_hooks) for module in model.modules()] == hooks


def test_an_exact_factor_says_it_all() -> None:
    """Where a factor is known by its number nothing more is said of sizes."""

    def every_block(at: cdp.Scale) -> nn.Module:
        model = stacked(Factor, at)
        for block in model.h:
            block.factor = 64 / at.width
        return model

    assert not said(every_block, None)


def test_what_is_undone_behind_the_last_block_is_no_factor() -> None:
    """Only all that lies between the last block and the logits counts."""

    def undone(at: cdp.Scale) -> nn.Module:
        model = Functional(at, factor=at.width**1.5)
        model.ln_f = UnitNorm(at.width)  # type: ignore[assignment]
        return model

    assert not said(undone, None)


def test_sizes_that_a_base_did_not_record_are_not_compared() -> None:
    """A recipe of an older version plans as it did."""
    make, what, _ = MOVE["unit norm"]
    recipe = cdp.Recipe.for_model(make(BASE), BASE)
    kept = {k: v for k, v in (recipe.constants or {}).items() if k != f"{SIZED}{what}"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        plan(make(LARGE), replace(recipe, constants=kept), LARGE)


def test_checks_fail_where_attentions_logits_shrink() -> None:
    """The coordinate check has a row for sizes that move along its axis."""
    make = MOVE["written out"][0]
    options: Any = {"widths": (32, 64), "depths": (2,), "seeds": 1, "steps": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check = cdp.coordcheck(make, batch=64, context=16, tolerance=9.0, **options)
    (row,) = check.failures()
    assert (row.quantity, row.what) == ("factor", "size of attention's logits")
    assert row.slope == pytest.approx(-1, abs=0.2)


def test_no_run_and_no_study_depends_on_sizes() -> None:
    """They are measured: another machine's last digits, or an older version that measured none, do
    not make a run or a study another."""
    recipe = cdp.Recipe.for_model(NanoGPT(64, 2), scale(depth=2))
    assert recipe.constants is not None
    rounded = {k: v * 1.001 if k.startswith(SIZED) else v for k, v in recipe.constants.items()}
    none = {k: v for k, v in recipe.constants.items() if not k.startswith(SIZED)}
    assert len(none) < len(rounded)
    for constants in (rounded, none):
        other = replace(recipe, constants=constants)
        assert recipe_digest(other) == recipe_digest(recipe)
        assert _first_difference({"recipe": other.to_dict()}, {"recipe": recipe.to_dict()}) == ""
