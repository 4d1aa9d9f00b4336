"""Losses: from a model and a batch to what is minimised and what is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from completedp.lm.loss import Loss, language_model_loss, plain_loss
from completedp.lm.transformer import Transformer

ModelLoss = Callable[..., Tensor]
"""The user's own: a model and the tensors of a batch to one number."""


def next_token_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of a model's logits: its output, the first of several, or called `logits`."""
    return plain_loss(logits_of(model(inputs)).flatten(0, -2), targets.flatten(), 0.0).total


def logits_of(output: Any) -> Tensor:
    """The logits in what a model gives: itself, the first of a tuple, or what is called so."""
    output = output["logits"] if isinstance(output, dict) else output
    return getattr(output, "logits", output[0] if isinstance(output, tuple) else output)


def transformer_loss(model: Transformer, inputs: Tensor, targets: Tensor, z_loss: float) -> Loss:
    """The reference model's, which makes its logits in chunks where they are many."""
    head = model.unembedding
    return language_model_loss(
        model(inputs, logits=False), head.weight, targets, bias=head.bias, z_loss=z_loss
    )
