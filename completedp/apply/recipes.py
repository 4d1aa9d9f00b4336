"""A recipe of global values for a user's own base-sized model (`Recipe.for_model`)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from torch import nn

from completedp.apply.classify import TensorInfo, classify, depth_of, head_dim_of
from completedp.common.errors import CompletedpError
from completedp.theory.hparams import Hyperparameters, Values
from completedp.theory.recipe import Recipe, numberless
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale

DEFAULT_LR = 2.0**-8


def recipe_for_model(
    base_model: nn.Module, base: Scale, *, overrides: dict[str, str] | None = None, **options: Any
) -> Recipe:
    """The recipe: widths of every module type read off the model, values as given."""
    tensors = classify(base_model, overrides)
    if depth_of(tensors) != base.depth:
        raise CompletedpError(
            f"the base model has {depth_of(tensors)} blocks and the base scale says {base.depth}"
        )
    widths = _widths(tensors)
    if widths.get("embedding", base.width) != base.width:
        raise CompletedpError(
            f"the base model has width {widths['embedding']} and the base scale says {base.width}"
        )
    names = {cls: {f.name for f in fields(cls)} for cls in (Values, Rules)}
    # weight_decay is a value here; the convention of Rules goes by `rules=Rules(...)`.
    values = {k: options.pop(k) for k in list(options) if k in names[Values]}
    choices = {k: options.pop(k) for k in list(options) if k in names[Rules]}
    rules = replace(options.pop("rules", Rules()), **choices)
    return Recipe(
        base=base,
        hyperparameters=Hyperparameters(
            values=Values(**({"lr": DEFAULT_LR} | values)), depth=base.depth
        ),
        widths=widths,
        head_dim=head_dim_of(tensors, base_model),
        rules=rules,
        **options,
    )


def _widths(tensors: list[TensorInfo]) -> dict[str, int]:
    """The width of every type; where its tensors differ (experts that are shared, and not), also
    that of each kind, `type@name`, by its name with block and expert left open."""
    widths: dict[str, int] = {}
    kinds: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        widths.setdefault(tensor.type, tensor.width)
        kind = kinds.setdefault(tensor.type, {})
        if kind.setdefault(numberless(tensor.name), tensor.width) != tensor.width:
            raise CompletedpError(
                f"{tensor.name} has width {tensor.width}, and the same tensor of another block "
                f"{kind[numberless(tensor.name)]}: the rules are for blocks that are alike"
            )
    for module_type, kind in kinds.items():
        if len(set(kind.values())) > 1:
            widths |= {f"{module_type}@{name}": width for name, width in kind.items()}
    return widths
