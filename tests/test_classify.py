"""Classification: every tensor of the model families that people train, told right."""

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from families import (
    DEPTH,
    EXPERTS,
    FAMILIES,
    GPT2_SIZES,
    GROUPED,
    HEAD,
    HEADS,
    LATENT,
    MEGATRON,
    NANO_GPT,
    OWN_HEAD,
    SIZES,
    TORCHTITAN_BLOCK,
    TORCHTITAN_ENDS,
    TORCHTITAN_MLP,
    TORCHTITAN_MOE,
    Bag,
    D,
    F,
    Kinds,
    V,
    bare,
    hugging_face,
    in_block,
    megatron,
    nano_gpt,
    torchtitan,
)
from helpers import error_of, spelt_out
from models import make_model, scale
from own_models import NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.inspect import inspect_model
from completedp.apply.model_map import ModelMap
from completedp.apply.plan import plan
from completedp.theory.recipe import Recipe


def on_meta(build: Callable[..., nn.Module], **options: Any) -> nn.Module:
    with torch.device("meta"):
        return build(**options)


def check(model: nn.Module, kinds: Kinds) -> ModelMap:
    """Every tensor of the model is of the expected kind, in every block, and no kind is missing."""
    found = classify(model)
    expected = {
        name.replace(".N.", f".{n}."): (*what, n + 1 if ".N." in name else None)
        for name, what in kinds.items()
        for n in range(DEPTH)
    }
    assert {t.name: (t.type, str(t.role), t.width, t.layer) for t in found} == expected
    assert len(found) == len(list(model.parameters()))
    assert found.depth == DEPTH
    assert found.width == D
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_families(family: str) -> None:
    """Every tensor of a family has the type, role, layer and width written down by hand."""
    options, kinds = FAMILIES[family]
    found = check(hugging_face(family, **options), kinds)
    assert {t.offset for t in found} == ({0.0, 1.0} if family == "gemma3_text" else {0.0})


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (nano_gpt, NANO_GPT),
        (torchtitan, TORCHTITAN_ENDS | in_block("layers", TORCHTITAN_BLOCK, TORCHTITAN_MLP)),
        (
            lambda: torchtitan(moe=True),
            TORCHTITAN_ENDS | in_block("layers", TORCHTITAN_BLOCK, TORCHTITAN_MOE),
        ),
        (megatron, MEGATRON),
    ],
    ids=["nanoGPT", "torchtitan", "torchtitan experts", "Megatron"],
)
def test_hand_written_models(model: Callable[[], nn.Module], kinds: Kinds) -> None:
    """Models without a config or Hugging Face's methods are told by their modules and names."""
    check(on_meta(model), kinds)


def test_as_many_positions_as_tokens() -> None:
    """Where both tables fit the logits, the token embedding is told by its name."""
    check(on_meta(nano_gpt, positions=V), NANO_GPT)


@pytest.mark.parametrize(
    ("tokens", "positions", "told"),
    [
        ("tok", "pos", True),
        ("tok_emb", "pos_emb", True),
        ("embed_tokens", "embed_positions", True),
        ("table", "wpe", True),  # what is left
        ("wte", "table", True),
        ("table", "other", False),
    ],
)
def test_tables_of_one_shape_are_told_by_their_names(
    tokens: str, positions: str, told: bool
) -> None:
    """As many positions as tokens: one name that tells is enough, and none is a refusal."""
    model = NanoGPT(32, 2)
    del model.wte, model.wpe
    tables = {name: nn.Embedding(model.lm_head.out_features, 32) for name in (tokens, positions)}
    for name, table in tables.items():
        model.add_module(name, table)
    if told:
        found = {t.name: t.type for t in classify(model)}
        assert found[f"{tokens}.weight"] == "embedding"
        assert found[f"{positions}.weight"] == "position"
    else:
        assert "cannot tell the role of 2 tensors: table.weight" in error_of(classify, model)


