"""Norms: what a norm does with its vectors, found by asking it.

Asked is a stand-in with vectors of its own, so that meta tensors, sharding and hooks are left
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_ADDED = ("b", "beta", "bias", "shift")
"""What norms call a vector that they add."""
_EVERY_MODULES = frozenset(vars(nn.Module()))
"""Attributes that say nothing of one norm."""
_Answer = TypeVar("_Answer")


class AskedNorms:
    """What norms say of themselves; those of one class with the same settings are asked once."""

    def __init__(self) -> None:
        self._offsets: dict[Hashable, float] = {}
        self._adds: dict[Hashable, bool] = {}

    def offset(self, norm: nn.Module) -> float:
        """What a norm adds to its stored gain."""
        return _once(self._offsets, _settings(norm), lambda: gain_offset(norm))

    def adds(self, norm: nn.Module, key: str) -> bool:
        """Whether a norm adds its vector of that name, which then is a bias and no gain."""
        if key in ("weight", *_ADDED):
            return key != "weight"
        return _once(self._adds, (key, *_settings(norm)), lambda: _is_added(norm, key))


def _once(
    answers: dict[Hashable, _Answer], question: Hashable, ask: Callable[[], _Answer]
) -> _Answer:
    if question not in answers:
        answers[question] = ask()
    return answers[question]


def _settings(norm: nn.Module) -> tuple[Hashable, ...]:
    """A norm's class, and all that it was made with."""
    own = ((name, value) for name, value in vars(norm).items() if name not in _EVERY_MODULES)
    return (type(norm), *((name, _hashable(value)) for name, value in own))


def _hashable(value: object) -> Hashable:
    try:
        hash(value)
    except TypeError:  # a list or the like: taken for another one's only where it is the same
        return id(value)
    return value


_normalise: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def normalises(module: nn.Module) -> bool:
    """Whether a module of a gain, and perhaps a bias, gives the same for four times its input: an
    activation with a slope to learn, or a gain alone, does not. Yes where it cannot say."""
    if module not in _normalise:
        gain = {"weight": torch.ones(module.get_parameter("weight").shape, device="cpu")}
        once, again = (_answer(module, gain, times) for times in (1.0, 4.0))
        alike = once is None or again is None or torch.allclose(once, again, rtol=0.01, atol=0.01)
        _normalise[module] = alike
    return _normalise[module]


def gain_offset(norm: nn.Module) -> float:
    """What a norm adds to its stored gain: 1 where it keeps gain - 1, as Gemma's does.

    With a stored gain of 0 such a norm still lets its input through.
    """
    y = _answer(norm, {})
    return float(y is not None and bool(torch.any(y != 0)))


def gives_in_proportion(norm: nn.Module, offsets: Mapping[str, float]) -> bool:
    """Whether it gives twice as much for twice its vectors, as folding takes for granted; each is
    stored less its offset. Yes where it cannot say."""
    once = {
        key: torch.linspace(0.5, 1.5, p.numel(), device="cpu").view(p.shape)
        for key, p in norm.named_parameters(recurse=False)
    }
    twice = {
        key: 2 * (v + offsets.get(key, 0.0)) - offsets.get(key, 0.0) for key, v in once.items()
    }
    gave, more = _answer(norm, once), _answer(norm, twice)
    return gave is None or more is None or torch.allclose(2 * gave, more, rtol=0.01, atol=0.01)


def _is_added(norm: nn.Module, key: str) -> bool:
    """Whether a vector comes out as it is, whatever the norm was given; no, where it cannot say."""
    size = norm.get_parameter(key).shape[-1]
    vector = torch.linspace(1.0, 2.0, size, device="cpu")
    without, added = _answer(norm, {}), _answer(norm, {key: vector})
    if without is None or added is None or added.shape[-1] != size:
        return False
    change = (added - without).float()
    return torch.allclose(change, vector.float().expand_as(change), atol=0.02)


def _answer(norm: nn.Module, vectors: Mapping[str, Tensor], times: float = 1.0) -> Tensor | None:
    """What a norm gives with these vectors, its others at 0; None where it takes more than x."""
    zeros = {
        name: torch.zeros(p.shape, device="cpu") for name, p in norm.named_parameters(recurse=False)
    }
    stand_in = object.__new__(type(norm))
    own = {name: buffer.clone() for name, buffer in norm._buffers.items() if buffer is not None}
    stand_in.__dict__.update(
        norm.__dict__, _parameters={**zeros, **vectors}, _buffers={**norm._buffers, **own}
    )
    size = max((zero.shape[-1] for zero in zeros.values() if zero.ndim), default=4)
    x = times * torch.linspace(-1.0, 2.0, size, device="cpu")
    for shape in ((1, 2, size), (2, size)):  # a stream, or what a norm of heads may be given
        try:
            with torch.no_grad():
                y = stand_in.forward(x.expand(shape))
        except Exception:
            continue
        return y if isinstance(y, Tensor) else None
    return None  # an ordinary gain as far as anyone can tell
