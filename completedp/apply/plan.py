"""plan(): recipe x model x target scale. The theory's values, for the tensors of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from completedp.apply import cautions
from completedp.apply.carried import check_carried, hook_caution
from completedp.apply.classify import classify
from completedp.apply.model_map import ModelMap, TensorInfo
from completedp.apply.multipliers import Wanted, choose_ways, fold
from completedp.apply.own_scales import without_growth
from completedp.apply.planned import Plan
from completedp.apply.probe import confirm
from completedp.apply.sizes import size_caution
from completedp.apply.starts import with_starts
from completedp.apply.tensors import TensorPlan
from completedp.common.errors import CompletedpError, ModelWarning, ScaleWarning
from completedp.common.warn import warn
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES
from completedp.theory.scale import Scale
from completedp.theory.transfer import Transfer


def plan(
    model: nn.Module,
    recipe: Recipe | str | Path,
    target: Scale,
    *,
    overrides: Mapping[str, str] | None = None,
    multipliers: Wanted = "auto",
    probe: bool = True,
) -> Plan:
    """Work out every tensor's values. The model may be on the meta device and is not touched.

    `target` is the run's size: width in features, depth in blocks, batch and tokens in tokens.
    `overrides` are as for `classify`, tried before the recipe's own. `multipliers` says how
    residual multipliers are carried: by buffers that the model has, folded into what is last in
    a branch, or by forward hooks; `auto` takes the first of these that the model allows. What there
    is to doubt of the recipe at the target is warned of (`ScaleWarning`), and in `plan.cautions`.
    What a small model of yours was taken for is confirmed by running it (probe.py), unless
    `probe` is False.

    >>> import torch, completedp as cdp
    >>> with torch.device("meta"):
    ...     model = cdp.Transformer(cdp.ModelConfig(vocab=4096, width=512, depth=8))
    >>> target = cdp.Scale(width=512, depth=8, batch=65_536, tokens=256_000_000)
    >>> found = plan(model, cdp.Recipe.default(), target)
    >>> round(found["blocks.0.attn.qkv.weight"].lr, 6), round(found.residual_multipliers[0][0], 3)
    (0.003326, 0.33)
    """
    found = make_plan(
        model,
        Recipe.find(recipe),
        target,
        overrides=overrides,
        multipliers=multipliers,
        probe=probe,
    )
    for line in found.cautions:
        warn(line, ScaleWarning)
    return found


def make_plan(
    model: nn.Module,
    recipe: Recipe,
    target: Scale,
    *,
    overrides: Mapping[str, str] | None = None,
    multipliers: Wanted = "auto",
    probe: bool = True,
) -> Plan:
    """The same without a word on the recipe: for trials, whose scale is what is being measured."""
    model_map = with_starts(classify(model, overrides, inherited=recipe.overrides), recipe)
    transfer = Transfer(recipe, target)
    cautions.check_fit(model_map, recipe, target)
    residual = [_residual(transfer, layer) for layer in range(1, target.depth + 1)]
    ruled = [_tensor_plan(info, model_map, transfer) for info in model_map]
    tensors = without_growth(ruled, model_map, recipe)
    ways = choose_ways(model_map, tensors, recipe, multipliers)
    if {ways["attn"], ways["mlp"]} != {"buffer"}:
        cautions.check_not_frozen(model_map, residual)
    seen = confirm(model_map) if probe else None
    for doubt in seen.doubts(at_base=False) if seen else ():
        warn(doubt, ModelWarning)
    cautions.check_heads(model_map, recipe)
    for message in cautions.plan_cautions(model_map, transfer, residual, looked=probe):
        warn(message)
    if caution := size_caution(model_map, recipe, target):
        warn(caution, ModelWarning)
    found = Plan(recipe, target, model_map, fold(tensors, model_map, ways), residual, ways)
    if seen:
        check_carried(found, seen)
        # Who asks for hooks knows of them.
        if multipliers == "auto" and (caution := hook_caution(found, seen)):
            warn(caution, ModelWarning)
    return found


def _residual(transfer: Transfer, layer: int) -> tuple[float, float]:
    attn, mlp = (transfer.value("residual", branch, layer).target for branch in BRANCHES)
    return attn, mlp


def _tensor_plan(info: TensorInfo, model_map: ModelMap, transfer: Transfer) -> TensorPlan:
    ratio = transfer.width_ratio(info.type, info.width, info.name)
    try:
        values = {
            name: transfer.value(name, info.type, info.layer, width_ratio=ratio)
            for name in (*transfer.hyperparameters(info.type), "multiplier")
            if name != "init_std" or info.start is None  # which stays as it is
        }
        branch = model_map.ends(info)
        if branch in BRANCHES and info.layer:  # its output is the branch's
            values["multiplier"] = transfer.value("residual", branch, info.layer)
    except CompletedpError as error:
        raise CompletedpError(f"{info.name}: {error}") from None
    return TensorPlan(
        info=info,
        width_ratio=ratio,
        values=values,
        borrowed=transfer.is_borrowed(info.type),
        independent_decay=transfer.recipe.rules.weight_decay == "independent",
        steps=transfer.target.steps,
        optimizer=transfer.recipe.rules.optimizer_of(info.role).name,
    )
