"""Data: what a task learns from and is judged on.

Two kinds. *Examples* are finite and in reach: a folder of tokens, a torch Dataset, tensors. Their
order is a pure function of a seed and a step. *Streams* are batches from an iterable that the user
makes for each seed. Both give batches as tuples of tensors, which the loss takes after the model.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from completedp.common.checks import check_whole
from completedp.common.errors import CompletedpError, one_line, short
from completedp.lm.batches import TokenDataset, permute
from completedp.lm.tokens import Manifest
from completedp.tasks.columns import Columns, check_next_token, columns_for, columns_of, in_order
from completedp.tasks.losses import ModelLoss, next_token_loss
from completedp.theory.scale import Scale

Batch = tuple[Tensor, ...]
"""What a loss takes after the model."""
DEFAULT_CONTEXT = 256
MOST_PASSES = 4
"""Over the same data, about as good as fresh data."""
_AT_ONCE = 65_536
_ON_DEVICE: WeakKeyDictionary[Examples, dict[torch.device, Batch]] = WeakKeyDictionary()
"""Rows that some stack needs, for as long as their examples are in use."""


def copies(batch: Iterable[Tensor]) -> Batch:
    """For a loss, which may write to what it is given: these rows may be asked for again."""
    return tuple(part.clone() for part in batch)


class Windows(Protocol):
    """What a folder of tokens gives: windows of context + 1 tokens."""

    windows: int

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """These windows, of any type of integer."""
        ...


class Tokens:
    """Windows of text from a folder of tokens: inputs, and targets one token on."""

    def __init__(self, dataset: Windows) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return self.dataset.windows

    def take(self, indices: np.ndarray) -> Batch:
        """Windows of context + 1 tokens, on the CPU."""
        windows = self.dataset.rows(np.asarray(indices, np.int64))
        return (torch.from_numpy(windows.astype(np.int32)),)

    def batch(self, rows: Batch) -> Batch:
        """Inputs and targets, as the loss takes them; rows may have any leading dimensions."""
        windows = rows[0].long()
        # Two memories: a loss that masks its inputs in place is not to mask its targets.
        return windows[..., :-1].clone(), windows[..., 1:]


class Tensors:
    """Examples that are rows of tensors, such as images and labels."""

    def __init__(self, tensors: Batch) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: np.ndarray) -> Batch:
        """Rows of every tensor."""
        chosen = torch.from_numpy(np.asarray(indices, np.int64))
        return tuple(tensor[chosen] for tensor in self.tensors)

    def batch(self, rows: Batch) -> Batch:
        """As they are."""
        return rows


Examples = Tokens | Tensors
"""Rows that can be counted and picked."""


@dataclass(frozen=True)
class Stream:
    """Batches from the user's iterable, another one for each seed."""

    batches: Callable[[str, int, int], Iterable[Any]]
    split: str
    columns: Columns = None
    """Of batches that are mappings: those of the first one for training, as the loss takes them."""
    loss: ModelLoss | None = None
    """What takes the batches, where it is known."""

    def iterate(self, examples: int, seed: int) -> Iterator[Batch]:
        """Batches of so many examples, the same for the same seed."""
        for batch in self.batches(self.split, examples, seed):
            parts = as_batch(batch, self.split, self.columns)
            if self.loss is next_token_loss:
                parts = _as_tokens(parts)
                check_next_token(parts, self.split)
            yield parts

    def for_training(self, examples: int, seed: int) -> Iterator[Batch]:
        """The same, for as long as they are asked for: an end, or another size, is an error."""
        count = 0
        for batch in self.iterate(examples, seed):
            if any(len(part) != examples for part in batch):
                raise CompletedpError(
                    f"batch {count} of the data for {self.split!r} has "
                    f"{', '.join(str(len(part)) for part in batch)} examples, not the {examples} "
                    "asked for"
                )
            yield batch
            count += 1
        raise CompletedpError(
            f"the data for {self.split!r} ended after {count} batches: make the iterable longer "
            "than a trial, or endless"
        )


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a task trains on and what it is judged on."""

    train: Examples | Stream
    valid: Examples | Stream
    unit: int
    """What an example counts for in a scale's batch and tokens: its tokens, or 1."""
    digest: str
    """Equal for equal contents."""
    name: str
    """For people."""
    manifest: Manifest | None = None
    """Of a folder of tokens."""

    @property
    def vocab(self) -> int | None:
        """How many tokens there are, of text."""
        return None if self.manifest is None else self.manifest.vocab

    @property
    def counted(self) -> str:
        """What a scale's batch and tokens are numbers of, for people."""
        return "tokens" if self.manifest is not None or self.unit > 1 else "examples"

    def examples(self, batch: int) -> int:
        """Examples in a batch of so many tokens."""
        if batch % self.unit:
            nearest = max(1, round(batch / self.unit)) * self.unit
            raise CompletedpError(
                f"batch of {batch} tokens is not a whole number of sequences of {self.unit} "
                f"tokens (context): the nearest is {nearest}"
            )
        return batch // self.unit

    def cautions(self, scale: Scale) -> Iterator[str]:
        """What to doubt of a run of this scale on so little data."""
        if isinstance(self.train, Stream):
            return
        there, what = len(self.train) * self.unit, self.counted
        if scale.batch > there:
            yield (
                f"a batch of {scale.batch:,} {what} is more than the {there:,} that {self.name!r} "
                "has to train on, so a step sees some of them twice: take a smaller batch, or "
                "more data"
            )
        elif scale.tokens > MOST_PASSES * there:
            yield (
                f"{scale.tokens:,} {what} are {scale.tokens / there:,.0f} passes over the "
                f"{there:,} that {self.name!r} has to train on: what is seen more than about "
                f"{MOST_PASSES} times teaches less and less (2305.16264), and values tuned on it "
                f"are values for memorising; take fewer {what}, or more data"
            )

    def evaluation(self, examples: int) -> list[Batch]:
        """The rows that every evaluation takes: spread evenly over the held-out examples."""
        if isinstance(self.valid, Stream):
            return _first_batches(self.valid, examples)
        count = min(examples, len(self.valid))
        return [self.valid.take(np.arange(count) * len(self.valid) // count)]


class Order:
    """The order in which training visits examples: a pure function of seed and step.

    One epoch after another, each a pseudo-random permutation of all examples. Nothing is stored, so
    resuming needs the step alone.
    """

    def __init__(self, examples: Examples, size: int, seed: int) -> None:
        self._count, self._size, self._seed = len(examples), size, seed

    def steps(self, start: int, stop: int) -> np.ndarray:
        """The examples of some steps, [stop - start, size]."""
        places = np.arange(start * self._size, stop * self._size, dtype=np.int64)
        epochs, within = np.divmod(places, self._count)
        return permute(within, self._count, self._seed, epochs).reshape(-1, self._size)


def make_data(source: Any, context: int | None = None, loss: ModelLoss | None = None) -> Data:
    """Data from a folder of tokens, tensors, or a function of the user's own.

    Where `loss` is known, which takes them, columns that have names go to its arguments.

    A function of a split (`train` or `valid`) gives a torch Dataset or a tuple of tensors. A
    function of a split, a number of examples and a seed gives an iterable of batches.
    """
    if context is not None:
        context = check_whole("context", context)
    if isinstance(source, Data):
        return source
    if isinstance(source, str | Path):
        return _from_folder(str(source), context or DEFAULT_CONTEXT)
    if isinstance(source, Mapping):
        source = _by_split(source)
    if not callable(source):
        raise CompletedpError(
            f"data is a {type(source).__name__}: give a folder of tokens, a mapping of train and "
            "valid to datasets, or a function of the split"
        )
    unit, name = context or 1, getattr(source, "__qualname__", type(source).__name__)
    try:
        if _takes(source) >= 3:
            return _streamed(cast(Any, source), unit, name, loss)
        learnt, own = _materialised(source("train"), "train")
        judged, found = _materialised(source("valid"), "valid")
    except CompletedpError:
        raise
    except Exception as error:  # the user's own code may fail in any way
        raise CompletedpError(f"the data function {name} failed: {short(error)}") from error
    columns = columns_for(loss, own)
    learnt = in_order(learnt, "train", own, columns)
    judged = in_order(judged, "valid", found, columns)
    if loss is next_token_loss:
        learnt, judged = _as_tokens(learnt), _as_tokens(judged)
        check_next_token(learnt, "train")
        check_next_token(judged, "valid")
    train, valid = Tensors(learnt), Tensors(judged)
    return Data(train=train, valid=valid, unit=unit, digest=_digest([learnt, judged]), name=name)


def _takes(function: Callable[..., Any]) -> int:
    """How many arguments a function must be given."""
    parameters = signature(function).parameters.values()
    positional = (p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return sum(p.default is p.empty for p in positional)


def _streamed(
    source: Callable[[str, int, int], Iterable[Any]], unit: int, name: str, loss: ModelLoss | None
) -> Data:
    columns = columns_for(loss, columns_of(next(iter(source("train", 1, 0)), None)))
    train, valid = (Stream(source, split, columns, loss) for split in ("train", "valid"))
    first = [_first_batches(stream, 1)[0] for stream in (train, valid)]
    return Data(train=train, valid=valid, unit=unit, digest=_digest(first), name=name)


def as_batch(batch: Any, split: str, columns: Columns) -> Batch:
    """A batch as a tuple of tensors, in the order of the columns."""
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    if isinstance(batch, Mapping):
        parts = tuple(batch.values())
    parts = in_order(tuple(parts), split, columns_of(batch), columns)
    if not all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in parts) or not parts:
        raise CompletedpError(
            f"a batch of the data is a {type(batch).__name__} of "
            f"{', '.join(type(part).__name__ for part in parts) or 'nothing'}: it must be a tensor "
            "or a tuple of tensors, each with the examples as its first dimension"
        )
    return tuple(map(_as_tensor, parts))


def _as_tensor(part: Tensor | np.ndarray) -> Tensor:
    """As it is, on its own device; tokens as nanoGPT keeps them, in unsigned numbers that torch can
    hardly compute with, in others."""
    if isinstance(part, np.ndarray):
        part = torch.from_numpy(part if part.flags.writeable else part.copy())
    return part.long() if part.dtype in _UNSIGNED else part


def _as_tokens(parts: Batch) -> Batch:
    """Of numbers too narrow for a table to be asked by."""
    return tuple(part.long() if part.dtype in _NARROW else part for part in parts)


_NARROW = (torch.uint8, torch.int8, torch.int16)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def on_device(examples: Examples, device: torch.device) -> Batch:
    """All rows where the training is: reading them step by step costs as much as a step.

    Stacks of several scales share them: what is on a device is not put there twice.
    """
    there = _ON_DEVICE.setdefault(examples, {})
    if device not in there:
        there[device] = tuple(tensor.to(device) for tensor in _all_rows(examples))
    return there[device]


def _all_rows(examples: Examples) -> Batch:
    count = len(examples)
    first = examples.take(np.arange(min(1, count)))
    whole = tuple(torch.empty(count, *row.shape[1:], dtype=row.dtype) for row in first)
    for start in range(0, count, _AT_ONCE):
        indices = np.arange(start, min(count, start + _AT_ONCE))
        for tensor, rows in zip(whole, examples.take(indices), strict=True):
            tensor[start : start + len(indices)] = rows
    return whole


def training_batches(data: Data, examples: int, seed: int, device: torch.device) -> Iterator[Batch]:
    """Training batches on a device, without end."""
    train = data.train
    if isinstance(train, Stream):
        for batch in train.for_training(examples, seed):
            yield tuple(part.to(device) for part in batch)
        return
    order = Order(train, examples, seed)
    for step in itertools.count():
        rows = train.take(order.steps(step, step + 1)[0])
        yield train.batch(tuple(part.to(device) for part in rows))


def held_out_batches(
    data: Data, held_out: list[Batch], at_once: int, device: torch.device
) -> Iterator[tuple[Batch, int]]:
    """Held-out rows in batches of at most so many examples, each with its number of examples."""
    for rows in held_out:
        for start in range(0, len(rows[0]), at_once):
            part = tuple(column[start : start + at_once].to(device) for column in rows)
            batch = part if isinstance(data.valid, Stream) else data.valid.batch(part)
            yield batch, len(part[0])


def _from_folder(folder: str, context: int) -> Data:
    # What a run begins or resumes with is what was written, and not what lies there by now.
    manifest = Manifest.load(folder, verify=True)
    train, valid = (TokenDataset(folder, split, context) for split in ("train", "valid"))
    return Data(
        train=Tokens(train),
        valid=Tokens(valid),
        unit=context,
        digest=manifest.digest(),
        name=folder,
        manifest=manifest,
    )


def _by_split(splits: Mapping[str, Any]) -> Callable[[str], Any]:
    if set(splits) != {"train", "valid"}:
        raise CompletedpError(
            f"data has {', '.join(map(str, splits)) or 'no splits'}: it must map train and valid"
        )

    def data(split: str) -> Any:
        return splits[split]

    data.__qualname__ = "data"  # what people are told of them by
    return data


def _materialised(dataset: Any, split: str) -> tuple[Batch, Columns]:
    """A dataset as tensors, one row an example, and what examples that are mappings call them."""
    columns = None
    if isinstance(dataset, tuple) and all(isinstance(x, Tensor | np.ndarray) for x in dataset):
        tensors = tuple(map(_as_tensor, dataset))
    elif isinstance(dataset, Tensor):
        tensors = (dataset,)
    else:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise CompletedpError(
                f"data for {split!r} is a {type(dataset).__name__}: give a torch Dataset with "
                "a length, or a tuple of tensors"
            )
        rows = [dataset[index] for index in range(len(dataset))]
        tensors, columns = _stacked(rows, split), columns_of(rows[0])
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) != 1 or not tensors or 0 in lengths:
        raise CompletedpError(
            f"data for {split!r} has tensors of {sorted(lengths)} rows: they must have one number "
            "of examples, at least 1"
        )
    return tensors, columns


def _stacked(rows: list[Any], split: str) -> Batch:
    if not rows:
        raise CompletedpError(f"data for {split!r} has no examples")
    if isinstance(rows[0], Mapping):
        keys = list(rows[0])
        if odd := next((row for row in rows if set(row) != set(keys)), None):
            raise CompletedpError(
                f"the examples of {split!r} have other keys, {sorted(odd)}, than the first, {keys}"
            )
        rows = [tuple(row[key] for key in keys) for row in rows]
    parts = [part if isinstance(part, tuple | list) else (part,) for part in rows]
    try:
        columns = zip(*parts, strict=True)
        return tuple(
            _as_tensor(torch.stack([torch.as_tensor(value) for value in column]))
            for column in columns
        )
    except (RuntimeError, ValueError, TypeError) as error:
        raise CompletedpError(
            f"the examples of {split!r} do not stack into tensors: {one_line(error)}"
        ) from None


def _first_batches(stream: Stream, examples: int) -> list[Batch]:
    """Batches of a stream's first seed until there are so many examples."""
    found: list[Batch] = []
    for batch in stream.iterate(examples, 0):
        found.append(batch)
        if sum(len(each[0]) for each in found) >= examples:
            return found
    if not found:
        raise CompletedpError(f"the data for {stream.split!r} gave no batch")
    return found


def _digest(parts: Iterable[Batch]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for tensor in part:
            digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            plain = tensor.detach().contiguous().cpu()
            digest.update(memoryview(cast(Any, plain.view(-1).view(torch.uint8).numpy())))
    return digest.hexdigest()