REFERENCE = {
    "embedding.weight": "embedding",
    "attn_norm.weight": "attn_norm",
    "attn.qkv.weight": "qkv",
    "attn.qkv.bias": "qkv_bias",
    "attn.q_norm.weight": "q_norm",
    "attn.k_norm.weight": "k_norm",
    "attn.out.weight": "attn_out",
    "attn.out.bias": "attn_out_bias",
    "mlp_norm.weight": "mlp_norm",
    "mlp.up.weight": "mlp_in",
    "mlp.up.bias": "mlp_in_bias",
    "mlp.gate.weight": "mlp_gate",
    "mlp.gate.bias": "mlp_gate_bias",
    "mlp.down.weight": "mlp_out",
    "mlp.down.bias": "mlp_out_bias",
    "output_norm.weight": "output_norm",
    "unembedding.weight": "unembedding",
    "unembedding.bias": "output_bias",
}


def test_the_reference_model() -> None:
    """Every tensor of the reference model has its own type, also inside another model."""
    options = {"bias": True, "output_bias": True, "mlp": "swiglu", "depth": DEPTH}
    for changed in ({}, {"mlp": "gelu", "bias": False}, {"qk_norm": False}):
        model = make_model(device="meta", **(options | changed))
        inside = classify(Bag(net=model))
        plain = classify(model)
        for tensor in plain:
            assert tensor.type == REFERENCE[re.sub(r"^blocks\.\d+\.", "", tensor.name)]
        assert [(f"net.{t.name}", t.type, t.layer, t.width) for t in plain] == [
            (t.name, t.type, t.layer, t.width) for t in inside
        ]


def test_how_says_what_decided() -> None:
    """Structure comes before shape, shape before names, and overrides before all."""
    options, _ = FAMILIES["olmo2"]
    model = hugging_face("olmo2", **options)
    how = {t.name: t.how for t in classify(model, {r"layers\.1\.mlp\.down": "mlp_out"})}
    assert how["model.embed_tokens.weight"] == "structure"
    assert how["lm_head.weight"] == "structure"
    assert how["model.layers.0.mlp.down_proj.weight"] == "shape"
    assert how["model.layers.0.self_attn.q_norm.weight"] == "shape"
    assert how["model.layers.0.mlp.up_proj.weight"] == "name"
    assert how["model.layers.1.mlp.down_proj.weight"] == "override"


def test_shape_decides_against_names() -> None:
    """A matrix that writes to the stream ends its branch whatever it is called."""

    def block() -> nn.Module:
        return Bag(mlp=Bag(w12=bare(D, 2 * F), w3=bare(F, D)), norm=nn.RMSNorm(D))

    model = Bag(embed=nn.Embedding(V, D), blocks=nn.Sequential(block(), block()))
    found = {t.name: t for t in classify(model)}
    assert (found["blocks.1.mlp.w3.weight"].type, found["blocks.1.mlp.w3.weight"].width) == (
        "mlp_out",
        F,
    )
    assert (found["blocks.0.mlp.w12.weight"].type, found["blocks.0.mlp.w12.weight"].layer) == (
        "mlp_in",
        1,
    )


@pytest.mark.parametrize("last", ["proj", "out", "dense", "c_proj", "contract"])
def test_a_feed_forward_without_a_module_of_its_own(last: str) -> None:
    """What a block's own layers read and write with a size in common is a feed-forward, though its
    last word is attention's elsewhere; layers of an attention of another width are none."""

    def block() -> nn.Module:
        attention = Bag(q=bare(D, D), k=bare(D, D), v=bare(D, D), out=bare(D, D))
        return Bag(self_attn=attention, fc=bare(D, F), **{last: bare(F, D)})

    def flat() -> nn.Module:
        names = {"q_proj": bare(D, F), "k_proj": bare(D, 8), "v_proj": bare(D, 8)}
        return Bag(**names, o_proj=bare(F, D))

    def types(make: Callable[[], nn.Module]) -> dict[str, tuple[str, int]]:
        model = Bag(embed=nn.Embedding(V, D), blocks=nn.ModuleList([make(), make()]))
        return {t.name.split(".", 2)[-1]: (t.type, t.width) for t in classify(model)}

    found = types(block)
    assert found["fc.weight"] == ("mlp_in", D)
    assert found[f"{last}.weight"] == ("mlp_out", F)
    assert found["self_attn.out.weight"] == ("attn_out", D)
    flattened = types(flat)
    assert flattened["q_proj.weight"] == ("qkv", D)
    assert flattened["o_proj.weight"] == ("attn_out", F)


