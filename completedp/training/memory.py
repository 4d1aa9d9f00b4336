"""How many slots fit a device: parameters and moments by arithmetic, activations by measuring one.

A step of one slot is run forward on the device, uncompiled, and what autograd keeps for the
backward pass is added up. A compiled program keeps less, so the answer errs on the side of fitting.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from completedp.apply.updates import UPDATES
from completedp.tasks.data import Batch

if TYPE_CHECKING:
    from completedp.training.stacked import StackedLoss

MOST_SLOTS = {"cuda": 64, "cpu": 16}
"""Enough to keep the device busy; whether more would pay has not been measured."""
_USED = 0.85
"""The part of free memory that is planned for; the rest is for kernels and fragments."""


def slots_that_fit(
    model: nn.Module,
    loss: StackedLoss,
    batch: Batch,
    *,
    weights: torch.dtype = torch.float32,
    trials: int | None = None,
) -> int:
    """The number of slots for batches like `batch`, of one slot: [1, examples, ...] each.

    For a known number of trials the fewest slots that need no more rounds: empty ones cost as much
    as full ones.
    """
    return slots_for(batch[0].device, slot_memory(model, loss, batch, weights), trials)


def slots_for(device: torch.device, each: int, trials: int | None = None) -> int:
    """The same, for slots that need so many bytes each."""
    return _for_trials(min(_most(device), int(free_memory(device) * _USED / each)), trials)


def slots_with_room(device: torch.device, trials: int | None = None) -> int:
    """The same, for a device that has the memory."""
    return _for_trials(_most(device), trials)


def _most(device: torch.device) -> int:
    return MOST_SLOTS.get(device.type, 16)


def _for_trials(most: int, trials: int | None) -> int:
    most = max(1, most)
    return most if trials is None else math.ceil(trials / math.ceil(trials / most))


def slot_memory(
    model: nn.Module, loss: StackedLoss, batch: Batch, weights: torch.dtype = torch.float32
) -> int:
    """Bytes that one slot needs: weights, gradients, optimizer state, and what backward needs."""
    device = batch[0].device
    parameters = {
        name: torch.zeros(1, *p.shape, device=device, dtype=weights).requires_grad_()
        for name, p in model.named_parameters()
    }
    buffers = {
        name: torch.zeros(
            1, *b.shape, device=device, dtype=weights if b.is_floating_point() else b.dtype
        )
        for name, b in model.named_buffers()
    }
    own = {p.untyped_storage().data_ptr() for p in parameters.values()}
    with kept_for_backward() as kept:
        # Bound to a name: what is kept must live until all has been counted.
        found = loss(parameters, buffers, *batch)
    del found
    sizes = [size for place, size in kept.items() if place not in own]
    kept_by_optimizers = max(len(update.state) for update in UPDATES.values())
    state = (2 + kept_by_optimizers) * sum(p.nbytes for p in parameters.values())
    # The backward pass holds a gradient or two besides, at most of the largest size.
    return state + sum(sizes) + 2 * max(sizes, default=0)


@contextmanager
def kept_for_backward() -> Iterator[dict[int, int]]:
    """Bytes that autograd keeps of what is run meanwhile, by where they are in memory."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return math.floor(2.0 * 2**30)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host has no more memory to give."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
