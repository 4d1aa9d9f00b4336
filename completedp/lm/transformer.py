"""The reference model: the paper's decoder-only transformer.

Pre-norm, RMS norms, QK norm per head, rotary positions, a feed-forward of two matrices with GELU
(or SwiGLU), untied embeddings. Residual branches have multipliers, one per block and branch, in a
buffer: they are saved with the weights, and a search can give every trial its own.

The same code runs many models at once: given parameters and buffers with a leading dimension of S
slots (by `torch.func.functional_call`) and tokens [S, B, T], every module works slot by slot.

Shapes: S slots (or none), B sequences, T positions, D width, H heads, K head_dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from completedp.common.checks import check_whole
from completedp.common.errors import CompletedpError
from completedp.lm.shape import Shape
from completedp.theory.roles import BRANCHES


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Shape):
    """A reference model: its shape, with sizes.

    >>> config = ModelConfig(vocab=4096, width=256, depth=4)
    >>> config.heads, config.hidden
    (4, 1024)
    """

    vocab: int
    """Number of token ids."""
    width: int
    """d_model, in features."""
    depth: int
    """Number of blocks."""
    head_dim: int = 64  # pyright: ignore[reportIncompatibleVariableOverride]
    """Features of an attention head; width is a multiple of it."""
    mlp_width: int | None = None
    """Feed-forward width, in place of mlp_ratio x width."""
    rope_theta: float = 10_000.0
    """Base of the rotary positions' wavelengths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = {"vocab": 2**31, "width": 2**24, "depth": 10_000, "head_dim": 2**16}
        for name, most in limits.items():
            size = check_whole(name, getattr(self, name), high=most)
            object.__setattr__(self, name, size)
        if self.mlp_width is not None:
            object.__setattr__(self, "mlp_width", check_whole("mlp_width", self.mlp_width))
        if self.width % self.head_dim:
            raise CompletedpError(
                f"width {self.width} is not divisible by head_dim {self.head_dim}: width grows by "
                f"whole heads, so the next one is {-(-self.width // self.head_dim) * self.head_dim}"
            )
        if self.head_dim % 2:
            raise CompletedpError(f"head_dim {self.head_dim} must be even for rotary positions")
        if not self.hidden:
            raise CompletedpError(
                f"mlp_ratio {self.mlp_ratio:g} of width {self.width} leaves no feature: take more"
            )

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.width // self.head_dim

    @property
    def hidden(self) -> int:
        """Feed-forward width."""
        return self.mlp_width or round(self.mlp_ratio * self.width)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Embedding(nn.Embedding):
    """Rows of a table; with slots, every slot's own table."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return F.embedding(input, self.weight)
        slots, vocab, _ = self.weight.shape
        first_row = torch.arange(slots, device=input.device).view(-1, 1, 1) * vocab
        return F.embedding(input + first_row, self.weight.flatten(0, 1))


class Linear(nn.Linear):
    """A linear layer that computes in its input's type, whatever type its weights are kept in."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.to(input.dtype)
        bias = None if self.bias is None else self.bias.to(input.dtype)
        if weight.dim() == 2:
            return F.linear(input, weight, bias)
        rows = input.flatten(1, -2)
        out = rows @ weight.mT if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return out.view(*input.shape[:-1], out.shape[-1])


class RMSNorm(nn.Module):
    """x / rms(x) x gain, over the last dimension."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        if weight.dim() == 1:
            return F.rms_norm(x, weight.shape, weight, 1e-6)
        weight = weight.view(len(weight), *(1,) * (x.dim() - 2), -1)
        return F.rms_norm(x, weight.shape[-1:], None, 1e-6) * weight


class Attention(nn.Module):
    """Causal self-attention. The QK norms' gains are shared by all heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.qkv = Linear(config.width, 3 * config.width, bias=config.bias)
        self.q_norm = RMSNorm(config.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim) if config.qk_norm else nn.Identity()
        self.out = Linear(config.width, config.width, bias=config.bias)

    def forward(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        qkv = self.qkv(x_BTD).view(*x_BTD.shape[:-1], 3, self.heads, self.head_dim)
        q_BTHK, k_BTHK, v_BTHK = qkv.unbind(-3)
        q_BTHK = rotate(self.q_norm(q_BTHK), rotation)
        k_BTHK = rotate(self.k_norm(k_BTHK), rotation)
        # Attention has no parameters: slots, where there are some, are more sequences to it.
        q, k, v = (t.flatten(0, -4).transpose(1, 2) for t in (q_BTHK, k_BTHK, v_BTHK))
        y_BHTK = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y_BHTK.transpose(1, 2).reshape(x_BTD.shape))


