"""Updates: what an optimizer does to a tensor in a step.

An update is written for stacked tensors [slots, ...], each slot with values of its own, because
slots train so (training/slots.py). A stack of one is a plain torch optimizer (stepper.py), unless
an entry names a better one. A new optimizer is a function here and its entry in `UPDATES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import ADAMW, LR, MUON


def _plain(values: Mapping[str, Tensor], schedule: Tensor, step: Tensor) -> Sequence[Tensor]:
    return [value * schedule if name == LR else value for name, value in values.items()]


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer's step on one tensor, in place."""

    state: tuple[str, ...]
    """What is kept of every tensor from step to step, zeros of its shape at first, by the names
    that torch's optimizer has for it."""
    apply: Callable[..., None]
    """(parameter, gradient, one tensor for each of `state`, factors [factors, slots])."""
    factors: Callable[[Mapping[str, Tensor], Tensor, Tensor], Sequence[Tensor]] = _plain
    """From the knobs' values [tensors, slots], the schedule's multiplier [slots] and the step's
    number [slots], from 1: the factors, worked out for all tensors at once. The knobs in their
    order, lr times the schedule, where nothing else is said."""
    torch: Callable[[list[dict[str, Any]]], Any] | None = None
    """From groups to a torch optimizer that does the same, if there is one."""

    @property
    def kept(self) -> tuple[str, ...]:
        """All that the torch optimizer keeps for a tensor."""
        return ("step", *self.state)


def each(factors: Tensor, parameter: Tensor) -> tuple[Tensor, ...]:
    """The factors one by one, in a shape that multiplies the parameter."""
    return factors.view(*factors.shape, *(1,) * (parameter.dim() - 1)).unbind(0)


def _adamw_factors(
    values: Mapping[str, Tensor], schedule: Tensor, step: Tensor
) -> Sequence[Tensor]:
    beta1, beta2 = values["beta1"], values["beta2"]
    rate = values["lr"] * schedule
    kept = 1.0 - rate * values["weight_decay"]
    size = rate / (1.0 - beta1**step)
    correction = (1.0 - beta2**step).sqrt()
    return beta1, beta2, values["eps"], kept, size, correction


def _adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, factors: Tensor) -> None:
    """As torch's AdamW."""
    beta1, beta2, eps, kept, size, correction = each(factors, p)
    m.mul_(beta1).add_((1.0 - beta1) * g)
    v.mul_(beta2).add_((1.0 - beta2) * g * g)
    p.mul_(kept).sub_(size * m / (v.sqrt() / correction + eps))


def _muon(p: Tensor, g: Tensor, m: Tensor, factors: Tensor) -> None:
    """As torch's Muon, with Nesterov's momentum."""
    if p.dim() != 3:  # a stack of matrices
        raise CompletedpError(
            f"muon trains matrices, and this tensor has {p.dim() - 1} dimensions: give its role to "
            "adamw in the recipe's rules"
        )
    lr, decay, momentum = each(factors, p)
    m.mul_(momentum).add_((1.0 - momentum) * g)
    step = orthogonal((1.0 - momentum) * g + momentum * m)
    out, inside = p.shape[-2:]
    p.mul_(1.0 - lr * decay).sub_(lr * math.sqrt(max(1.0, out / inside)) * step)


def orthogonal(matrices: Tensor) -> Tensor:
    """About the nearest orthogonal matrices: singular values of 0.003 of a matrix's norm or more
    end within 0.68 to 1.21, smaller ones may end below.

    Five Newton-Schulz steps with the coefficients of Muon's author, whose slope at 0 is steep. In
    bfloat16 on a GPU, as torch's are.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def _torch_adamw(groups: list[dict[str, Any]]) -> Any:
    from completedp.apply.adamw import make_adamw  # which imports Triton

    return make_adamw(groups)


UPDATES: dict[str, Update] = {
    ADAMW.name: Update(
        state=("exp_avg", "exp_avg_sq"), factors=_adamw_factors, apply=_adamw, torch=_torch_adamw
    ),
    MUON.name: Update(state=("momentum_buffer",), apply=_muon),
}
