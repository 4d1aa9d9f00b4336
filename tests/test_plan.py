"""Plans: every tensor once, values that are factors times base, groups, errors, initialisation."""

import copy
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import hugging_face
from helpers import BASE, error_of
from hypothesis import assume, given
from hypothesis import strategies as st
from models import (
    BASE_SCALE,
    make_model,
    make_plan,
    make_recipe,
    scale,
    token_batches,
    train,
)
from own_models import NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import canonical_name, classify
from completedp.apply.multipliers import hooked
from completedp.apply.optimise import set_learning_rates
from completedp.apply.plan import Plan, plan
from completedp.apply.structure import Structure
from completedp.apply.table import render
from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role
from completedp.theory.rules import Rules

FULL = {"bias": True, "output_bias": True, "mlp": "swiglu"}
LARGER = {"batch": 4 * BASE["batch"], "tokens": 16 * BASE["tokens"]}
VALUES = ("lr", "weight_decay", "eps")
SEARCHED = {
    "lr/global": 0.3,
    "lr/type/qkv": -1.5,
    "lr/depth/1": 0.7,
    "weight_decay/type/embedding": 2.0,
    "eps/layer/mlp_out/2": -4.0,
    "one_minus_beta1/type/k_norm": -1.0,
    "one_minus_beta2/depth/2": 1.0,
    "init_std/type/unembedding": -0.5,
    "residual/type/attn": 0.25,
    "residual/depth/2": -0.25,
}


class Wrapper(nn.Module):
    """What DistributedDataParallel does to names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: Tensor) -> Tensor:
        return self.module(tokens)


def lr_of(found: Plan) -> dict[str, float]:
    return {tensor.name: tensor.lr for tensor in found.tensors}


@pytest.mark.parametrize("options", [{}, FULL, {"qk_norm": False}])
def test_every_parameter_is_planned_once(options: dict[str, Any]) -> None:
    """The plan names every parameter of the model exactly once, in the model's order."""
    found = make_plan(**options)
    assert [t.name for t in found.tensors] == [n for n, _ in found.model.named_parameters()]
    assert {t.info.how for t in found.tensors} <= {"structure", "shape", "name"}
    shapes = {n: tuple(p.shape) for n, p in found.model.named_parameters()}
    assert {t.name: t.info.shape for t in found.tensors} == shapes


def test_types_roles_and_layers_by_hand() -> None:
    """The reference model's tensors have the roles and layers that their names say."""
    found = make_plan(**FULL)
    expected = {
        "embedding.weight": ("embedding", "input_embedding", None),
        "blocks.0.attn_norm.weight": ("attn_norm", "hidden_norm", 1),
        "blocks.1.attn.qkv.weight": ("qkv", "hidden_weight", 2),
        "blocks.1.attn.qkv.bias": ("qkv_bias", "hidden_bias", 2),
        "blocks.2.attn.q_norm.weight": ("q_norm", "qk_norm", 3),
        "blocks.2.attn.k_norm.weight": ("k_norm", "qk_norm", 3),
        "blocks.3.attn.out.weight": ("attn_out", "hidden_weight", 4),
        "blocks.3.attn.out.bias": ("attn_out_bias", "hidden_bias", 4),
        "blocks.3.mlp_norm.weight": ("mlp_norm", "hidden_norm", 4),
        "blocks.3.mlp.up.weight": ("mlp_in", "hidden_weight", 4),
        "blocks.3.mlp.gate.weight": ("mlp_gate", "hidden_weight", 4),
        "blocks.3.mlp.gate.bias": ("mlp_gate_bias", "hidden_bias", 4),
        "blocks.3.mlp.down.weight": ("mlp_out", "hidden_weight", 4),
        "blocks.3.mlp.down.bias": ("mlp_out_bias", "hidden_bias", 4),
        "output_norm.weight": ("output_norm", "output_norm", None),
        "unembedding.weight": ("unembedding", "output_weight", None),
        "unembedding.bias": ("output_bias", "output_bias", None),
    }
    for name, what in expected.items():
        info = found[name].info
        assert (info.type, info.role, info.layer) == what


@pytest.mark.parametrize("beta_rule", ["linear", "power", "keep"])
@pytest.mark.parametrize("log2", [{}, SEARCHED], ids=["plain", "searched"])
def test_traces_multiply_to_the_values(log2: dict[str, float], beta_rule: str) -> None:
    """The factors a value is said to come from multiply to it; for betas, to 1 - beta."""
    recipe = make_recipe(log2, model=FULL, beta_rule=beta_rule)
    for tensor in make_plan(recipe, **LARGER, **FULL).tensors:
        values = {name: getattr(tensor, name) for name in (*VALUES, "init_std", "multiplier")}
        values |= {f"one_minus_{b}": 1 - getattr(tensor, b) for b in ("beta1", "beta2")}
        if tensor.init_std is None:
            del values["init_std"]
        products = {k: math.prod(x for _, x in terms) for k, terms in tensor.trace.items()}
        assert products == pytest.approx(values, rel=1e-12, abs=0)


def test_a_beta_of_zero_has_a_trace_too() -> None:
    """A power of beta = 0 is 0: the factors of 1 - beta say 1, as the value does."""
    recipe = make_recipe(beta1=0.0, beta_rule="power")
    for tensor in make_plan(recipe, **LARGER).tensors:
        assert tensor.beta1 == 0
        assert math.prod(x for _, x in tensor.trace["one_minus_beta1"]) == 1


