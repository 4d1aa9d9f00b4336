"""Classify: every parameter of a model to its module type, role, layer and width.

The evidence, in this order: the user's overrides; structure (what the modules are and where);
shape (what reads and what writes the residual stream); names. A tensor is known by its canonical
name (what wrappers put in front of it dropped) and by the module that owns it: never by attributes
on the tensor, which sharding, copying and compiling lose. A tensor that nobody can classify is an
error; nothing is left out or given a default in silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn
from torch.nn.parameter import is_lazy

from completedp.apply import cautions, names
from completedp.apply.model_map import ModelMap, TensorInfo
from completedp.apply.names import canonical_name as canonical_name
from completedp.apply.settings import declared_head_dim
from completedp.apply.structure import (
    Place,
    Structure,
    fans,
    features,
    has_vectors_alone,
    is_norm,
    may_be_fans,
)
from completedp.apply.unknown import Suggestion, check_known, suggest
from completedp.common.checks import check_is
from completedp.common.errors import CompletedpError
from completedp.common.warn import warn
from completedp.theory.overrides import merged
from completedp.theory.roles import BRANCHES, MODULE_TYPES, Width, is_bias, width_of_type

# Matrices that take the residual stream in, and those that add to it.
_READS = {"qkv", "attn_gate", "mlp_in", "mlp_gate", "router", "unembedding"}
_WRITES = {"attn_out", "mlp_out"}
_PER_HEAD = {"qkv", "attn_gate", "attn_out"}
"""What may have a matrix for each head."""
_ATTENTION = {*_PER_HEAD, "latent_up"}
_HEADS = ("unembedding", "tied_embedding")
_EMBEDS = ("embedding", "tied_embedding", "position")


def classify(
    model: nn.Module,
    overrides: Mapping[str, str] | None = None,
    *,
    inherited: Mapping[str, str] | None = None,
) -> ModelMap:
    """Every trainable parameter, in the model's order; the model may be on the meta device.

    `overrides` maps regular expressions on canonical names to module types; the first that matches
    wins, before all other evidence, and one that matches nothing is an error. A group named
    `layer` in it gives the block, counted from 0. `inherited` are those of a recipe, tried after.
    Widths are in features: a matrix's fan-in, an embedding's dimension, a vector's length.

    >>> import completedp as cdp
    >>> found = classify(cdp.Transformer(cdp.ModelConfig(vocab=64, width=128, depth=2)))
    >>> found.width, found.depth, found[2].name, found[2].type, found[2].role.value
    (128, 2, 'blocks.0.attn.qkv.weight', 'qkv', 'hidden_weight')
    """
    return read(model, overrides, inherited=inherited).whole()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is known of a model, and the tensors that nobody can classify."""

    known: ModelMap
    unknown: tuple[Place, ...]
    suggestions: tuple[Suggestion, ...]
    """Overrides that would name them."""
    overrides: Mapping[str, str]
    """Those that were given."""

    def whole(self) -> ModelMap:
        """The map of all of the model; an error where tensors are missing from it."""
        check_known(self.unknown, self.suggestions, self.overrides)
        return self.known


