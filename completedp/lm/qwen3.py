"""The reference model as an ordinary Qwen3 checkpoint, for whatever reads those.

With SwiGLU, QK norms and no biases the two are one function: both rotate halves, norm each head's
queries and keys with gains that the heads share, and add 1e-6 in every norm. Qwen3 has no
multipliers; those that the model keeps in buffers are multiplied into the weights here.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from completedp.apply.structure import unwrapped
from completedp.common.errors import CompletedpError
from completedp.common.extras import import_extra
from completedp.lm.transformer import RMSNorm, Transformer

_ENDS = {
    "embedding": "model.embed_tokens",
    "output_norm": "model.norm",
    "unembedding": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def save_as_qwen3(model: nn.Module, folder: str | Path, *, context: int = 32_768) -> None:
    """Write config.json and model.safetensors, in the type that the model's weights have.

    `context` is the longest sequence that the config promises; the model itself knows no limit.
    """
    inner = unwrapped(model)
    if not isinstance(inner, Transformer):
        raise CompletedpError(
            f"only the reference model can be saved as Qwen3, not {type(inner).__name__}"
        )
    if Path(folder).exists() and not Path(folder).is_dir():
        raise CompletedpError(f"cannot save as Qwen3: {str(folder)!r} is not a folder")
    if reason := _reason_against(inner):
        raise CompletedpError(f"cannot save as Qwen3: {reason}")
    hf = import_extra("transformers", "saving as Qwen3")
    config = inner.config
    settings = hf.Qwen3Config(
        vocab_size=config.vocab,
        hidden_size=config.width,
        intermediate_size=config.hidden,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.head_dim,
        max_position_embeddings=context,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=False,
        dtype=inner.embedding.weight.dtype,
    )
    with torch.device("meta"):
        shell = hf.Qwen3ForCausalLM(settings)
    shell.load_state_dict(_weights(inner), assign=True)
    shell.save_pretrained(folder)


def _reason_against(model: Transformer) -> str | None:
    """Why Qwen3 cannot hold the model, if it cannot."""
    config = model.config
    if config.mlp != "swiglu":
        return f'its feed-forward is {config.mlp}, and Qwen3\'s is mlp="swiglu"'
    if config.bias or config.output_bias:
        return "it has biases, and Qwen3 has none"
    if not config.qk_norm:
        return "it has no QK norms, and Qwen3 has them"
    for name, module in model.named_modules():
        if name.endswith("norm") and type(module) is not RMSNorm:
            return f"{name} is a {type(module).__name__}, and Qwen3's norms are RMS norms"
        if module._forward_hooks or module._forward_pre_hooks:
            return (
                f"{name or 'the model'} has a forward hook, which no checkpoint holds: plan with "
                'multipliers="fold"'
            )
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter or parameter.is_meta:
            return f"{name} is sharded or on the meta device: gather the weights first"
    return None


def _weights(model: Transformer) -> dict[str, Tensor]:
    """The weights by Qwen3's names. Queries, keys and values are matrices of their own there."""
    pairs = dict(_ENDS)
    weights = {}
    for layer in range(model.config.depth):
        block, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        pairs |= {f"{block}.{a}": f"{theirs}.{b}" for a, b in _BLOCK.items()}
        qkv = model.get_parameter(f"{block}.attn.qkv.weight").detach()
        for letter, part in zip("qkv", qkv.chunk(3), strict=True):
            weights[f"{theirs}.self_attn.{letter}_proj.weight"] = part.clone()
    multipliers = {"unembedding": model.output_multiplier}
    for layer, (attn, mlp) in enumerate(model.residual_multipliers):
        multipliers |= {f"blocks.{layer}.attn.out": attn, f"blocks.{layer}.mlp.down": mlp}
    for ours, name in pairs.items():
        weight = model.get_parameter(f"{ours}.weight").detach()
        if ours in multipliers and multipliers[ours] != 1:
            wide = torch.promote_types(weight.dtype, torch.float32)
            weight = (weight.to(wide) * multipliers[ours].to(wide)).to(weight.dtype)
        weights[f"{name}.weight"] = weight
    return weights
