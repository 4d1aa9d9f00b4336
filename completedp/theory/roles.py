"""Roles: what a tensor is to the theory. Module types: the finer names a search tunes."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """The rows of the paper's Table 1, one name each."""

    INPUT_EMBEDDING = "input_embedding"
    HIDDEN_WEIGHT = "hidden_weight"
    HIDDEN_BIAS = "hidden_bias"
    HIDDEN_NORM = "hidden_norm"
    QK_NORM = "qk_norm"
    OUTPUT_NORM = "output_norm"
    OUTPUT_WEIGHT = "output_weight"
    OUTPUT_BIAS = "output_bias"

    @property
    def is_matrix(self) -> bool:
        """Whether tensors of this role are drawn at random at initialisation."""
        return self in MATRIX_ROLES


MATRIX_ROLES = frozenset({Role.INPUT_EMBEDDING, Role.HIDDEN_WEIGHT, Role.OUTPUT_WEIGHT})

# Every module type has one role. The order is the order of a forward pass, in which tables print.
MODULE_TYPES: dict[str, Role] = {
    "embedding": Role.INPUT_EMBEDDING,
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


def is_bias(module_type: str) -> bool:
    """Whether tensors of this type are added, and so start at 0. A role may hold both kinds."""
    return module_type.endswith("_bias")


# The two residual branches of a block; their multipliers are tuned like a module type's values.
BRANCHES = ("attn", "mlp")