def read(
    model: nn.Module,
    overrides: Mapping[str, str] | None = None,
    *,
    inherited: Mapping[str, str] | None = None,
) -> Reading:
    """As `classify`, but for tensors that nobody can classify, which it gives beside the others."""
    wanted = "a torch.nn.Module: the model itself, not a function that makes it, nor its name"
    check_is("model", model, nn.Module, wanted)
    if lazy := [name for name, p in model.named_parameters() if is_lazy(p)]:
        raise CompletedpError(
            f"{lazy[0]} has no shape before the model has run once: call it on a batch first"
        )
    tried = merged(overrides or {}, inherited or {})
    every_name = [canonical_name(name) for name, _ in model.named_parameters()]
    structure = Structure(model, {n for n in every_name if _override(n, tried)})
    cautions.check_structure(structure)
    for message in cautions.own_scale_cautions(model):
        warn(message)
    evidence = Evidence(structure, head_dim=declared_head_dim(model))
    unused = set(tried)
    found: list[TensorInfo] = []
    unknown: list[Place] = []
    drawn = any(p.ndim > 1 and not is_constant(p) for _, p in structure.places())
    later = {place.name for place, _ in structure.shared}
    for place, parameter in structure.places():
        if not parameter.requires_grad or place.name in later:
            continue
        layer, pattern = place.layer, None
        if match := _override(place.name, tried):
            pattern = match.re.pattern
            unused.discard(pattern)
            decision = _typed(place, tried[pattern]), "override"
            _check_dimensions(place, decision[0], pattern)
            if decision[0] in _EMBEDS and evidence.is_between(place):
                raise CompletedpError(
                    f"override {pattern!r}: {place.name} {list(place.shape)} reads what is as wide "
                    f"as the residual stream, and {structure.embedding} embeds the tokens: it "
                    f"cannot be of type {decision[0]!r}; a hidden layer there is of type 'mlp_in'"
                )
            if (given := match.groupdict().get("layer")) is not None:
                layer = _layer(given, match)
        else:
            decision = evidence.decide(place)
        if decision is None:
            unknown.append(place)
            continue
        found.append(
            TensorInfo(
                name=place.name,
                type=decision[0],
                role=MODULE_TYPES[decision[0]],
                layer=layer,
                shape=place.shape,
                width=evidence.width(place, decision[0]),
                how=decision[1],
                offset=evidence.offset(place, decision[0]),
                start=_own_start(parameter) if drawn and decision[1] == "override" else None,
                padding=getattr(place.owner, "padding_idx", None),
                override=pattern,
            )
        )
    _check_used(unused, structure, may_be_shadowed=inherited or {})
    _check_names(found)
    _check_embeddings(found)
    _check_ends(found)
    types = {tensor.type for tensor in found}
    return Reading(
        known=ModelMap(model, structure, found),
        unknown=tuple(unknown),
        suggestions=tuple(suggest(unknown, structure, evidence.may_be, taken=types)),
        overrides=dict(overrides or {}),
    )