def test_independent_decay_is_named_as_such() -> None:
    """Where decay is not torch's, the table says so: copied to torch it would be another."""
    line = "decay   is not multiplied by lr"
    for convention, said in (("independent", True), ("torch", False)):
        found = make_plan(make_recipe(rules=Rules(weight_decay=convention)))
        assert (line in str(found)) is said


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(alpha=0.5, token_exponent=0.3, output_norm_eps="gradient"),
        Rules(weight_decay="independent"),
        Rules(parameterisation="completep"),
        Rules(parameterisation="mup"),
        Rules(parameterisation="sp"),
        Rules(axes=("width",)),
    ],
    ids=lambda rules: f"{rules.parameterisation} {rules.weight_decay} {rules.alpha}",
)
def test_values_are_factors_times_base(rules: Rules) -> None:
    """When all widths grow together every value is the recipe's times its role's factor."""
    recipe = make_recipe(model=FULL, rules=rules)
    found = make_plan(recipe, **LARGER, **FULL)
    values, ratios = recipe.values, found.ratios
    for tensor in found.tensors:
        factors = rules.factors(tensor.info.role, ratios)
        for name in VALUES:
            expected = getattr(values, name) * getattr(factors, name)
            assert getattr(tensor, name) == pytest.approx(expected, rel=1e-9, abs=0)
        for name in ("beta1", "beta2"):
            expected = 1 - (1 - getattr(values, name)) * factors.one_minus_beta
            assert getattr(tensor, name) == pytest.approx(expected)
        if tensor.info.role.is_matrix:
            assert tensor.init_std == pytest.approx(values.init_std * factors.init_std)
        else:
            constant = 0.0 if "bias" in tensor.info.role else 1.0
            assert (tensor.init_std, tensor.init_value) == (None, constant)
    multiplier = rules.residual_multiplier(ratios)
    assert found.residual_multipliers == [pytest.approx((multiplier, multiplier))] * 4
    forward = rules.factors("output_weight", ratios).multiplier
    assert found.output_multiplier == pytest.approx(forward)


@given(
    width=st.sampled_from([64, 128, 256, 48]),
    depth=st.integers(1, 9),
    batch=st.integers(10, 14),
    tokens=st.integers(16, 20),
)
def test_plan_at_golden_roles(width: int, depth: int, batch: int, tokens: int) -> None:
    """Hidden weights' learning rate is sqrt(m_B / m_D) / m_N and their decay sqrt(..) m_N."""
    assume(2 ** (batch - 10) / 2 ** (tokens - 16) < 10)
    found = make_plan(width=width, depth=depth, batch=2**batch, tokens=2**tokens)
    m_n, root = width / 64, math.sqrt(2 ** (batch - 10) / 2 ** (tokens - 16))
    for tensor in found.tensors:
        if tensor.info.role is Role.HIDDEN_WEIGHT:
            assert tensor.lr == pytest.approx(2**-7 * root / m_n)
            assert tensor.weight_decay == pytest.approx(0.1 * root * m_n)
            assert tensor.eps == pytest.approx(1e-8 / root / m_n / (depth / 2), rel=1e-9, abs=0)


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.3, 0.7), (0.0, 0.999)])
def test_at_base_the_plan_is_the_recipe(betas: tuple[float, float]) -> None:
    """At the base's own scale every tensor has exactly the global values."""
    recipe = make_recipe(beta1=betas[0], beta2=betas[1])
    found = make_plan(recipe, width=64, depth=2)
    values = recipe.values
    for tensor in found.tensors:
        assert (tensor.lr, tensor.weight_decay, tensor.eps) == (
            values.lr,
            values.weight_decay,
            values.eps,
        )
        assert tensor.betas == betas
        assert tensor.init_std in (None, values.init_std)
    assert found.residual_multipliers == [(1.0, 1.0)] * 2


@pytest.mark.parametrize("depth", [2, 4, 16])
@pytest.mark.parametrize("log2", [{}, SEARCHED], ids=["plain", "searched"])
def test_groups_hold_every_parameter_once(log2: dict[str, float], depth: int) -> None:
    """Merged groups carry each parameter once, with its own planned values and its name."""
    found = make_plan(make_recipe(log2), depth=depth)
    parameters = dict(found.model.named_parameters())
    seen = []
    for group in found.param_groups():
        assert len(group["params"]) == len(group["param_names"])
        assert group["lr"] == group["initial_lr"]
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            assert parameter is parameters[name]
            tensor = found[name]
            planned = {n: getattr(tensor, n) for n in (*VALUES, "betas")}
            assert {n: group[n] for n in planned} == planned
            seen.append(name)
    assert sorted(seen) == sorted(parameters)


@pytest.mark.parametrize("depth", [2, 4, 16])
def test_groups_are_few(depth: int) -> None:
    """Without per-module multipliers there are no more groups than roles, at any depth."""
    groups = make_plan(depth=depth, **LARGER, **FULL).param_groups()
    assert len(groups) <= len(Role)
    values = [(g["lr"], g["weight_decay"], g["eps"], g["betas"]) for g in groups]
    assert len(set(values)) == len(values)


def test_group_order_is_stable() -> None:
    """The same plan of another copy of the model gives the same groups in the same order."""
    recipe = make_recipe(SEARCHED)
    first, second = (make_plan(recipe).param_groups() for _ in range(2))
    assert [g["param_names"] for g in first] == [g["param_names"] for g in second]


@pytest.mark.parametrize(
    ("coordinate", "reached"),
    [
        ("lr/global", ""),
        ("lr/type/qkv", ".attn.qkv.weight"),
        ("lr/type/embedding", "embedding.weight"),
        ("lr/type/output_norm", "output_norm.weight"),
    ],
)
def test_type_multipliers_reach_their_tensors(coordinate: str, reached: str) -> None:
    """A multiplier of 8 multiplies the values of the tensors it names, and of no others."""
    plain, tuned = lr_of(make_plan()), lr_of(make_plan(make_recipe({coordinate: 3.0})))
    changed = {name for name in plain if tuned[name] == pytest.approx(8 * plain[name])}
    named = {n for n in plain if n == reached or n.endswith(reached)}
    named -= {"unembedding.weight"} if reached == "embedding.weight" else set()
    assert changed == named
    assert all(tuned[name] == plain[name] for name in plain.keys() - changed)


