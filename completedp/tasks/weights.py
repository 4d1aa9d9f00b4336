"""A user's model without its weights, which a plan is to draw, and with memory for them again.

Its parameters are other objects then. What else the model keeps of the old ones is out of reach: so
it is said.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from completedp.apply.classify import is_constant
from completedp.apply.names import canonical_name
from completedp.apply.structure import fans, is_norm
from completedp.common.errors import ModelWarning
from completedp.common.warn import warn

_NAMED = 3
"""Of many tensors, how many a warning names."""


def without_weights(model: nn.Module, overrides: Iterable[str] = ()) -> nn.Module:
    """The model with its parameters on the meta device; what no plan may draw stays: what is frozen
    or starts at a value of its own, and buffers. Not a copy: a forward pass may be patched in ways
    that no copy follows."""
    replaced = _emptied(model, tuple(overrides))
    if kept := [name for name, old in replaced.items() if old() is not None]:
        warn(
            f"{_listed(kept)}: kept by more than the model's modules, as in a list or a closure; "
            "what a forward pass reads there is never trained here: read it from its module",
            ModelWarning,
        )
    return model


def _emptied(model: nn.Module, overrides: Iterable[str]) -> dict[str, weakref.ref[nn.Parameter]]:
    """Replace the parameters by others on the meta device; by name, those that there were."""
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    watched: dict[str, weakref.ref[nn.Parameter]] = {}
    hooked = []
    for path, module in model.named_modules():
        for name, parameter in _own(module):
            whole = canonical_name(f"{path}.{name}".lstrip("."))
            named = any(re.search(pattern, whole) for pattern in overrides)
            if not parameter.requires_grad or _starts_by_itself(module, parameter, named=named):
                continue
            if parameter not in replaced:
                empty = nn.Parameter(torch.empty_like(parameter, device="meta"))
                replaced[parameter] = _alike(empty, parameter)
                watched[whole] = weakref.ref(parameter)
                hooked += [whole] if _has_hooks(parameter) else []
            _put(module, name, replaced[parameter])
    if hooked:
        warn(
            f"{_listed(hooked)}: a hook on the gradient is left out where this package trains the "
            "model; what it does belongs into the loss, or into a loop of your own",
            ModelWarning,
        )
    return watched


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """A module's own parameters, by each of their names: one may have two."""
    return [(name, p) for name, p in module._parameters.items() if p is not None]


def _put(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    """In its place; torch's recurrent layers have a list of theirs besides, kept in step so."""
    if isinstance(module, nn.RNNBase):
        setattr(module, name, parameter)
    module._parameters[name] = parameter


def _has_hooks(parameter: nn.Parameter) -> bool:
    """Whether something of the user's own is done to its gradient."""
    return bool(parameter._backward_hooks) or bool(parameter._post_accumulate_grad_hooks)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")


def _alike(new: nn.Parameter, old: nn.Parameter) -> nn.Parameter:
    """With the attributes that the user gave the old one."""
    for name, value in vars(old).items():
        setattr(new, name, value)
    return new


def _starts_by_itself(module: nn.Module, parameter: nn.Parameter, *, named: bool) -> bool:
    """What is all one number, and an override names or may have to: neither a norm nor a linear
    map."""
    is_known = is_norm(module) or fans(module) is not None or isinstance(module, nn.Embedding)
    return (named or not is_known) and is_constant(parameter)


def give_memory(model: nn.Module, device: torch.device | str) -> nn.Module:
    """A model without weights on a device: its parameters still to be drawn, the rest kept."""
    kept: list[tuple[nn.Module, str, Tensor]] = [
        (module, name, tensor)
        for module in model.modules()
        for name, tensor in (*_own(module), *module._buffers.items())
        if tensor is not None and not tensor.is_meta
    ]
    # A tensor itself is emptied in place; what is one object stays one.
    values = {id(tensor): tensor.detach() for _, _, tensor in kept}
    # An expanded one has no memory for every number, which a checkpoint is to be read into.
    there = {key: value.to(device).contiguous() for key, value in values.items()}
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in _own(module):
            places.setdefault(parameter, []).append((module, name))
    model.to_empty(device=device)
    for old, ((first, key), *others) in places.items():
        new = first._parameters[key]
        if new is not None and new is not old:
            _alike(new, old)
        for module, name in others:  # tied, of which to_empty makes two
            _put(module, name, new)
    for module, name, tensor in kept:
        if name in module._buffers:
            module._buffers[name] = there[id(tensor)]
        else:
            module.get_parameter(name).data = there[id(tensor)]
    return model
