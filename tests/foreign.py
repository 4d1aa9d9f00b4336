"""Models that are no language models, or not causal, with their data and losses, for checks."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from completedp.theory.scale import Scale

HEAD_DIM, CLASSES, PATCHES, PATCH = 16, 10, 16, 12
TOKENS, LENGTH = 64, 32
MASK = TOKENS - 1
IGNORED = -100


class Block(nn.Module):
    """Pre-norm attention to every place, and a feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("fc1", nn.Linear(width, 4 * width))
        self.mlp.add_module("act", nn.GELU())
        self.mlp.add_module("fc2", nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, -1, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, scale=1 / HEAD_DIM)
        return self.proj(mixed.transpose(1, 2).flatten(-2))


class ViT(nn.Module):
    """Patches through a linear layer, learnt positions, and the mean to a class."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch_embedding = nn.Linear(PATCH, width, bias=False)
        self.pos = nn.Parameter(torch.zeros(1, PATCHES, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, patches: Tensor) -> Tensor:
        x = self.patch_embedding(patches) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


VIT_TYPES = {"patch_embedding": "embedding", "pos": "position"}


def vit(scale: Scale) -> nn.Module:
    """The image classifier at a scale."""
    return ViT(scale.width, scale.depth)


def classification(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the classes."""
    return F.cross_entropy(model(images), labels)


def images(split: str) -> tuple[Tensor, Tensor]:
    """Patches whose mean tells the class."""
    generator = torch.Generator().manual_seed(len(split))
    labels = torch.randint(CLASSES, (512,), generator=generator)
    of_class = torch.randn(CLASSES, PATCH, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(512, PATCHES, PATCH, generator=generator)
    return of_class[labels][:, None] + noise, labels


class Masked(nn.Module):
    """A bidirectional language model, whose positions are fixed: frozen, and drawn by itself."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        angles = torch.arange(LENGTH)[:, None] / 100 ** torch.linspace(0, 1, width)
        self.pos = nn.Parameter(angles.sin(), requires_grad=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.unembedding = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.unembedding(self.norm(x))


def masked(scale: Scale) -> nn.Module:
    """The masked language model at a scale."""
    return Masked(scale.width, scale.depth)


def masked_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy where tokens were masked."""
    return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def masked_text(split: str, examples: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Runs of tokens with holes: what is hidden follows from its neighbours."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(MASK, (examples, 1), generator=generator)
        tokens = (starts + torch.arange(LENGTH)) % MASK
        hidden = torch.rand(tokens.shape, generator=generator) < 0.25
        yield tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, IGNORED)
