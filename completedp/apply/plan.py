"""Plan: recipe x model x target scale. Every tensor's values, and the factors each came from."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from completedp.apply import initialise, optimise
from completedp.apply.classify import (
    TensorInfo,
    canonical_name,
    classify,
    depth_of,
    head_dim_of,
)
from completedp.apply.multipliers import (
    Wanted,
    Way,
    attach,
    check_not_frozen,
    choose_ways,
    ends,
    fold,
)
from completedp.apply.table import render
from completedp.common.errors import CompletedpError
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, MODULE_TYPES, Role, is_bias
from completedp.theory.rules import power
from completedp.theory.scale import Ratios, Scale

Trace = tuple[tuple[str, float], ...]
"""Named factors; their product is the value."""


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """One parameter: what it is, and its values at the target."""

    info: TensorInfo
    width_ratio: float
    """Its own width over that of its type at base: m_N, tensor by tensor."""
    init_std: float | None
    """None for vectors, which start at a constant."""
    init_value: float | None
    lr: float
    weight_decay: float
    eps: float
    beta1: float
    beta2: float
    multiplier: float
    """What its output is multiplied by in the forward pass; 1 where that is folded into it."""
    base: Mapping[str, float]
    """The same values on the base model, for the same type at the same relative depth."""
    trace: Mapping[str, Trace]
    """For each value, the factors it came from."""
    borrowed: bool
    """Whether the recipe knows its role alone, and not its type."""

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.info.name

    @property
    def betas(self) -> tuple[float, float]:
        """As torch's AdamW takes them."""
        return self.beta1, self.beta2

    def explain(self, hyperparameter: str) -> str:
        """One line: the value and its factors, those of 1 left out."""
        if hyperparameter not in self.trace:
            raise CompletedpError(
                f"{self.name} has no {hyperparameter!r} to explain: "
                f"choose from {', '.join(self.trace)}"
            )
        parts = [f"{factor:.6g} ({label})" for label, factor in self.trace[hyperparameter]]
        return f"{self.name} {hyperparameter} = {' x '.join(parts)}"


