"""Classify: every parameter of a model to its module type, role, layer and width.

A tensor is known by its canonical name (what wrappers put in front of it dropped) and by the
module that owns it: never by attributes on the tensor, which sharding, copying and compiling lose.
A tensor that nobody can classify is an error; nothing is left out or given a default in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from completedp.theory.errors import CompletedpError
from completedp.theory.roles import MODULE_TYPES, Role

# What torch.compile, DistributedDataParallel, FSDP and activation checkpointing put into names.
_WRAPPERS = re.compile(
    r"(?<![^.])(?:_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)

# Canonical name -> module type, first match wins. LAYER stands for a block's index.
_LAYER = r"(?:^|\.)(?:blocks|layers|h)\.(?P<layer>\d+)\."
PATTERNS: tuple[tuple[str, str], ...] = (
    (r"^embedding\.weight$", "embedding"),
    (_LAYER + r"attn_norm\.weight$", "attn_norm"),
    (_LAYER + r"attn\.qkv\.weight$", "qkv"),
    (_LAYER + r"attn\.qkv\.bias$", "qkv_bias"),
    (_LAYER + r"attn\.q_norm\.weight$", "q_norm"),
    (_LAYER + r"attn\.k_norm\.weight$", "k_norm"),
    (_LAYER + r"attn\.out\.weight$", "attn_out"),
    (_LAYER + r"attn\.out\.bias$", "attn_out_bias"),
    (_LAYER + r"mlp_norm\.weight$", "mlp_norm"),
    (_LAYER + r"mlp\.up\.weight$", "mlp_in"),
    (_LAYER + r"mlp\.up\.bias$", "mlp_in_bias"),
    (_LAYER + r"mlp\.gate\.weight$", "mlp_gate"),
    (_LAYER + r"mlp\.gate\.bias$", "mlp_gate_bias"),
    (_LAYER + r"mlp\.down\.weight$", "mlp_out"),
    (_LAYER + r"mlp\.down\.bias$", "mlp_out_bias"),
    (r"^output_norm\.weight$", "output_norm"),
    (r"^unembedding\.weight$", "unembedding"),
    (r"^unembedding\.bias$", "output_bias"),
)


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
    """What decided: `name` or `override`."""


def canonical_name(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    return _WRAPPERS.sub("", name)


def classify(model: nn.Module, overrides: Mapping[str, str] | None = None) -> list[TensorInfo]:
    """Every trainable parameter, in the model's order.

    `overrides` maps regular expressions on canonical names to module types; the first that matches
    wins, before the built-in names, and one that matches nothing is an error.
    """
    overrides = dict(overrides or {})
    for pattern, module_type in overrides.items():
        _check_override(pattern, module_type)
    unused, found, unknown = set(overrides), [], []
    for name, owner, shape in _parameters(model):
        match = _match(name, overrides)
        if match is None:
            unknown.append(f"{name} {list(shape)}")
            continue
        module_type, layer, pattern = match
        unused.discard(pattern)
        found.append(
            TensorInfo(
                name=name,
                type=module_type,
                role=MODULE_TYPES[module_type],
                layer=layer,
                shape=shape,
                width=_width(owner, shape, MODULE_TYPES[module_type]),
                how="override" if pattern in overrides else "name",
            )
        )
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if unknown[5:] else "")
        raise CompletedpError(
            f"cannot tell the role of {len(unknown)} tensors: {shown}; name a module type for each "
            'with overrides={"regular expression": "type"}, types: ' + ", ".join(MODULE_TYPES)
        )
    if unused:
        raise CompletedpError(f"override {sorted(unused)[0]!r} matches no tensor of the model")
    return found


def depth_of(tensors: list[TensorInfo]) -> int:
    """Number of blocks."""
    return max((t.layer for t in tensors if t.layer is not None), default=0)


def head_dim_of(tensors: list[TensorInfo], model: nn.Module) -> int | None:
    """Size of an attention head, where the model tells it: from its config or its QK norms."""
    declared = getattr(getattr(unwrapped(model), "config", None), "head_dim", None)
    if isinstance(declared, int):
        return declared
    return next((t.width for t in tensors if t.role is Role.QK_NORM), None)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's or DistributedDataParallel's wrapper."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Canonical name, owner and shape of every trainable parameter; tied ones are an error."""
    seen: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            name = canonical_name(f"{prefix}.{key}" if prefix else key)
            if id(parameter) in seen:
                raise CompletedpError(
                    f"{name} and {seen[id(parameter)]} are one tensor (tied): the rules for an "
                    "input embedding and an output weight differ and one tensor cannot satisfy "
                    "both; untie them"
                )
            seen[id(parameter)] = name
            if parameter.requires_grad:
                yield name, module, tuple(parameter.shape)


def _match(name: str, overrides: Mapping[str, str]) -> tuple[str, int | None, str] | None:
    for pattern, module_type in (*overrides.items(), *PATTERNS):
        if match := re.search(pattern, name):
            layer = match.groupdict().get("layer")
            if layer is None and (block := re.search(_LAYER, name)):
                layer = block["layer"]
            return module_type, None if layer is None else int(layer) + 1, pattern
    return None


def _width(owner: nn.Module, shape: tuple[int, ...], role: Role) -> int:
    """An embedding is [vocabulary, width] and a linear layer [out, in]: the last dimension.

    A bias on the logits is as long as the vocabulary, which is no width: it counts as 1.
    """
    if role is Role.OUTPUT_BIAS:
        return 1
    if isinstance(owner, nn.Linear | nn.Embedding) or len(shape) == 1:
        return shape[-1]
    raise CompletedpError(
        f"cannot tell which dimension of {type(owner).__name__}'s {list(shape)} is its fan-in"
    )


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