@pytest.mark.parametrize(
    ("coordinate", "where"),
    [("lr/depth/2", ""), ("lr/layer/mlp_in/2", "mlp.up.weight")],
)
def test_depth_multipliers_reach_their_layers(coordinate: str, where: str) -> None:
    """1 and 8 at layers 1 and 2 become 1, 1, 4.5, 8 over four layers, in blocks only."""
    plain, tuned = lr_of(make_plan()), lr_of(make_plan(make_recipe({coordinate: 3.0})))
    for name in plain:
        block = name.startswith("blocks.") and name.endswith(where)
        expected = (1, 1, 4.5, 8)[int(name.split(".")[1])] if block else 1
        assert tuned[name] == pytest.approx(expected * plain[name])


def test_residual_multipliers_are_tuned_by_branch_and_layer() -> None:
    """Branch and depth multipliers reach the buffer and the tensors that end the branches."""
    found = make_plan(make_recipe({"residual/type/attn": 1.0, "residual/depth/2": 2.0}))
    expected = [(1.0, 0.5), (1.0, 0.5), (2.5, 1.25), (4.0, 2.0)]
    assert found.residual_multipliers == [pytest.approx(pair) for pair in expected]
    for layer, (attn, mlp) in enumerate(expected):
        assert found[f"blocks.{layer}.attn.out.weight"].multiplier == pytest.approx(attn)
        assert found[f"blocks.{layer}.mlp.down.weight"].multiplier == pytest.approx(mlp)
        assert found[f"blocks.{layer}.attn.qkv.weight"].multiplier == 1.0


def test_width_ratio_is_per_tensor() -> None:
    """A feed-forward width that stays keeps the second matrix's ratio, and no other, at 1."""
    found = make_plan(make_recipe(), width=256, mlp_width=256)
    ratios = {t.info.type: t.width_ratio for t in found.tensors}
    assert ratios == dict.fromkeys(ratios, 4.0) | {"mlp_out": 1.0}
    down, up = found["blocks.0.mlp.down.weight"], found["blocks.0.mlp.up.weight"]
    assert (down.lr, up.lr) == pytest.approx((2**-7, 2**-9))
    assert (down.weight_decay, up.weight_decay) == pytest.approx((0.1, 0.4))
    assert (down.init_std, up.init_std) == pytest.approx((0.02, 0.01))


def test_no_decay() -> None:
    """Roles left out of weight decay have 0 in the plan and in the groups; others keep theirs."""
    left_out = ("hidden_norm", "qk_norm", "output_norm")
    found = make_plan(make_recipe(no_decay=left_out))
    for tensor in found.tensors:
        assert (tensor.weight_decay == 0) == (tensor.info.role in left_out)
        assert (tensor.base["weight_decay"] == 0) == (tensor.info.role in left_out)


def test_independent_decay_is_adam_with_decoupled_decay() -> None:
    """With the plan's groups torch's AdamW does what Adam with its own decay, by hand, does."""
    rules = Rules(weight_decay="independent", alpha=0.5)
    recipe = make_recipe(rules=rules, weight_decay=0.05, eps=1e-4)
    found = make_plan(recipe, device="cpu", width=64, depth=3, **LARGER)
    model = found.model.double()
    found.initialise()
    by_hand = copy.deepcopy(model)
    multipliers, batches = [0.5, 1.0, 0.75, 0.25], token_batches(4)
    optimizer = torch.optim.AdamW(found.param_groups(), foreach=False)
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in by_hand.named_parameters()}
    for step, (multiplier, tokens) in enumerate(zip(multipliers, batches, strict=True), 1):
        set_learning_rates(optimizer, multiplier)
        train(model, optimizer, [tokens])
        train(by_hand, torch.optim.SGD(by_hand.parameters(), lr=0.0), [tokens])
        with torch.no_grad():
            for name, parameter in by_hand.named_parameters():
                tensor, (m, v) = found[name], moments[name]
                m.lerp_(parameter.grad, 1 - tensor.beta1)
                v.lerp_(parameter.grad**2, 1 - tensor.beta2)
                m_hat, v_hat = m / (1 - tensor.beta1**step), v / (1 - tensor.beta2**step)
                parameter -= multiplier * (
                    tensor.weight_decay * parameter
                    + tensor.lr * m_hat / (v_hat.sqrt() + tensor.eps)
                )
    for (name, ours), theirs in zip(model.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12, msg=name)


def shared() -> nn.Module:
    model = make_model()
    model.blocks[1].mlp.up.weight = model.blocks[0].mlp.up.weight
    return model


def with_extra() -> nn.Module:
    model = make_model()
    model.extra_gain = nn.Parameter(torch.ones(3))
    return model


@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        (lambda: make_model(depth=4), scale(), ["4", "2", "blocks"]),
        (make_model, scale(depth=3), ["2", "3", "blocks"]),
        (lambda: make_model(128), scale(), ["width", "128", "64"]),
        (shared, scale(), ["blocks.1.mlp.up.weight", "blocks.0.mlp.up.weight", "tied"]),
        (lambda: make_model(head_dim=32), scale(), ["head_dim", "32", "16", "heads"]),
        (
            with_extra,
            scale(),
            ["extra_gain", "[3]", "overrides", "no type seems to fit extra_gain"],
        ),
        (make_model, scale(batch=10 * BASE["batch"]), ["beta1", "0.9", "10"]),
    ],
)
def test_models_that_cannot_be_planned(
    model: Callable[[], nn.Module], target: cdp.Scale, said: list[str]
) -> None:
    """What does not fit the recipe is one line that says what differs and what to do."""
    message = error_of(plan, model(), make_recipe(), target)
    for word in said:
        assert word in message


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({r"^nothing$": "qkv"}, "^nothing$"),
        ({r"extra": "gain"}, "'gain'"),
        ({r"(extra": "mlp_norm"}, "(extra"),
        ({r"extra": "hidden_norm"}, "'hidden_norm'"),
    ],
)
def test_bad_overrides_are_one_line_errors(overrides: dict[str, str], said: str) -> None:
    """An override that matches nothing, names no type, or is no regular expression is quoted."""
    overrides = {r"^extra_gain$": "attn_norm"} | overrides
    assert said in error_of(classify, with_extra(), overrides)


