"""Tensors that many ranks hold, in a folder of safetensors by `torch.distributed.checkpoint`.

Every rank writes what it has of each tensor, and reads what it needs, whoever wrote it. The usual
storage of `torch.distributed.checkpoint` has its index in pickle; the one here has none: the
safetensors files say themselves which part of which tensor they hold.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from completedp.common.errors import CompletedpError, one_line
from completedp.training.distributed import AgreedError


def write_shards(path: Path, tensors: dict[str, Tensor]) -> None:
    """Called by all ranks; what fails on one is an error on all."""
    writer = dcp.HuggingFaceStorageWriter(str(path), save_distributed=True)
    try:
        dcp.save(tensors, storage_writer=writer)
    except CheckpointException as error:
        raise _one_line(error) from None


def read_shards(path: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, sharded in any way. Called by all ranks, or by one process alone."""
    reader = dcp.HuggingFaceStorageReader(str(path))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process
            dcp.load(tensors, storage_reader=reader)
    except CheckpointException as error:
        raise _one_line(error) from None


def shapes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The tensors of which every shard is there."""
    try:
        found: dict[str, Any] = (
            dcp.HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CompletedpError(one_line(error)) from None
    return {
        name: (tensor.size, tensor.properties.dtype)
        for name, tensor in found.items()
        if sum(chunk.sizes.numel() for chunk in tensor.chunks) == tensor.size.numel()
    }


def _one_line(error: CheckpointException) -> AgreedError:
    """The first rank's failure, without the traceback that comes with it."""
    rank, (reason, _) = min(error.failures.items())
    return AgreedError(f"rank {rank}: {one_line(reason) or repr(reason)}")
