"""The text that models are checked on: random windows of bytes, as data of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch

from completedp.common.errors import CompletedpError
from completedp.lm.corpora import documents
from completedp.lm.tokenizer import ByteTokenizer
from completedp.tasks.data import Batch, Data, Stream

VOCAB = ByteTokenizer().vocab
"""Bytes, and the end of a document."""


def byte_windows(source: str, context: int) -> Data:
    """Endless batches of windows, the same for every model size with the same seed.

    Nothing is held out: a check compares sizes and judges no model.
    """
    text = byte_text(source)
    if len(text) <= context:
        raise CompletedpError(
            f"the text has {len(text)} tokens, fewer than one sequence of {context} + 1"
        )

    def batches(split: str, examples: int, seed: int) -> Iterator[Batch]:
        rng = np.random.default_rng(seed)
        while True:
            starts = rng.integers(0, len(text) - context, examples)
            rows = torch.from_numpy(text[starts[:, None] + np.arange(context + 1)])
            yield rows[:, :-1], rows[:, 1:]

    return Data(
        train=Stream(batches, "train"),
        valid=Stream(batches, "valid"),
        unit=context,
        digest=hashlib.blake2b(text.tobytes(), digest_size=16).hexdigest(),
        name=source,
    )


def byte_text(source: str, limit: int = 2_000_000) -> np.ndarray:
    """The bytes of some text, end-of-text between documents: no tokeniser to train, no folder."""
    tokenizer, parts, have = ByteTokenizer(), [], 0
    for document in documents(source):
        parts.append(np.append(tokenizer.encode(document), tokenizer.eot))
        have += len(parts[-1])
        if have >= limit:
            break
    return np.concatenate(parts)[:limit].astype(np.int64)