def test_overrides_decide_before_names() -> None:
    """An override gives a tensor its type, also where a built-in name would have."""
    found = {t.name: t for t in classify(with_extra(), {"extra_gain": "output_norm"})}
    assert (found["extra_gain"].type, found["extra_gain"].how) == ("output_norm", "override")
    renamed = {t.name: t for t in classify(make_model(), {r"\.mlp\.up\.": "mlp_gate"})}
    assert renamed["blocks.1.mlp.up.weight"].type == "mlp_gate"
    assert renamed["blocks.1.mlp.up.weight"].layer == 2


def test_unknown_tensors_are_counted() -> None:
    """With many unknown tensors the first three are listed and the rest counted."""
    model = make_model()
    for n in range(7):
        model.register_parameter(f"odd{n}", nn.Parameter(torch.ones(2)))
    message = error_of(plan, model, make_recipe(), scale())
    assert "odd2" in message
    assert "odd3" not in message
    assert "4 more" in message


def test_frozen_parameters_are_not_planned() -> None:
    """A parameter that is not trained has no hyperparameters."""
    model = make_model()
    model.embedding.weight.requires_grad_(False)
    found = plan(model, make_recipe(), scale())
    assert "embedding.weight" not in [t.name for t in found.tensors]


@pytest.mark.parametrize(
    "wrap",
    [
        copy.deepcopy,
        Wrapper,
        lambda model: Wrapper(Wrapper(model)),
        lambda model: torch.compile(model, backend="eager"),
        lambda model: Wrapper(torch.compile(model, backend="eager")),
    ],
    ids=["deepcopy", "module", "module twice", "compile", "module and compile"],
)
def test_names_survive_wrappers(wrap: Callable[[nn.Module], Any]) -> None:
    """A wrapped or copied model has the same plan, groups and initial values as the model."""
    target, recipe = scale(width=128, depth=4), make_recipe(SEARCHED)
    plain, wrapped = make_model(128, 4), make_model(128, 4)
    ours, theirs = plan(plain, recipe, target), plan(wrap(wrapped), recipe, target)
    assert ours.to_dict() == theirs.to_dict()
    names = [[g["param_names"] for g in p.param_groups()] for p in (ours, theirs)]
    assert names[0] == names[1]
    ours.initialise(3)
    theirs.initialise(3)
    inner = {canonical_name(n): t for n, t in theirs.model.state_dict().items()}
    for name, value in plain.state_dict().items():
        assert torch.equal(value, inner[name]), name
    assert theirs["_orig_mod.module.embedding.weight"].name == "embedding.weight"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("module.blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.weight"),
        ("_orig_mod.module.embedding.weight", "embedding.weight"),
        ("blocks.3._checkpoint_wrapped_module.mlp.up.weight", "blocks.3.mlp.up.weight"),
        ("_fsdp_wrapped_module.blocks.0._orig_mod.mlp_norm.weight", "blocks.0.mlp_norm.weight"),
        ("submodule.weight", "submodule.weight"),
        ("module_list.weight", "module_list.weight"),
    ],
)
def test_canonical_names(name: str, expected: str) -> None:
    """What wrappers add is dropped wherever it stands; names that only look alike stay."""
    assert canonical_name(name) == expected


def test_planning_on_the_meta_device_allocates_nothing() -> None:
    """A model of tens of billions of parameters is planned, printed and exported on meta."""
    model = make_model(8192, 80, "meta")
    assert sum(p.numel() for p in model.parameters()) > 50e9
    found = plan(model, make_recipe(), scale(width=8192, depth=80))
    assert len(found.tensors) == 3 + 80 * 8
    assert "blocks.0-79.attn.qkv.weight" in str(found)
    assert found.to_dict()["ratios"]["width"] == 128
    assert len(found.param_groups()) <= len(Role)
    assert all(p.is_meta for p in model.parameters())


def test_a_plan_does_not_touch_the_model() -> None:
    """Planning, printing and grouping leave every weight and buffer as it was."""
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = plan(model, make_recipe(SEARCHED), scale())
    str(found)
    found.param_groups()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def initialised(seed: int = 0, depth: int = 4, recipe: Recipe | None = None) -> Plan:
    found = make_plan(recipe or make_recipe(), width=256, depth=depth, device="cpu")
    found.initialise(seed)
    return found


def test_initialisation_is_seeded() -> None:
    """The same seed gives the same bits; another changes every matrix."""
    same, again, other = (dict(initialised(s).model.named_parameters()) for s in (1, 1, 2))
    for name, parameter in same.items():
        assert torch.equal(parameter, again[name])
        assert torch.equal(parameter, other[name]) == (parameter.ndim == 1)


def test_initialisation_has_the_planned_size() -> None:
    """Matrices are drawn with the planned standard deviation around 0; vectors are constant."""
    found = initialised(recipe=make_recipe(SEARCHED))
    parameters = dict(found.model.named_parameters())
    for tensor in found.tensors:
        value = parameters[tensor.name].detach()
        if tensor.init_std is None:
            assert torch.all(value == tensor.init_value)
            continue
        sampling_error = 1 / math.sqrt(2 * value.numel())
        assert value.std().item() == pytest.approx(tensor.init_std, rel=5 * sampling_error)
        assert abs(value.mean().item()) < 5 * tensor.init_std / math.sqrt(value.numel())


def test_tensors_of_one_shape_have_draws_of_their_own() -> None:
    """Tensors that differ only in layer are not copies of one another."""
    parameters = dict(initialised().model.named_parameters())
    first, second = (parameters[f"blocks.{n}.attn.qkv.weight"] for n in (0, 1))
    assert not torch.equal(first, second)


def test_a_draw_depends_on_seed_and_name_alone() -> None:
    """More blocks, another order or a global random state do not change a tensor's draw."""
    shallow = dict(initialised(depth=2).model.named_parameters())
    torch.manual_seed(123)
    found = make_plan(width=256, device="cpu")
    found.tensors = found.tensors[::-1]
    state = torch.get_rng_state()
    found.initialise(0)
    assert torch.equal(torch.get_rng_state(), state)
    deep = dict(found.model.named_parameters())
    for name, parameter in shallow.items():
        assert torch.equal(parameter, deep[name]), name


