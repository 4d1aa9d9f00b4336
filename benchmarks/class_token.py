"""Why the coordinate check fails a model that reads one token: four checks of a ViT, a minute.

    python benchmarks/class_token.py

The last block whole or with the class token alone, and the head's initial values as usual or 64
times smaller (docs/results/checks.md, "Models that read one token").
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import nn

import completedp as cdp


class OneToken(nn.Module):
    """A small ViT that reads its class token; `alone`: its last block goes on with that one alone,
    as what the others become there is read by nobody."""

    def __init__(self, width: int, depth: int, *, alone: bool) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "attn": nn.MultiheadAttention(width, width // 16, batch_first=True),
                    "norm2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(
                        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                    ),
                }
            )
            for _ in range(depth)
        )
        self.norm, self.head, self.alone = nn.LayerNorm(width), nn.Linear(width, 10), alone

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Classes."""
        patches = self.patch_embed(images).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(len(images), -1, -1)
        stream = torch.cat([first, patches], 1) + self.pos_embed
        for i, block in enumerate(self.blocks):
            read = 1 if self.alone and i == len(self.blocks) - 1 else stream.shape[1]
            given = block["norm1"](stream)
            added = block["attn"](given[:, :read], given, given, need_weights=False)[0]
            stream = stream[:, :read] + added
            stream = stream + block["mlp"](block["norm2"](stream))
        return self.head(self.norm(stream)[:, 0])


def main() -> None:
    """Check the four of them."""
    made = torch.Generator().manual_seed(0)
    classes = torch.randint(0, 10, (2000,), generator=made)
    means = torch.randn(10, 1, 16, 16, generator=made)
    images = means[classes] + torch.randn(2000, 1, 16, 16, generator=made)
    base = cdp.Scale(width=32, depth=2, batch=16, tokens=1600)
    for alone, head in ((False, 0.0), (False, -6.0), (True, 0.0), (True, -6.0)):

        def make(scale: cdp.Scale, alone: bool = alone) -> nn.Module:
            return OneToken(scale.width, scale.depth, alone=alone)

        recipe = cdp.Recipe.for_model(make(base), base, lr=2**-9)
        tuned = replace(recipe.hyperparameters, log2={"init_std/type/unembedding": head})
        print(f"last block {'with the class token alone' if alone else 'whole'}, head {head:+g}:")
        print(
            cdp.coordcheck(
                make,
                widths=(32, 64, 128, 256),
                data=lambda _: (images, classes),
                loss=lambda model, x, y: nn.functional.cross_entropy(model(x), y),
                recipe=replace(recipe, hyperparameters=tuned),
                quiet=True,
            )
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
