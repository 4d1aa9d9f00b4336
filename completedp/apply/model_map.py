"""ModelMap: what is known of a model before any hyperparameter is: tensors and structure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

from torch import nn

from completedp.apply.names import block_of, canonical_name
from completedp.apply.settings import (
    config_of,
    declared_head_dim,
    experts_a_token,
    forward_constants,
)
from completedp.apply.structure import Structure
from completedp.common.errors import CompletedpError
from completedp.theory.roles import Role

PROBED = "probed: "
"""What the names of constants begin with that were seen by running a model."""
SIZED = "size: "
"""What the names of those begin with that are sizes of what it does (sizes.py)."""
EXPERTS = ("experts", "experts a token")
"""The names of those that are numbers of experts, and no factors."""
BLOCKS = "blocks of "
"""What the names of a recipe's constants begin with that are numbers of blocks, list by list."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """What is known of one parameter."""

    name: str
    """Canonical."""
    type: str
    role: Role
    layer: int | None
    """The block it is in, counted from 1."""
    shape: tuple[int, ...]
    width: int
    """What its rule scales with: a matrix's fan-in, an embedding's dimension, a vector's length."""
    how: str
    """What decided: `override`, `structure`, `shape` or `name`."""
    offset: float = 0.0
    """What its module adds to it in use: 1 for a norm that stores gain - 1."""
    start: float | None = None
    """Where the model itself starts it, throughout, if no rule says where: of a tensor that only an
    override could name, such as LayerScale's gain or the second matrix of LoRA."""
    padding: int | None = None
    """The row of an embedding that stays at 0."""
    override: str | None = None
    """The regular expression that gave its type, where one did."""

    @property
    def last_map(self) -> str | None:
        """The branch that it is the last linear map of; `output` for the logits."""
        if self.type in ("unembedding", "output_bias"):
            return "output"
        kind = self.type.removesuffix("_bias")
        return kind.removesuffix("_out") if kind in ("attn_out", "mlp_out") else None

    @property
    def block(self) -> str:
        """What tells its block from all others, also from those of another list."""
        return block_of(self.name, self.layer)

    @property
    def as_taken(self) -> str:
        """Name, shape and type, and the override that gave the type, if one did: for errors."""
        by = "" if self.override is None else f" (override {f'{self.override}={self.type}'!r})"
        return f"{self.name} {list(self.shape)} of type {self.type}{by}"

    @property
    def embeds_tokens(self) -> bool:
        """Whether it is the token embedding, tied or not."""
        return self.type in ("embedding", "tied_embedding")


class LastNorm(NamedTuple):
    """A norm that ends a branch, or a gain alone: the number of its block, and its path."""

    layer: int
    path: str
    held: tuple[str, ...] = ()
    """Its tensors, where what the module of that path gives is not what they end: it has others
    too, as a block that holds LayerScale's, or is a list of them."""


