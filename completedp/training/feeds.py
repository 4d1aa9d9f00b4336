"""Feeds: every slot's batches at its own step, from examples on the device or from streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from completedp.common.errors import CompletedpError
from completedp.tasks.data import Batch, Data, Examples, Order, Stream, on_device


class ExamplesFeed:
    """All examples are on the device, and so is every slot's order of them."""

    def __init__(self, examples: Examples, size: int, max_steps: int, device: torch.device) -> None:
        self._examples, self._size, self._max_steps = examples, size, max_steps
        self._rows = on_device(examples, device)
        self._device = device

    def stack(self, count: int) -> None:
        """Make room for so many slots."""
        shape = (count, self._max_steps, self._size)
        self._order = torch.zeros(shape, device=self._device, dtype=torch.int64)
        self._slots = torch.arange(count, device=self._device)

    def fill(self, slot: int, seed: int, steps: range) -> None:
        """Begin a trial's data in a slot, for some of its steps."""
        order = Order(self._examples, self._size, seed).steps(steps.start, steps.stop)
        self._order[slot, steps.start : steps.stop] = torch.from_numpy(order)

    def load(self) -> None:
        """Bring the next batches, outside the recorded program: nothing, as all are there."""

    def batch(self, step: Tensor) -> Batch:
        """The batches of all slots, [slots, examples, ...] each, at every slot's step."""
        chosen = self._order[self._slots, step]
        return self._examples.batch(tuple(rows[chosen] for rows in self._rows))


class StreamFeed:
    """Each slot has an iterator of its own, whose batches are copied into place step by step."""

    def __init__(self, stream: Stream, size: int, device: torch.device) -> None:
        self._stream, self._size, self._device = stream, size, device
        self._first = next(stream.for_training(size, 0))

    def stack(self, count: int) -> None:
        self._buffers = tuple(
            part.to(self._device).expand(count, *part.shape).clone() for part in self._first
        )
        self._iterators: dict[int, Iterator[Batch]] = {}
        self._left: dict[int, int] = {}

    def fill(self, slot: int, seed: int, steps: range) -> None:
        if steps.start:
            raise CompletedpError("a stream of data cannot be begun in its middle: give a dataset")
        self._iterators[slot] = self._stream.for_training(self._size, seed)
        self._left[slot] = len(steps)

    def load(self) -> None:
        for slot, batches in self._iterators.items():
            if self._left[slot] == 0:
                continue
            self._left[slot] -= 1
            batch = next(batches)
            for buffer, part in zip(self._buffers, batch, strict=True):
                buffer[slot].copy_(part)

    def batch(self, step: Tensor) -> Batch:
        return self._buffers


Feed = ExamplesFeed | StreamFeed
"""Gives the batches of a stack's slots."""


def make_feed(data: Data, size: int, max_steps: int, device: torch.device) -> Feed:
    """The feed of a task's training data: `size` examples a step."""
    if isinstance(data.train, Stream):
        return StreamFeed(data.train, size, device)
    return ExamplesFeed(data.train, size, max_steps, device)


def sample_batch(data: Data, size: int, device: torch.device) -> Batch:
    """A batch of one slot, [1, examples, ...] each, to measure or try with."""
    if isinstance(data.train, Stream):
        rows = next(data.train.for_training(size, 0))
    else:
        rows = data.train.batch(data.train.take(np.arange(size) % len(data.train)))
    return tuple(part[None].to(device) for part in rows)
