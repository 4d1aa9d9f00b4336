"""Classify: every parameter of a model to its module type, role, layer and width.

The evidence, in this order: the user's overrides; structure (what the modules are and where);
shape (what reads and what writes the residual stream); names. A tensor is known by its canonical
name (what wrappers put in front of it dropped) and by the module that owns it: never by attributes
on the tensor, which sharding, copying and compiling lose. A tensor that nobody can classify is an
error; nothing is left out or given a default in silence.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from completedp.apply import names
from completedp.apply.names import canonical_name
from completedp.apply.structure import Place, Structure, fans, gain_offset, is_norm, unwrapped
from completedp.common.errors import CompletedpError
from completedp.theory.roles import MODULE_TYPES, Role, is_bias

# Matrices that take the residual stream in, and those that add to it.
_READS = {"qkv", "attn_gate", "mlp_in", "mlp_gate", "router", "unembedding"}
_WRITES = {"attn_out", "mlp_out"}
# Settings of a model that scale its layers by depth or its logits by width, with what undoes them.
_OWN_SCALES: dict[str, Callable[[Any], Any]] = {
    "scale_attn_by_inverse_layer_idx": lambda config: False,
    "residual_multiplier": lambda config: 1.0,
    "scale_depth": lambda config: config.num_hidden_layers**0.5,  # MiniCPM's
    "dim_model_base": lambda config: config.hidden_size,
}


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """What is known of one parameter before any hyperparameter is."""

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


def classify(model: nn.Module, overrides: Mapping[str, str] | None = None) -> list[TensorInfo]:
    """Every trainable parameter, in the model's order.

    `overrides` maps regular expressions on canonical names to module types; the first that matches
    wins, before all other evidence, and one that matches nothing is an error. A group named
    `layer` in it gives the block, counted from 0.
    """
    overrides = dict(overrides or {})
    for pattern, module_type in overrides.items():
        _check_override(pattern, module_type)
    every_name = [canonical_name(name) for name, _ in model.named_parameters()]
    structure = Structure(model, {n for n in every_name if _override(n, overrides)})
    _check_not_tied(structure)
    _check_no_readout(structure)
    _warn_of_own_scales(model)
    evidence = Evidence(structure, head_dim=_declared_head_dim(model))
    unused, found, unknown = set(overrides), [], []
    for place, parameter in structure.places():
        if not parameter.requires_grad:
            continue
        layer = place.layer
        if match := _override(place.name, overrides):
            unused.discard(match.re.pattern)
            decision = _typed(place, overrides[match.re.pattern]), "override"
            _check_dimensions(place, decision[0], match.re.pattern)
            if (given := match.groupdict().get("layer")) is not None:
                layer = _layer(given, match)
        else:
            decision = evidence.decide(place)
        if decision is None:
            unknown.append(f"{place.name} {list(place.shape)}")
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
            )
        )
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if unknown[5:] else "")
        raise CompletedpError(
            f"cannot tell the role of {len(unknown)} tensors: {shown}; name a module type for each "
            'with overrides={"regular expression": "type"}, types: ' + ", ".join(MODULE_TYPES)
        )
    if unused:
        pattern = sorted(unused)[0]
        shadowed = any(re.search(pattern, place.name) for place, _ in structure.places())
        why = "is never the first that matches" if shadowed else "matches no tensor of the model"
        raise CompletedpError(f"override {pattern!r} {why}")
    _check_names(found)
    return found


def depth_of(tensors: list[TensorInfo]) -> int:
    """Number of blocks."""
    return max((t.layer for t in tensors if t.layer is not None), default=0)


def size_of(model: nn.Module, overrides: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Width of the residual stream and number of blocks."""
    tensors = classify(model, overrides)
    widths = [t.width for t in tensors if t.type == "embedding"]
    if not widths or not depth_of(tensors):
        raise CompletedpError(f"{type(model).__name__} has no token embedding or no blocks")
    return widths[0], depth_of(tensors)