class MLP(nn.Module):
    """Feed-forward: up, GELU, down; or with SwiGLU up gated by silu(gate)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(config.width, config.hidden, bias=config.bias)
        if config.mlp == "swiglu":
            self.gate = Linear(config.width, config.hidden, bias=config.bias)
        else:
            self.gate = None
        self.down = Linear(config.hidden, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        return self.down(F.gelu(h) if self.gate is None else F.silu(self.gate(x)) * h)


class Block(nn.Module):
    """x + m_attn attn(norm(x)), then x + m_mlp mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.width)
        self.attn = Attention(config)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, multipliers: Tensor, rotation: tuple[Tensor, Tensor], dtype: torch.dtype
    ) -> Tensor:
        # The stream keeps the parameters' precision: at depth L a branch adds about 1/L of it,
        # which bfloat16 would round away.
        attn, mlp = (m.view(*m.shape, 1, 1, 1) for m in multipliers.unbind(-1))
        x = x + attn * self.attn(self.attn_norm(x).to(dtype), rotation)
        return x + mlp * self.mlp(self.mlp_norm(x).to(dtype))


class Transformer(nn.Module):
    """Tokens to logits. `compute_dtype` (bfloat16 on a GPU) is that of the matrix products.

    >>> model = Transformer(ModelConfig(vocab=100, width=64, depth=2))
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape  # sequences, positions, vocabulary
    torch.Size([1, 8, 100])
    """

    residual_multipliers: Tensor
    output_multiplier: Tensor

    def __init__(self, config: ModelConfig, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.embedding = Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.output_norm = RMSNorm(config.width)
        self.unembedding = Linear(config.width, config.vocab, bias=config.output_bias)
        self.register_buffer("residual_multipliers", torch.ones(config.depth, len(BRANCHES)))
        self.register_buffer("output_multiplier", torch.ones(()))  # 1 but under CompleteP

    def forward(self, tokens_BT: Tensor, *, logits: bool = True) -> Tensor:
        """Logits of the next token at every position, or the features they are made of.

        Features are the normed stream times the output multiplier: a loss that applies the
        unembedding in chunks starts from them.
        """
        x_BTD = self.embedding(tokens_BT)
        for layer, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, *self.block_inputs(layer, x_BTD))
        features = self.features(x_BTD)
        return self.unembedding(features) if logits else features

    def block_inputs(
        self, layer: int, x_BTD: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor], torch.dtype]:
        """What a block takes besides the stream: its multipliers, the rotation, the type."""
        dtype = self.compute_dtype or x_BTD.dtype
        length, config = x_BTD.shape[-2], self.config
        rotation = rotary_angles(length, config.head_dim, config.rope_theta, x_BTD.device, dtype)
        return self.residual_multipliers[..., layer, :], rotation, dtype

    def features(self, x_BTD: Tensor) -> Tensor:
        """The end of the stream, normed and multiplied: what the unembedding reads."""
        multiplier = self.output_multiplier
        x_BTD = self.output_norm(x_BTD) * multiplier.view(*multiplier.shape, 1, 1, 1)
        return x_BTD.to(self.compute_dtype or x_BTD.dtype)


def is_reference(model: nn.Module) -> TypeGuard[Transformer]:
    """Whether a model computes what this file says, and may be trained by programs made for it.

    One that a user derived from it, or replaced or hooked a part of, is a model of their own.
    """
    if not isinstance(model, Transformer):
        return False
    with torch.device("meta"):
        plain = Transformer(model.config)
    own, usual = (list(each.named_modules()) for each in (model, plain))
    return [(name, type(part)) for name, part in own] == [
        (name, type(part)) for name, part in usual
    ] and not any(_is_changed(part) for _, part in own)


def _is_changed(part: nn.Module) -> bool:
    """Whether a module has a forward pass or hooks of its own."""
    return "forward" in vars(part) or bool(part._forward_hooks or part._forward_pre_hooks)


def rotary_angles(
    length: int, head_dim: int, theta: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape [T, 1, K/2]; no buffer, so `to_empty` is safe."""
    return _rotary_table(length, head_dim, theta, device, dtype)


# Else every kernel that rotates computes them again. This is what torch's assume_constant_result
# does; calling it would import the compiler, two seconds that most commands have no use for.
rotary_angles._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
def _rotary_table(
    length: int, head_dim: int, theta: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    # What is kept for all callers must not be of the first one's mode or default device.
    with torch.inference_mode(False), torch.device("cpu"):
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        positions = torch.arange(length, dtype=torch.float64)
        angles = torch.outer(positions, theta ** (-pairs / head_dim))[:, None, :]
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x_BTHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on halves, as in the Hugging Face layout."""
    cos, sin = rotation
    first, second = x_BTHK.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
