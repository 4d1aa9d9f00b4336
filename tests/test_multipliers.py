"""Multipliers by buffer, fold and hook: three ways, one function."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch
from helpers import error_of
from models import make_model, make_recipe, scale, token_batches, train
from torch import nn

import completedp as cdp
from completedp.apply.export import export
from completedp.apply.multipliers import MultiplyOutput, hooked
from completedp.apply.plan import Plan, plan

# Values that matter: decay and eps large enough to change the curves, multipliers far from 1. These
# are powers of two, by which weights drawn in float32 are multiplied exactly.
VALUES = {"lr": 2**-6, "weight_decay": 0.5, "eps": 1e-4, "init_std": 0.05}
LOG2 = {"residual/type/attn": 2.0, "residual/type/mlp": -1.0, "residual/depth/1": -2.0}
TARGET = {"width": 128, "depth": 2}
STEPS = 50


def planned(way: str, model: dict[str, Any] | None = None, **options: Any) -> Plan:
    """A plan of a model in float64 at twice the width, initialised."""
    recipe = make_recipe(LOG2, model=model, **(VALUES | options))
    made = make_model(**TARGET, **(model or {})).double()
    found = plan(made, recipe, scale(**TARGET), multipliers=way)
    found.initialise(3)
    return found


def curve(found: Plan) -> list[float]:
    return train(found.model, found.adamw(), token_batches(STEPS))


@pytest.mark.parametrize("options", [{}, {"parameterisation": "completep"}])
@pytest.mark.parametrize("model", [{}, {"bias": True, "output_bias": True, "mlp": "swiglu"}])
def test_three_ways_are_one_function(model: dict[str, Any], options: dict[str, Any]) -> None:
    """Explicit, folded and hooked multipliers give one loss curve over 50 steps of AdamW."""
    curves = {way: curve(planned(way, model, **options)) for way in ("buffer", "fold", "hook")}
    assert curves["fold"] == pytest.approx(curves["buffer"], rel=1e-9)
    assert curves["hook"] == pytest.approx(curves["buffer"], rel=1e-9)
    assert max(curves["buffer"]) - min(curves["buffer"]) > 0.01


@pytest.mark.parametrize("hyperparameter", ["lr", "eps", "weight_decay"])
def test_every_part_of_the_fold_is_needed(hyperparameter: str) -> None:
    """With one of the values not folded the curve is another: the values above do matter."""
    expected = curve(planned("buffer"))
    found = planned("fold")
    explicit = {t.name: t for t in planned("buffer").tensors}
    optimizer = found.adamw()
    for group in optimizer.param_groups:
        if group["param_names"][0].endswith(("attn.out.weight", "mlp.down.weight")):
            group[hyperparameter] = getattr(explicit[group["param_names"][0]], hyperparameter)
    losses = train(found.model, optimizer, token_batches(STEPS))
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) > 1e-6


def test_independent_decay_folds_too() -> None:
    """Where decay is not multiplied by lr, folding leaves it, and the curve is the same."""
    rules = cdp.Rules(weight_decay="independent")
    curves = [curve(planned(way, rules=rules, weight_decay=0.01)) for way in ("buffer", "fold")]
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)


def test_a_folded_model_needs_no_multiplier() -> None:
    """Its buffers are 1, the trace shows the factor, and the plan says how it is carried."""
    found, explicit = planned("fold"), planned("buffer")
    assert torch.equal(found.model.residual_multipliers, torch.ones(2, 2).double())
    tensor, other = found["blocks.1.attn.out.weight"], explicit["blocks.1.attn.out.weight"]
    assert other.multiplier == pytest.approx(found.residual_multipliers[1][0])
    assert tensor.multiplier == 1.0
    assert tensor.lr == pytest.approx(other.lr * other.multiplier)
    assert "folded multiplier" in tensor.explain("lr")
    assert math.prod(x for _, x in tensor.trace["eps"]) == pytest.approx(tensor.eps)
    assert "folded" in str(found)
    assert found.to_dict()["multipliers"] == {"attn": "fold", "mlp": "fold", "output": "fold"}


def test_planning_again_replaces_hooks() -> None:
    """A model that is planned twice is multiplied once, and by the later plan."""
    first = planned("hook")
    model = first.model
    inputs = token_batches(1)[0][:, :-1]
    once = model(inputs)
    first.attach()
    assert torch.equal(model(inputs), once)
    again = plan(model, first.recipe, first.target, multipliers="buffer")
    again.initialise(3)
    torch.testing.assert_close(model(inputs), once)
    assert not hooked(again)
    torch.testing.assert_close(copy.deepcopy(model)(inputs), once)


class PostNorm(nn.Module):
    """One block of OLMo-2's order: what a branch adds is normed last."""

    head_dim = 32  # said: no attention is done here that would show it

    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict(
            {
                **{name: nn.Linear(width, width, bias=False) for name in ("q_proj", "k_proj")},
                **{name: nn.Linear(width, width, bias=False) for name in ("v_proj", "o_proj")},
            }
        )
        self.post_attention_layernorm = nn.RMSNorm(width)
        self.mlp = nn.ModuleDict(
            {
                "up_proj": nn.Linear(width, 2 * width, bias=False),
                "down_proj": nn.Linear(2 * width, width, bias=False),
            }
        )
        self.post_feedforward_layernorm = nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post_attention_layernorm(self.self_attn["o_proj"](self.self_attn["v_proj"](x)))
        hidden = self.mlp["up_proj"](x).relu()
        return x + self.post_feedforward_layernorm(self.mlp["down_proj"](hidden))


