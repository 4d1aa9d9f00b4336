"""Attention, seen while it runs: a fused one is given queries and keys, one that is written out
takes a softmax of its logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class SeenAttention(TorchDispatchMode):
    """Is told of all attention that runs inside, for as long as it is entered."""

    supports_higher_order_operators = True  # which pass

    def __init__(self) -> None:
        super().__init__()
        self._fused = _Fused(self)

    def fused(self, query: Tensor, key: Tensor, factor: float) -> None:
        """A fused one, with what it multiplies the products of its queries and keys by. Where there
        is no kernel for it, what it does then is seen as well."""

    def product(self, operand: Tensor, output: Tensor) -> None:
        """A batch of matrix products that is written out, by its second operand."""

    def written_out(self, logits: Tensor) -> None:
        """One that is written out, by what it takes the softmax of."""

    def __enter__(self) -> Self:
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
        """Here every way to write a product of matrices, or a softmax, is one."""
        output = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if name in ("bmm", "baddbmm"):
            self.product(args[-1], output)
        elif name in ("_softmax", "_safe_softmax") and _is_square(args[0]):
            self.written_out(args[0])
        return output


class _Fused(TorchFunctionMode):
    """Queries and keys as they are given: kernels pad them."""

    def __init__(self, seen: SeenAttention) -> None:
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
        if func is not F.scaled_dot_product_attention:
            return func(*args, **given)
        query, key = (
            args[n] if len(args) > n else given[name] for n, name in enumerate(("query", "key"))
        )
        scale = given.get("scale")
        self._seen.fused(query, key, float(query.shape[-1] ** -0.5 if scale is None else scale))
        return func(*args, **given)


def _is_square(scores: Tensor) -> bool:
    """Of every token with every token: a router's are of tokens with experts."""
    return scores.ndim > 2 and scores.shape[-2] == scores.shape[-1]
