"""Cautions: models that no rules hold for, and recipes that do not fit a model.

Functions called `check` raise; those called `cautions` give lines for the caller to warn with.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from completedp.apply.model_map import BLOCKS, EXPERTS, PROBED, SIZED, ModelMap
from completedp.apply.own_scales import own_scales
from completedp.apply.settings import (
    config_of,
    embedding_scales,
    is_same_constant,
    logit_scale,
    setting,
)
from completedp.apply.starts import START
from completedp.apply.structure import Structure, fans, is_norm
from completedp.apply.tensors import PlanNumbers
from completedp.apply.unknown import pattern_of
from completedp.common.errors import CompletedpError
from completedp.common.surface import command, override
from completedp.theory.horizon import critical_batch
from completedp.theory.recipe import Recipe
from completedp.theory.roles import MODULE_TYPES, Role
from completedp.theory.scale import Scale
from completedp.theory.transfer import Transfer
from completedp.theory.trust import doubts

# Settings of a model that scale its layers by depth or its logits by width, with what undoes them.
_OWN_SCALES: dict[str, Callable[[Any], Any]] = {
    "scale_attn_by_inverse_layer_idx": lambda config: False,
    "residual_multiplier": lambda config: 1.0,
    "scale_depth": lambda config: config.num_hidden_layers**0.5,  # MiniCPM's
    "dim_model_base": lambda config: config.hidden_size,
}
# By what is seen to be multiplied: the settings of a config that say so.
_SETTINGS = {
    "embeddings": "embedding_multiplier|scale_emb",
    "attn branch": "residual_|scale_depth|attention_out_multiplier",
    "mlp branch": "residual_|scale_depth",
    "attention's logits": "attention_multiplier|query_pre_attn_scalar|key_multiplier",
    "what the head reads": "dim_model_base|logit|lm_head|output_multiplier",
    "logits": "dim_model_base|logit|lm_head|output_multiplier",
}
_POWERS = (1.0, -1.0, -0.5)
"""Of a setting in what it multiplies: it may divide, or be what a square root is taken of."""
HEADS_NOT_VISIBLE = "head size not visible"
"""What a caution begins with."""
_HEADS = (
    HEADS_NOT_VISIBLE + "{}, so that nobody checks it: keep it the same at every width yourself, "
    "or give the attention modules an attribute head_dim"
)


def check_structure(structure: Structure) -> None:
    """Raise on a model that no rules hold for: tensors in two roles, or scaled by the width."""
    _check_not_shared(structure)
    _check_no_readout(structure)
    _check_not_parametrized(structure)


def check_fit(model: ModelMap, recipe: Recipe, target: Scale) -> None:
    """Raise where the model is not of the target's size, or has what the recipe's had not."""
    _check_trained(model)
    if model.depth != target.depth:
        raise CompletedpError(
            f"the model has {model.depth} blocks and the target says {target.depth}"
        )
    _check_width(model, target, "the model", "the target")
    _check_lists(model, recipe, target)
    _check_experts(model, recipe)


def check_heads(model: ModelMap, recipe: Recipe) -> None:
    """Raise where the model's heads are not of the recipe's size, as far as both are known."""
    head_dim = model.head_dim
    if recipe.head_dim is not None and head_dim is not None and head_dim != recipe.head_dim:
        raise CompletedpError(
            f"head_dim is {head_dim} and was {recipe.head_dim} at base: the rules hold when width "
            f"grows by more heads of the same size, so take heads of {recipe.head_dim}, or "
            f"{_of_heads(head_dim)}"
        )


def _of_heads(head_dim: int) -> str:
    """How to come by a recipe of other heads, where the user is."""
    if (asked := command()) is None:
        return f"a recipe of a base with heads of {head_dim} (Recipe.for_model, or cdp.search)"
    of = f"--head-dim {head_dim}" if asked.model is None else f"--model {shlex.quote(asked.model)}"
    return (
        f"a --recipe (without one it is `default`) of a base with heads of {head_dim}: search one "
        f"with `completedp search start {of}`"
    )


def _check_lists(model: ModelMap, recipe: Recipe, target: Scale) -> None:
    """Raise where one list of blocks grows more than another: there is one ratio of depth."""
    ratio = (target / recipe.base).depth
    for path, here in model.lists.items():
        there = (recipe.constants or {}).get(f"{BLOCKS}{path}")
        if there is not None and here != there * ratio:
            raise CompletedpError(
                f"{path} has {here} blocks and had {there:g} at base, where depth grows "
                f"x{ratio:g}: a plan has one ratio for all lists of blocks, so let them grow "
                "alike, or make the recipe from a base model with lists in this proportion"
            )


def _check_experts(model: ModelMap, recipe: Recipe) -> None:
    """Raise where experts would be taken for larger or smaller copies of a dense feed-forward."""
    router = next((t.name for t in model if t.type == "router"), None)
    has_dense = {"mlp_in", "mlp_out"} & set(recipe.types)
    if router is not None and has_dense and "router" not in recipe.types:
        raise CompletedpError(
            f"the model has experts ({router}) and the recipe's base model had none: what was "
            "tuned for a dense feed-forward is not for experts, whose width is another; make the "
            "recipe from a base-sized copy of this model that has experts in its blocks"
        )


def _check_trained(model: ModelMap) -> None:
    """A plan is of what is trained."""
    if not any(parameter.requires_grad for parameter in model.model.parameters()):
        raise CompletedpError(
            "every parameter of the model is frozen, or it has none: give requires_grad to those "
            "that are to be trained"
        )


def check_base(model: ModelMap, base: Scale) -> None:
    """Raise where a base model is not of the base's size."""
    _check_trained(model)
    if model.depth != base.depth:
        how = ""
        if not model.depth:
            how = (
                ": it has no list of blocks, so that overrides must say which layer a tensor is "
                r"of, as 'layer(?P<layer>\d+)\.weight' does"
            )
        raise CompletedpError(
            f"the base model has {model.depth} blocks and the base scale says {base.depth}{how}"
        )
    _check_width(model, base, "the base model", "the base scale")


