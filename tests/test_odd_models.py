"""Models that are unlike most: planned right, refused, or warned of, and never silently wrong."""

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from models import scale
from own_models import HEAD, VOCAB, Block, CausalSelfAttention, NanoGPT
from studies import write_tokens
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify, read
from completedp.apply.multipliers import hooked
from completedp.apply.plan import Plan, plan
from completedp.apply.probe import probe
from completedp.tasks.task import make_task

WIDTH = 64
BASE, LARGE = scale(depth=4), scale(width=128, depth=8)
OF_BLOCK = r"encoder\.(?P<layer>\d+)\."
ENCODER = {
    OF_BLOCK + "ln_1": "attn_norm",
    OF_BLOCK + "ln_2": "mlp_norm",
    OF_BLOCK + r"attn\.c_attn": "qkv",
    OF_BLOCK + r"attn\.c_proj": "attn_out",
    OF_BLOCK + r"mlp\.c_fc": "mlp_in",
    OF_BLOCK + r"mlp\.c_proj": "mlp_out",
}
Make = Callable[[cdp.Scale], nn.Module]


def stacked(block: Callable[..., nn.Module], at: cdp.Scale) -> NanoGPT:
    """A GPT of other blocks."""
    model = NanoGPT(at.width, 0)
    model.h = nn.ModuleList(block(at.width) for _ in range(at.depth))
    return model


def warned(make: Make, overrides: dict[str, str] | None = None) -> tuple[Plan, list[str]]:
    """A plan at twice the width and depth, and what is said of it that is not of its size."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe = cdp.Recipe.for_model(make(BASE), BASE, overrides=overrides)
        found = plan(make(LARGE), recipe, LARGE)
    lines = [w for w in caught if not issubclass(w.category, cdp.ScaleWarning)]
    return found, [str(line.message) for line in lines]


class Cross(Block):
    """Attention to the stream, then to something else: two branches of one kind."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.cross_attn, self.attn_norm = CausalSelfAttention(width, causal=False), self.ln_1

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x = x + self.cross_attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def test_two_branches_of_one_kind_are_each_added() -> None:
    """The second reads what the first adds; each alone is in proportion, and both are planned."""

    def make(at: cdp.Scale) -> nn.Module:
        model = stacked(Cross, at)
        for block in model.h:
            del block.attn_norm
        return model

    found, said = warned(make)
    assert not said
    for branch in ("attn", "cross_attn"):
        assert found[f"h.0.{branch}.c_proj.weight"].lr == found["h.0.attn.c_proj.weight"].lr


class ThirdNormed(Block):
    """Every third block norms what its attention gives."""

    def __init__(self, width: int, index: int) -> None:
        super().__init__(width)
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        added = self.attn(self.ln_1(x))
        x = x + (F.rms_norm(added, added.shape[-1:]) if self.index == 2 else added)
        return x + self.mlp(self.ln_2(x))


def test_every_block_is_looked_at() -> None:
    """One block of another kind among the others is found wherever it is."""
    model = NanoGPT(WIDTH, 0)
    model.h = nn.ModuleList(ThirdNormed(WIDTH, i) for i in range(4))
    assert "the attn branch of block 3 is not added" in probe(classify(model)).faults[0]


class TwoHeads(NanoGPT):
    """Tied, with a head of its own for something else behind the same norm."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.lm_head.weight = self.wte.weight
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return self.lm_head(x), self.score(x)


def test_the_factor_of_tied_logits_is_theirs_alone() -> None:
    """With another head behind the norm it is not folded into that, which would have it twice."""
    found, _ = warned(lambda at: TwoHeads(at.width, at.depth))
    assert found.ways["output"] == "hook"
    assert list(hooked(found)) == ["lm_head"]
    assert found["ln_f.weight"].init_value == 1.0
    recipe = cdp.Recipe.for_model(TwoHeads(WIDTH, 4), BASE)
    assert "which score.weight may read" in error_of(
        plan, TwoHeads(128, 8), recipe, LARGE, multipliers="fold"
    )


class Post(Block):
    """Branches that end in norms."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attn_post_norm, self.mlp_post_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_post_norm(self.attn(self.ln_1(x)))
        return x + self.mlp_post_norm(self.mlp(self.ln_2(x)))