def test_a_word_of_attention_beside_it_is_asked() -> None:
    """A layer of a block that has its attention elsewhere is no part of it."""

    def block() -> nn.Module:
        attention = Bag(q=bare(D, D), k=bare(D, D), v=bare(D, D), out=bare(D, D))
        return Bag(attn=attention, proj=bare(D, D))

    model = Bag(embed=nn.Embedding(V, D), blocks=nn.ModuleList([block(), block()]))
    message = error_of(classify, model)
    assert "blocks.0.proj.weight" in message
    assert "attn.out" not in message


def test_a_name_that_its_shape_denies_is_unknown() -> None:
    """A projection that does not read the stream is no query, whatever it is called."""

    def block() -> nn.Module:
        return Bag(attn=Bag(q_proj=bare(F, 2 * F), o_proj=bare(F, D), extra=bare(D, F)))

    model = Bag(embed=nn.Embedding(V, D), blocks=nn.ModuleList([block()]))
    message = error_of(classify, model)
    assert "blocks.0.attn.q_proj.weight" in message
    assert "o_proj" not in message


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_in_lists(stacked: bool) -> None:
    """A router is told by one output for each of the experts beside it, listed or stacked."""

    def expert() -> nn.Module:
        return Bag(w1=bare(D, F), w2=bare(F, D), w3=bare(D, F))

    def block() -> nn.Module:
        experts = (
            Bag(up_proj=nn.Parameter(torch.empty(EXPERTS, D, F)))
            if stacked
            else nn.ModuleList(expert() for _ in range(EXPERTS))
        )
        return Bag(ff=Bag(gate=bare(D, EXPERTS), experts=experts), attn=Bag(wo=bare(D, D)))

    model = Bag(embed=nn.Embedding(V, D), blocks=nn.ModuleList([block()]))
    found = {t.name.removeprefix("blocks.0."): (t.type, t.layer, t.width) for t in classify(model)}
    assert found["ff.gate.weight"] == ("router", 1, D)
    if stacked:
        assert found["ff.experts.up_proj"] == ("mlp_in", 1, D)
    else:
        assert found["ff.experts.4.w1.weight"] == ("mlp_gate", 1, D)
        assert found["ff.experts.4.w2.weight"] == ("mlp_out", 1, F)