def test_initialise_sets_the_multipliers() -> None:
    """The model's buffers hold the planned residual and output multipliers afterwards."""
    recipe = make_recipe({"residual/type/mlp": 1.0}, parameterisation="completep")
    model = initialised(recipe=recipe).model
    assert model.residual_multipliers.tolist() == [[0.5, 1.0]] * 4
    assert model.output_multiplier.item() == 0.25


def test_initialise_on_the_meta_device_is_an_error() -> None:
    """There is nothing to fill on the meta device: one line that says what to call."""
    message = error_of(make_plan().initialise)
    assert "meta" in message
    assert "to_empty" in message


@pytest.mark.parametrize(
    ("coordinate", "value"), [("one_minus_beta1/global", 4.0), ("one_minus_beta2/type/qkv", 5.0)]
)
def test_multipliers_that_break_a_beta(coordinate: str, value: float) -> None:
    """A tuned 1 - beta above 1 is one line that names the tensor and the beta."""
    message = error_of(make_plan, make_recipe({coordinate: value}))
    assert coordinate.split("/")[0].removeprefix("one_minus_") in message
    assert "weight" in message


def table_rows(found: Plan) -> list[str]:
    lines = str(found).splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith("─"))
    return [line.strip() for line in lines[start + 1 :] if line.strip()]


@pytest.mark.parametrize("depth", [2, 4, 12])
def test_table_has_one_row_per_type(depth: int) -> None:
    """Layers that agree fold into one row, every role is named, and nothing is cut off."""
    found = make_plan(depth=depth, **LARGER, **FULL)
    rows = table_rows(found)
    assert len(rows) == len({t.info.type for t in found.tensors})
    assert {row.split()[1] for row in rows} == {
        str(role) for role in Role if role not in (Role.TIED_EMBEDDING, Role.INPUT_BIAS)
    }
    assert f"blocks.0-{depth - 1}.attn.qkv.weight" in str(found)
    assert "…" not in str(found)
    assert max(map(len, str(found).splitlines())) <= 180


def test_table_splits_layers_that_differ() -> None:
    """Layers with values of their own have rows of their own."""
    rows = table_rows(make_plan(make_recipe({"lr/layer/qkv/2": 1.0})))
    names = [row.split()[0] for row in rows if ".qkv." in row]
    assert names == [f"blocks.{n}.attn.qkv.weight" for n in ("0-1", "2", "3")]


def test_table_says_the_scales() -> None:
    """The head of the table gives base, target, ratios, steps and the residual multiplier."""
    text = str(make_plan(**LARGER))
    for part in ("completedp", "alpha 1", "width x2", "depth x2", "r 0.25", "256 steps", "x0.5"):
        assert part in text


def test_to_dict_is_strict_json() -> None:
    """The export has every tensor with its trace, and is JSON without NaN."""
    found = make_plan(make_recipe(SEARCHED), **LARGER)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data == found.to_dict()
    assert len(data["tensors"]) == len(found.tensors)
    assert data["steps"] == 256
    first = data["tensors"][0]
    assert (first["name"], first["role"]) == ("embedding.weight", "input_embedding")
    assert math.prod(factor for _, factor in first["trace"]["lr"]) == first["lr"]


def test_explain_is_one_line_of_factors() -> None:
    """A tensor explains a value by the recipe's value and each ratio's power."""
    line = make_plan(**LARGER)["blocks.0.attn.qkv.weight"].explain("lr")
    assert "\n" not in line
    for part in ("blocks.0.attn.qkv.weight", "lr", "0.0078125 (value)", "width 2^-1", "tokens 16"):
        assert part in line


def test_a_module_stands_for_its_tensors() -> None:
    """`explain` takes a module's name; a near miss names the tensor of the same block."""
    found = make_plan(**LARGER)
    assert found.explain("blocks.3.mlp.up") == found.explain("blocks.3.mlp.up.weight")
    inside = [t.name for t in found.tensors if t.name.startswith("blocks.1.attn.")]
    heads = [line.split()[0] for line in found.explain("blocks.1.attn").splitlines()]
    assert [name for name in heads if name.startswith("blocks.")] == inside
    with pytest.raises(cdp.CompletedpError, match=r"did you mean blocks\.3\.mlp\.up\.weight"):
        found.explain("layers.3.mlp.up")


def test_a_plan_is_walked_and_asked_by_name() -> None:
    """Iterating gives the tensors in the model's order, and `in` finds them by their names."""
    found = make_plan(make_recipe())
    assert [tensor.name for tensor in found] == [n for n, _ in found.model.named_parameters()]
    for tensor in found:
        assert tensor in found
        assert found[tensor.name] is tensor
        assert tensor.name in found
        assert f"module.{tensor.name}" in found
    assert "blocks.3.mlp" not in found


def test_a_plan_explains_a_tensor_in_words() -> None:
    """What the tensor is, its values, then for each base, target and the factors between."""
    found = make_plan(make_recipe(SEARCHED), **LARGER)
    first, use, moved, *lines = found.explain("blocks.3.mlp.down.weight").splitlines()
    for part in ("mlp_out", "hidden_weight", "block 4 of 4", "by its shape", "width x2"):
        assert part in first
    lr = found["blocks.3.mlp.down.weight"].values["lr"]
    assert f"use lr {lr.target:.3g}" in use
    assert f"lr x{lr.target / lr.base:.3g} (for width" in moved
    named = [line.split(" = ")[0].strip() for line in lines]
    assert named == [
        *("lr", "weight_decay", "eps", "1 - beta1", "1 - beta2", "init_std", "multiplier", "tau")
    ]
    tensor = found["blocks.3.mlp.down.weight"]
    for line, (name, value) in zip(lines[:-1], tensor.values.items(), strict=True):
        assert f"{value.target:.6g}" in line
        assert all(label in line for label, _ in value.trace), name
    assert "by the model's buffer" in lines[-2]
    assert f"{tensor.tau:.4g} run lengths" in lines[-1]
    assert "starts at 1" in found.explain("output_norm.weight")


