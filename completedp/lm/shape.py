"""The reference model's shape: what does not grow with its scale. No torch: `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from completedp.common.checks import check_number, check_one_of
from completedp.common.flags import off, or_else, part

MLPS = ("gelu", "swiglu")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The parts of a reference model's shape that are the same at every scale."""

    head_dim: Annotated[
        int | None, or_else("Size of an attention head; the recipe's if not given,", 64)
    ] = None
    """Size of an attention head; the recipe's if not given, else 64."""
    mlp: str = "gelu"
    """Feed-forward: gelu (two matrices) or swiglu (three)."""
    mlp_ratio: float = 4.0
    """Feed-forward width over width."""
    qk_norm: Annotated[bool, off("Leave queries and keys as they are, without norms.")] = True
    """Normalise queries and keys, head by head."""
    bias: Annotated[bool, part()] = False
    """Biases on the linear layers of the blocks."""
    output_bias: Annotated[bool, part()] = False
    """A bias on the logits."""

    def __post_init__(self) -> None:
        check_number("mlp_ratio", self.mlp_ratio, low=1e-3, high=1e3)
        check_one_of("mlp", self.mlp, MLPS)