class Plan:
    """What to do with a model at a target scale. Prints as a table."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        target: Scale,
        tensors: list[TensorPlan],
        residual_multipliers: list[tuple[float, float]],
        ways: Mapping[str, Way],
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.target = target
        self.ratios: Ratios = target / recipe.base
        self.tensors = tensors
        self.residual_multipliers = residual_multipliers
        """Of every block: the attention branch's and the feed-forward branch's."""
        self.ways = ways
        """How the multipliers of `attn`, `mlp` and `output` are carried: buffer, fold or hook."""

    @property
    def output_multiplier(self) -> float:
        """Forward multiplier of the unembedding; 1 but under CompleteP."""
        return next((t.multiplier for t in self.tensors if t.info.role is Role.OUTPUT_WEIGHT), 1.0)

    @property
    def buffers(self) -> dict[str, Any]:
        """What the model's multiplier buffers, where it has them, are set to."""
        return {
            "residual_multipliers": [
                [
                    value if self.ways[branch] == "buffer" else 1.0
                    for branch, value in zip(BRANCHES, pair, strict=True)
                ]
                for pair in self.residual_multipliers
            ],
            "output_multiplier": (
                self.output_multiplier if self.ways["output"] == "buffer" else 1.0
            ),
        }

    def __getitem__(self, name: str) -> TensorPlan:
        """The plan of one tensor, by its name."""
        wanted = canonical_name(name)
        for tensor in self.tensors:
            if tensor.name == wanted:
                return tensor
        raise CompletedpError(f"the plan has no tensor {name!r}")

    def initialise(self, seed: int = 0) -> None:
        """Draw every parameter and attach the multipliers, in place.

        The draw depends on the seed and the tensor's name alone: not on the device, the order of
        the parameters, or who else is there.
        """
        initialise.initialise(self, seed)
        self.attach()

    def attach(self) -> None:
        """Set the model's multipliers: its buffers, and hooks where branches end in norms.

        `initialise` does it too. A model that is loaded instead needs it where its multipliers are
        carried by hooks, which no checkpoint holds.
        """
        attach(self)

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups for `torch.optim.AdamW`: tensors with equal values share one."""
        return optimise.param_groups(self)

    def adamw(self, **options: Any) -> torch.optim.AdamW:
        """A `torch.optim.AdamW` with these groups; options go to its constructor."""
        return optimise.adamw(self, **options)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        return {
            "base": self.recipe.base.to_dict(),
            "target": self.target.to_dict(),
            "ratios": self.ratios.to_dict(),
            "steps": self.target.steps,
            "rules": self.recipe.rules.to_dict(),
            "residual_multipliers": [list(pair) for pair in self.residual_multipliers],
            "output_multiplier": self.output_multiplier,
            "multipliers": dict(self.ways),
            "tensors": [_tensor_dict(tensor) for tensor in self.tensors],
        }

    def __str__(self) -> str:
        return render(self)

    __repr__ = __str__


def plan(
    model: nn.Module,
    recipe: Recipe,
    target: Scale,
    *,
    overrides: Mapping[str, str] | None = None,
    multipliers: Wanted = "auto",
) -> Plan:
    """Work out every tensor's values. The model may be on the meta device and is not touched.

    `overrides` are as for `classify`. `multipliers` says how residual multipliers are carried: by
    buffers that the model has, folded into the last weights of a branch, or by forward hooks;
    `auto` takes the first of these that the model allows.
    """
    tensors = classify(model, overrides)
    _check_model(model, tensors, recipe, target)
    ways = choose_ways(model, tensors, multipliers)
    ratios = target / recipe.base
    rules, hyperparameters = recipe.rules, recipe.hyperparameters

    @cache  # layers share almost everything; 70B models have hundreds of tensors
    def rule_terms(role: Role, hyperparameter: str, width_ratio: float) -> Trace:
        exponents = rules.exponents(role, hyperparameter)
        own = Ratios(
            width=width_ratio, depth=ratios.depth, batch=ratios.batch, tokens=ratios.tokens
        )
        return tuple(
            (f"{axis} {getattr(own, axis):g}^{exponent:g}", power({axis: exponent}, own))
            for axis, exponent in exponents.items()
            if exponent
        )

    borrowed = _borrowed(tensors, recipe)
    _warn_of_unmatched_widths(tensors, recipe)

    @cache
    def base_terms(tunable: str, module_type: str, layer: int | None) -> Trace:
        of_role = borrowed.get(module_type, ())
        if not of_role:
            found = hyperparameters.multipliers(tunable, module_type, layer, target.depth)
        else:
            each = [hyperparameters.multipliers(tunable, t, layer, target.depth) for t in of_role]
            found = {name: statistics.geometric_mean(f[name] for f in each) for name in each[0]}
            found["role"] = found.pop("type")
        return (("value", hyperparameters.values.of(tunable)), *found.items())

    def residual(branch: str, layer: int) -> Trace:
        terms = base_terms("residual", branch, layer)
        exponents = rules.residual_exponents()
        rule = tuple(
            (f"{axis} {getattr(ratios, axis):g}^{e:g}", power({axis: e}, ratios))
            for axis, e in exponents.items()
            if e
        )
        return terms + rule

    def tensor_plan(info: TensorInfo) -> TensorPlan:
        base_width = recipe.base_width(info.type, info.name)
        # What the base model had none of grows as its width does; so do vectors whose length is
        # no width.
        if base_width is None or info.role in (Role.QK_NORM, Role.OUTPUT_BIAS):
            width_ratio = ratios.width
        else:
            width_ratio = info.width / base_width
        base, trace, value = {}, {}, {}
        for tunable in TUNABLE[:-1]:  # residual multipliers are not a tensor's own
            name = tunable.removeprefix("one_minus_")
            terms = base_terms(tunable, info.type, info.layer)
            key = "one_minus_beta" if name != tunable else tunable
            scaling = rule_terms(info.role, key, width_ratio)
            base[name] = _product(terms)
            if name != tunable:  # tuned as 1 - beta, used as beta
                tuned = any(x != 1.0 for label, x in terms if label != "value")
                given = getattr(hyperparameters.values, name)  # 1 - (1 - beta) would round
                base[name] = 1.0 - base[name] if tuned else given
                _check_beta(name, base[name], info)
                value[name] = rules.scale_beta(name, base[name], _product(scaling))
                if rules.beta_rule == "power" and base[name] != value[name]:
                    scaling = (("beta^r", (1 - value[name]) / (1 - base[name])),)
                trace[tunable] = _collapse(terms + scaling)
                continue
            if name == "weight_decay" and info.role in recipe.no_decay:
                terms = (*terms, ("no_decay", 0.0))
                base[name] = 0.0
            if name == "init_std" and not info.role.is_matrix:
                continue
            value[name] = _product(terms + scaling)
            if not (math.isfinite(value[name]) and (value[name] > 0 or name == "weight_decay")):
                raise CompletedpError(
                    f"{info.name}: {name} = {value[name]:g}, after its multipliers and rules"
                )
            trace[name] = _collapse(terms + scaling)
        trace["multiplier"] = _collapse(
            residual(branch, info.layer)
            if (branch := ends(info)) in BRANCHES and info.layer
            else rule_terms(info.role, "multiplier", width_ratio)
        )
        if not info.role.is_matrix:
            del base["init_std"]
        return TensorPlan(
            info=info,
            width_ratio=width_ratio,
            init_std=value.pop("init_std", None),
            init_value=_constant(info),
            multiplier=_product(trace["multiplier"]),
            base=base,
            trace=trace,
            borrowed=info.type in borrowed,
            **value,
        )

    residual_multipliers = [
        (_product(residual("attn", layer)), _product(residual("mlp", layer)))
        for layer in range(1, target.depth + 1)
    ]
    if {ways["attn"], ways["mlp"]} != {"buffer"}:
        check_not_frozen(model, tensors, residual_multipliers)
    if ratios.width != 1.0:
        _warn_of_embedding_scale(model)
        _warn_of_routers(tensors)
        _warn_of_no_output(tensors)
    if any(value != 1.0 for pair in residual_multipliers for value in pair):
        _warn_of_own_depth_scaling(model, tensors, target.depth)
    independent = rules.weight_decay == "independent"
    planned = [fold(tensor_plan(info), ways, independent) for info in tensors]
    return Plan(model, recipe, target, planned, residual_multipliers, ways)


def _check_model(
    model: nn.Module, tensors: list[TensorInfo], recipe: Recipe, target: Scale
) -> None:
    depth = depth_of(tensors)
    if depth != target.depth:
        raise CompletedpError(f"the model has {depth} blocks and the target says {target.depth}")
    for tensor in tensors:
        if tensor.type == "embedding" and tensor.width != target.width:
            raise CompletedpError(
                f"the model has width {tensor.width} and the target says {target.width}"
            )
    head_dim = head_dim_of(tensors, model)
    if recipe.head_dim is not None and head_dim is not None and head_dim != recipe.head_dim:
        raise CompletedpError(
            f"head_dim is {head_dim} and was {recipe.head_dim} at base: the rules hold when width "
            "grows by more heads of the same size"
        )


def _warn_of_embedding_scale(model: nn.Module) -> None:
    """Gemma multiplies its embeddings by sqrt(width)."""
    for name, module in model.named_modules():
        scale = getattr(module, "embed_scale", None)
        if isinstance(scale, torch.Tensor):
            scale = None if scale.is_meta or scale.numel() != 1 else float(scale)
            scale = scale or getattr(module, "scalar_embed_scale", None)
        if isinstance(scale, float | int) and scale != 1:
            warnings.warn(
                f"{name}.embed_scale = {scale:g}: where that grows with the width, so do the "
                "embeddings, on top of the plan; set it to the base model's value",
                stacklevel=3,
            )


def _warn_of_unmatched_widths(tensors: list[TensorInfo], recipe: Recipe) -> None:
    for tensor in tensors:
        if tensor.type in recipe.types and recipe.base_width(tensor.type, tensor.name) is None:
            warnings.warn(
                f"the base model had several widths of {tensor.type}, none of them of a tensor "
                f"called {tensor.name}: it is taken to grow as the model's width does; make the "
                "recipe from a base-sized copy of this model",
                stacklevel=3,
            )
            return


def _warn_of_no_output(tensors: list[TensorInfo]) -> None:
    """A head may be tied to the embedding by the forward pass alone."""
    if not any(t.role is Role.OUTPUT_WEIGHT for t in tensors):
        warnings.warn(
            "the model has no output weight to train: if its logits are made by the embedding "
            "(tied), no rule holds for both; give it an output layer of its own",
            stacklevel=3,
        )


def _warn_of_routers(tensors: list[TensorInfo]) -> None:
    """A router has an output for each expert, and hidden weights more of them with the width."""
    routers = [t.name for t in tensors if t.type == "router"]
    if routers:
        more = f" and {len(routers) - 1} more" if routers[1:] else ""
        warnings.warn(
            f"{routers[0]}{more}: the paper has no rule for routers, which are planned as hidden "
            "weights; their gradients shrink less with the width than their eps then does, so "
            'tune values of their own ("lr/type/router", "eps/type/router") or keep eps negligible',
            stacklevel=3,
        )


def _warn_of_own_depth_scaling(model: nn.Module, tensors: list[TensorInfo], depth: int) -> None:
    """GPT-2 draws the last weights of its branches 1/sqrt(2 depth) times smaller."""
    parameters = {canonical_name(name): p for name, p in model.named_parameters()}
    first = {t.type: parameters[t.name] for t in tensors if t.layer == 1}
    for reads, ends_branch in (("qkv", "attn_out"), ("mlp_in", "mlp_out")):
        pair = [first.get(reads), first.get(ends_branch)]
        if any(p is None or p.is_meta or type(p) is not nn.Parameter for p in pair):
            return
        wide, end = (float(p.detach().float().std()) for p in pair if p is not None)
        if not wide or not math.isclose(end / wide, (2 * depth) ** -0.5, rel_tol=0.03):
            return
    warnings.warn(
        f"the model's own initialisation shrinks the last weights of its branches by "
        f"1/sqrt(2 x {depth}), so with the planned residual multipliers depth would count twice: "
        "call plan.initialise(), which replaces it",
        stacklevel=3,
    )


def _borrowed(tensors: list[TensorInfo], recipe: Recipe) -> dict[str, list[str]]:
    """Module types that the recipe does not know, with the types of their role that it does."""
    missing = dict.fromkeys(t.type for t in tensors if t.type not in recipe.types)
    found = {
        module_type: [t for t in recipe.types if MODULE_TYPES[t] is MODULE_TYPES[module_type]]
        for module_type in missing
    }
    if found:
        warnings.warn(
            f"the recipe knows no module type {', '.join(found)}: these get the mean of their "
            "role's values, marked ~ in the table; for values of their own tune a base-sized copy "
            "of this model, from Recipe.for_model",
            stacklevel=3,
        )
    return found


def _check_beta(name: str, beta: float, info: TensorInfo) -> None:
    if not 0 <= beta < 1:
        raise CompletedpError(
            f"{info.name}: {name} = {beta:g} at base, after its multipliers; it must be in [0, 1)"
        )


def _product(terms: Trace) -> float:
    return math.prod(factor for _, factor in terms)


def _collapse(terms: Trace) -> Trace:
    """Without the multipliers that are exactly 1; the value itself always stays."""
    return tuple((label, x) for label, x in terms if label == "value" or x != 1.0)


def _constant(info: TensorInfo) -> float | None:
    """What a vector starts at: a bias at 0, a gain at 1 less what its module adds to it."""
    if info.role.is_matrix:
        return None
    return 0.0 if is_bias(info.type) else 1.0 - info.offset


def _tensor_dict(tensor: TensorPlan) -> dict[str, Any]:
    plain = asdict(tensor.info) | {"role": str(tensor.info.role), "shape": list(tensor.info.shape)}
    names = ("width_ratio", "init_std", "init_value", "lr", "weight_decay", "eps")
    plain |= {name: getattr(tensor, name) for name in (*names, "beta1", "beta2", "multiplier")}
    plain |= {"borrowed": tensor.borrowed, "base": dict(tensor.base)}
    plain["trace"] = {k: [list(term) for term in v] for k, v in tensor.trace.items()}
    return plain
