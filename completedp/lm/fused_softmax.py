"""Softmax over a large vocabulary and its gradient, in one pass over the logits on a GPU.

A compiler makes three passes of it (largest and sum, gradient, the target's own), and on logits
that fill gigabytes passes are what costs. Here a program holds one row, reads it once and writes
the gradient in its place.
"""

# triton comes with the CUDA builds of torch alone, so a type checker may not find it.
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false, reportInvalidTypeForm=false

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_LONGEST = 65_536
"""Rows above this do not fit the registers of one program."""


def can_fuse(logits: Tensor) -> bool:
    """Whether `softmax_gradient_` takes these logits."""
    half = logits.dtype in (torch.bfloat16, torch.float16)
    return triton is not None and logits.is_cuda and half and logits.shape[-1] <= _LONGEST


def softmax_gradient_(
    logits: Tensor, targets: Tensor, z_loss: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Turn logits [..., V] into the gradient of scale x (cross-entropy + z_loss log_z^2), in place.

    Returns log_z and the targets' logits, both [...] in float32.
    """
    log_z = torch.empty(targets.shape, device=logits.device, dtype=torch.float32)
    picked = torch.empty_like(log_z)
    vocabulary = logits.shape[-1]
    block = 1 << (vocabulary - 1).bit_length()
    _kernel[(targets.numel(),)](
        logits,
        targets,
        log_z,
        picked,
        vocabulary,
        z_loss,
        scale,
        BLOCK=block,
        num_warps=min(32, max(4, block // 1024)),
    )
    return log_z, picked


if triton is not None:

    @triton.jit
    def _kernel(  # Triton reads annotations as its own, so there are none
        logits, targets, log_z_out, picked_out, vocabulary, z_loss, scale, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        columns = tl.arange(0, BLOCK)
        inside = columns < vocabulary
        start = logits + row * vocabulary
        target = tl.load(targets + row)
        picked = tl.load(start + target).to(tl.float32)
        x = tl.load(start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        largest = tl.max(x, 0)
        exponentials = tl.exp(x - largest)
        total = tl.sum(exponentials, 0)
        log_z = largest + tl.log(total)
        weight = (1.0 + 2.0 * z_loss * log_z) * scale / total
        gradient = exponentials * weight - tl.where(columns == target.to(tl.int32), scale, 0.0)
        tl.store(log_z_out + row, log_z)
        tl.store(picked_out + row, picked)
        tl.store(start + columns, gradient.to(logits.dtype.element_ty), mask=inside)