class Wrapper(nn.Module):
    """Puts a wrapper's name in front of its module's names."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return next(self.children())(*arguments, **options)


def wrapped_blocks(model: nn.Module, name: str) -> nn.Module:
    """The model with every block, every norm in it and itself in a wrapper, as FSDP does it."""
    for block in model.get_submodule("model.layers").children():
        for key, part in list(block.named_children()):
            setattr(block, key, Wrapper(name, part))
    layers = [Wrapper(name, block) for block in model.get_submodule("model.layers").children()]
    model.get_submodule("model").layers = nn.ModuleList(layers)
    return Wrapper(name, model)


def compiled_blocks(model: nn.Module) -> nn.Module:
    for block in model.get_submodule("model.layers").children():
        block.compile(backend="eager")
    return torch.compile(model, backend="eager")  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    "wrap",
    [
        copy.deepcopy,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: Wrapper("module", model),
        lambda model: Wrapper("module", torch.compile(model, backend="eager")),  # pyright: ignore
        lambda model: wrapped_blocks(model, "_fsdp_wrapped_module"),
        lambda model: wrapped_blocks(model, "_checkpoint_wrapped_module"),
        compiled_blocks,
    ],
    ids=["deepcopy", "compile", "DDP", "DDP compile", "FSDP", "checkpoint", "compiled blocks"],
)
@pytest.mark.parametrize("family", ["gemma3_text", "mixtral"])
def test_wrappers_change_nothing(family: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """A copied, compiled or wrapped model is classified as the model itself is."""
    options, _ = FAMILIES[family]
    plain = classify(hugging_face(family, **options))
    model = wrap(hugging_face(family, **options))
    found = classify(model)
    assert found == plain
    assert found.head_dim == HEAD


def test_a_wrapper_with_a_tensor_of_its_own_hides_nothing() -> None:
    """A parameter of what looks like a wrapper is classified or named as unknown."""
    outer = Wrapper("module", make_model(device="meta"))
    outer.register_parameter("temperature", nn.Parameter(torch.ones(1)))
    assert "temperature [1]" in error_of(classify, outer)


def scaled_llama(width: int, heads: int, kv_heads: int, feed_forward: int) -> nn.Module:
    changes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": HEAD}
    sizes = {"hidden_size": width, "intermediate_size": feed_forward}
    return hugging_face("llama", **(SIZES | changes | sizes))


def test_width_ratios_of_their_own() -> None:
    """Widths are fan-ins where width, heads and feed-forward grow each in its own way."""
    base = {t.name: t.width for t in classify(scaled_llama(64, 4, 2, 176))}
    large = {t.name: t.width for t in classify(scaled_llama(192, 8, 2, 264))}
    ratios = {name.split(".")[-2]: large[name] / base[name] for name in base}
    read = {f"{x}_proj" for x in ("q", "k", "v", "gate", "up")} | {"embed_tokens", "lm_head"}
    assert {name: ratios[name] for name in read} == dict.fromkeys(read, 3.0)
    assert ratios["o_proj"] == 2.0
    assert ratios["down_proj"] == 1.5


@pytest.mark.parametrize("family", FAMILIES)
def test_recipes_for_families(family: str) -> None:
    """A family's own model makes a recipe of its types' widths, and the head's size is kept."""
    options, kinds = FAMILIES[family]
    base = cdp.Scale(width=D, depth=DEPTH, batch=1024, tokens=64 * 1024)
    recipe = Recipe.for_model(hugging_face(family, **options), base)
    widths: dict[str, set[int]] = {}
    for name, width in recipe.widths.items():
        widths.setdefault(name.partition("@")[0], set()).add(width)
    assert widths == {k: {w for kind, _, w in kinds.values() if kind == k} for k in widths}
    assert widths.keys() == {kind for kind, _, _ in kinds.values()}
    own = 24 if family == "deepseek_v3" else options.get("head_dim", D // HEADS)
    assert recipe.head_dim == own


def test_latent_attention_scales_by_its_own_ranks() -> None:
    """DeepSeek's projections down scale with the stream, those up each with its latent's size."""
    base = cdp.Scale(width=D, depth=DEPTH, batch=1024, tokens=64 * 1024)
    options, _ = FAMILIES["deepseek_v3"]
    recipe = Recipe.for_model(hugging_face("deepseek_v3", **options), base)
    wider = options | {"hidden_size": 4 * D, "kv_lora_rank": 2 * options["kv_lora_rank"]}
    found = plan(hugging_face("deepseek_v3", **wider), recipe, replace(base, width=4 * D))
    inside = {t.name.split(".")[-2]: t for t in found.tensors if t.info.layer}
    factors = {name: tensor.lr / recipe.values.lr for name, tensor in inside.items()}
    assert factors["q_a_proj"] == factors["kv_a_proj_with_mqa"] == 1 / 4
    assert factors["q_b_proj"] == 1.0
    assert factors["kv_b_proj"] == 1 / 2
    assert factors["q_a_layernorm"] == factors["kv_a_layernorm"] == 1.0
    eps = {name: tensor.eps / recipe.values.eps for name, tensor in inside.items()}
    assert (eps["q_a_layernorm"], eps["kv_a_layernorm"]) == (1.0, 1 / 2)


def test_what_vectors_start_at() -> None:
    """Biases start at 0 and gains at 1, or at 0 where the module adds 1 to them, as in Gemma 3."""
    base = cdp.Scale(width=D, depth=DEPTH, batch=1024, tokens=64 * 1024)
    starts = {}
    for family in ("phi", "gemma3_text"):
        model = hugging_face(family, **FAMILIES[family][0])
        model.register_buffer("residual_multipliers", torch.ones(DEPTH, 2, device="meta"))
        found = plan(model, Recipe.for_model(model, base), base)
        starts[family] = {t.info.type: t.init_value for t in found.tensors if t.init_std is None}
    assert starts["phi"] == {
        **dict.fromkeys(("attn_norm", "output_norm"), 1.0),
        **dict.fromkeys(("attn_norm_bias", "output_norm_bias", "output_bias"), 0.0),
        **dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_in_bias", "mlp_out_bias"), 0.0),
    }
    assert len(starts["gemma3_text"]) == 7
    assert set(starts["gemma3_text"].values()) == {0.0}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_tied_hugging_face_models(family: str) -> None:
    """A head that is the embedding is one tensor of a type of its own, as wide as the stream."""
    options = FAMILIES[family][0] | {"tie_word_embeddings": True}
    apart = {t.name: t for t in classify(hugging_face(family, **FAMILIES[family][0]))}
    tied = {t.name: t for t in classify(hugging_face(family, **options))}
    assert apart.keys() - tied.keys() == {"lm_head.weight"}
    (name,) = (name for name, tensor in tied.items() if tensor != apart[name])
    assert apart[name].type == "embedding"
    assert (tied[name].type, str(tied[name].role), tied[name].width) == (
        "tied_embedding",
        "tied_embedding",
        D,
    )


class SharedHead(Bag):
    """Says that its output head is its embedding module."""

    def get_input_embeddings(self) -> Any:
        return self.embed

    get_output_embeddings = get_input_embeddings


def test_a_head_that_is_the_embedding_module() -> None:
    """A head that is no module of its own is a tied one too, and nothing to hook."""
    found = classify(SharedHead(embed=nn.Embedding(V, D)))
    assert [tensor.type for tensor in found] == ["tied_embedding"]
    assert found.head is None


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({r"q_proj": "mlp_in"}, ("mlp_in", 2)),
        ({r"layers\.1\..*q_proj": "mlp_gate", r"q_proj": "mlp_in"}, ("mlp_gate", 2)),
        ({r"layers\.(?P<layer>\d+)\..*q_proj": "attn_out"}, ("attn_out", 2)),
    ],
)
def test_overrides_come_first(overrides: Mapping[str, str], expected: tuple[str, int]) -> None:
    """The first pattern that matches gives the type; the block is still known."""
    options, _ = FAMILIES["llama"]
    found = {t.name: t for t in classify(hugging_face("llama", **options), overrides)}
    info = found["model.layers.1.self_attn.q_proj.weight"]
    assert (info.type, info.layer) == expected
    assert (info.width, info.how) == (D, "override")
    assert found["model.layers.1.self_attn.k_proj.weight"].type == "qkv"


