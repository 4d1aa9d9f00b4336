"""Windows of tokens straight from disk, and a permutation that needs no memory."""

import math
from pathlib import Path

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.common.files import user_path
from completedp.lm.tokens import DTYPES, Manifest

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of splitmix64's counter


class TokenDataset:
    """Windows of context + 1 tokens, a context apart, over the mapped shards of one split.

    Neighbours share one token: the last target of a window is the first input of the next, so
    every token is a target once. No window crosses from one shard to another.
    """

    def __init__(self, folder: str | Path, split: str, context: int) -> None:
        folder = user_path(folder)
        if context < 1:
            raise CompletedpError(f"context={context} must be 1 or more")
        self.manifest = Manifest.load(folder)
        if split not in self.manifest.splits:
            raise CompletedpError(
                f"{str(folder)!r} has no split {split!r}, only {', '.join(self.manifest.splits)}: "
                "choose one of these or prepare with a valid_fraction above 0"
            )
        self.folder, self.split, self.context = folder, split, context
        self.tokens = self.manifest.splits[split].tokens
        dtype = DTYPES[self.manifest.dtype]
        self._views: list[np.ndarray] = []
        for shard in self.manifest.splits[split].shards:
            if shard.tokens > context:
                ids = np.asarray(np.memmap(folder / shard.file, dtype, mode="r"))
                windows = np.lib.stride_tricks.sliding_window_view(ids, context + 1)
                self._views.append(windows[::context])
        self._ends = np.cumsum([len(view) for view in self._views], dtype=np.int64)
        if not self._views:
            raise CompletedpError(
                f"{str(folder)!r} has {self.tokens} tokens in {split!r}, in shards of at most "
                f"{max(s.tokens for s in self.manifest.splits[split].shards)}: fewer than one "
                f"window of context {context}; lower the context or prepare more text"
            )
        self.windows = int(self._ends[-1])

    def __len__(self) -> int:
        return self.windows

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """The context + 1 tokens of each of these windows, in the type they have on disk."""
        if indices.size and not 0 <= indices.min() <= indices.max() < self.windows:
            raise IndexError(f"window indices must be 0 to {self.windows - 1}")
        shards = np.searchsorted(self._ends, indices, side="right")
        rows = np.empty((len(indices), self.context + 1), self._views[0].dtype)
        for shard in np.unique(shards):
            view, here = self._views[shard], shards == shard
            rows[here] = view[indices[here] - (self._ends[shard] - len(view))]
        if rows.size and rows.max() >= self.manifest.vocab:
            raise CompletedpError(
                f"{str(self.folder)!r} holds token {rows.max()}, outside its vocabulary of "
                f"{self.manifest.vocab}: the shards have changed; prepare the folder again"
            )
        return rows


def permute(index: np.ndarray, size: int, seed: int, epoch: np.ndarray) -> np.ndarray:
    """Where each index goes in the permutation of range(size) keyed by (seed, epoch).

    A Feistel network on mixed-radix digits (Black and Rogaway 2002): with rows x columns just above
    `size`, write index = left * columns + right and add in turn a keyed hash of one digit to the
    other, modulo its radix. Each round can be undone, so the whole is a permutation of
    range(rows * columns); a result past `size` is sent through again until it falls inside
    (cycle-walking), which keeps it a permutation. Memory does not grow with `size`.
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    radices = np.array([rows, columns], np.uint64)
    key = _mix(_mix(np.array([seed % 2**64], np.uint64)) + epoch.astype(np.uint64))
    result = index.astype(np.uint64)
    walking = np.arange(result.size)
    while walking.size:
        digits = list(np.divmod(result[walking], radices[1]))
        counter = key[walking]
        for turn in range(8):
            side = turn % 2
            counter = counter + _GOLDEN
            digits[side] = (
                digits[side] + _mix(counter + digits[1 - side]) % radices[side]
            ) % radices[side]
        result[walking] = digits[0] * radices[1] + digits[1]
        walking = walking[result[walking] >= size]
    return result.astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit moves half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
