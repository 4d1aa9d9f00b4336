"""Heads: the size of a model's attention heads, seen while it runs.

Width grows by more heads of the same size, and where no config, norm or module says what that size
is, the operations of attention do: a fused one is given queries, whose last dimension it is; one
written out multiplies queries with keys, summing over it, and takes a softmax of what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from completedp.apply.attention import SeenAttention
from completedp.apply.called import call_with
from completedp.apply.model_map import ModelMap
from completedp.apply.structure import unwrapped

TOKENS = 6
"""That a model is run on."""


class HeadSizes(SeenAttention):
    """The sizes of the heads of all attention that runs inside, for as long as it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()
        self.factors: set[float] = set()
        """Of fused attention: what its logits are multiplied by, over 1/sqrt(size of a head)."""
        self._product: tuple[int, int] | None = None
        """Of the last batch of matrix products: how many numbers it gave, and the size of what was
        summed over."""

    @property
    def size(self) -> int | None:
        """The one that there is; None where none was seen, or several."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 else None

    def fused(self, query: Tensor, key: Tensor, factor: float) -> None:
        size = int(query.shape[-1])
        self.sizes.add(size)
        self.factors.add(factor * size**0.5)

    def product(self, operand: Tensor, output: Tensor) -> None:
        self._product = output.numel(), int(operand.shape[-2])

    def written_out(self, logits: Tensor) -> None:
        count, summed = self._product or (0, 0)
        if count == logits.numel():
            self.sizes.add(summed)


def head_dim_by_shapes(model_map: ModelMap) -> int | None:
    """The size of the heads of a model of any size, run without numbers: on the meta device.

    What it does before it fails counts too, as where what is next depends on a number.
    """
    model = unwrapped(model_map.model)
    if model_map.structure.embedding is None or why_not_called(model):
        return None
    tensors = (*model.named_parameters(), *model.named_buffers())
    values = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    seen = HeadSizes()
    with (
        torch.device("meta"),
        torch.no_grad(),
        unchanged(model),
        suppress(Exception),  # the user's model may fail in any way
        seen,
    ):
        tokens = torch.zeros(1, TOKENS, dtype=torch.long)
        call_with(model, values, (tokens,), call_options(model))
    return seen.size


def call_options(model: nn.Module) -> dict[str, Any]:
    """What to call a model with besides tokens: Hugging Face's keep what they read unless told."""
    return {"use_cache": False} if hasattr(model, "config") else {}


def why_not_called(model: nn.Module) -> str:
    """Why a model cannot be run with other tensors in the place of its own; empty where it can."""
    for module in model.modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            return "it is compiled"
    sharded = any(hasattr(p, "placements") for p in model.parameters())
    return "it is sharded" if sharded else ""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """What modules set on themselves inside, such as flags or tables of angles, is undone."""
    before = {module: (dict(vars(module)), dict(module._buffers)) for module in model.modules()}
    try:
        yield
    finally:
        for module, (own, buffers) in before.items():
            vars(module).clear()
            vars(module).update(own)
            module._buffers.clear()
            module._buffers.update(buffers)
