"""Own scales: tables of embeddings that multiply what they look up, as Gemma's by sqrt(width).

Such a factor grows on top of the rules. What grew since base is taken out of the table, as
multipliers are folded: with W' = W / g, initial values and lr over g, eps and decay times g, a
table that multiplies by g trains as one that does not. A tied table makes the logits too, without
that factor, and their multiplier is times g. Nothing of the model changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from completedp.apply.model_map import ModelMap
from completedp.apply.multipliers import rescaled
from completedp.apply.settings import embedding_scale, is_same_constant, last_names
from completedp.apply.tensors import TensorPlan
from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role


@dataclass(frozen=True)
class OwnScale:
    """What a table multiplies by, here and in the base model."""

    constant: str
    """Its name among a recipe's constants."""
    here: float
    base: float

    @property
    def growth(self) -> float:
        """The factor on top of the rules."""
        return 1.0 if is_same_constant(self.here, self.base) else self.here / self.base

    @property
    def label(self) -> str:
        """What a value's trace calls it."""
        return f"its table's own factor, {self.base:.6g} at base and here {self.here:.6g}"


def own_scales(model_map: ModelMap, recipe: Recipe) -> dict[str, OwnScale]:
    """By tensor, of those that a plan sets right: tables whose modules look up in a way of their
    own. A recipe that records no constants says nothing of its base's."""
    if recipe.constants is None:
        return {}
    found = {}
    for info in model_map:
        path = info.name.rpartition(".")[0]
        if info.role in (Role.INPUT_EMBEDDING, Role.TIED_EMBEDDING):
            scale = scale_of_table(model_map.structure.modules[path])
            if scale is not None:
                constant = last_names(f"{path}.embed_scale")
                found[info.name] = OwnScale(constant, scale, recipe.constants.get(constant, 1.0))
    return found


def scale_of_table(module: nn.Module) -> float | None:
    """What a table that looks up in a way of its own multiplies by. What a plain one has as an
    attribute, whoever calls it may use, or nobody."""
    return None if type(module).forward is nn.Embedding.forward else embedding_scale(module)


def without_growth(
    tensors: Sequence[TensorPlan], model_map: ModelMap, recipe: Recipe
) -> list[TensorPlan]:
    """The tensors' plans with what such factors grew by taken out."""
    scales = own_scales(model_map, recipe)
    return [
        _divided(tensor, scales[tensor.name]) if tensor.name in scales else tensor
        for tensor in tensors
    ]


def _divided(tensor: TensorPlan, scale: OwnScale) -> TensorPlan:
    if scale.growth == 1.0:
        return tensor
    values = rescaled(tensor, 1.0 / scale.growth, scale.label)
    if tensor.info.role is Role.TIED_EMBEDDING:
        values["multiplier"] = values["multiplier"].times(scale.label, scale.growth)
    return replace(tensor, values=values, own_growth=scale.growth)