def test_overrides_that_match_nothing() -> None:
    """A pattern for tensors that are not there is one line that quotes it."""
    model = hugging_face("llama", **FAMILIES["llama"][0])
    assert "'c_attn'" in error_of(classify, model, {"c_attn": "qkv"})


@pytest.mark.parametrize("order", [("wte", "h", "lm_head"), ("h", "lm_head", "wte")])
def test_a_mistyped_override_is_named(order: tuple[str, ...]) -> None:
    """A second embedding of another width is one line with both, and with the override."""
    model = NanoGPT(32, 2)
    model._modules.update({name: model._modules.pop(name) for name in order})
    message = error_of(classify, model, {"c_attn.weight": "embedding"})
    assert "h.0.attn.c_attn.weight [96, 32] of type embedding" in message
    assert "(override 'c_attn.weight=embedding') has width 96" in message
    assert "wte.weight [257, 32] of type embedding has width 32" in message


def test_a_width_that_is_not_the_scale_s_is_named() -> None:
    """Of another size than was said, the error names the tensor that tells, and its override."""
    base = scale(width=32)
    overrides = {"wte": "position", "c_attn.weight": "embedding"}
    message = error_of(cdp.Recipe.for_model, NanoGPT(32, 2), base, overrides=overrides, probe=False)
    assert "the base model has width 96, by h.0.attn.c_attn.weight [96, 32]" in message
    assert "(override 'c_attn.weight=embedding'), and the base scale says 32" in message
    recipe = cdp.Recipe.for_model(NanoGPT(32, 2), base)
    message = error_of(plan, NanoGPT(64, 2), recipe, base)
    assert "the model has width 64, by wte.weight [257, 64] of type embedding, and" in message


def test_an_override_of_a_tensor_without_a_fan_in() -> None:
    """A matrix with no side as wide as the stream cannot be given a fan-in: one line says so."""
    model = Bag(embed=nn.Embedding(V, D), odd=nn.Parameter(torch.ones(3, 5)))
    message = error_of(classify, model, {"odd": "mlp_in"})
    assert "odd [3, 5]" in message
    assert "fan-in" in message