class PostNormModel(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(96, width)
        self.layers = nn.ModuleList(PostNorm(width) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, 96, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def post_norm_plan(way: str, gains: bool, **tuned: float) -> Plan:
    recipe = cdp.Recipe.for_model(PostNormModel(64, 2), scale(), lr=2**-7)
    log2 = {f"residual/type/{branch}": octaves for branch, octaves in tuned.items()}
    recipe = replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))
    model = PostNormModel(64, 4)
    for layer in model.layers if not gains else ():
        for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
            setattr(layer, name, nn.RMSNorm(64, elementwise_affine=False))
    return plan(model.double(), recipe, scale(depth=4), multipliers=way)


@pytest.mark.parametrize("gains", [True, False])
def test_branches_that_end_in_norms_can_be_hooked(gains: bool) -> None:
    """The norm's output is multiplied, once. Without a gain that is the only way, and `auto`'s.

    A norm without a gain, of which there is no tensor to be seen, undoes a factor all the same.
    """
    if not gains:
        message = error_of(post_norm_plan, "fold", gains)
        assert "post_attention_layernorm" in message or "post_feedforward_layernorm" in message
        assert "hook" in message
    found = post_norm_plan("hook" if gains else "auto", gains)
    assert (found.ways["attn"], found.ways["mlp"]) == ("hook", "hook")
    found.initialise(0)
    tokens = token_batches(1)[0]
    model = found.model
    x = model.embed_tokens(tokens)
    for layer, pair in zip(model.layers, found.residual_multipliers, strict=True):
        assert pair == (0.5, 0.5)
        bare = copy.deepcopy(layer)
        for norm in (bare.post_attention_layernorm, bare.post_feedforward_layernorm):
            norm._forward_hooks.clear()
        for branch, end in (("self_attn", "post_attention_layernorm"), ("mlp", "")):
            if branch == "self_attn":
                inner = bare.self_attn["o_proj"](bare.self_attn["v_proj"](x))
                x = x + 0.5 * getattr(bare, end)(inner)
            else:
                inner = bare.mlp["down_proj"](bare.mlp["up_proj"](x).relu())
                x = x + 0.5 * bare.post_feedforward_layernorm(inner)
    torch.testing.assert_close(model(tokens), model.lm_head(model.norm(x)))


class Logits(nn.Module):
    """A Hugging Face model whose output is its logits alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.module(tokens).logits


def post_norm_family(family: str, depth: int) -> nn.Module:
    """A tiny model whose branches end in norms, as its config has it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": depth, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    none = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    more = {"vocab_size": 96, "tie_word_embeddings": False, "use_cache": False, **none}
    config = transformers.CONFIG_MAPPING[family](**sizes, **heads, **more)
    return transformers.AutoModelForCausalLM.from_config(config).double()


POST_NORMS = ["olmo2", "glm4", "exaone4", "gemma2"]