class TwoLists(NanoGPT):
    """An encoder, whose mean is added to what a decoder reads."""

    encoder: nn.ModuleList

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1]))
        context = embedded
        for block in self.encoder:
            context = block(context)
        x = embedded + context.mean(1, keepdim=True)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def two_lists(at: cdp.Scale, encoder: Any, decoder: Any, blocks: int | None = None) -> nn.Module:
    """Two lists, the encoder of so many `blocks`, or as many as the decoder has."""
    model = TwoLists(at.width, 0)
    model.encoder = nn.ModuleList(encoder(at.width) for _ in range(blocks or at.depth))
    model.h = nn.ModuleList(decoder(at.width) for _ in range(at.depth))
    return model


@pytest.mark.parametrize(("encoder", "decoder"), [(Block, Post), (Post, Block)])
def test_blocks_of_two_lists_have_ends_of_their_own(encoder: Any, decoder: Any) -> None:
    """Norms that end the branches of one list do not take the multipliers of the other's."""
    overrides = dict(ENCODER)
    if encoder is Post:
        overrides |= {OF_BLOCK + f"{b}_post_norm": f"{b}_post_norm" for b in ("attn", "mlp")}
    found, said = warned(lambda at: two_lists(at, encoder, decoder), overrides)
    assert all("tensors of blocks outside h (such as encoder.0." in line for line in said)
    for name, kind in (("encoder", encoder), ("h", decoder)):
        end = "attn_post_norm" if kind is Post else "attn.c_proj"
        assert "folded multiplier" in found[f"{name}.3.{end}.weight"].explain("lr")
        others = [t for t in found.tensors if t.name.startswith(f"{name}.3.attn.c_proj.weight")]
        assert ("folded multiplier" in others[0].explain("lr")) == (kind is Block)