def size_of(
    model: nn.Module,
    overrides: Mapping[str, str] | None = None,
    *,
    inherited: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Width of the residual stream and number of blocks."""
    found = classify(model, overrides, inherited=inherited)
    if not found.width or not found.depth:
        raise CompletedpError(f"{type(model).__name__} has no token embedding or no blocks")
    return found.width, found.depth


class Evidence:
    """What structure, shapes and names say of a model's tensors."""

    def __init__(self, structure: Structure, *, head_dim: int | None) -> None:
        self._structure = structure
        self._head_dim = head_dim
        self._order = (
            ("structure", structure.type_of),
            ("shape", self._by_shape),
            ("name", self._by_name),
        )

    def decide(self, place: Place) -> tuple[str, str] | None:
        """The type of a tensor and what decided it; a bias has that of its weight."""
        weight = self._structure.weight_of(place) if place.is_bias else place
        if weight is None or self._structure.between_blocks(place.path):  # a bias of nothing
            return None
        for how, evidence in self._order:
            if (kind := evidence(weight)) is None:
                continue
            if kind in ("q_norm", "k_norm") and not self._is_per_head(place):
                kind, how = f"{kind}_full", "shape"
            if place.is_bias:
                kind = "output_bias" if kind in _HEADS else f"{kind}_bias"
            return (kind, how) if kind in MODULE_TYPES else None
        return None

    def width(self, place: Place, module_type: str) -> int:
        """What its type scales with: fan-in, output dimension or length; 1 where that is none."""
        kind = width_of_type(module_type)
        if kind is Width.NONE:
            return 1
        if kind is not Width.FAN_IN:
            own = fans(place.owner) if place.key == "weight" else None
            if own and module_type not in _HEADS:  # a linear layer may be an input's embedding
                return own[1]
            patches = len(place.shape) > 2 and hasattr(place.owner, "out_channels")
            # A convolution embeds an image's patches; a single number is a vector of one.
            return (place.shape or (1,))[0 if patches else -1]
        if is_bias(module_type):  # the fan-in of its weight, where it has one
            weight = self._structure.weight_of(place) if place.is_bias else None
            weight_type = module_type.removesuffix("_bias")
            return (place.shape or (1,))[-1] if weight is None else self.width(weight, weight_type)
        if (both := self._fans(place, module_type)) is None:
            raise CompletedpError(
                f"cannot tell which dimension of {place.name} {list(place.shape)}, in "
                f"{type(place.owner).__name__}, is its fan-in: of weights in blocks only linear "
                "layers, and matrices with one side as wide as the residual stream, are known"
            )
        return both[0]

    def offset(self, place: Place, module_type: str) -> float:
        """What a norm, or a gain that is a module, adds to its stored gain."""
        if is_bias(module_type) or not has_vectors_alone(place.owner):
            return 0.0
        return self._structure.norms.offset(place.owner)

    def _fans(self, place: Place, module_type: str) -> tuple[int, int] | None:
        """Fan-in and fan-out of a matrix, or of each of a stack of experts' matrices.

        Linear layers of torch's tell. Of any other tensor the side as wide as the residual stream
        is the input of what reads it and the output of what writes to it. In attention three
        dimensions are a matrix for each head: heads read the same stream, and what they write is
        summed.
        """
        width = self._structure.width
        if isinstance(place.owner, nn.MultiheadAttention) and len(place.shape) == 2:
            return place.shape[1], place.shape[0]
        if len(place.shape) == 2 and place.key == "weight" and (known := may_be_fans(place.owner)):
            on_stream = (both for both in known if both[module_type in _WRITES] == width)
            is_either = module_type in _READS | _WRITES
            return next(on_stream, known[0]) if is_either else known[0]
        if module_type in _PER_HEAD and len(place.shape) == 3:
            if width is None or place.shape.count(width) != 1:
                return None
            other = math.prod(place.shape) // width
            return (width, other) if module_type in _READS else (other, width)
        if width is None or len(place.shape) not in (2, 3) or width not in place.shape[-2:]:
            return None
        first, second = place.shape[-2:]
        other = first if second == width else second
        return (width, other) if module_type in _READS else (other, width)

    def _fits(self, place: Place, module_type: str) -> bool:
        """Whether a matrix reads or writes the residual stream as its type does."""
        if module_type not in _READS | _WRITES or self._structure.width is None:
            return True
        if isinstance(place.owner, nn.MultiheadAttention):  # whose keys may be of something else
            return True
        both = self._fans(place, module_type)
        return both is not None and both[module_type in _WRITES] == self._structure.width

    def may_be(self, place: Place, module_type: str) -> bool:
        """Whether a tensor has a type's dimensions, and reads and writes as its matrices do."""
        if not _has_dimensions_of(place, module_type):
            return False
        if not MODULE_TYPES[module_type].is_matrix:
            return True
        if module_type in _EMBEDS and self.reads_stream(place):
            return False
        width, own = self._structure.width, fans(place.owner) if place.key == "weight" else None
        if width is None or own is None:  # what is kept of a token is told by not being the stream
            return module_type != "latent_up" and self._fits(place, module_type)
        if module_type == "latent_up":  # from what is kept of a token
            return own[0] != width
        if module_type == "mlp_in" and place.layer is not None and width not in own:
            return True  # between the layer that reads the stream and the one that writes it
        if module_type in _READS | _WRITES:
            return self._fits(place, module_type)
        return own[1] == width  # embeddings

    def _is_per_head(self, norm: Place) -> bool:
        """Whether a query or key norm's gain is shared by the heads: as long as one head is."""
        around = self._structure.modules.get(norm.path.rpartition(".")[0])
        size = getattr(around, "head_dim", None) or self._head_dim
        if isinstance(size, int):
            return norm.shape == (size,)
        if len(set(self._structure.lengths_of_qk_norms(norm))) > 1:
            return False  # heads are of one size, whatever their number
        outputs = {fans(p.owner) for p in self._structure.linears_beside(norm).values()}
        return norm.shape[-1] not in {both[1] for both in outputs if both}

    def _by_shape(self, place: Place) -> str | None:
        """Of two or three linear layers in a branch, what reads and what writes the stream.

        Square ones may do either, and which of a gated feed-forward's two inputs is the gate no
        shape tells. Outside the blocks a convolution that makes the stream embeds patches.
        """
        width, branch = self._structure.width, self._structure.branch(place)
        if place.layer is None and width is not None and len(place.shape) > 2:
            channels = [getattr(place.owner, f"{side}_channels", None) for side in ("in", "out")]
            return "embedding" if channels[1] == width != channels[0] else None
        own = fans(place.owner) if place.layer and place.key == "weight" else None
        if own is None or own[0] == own[1] or width is None:
            return None
        if branch is None:
            return None if place.containers else self._pair_in_block(place, own, width)
        beside = [fans(p.owner) or (0, 0) for p in self._structure.linears_beside(place).values()]
        writers = sum(fan_out == width for _, fan_out in beside)
        readers = sum(fan_in == width != fan_out for fan_in, fan_out in beside)
        if writers != 1 or readers not in (1, 2) or readers + writers != len(beside):
            return None
        if own[1] == width:
            return f"{branch}_out" if branch == "mlp" or readers == 1 else None
        return {"attn": "qkv", "mlp": "mlp_in"}[branch] if readers == 1 else None

    def _pair_in_block(self, place: Place, own: tuple[int, int], width: int) -> str | None:
        """The same of a block's own layers, in no branch's module: what reads the stream and what
        writes it are a feed-forward where they have a size in common that no attention's layer
        has."""
        structure = self._structure
        there = {word: fans(p.owner) for word, p in structure.linears_beside(place).items()}
        said = {word: names.matrix_in_block(word, None, there) for word in there}
        hidden = own[0] if own[1] == width else own[1]
        readers = [word for word, both in there.items() if both == (width, hidden)]
        writers = [word for word, both in there.items() if both == (hidden, width)]
        if len(writers) != 1 or len(readers) not in (1, 2) or width not in own:
            return None
        if any(said[word] in _ATTENTION for word in readers):
            return None
        if own[1] == width:
            return "mlp_out"
        return "mlp_in" if len(readers) == 1 else None

    def _by_name(self, place: Place) -> str | None:
        structure = self._structure
        if place.layer is None:
            kind = names.outside_blocks(place.word)
            is_vector = kind == "output_norm"
            if is_vector and structure.norms_embedding(place.path):
                return None
            is_open = len(may_be_fans(place.owner)) != 1  # no linear layer of torch's, which tells
            if kind is None or (is_open and not is_vector and not self._fits(place, kind)):
                return None
            if kind == "embedding" and self.reads_stream(place):
                return None
            return kind if (len(place.shape) == 1) == is_vector else None
        if len(place.shape) == 1:
            return self._norm_by_name(place)
        kind = names.matrix_in_block(
            place.word, structure.branch(place), structure.words_beside(place)
        )
        if (
            kind in _ATTENTION
            and structure.branch(place) is None
            and structure.has_attention(place)
        ):
            return None  # beside a module of it, and no part of it
        return kind if kind and self._fits(place, kind) else None

    def reads_stream(self, place: Place) -> bool:
        """Whether a linear layer or a convolution takes what is as wide as the stream, where tokens
        have a table."""
        both, table = features(place.owner), self._structure.vocabulary
        return both is not None and table is not None and both[0] == self._structure.width

    def is_between(self, place: Place) -> bool:
        """Whether it gives as much, too, before the blocks or after."""
        width = self._structure.width
        on_stream = self.reads_stream(place) and features(place.owner) == (width, width)
        return on_stream and place.layer is None

    def _norm_by_name(self, place: Place) -> str | None:
        if place.word == "layer_norm" and fans(place.owner):  # Megatron's, fused into what follows
            shape = tuple(place.owner.get_parameter("weight").shape)
            kind, _ = self.decide(replace(place, key="weight", shape=shape)) or (None, None)
            return {"qkv": "attn_norm", "mlp_in": "mlp_norm"}.get(kind or "")
        if place.word == "sinks" and self._structure.branch(place) == "attn":
            return "sink_bias"  # one a head, added to what its softmax divides by
        if not is_norm(place.owner):
            return None
        return names.norm_in_block(place.word, self._structure.norms_beside(place))


def is_constant(parameter: nn.Parameter) -> bool:
    """Whether all of it is one number, as far as can be told here."""
    if parameter.is_meta or hasattr(parameter, "placements") or not parameter.numel():
        return False
    values = parameter.detach()
    return bool((values == values.flatten()[0]).all())


def _own_start(parameter: nn.Parameter) -> float | None:
    """Where a model that was drawn, and not just given memory, starts a tensor throughout."""
    return float(parameter.detach().flatten()[0]) if is_constant(parameter) else None


def _override(name: str, overrides: Mapping[str, str]) -> re.Match[str] | None:
    return next((found for pattern in overrides if (found := re.search(pattern, name))), None)


def _typed(place: Place, module_type: str) -> str:
    """The type that an override gives; of a weight and its bias that it matches, the bias's."""
    if not place.is_bias or is_bias(module_type):
        return module_type
    of_bias = "output_bias" if module_type in _HEADS else f"{module_type}_bias"
    return of_bias if of_bias in MODULE_TYPES else module_type


def _check_dimensions(place: Place, module_type: str, pattern: str) -> None:
    if not _has_dimensions_of(place, module_type):
        are = "matrices" if MODULE_TYPES[module_type].is_matrix else "vectors"
        raise CompletedpError(
            f"override {pattern!r}: {place.name} {list(place.shape)} cannot be of type "
            f"{module_type!r}, whose tensors are {are}"
        )


def _has_dimensions_of(place: Place, module_type: str) -> bool:
    """A matrix cannot be a norm's gain, nor a vector a matrix.

    But experts' biases are stacked, and so are gains of queries and keys that differ by head.
    """
    role, vector = MODULE_TYPES[module_type], len(place.shape) < 2
    stacked = not vector and (is_bias(module_type) or module_type[:6] in ("q_norm", "k_norm"))
    return role.is_matrix != vector or stacked


def _check_used(
    unused: set[str], structure: Structure, *, may_be_shadowed: Mapping[str, str]
) -> None:
    """Every override must be of some tensor; a recipe's may give way to one that is tried first."""
    for pattern in sorted(unused):
        shadowed = any(re.search(pattern, place.name) for place, _ in structure.places())
        if shadowed and pattern in may_be_shadowed:
            continue
        why = "is never the first that matches" if shadowed else "matches no tensor of the model"
        of_recipe = ", and comes with the recipe: it was tuned on another model"
        raise CompletedpError(
            f"override {pattern!r} {why}{of_recipe if pattern in may_be_shadowed else ''}"
        )


def _check_names(tensors: list[TensorInfo]) -> None:
    """Two tensors whose names differ only by what wrappers add would be taken for one."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise CompletedpError(
                f"two tensors are called {tensor.name}, but for {', '.join(names.WRAPPERS)} in "
                "their names, which wrappers add: call a module otherwise"
            )
        seen.add(tensor.name)


def _check_embeddings(tensors: list[TensorInfo]) -> None:
    """What an override calls an embedding must be as wide as the others: the residual stream is."""
    tables = [tensor for tensor in tensors if tensor.embeds_tokens]
    for tensor in tables:
        other = next((each for each in tables if each.width != tensor.width), None)
        if tensor.override is not None and other is not None:
            raise CompletedpError(
                f"{tensor.as_taken} has width {tensor.width}, and {other.as_taken} has width "
                f"{other.width}: both would be the width of the residual stream"
            )


def _check_ends(tensors: list[TensorInfo]) -> None:
    """What ends a residual branch has a multiplier, which is that of its block."""
    has_blocks = any(tensor.layer is not None for tensor in tensors)
    for tensor in tensors:
        if has_blocks and tensor.layer is None and tensor.last_map in BRANCHES:
            raise CompletedpError(
                f"{tensor.as_taken} ends a residual branch, and nothing says of which block: name "
                r"that by a group of the override, as 'encoder\.(?P<layer>\d+)\.attn\.proj' does"
            )


def _layer(given: str, match: re.Match[str]) -> int:
    if not given.isdecimal():
        raise CompletedpError(
            f"override {match.re.pattern!r}: its group `layer` matched {given!r}, not a number"
        )
    return int(given) + 1