@pytest.mark.parametrize("name", ["lr", "beta2", "one_minus_beta2", "init_std", "multiplier"])
def test_a_plan_explains_one_value(name: str) -> None:
    """Asked for one hyperparameter, in a line with the tensor's name."""
    line = make_plan(**LARGER).explain("unembedding.weight", name)
    assert "\n" not in line
    shown = name if "beta" not in name else "1 - beta2"
    assert line.startswith(f"unembedding.weight: {shown} = ")


def test_what_a_plan_cannot_explain() -> None:
    """A near miss of a name is answered with the names it may mean; an unknown value, listed."""
    found = make_plan()
    message = error_of(found.explain, "blocks.0.attn.qvk.weight")
    assert "'blocks.0.attn.qvk.weight': did you mean blocks.0.attn.qkv.weight" in message
    message = error_of(found.explain, "output_norm.weight", "init_std")
    assert "'init_std'" in message
    assert "weight_decay" in message


def test_folded_and_left_out_values_are_explained() -> None:
    """A folded multiplier shows in every value it changed; a role without decay says so."""
    model, recipe = make_model(64, 4, "meta"), make_recipe(no_decay=("hidden_weight",))
    found = plan(model, recipe, scale(depth=4), multipliers="fold")
    text = found.explain("blocks.0.attn.out.weight")
    assert text.count("(folded multiplier)") == 4
    assert "(for folded multiplier)" in text.splitlines()[2]
    assert "folded into its start, lr, decay and eps" in text
    assert "(0 at base, its role being left out)" in text


class Odd(nn.Module):
    """A reference model with a vector that nobody can tell, in every block."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = make_model(width, depth)
        for block in self.net.blocks:
            block.odd = nn.Parameter(torch.ones(width))


def test_a_recipe_keeps_its_overrides(tmp_path: Path) -> None:
    """A model that was told by overrides at base is planned, from a saved recipe, without them."""
    recipe = Recipe.for_model(Odd(64, 2), scale(), overrides={r"\.odd$": "latent_norm"})
    recipe.save(tmp_path / "odd.json")
    loaded = Recipe.load(tmp_path / "odd.json")
    assert loaded.overrides == {r"\.odd$": "latent_norm"}
    found = plan(Odd(128, 4), loaded, scale(width=128, depth=4))
    info = found["net.blocks.3.odd"].info
    assert (info.type, info.layer, info.how) == ("latent_norm", 4, "override")
    assert not found["net.blocks.3.odd"].borrowed


def test_overrides_of_a_plan_come_before_the_recipes() -> None:
    """One that is passed wins; the recipe's stands for the tensors it still reaches, or none."""
    recipe = Recipe.for_model(Odd(64, 2), scale(), overrides={r"\.odd$": "latent_norm"})
    given = {r"blocks\.1\.odd$": "attn_post_norm"}
    with pytest.warns(UserWarning, match="attn_post_norm"):
        found = plan(Odd(64, 2), recipe, scale(), overrides=given)
    types = [found[f"net.blocks.{n}.odd"].info.type for n in (0, 1)]
    assert types == ["latent_norm", "attn_post_norm"]
    whole = plan(Odd(64, 2), recipe, scale(), overrides={"odd": "mlp_norm"})
    assert whole["net.blocks.0.odd"].info.type == "mlp_norm"
    same = plan(Odd(64, 2), recipe, scale(), overrides={r"\.odd$": "mlp_norm"})
    assert same["net.blocks.0.odd"].info.type == "mlp_norm"


def test_an_override_of_the_recipes_that_matches_nothing() -> None:
    """A model without the tensors that the recipe names is one line that quotes the pattern."""
    recipe = Recipe.for_model(Odd(64, 2), scale(), overrides={r"\.odd$": "latent_norm"})
    message = error_of(plan, make_model(), recipe, scale())
    assert repr(r"\.odd$") in message
    assert "matches no tensor" in message


class Constants(nn.Module):
    """A reference model whose config has factors of its own."""

    def __init__(self, width: int = 64, **settings: Any) -> None:
        super().__init__()
        self.net = make_model(width, device="meta")
        self.config = SimpleNamespace(**settings)


def test_a_recipe_keeps_the_models_own_constants(tmp_path: Path) -> None:
    """Factors of the forward pass are recorded by name, and saved."""
    settings = {"logit_scale": 0.5, "mlp_multipliers": [1.0, 2.0], "tie_word_embeddings": False}
    sizes = {"dim_model_base": 32, "hidden_size": 64, "scale_depth": 2.0, "num_hidden_layers": 4}
    model = Constants(**settings, **sizes)
    model.net.embedding.embed_scale = 8.0
    with pytest.warns(UserWarning, match="scales itself"):
        recipe = Recipe.for_model(model, scale())
    assert recipe.constants == {
        "config.logit_scale": 0.5,
        "config.mlp_multipliers.0": 1.0,
        "config.mlp_multipliers.1": 2.0,
        "config.dim_model_base / hidden_size": 0.5,
        "config.scale_depth / sqrt(num_hidden_layers)": 1.0,
        "embedding.embed_scale": 8.0,
    }
    recipe.save(tmp_path / "recipe.json")
    assert Recipe.load(tmp_path / "recipe.json") == recipe


def warned(model: nn.Module, recipe: Recipe, target: cdp.Scale) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan(model, recipe, target)
    about_the_test = (cdp.ScaleWarning, cdp.ModelWarning)  # its models are small, and do not run
    return [str(w.message) for w in caught if not issubclass(w.category, about_the_test)]


@pytest.mark.parametrize("width", [64, 128])
def test_constants_that_moved_are_warned_of(width: int) -> None:
    """One line names the attribute and both values; what stayed, but for bfloat16, is silent."""
    recipe = Recipe.for_model(Constants(logit_scale=0.5, embedding_multiplier=12.0), scale())
    target = scale(width=width)
    assert (
        warned(Constants(width, logit_scale=0.5, embedding_multiplier=12.0), recipe, target) == []
    )
    close = Constants(width, logit_scale=0.501, embedding_multiplier=12.0)
    assert warned(close, recipe, target) == []
    moved = warned(Constants(width, logit_scale=0.25), recipe, target)
    assert ["config.logit_scale = 0.25 and was 0.5 at base" in moved[0], len(moved)] == [True, 2]
    assert "config.embedding_multiplier = not set and was 12 at base" in moved[1]