def head_dim_of(tensors: list[TensorInfo], model: nn.Module) -> int | None:
    """Size of an attention head, where the model tells it: from its config or its QK norms."""
    declared = _declared_head_dim(model)
    if declared is not None:
        return declared
    normed = next((t.width for t in tensors if t.role is Role.QK_NORM), None)
    said = (getattr(module, "head_dim", None) for module in model.modules())
    return normed or next((size for size in said if isinstance(size, int)), None)


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
        self._offsets: dict[type[nn.Module], float] = {}

    def decide(self, place: Place) -> tuple[str, str] | None:
        """The type of a tensor and what decided it; a bias has that of its weight."""
        weight = self._structure.weight_of(place) if place.is_bias else place
        if weight is None:  # a bias of nothing
            return None
        for how, evidence in self._order:
            if (kind := evidence(weight)) is None:
                continue
            if kind in ("q_norm", "k_norm") and not self._is_per_head(place):
                kind, how = f"{kind}_full", "shape"
            if place.is_bias:
                kind = "output_bias" if kind == "unembedding" else f"{kind}_bias"
            return (kind, how) if kind in MODULE_TYPES else None
        return None

    def width(self, place: Place, module_type: str) -> int:
        """A matrix's fan-in, an embedding's dimension, a vector's length.

        A bias on the logits is as long as the vocabulary, which is no width: it counts as 1. Query,
        key and value biases differ in length, apart or fused, so they count as their fan-in.
        """
        if module_type == "output_bias":
            return 1
        weight = self._structure.weight_of(place) if place.is_bias else None
        if module_type == "qkv_bias" and weight is not None:
            return self.width(weight, "qkv")
        if MODULE_TYPES[module_type] not in (Role.HIDDEN_WEIGHT, Role.OUTPUT_WEIGHT):
            own = fans(place.owner) if place.key == "weight" else None
            return own[1] if own else place.shape[-1]  # a linear layer may be an input's embedding
        if (both := self._fans(place, module_type)) is None:
            raise CompletedpError(
                f"cannot tell which dimension of {place.name} {list(place.shape)}, in "
                f"{type(place.owner).__name__}, is its fan-in"
            )
        return both[0]

    def offset(self, place: Place, module_type: str) -> float:
        """What a norm adds to its stored gain; every class is asked once."""
        if is_bias(module_type) or not is_norm(place.owner):
            return 0.0
        kind = type(place.owner)
        if kind not in self._offsets:
            self._offsets[kind] = gain_offset(place.owner)
        return self._offsets[kind]

    def _fans(self, place: Place, module_type: str) -> tuple[int, int] | None:
        """Fan-in and fan-out of a matrix, or of each of a stack of experts' matrices.

        A linear layer tells. Of any other tensor the side as wide as the residual stream is the
        input of what reads it and the output of what writes to it.
        """
        if len(place.shape) == 2 and place.key == "weight" and (known := fans(place.owner)):
            return known
        width = self._structure.width
        if width is None or len(place.shape) not in (2, 3) or width not in place.shape[-2:]:
            return None
        first, second = place.shape[-2:]
        other = first if second == width else second
        return (width, other) if module_type in _READS else (other, width)

    def _fits(self, place: Place, module_type: str) -> bool:
        """Whether a matrix reads or writes the residual stream as its type does."""
        if module_type not in _READS | _WRITES or self._structure.width is None:
            return True
        both = self._fans(place, module_type)
        return both is not None and both[module_type in _WRITES] == self._structure.width

    def _is_per_head(self, norm: Place) -> bool:
        """Whether a query or key norm's gain is shared by the heads: as long as one head is."""
        around = self._structure.modules.get(norm.path.rpartition(".")[0])
        size = getattr(around, "head_dim", None) or self._head_dim
        if isinstance(size, int):
            return norm.shape == (size,)
        outputs = {fans(p.owner) for p in self._structure.linears_beside(norm).values()}
        return norm.shape[-1] not in {both[1] for both in outputs if both}

    def _by_shape(self, place: Place) -> str | None:
        """Of two or three linear layers in a branch, what reads and what writes the stream.

        Square ones may do either, and which of a gated feed-forward's two inputs is the gate no
        shape tells.
        """
        width, branch = self._structure.width, self._structure.branch(place)
        own = fans(place.owner) if place.layer and place.key == "weight" else None
        if own is None or own[0] == own[1] or width is None or branch is None:
            return None
        beside = [fans(p.owner) or (0, 0) for p in self._structure.linears_beside(place).values()]
        writers = sum(fan_out == width for _, fan_out in beside)
        readers = sum(fan_in == width != fan_out for fan_in, fan_out in beside)
        if writers != 1 or readers not in (1, 2) or readers + writers != len(beside):
            return None
        if own[1] == width:
            return f"{branch}_out" if branch == "mlp" or readers == 1 else None
        return {"attn": "qkv", "mlp": "mlp_in"}[branch] if readers == 1 else None

    def _by_name(self, place: Place) -> str | None:
        structure = self._structure
        if place.layer is None:
            kind = names.outside_blocks(place.word)
            is_vector = kind == "output_norm"
            return kind if (len(place.shape) == 1) == is_vector else None
        if len(place.shape) == 1:
            return self._norm_by_name(place)
        kind = names.matrix_in_block(
            place.word, structure.branch(place), structure.words_beside(place)
        )
        return kind if kind and self._fits(place, kind) else None

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


