"""Coordinate and gradient checks on Hugging Face models, over x8 in width and in depth.

    python benchmarks/model_checks.py [--out FOLDER] [--models llama qwen3 gpt2 deepseek gpt_oss]

Tiny Llama, Qwen3 and GPT-2 (untied), made from their configs, as `completedp coordcheck --model
benchmarks.model_checks:llama` would: with the rules every check passes, without (`sp`) both fail.
DeepSeek V3 and gpt-oss are measured when asked for: gpt-oss's routers fail, having no rule.
Prints the table of docs/results/models.md; a few minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torch import nn

from completedp.theory.scale import Scale

HEAD_DIM = 16


def llama(scale: Scale) -> nn.Module:
    """Grouped queries, and a feed-forward layer of 8/3 of the width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(scale), attn_implementation="sdpa"))


def qwen3(scale: Scale) -> nn.Module:
    """Norms of queries and keys, per head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_sizes(scale), attn_implementation="sdpa"))


def gpt2(scale: Scale) -> nn.Module:
    """Biases, layer norms, learnt positions and transposed weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes: dict[str, Any] = {
        "n_embd": scale.width,
        "n_layer": scale.depth,
        "n_head": scale.width // HEAD_DIM,
    }
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, **dropout, vocab_size=257, n_positions=64, tie_word_embeddings=False)
    )


def deepseek(scale: Scale) -> nn.Module:
    """DeepSeek V3's latent attention, the latents growing with the width; no experts."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    latent = {
        "q_lora_rank": scale.width // 2,
        "kv_lora_rank": scale.width // 4,
        "v_head_dim": HEAD_DIM,
    }
    latent |= {"qk_rope_head_dim": HEAD_DIM // 2, "qk_nope_head_dim": HEAD_DIM // 2}
    own = ("num_key_value_heads", "head_dim")
    sizes = {name: size for name, size in _sizes(scale).items() if name not in own}
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(**sizes, **latent, first_k_dense_replace=scale.depth, pad_token_id=None)
    )


def gpt_oss(scale: Scale) -> nn.Module:
    """Attention sinks, and four experts of which all are used: routing to some is not smooth."""
    from transformers import GptOssConfig, GptOssForCausalLM

    experts = dict.fromkeys(("num_local_experts", "num_experts_per_tok"), 4)
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    sizes = _sizes(scale) | {"intermediate_size": 2 * scale.width}
    return GptOssForCausalLM(
        GptOssConfig(**sizes, **experts, rope_parameters=rope, pad_token_id=None)
    )


def _sizes(scale: Scale) -> dict[str, Any]:
    heads = scale.width // HEAD_DIM
    return {
        "hidden_size": scale.width,
        "num_hidden_layers": scale.depth,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": HEAD_DIM,
        "intermediate_size": round(8 / 3 * scale.width),
        "vocab_size": 257,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "use_cache": False,
    }


MODELS = {make.__name__: make for make in (llama, qwen3, gpt2, deepseek, gpt_oss)}


def main() -> None:
    """Check each, and print how far slopes are from theory."""
    from completedp.evidence.check import make_check
    from completedp.evidence.config import CheckSettings
    from completedp.evidence.run import COORDCHECK, GRADCHECK, judge, measure_all

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["llama", "qwen3", "gpt2"], choices=MODELS)
    args = parser.parse_args()
    print("| model | rules | check | axis | rows | failed | farthest from theory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in args.models:
        settings = CheckSettings(parameterisations=("completedp", "sp"), seeds=args.seeds)
        check = make_check(MODELS[name], settings=settings)
        measurements = measure_all(check)
        for result in (judge(each, check, measurements) for each in (COORDCHECK, GRADCHECK)):
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                path = args.out / f"{name}-{result.check}.json"
                path.write_text(json.dumps(result.to_dict(), indent=1))
            for rules in check.parameterisations:
                for axis in ("width", "depth"):
                    rows = [r for r in result.rows if (r.parameterisation, r.axis) == (rules, axis)]
                    rows = [r for r in rows if r.values and r.verdict != "known"]
                    far = max(rows, key=lambda r: abs(r.slope - r.expected))
                    failed = sum(r.verdict == "fail" for r in rows)
                    print(
                        f"| {name} | {rules} | {result.check} | {axis} | {len(rows)} | {failed} | "
                        f"{far.quantity} of {far.what}: {far.slope:+.2f} for {far.expected:+.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