def family_plan(family: str, way: str, **options: Any) -> Plan:
    """A plan at twice the depth with residual multipliers far from 1, initialised."""
    recipe = cdp.Recipe.for_model(post_norm_family(family, 2), scale(), **(VALUES | options))
    recipe = replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=LOG2))
    found = plan(post_norm_family(family, 4), recipe, scale(depth=4), multipliers=way)
    found.initialise(3)
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", POST_NORMS)
def test_multipliers_fold_into_the_norms_that_end_branches(family: str) -> None:
    """Folded into gains or hooked, 12 steps of AdamW are one curve; Gemma's without decay."""
    options = {"no_decay": ("hidden_norm",)} if family == "gemma2" else {}
    curves = {}
    for way in ("hook", "fold"):
        found = family_plan(family, way, **options)
        curves[way] = train(Logits(found.model), found.adamw(), token_batches(12))
    assert family_plan(family, "auto", **options).ways["attn"] == "fold"
    # Gemma's norms compute in float32 what is near 1 where it is stored near 0.
    rel = 1e-5 if family == "gemma2" else 1e-9
    assert curves["fold"] == pytest.approx(curves["hook"], rel=rel)
    assert max(curves["fold"]) - min(curves["fold"]) > 0.01


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_folded_into_a_norm() -> None:
    """Start and lr times c, eps and decay over c, for the gain and not for what is before it."""
    found, apart = family_plan("olmo2", "fold"), family_plan("olmo2", "hook")
    name = "model.layers.3.post_feedforward_layernorm.weight"
    c = found.residual_multipliers[3][1]
    assert c not in (0.0, 1.0)
    tensor, other = found[name], apart[name]
    assert (tensor.init_value, tensor.lr) == (c, other.lr * c)
    assert (tensor.eps, tensor.weight_decay) == (other.eps / c, other.weight_decay / c)
    assert (tensor.multiplier, other.multiplier) == (1.0, c)
    before = "model.layers.3.mlp.down_proj.weight"
    assert found[before].torch_values == apart[before].torch_values
    assert found[before].multiplier == 1.0
    weight = dict(found.model.named_parameters())[name]
    assert torch.equal(weight, torch.full_like(weight, c))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gains_kept_as_gain_minus_one_decay_to_one() -> None:
    """Gemma's with decay cannot be folded: that says why, and `auto` takes hooks."""
    message = error_of(family_plan, "gemma2", "fold")
    for word in ("post_attention_layernorm", "gain - 1", "no_decay", "hook"):
        assert word in message
    assert family_plan("gemma2", "auto").ways["mlp"] == "hook"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_folded_post_norm_model_is_a_plain_checkpoint(tmp_path: Path) -> None:
    """Saved and loaded without the package it gives the same logits, and its numbers export."""
    found = family_plan("olmo2", "auto")
    tokens = token_batches(1)[0]
    found.model.save_pretrained(tmp_path)
    plain = type(found.model).from_pretrained(tmp_path).double()
    torch.testing.assert_close(plain(tokens).logits, found.model(tokens).logits)
    assert "layernorm" in export(found, "hf")
    assert not hooked(found)


@pytest.mark.parametrize("gains", [True, False])
def test_each_branch_has_its_own_hook(gains: bool) -> None:
    """Branches that are tuned apart have factors of their own, in the attention's norm and the
    MLP's, be they norms with gains or without."""
    found = post_norm_plan("hook", gains, attn=2.0)
    factors = {path: factor for path, factor in hooked(found).items() if "layers.0." in path}
    assert factors == {
        "layers.0.post_attention_layernorm": 2.0,
        "layers.0.post_feedforward_layernorm": 0.5,
    }


def test_norms_without_gains_before_a_branch_are_not_at_its_end() -> None:
    """OLMo's norms have no tensors and are called as Llama's: its branches are folded."""
    pytest.importorskip("transformers")
    from transformers import OlmoConfig, OlmoForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    with torch.device("meta"):
        model = OlmoForCausalLM(
            OlmoConfig(**sizes, num_attention_heads=4, vocab_size=96, tie_word_embeddings=False)
        )
    found = plan(model, cdp.Recipe.for_model(model, scale(), lr=2**-7), scale())
    assert set(found.ways.values()) == {"fold"}


def test_a_foreign_model_is_folded_by_itself() -> None:
    """A model without buffers is planned as it is; asked for buffers, the error names them."""
    model = make_model(**TARGET)
    del model.residual_multipliers
    found = plan(model, make_recipe(), scale(**TARGET))
    assert found.ways["attn"] == "fold"
    assert found.ways["output"] == "buffer"
    message = error_of(plan, model, make_recipe(), scale(**TARGET), multipliers="buffer")
    assert "residual_multipliers" in message
    assert "[2, 2]" in message
    message = error_of(plan, model, make_recipe(), scale(**TARGET), multipliers="glue")
    assert "'glue'" in message
    assert "fold" in message