def _check_width(model: ModelMap, scale: Scale, whose: str, said: str) -> None:
    """Raise at the first tensor taken for the token embedding that is not as wide as the scale."""
    for tensor in model:
        if tensor.embeds_tokens and tensor.width != scale.width:
            raise CompletedpError(
                f"{whose} has width {tensor.width}, by {tensor.as_taken}, and {said} says "
                f"{scale.width}"
            )


def check_not_frozen(model: ModelMap, multipliers: Sequence[tuple[float, float]]) -> None:
    """Raise where a frozen tensor, which has no plan, would lose its branch's multiplier.

    A vector of neither a norm nor a linear layer, such as experts' balancing bias, ends no branch.
    """
    if not _any_multiplier(multipliers):
        return
    for place, parameter in model.structure.places():
        may_end = min(parameter.shape, default=0) > 1 and parameter.ndim > 1
        may_end |= is_norm(place.owner) or fans(place.owner) is not None
        if place.layer is not None and not parameter.requires_grad and may_end:
            raise CompletedpError(
                f"{place.name} is frozen, and its block's residual multipliers could not be "
                "carried by it: train every tensor of the blocks, or give the model a "
                "residual_multipliers buffer"
            )


def own_scale_cautions(model: nn.Module) -> Iterator[str]:
    """Settings by which a model scales itself."""
    config = config_of(model)
    for name, neutral_for in _OWN_SCALES.items():
        value = setting(config, name)
        if value is not None and value != (neutral := neutral_for(config)):
            yield (
                f"config.{name} = {value!r}: the model scales itself, on top of the plan, so depth "
                f"or width may count twice; set it to {neutral!r}"
            )


def plan_cautions(
    model: ModelMap,
    transfer: Transfer,
    multipliers: Sequence[tuple[float, float]],
    *,
    looked: bool,
) -> Iterator[str]:
    """What a user should know before training by this plan; `looked` where the model could be run
    for it."""
    yield from _borrowed_types(model, transfer)
    yield from _unmatched_widths(model, transfer.recipe)
    yield from _moved_constants(model, transfer)
    if transfer.ratios.width != 1.0:
        yield from _routers(model, transfer)
        yield from _no_output(model)
        if looked:
            yield from _unseen_heads(model, transfer.recipe)
    if _any_multiplier(multipliers):
        yield from _own_depth_scaling(model)


def scale_cautions(plan: PlanNumbers) -> Iterator[str]:
    """What to doubt of a plan's recipe at its target: theory/trust.py."""
    recipe = plan.recipe
    yield from _beyond_critical_batch(recipe, plan.target)
    yield from doubts(
        recipe,
        plan.target,
        taus=[tensor.tau for tensor in plan.tensors if tensor.info.role.is_matrix],
        memories=[
            (_memory(beta2.base), _memory(beta2.target))
            for tensor in plan.tensors
            if (beta2 := tensor.values.get("beta2"))
        ],
        tokens_per_parameter=_tokens_per_parameter(plan),
    )


def _tokens_per_parameter(plan: PlanNumbers) -> float | None:
    """At the base; None of a model that has no table of tokens, whose data are other examples."""
    if plan.map.structure.vocabulary is None:
        return None
    return plan.recipe.base.tokens / _base_parameters(plan)


def _memory(beta: float) -> float:
    """Steps that a moving average is over."""
    return 1 / (1 - beta) if beta < 1 else math.inf


