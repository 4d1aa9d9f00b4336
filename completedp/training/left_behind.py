"""What a forward pass leaves in its model, which trials that share the model would find there.

A count of its calls, an average of what went through it: in buffers, tensors or plain values of its
modules. What depends on the last pass alone, such as a size it keeps or a part of the loss, is left
alone: the next pass writes it anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from completedp.tasks.data import Batch, copies

_SCALAR = (bool, int, float, complex, str, bytes)
_OPAQUE = (nn.Module, type, FunctionType, MethodType, ModuleType, torch.dtype, torch.device)
_SAME = 1e-3
"""Relative: what sums in another order differ by, at most."""
_DEEPEST = 4
"""Objects in objects that are looked into."""
_NO_ATTRIBUTES = frozenset(vars(nn.Module()))
State = dict[str, Any]
"""By path: what a model keeps, as it was."""


def left_behind(model: nn.Module, loss: Callable[..., Any], batch: Batch) -> str:
    """What a pass changes that a later one may read, in words; empty where there is nothing.

    One copy has two passes with different weights, another the second of them alone.
    """
    device = batch[0].device

    def passed(alone: nn.Module, seed: int) -> State:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            with torch.no_grad():
                for parameter in filter(Tensor.is_floating_point, alone.parameters()):
                    parameter.normal_(float(parameter.ndim < 2), 0.1)
            loss(alone, *copies(batch))
        return _state(alone)

    first = with_memory(model, device)
    start = _state(first)
    after, later = passed(first, 0), passed(first, 1)
    alone = passed(with_memory(model, device), 1)
    buffers = dict(model.named_buffers())
    for path in {**start, **later, **alone}:
        is_scalar = path in buffers or isinstance(start.get(path), _SCALAR)
        changed = is_scalar and not _is_same(start.get(path), after.get(path))
        if changed or not _is_same(later.get(path), alone.get(path)):
            return f"{path}, {'a buffer' if path in buffers else 'an attribute'}"
    return ""


def with_memory(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy with memory on a device, its weights zero and its buffers as they are."""
    before = dict(model.named_buffers(remove_duplicate=False))
    alone = copy.deepcopy(model).to_empty(device=device)
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.zero_()
        for name, buffer in alone.named_buffers(remove_duplicate=False):
            buffer.copy_(before[name]) if not before[name].is_meta else buffer.zero_()
    return alone


def _state(model: nn.Module) -> State:
    """Buffers, and what modules keep besides, as values that no later pass changes."""
    found: State = {name: _frozen(buffer, set()) for name, buffer in model.named_buffers()}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _NO_ATTRIBUTES:
                found[f"{path}.{name}".lstrip(".")] = _frozen(value, set())
    return found


def _frozen(value: Any, above: set[int]) -> Any:
    """A copy in plain values and tensors; of what has neither, its type."""
    if isinstance(value, Tensor):
        return tuple(value.shape) if value.is_meta else value.detach().cpu().clone()
    if value is None or isinstance(value, _SCALAR):
        return value
    if id(value) in above or len(above) == _DEEPEST or isinstance(value, _OPAQUE):
        return type(value)
    above = above | {id(value)}
    if isinstance(value, Mapping):
        return type(value), *((repr(key), _frozen(each, above)) for key, each in value.items())
    if isinstance(value, set | frozenset):
        return type(value), *sorted(map(repr, value))
    if isinstance(value, tuple | list):
        return type(value), *(_frozen(each, above) for each in value)
    return type(value), _frozen(getattr(value, "__dict__", None), above)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.allclose(one, other, rtol=_SAME, atol=0.0, equal_nan=True)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if type(one) is not type(other):
        return False
    return bool(one == other or (one != one and other != other))