class Mha(nn.Module):
    """Attention by torch's own module, which never calls its last layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(width, 4, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class MhaBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attn = Mha(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 2 * width))
        self.mlp.add_module("act", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MhaModel(PostNormModel):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.layers = nn.ModuleList(MhaBlock(width) for _ in range(depth))


@pytest.fixture
def mha_recipe() -> cdp.Recipe:
    recipe = cdp.Recipe.for_model(MhaModel(64, 2), scale(), lr=2**-7)
    log2 = {"residual/type/attn": 2.0}
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def test_torchs_own_attention_is_multiplied_too(mha_recipe: cdp.Recipe) -> None:
    """nn.MultiheadAttention reads its last weight without a call: folded and hooked are equal."""
    outputs = []
    for way in ("fold", "hook"):
        found = plan(MhaModel(64, 2).double(), mha_recipe, scale(), multipliers=way)
        found.initialise(0)
        outputs.append(found.model(token_batches(1)[0]))
    torch.testing.assert_close(outputs[0], outputs[1])


def test_hooks_reach_a_program_that_was_compiled_before(mha_recipe: cdp.Recipe) -> None:
    """A model that has run compiled is multiplied after planning as the plain one is."""
    model = PostNormModel(64, 4).double()
    compiled = torch.compile(model, backend="eager")
    tokens = token_batches(1)[0]
    compiled(tokens)
    recipe = cdp.Recipe.for_model(PostNormModel(64, 2), scale(), lr=2**-7)
    found = plan(compiled, recipe, scale(depth=4), multipliers="hook")
    found.initialise(0)
    assert hooked(found)
    torch.testing.assert_close(compiled(tokens), model(tokens))


@pytest.mark.parametrize("name", ["c_proj.bias", "ln_1.weight"])
def test_frozen_tensors_in_blocks_are_refused(mha_recipe: cdp.Recipe, name: str) -> None:
    """A frozen tensor has no plan to carry a multiplier: one line that names it."""
    model = MhaModel(64, 2)
    for full, parameter in model.named_parameters():
        parameter.requires_grad_(not full.endswith(name))
    assert name in error_of(plan, model, mha_recipe, scale())
    plain = replace(mha_recipe, hyperparameters=replace(mha_recipe.hyperparameters, log2={}))
    plan(model, plain, scale())


def test_a_frozen_balancing_bias_ends_no_branch(mha_recipe: cdp.Recipe) -> None:
    """A vector that no norm and no linear layer holds may be frozen, multipliers or not."""
    model = MhaModel(64, 2)
    for layer in model.layers:
        layer.mlp.register_parameter("balance", nn.Parameter(torch.zeros(4), requires_grad=False))
    assert plan(model, mha_recipe, scale()).ways["mlp"] == "fold"


class Auxiliary(nn.Linear):
    """Gives a loss of its own besides."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), torch.ones(())


def test_of_a_tuple_the_first_is_multiplied() -> None:
    """An auxiliary loss beside a branch's output is left alone; other outputs are refused."""
    x = torch.randn(2, 3)
    linear = Auxiliary(3, 3)
    whole, _ = linear(x)
    output, auxiliary = MultiplyOutput(0.5)(linear, (x,), linear(x))
    assert torch.equal(output, 0.5 * whole)
    assert auxiliary == 1
    assert "dict" in error_of(MultiplyOutput(0.5), linear, (x,), {"y": x})


def test_scaled_embeddings_are_warned_of() -> None:
    """An embedding that the model multiplies by sqrt(width) grows on top of the plan."""
    base, wide = PostNormModel(64, 2), PostNormModel(128, 2)
    recipe = cdp.Recipe.for_model(base, scale(), lr=2**-7)
    wide.embed_tokens.embed_scale = 128**0.5
    with pytest.warns(UserWarning, match=r"embed_tokens.embed_scale = 11.3"):
        plan(wide, recipe, scale(width=128))


class Ended(own.Block):
    """Branches that end in norms which only an override tells, one with a gain of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.ln_1(self.attn(x))
        return x + self.ln_2(self.mlp(x))


@pytest.mark.parametrize("gain", [1.0, 0.125])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_norm_that_was_named_takes_the_multiplier(gain: float, device: str) -> None:
    """Folded into gains that keep the model's own start, multipliers train as hooks do."""
    if device == "meta" and gain != 1:
        pytest.skip("a model without memory has no start of its own")

    def made(depth: int) -> own.NanoGPT:
        torch.manual_seed(0)
        model = own.NanoGPT(32, depth)
        model.h = nn.ModuleList(Ended(32) for _ in range(depth))
        for block in model.h:
            for norm in (block.ln_1, block.ln_2):
                nn.init.constant_(norm.weight, gain)
                norm.bias = None
        return model

    small, large = (cdp.Scale(width=32, depth=d, batch=64, tokens=6400) for d in (2, 8))
    names = {r"ln_1": "attn_post_norm", r"ln_2": "mlp_post_norm"}
    recipe = cdp.Recipe.for_model(made(2), small, lr=0.01, overrides=names)
    curves = []
    for way in ("fold", "hook"):
        model = made(8)
        with torch.device(device):
            shape = copy.deepcopy(model) if device == "cpu" else model.to("meta")
        found = plan(shape, recipe, large, multipliers=way)
        if device == "meta":
            shape.to_empty(device="cpu")
        found.initialise(3)
        if way == "fold":
            assert found["h.0.ln_1.weight"].init_value == pytest.approx(0.25 * gain)
        curves.append(train(shape, found.adamw(), token_batches(6)))
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