def test_unknown_tensors_of_a_family() -> None:
    """What no rule covers is listed, with how to name it; named, it is classified."""
    model = hugging_face("bitnet", **OWN_HEAD)
    message = error_of(classify, model)
    for word in ("model.layers.0.self_attn.attn_sub_norm.weight [64]", "overrides", "latent_norm"):
        assert word in message
    named = {"sub_norm": "latent_norm"}
    found = {t.name: t for t in classify(model, named)}
    inner = found["model.layers.2.mlp.ffn_sub_norm.weight"]
    assert (inner.type, inner.layer, inner.width) == ("latent_norm", 3, F)


def two_lists() -> nn.Module:
    def block() -> nn.Module:
        return Bag(mlp=Bag(up=bare(D, F), down=bare(F, D)))

    parts = {side: nn.ModuleList(block() for _ in range(2)) for side in ("encoder", "decoder")}
    return Bag(embed=nn.Embedding(V, D), **parts)


def test_two_lists_of_blocks() -> None:
    """Two lists of blocks are one line that names both, unless one is frozen or overridden."""
    message = error_of(classify, two_lists())
    for word in ("encoder (2)", "decoder (2)", "overrides"):
        assert word in message
    one = {r"encoder.*up": "mlp_in", r"encoder.*down": "mlp_out"}
    assert "nothing says of which block" in error_of(classify, two_lists(), one)
    named = {r"encoder\.(?P<layer>\d+).*up": "mlp_in", r"encoder\.(?P<layer>\d+).*down": "mlp_out"}
    assert [t.layer for t in classify(two_lists(), named)] == [None] + [1, 1, 2, 2] * 2
    frozen = two_lists()
    frozen.get_submodule("encoder").requires_grad_(False)
    assert [t.layer for t in classify(frozen)] == [None, 1, 1, 2, 2]


def test_two_lists_of_blocks_are_planned_by_overrides() -> None:
    """What the error advises works: one list typed by overrides, also where depth has a factor."""
    overrides = {r"encoder\.(?P<layer>\d+)\.mlp.up": "mlp_in"}
    overrides[r"encoder\.(?P<layer>\d+)\.mlp.down"] = "mlp_out"
    base = cdp.Scale(width=D, depth=1, batch=1024, tokens=64 * 1024)
    model = two_lists()
    small = Bag(embed=nn.Embedding(V, D), decoder=nn.ModuleList([two_lists().decoder[0]]))  # type: ignore[operator]
    recipe = Recipe.for_model(small, base)
    found = plan(model, recipe, replace(base, depth=2), overrides=overrides)
    found.initialise(0)
    assert {t.info.layer for t in found.tensors} == {None, 1, 2}
    assert found["encoder.0.mlp.down.weight"].lr == found["decoder.0.mlp.down.weight"].lr


def test_a_linear_layer_as_an_inputs_embedding() -> None:
    """Typed as a position, it scales with the width that it gives and not with what it takes."""
    model = Bag(embed=nn.Embedding(V, D), patches=bare(24, D))
    found = {t.name: t for t in classify(model, {"patches": "position"})}
    assert found["patches.weight"].width == D


def test_a_norm_of_the_embedding_is_not_the_output_norm() -> None:
    """Of two norms outside the blocks, only the one named as the last is the output norm."""
    options = {"vocab_size": V, "hidden_size": D, "n_layer": 2, "n_head": 4}
    model = hugging_face("bloom", **options, tie_word_embeddings=False)
    message = error_of(classify, model)
    assert "2 tensors: transformer.word_embeddings_layernorm.weight" in message


@pytest.mark.parametrize(
    ("family", "setting", "value"),
    [("gpt2", "scale_attn_by_inverse_layer_idx", True), ("granite", "residual_multiplier", 0.22)],
)
def test_models_that_scale_by_depth_themselves(family: str, setting: str, value: float) -> None:
    """A setting that scales layers by depth is a one-line warning that names it."""
    options = GPT2_SIZES if family == "gpt2" else GROUPED
    with pytest.warns(UserWarning, match=setting) as caught:
        classify(hugging_face(family, **options, **{setting: value}))
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)


def test_a_large_model_is_classified() -> None:
    """A model of 70B's shape on the meta device is classified, nothing allocated."""
    large = {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128_256}
    model = hugging_face("llama", **(SIZES | large | heads))
    found = classify(model)
    assert len(found) == 3 + 80 * 9
    assert sum(p.numel() for p in model.parameters()) > 65e9


