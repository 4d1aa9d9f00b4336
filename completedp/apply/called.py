"""Called with other tensors than its own: a module, of which nothing is changed by it.

`torch.func.functional_call` puts back what it found at each name. Of a module that has two names it
finds the new tensor at the second, and leaves that in it. Here every place that holds a tensor has
one name, and the places that share one are found beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

Names = Mapping[str, tuple[str, ...]]
"""By any name of a tensor: a name for each place that holds it."""


def names_of(module: nn.Module) -> Names:
    """Of all tensors of a module, in as many places as they are shared by."""
    places: dict[int, list[str]] = {}
    held: dict[str, int] = {}
    seen: set[nn.Module] = set()
    for path, owner in module.named_modules(remove_duplicate=False):
        for key, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                name = f"{path}.{key}" if path else key
                held[name] = id(tensor)
                if owner not in seen:
                    places.setdefault(id(tensor), []).append(name)
        seen.add(owner)
    return {name: tuple(places[tensor]) for name, tensor in held.items()}


def call_with(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    names: Names | None = None,
) -> Any:
    """What a module gives with some tensors in place of its own; `names` where they are known."""
    known = names_of(module) if names is None else names
    placed = {name: t for given, t in tensors.items() for name in known.get(given, ())}
    return functional_call(module, placed, args, dict(kwargs or {}), tie_weights=False)
