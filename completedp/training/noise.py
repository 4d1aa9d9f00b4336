"""The gradient's noise, measured while training: up to which batch does a larger one pay?

A batch's gradient is made in two parts that are kept apart. What differs between them is noise,
what they share is signal (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"):

    E|g1 - g2|^2 = noise x (1/b1 + 1/b2)        noise:  the trace of one token's covariance
    E|g|^2       = signal + noise / b           signal: the squared mean gradient

and noise / signal is a batch in tokens. Well below it, a batch of twice the size does in one step
what two steps did; well above it, in one step what one did. Both are averaged before they are
divided: the ratio of one step says little.

Squares are taken in two ways. `noise_scale` is the paper's B_simple, of plain gradients.
`critical_batch` weighs each entry by lr / (sqrt(v) + eps), which is by how much AdamW moves the
weight for it (of a matrix that Muon trains, by lr over the size of its momentum). B_simple stands
on the assumption that the curvature is the same in all directions, which AdamW's coordinates are
meant to be nearer to; and it changes where a factor is moved from a tensor into the tensors around
it, or where gradients shrink with the width, though the training is the same. The weighed one does
not. The table of tokens is left out of it: of the row of a rare token v has all but vanished when
the token comes again, so what the row is weighed by would be thousands of times what AdamW, whose v
has the new gradient too, moves it by.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

KEPT = 1024
"""Measurements of a run that are kept, the latest ones."""
AVERAGED = 64
"""At least so many of the latest are averaged, and half of those kept: the batch grows as the loss
falls, so the first ones are of another batch."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A batch in tokens, and its standard error (None where one is not known)."""

    batch: float
    error: float | None


def parts_for_noise(parts: int, examples: int) -> int:
    """Into how many equal parts to cut a step of so many micro-batches, so that there are two.

    1 where a single example cannot be cut.
    """
    if parts > 1:
        return parts
    return next((n for n in range(2, math.isqrt(examples) + 1) if examples % n == 0), examples)


def gradients(optimizer: Optimizer) -> list[Tensor | None]:
    """A copy of every gradient so far."""
    return [
        None if p.grad is None else p.grad.detach().clone()
        for group in optimizer.param_groups
        for p in group["params"]
    ]


@torch.no_grad()
def squares(
    optimizer: Optimizer,
    first: Sequence[Tensor | None],
    share: float,
    ranks: int = 1,
    tables: Collection[Tensor] = (),
) -> Tensor:
    """What noise adds to |g|^2, and |g|^2, of the gradients there are now, plain and then weighed.

    `tables` are looked up, and count in the plain ones alone.
    `first` are those after the first part, which has this share of the batch. Of sharded tensors
    each rank counts its own shards, and of whole ones its fraction: the sum over ranks counts.
    """
    total: Tensor | None = None
    parameters = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for (parameter, group), begun in zip(parameters, first, strict=True):
        state = optimizer.state.get(parameter)
        if parameter.grad is None or not state:
            continue
        whole = _local(parameter.grad)
        part = torch.zeros_like(whole) if begun is None else _local(begun)
        # As that of a whole batch, by either share: a run may go on in other micro-batches.
        apart = (part / share - (whole - part) / (1.0 - share)) * math.sqrt(share * (1.0 - share))
        size = _size(state, group)
        is_table = any(parameter is table for table in tables)
        rate = 0.0 if is_table else float(group["initial_lr"])  # the schedule's is 0 now and then
        found = torch.stack(
            [
                (x.square() * weight).sum(dtype=torch.float64)
                for weight in (torch.ones_like(size), rate / size)
                for x in (apart, whole)
            ]
        )
        if not hasattr(parameter, "placements"):
            found /= ranks
        total = found if total is None else total + found
    return torch.zeros(4) if total is None else total


def _size(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """What an update divides by: of AdamW the root of its second moment; of Muon, whose updates of
    a matrix are of one size, the root mean square of its momentum."""
    if "exp_avg_sq" in state:
        correction = 1.0 - group["betas"][1] ** float(state["step"])
        return (_local(state["exp_avg_sq"]) / correction).sqrt_().add_(group["eps"])
    momentum = _local(state["momentum_buffer"])
    size = momentum.square().mean().sqrt().clamp(min=torch.finfo(momentum.dtype).tiny)
    return size.expand_as(momentum)


class NoiseWindow:
    """The last measurements of a run."""

    def __init__(self, batch: int, last: Sequence[Sequence[float]] = ()) -> None:
        self.batch = batch
        self.last: list[list[float]] = [list(row) for row in last]

    def add(self, measured: Sequence[float]) -> None:
        """One more; those of steps that diverged are left out."""
        if all(math.isfinite(x) for x in measured) and any(measured):
            self.last = [*self.last, list(measured)][-KEPT:]

    @property
    def noise_scale(self) -> Estimate | None:
        """Of plain gradients; None while nothing but noise is seen."""
        return self._estimate(0)

    @property
    def critical_batch(self) -> Estimate | None:
        """Of gradients as AdamW takes them."""
        return self._estimate(2)

    def _estimate(self, column: int) -> Estimate | None:
        averaged = self.last[-max(AVERAGED, len(self.last) // 2) :]
        rows = [(row[column], row[column + 1]) for row in averaged]
        noise, whole = (math.fsum(each) for each in zip(*rows, strict=True)) if rows else (0.0, 0.0)
        found = self._ratio(noise, whole)
        if found is None:
            return None
        without = [self._ratio(noise - one, whole - other) for one, other in rows]
        known = [x for x in without if x is not None]
        error = None
        if len(rows) > 1 and len(known) == len(rows):  # jackknife
            mean = math.fsum(known) / len(known)
            spread = math.fsum((x - mean) ** 2 for x in known)
            error = math.sqrt((len(rows) - 1) / len(rows) * spread)
        return Estimate(batch=found, error=error)

    def _ratio(self, noise: float, whole: float) -> float | None:
        """Noise over signal, from sums of what noise adds to |g|^2, and of that; None without a
        signal."""
        signal = whole - noise
        return self.batch * noise / signal if signal > 0 else None


def _local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[attr-defined]
