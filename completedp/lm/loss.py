"""Cross-entropy with z-loss, whole or in chunks.

The z-loss is weight x mean(logsumexp(logits)^2). The chunked form never holds more than one
chunk's logits: it makes their gradient while they are at hand, in the forward pass, so the cost in
matrix products is that of the plain form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from completedp.lm.fused_softmax import can_fuse, softmax_gradient_

CHUNK_LOGITS = 32 * 1024 * 1024
"""Above this many logits (128 MiB in float32) the loss is computed in chunks of about it."""
CHUNK_POSITIONS = 1024
"""A chunk has at least so many positions: each adds to the large gradient of the unembedding."""


class Loss(NamedTuple):
    """What is minimised, and the cross-entropy alone, which is what results report."""

    total: Tensor
    cross_entropy: Tensor


def language_model_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    z_loss: float = 0.0,
    chunk: int | None = None,
) -> Loss:
    """The loss of predicting `targets` [B, T] from features [B, T, D] and an unembedding [V, D].

    With slots, [S, B, T], [S, B, T, D] and [S, V, D] give one loss for each. `chunk` is in
    positions; 0 means whole, None chooses by the number of logits.
    """
    slots = weight.shape[:-2]
    features, targets = features.flatten(-3, -2), targets.flatten(-2)
    if chunk is None:
        logits_a_position = weight.shape[-2] * slots.numel()
        whole = targets.shape[-1] * logits_a_position <= CHUNK_LOGITS
        chunk = 0 if whole else max(CHUNK_POSITIONS, CHUNK_LOGITS // logits_a_position)
    if chunk == 0:
        return plain_loss(_logits(features, weight, bias), targets, z_loss)
    total, cross_entropy = _ChunkedLoss.apply(
        features, weight, bias, targets, z_loss, chunk, torch.is_grad_enabled()
    )
    return Loss(total, cross_entropy.detach())


def plain_loss(logits: Tensor, targets: Tensor, z_loss: float) -> Loss:
    """The loss from whole logits [N, V], or [S, N, V]."""
    logits = logits.to(_wide(logits.dtype))
    # F.cross_entropy would find log_z a second time, which on a GPU costs more than it saves.
    log_z = logits.logsumexp(-1)
    cross_entropy = (log_z - _Picked.apply(logits, targets)).mean(-1)
    total = cross_entropy + z_loss * log_z.square().mean(-1) if z_loss else cross_entropy
    return Loss(total, cross_entropy.detach())


class _ChunkedLoss(torch.autograd.Function):
    """The loss and, in the same pass over the chunks, its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        z_loss: float,
        chunk: int,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        count = targets.shape[-1]
        wide = _wide(features.dtype)
        with_gradient = with_gradient and any(ctx.needs_input_grad[:3])
        ce_sum = torch.zeros(weight.shape[:-2], device=features.device, dtype=wide)
        z_sum = torch.zeros_like(ce_sum)
        features_grad = torch.empty_like(features) if with_gradient else features
        weight_grad = torch.zeros_like(weight) if with_gradient else weight
        bias_grad = torch.zeros_like(bias) if with_gradient and bias is not None else None
        for start in range(0, count, chunk):
            part = features[..., start : start + chunk, :]
            aims = targets[..., start : start + chunk]
            logits = _logits(part, weight, bias)
            if with_gradient and can_fuse(logits):
                grad = logits.contiguous()
                log_z, picked = softmax_gradient_(grad, aims.contiguous(), z_loss, 1.0 / count)
            else:
                logits = logits.to(wide)
                log_z = logits.logsumexp(-1)
                picked = logits.gather(-1, aims[..., None]).squeeze(-1)
                grad = None
            ce_sum += (log_z - picked).sum(-1)
            z_sum += log_z.square().sum(-1)
            if not with_gradient:
                continue
            if grad is None:
                # d total / d logits = (softmax x (1 + 2 z log_z) - onehot) / count
                grad = logits.sub_(log_z[..., None]).exp_()
                grad *= (1.0 + 2.0 * z_loss * log_z)[..., None]
                if torch.compiler.is_compiling():  # a scatter would not be fused
                    grad -= _onehot(aims, grad.shape[-1], grad.dtype)
                else:
                    aims = aims[..., None]
                    grad.scatter_add_(-1, aims, -torch.ones_like(aims, dtype=grad.dtype))
                grad = (grad / count).to(features.dtype)
            features_grad[..., start : start + chunk, :] = grad @ weight.to(features.dtype)
            weight_grad += grad.mT @ part
            if bias_grad is not None:
                bias_grad += grad.sum(-2)
        if with_gradient:
            ctx.save_for_backward(features_grad, weight_grad, bias_grad)
        cross_entropy = ce_sum / count
        ctx.mark_non_differentiable(cross_entropy)
        return cross_entropy + z_loss * z_sum / count, cross_entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        features_grad, weight_grad, bias_grad = ctx.saved_tensors
        scale = grads[0][..., None, None]  # one for each slot
        return (
            features_grad * scale.to(features_grad.dtype),
            weight_grad * scale.to(weight_grad.dtype),
            None if bias_grad is None else bias_grad * scale[..., 0].to(bias_grad.dtype),
            None,
            None,
            None,
            None,
        )


def _logits(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computed in the features' type, whatever type the weights are kept in."""
    weight = weight.to(features.dtype)
    if weight.dim() == 2:
        return F.linear(features, weight, None if bias is None else bias.to(features.dtype))
    logits = features @ weight.mT
    return logits if bias is None else logits + bias.to(features.dtype)[:, None]


class _Picked(torch.autograd.Function):
    """Every position's logit of its target.

    The gradient of a gather is a scatter into zeros, which no compiler fuses with the softmax
    around it; the same gradient written as a comparison is.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, targets: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return logits.gather(-1, targets[..., None]).squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        logits, targets = inputs
        ctx.save_for_backward(targets)
        ctx.vocabulary = logits.shape[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (targets,) = ctx.saved_tensors
        return _onehot(targets, ctx.vocabulary, grads[0].dtype) * grads[0][..., None], None


def _onehot(targets: Tensor, vocabulary: int, dtype: torch.dtype) -> Tensor:
    rows = torch.arange(vocabulary, device=targets.device, dtype=torch.int32)
    return (rows == targets[..., None].int()).to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type of sums over the vocabulary: at least float32."""
    return torch.promote_types(dtype, torch.float32)
