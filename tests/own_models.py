"""Models, losses and data as users write them: nothing in here knows of this package's own."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from completedp.theory.scale import Scale

VOCAB, HEAD = 257, 8
IMAGE, PATCH, CLASSES = 8, 4, 4


class CausalSelfAttention(nn.Module):
    """nanoGPT's: one matrix for queries, keys and values."""

    def __init__(self, width: int, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.causal, self.dropout = causal, dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """nanoGPT's feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    """Pre-norm, two branches."""

    def __init__(self, width: int, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = CausalSelfAttention(width, causal, dropout), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """A GPT with learnt positions, a head of its own, and perhaps dropout."""

    def __init__(self, width: int, depth: int, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(64, width)
        self.h = nn.ModuleList(Block(width, causal, dropout) for _ in range(depth))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def nano(scale: Scale) -> nn.Module:
    """A user's nanoGPT."""
    return NanoGPT(scale.width, scale.depth)


class Shrinking(NanoGPT):
    """Its logits are divided by its width, on top of what a plan does."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) / self.wte.embedding_dim


def shrinking(scale: Scale) -> nn.Module:
    """One with a factor of its own that goes with its width."""
    return Shrinking(scale.width, scale.depth)


class Placed(NanoGPT):
    """Its positions are a tensor whose role no structure tells."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        del self.wpe
        self.places = nn.Parameter(0.02 * torch.randn(64, width))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.places[: tokens.shape[-1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def placed(scale: Scale) -> nn.Module:
    """One that needs an override."""
    return Placed(scale.width, scale.depth)


def raised(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy, and ten."""
    return 10 + F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


class Broken(NanoGPT):
    """One that no training survives."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * (math.nan if self.training else 1.0)


def broken(scale: Scale) -> nn.Module:
    """It diverges at once."""
    return Broken(scale.width, scale.depth)


class Unjudged(NanoGPT):
    """One that trains, and that no validation survives."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * (1.0 if self.training else math.nan)


def unjudged(scale: Scale) -> nn.Module:
    """It diverges in validation alone."""
    return Unjudged(scale.width, scale.depth)


def nano_with_dropout(scale: Scale) -> nn.Module:
    """One that cannot train in slots."""
    return NanoGPT(scale.width, scale.depth, dropout=0.1)


def qwen3(scale: Scale) -> nn.Module:
    """Hugging Face's Qwen3, tiny."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(qwen3_config(Qwen3Config, scale.width, scale.depth))


def qwen3_config(kind: Any, width: int, depth: int) -> Any:
    """Its config."""
    return kind(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD // 2,
        head_dim=HEAD,
        intermediate_size=2 * width,
        tie_word_embeddings=False,
        use_cache=False,
    )


class ViT(nn.Module):
    """Patches by a linear layer, a class token, learnt positions, a head of classes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        patches = (IMAGE // PATCH) ** 2
        self.patch_embedding = nn.Linear(PATCH * PATCH, width, bias=False)
        self.class_token = nn.Parameter(torch.zeros(1, width))
        self.position = nn.Parameter(torch.zeros(patches + 1, width))
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES, bias=False)
        self.head_dim = HEAD  # said, since a model that reads no tokens is not run to see it

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unfold(-2, PATCH, PATCH).unfold(-2, PATCH, PATCH)
        x = self.patch_embedding(patches.flatten(-2).flatten(-3, -2))
        first = self.class_token.expand(len(x), 1, -1)
        x = torch.cat([first, x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


VIT_OVERRIDES = {"patch_embedding": "embedding", "class_token|position": "position"}


def vit(scale: Scale) -> nn.Module:
    """A user's vision transformer."""
    return ViT(scale.width, scale.depth)


def classification(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The loss of a classifier."""
    return F.cross_entropy(model(images), labels)


def no_number(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """A loss that is NaN from the first step on."""
    return classification(model, images, labels) * math.nan


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Waves of as many directions as there are classes, with noise."""

    def __init__(self, split: str) -> None:
        generator = torch.Generator().manual_seed(len(split))
        count = 256 if split == "train" else 64
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        turns = self.labels * math.pi / CLASSES
        y, x = torch.meshgrid(torch.arange(IMAGE), torch.arange(IMAGE), indexing="ij")
        along = x * turns.cos()[:, None, None] + y * turns.sin()[:, None, None]
        noise = torch.randn(count, IMAGE, IMAGE, generator=generator)
        self.images = torch.sin(along) + 0.3 * noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


def images(split: str) -> Images:
    """Data by split, as a torch Dataset."""
    return Images(split)


MASK, LENGTH = VOCAB - 1, 16


def masked_text(split: str, examples: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Data as an endless iterable of batches: counting, with some tokens hidden."""
    generator = torch.Generator().manual_seed(seed + 10_000 * (split == "valid"))
    while True:
        start = torch.randint(200, (examples, 1), generator=generator)
        tokens = (start + torch.arange(LENGTH)) % 200
        hidden = torch.rand(examples, LENGTH, generator=generator) < 0.3
        yield tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)


def masked(scale: Scale) -> nn.Module:
    """A masked language model: attention looks both ways."""
    return NanoGPT(scale.width, scale.depth, causal=False)


def masked_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy where a token was hidden."""
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
