"""Roles: what a tensor is to the theory, and its facts. Module types: finer names, for a search.

A new role is a line of `Role` with its facts, and its cells in tables.py; nothing else lists roles.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class Width(Enum):
    """Which number of a tensor its rule scales with."""

    FAN_IN = "fan-in"
    """What a matrix reads."""
    OUTPUT = "output dimension"
    """What an embedding gives."""
    LENGTH = "length"
    """A vector's own."""
    HEAD = "size of a head"
    """Never grows, because more width is more heads: the rule goes by the model's width."""
    NONE = "none"
    """As long as the vocabulary, which is no width: the rule goes by the model's width."""

    @property
    def is_the_models(self) -> bool:
        """Whether the rule goes by the width of the model, for want of one of the tensor's own."""
        return self in (Width.HEAD, Width.NONE)


class Role(StrEnum):
    """The rows of the paper's Table 1, one name each, with what is true of all their tensors.

    Two are not in print: an embedding that the logits are made with too (tied), and the bias of an
    embedding that has one, as of an image's patches.

    >>> Role("hidden_weight").is_matrix, Role("hidden_weight").in_blocks
    (True, True)
    >>> Role.QK_NORM.width.is_the_models
    True
    """

    is_matrix: bool
    """Whether tensors of this role are drawn at random at initialisation."""
    in_blocks: bool
    """Whether they are inside blocks, of which there are more in a deeper model."""
    width: Width
    """What their rules scale with."""

    def __new__(cls, name: str, kind: str, place: str, width: Width) -> Role:
        """A member that is equal to its name."""
        role = str.__new__(cls, name)
        role._value_ = name
        role.is_matrix = kind == "matrix"
        role.in_blocks = place == "in blocks"
        role.width = width
        return role

    INPUT_EMBEDDING = "input_embedding", "matrix", "outside", Width.OUTPUT
    INPUT_BIAS = "input_bias", "vector", "outside", Width.LENGTH
    TIED_EMBEDDING = "tied_embedding", "matrix", "outside", Width.OUTPUT
    HIDDEN_WEIGHT = "hidden_weight", "matrix", "in blocks", Width.FAN_IN
    HIDDEN_BIAS = "hidden_bias", "vector", "in blocks", Width.LENGTH
    HIDDEN_NORM = "hidden_norm", "vector", "in blocks", Width.LENGTH
    QK_NORM = "qk_norm", "vector", "in blocks", Width.HEAD
    OUTPUT_NORM = "output_norm", "vector", "outside", Width.LENGTH
    OUTPUT_WEIGHT = "output_weight", "matrix", "outside", Width.FAN_IN
    OUTPUT_BIAS = "output_bias", "vector", "outside", Width.NONE


# Every module type has one role. The order is the order of a forward pass, in which tables print.
MODULE_TYPES: dict[str, Role] = {
    "embedding": Role.INPUT_EMBEDDING,
    "embedding_bias": Role.INPUT_BIAS,
    "tied_embedding": Role.TIED_EMBEDDING,
    "position": Role.INPUT_EMBEDDING,
    "attn_norm": Role.HIDDEN_NORM,
    "attn_norm_bias": Role.HIDDEN_BIAS,
    "qkv": Role.HIDDEN_WEIGHT,
    "qkv_bias": Role.HIDDEN_BIAS,
    "latent_norm": Role.HIDDEN_NORM,
    "latent_norm_bias": Role.HIDDEN_BIAS,
    "latent_up": Role.HIDDEN_WEIGHT,
    "latent_up_bias": Role.HIDDEN_BIAS,
    "q_norm": Role.QK_NORM,
    "q_norm_bias": Role.QK_NORM,
    "k_norm": Role.QK_NORM,
    "k_norm_bias": Role.QK_NORM,
    "q_norm_full": Role.HIDDEN_NORM,
    "q_norm_full_bias": Role.HIDDEN_BIAS,
    "k_norm_full": Role.HIDDEN_NORM,
    "k_norm_full_bias": Role.HIDDEN_BIAS,
    "sink_bias": Role.HIDDEN_BIAS,
    "attn_gate": Role.HIDDEN_WEIGHT,
    "attn_gate_bias": Role.HIDDEN_BIAS,
    "attn_out": Role.HIDDEN_WEIGHT,
    "attn_out_bias": Role.HIDDEN_BIAS,
    "attn_post_norm": Role.HIDDEN_NORM,
    "attn_post_norm_bias": Role.HIDDEN_BIAS,
    "mlp_norm": Role.HIDDEN_NORM,
    "mlp_norm_bias": Role.HIDDEN_BIAS,
    "router": Role.HIDDEN_WEIGHT,
    "router_bias": Role.HIDDEN_BIAS,
    "mlp_in": Role.HIDDEN_WEIGHT,
    "mlp_in_bias": Role.HIDDEN_BIAS,
    "mlp_gate": Role.HIDDEN_WEIGHT,
    "mlp_gate_bias": Role.HIDDEN_BIAS,
    "mlp_out": Role.HIDDEN_WEIGHT,
    "mlp_out_bias": Role.HIDDEN_BIAS,
    "mlp_post_norm": Role.HIDDEN_NORM,
    "mlp_post_norm_bias": Role.HIDDEN_BIAS,
    "output_norm": Role.OUTPUT_NORM,
    "output_norm_bias": Role.OUTPUT_NORM,
    "unembedding": Role.OUTPUT_WEIGHT,
    "output_bias": Role.OUTPUT_BIAS,
}


def width_of_type(module_type: str) -> Width:
    """What a type's tensors scale with: as its role does, but for one.

    Biases of queries, keys and values differ in length, apart or fused: they go by their fan-in.
    """
    return Width.FAN_IN if module_type == "qkv_bias" else MODULE_TYPES[module_type].width


def is_bias(module_type: str) -> bool:
    """Whether tensors of this type are added, and so start at 0. A role may hold both kinds."""
    return module_type.endswith("_bias")


# The two residual branches of a block; their multipliers are tuned like a module type's values.
BRANCHES = ("attn", "mlp")