def test_a_recipe_without_constants_warns_of_scaled_embeddings_alone() -> None:
    """An older recipe says nothing of factors: then only what grows with the width is told."""
    recipe = replace(Recipe.for_model(Constants(), scale()), constants=None)
    model = Constants(128, logit_scale=0.25)
    assert warned(model, recipe, scale(width=128)) == []
    model.net.embedding.embed_scale = 128**0.5
    messages = warned(model, recipe, scale(width=128))
    assert ["net.embedding.embed_scale = 11.3" in messages[0], len(messages)] == [True, 1]


@pytest.mark.parametrize("way", ["buffer", "fold", "hook"])
def test_a_model_is_looked_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning, attaching and grouping work from one map of the model."""
    built = []
    original = Structure.__init__

    def counted(self: Structure, *arguments: Any) -> None:
        built.append(self)
        original(self, *arguments)

    recipe, model = make_recipe(), make_model(64, 4)
    monkeypatch.setattr(Structure, "__init__", counted)
    found = plan(model, recipe, scale(depth=4), multipliers=way)  # type: ignore[arg-type]
    found.initialise()
    found.param_groups()
    hooked(found)
    assert built == [found.map.structure]


def test_unknown_name_in_a_plan_is_an_error() -> None:
    """Asking for a tensor that is not there is one line that quotes it."""
    assert "'nothing'" in error_of(make_plan().__getitem__, "nothing")


@pytest.mark.parametrize(
    ("base", "said"), [(scale(depth=3), "3"), (scale(width=128), "128")], ids=["depth", "width"]
)
def test_for_model_checks_the_base_scale(base: cdp.Scale, said: str) -> None:
    """A base scale that is not the base model's is one line that says both."""
    assert said in error_of(Recipe.for_model, make_model(device="meta"), base)


def test_for_model_reads_widths_off_the_model() -> None:
    """Widths are fan-ins of matrices, the embedding's dimension, and lengths of vectors."""
    recipe = Recipe.for_model(make_model(device="meta"), BASE_SCALE, lr=1e-3, alpha=0.5)
    assert dict(recipe.widths) == dict.fromkeys(recipe.widths, 64) | {
        "mlp_out": 256,
        "q_norm": 16,
        "k_norm": 16,
    }
    assert (recipe.head_dim, recipe.values.lr, recipe.rules.alpha) == (16, 1e-3, 0.5)


def test_for_model_drops_no_choice() -> None:
    """A choice given beside `rules` is not lost."""
    rules = Rules(parameterisation="completep")
    recipe = Recipe.for_model(make_model(device="meta"), BASE_SCALE, rules=rules, alpha=0.5)
    assert (recipe.rules.parameterisation, recipe.rules.alpha) == ("completep", 0.5)


TUNED = {"lr/type/qkv": 2.0, "lr/type/mlp_in": -1.0, "lr/layer/mlp_out/1": 1.0, "eps/type/qkv": 3.0}


def test_a_type_the_recipe_does_not_know_gets_its_roles_values() -> None:
    """A gate is a hidden weight: the mean in log2 of the hidden weights' values, and marked so."""
    model = make_model(128, 2, mlp="swiglu", device="meta")
    with pytest.warns(UserWarning, match=r"mlp_gate.*marked ~.*for_model"):
        found = plan(model, make_recipe(TUNED), scale(width=128))
    gate, known = found["blocks.0.mlp.gate.weight"], found["blocks.0.mlp.up.weight"]
    assert gate.borrowed
    assert not known.borrowed
    assert gate.width_ratio == 2.0
    # Of qkv, attn_out, mlp_in and mlp_out: 2 + 0 - 1, and 1 in the first layer; then the rule.
    assert gate.lr == pytest.approx(2**-7 * 2 ** ((2 - 1 + 1) / 4) / 2)
    assert found["blocks.1.mlp.gate.weight"].lr == pytest.approx(2**-7 * 2 ** (1 / 4) / 2)
    assert gate.eps == pytest.approx(gate.base["eps"] / 2)
    assert gate.base["eps"] == pytest.approx(1e-8 * 2 ** (3 / 4))
    assert "(role)" in gate.explain("lr")
    for width in (80, 120, 200):
        lines = render(found, (), width).splitlines()
        legend = next(line for line in lines if line.startswith("  ~ "))
        assert "the recipe does not know" in legend
        *_, last = (" ".join(line.split()[:2]) for line in lines if "~" in line)
        assert last in ("blocks.0.mlp.gate.weight ~", "blocks.1.mlp.gate.weight ~")
        assert sum("~" in line for line in lines) == 1 + 2  # the gates' rates differ


def test_rows_have_one_start() -> None:
    """What starts elsewhere is in a row of its own, whatever else is the same."""
    model = NanoGPT(64, 2)
    for block, start in zip(model.h, (0.1, 0.2), strict=True):
        block.ln_2.register_parameter("gain", nn.Parameter(torch.full((64,), start)))
    named = {r"ln_2\.gain": "mlp_norm"}
    recipe = Recipe.for_model(model, BASE_SCALE, overrides=named, probe=False)
    found = plan(model, recipe, BASE_SCALE, probe=False)
    rows = {row.split()[0]: row for row in render(found, (), 200).splitlines() if "ln_2" in row}
    for name, start in (("h.0.ln_2.gain", 0.1), ("h.1.ln_2.gain", 0.2), ("h.0-1.ln_2.weight", 1)):
        assert f"= {start:g} " in rows[name]


