"""Settings: what a model's config and modules say of it: the head's size, factors of its own.

A factor that a model has in its forward pass is part of what was tuned at base. Where it is another
one at the target, the model is another one too, on top of every rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from completedp.apply.names import canonical_name
from completedp.apply.structure import unwrapped
from completedp.common.checks import is_finite

# Numbers, or lists of numbers, in the configs of transformers' families, by what they multiply.
_FACTORS = (
    *("embedding_multiplier", "scale_emb"),  # embeddings: Granite, Falcon-H1; MiniCPM
    *("logit_scale", "logits_scaling", "lm_head_multiplier"),  # logits: Cohere; Granite; Falcon-H1
    *("output_multiplier", "logits_mup_width_multiplier"),  # logits
    *("final_logit_softcapping", "attn_logit_softcapping"),  # Gemma 2
    *("attention_multiplier", "query_pre_attn_scalar"),  # attention's logits: Granite; Gemma
    *("key_multiplier", "attention_in_multiplier", "attention_out_multiplier"),  # Falcon-H1
    *("mlp_multipliers", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier"),
    *("residual_multiplier", "residual_scale", "routed_scaling_factor"),  # branches; experts
)
# Factors that a family works out from a setting and a size.
_DERIVED: dict[str, Callable[[Any], float]] = {
    "dim_model_base / hidden_size": lambda c: c.dim_model_base / c.hidden_size,
    "scale_depth / sqrt(num_hidden_layers)": lambda c: (
        c.scale_depth / math.sqrt(c.num_hidden_layers)
    ),
}
_EXPERTS_A_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k")
# What multiplies a family's logits, by model_type: the setting, and 1, or -1 where it divides them.
_LOGIT_SCALES = {
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), ("logit_scale", 1)),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), ("logits_scaling", -1)),
    **dict.fromkeys(("granitemoehybrid", "granitemoe_swa"), ("logits_scaling", -1)),
}


def config_of(model: nn.Module) -> object:
    """The model's config; of a model of several parts, that of its language model."""
    config = getattr(unwrapped(model), "config", None)
    text = getattr(config, "get_text_config", None)
    return text() if callable(text) else config


def setting(config: object, name: str, default: Any = None) -> Any:
    """A setting, where the config has it."""
    try:
        return getattr(config, name, default)
    except Exception:  # transformers' answer where it differs from layer to layer
        return default


def declared_head_dim(model: nn.Module) -> int | None:
    """Size of an attention head by the model's config: said, or the width shared by the heads."""
    config = config_of(model)
    # Of latent attention head_dim is the rotated part alone.
    declared = setting(config, "qk_head_dim") or setting(config, "head_dim")
    width = _first_int(config, ("hidden_size", "n_embd", "d_model", "dim"))
    heads = _first_int(config, ("num_attention_heads", "n_head", "n_heads", "num_heads"))
    if isinstance(declared, int):
        return declared
    return width // heads if width and heads else None


def forward_constants(model: nn.Module) -> dict[str, float]:
    """What a model's own forward pass multiplies by: its config's factors, its embeddings' scales.

    A factor in a module is named by the module alone, so that a model within another has the same.
    """
    config = config_of(model)
    found: dict[str, float] = {}
    for name in _FACTORS:
        value = setting(config, name)
        if isinstance(value, list | tuple):
            found |= {f"config.{name}.{n}": float(x) for n, x in enumerate(value) if is_finite(x)}
        elif is_finite(value):
            found[f"config.{name}"] = float(value)
    for name, factor in _DERIVED.items():
        try:
            found[f"config.{name}"] = float(factor(config))
        except Exception:  # no such setting
            continue
    for path, scale in embedding_scales(model).items():
        found[last_names(path)] = scale
    return found


def experts_a_token(said: Iterable[object]) -> int | None:
    """How many experts a token goes to, by the first of some modules or configs that says it."""
    found = (_first_int(each, _EXPERTS_A_TOKEN) for each in said)
    return next((count for count in found if count is not None), None)


def is_same_constant(one: float, other: float) -> bool:
    """Whether two constants are one but for bfloat16."""
    return math.isclose(one, other, rel_tol=4e-3)


def last_names(path: str) -> str:
    """An attribute and its module, without where that is: a model within another has the same."""
    return ".".join(path.split(".")[-2:])


def logit_scale(model: nn.Module) -> tuple[str, int] | None:
    """The model's own setting for the size of its logits, and its power in them; None without."""
    return _LOGIT_SCALES.get(setting(config_of(model), "model_type", ""))


def set_everywhere(model: nn.Module, name: str, value: float) -> None:
    """Set what a config says, with the copies that modules keep of it."""
    setattr(config_of(model), name, value)
    for module in model.modules():
        if is_finite(module.__dict__.get(name)):
            setattr(module, name, value)


def embedding_scales(model: nn.Module) -> dict[str, float]:
    """What modules called embeddings multiply by, by path: Gemma's is sqrt(width)."""
    scales = ((path, embedding_scale(module)) for path, module in model.named_modules())
    return {
        canonical_name(f"{path}.embed_scale"): scale
        for path, scale in scales
        if scale is not None and scale != 1
    }


def embedding_scale(module: nn.Module) -> float | None:
    """What a module says that it multiplies embeddings by."""
    scale = getattr(module, "embed_scale", None)
    if isinstance(scale, torch.Tensor):
        scale = None if scale.is_meta or scale.numel() != 1 else float(scale)
        scale = scale or getattr(module, "scalar_embed_scale", None)
    return float(scale) if is_finite(scale) else None


def _first_int(config: object, attributes: tuple[str, ...]) -> int | None:
    values = (setting(config, name) for name in attributes)
    return next((value for value in values if isinstance(value, int)), None)