@pytest.mark.parametrize(("base", "large"), [(4, 4), (8, 8), (2, 2), (4, 12)])
def test_lists_of_blocks_grow_alike(base: int, large: int) -> None:
    """Where one grows less or more than the others, which have one ratio, a line says which."""
    small, deep = (two_lists(at, Block, Block, n) for at, n in ((BASE, base), (LARGE, large)))
    depths = max(BASE.depth, base), max(LARGE.depth, large)
    at, target = (replace(s, depth=d) for s, d in zip((BASE, LARGE), depths, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe = cdp.Recipe.for_model(small, at, overrides=ENCODER)
        message = error_of(plan, deep, recipe, target)
    assert " blocks and had " in message
    assert "let them grow alike" in message


def test_what_ends_a_branch_is_of_a_block() -> None:
    """An override that does not say the block would lose the multiplier: one line says how."""
    overrides = {name.replace(OF_BLOCK, r"encoder\.\d+\."): kind for name, kind in ENCODER.items()}
    message = error_of(classify, two_lists(BASE, Block, Block), overrides)
    assert "encoder.0.attn.c_proj.weight" in message
    assert "nothing says of which block" in message
    assert r"(?P<layer>\d+)" in message


class Layered(Block):
    """LayerScale at the end of its branches."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.ls = nn.ParameterList(nn.Parameter(torch.full((width,), 1e-4)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls[0] * self.attn(self.ln_1(x))
        return x + self.ls[1] * self.mlp(self.ln_2(x))


def test_on_the_meta_device_tensors_start_where_the_models_do() -> None:
    """What the base starts at a constant does so at a target that has no values yet."""
    overrides = {r"ls\.0": "attn_post_norm", r"ls\.1": "mlp_post_norm"}
    recipe = cdp.Recipe.for_model(stacked(Layered, BASE), BASE, overrides=overrides, probe=False)
    real = plan(stacked(Layered, LARGE), recipe, LARGE, probe=False)
    with torch.device("meta"):
        meta = plan(stacked(Layered, LARGE), recipe, LARGE, probe=False)
    for name in ("h.0.ls.0", "h.7.ls.1"):
        assert meta[name].init_value == real[name].init_value == pytest.approx(5e-5)
    with torch.device("meta"), pytest.warns(cdp.ModelWarning, match="starts h.0.ls.0 cannot be"):
        cdp.Recipe.for_model(stacked(Layered, BASE), BASE, overrides=overrides, probe=False)


class Adapted(Block):
    """A pair of small matrices, the second of which starts at 0, and norms of an own name."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.n1, self.down, self.up = self.ln_1, nn.Linear(width, 4), nn.Linear(4, width)
        del self.ln_1
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.n1(x))
        y = self.ln_2(x)
        return x + self.mlp(y) + self.up(self.down(y))


def test_what_is_searched_starts_where_its_model_does(tmp_path: Path) -> None:
    """Where a tool makes the models, which it keeps without weights, starts are seen all the same,
    and nobody is told of a device."""
    overrides = {"n1": "attn_norm", "down": "mlp_in", r"\.up": "mlp_out"}
    task = make_task(
        lambda at: stacked(Adapted, at),
        write_tokens(tmp_path),
        context=16,
        eval_examples=8,
        overrides=overrides,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = task.recipe(BASE)
        found = task.plan(recipe, LARGE)
    assert found["h.0.up.weight"].init_value == 0.0
    assert found["h.0.up.weight"].init_std is None
    assert found["h.0.n1.weight"].init_value == 1.0


class Slope(Block):
    """An activation with a slope to learn."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        del self.ln_1, self.ln_2
        self.act = nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(F.rms_norm(x, x.shape[-1:]))
        return x + self.mlp.c_proj(self.act(self.mlp.c_fc(F.rms_norm(x, x.shape[-1:]))))


class Gain(nn.Module):
    """A vector that is multiplied by, called as a norm's gain is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Gained(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        del self.ln_1, self.ln_2
        self.scale = Gain(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale(self.attn(F.rms_norm(x, x.shape[-1:])))
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))


@pytest.mark.parametrize(("block", "name"), [(Slope, "h.0.act.weight"), (Gained, "h.0.scale")])
def test_what_does_not_normalise_is_no_norm(block: Any, name: str) -> None:
    """A vector called weight that multiplies, or bends, is not started at 1: its type is asked."""
    message = error_of(classify, stacked(block, BASE))
    assert "cannot tell the role of 4 tensors" in message
    assert name in message


class RawExperts(nn.Module):
    """Experts in two tensors, one that all tokens go to, and what chooses by the name of gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4, bias=False)
        self.w1 = nn.Parameter(0.02 * torch.randn(4, width, 2 * width))
        self.w2 = nn.Parameter(0.02 * torch.randn(4, 2 * width, width))
        self.shared = nn.ModuleDict(
            {"up": nn.Linear(width, width), "down": nn.Linear(width, width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.w1))
        routed = torch.einsum("bteh,ehd,bte->btd", hidden, self.w2, weights)
        return routed + self.shared["down"](F.gelu(self.shared["up"](x)))


class Experts(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.mlp = RawExperts(width)


def test_a_gate_for_stacked_experts_is_a_router() -> None:
    """One output for each expert of the stack beside it; then experts' fan-ins are their own."""
    found, _ = warned(lambda at: stacked(Experts, at))
    assert found["h.0.mlp.gate.weight"].info.type == "router"
    assert found["h.0.mlp.w2"].info.width == 2 * 128


def test_no_hook_multiplies_what_another_one_did() -> None:
    """A module whose own tensors end its branch has no second hook inside it."""
    recipe = cdp.Recipe.for_model(stacked(Experts, BASE), BASE)
    message = error_of(plan, stacked(Experts, LARGE), recipe, LARGE, multipliers="hook")
    assert "a hook on h.0.mlp" in message
    assert "inside it" in message


class OtherKeys(nn.Module):
    """torch's attention, to something of another width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = {"kdim": 24, "vdim": 24, "bias": False, "batch_first": True}
        self.attn = nn.MultiheadAttention(width, width // HEAD, **sizes)
        self.register_buffer("context", torch.randn(1, 5, 24))

    def forward(self, x: Tensor) -> Tensor:
        context = self.context.expand(len(x), -1, -1)
        return self.attn(x, context, context, need_weights=False)[0]


class KeysOfOtherWidth(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attn = OtherKeys(width)

    """torch's attention keeps weights as [output, input], whatever their sides."""


def test_keys_of_another_width_have_its_fan_in() -> None:
    """torch's attention keeps weights as [output, input], whatever their sides."""
    found, _ = warned(lambda at: stacked(KeysOfOtherWidth, at))
    keys = found["h.0.attn.attn.k_proj_weight"]
    assert (keys.info.type, keys.info.width, keys.width_ratio) == ("qkv", 24, 1.0)
    assert found["h.0.attn.attn.q_proj_weight"].width_ratio == 2.0


def test_a_linear_layer_after_the_table_is_no_embedding() -> None:
    """Whatever it is called: what reads the stream is asked for, a hidden layer among the types."""
    model = NanoGPT(WIDTH, 2)
    model.token_embed_proj = nn.Linear(WIDTH, WIDTH)
    message = error_of(classify, model)
    assert "cannot tell the role of 2 tensors: token_embed_proj.weight" in message
    assert "'token_embed_proj': 'mlp_in'" in message


@pytest.mark.parametrize("kind", ["embedding", "tied_embedding", "position"])
@pytest.mark.parametrize("layer", [nn.Linear(WIDTH, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3)])
def test_what_reads_the_stream_is_no_embedding(layer: nn.Module, kind: str) -> None:
    """A layer before the blocks or the head is neither offered an embedding's types nor takes one;
    a hidden layer's is guessed, and what is guessed is planned so."""
    model = NanoGPT(WIDTH, 2)
    model.stem = layer
    (suggestion,) = read(model).suggestions
    assert suggestion.types == ("mlp_in",)
    message = error_of(classify, model, {"stem": kind})
    assert "stem.weight" in message
    assert f"cannot be of type '{kind}'" in message
    found = {t.name: t for t in classify(model, {suggestion.pattern: "mlp_in"})}
    assert (found["stem.weight"].width, found["stem.weight"].layer) == (WIDTH, None)


class Values(NanoGPT):
    """A second table, which the first block's attention reads and not its input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.values = nn.Embedding(VOCAB, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x) + self.values(tokens)
        return self.lm_head(self.ln_f(x))


def test_a_table_that_is_read_elsewhere_is_no_inputs_embedding() -> None:
    """It does not change what comes into the first block: refused, unless an override says so."""
    message = error_of(cdp.Recipe.for_model, Values(WIDTH, 2), scale())
    assert "values.weight [257, 64] of type position was taken for an input's embedding" in message
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cdp.Recipe.for_model(Values(WIDTH, 2), scale(), overrides={"values": "position"})


def test_a_stream_that_changes_between_blocks_is_warned_of() -> None:
    """Depth's rules are those of a stream that only blocks add to: said with the first place."""

    class Fading(NanoGPT):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1]))
            for block in self.h:
                x = 0.9 * block(x)
            return self.lm_head(self.ln_f(x))

    _, said = warned(lambda at: Fading(at.width, at.depth))
    assert len(said) == 2  # of the base, and of the target
    assert all("what comes into block 2 is not what block 1 gave" in line for line in said)


