"""Starts: where tensors begin that no rule owns, for a model that has no values yet.

What only an override names, and the model starts at one value throughout, stays there
(LayerScale's gain, the second matrix of LoRA). On the meta device nobody can see that value, so a
recipe keeps those of its base model, by name with the block's number left open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from completedp.apply.model_map import ModelMap, TensorInfo
from completedp.apply.structure import fans, is_norm
from completedp.theory.recipe import Recipe, numberless

START = "start: "
"""What the names of such constants begin with."""


def starts_of(model_map: ModelMap) -> dict[str, float]:
    """What a recipe keeps; of tensors that differ from block to block nothing."""
    found: dict[str, set[float | None]] = {}
    for tensor in model_map:
        if tensor.how == "override":
            found.setdefault(_constant(tensor), set()).add(tensor.start)
    every = ((name, values.pop()) for name, values in found.items() if len(values) == 1)
    return {name: value for name, value in every if value is not None}


def with_starts(model_map: ModelMap, recipe: Recipe) -> ModelMap:
    """The map of a model on the meta device with its base's starts; any other as it is."""
    kept, parameters = recipe.constants or {}, model_map.parameters()
    if not any(name.startswith(START) for name in kept):
        return model_map
    tensors = [
        replace(tensor, start=kept.get(_constant(tensor)))
        if tensor.how == "override" and parameters[tensor.name].is_meta
        else tensor
        for tensor in model_map
    ]
    return ModelMap(model_map.model, model_map.structure, tensors)


def unseen_starts(base_map: ModelMap) -> Iterator[str]:
    """What to say of a base model on the meta device, whose starts nobody sees."""
    named = {tensor.name: tensor for tensor in base_map if tensor.how == "override"}
    for place, parameter in base_map.structure.places():
        is_known = is_norm(place.owner) or fans(place.owner) is not None
        if place.name in named and parameter.is_meta and parameter.ndim < 2 and not is_known:
            yield (
                f"where the model itself starts {place.name} cannot be seen on the meta device, "
                f"and it is taken to start where a {named[place.name].role} does: make the base "
                "model on a real device"
            )
            return


def _constant(tensor: TensorInfo) -> str:
    return f"{START}{numberless(tensor.name)}"