class ModelMap(Sequence[TensorInfo]):
    """Every trainable parameter of a model, in the model's order, and the model's own sizes."""

    def __init__(
        self, model: nn.Module, structure: Structure, tensors: Sequence[TensorInfo]
    ) -> None:
        self.model = model
        self.structure = structure
        """The model's modules by canonical path, its embedding, blocks, norms and head."""
        self.tensors = tuple(tensors)
        self.probed: Mapping[str, float] | None = None
        """Factors of the forward pass that were seen by running it (probe.py); None where it was
        not run."""
        self.sizes: Mapping[str, float] = {}
        """How large branches and logits were seen to be (sizes.py)."""
        self.seen_head_dim: int | None = None
        """Size of an attention head that was seen by running it (heads.py)."""

    @overload
    def __getitem__(self, index: int) -> TensorInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorInfo]: ...
    def __getitem__(self, index: int | slice) -> TensorInfo | Sequence[TensorInfo]:
        return self.tensors[index]

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.tensors)

    def __eq__(self, other: object) -> bool:
        """Maps of different models are equal where their tensors are."""
        return isinstance(other, ModelMap) and self.tensors == other.tensors

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ModelMap({list(self.tensors)!r})"

    @cached_property
    def depth(self) -> int:
        """Number of blocks."""
        return max((t.layer for t in self if t.layer is not None), default=0)

    @cached_property
    def width(self) -> int | None:
        """Width of the residual stream, by the token embedding; None where that is not trained."""
        return next((t.width for t in self if t.embeds_tokens), None)

    @property
    def head_dim(self) -> int | None:
        """Size of an attention head: as the model tells it, or as was seen by running it."""
        return self._told_head_dim or self.seen_head_dim

    @cached_property
    def _told_head_dim(self) -> int | None:
        """By its config, its QK norms, or an attribute `head_dim` of its modules."""
        declared = declared_head_dim(self.model)
        if declared is not None:
            return declared
        # One number a head, as a temperature is, says nothing of its size.
        normed = next((t.width for t in self if t.role is Role.QK_NORM and t.width > 1), None)
        said = (getattr(module, "head_dim", None) for module in self.model.modules())
        return normed or next((size for size in said if isinstance(size, int)), None)

    @cached_property
    def has_attention(self) -> bool:
        """Whether there are heads at all."""
        return any(t.type in ("qkv", "attn_out") for t in self)

    @property
    def constants(self) -> Mapping[str, float]:
        """What the model's own forward pass multiplies by, by name: said by its config and modules,
        and seen by running it; and its numbers of experts."""
        return {**self._said, **self._experts, **(self.probed or {})}

    @cached_property
    def _said(self) -> Mapping[str, float]:
        return forward_constants(self.model)

    @cached_property
    def _experts(self) -> Mapping[str, float]:
        """How many there are, as a router has outputs (that of shared ones has one), and how many a
        token goes to, where the modules around the router or the config say it."""
        outputs = {t.name: math.prod(t.shape) // t.width for t in self if t.type == "router"}
        if not outputs:
            return {}
        router = max(outputs, key=outputs.__getitem__)
        words = router.split(".")
        paths = (".".join(words[:end]) for end in range(len(words) - 1, 0, -1))
        around = (self.structure.modules.get(path) for path in paths)
        numbers = outputs[router], experts_a_token((*around, config_of(self.model)))
        named = zip(EXPERTS, numbers, strict=True)
        return {name: float(number) for name, number in named if number is not None}

    @cached_property
    def blocks(self) -> list[nn.Module]:
        """The blocks, in order; none where the model has no list of them."""
        return [self.structure.modules[path] for path in self.structure.layers]

    @cached_property
    def lists(self) -> Mapping[str, int]:
        """Where there are several lists of blocks: how many each has, by its path. Overrides tell
        those beside the one that the structure found."""
        main, found = self.structure.blocks, dict[str, int]()
        for tensor in self:
            if tensor.layer is not None and not self.structure.in_block(tensor.name):
                path = tensor.block.rpartition(".")[0]
                found[path] = max(tensor.layer, found.get(path, 0))
        return {main: len(self.blocks), **found} if found and main is not None else {}

    @cached_property
    def last_norms(self) -> Mapping[tuple[str, str], LastNorm]:
        """The norm that ends a branch, by the block's path and the branch, also one without a
        gain."""
        found = {
            (block_of(path, layer), branch): LastNorm(layer, path)
            for (layer, branch), path in self.structure.norms_without_gains.items()
        }
        tensors: dict[tuple[str, str], list[TensorInfo]] = {}
        for tensor in self:
            kind = tensor.type.removesuffix("_bias")
            if tensor.layer and kind.endswith("_post_norm"):
                branch = kind.removesuffix("_post_norm")
                tensors.setdefault((tensor.block, branch), []).append(tensor)
        for place, each in tensors.items():
            gain = next((t for t in reversed(each) if not t.type.endswith("_bias")), None)
            if gain is not None and gain.layer:
                path = gain.name.rpartition(".")[0]
                names = tuple(t.name for t in each if t.name.rpartition(".")[0] == path)
                module = self.structure.modules[path]
                more = sum(p.requires_grad for p in module.parameters()) > len(names)
                uncalled = isinstance(module, nn.ParameterList | nn.ParameterDict)
                held = names if more or uncalled else ()
                found[place] = LastNorm(gain.layer, path, held)
        return found

    def ends(self, tensor: TensorInfo) -> str | None:
        """The branch whose multiplier the tensor's output has: `attn` or `mlp` for what is last in
        one, its norm where it has one there, else its linear map; `output` for the logits."""
        if tensor.type in ("unembedding", "tied_embedding", "output_bias"):
            return "output"
        kind = tensor.type.removesuffix("_bias")
        if kind in ("attn_post_norm", "mlp_post_norm"):
            return kind.removesuffix("_post_norm")
        if kind not in ("attn_out", "mlp_out"):
            return None
        branch = kind.removesuffix("_out")
        return None if (tensor.block, branch) in self.last_norms else branch

    @cached_property
    def head(self) -> str | None:
        """The path of the module that makes the logits; None where that is the embedding itself."""
        if self.structure.tied:
            embedding, head = self.structure.tied
            return None if head.path == embedding.path else head.path
        heads = (t.name for t in self if t.type == "unembedding")
        return next((name.rpartition(".")[0] for name in heads), None)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters as they are now, by canonical name: `to_empty` makes new ones."""
        for later, first in self.structure.shared:
            if later.owner._parameters[later.key] is not first.owner._parameters[first.key]:
                raise CompletedpError(
                    f"{later.name} and {first.name} were one tensor when they were planned, and "
                    "are two now, as to_empty leaves them: call plan.initialise(), which ties them "
                    "again, or tie them before you load weights"
                )
        return {canonical_name(name): p for name, p in self.model.named_parameters()}

    def tie(self) -> None:
        """Make one tensor again of what was one when it was planned."""
        for later, first in self.structure.shared:
            later.owner._parameters[later.key] = first.owner._parameters[first.key]