class Uncalled(NanoGPT):
    """A norm that is no part of the forward pass, which has one without a gain."""

    def __init__(self, at: cdp.Scale, tied: bool) -> None:
        super().__init__(at.width, at.depth)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(F.layer_norm(x, x.shape[-1:]))


def test_tensors_without_an_effect_are_warned_of() -> None:
    """A module outside the blocks that is never called is said; the factor of tied logits is not
    lost in it."""
    _, said = warned(lambda at: Uncalled(at, tied=False))
    assert len(said) == 2  # of the base, and of the target
    assert all("do not depend on ln_f.weight" in line and "ln_f.bias" in line for line in said)
    with pytest.warns(cdp.ModelWarning, match="do not depend on"):
        recipe = cdp.Recipe.for_model(Uncalled(BASE, tied=True), BASE)
    with pytest.warns(cdp.ModelWarning, match="do not depend on"):
        message = error_of(plan, Uncalled(LARGE, tied=True), recipe, LARGE)
    assert "ln_f.weight has no effect on the logits" in message
    with pytest.warns(cdp.ModelWarning, match="do not depend on"):
        hook = plan(Uncalled(LARGE, tied=True), recipe, LARGE, multipliers="hook")
    assert hooked(hook)["lm_head"] == 0.5


class Looped(NanoGPT):
    """One block, as often as the width has heads."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for _ in range(self.wte.embedding_dim // HEAD):
            x = self.h[0](x)
        return self.lm_head(self.ln_f(x))


def test_a_block_that_is_called_more_often_is_warned_of() -> None:
    """Depth counts blocks, and not their calls: another number of them is told with the base's."""
    base, large = scale(depth=1), scale(width=128, depth=1)
    recipe = cdp.Recipe.for_model(Looped(64, 1), base)
    with pytest.warns(UserWarning, match="probed: calls of a block = 16 and was 8 at base"):
        plan(Looped(128, 1), recipe, large)


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / math.sqrt(self.in_features)


