"""A recipe of global values for a user's own base-sized model (`Recipe.for_model`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from completedp.apply import cautions
from completedp.apply.classify import classify
from completedp.apply.model_map import BLOCKS, ModelMap
from completedp.apply.probe import confirm
from completedp.apply.starts import starts_of, unseen_starts
from completedp.common.checks import check_one_of
from completedp.common.errors import CompletedpError, ModelWarning
from completedp.common.warn import warn
from completedp.theory.hparams import Hyperparameters, Values
from completedp.theory.recipe import Recipe, numberless
from completedp.theory.rules import Rules, check_rules
from completedp.theory.scale import Scale, check_scale

DEFAULT_LR = 2.0**-8
_OWN = ("schedule", "no_decay", "provenance")
"""What a recipe may be given besides values and rules."""


def recipe_for_model(
    base_model: nn.Module,
    base: Scale,
    *,
    overrides: Mapping[str, str] | None = None,
    probe: bool = True,
    **options: Any,
) -> Recipe:
    """The recipe: widths and constants read off the model, values and overrides as given."""
    check_scale("base", base)
    model_map = classify(base_model, overrides)
    cautions.check_base(model_map, base)
    for doubt in confirm(model_map).doubts(at_base=True) if probe else ():
        warn(doubt, ModelWarning)
    for doubt in unseen_starts(model_map):
        warn(doubt, ModelWarning)
    # weight_decay is a value here; the convention of Rules goes by `rules=Rules(...)`.
    values = {k: options.pop(k) for k in list(options) if k in Values.names()}
    names = {f.name for f in fields(Rules)}
    choices = {k: options.pop(k) for k in list(options) if k in names}
    rules = options.pop("rules", Rules())
    check_rules(rules)
    for name in options:
        check_one_of("option", name, (*_OWN, *Values.names(), "rules", *sorted(names)))
    return Recipe(
        base=base,
        hyperparameters=Hyperparameters(
            values=Values(**({"lr": DEFAULT_LR} | values)), depth=base.depth
        ),
        widths=_widths(model_map),
        head_dim=model_map.head_dim,
        overrides=overrides or {},
        constants={
            **model_map.constants,
            **model_map.sizes,
            **starts_of(model_map),
            **_lists(model_map),
        },
        rules=rules.chosen(**choices),
        **options,
    )


def _lists(tensors: ModelMap) -> dict[str, float]:
    """How many blocks each of several lists has, which have to grow alike."""
    return {f"{BLOCKS}{path}": float(number) for path, number in tensors.lists.items()}


def _widths(tensors: ModelMap) -> dict[str, int]:
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