def _base_parameters(plan: PlanNumbers) -> float:
    """About how many parameters the base model had: this one's, each dimension at base."""
    ratios, count = plan.ratios, 0.0
    for tensor in plan.tensors:
        role, shrunk = tensor.info.role, tensor.width_ratio
        if role.is_matrix and role.in_blocks:  # wider both ways
            shrunk *= ratios.width
        if role.in_blocks:
            shrunk *= ratios.depth
        count += math.prod(tensor.info.shape) / shrunk
    return count


def _beyond_critical_batch(recipe: Recipe, target: Scale) -> Iterator[str]:
    """The batch rule holds for batches whose gradients are mostly noise."""
    critical, batch = critical_batch(recipe), target.batch
    if critical is not None and batch > max(critical, recipe.base.batch):
        yield (
            f"batch {batch:,} is {batch / critical:.2g} times the critical batch of "
            f"{critical:,.0f} tokens that the recipe records: beyond it more tokens a step gain "
            "little, and the batch rule raises the learning rate as if they did; take a smaller "
            "batch, or measure it at your tokens (completedp train shows it): it grows as the loss "
            "falls"
        )


def _any_multiplier(multipliers: Sequence[tuple[float, float]]) -> bool:
    return any(value != 1.0 for pair in multipliers for value in pair)


def _borrowed_types(model: ModelMap, transfer: Transfer) -> Iterator[str]:
    unknown = dict.fromkeys(t.type for t in model if transfer.is_borrowed(t.type))
    if unknown:
        roles = {MODULE_TYPES[name] for name in transfer.recipe.types}
        get = {True: "the mean of their role's values", False: "the recipe's global values"}
        found = dict.fromkeys(get[MODULE_TYPES[name] in roles] for name in unknown)
        yield (
            f"the recipe knows no module type {', '.join(unknown)}: these get "
            f"{' or, where it knows none of their role, '.join(sorted(found, reverse=True))}, "
            "marked ~ in the table; for values of their own tune a base-sized copy "
            "of this model, from Recipe.for_model"
        )


def _unmatched_widths(model: ModelMap, recipe: Recipe) -> Iterator[str]:
    for tensor in model:
        if tensor.type in recipe.types and recipe.base_width(tensor.type, tensor.name) is None:
            yield (
                f"the base model had several widths of {tensor.type}, none of them of a tensor "
                f"called {tensor.name}: it is taken to grow as the model's width does; make the "
                "recipe from a base-sized copy of this model"
            )
            return


def set_by_plans(model: ModelMap, recipe: Recipe) -> set[str]:
    """The names of those factors of a model's own that its plans set right."""
    own = logit_scale(model.model) if model.structure.tied else None
    found = {scale.constant for scale in own_scales(model, recipe).values()}
    return found | ({f"config.{own[0]}"} & (recipe.constants or {}).keys() if own else set())


def _moved_constants(model: ModelMap, transfer: Transfer) -> Iterator[str]:
    """Factors of the model's own that are not those of the base model."""
    base = transfer.recipe.constants
    if base is None:
        if transfer.ratios.width != 1.0:
            yield from _scaled_embeddings(model.model)
        return
    kept_right = set_by_plans(model, transfer.recipe)
    for name in dict.fromkeys((*model.constants, *base)):
        if name in kept_right or name.startswith((START, SIZED, BLOCKS)):
            continue
        here, there = model.constants.get(name), base.get(name)
        if name in EXPERTS:
            if here != there and here is not None and there is not None:
                yield (
                    f"{name} = {here:g} and was {there:g} at base: each expert sees another share "
                    "of the batch, for which there is no rule; keep it, or tune at the base anew"
                )
            continue
        if name.startswith(PROBED):
            if model.probed is None:
                yield (
                    f"the base model's forward pass multiplied {name.removeprefix(PROBED)} by "
                    f"{there:g}, and this model was not run: see that it is {there:g} here, too"
                )
                continue
            # What was seen to be 1 is not noted.
            here, there = (1.0 if factor is None else factor for factor in (here, there))
            if _said_by_a_setting(name, here, there, model.constants, base):
                continue
        if here is None or there is None or not is_same_constant(here, there):
            yield (
                f"{name} = {_shown(here)} and was {_shown(there)} at base: the model's forward "
                "pass has another factor, on top of the plan; set it to the base model's value"
            )


def _said_by_a_setting(
    name: str, seen: float, was: float, here: Mapping[str, float], there: Mapping[str, float]
) -> bool:
    """Whether a factor that was seen moved by as much as a setting that says it: that one has a
    line of its own, or is set right by plans."""
    said = next((keys for what, keys in _SETTINGS.items() if what in name), None)
    found = (k for k in here.keys() & there.keys() if said and re.match(rf"config\.({said})", k))
    return any(
        is_same_constant(seen, was * (here[key] / there[key]) ** power)
        for key in found
        for power in _POWERS
        if here[key] * there[key] > 0
    )


