"""From a shape and a scale to a reference model, initialised by its plan, on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from completedp.apply.plan import Plan, plan
from completedp.common.errors import CompletedpError
from completedp.lm.loss import Loss, language_model_loss
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.config import Shape

DEFAULT_HEAD_DIM = 64


def model_config(
    shape: Shape, vocab: int, scale: Scale, head_dim: int | None = None
) -> ModelConfig:
    """The reference model of that shape at that scale; `head_dim` is the recipe's, if any."""
    return ModelConfig(
        vocab=vocab,
        width=scale.width,
        depth=scale.depth,
        head_dim=next(d for d in (shape.head_dim, head_dim, DEFAULT_HEAD_DIM) if d is not None),
        mlp_width=round(shape.mlp_ratio * scale.width),
        mlp=shape.mlp,
        qk_norm=shape.qk_norm,
        bias=shape.bias,
        output_bias=shape.output_bias,
    )


def meta_model(config: ModelConfig, compute_dtype: torch.dtype | None = None) -> Transformer:
    """The model with shapes and no memory."""
    with torch.device("meta"):
        return Transformer(config, compute_dtype)


def stack_model(config: ModelConfig, device: torch.device) -> Transformer:
    """The model for a stack of slots: no memory, products in bfloat16 on a GPU."""
    dtype = choose_dtype("auto", device)
    return meta_model(config, None if dtype == torch.float32 else dtype)


def planned_meta_model(
    config: ModelConfig, recipe: Recipe, target: Scale, dtype: torch.dtype = torch.float32
) -> tuple[Transformer, Plan]:
    """A model without memory, with its plan. Weights are never kept below float32."""
    weights = torch.promote_types(dtype, torch.float32)
    model = meta_model(config, dtype if dtype != weights else None).to(weights)
    return model, plan(model, recipe, target)


def planned_model(
    config: ModelConfig,
    recipe: Recipe,
    target: Scale,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, Plan]:
    """A model on a device, initialised, with its plan."""
    model, planned = planned_meta_model(config, recipe, target, dtype)  # mistakes cost nothing yet
    model.to_empty(device=device)
    planned.initialise(seed)
    return model, planned


def loss_of(model: Transformer, inputs: Tensor, targets: Tensor, z_loss: float = 0.0) -> Loss:
    """The training loss of one batch."""
    head = model.unembedding
    return language_model_loss(
        model(inputs, logits=False), head.weight, targets, bias=head.bias, z_loss=z_loss
    )


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # which meta tensors cannot
    except Exception as error:  # each backend fails in its own way when it is not there
        reason = str(error).splitlines()[0]
        raise CompletedpError(f"device {name!r} cannot be used: {reason}") from None
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, name)
