"""Coordinate and gradient checks on Hugging Face models, over x4 in width and in depth.

    python benchmarks/model_checks.py [--models llama qwen3 gpt2 deepseek gpt_oss ...]

Tiny Llama, Qwen3, GPT-2 and Gemma (untied, and as they come with tied embeddings), DeepSeek V3 and
gpt-oss, from their configs; `completedp coordcheck --model benchmarks.model_checks:llama` is one.
What was measured is in data/model-checks.json.xz, and the table in docs/results/checks.md is made
of it by `make docs`. A few minutes on two CPU cores; it goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torch import nn

from completedp.evidence.config import CheckSettings
from completedp.theory.scale import Scale

DATA = Path(__file__).parent / "data" / "model-checks.json.xz"
HEAD_DIM = 16


def llama(scale: Scale, *, tied: bool = False) -> nn.Module:
    """Grouped queries, and a feed-forward layer of 8/3 of the width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(scale, tied), attn_implementation="sdpa"))


def llama_tied(scale: Scale) -> nn.Module:
    """As Llama 3.2 1B comes."""
    return llama(scale, tied=True)


def qwen3(scale: Scale, *, tied: bool = False) -> nn.Module:
    """Norms of queries and keys, per head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_sizes(scale, tied), attn_implementation="sdpa"))


def qwen3_tied(scale: Scale) -> nn.Module:
    """As Qwen3 0.6B comes."""
    return qwen3(scale, tied=True)


def gemma(scale: Scale, *, tied: bool = False) -> nn.Module:
    """Embeddings times sqrt(width), and norms that store gain - 1."""
    from transformers import GemmaConfig, GemmaForCausalLM

    sizes = {"pad_token_id": None, "attn_implementation": "sdpa"}
    return GemmaForCausalLM(GemmaConfig(**_sizes(scale, tied), **sizes))


def gemma_tied(scale: Scale) -> nn.Module:
    """As Gemma 2B comes."""
    return gemma(scale, tied=True)


def gpt2_tied(scale: Scale) -> nn.Module:
    """As GPT-2 comes."""
    return gpt2(scale, tied=True)


def gpt2(scale: Scale, *, tied: bool = False) -> nn.Module:
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
        GPT2Config(**sizes, **dropout, vocab_size=257, n_positions=64, tie_word_embeddings=tied)
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


def _sizes(scale: Scale, tied: bool = False) -> dict[str, Any]:
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
        "tie_word_embeddings": tied,
        "use_cache": False,
    }


MODELS = {
    make.__name__: make
    for make in (
        *(llama, qwen3, gpt2, gemma, deepseek, gpt_oss),
        *(llama_tied, qwen3_tied, gpt2_tied, gemma_tied),
    )
}


def run(names: list[str]) -> None:
    """Measure each that the file does not have."""
    from measured import packed, read, write

    from completedp.evidence.check import make_check
    from completedp.evidence.scaling import sweep

    data = read(DATA)
    for name in names:
        check = make_check(MODELS[name], settings=_settings())
        for rules in check.rules:
            for axis in check.axes:
                kept = data.setdefault(name, {})
                key = f"{rules.parameterisation} {axis}"
                if key not in kept:
                    print(name, key, flush=True)
                    kept[key] = packed(sweep(check, rules, axis))
                    write(DATA, data)


def _settings() -> CheckSettings:
    return CheckSettings(
        widths=(64, 128, 256), depths=(2, 4, 8), batch=512, parameterisations=("completedp", "sp")
    )


def table(data: dict[str, Any]) -> str:
    """Markdown: how far slopes are from theory."""
    from measured import unpacked

    from completedp.evidence.coordcheck import coordinate_rows
    from completedp.evidence.gradcheck import gradient_rows

    lines = ["| model | rules | check | axis | rows | failed | farthest from theory |"]
    lines.append("| --- " * 7 + "|")
    checks = {"coordcheck": coordinate_rows, "gradcheck": gradient_rows}
    for name in (name for name in MODELS if name in data):
        for rules in ("completedp", "sp"):
            for check, judge in checks.items():
                for axis in ("width", "depth"):
                    found = unpacked(data[name][f"{rules} {axis}"])
                    rows = judge(found)
                    rows = [row for row in rows if row.verdict != "known"]
                    far = max(rows, key=lambda row: abs(row.slope - row.expected))
                    failed = sum(row.verdict == "fail" for row in rows)
                    lines.append(
                        f"| {name} | {rules} | {check} | {axis} | {len(rows)} | {failed} | "
                        f"{far.quantity} of {far.what}: {far.slope:+.2f} for {far.expected:+.2f} |"
                    )
    return "\n".join(lines)


def main() -> None:
    """Measure what is not measured yet, and print how far slopes are from theory."""
    from measured import read

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    run(parser.parse_args().models)
    print(table(read(DATA)))


if __name__ == "__main__":
    main()