def test_overrides_keep_to_a_tensors_dimensions() -> None:
    """A matrix typed as a norm's gain, or a vector as a matrix, is one line that quotes both."""
    model = make_model(bias=True, device="meta")
    message = error_of(classify, model, {r"mlp\.up\.weight": "attn_norm"})
    assert "mlp.up.weight [" in message
    assert "'attn_norm', whose tensors are vectors" in message
    message = error_of(classify, model, {r"mlp\.up": "position"})
    assert "'position', whose tensors are matrices" in message


def test_an_override_that_never_comes_first() -> None:
    """Where an earlier pattern takes all that a later one matches, that is what the line says."""
    overrides = {r"mlp\.up": "mlp_in", r"mlp\.up\.weight": "mlp_gate"}
    message = error_of(classify, make_model(device="meta"), overrides)
    assert "is never the first that matches" in message


def test_names_that_wrappers_would_make_alike() -> None:
    """A module that is called as wrappers call theirs does not hide another's tensors."""
    model = make_model(device="meta")
    up = model.get_submodule("blocks.0.mlp.up")
    up.add_module("module", nn.Linear(up.in_features, up.out_features, bias=False, device="meta"))
    assert "two tensors are called blocks.0.mlp.up.weight" in error_of(classify, model)


class PlusOneNorm(nn.Module):
    """Stores gain - 1, and takes nothing but a batch of sequences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        _, _, width = x.shape
        return nn.functional.rms_norm(x, (width,)) * (1 + self.weight)


def test_a_norm_that_takes_sequences_alone_is_asked() -> None:
    """Its stored gain starts at 0, as that of one that takes any shape does."""
    model = make_model(device="meta")
    model.get_submodule("blocks.0").attn_norm = PlusOneNorm(64)
    offsets = {t.name: t.offset for t in classify(model) if t.type == "attn_norm"}
    assert sorted(offsets.values()) == [0.0] * (len(offsets) - 1) + [1.0]


def test_models_that_scale_themselves_are_warned_of() -> None:
    """MiniCPM's own factors of depth and width are named, with the values that undo them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classify(hugging_face("minicpm3", **(SIZES | LATENT)))
    messages = " ".join(str(warning.message) for warning in caught)
    assert re.search(r"config.scale_depth = .* set it to 1.732", messages)
    assert "config.dim_model_base" in messages


def test_a_head_size_that_only_the_modules_tell() -> None:
    """Without a config the attention's attribute is the head's size; of latent ones, both parts."""
    model = torchtitan()
    model.get_submodule("layers.0.attention").head_dim = 7  # type: ignore[assignment]
    found = classify(model)
    without = [t for t in found if "_norm" not in t.type]
    assert ModelMap(model, found.structure, without).head_dim == 7
    options, _ = FAMILIES["deepseek_v3"]
    assert classify(hugging_face("deepseek_v3", **options)).head_dim == 24


def test_no_output_weight_is_warned_of() -> None:
    """A model whose forward pass may use the embedding for the logits gets one line on it, which
    names the table."""
    base = cdp.Scale(width=D, depth=DEPTH, batch=1024, tokens=64 * 1024)
    headless = hugging_face("llama", **OWN_HEAD).get_submodule("model")
    recipe = Recipe.for_model(headless, base)
    wider = hugging_face("llama", **(OWN_HEAD | {"hidden_size": 2 * D})).get_submodule("model")
    with pytest.warns(UserWarning, match="no output weight") as said:
        plan(wider, recipe, replace(base, width=2 * D))
    assert any(r"{'embed_tokens\\.weight': 'tied_emb" in str(line.message) for line in said)


