"""Heads: the size of a model's attention heads, seen while it runs.

Width grows by more heads of the same size, and where no config, norm or module says what that size
is, the operations of attention do: a fused one is given queries, whose last dimension it is; one
written out multiplies queries with keys, summing over it, and takes a softmax of what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from completedp.apply.model_map import ModelMap
from completedp.apply.structure import unwrapped

TOKENS = 6
"""That a model is run on."""


class HeadSizes(TorchDispatchMode):
    """The sizes of the heads of all attention that runs inside, for as long as it is entered."""

    supports_higher_order_operators = True  # which pass

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()
        self.factors: set[float] = set()
        """Of fused attention: what its logits are multiplied by, over 1/sqrt(size of a head)."""
        self._fused = _FusedAttention(self)
        self._products: tuple[int, int] | None = None
        """Of the last batch of matrix products: how many numbers it gave, and the size of what was
        summed over."""

    @property
    def size(self) -> int | None:
        """The one that there is; None where none was seen, or several."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 else None

    def __enter__(self) -> HeadSizes:
        self._fused.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fused.__exit__(*error)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Attention that is written out. Here every way to write a product of matrices is one."""
        output = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if name in ("bmm", "baddbmm"):
            self._products = output.numel(), int(args[-1].shape[-2])
        elif name in ("_softmax", "_safe_softmax") and is_square(args[0]):
            count, summed = self._products or (0, 0)
            if count == args[0].numel():
                self.sizes.add(summed)
        return output


class _FusedAttention(TorchFunctionMode):
    """The size of the queries as they are given: kernels pad them."""

    def __init__(self, seen: HeadSizes) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            query = args[0] if args else given["query"]
            size, scale = int(query.shape[-1]), given.get("scale")
            self._seen.sizes.add(size)
            self._seen.factors.add(1.0 if scale is None else float(scale) * size**0.5)
        return func(*args, **given)


def is_square(scores: Tensor) -> bool:
    """Of every token with every token: a router's are of tokens with experts."""
    return scores.ndim > 2 and scores.shape[-2] == scores.shape[-1]


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
        functional_call(model, values, (tokens,), call_options(model))
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
