"""What a model changes as it trains and no checkpoint has: a run that goes on begins with it anew.

A checkpoint has tensors of `state_dict`. A count of calls in an attribute, a buffer that is not
persistent, or a state of another kind is not among them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from completedp.common.errors import ModelWarning
from completedp.common.warn import warn

_SCALAR = (bool, int, float, complex, str)
_OF_ALL = frozenset(vars(nn.Module()))
"""Attributes that torch's own class has."""


class Unkept:
    """Watches a model after its first step: what a first pass makes room for it makes again."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: dict[str, Any] | None = None

    def begin(self) -> None:
        """After the first step."""
        self._before = _found(self._model) if self._before is None else self._before

    def say(self) -> None:
        """At a checkpoint: warn of the first that has changed."""
        before = self._before or {}
        changed = [
            name for name, now in _found(self._model).items() if before.get(name, now) != now
        ]
        for name in changed[:1] + _states(self._model)[:1]:
            warn(
                f"{name} changes in training and is in no checkpoint, so a run that goes on begins "
                "with it anew: register it as a persistent buffer if a later pass reads it",
                ModelWarning,
            )


def _found(model: nn.Module) -> dict[str, Any]:
    """By path: plain values, and of buffers that are not persistent, which they are and how often
    they were written to."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OF_ALL and isinstance(value, _SCALAR):
                found[f"{path}.{name}".lstrip(".")] = value
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None and not buffer.is_inference():
                found[f"{path}.{name}".lstrip(".")] = id(buffer), buffer._version
    return found


def _states(model: nn.Module) -> list[str]:
    """Modules with a state of their own that is no tensor."""
    return [
        path or type(module).__name__
        for path, module in model.named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
        and not isinstance(module.get_extra_state(), Tensor)
    ]