@pytest.mark.parametrize("ratio", [1, 2])
def test_routers_are_warned_of(ratio: int) -> None:
    """A mixture of experts that is made wider gets one line on its routers; as wide, none."""
    options, _ = FAMILIES["mixtral"]
    base = cdp.Scale(width=D, depth=DEPTH, batch=1024, tokens=64 * 1024)
    recipe = Recipe.for_model(hugging_face("mixtral", **options), base)
    wider = hugging_face("mixtral", **(options | {"hidden_size": ratio * D}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan(wider, recipe, replace(base, width=ratio * D))
    others = [w for w in caught if not issubclass(w.category, cdp.ScaleWarning)]
    messages = [str(warning.message) for warning in others]
    assert len(messages) == ratio - 1
    for word in ("model.layers.0.mlp.gate.weight and 2 more", "eps/type/router"):
        assert all(word in message for message in messages)


def test_inspect_prints_every_tensor() -> None:
    """The table has every tensor, those of all blocks in one row: what it is, and what decided."""
    model = hugging_face("mixtral", **FAMILIES["mixtral"][0])
    table, _, probed = inspect_model(model).partition("\n\n")
    assert probed.startswith("probed: blocks 1 to 3:")
    lines = [line.split() for line in table.splitlines() if line.strip()]
    assert lines[0] == ["name", "shape", "role", "type", "layer", "width", "how"]
    rows = {row[0]: row[1:] for row in lines[2:]}
    names = [name for row in rows for name in spelt_out(row)]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert len(rows) < len(names) / 2
    assert rows["model.embed_tokens.weight"] == [
        *("112x64", "input_embedding", "embedding", "64", "structure")
    ]
    assert rows["model.layers.0-2.mlp.experts.down_proj"] == [
        *("5x64x176", "hidden_weight", "mlp_out", "1-3", "176", "name")
    ]
    named = inspect_model(model, {"experts": "mlp_in"})
    assert " override" in named


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "qwen3"])
def test_inspect_fits_the_terminal(
    family: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long names go on in the next line, and roles and layers give way; shapes and types stay."""
    model = hugging_face(family, **FAMILIES[family][0])
    wide = inspect_model(model)
    monkeypatch.setenv("COLUMNS", str(columns))
    found = inspect_model(model)
    assert max(map(len, found.splitlines())) <= columns
    assert "…" not in found
    joined = re.sub(r"(?<=\S)  .*\n   (?=\S)", "", found)
    for line in wide.partition("\n\n")[0].splitlines()[2:]:
        name, shape, _, module_type, *_ = line.split()
        assert name in joined
        assert f" {shape} " in found
        assert f" {module_type} " in found


class MuReadout(nn.Linear):
    """Called as the mup package's output layer is."""


def test_a_readout_of_mup_is_refused() -> None:
    """It would divide by the width once more than the plan says: one line that names it."""
    model = hugging_face("llama", **FAMILIES["llama"][0])
    model.lm_head = MuReadout(D, V, bias=False, device="meta")
    message = error_of(classify, model)
    assert "lm_head" in message
    assert "nn.Linear" in message


def test_an_override_of_a_weight_and_its_bias() -> None:
    """Where a pattern matches both, the bias is of the bias's type; a layer must be a number."""
    options, _ = FAMILIES["gpt2"]
    found = {t.name: t for t in classify(hugging_face("gpt2", **options), {"c_fc": "mlp_gate"})}
    assert found["transformer.h.0.mlp.c_fc.weight"].type == "mlp_gate"
    assert found["transformer.h.0.mlp.c_fc.bias"].type == "mlp_gate_bias"
    model = hugging_face("gpt2", **options)
    message = error_of(classify, model, {"(?P<layer>mlp).c_fc": "mlp_in"})
    assert "'mlp', not a number" in message


def hugging_face_vit(width: int) -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=width // 16,
        intermediate_size=2 * width,
        image_size=16,
        patch_size=4,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config)


class TorchEncoder(nn.Module):
    """Images through torch's own layers, with the usual names around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)


@pytest.mark.parametrize("make", [hugging_face_vit, TorchEncoder])
def test_models_of_images_need_no_overrides(make: Callable[[int], nn.Module]) -> None:
    """Patches, tokens of their own, norms, feed-forward and classes are told by usual names."""
    found = classify(make(32))
    assert found.width == 32
    kinds = {tensor.type for tensor in found if not tensor.type.endswith("_bias")}
    inside = {"attn_norm", "qkv", "attn_out", "mlp_norm", "mlp_in", "mlp_out"}
    assert kinds == {"embedding", "position", "output_norm", "unembedding", *inside}
    (patches,) = (tensor for tensor in found if tensor.type == "embedding")
    assert (patches.shape, patches.width) == ((32, 3, 4, 4), 32)