class OwnTable(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * math.sqrt(self.embedding_dim)


class Inside(NanoGPT):
    """Factors inside a linear layer and a table, where the forward pass does not show them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.wte = OwnTable(VOCAB, width)
        for block in self.h:
            block.mlp.c_fc = OwnLinear(width, 4 * width)


class Offset(nn.Embedding):
    """Positions that are made of a mask, as OPT's are."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.cumsum(-1).long() + 1)


class Masked(NanoGPT):
    """A table that is given no ids."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.wpe = Offset(64, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.ones_like(tokens, dtype=torch.float32))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def test_modules_that_are_given_something_else_have_no_factor() -> None:
    """A table of positions that reads a mask is planned as any other."""
    found, said = warned(lambda at: Masked(at.width, at.depth))
    assert not said
    assert found["wpe.weight"].info.type == "position"


class Attending(CausalSelfAttention):
    """Attention whose logits shrink with the width."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / x.shape[-1])
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class OwnAttention(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attn = Attending(width)


class OwnHead(NanoGPT):
    """Logits over the width, beginning with 1 at the base: what muP's readouts do."""

    def forward(self, tokens: Tensor) -> Any:
        return {"logits": super().forward(tokens) * WIDTH / self.wte.embedding_dim}


class OwnDepth(Block):
    """Branches over the depth, beginning with 1 at the base."""

    depth = 4

    def forward(self, x: Tensor) -> Tensor:
        x = x + 4 / self.depth * self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def of_depth(at: cdp.Scale) -> nn.Module:
    model = stacked(OwnDepth, at)
    for block in model.h:
        block.depth = at.depth
    return model


class ByLayer(Block):
    """Branches that shrink from block to block."""

    index = 0

    def forward(self, x: Tensor) -> Tensor:
        x = x + (1 + self.index) ** -0.5 * self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def by_layer(at: cdp.Scale) -> nn.Module:
    model = stacked(ByLayer, at)
    for index, block in enumerate(model.h):
        block.index = index
    return model


class ForeignLinear(nn.Module):
    """A linear layer that is none of torch's, and divides by the square root of its fan-in."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_out, fan_in))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) / math.sqrt(x.shape[-1])


class OfForeignLinear(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.mlp.c_fc, self.mlp.c_proj = (
            ForeignLinear(width, 4 * width),
            ForeignLinear(4 * width, width),
        )


FACTORS: dict[str, tuple[Make, dict[str, tuple[float, float]]]] = {
    "inside": (
        lambda at: Inside(at.width, at.depth),
        {"what mlp_in gives": (0.125, 128**-0.5), "what embedding gives": (8.0, 128**0.5)},
    ),
    "attention": (
        lambda at: stacked(OwnAttention, at),
        {"attention's logits": (HEAD**0.5 / 64, HEAD**0.5 / 128)},
    ),
    "foreign": (
        lambda at: stacked(OfForeignLinear, at),
        {"what mlp_in gives": (64**-0.5, 128**-0.5), "what mlp_out gives": (256**-0.5, 512**-0.5)},
    ),
    "head": (lambda at: OwnHead(at.width, at.depth), {"logits": (1.0, 0.5)}),
    "depth": (of_depth, {"the attn branch": (1.0, 0.5)}),
    "layers": (by_layer, {"the attn branch of the last block": (4**-0.5, 8**-0.5)}),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_models_own_factors_are_seen_wherever_they_are(name: str) -> None:
    """Each that moved is told with both values, those that are 1 at the base too, and no other."""
    make, moved = FACTORS[name]
    _, said = warned(make)
    told = [re.match(r"probed: (.+) = (\S+) and was (\S+) at base", line) for line in said]
    found = {each[1]: (float(each[3]), float(each[2])) for each in told if each is not None}
    assert len(found) == len(said)
    assert found == {what: pytest.approx(both, rel=1e-4) for what, both in moved.items()}


def test_what_ended_as_it_began_is_not_warned_of() -> None:
    """Of the same models at the base's width and depth nothing is said."""
    for make, _ in FACTORS.values():
        recipe = cdp.Recipe.for_model(make(BASE), BASE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", cdp.ScaleWarning)
            plan(make(BASE), recipe, replace(BASE, tokens=2 * BASE.tokens))


class GroupedFused(nn.Module):
    """One matrix for queries, keys and values, fewer of the latter, with norms over all of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = nn.RMSNorm(width), nn.RMSNorm(width // 2)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        q, k, v = self.qkv_proj(x).split([width, width // 2, width // 2], -1)
        parts = (self.q_norm(q), self.k_norm(k), v)
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Grouped(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attn = GroupedFused(width)


def test_norms_over_fewer_keys_than_queries_are_over_all_heads() -> None:
    """Gains of one head are as long as each other; these are not, and say nothing of its size."""
    found, said = warned(lambda at: stacked(Grouped, at))
    assert not said
    assert found["h.0.attn.k_norm.weight"].info.type == "k_norm_full"
    assert found.map.head_dim == HEAD


def test_a_model_that_is_all_frozen_is_said_to_be() -> None:
    """It has blocks, and nothing to plan."""
    model = NanoGPT(WIDTH, 4).requires_grad_(False)
    assert "every parameter of the model is frozen" in error_of(cdp.Recipe.for_model, model, BASE)
    recipe = cdp.Recipe.for_model(NanoGPT(WIDTH, 4), BASE)
    assert "every parameter of the model is frozen" in error_of(plan, model, recipe, BASE)


def test_blocks_with_keys_share_an_override() -> None:
    """What is suggested for blocks in a dict fits those of a deeper model, too."""

    class Keyed(NanoGPT):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.layers = nn.ModuleDict({f"layer_{n}": block for n, block in enumerate(self.h)})
            del self.h
            for block in self.layers.values():
                block.a1, block.a2 = block.ln_1, block.ln_2
                del block.ln_1, block.ln_2

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1]))
            for block in self.layers.values():
                x = x + block.attn(block.a1(x))
                x = x + block.mlp(block.a2(x))
            return self.lm_head(self.ln_f(x))

    said = error_of(cdp.Recipe.for_model, Keyed(WIDTH, 2), scale(depth=2))
    assert "overrides={'a1': 'attn_norm', 'a2': 'mlp_norm'}" in said
    named = {"a1": "attn_norm", "a2": "mlp_norm"}
    assert cdp.Recipe.for_model(Keyed(WIDTH, 4), BASE, overrides=named)