def _shown(constant: float | None) -> str:
    return "not set" if constant is None else f"{constant:g}"


def _scaled_embeddings(model: nn.Module) -> Iterator[str]:
    """Gemma multiplies its embeddings by sqrt(width)."""
    for name, scale in embedding_scales(model).items():
        yield (
            f"{name} = {scale:g}: where that grows with the width, so do the embeddings, on top "
            "of the plan; set it to the base model's value"
        )


def _routers(model: ModelMap, transfer: Transfer) -> Iterator[str]:
    """A router has an output for each expert, and hidden weights more of them with the width."""
    routers = [t.name for t in model if t.type == "router"]
    if routers and "eps" in transfer.hyperparameters("router"):
        more = f" and {len(routers) - 1} more" if routers[1:] else ""
        yield (
            f"{routers[0]}{more}: the paper has no rule for routers, which are planned as hidden "
            "weights; their gradients shrink less with the width than their eps then does, so "
            'tune values of their own ("lr/type/router", "eps/type/router") or keep eps negligible'
        )


def _no_output(model: ModelMap) -> Iterator[str]:
    """A head may be tied to the embedding by the forward pass alone."""
    if not any(t.role in (Role.OUTPUT_WEIGHT, Role.TIED_EMBEDDING) for t in model):
        table = next((t.name for t in model if t.embeds_tokens), None)
        pattern = pattern_of(table, [t.name for t in model]) if table else "EMBEDDING"
        yield (
            "the model has no output weight to train: if its logits are made by "
            f"{table or 'the embedding'} (tied), say so with {override(pattern, 'tied_embedding')}"
        )


def head_size_caution(model: ModelMap) -> str | None:
    """Of a model with attention whose head size nobody can see."""
    return _HEADS.format("") if model.has_attention and model.head_dim is None else None


def _unseen_heads(model: ModelMap, recipe: Recipe) -> Iterator[str]:
    """Where there is nothing to compare: here, or in the recipe."""
    if caution := head_size_caution(model):
        yield caution
    elif model.has_attention and recipe.head_dim is None:
        yield _HEADS.format(" in the recipe's base model")


def _own_depth_scaling(model: ModelMap) -> Iterator[str]:
    """GPT-2 draws the last weights of its branches 1/sqrt(2 depth) times smaller."""
    parameters, depth = model.parameters(), model.depth
    first = {t.type: parameters[t.name] for t in model if t.layer == 1}
    for reads, ends_branch in (("qkv", "attn_out"), ("mlp_in", "mlp_out")):
        pair = [first.get(reads), first.get(ends_branch)]
        if any(p is None or p.is_meta or type(p) is not nn.Parameter for p in pair):
            return
        wide, end = (float(p.detach().float().std()) for p in pair if p is not None)
        if not wide or not math.isclose(end / wide, (2 * depth) ** -0.5, rel_tol=0.03):
            return
    yield (
        f"the model's own initialisation shrinks the last weights of its branches by "
        f"1/sqrt(2 x {depth}), so with the planned residual multipliers depth would count twice: "
        "call plan.initialise(), which replaces it"
    )


def _check_not_shared(structure: Structure) -> None:
    """An embedding may be the output weight too, which has a row of its own; nothing else may."""
    tied = {place.name for place in structure.tied or ()}
    for later, first in structure.shared:
        if not {later.name, first.name} <= tied:
            raise CompletedpError(
                f"{later.name} and {first.name} are one tensor, and there is a rule only for an "
                "embedding that is the output weight too (tied): give each a tensor of its own"
            )


def _check_not_parametrized(structure: Structure) -> None:
    """Raise where a weight is made anew of other tensors in every call, as by `weight_norm`."""
    for path, module in structure.modules.items():
        old = {"weight_g", "weight_v", "weight_orig"} & module._parameters.keys()
        made = hasattr(module, "parametrizations") or old
        if made and any(p.requires_grad for p in module.parameters()):
            raise CompletedpError(
                f"the weight of {path} is made of other tensors (a parametrization, such as "
                "weight_norm), so that what the rules say of a weight is not true of them: remove "
                "it, with torch.nn.utils.parametrize.remove_parametrizations, or with remove_"
                "weight_norm where it is of the older kind"
            )


def _check_no_readout(structure: Structure) -> None:
    for path, module in structure.modules.items():
        if "MuReadout" in (kind.__name__ for kind in type(module).__mro__):
            raise CompletedpError(
                f"{path} is a MuReadout of the mup package, which divides by the width itself, on "
                "top of the plan: make it an nn.Linear (docs/migrating.md)"
            )