def test_a_type_of_a_role_that_the_recipe_has_none_of_gets_the_global_value() -> None:
    """A recipe for a model without biases knows no role for one: the value, by its rule."""
    model = make_model(128, 2, bias=True, device="meta")
    with pytest.warns(UserWarning, match="qkv_bias.* get the recipe's global values, marked ~"):
        found = plan(model, make_recipe(TUNED), scale(width=128))
    assert found["blocks.0.attn.qkv.bias"].base["lr"] == 2**-7
    assert found["blocks.0.attn.qkv.bias"].borrowed


class _Experts(nn.Module):
    """A feed-forward layer of experts, one of them shared by all tokens and larger."""

    def __init__(self, width: int, hidden: int, shared: int) -> None:
        super().__init__()

        def expert(size: int) -> nn.ModuleDict:
            up, down = nn.Linear(width, size), nn.Linear(size, width)
            return nn.ModuleDict({"up_proj": up, "down_proj": down})

        self.gate = nn.Linear(width, 3, bias=False)
        self.experts = nn.ModuleList(expert(hidden) for _ in range(3))
        self.shared_expert = expert(shared)


def moe(width: int, hidden: int, shared: int, depth: int = 2) -> nn.Module:
    model = make_model(width, depth, device="meta")
    with torch.device("meta"):
        for block in model.blocks:
            block.mlp = _Experts(width, hidden, shared)
    return model


@pytest.mark.filterwarnings("ignore:.*no rule for routers")
def test_experts_of_several_widths_inside_another_model() -> None:
    """A model within a wrapper of the user's is matched by its names; one of other names warns."""
    recipe = cdp.Recipe.for_model(moe(64, 32, 128), scale(), lr=2**-7)
    bare = plan(moe(128, 96, 256, depth=4), recipe, scale(width=128, depth=4))
    ratios = {t.name: t.width_ratio for t in bare.tensors}
    outer = nn.ModuleDict({"net": moe(128, 96, 256, depth=4)})
    inside = plan(outer, recipe, scale(width=128, depth=4))
    assert {t.name.removeprefix("net."): t.width_ratio for t in inside.tensors} == ratios
    backwards = cdp.Recipe.for_model(nn.ModuleDict({"net": moe(64, 32, 128)}), scale(), lr=2**-7)
    found = plan(moe(128, 96, 256, depth=4), backwards, scale(width=128, depth=4))
    assert {t.name: t.width_ratio for t in found.tensors} == ratios
    for block in outer["net"].blocks:  # type: ignore[union-attr]
        block.mlp.others = block.mlp.experts
        del block.mlp.experts
    with pytest.warns(UserWarning, match="several widths of mlp_in_bias, none of them of a"):
        plan(outer, recipe, scale(width=128, depth=4))


@pytest.mark.filterwarnings("ignore:.*no rule for routers")
def test_experts_of_several_widths_scale_by_their_own(tmp_path: Path) -> None:
    """Routed and shared experts' ratios are to their own base widths, also from a saved recipe."""
    recipe = cdp.Recipe.for_model(moe(64, 32, 128), scale(), lr=2**-7)
    assert recipe.widths["mlp_out@blocks.*.mlp.experts.*.down_proj.weight"] == 32
    recipe.save(tmp_path / "moe.json")
    assert cdp.Recipe.load(tmp_path / "moe.json") == recipe
    found = plan(moe(128, 96, 256, depth=4), recipe, scale(width=128, depth=4))
    ratios = {t.name: t.width_ratio for t in found.tensors}
    assert ratios["blocks.3.mlp.experts.2.down_proj.weight"] == 3.0
    assert ratios["blocks.3.mlp.shared_expert.down_proj.weight"] == 2.0
    assert ratios["blocks.3.mlp.shared_expert.up_proj.weight"] == 2.0
    assert ratios["blocks.3.mlp.gate.weight"] == 2.0


def test_depth_that_would_count_twice_is_warned_of() -> None:
    """GPT-2's 1/sqrt(2 depth) in the weights, with residual multipliers: say plan.initialise()."""
    recipe, target = make_recipe(), scale(depth=4)
    model = make_plan(recipe, width=64, depth=4, device="cpu").model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                shrunk = name.endswith(("attn.out.weight", "mlp.down.weight"))
                parameter.normal_(std=0.02 / math.sqrt(8) if shrunk else 0.02)
    with pytest.warns(UserWarning, match=r"1/sqrt\(2 x 4\).*plan.initialise"):
        found = plan(model, recipe, target)
    found.initialise()
    plan(model, recipe, target)


def test_options_of_a_recipe_are_named() -> None:
    """A word that no recipe has is one line that says which there are, and no traceback."""
    said = error_of(cdp.Recipe.for_model, make_model(), BASE_SCALE, learning_rate=0.1)
    assert "'learning_rate'" in said
    assert "lr" in said


def test_a_model_without_blocks_is_told_how() -> None:
    """Layers that are in no list are named by overrides, with a group that says which they are."""
    layers = {f"layer{i}": nn.Linear(64, 64) for i in range(2)}
    model = nn.ModuleDict({"embedding": nn.Embedding(8, 64), **layers, "head": nn.Linear(64, 8)})
    names = {"layer0": "mlp_in", "layer1": "mlp_out", "head": "unembedding"}
    said = error_of(cdp.Recipe.for_model, model, BASE_SCALE, overrides=names, probe=False)
    assert "has no list of blocks" in said
    assert "(?P<layer>" in said


@pytest.mark.parametrize("width", [72, 80, 100])
def test_layers_merge_whatever_their_heads(width: int) -> None:
    """Grouped keys and values make no row for each layer, and no name is cut within a word."""
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "intermediate_size": 96}
    model = hugging_face(
        "qwen3", num_hidden_layers=8, num_key_value_heads=2, vocab_size=64, **sizes
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = scale(width=64, depth=8)
        found = plan(model, Recipe.for_model(model, there), there)
    lines = render(found, (), width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("q_proj" in line for line in lines) == 1
    names = {word for t in found.tensors for word in t.name.split(".")} | {"0-7"}
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("──")) + 1
    for line in lines[start:]:
        shown = line.strip().split(" ")[0].strip(".,")
        for word in shown.replace("{", "").replace("}", "").replace(",", ".").split("."):
            assert word in names, line