def _declared_head_dim(model: nn.Module) -> int | None:
    """Size of an attention head by the model's config: said, or the width shared by the heads."""
    config = _config_of(model)
    # Of latent attention head_dim is the rotated part alone.
    declared = _setting(config, "qk_head_dim") or _setting(config, "head_dim")
    width = _first_int(config, ("hidden_size", "n_embd", "d_model", "dim"))
    heads = _first_int(config, ("num_attention_heads", "n_head", "n_heads", "num_heads"))
    if isinstance(declared, int):
        return declared
    return width // heads if width and heads else None


def _first_int(config: object, attributes: tuple[str, ...]) -> int | None:
    values = (_setting(config, name) for name in attributes)
    return next((value for value in values if isinstance(value, int)), None)


def _setting(config: object, name: str, default: Any = None) -> Any:
    try:
        return getattr(config, name, default)
    except Exception:  # transformers' answer where it differs from layer to layer
        return default


def _config_of(model: nn.Module) -> object:
    """The model's config; of a model of several parts, that of its language model."""
    config = getattr(unwrapped(model), "config", None)
    text = getattr(config, "get_text_config", None)
    return text() if callable(text) else config


def _check_not_tied(structure: Structure) -> None:
    seen: dict[int, str] = {}
    pairs = []
    for place, parameter in structure.places():
        if id(parameter) in seen:
            pairs.append((place.name, seen[id(parameter)]))
        seen[id(parameter)] = place.name
    if structure.head is not None and structure.head == structure.embedding:
        pairs.append((f"the output head {structure.head}", "the input embedding"))
    if pairs:
        one, other = pairs[0]
        raise CompletedpError(
            f"{one} and {other} are one tensor (tied): the rules for an input embedding and an "
            "output weight differ and one tensor cannot satisfy both; untie them "
            "(tie_word_embeddings=False in a Hugging Face config)"
        )


def _check_no_readout(structure: Structure) -> None:
    for path, module in structure.modules.items():
        if "MuReadout" in (kind.__name__ for kind in type(module).__mro__):
            raise CompletedpError(
                f"{path} is a MuReadout of the mup package, which divides by the width itself, on "
                "top of the plan: make it an nn.Linear (docs/migrating.md)"
            )


def _warn_of_own_scales(model: nn.Module) -> None:
    config = _config_of(model)
    for name, neutral_for in _OWN_SCALES.items():
        value = _setting(config, name)
        if value is not None and value != (neutral := neutral_for(config)):
            warnings.warn(
                f"config.{name} = {value!r}: the model scales itself, on top of the plan, so depth "
                f"or width may count twice; set it to {neutral!r}",
                stacklevel=3,
            )


def _override(name: str, overrides: Mapping[str, str]) -> re.Match[str] | None:
    return next((found for pattern in overrides if (found := re.search(pattern, name))), None)


def _typed(place: Place, module_type: str) -> str:
    """The type that an override gives; of a weight and its bias that it matches, the bias's."""
    if not place.is_bias or is_bias(module_type):
        return module_type
    of_bias = "output_bias" if module_type == "unembedding" else f"{module_type}_bias"
    return of_bias if of_bias in MODULE_TYPES else module_type


def _check_dimensions(place: Place, module_type: str, pattern: str) -> None:
    """A matrix cannot be a norm's gain, nor a vector a matrix.

    But experts' biases are stacked, and so are gains of queries and keys that differ by head.
    """
    role, vector = MODULE_TYPES[module_type], len(place.shape) < 2
    stacked = not vector and (is_bias(module_type) or module_type[:6] in ("q_norm", "k_norm"))
    if role.is_matrix == vector and not stacked:
        raise CompletedpError(
            f"override {pattern!r}: {place.name} {list(place.shape)} cannot be of type "
            f"{module_type!r}, whose tensors are {'matrices' if role.is_matrix else 'vectors'}"
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


def _layer(given: str, match: re.Match[str]) -> int:
    if not given.isdecimal():
        raise CompletedpError(
            f"override {match.re.pattern!r}: its group `layer` matched {given!r}, not a number"
        )
    return int(given) + 1


def _check_override(pattern: str, module_type: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise CompletedpError(
            f"override {pattern!r} is not a regular expression: {error}"
        ) from None
    if module_type not in MODULE_TYPES:
        raise CompletedpError(
            f"override {pattern!r}: unknown module type {module_type!r}: "
            f"choose from {', '.join(MODULE_TYPES)}"
        )
