"""The reference model at any scale: a `make(scale)` like a user's own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch

from completedp.lm.shape import Shape
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.theory.scale import Scale

DEFAULT_HEAD_DIM = 64


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """Called with a scale, it gives the reference transformer of that width and depth."""

    vocab: int
    shape: Shape = field(default_factory=Shape)
    head_dim: int | None = None
    """The recipe's, if any: the shape's own comes first."""

    def config(self, scale: Scale) -> ModelConfig:
        """The model's shape at a scale."""
        fixed = asdict(self.shape)
        sizes = (fixed.pop("head_dim"), self.head_dim, DEFAULT_HEAD_DIM)
        head_dim = next(size for size in sizes if size is not None)
        return ModelConfig(
            vocab=self.vocab, width=scale.width, depth=scale.depth, head_dim=head_dim, **fixed
        )

    def __call__(self, scale: Scale, compute_dtype: torch.dtype | None = None) -> Transformer:
        return Transformer(self.config(scale), compute_dtype)


def meta_model(config: ModelConfig, compute_dtype: torch.dtype | None = None) -> Transformer:
    """A reference model with shapes and no memory."""
    with torch.device("meta"):
        return Transformer(config, compute_dtype)
