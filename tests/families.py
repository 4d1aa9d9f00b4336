"""Small models of the families that people train, and what each of their tensors is, by hand."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

# Sizes that differ from one another, so that no width can be right by accident.
D, F, V, HEADS, KV, HEAD, EXPERTS, DEPTH = 64, 176, 112, 4, 2, 24, 5, 3
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
GROUPED = SIZES | {"num_key_value_heads": KV}
OWN_HEAD = GROUPED | {"head_dim": HEAD}
LATENT = {
    "q_lora_rank": 40,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
GPT2_SIZES = {
    "vocab_size": V,
    "n_embd": D,
    "n_inner": F,
    "n_layer": DEPTH,
    "n_head": HEADS,
    "n_positions": 32,
    "tie_word_embeddings": False,
}


def hugging_face(family: str, **options: Any) -> nn.Module:
    """A small model of a transformers family on the meta device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        config = CONFIG_MAPPING[family](**options)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)


Kinds = dict[str, tuple[str, str, int]]
"""A tensor's name, N standing for a block's number, to its type, role and width."""


def embedding(name: str, kind: str = "embedding") -> Kinds:
    return {f"{name}.weight": (kind, "input_embedding", D)}


def head(name: str = "lm_head", *, bias: bool = False) -> Kinds:
    found: Kinds = {f"{name}.weight": ("unembedding", "output_weight", D)}
    return found | ({f"{name}.bias": ("output_bias", "output_bias", 1)} if bias else {})


def output_norm(name: str, *, bias: bool = False) -> Kinds:
    found: Kinds = {f"{name}.weight": ("output_norm", "output_norm", D)}
    return found | ({f"{name}.bias": ("output_norm_bias", "output_norm", D)} if bias else {})


def norm(name: str, kind: str, *, bias: bool = False, width: int = D) -> Kinds:
    role = "qk_norm" if kind in ("q_norm", "k_norm") else "hidden_norm"
    found: Kinds = {f"{name}.weight": (kind, role, width)}
    return found | ({f"{name}.bias": (f"{kind}_bias", "hidden_bias", D)} if bias else {})


def linear(name: str, kind: str, fan_in: int, bias: int | None = None) -> Kinds:
    """`bias` is the width of its bias, where it has one."""
    found: Kinds = {f"{name}.weight": (kind, "hidden_weight", fan_in)}
    return found | ({f"{name}.bias": (f"{kind}_bias", "hidden_bias", bias)} if bias else {})


def in_block(prefix: str, *parts: Kinds) -> Kinds:
    return {f"{prefix}.N.{name}": what for part in parts for name, what in part.items()}


def llama_attention(heads_width: int = HEADS * HEAD, bias: int | None = None) -> Kinds:
    """`bias` is the width of the biases on queries, keys and values, where there are some."""
    kinds = linear("self_attn.o_proj", "attn_out", heads_width)
    for letter in "qkv":
        kinds |= linear(f"self_attn.{letter}_proj", "qkv", D, bias)
    return kinds


LLAMA_ENDS = embedding("model.embed_tokens") | output_norm("model.norm") | head()
LLAMA_MLP = {
    **linear("mlp.gate_proj", "mlp_gate", D),
    **linear("mlp.up_proj", "mlp_in", D),
    **linear("mlp.down_proj", "mlp_out", F),
}
LLAMA_NORMS = {
    **norm("input_layernorm", "attn_norm"),
    **norm("post_attention_layernorm", "mlp_norm"),
}
QK_NORMS = {
    **norm("self_attn.q_norm", "q_norm", width=HEAD),
    **norm("self_attn.k_norm", "k_norm", width=HEAD),
}
EXPERT_MLP: Kinds = {
    "mlp.gate.weight": ("router", "hidden_weight", D),
    "mlp.experts.gate_up_proj": ("mlp_in", "hidden_weight", D),
    "mlp.experts.down_proj": ("mlp_out", "hidden_weight", F),
}
LLAMA = LLAMA_ENDS | in_block("model.layers", llama_attention(), LLAMA_MLP, LLAMA_NORMS)
QWEN3 = LLAMA | in_block("model.layers", QK_NORMS)

FAMILIES: dict[str, tuple[dict[str, Any], Kinds]] = {
    "gpt2": (
        GPT2_SIZES,
        {
            **embedding("transformer.wte"),
            **embedding("transformer.wpe", "position"),
            **in_block(
                "transformer.h",
                norm("ln_1", "attn_norm", bias=True),
                linear("attn.c_attn", "qkv", D, D),
                linear("attn.c_proj", "attn_out", D, D),
                norm("ln_2", "mlp_norm", bias=True),
                linear("mlp.c_fc", "mlp_in", D, F),
                linear("mlp.c_proj", "mlp_out", F, D),
            ),
            **output_norm("transformer.ln_f", bias=True),
            **head(),
        },
    ),
    "gpt_neox": (
        SIZES,
        {
            **embedding("gpt_neox.embed_in"),
            **in_block(
                "gpt_neox.layers",
                norm("input_layernorm", "attn_norm", bias=True),
                norm("post_attention_layernorm", "mlp_norm", bias=True),
                linear("attention.query_key_value", "qkv", D, D),
                linear("attention.dense", "attn_out", D, D),
                linear("mlp.dense_h_to_4h", "mlp_in", D, F),
                linear("mlp.dense_4h_to_h", "mlp_out", F, D),
            ),
            **output_norm("gpt_neox.final_layer_norm", bias=True),
            **head(),
        },
    ),
    "llama": (OWN_HEAD, LLAMA),
    "mistral": (OWN_HEAD, LLAMA),
    "qwen2": (
        GROUPED,
        LLAMA_ENDS | in_block("model.layers", llama_attention(D, D), LLAMA_MLP, LLAMA_NORMS),
    ),
    "qwen3": (OWN_HEAD, QWEN3),
    "olmo2": (
        GROUPED,
        LLAMA_ENDS
        | in_block(
            "model.layers",
            llama_attention(D),
            LLAMA_MLP,
            norm("self_attn.q_norm", "q_norm_full"),
            norm("self_attn.k_norm", "k_norm_full", width=KV * D // HEADS),
            norm("post_attention_layernorm", "attn_post_norm"),
            norm("post_feedforward_layernorm", "mlp_post_norm"),
        ),
    ),
    "gemma3_text": (
        OWN_HEAD,
        LLAMA_ENDS
        | in_block(
            "model.layers",
            llama_attention(),
            LLAMA_MLP,
            QK_NORMS,
            norm("input_layernorm", "attn_norm"),
            norm("post_attention_layernorm", "attn_post_norm"),
            norm("pre_feedforward_layernorm", "mlp_norm"),
            norm("post_feedforward_layernorm", "mlp_post_norm"),
        ),
    ),
    "phi": (
        GROUPED,
        {
            **embedding("model.embed_tokens"),
            **in_block(
                "model.layers",
                *(linear(f"self_attn.{letter}_proj", "qkv", D, D) for letter in "qkv"),
                linear("self_attn.dense", "attn_out", D, D),
                linear("mlp.fc1", "mlp_in", D, F),
                linear("mlp.fc2", "mlp_out", F, D),
                norm("input_layernorm", "attn_norm", bias=True),
            ),
            **output_norm("model.final_layernorm", bias=True),
            **head(bias=True),
        },
    ),
    "gpt_oss": (
        OWN_HEAD
        | {
            "num_local_experts": EXPERTS,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default"},
        },
        LLAMA_ENDS
        | in_block(
            "model.layers",
            llama_attention(bias=D),
            {"self_attn.o_proj.bias": ("attn_out_bias", "hidden_bias", D)},
            {"self_attn.sinks": ("sink_bias", "hidden_bias", HEADS)},
            linear("mlp.router", "router", D, EXPERTS),
            {
                "mlp.experts.gate_up_proj": ("mlp_in", "hidden_weight", D),
                "mlp.experts.gate_up_proj_bias": ("mlp_in_bias", "hidden_bias", 2 * F),
                "mlp.experts.down_proj": ("mlp_out", "hidden_weight", F),
                "mlp.experts.down_proj_bias": ("mlp_out_bias", "hidden_bias", D),
            },
            LLAMA_NORMS,
        ),
    ),
    "deepseek_v3": (
        SIZES | LATENT | {"first_k_dense_replace": DEPTH},
        LLAMA_ENDS
        | in_block(
            "model.layers",
            linear("self_attn.q_a_proj", "qkv", D),
            norm("self_attn.q_a_layernorm", "latent_norm", width=40),
            linear("self_attn.q_b_proj", "latent_up", 40),
            linear("self_attn.kv_a_proj_with_mqa", "qkv", D),
            norm("self_attn.kv_a_layernorm", "latent_norm", width=20),
            linear("self_attn.kv_b_proj", "latent_up", 20),
            linear("self_attn.o_proj", "attn_out", HEADS * 12),
            LLAMA_MLP,
            LLAMA_NORMS,
        ),
    ),
    "persimmon": (
        SIZES | {"qk_layernorm": True},
        {
            **embedding("model.embed_tokens"),
            **in_block(
                "model.layers",
                norm("input_layernorm", "attn_norm", bias=True),
                linear("self_attn.query_key_value", "qkv", D, D),
                linear("self_attn.dense", "attn_out", D, D),
                {
                    f"self_attn.{letter}_layernorm.{key}": (kind, "qk_norm", D // HEADS)
                    for letter in "qk"
                    for key, kind in {
                        "weight": f"{letter}_norm",
                        "bias": f"{letter}_norm_bias",
                    }.items()
                },
                norm("post_attention_layernorm", "mlp_norm", bias=True),
                linear("mlp.dense_h_to_4h", "mlp_in", D, F),
                linear("mlp.dense_4h_to_h", "mlp_out", F, D),
            ),
            **output_norm("model.final_layernorm", bias=True),
            **head(),
        },
    ),
    "mixtral": (
        OWN_HEAD | {"num_local_experts": EXPERTS},
        LLAMA_ENDS | in_block("model.layers", llama_attention(), EXPERT_MLP, LLAMA_NORMS),
    ),
    "qwen3_moe": (
        OWN_HEAD | {"num_experts": EXPERTS, "moe_intermediate_size": F},
        LLAMA_ENDS | in_block("model.layers", llama_attention(), EXPERT_MLP, LLAMA_NORMS, QK_NORMS),
    ),
}


class Bag(nn.Module):
    """Named modules and parameters in a row; what they compute does not matter here."""

    def __init__(self, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return x


class CausalSelfAttention(Bag):
    """A name of a class that tells the branch."""


def nano_gpt(positions: int = 32) -> nn.Module:
    """The modules of a nanoGPT-style model: linear layers under GPT-2's names."""

    def block() -> nn.Module:
        return Bag(
            ln_1=nn.LayerNorm(D, bias=False),
            attn=CausalSelfAttention(
                c_attn=nn.Linear(D, 3 * D, bias=False), c_proj=nn.Linear(D, D, bias=False)
            ),
            ln_2=nn.LayerNorm(D, bias=False),
            mlp=Bag(c_fc=nn.Linear(D, F, bias=False), c_proj=nn.Linear(F, D, bias=False)),
        )

    parts = {
        "wte": nn.Embedding(V, D),
        "wpe": nn.Embedding(positions, D),
        "drop": nn.Dropout(),
        "h": nn.ModuleList(block() for _ in range(DEPTH)),
        "ln_f": nn.LayerNorm(D, bias=False),
    }
    return Bag(transformer=nn.ModuleDict(parts), lm_head=nn.Linear(D, V, bias=False))


NANO_GPT: Kinds = {
    **embedding("transformer.wte"),
    **embedding("transformer.wpe", "position"),
    **in_block(
        "transformer.h",
        norm("ln_1", "attn_norm"),
        linear("attn.c_attn", "qkv", D),
        linear("attn.c_proj", "attn_out", D),
        norm("ln_2", "mlp_norm"),
        linear("mlp.c_fc", "mlp_in", D),
        linear("mlp.c_proj", "mlp_out", F),
    ),
    **output_norm("transformer.ln_f"),
    **head(),
}


def bare(fan_in: int, fan_out: int) -> nn.Linear:
    return nn.Linear(fan_in, fan_out, bias=False)


def torchtitan(*, moe: bool = False) -> nn.Module:
    """The modules of a torchtitan-style model, whose blocks are in a dictionary."""

    def feed_forward() -> nn.Module:
        if not moe:
            return Bag(w1=bare(D, F), w2=bare(F, D), w3=bare(D, F))
        experts = Bag(
            w1_EFD=nn.Parameter(torch.empty(EXPERTS, F, D)),
            w2_EDF=nn.Parameter(torch.empty(EXPERTS, D, F)),
            w3_EFD=nn.Parameter(torch.empty(EXPERTS, F, D)),
        )
        return Bag(router=Bag(gate=bare(D, EXPERTS)), experts=experts)

    def block() -> nn.Module:
        width = HEADS * HEAD
        projections = Bag(wq=bare(D, width), wk=bare(D, KV * HEAD), wv=bare(D, KV * HEAD))
        attention = Bag(
            qkv_linear=projections,
            q_norm=nn.RMSNorm(HEAD),
            k_norm=nn.RMSNorm(HEAD),
            wo=bare(width, D),
        )
        return Bag(
            attention=attention,
            attention_norm=nn.RMSNorm(D),
            ffn_norm=nn.RMSNorm(D),
            **{"moe" if moe else "feed_forward": feed_forward()},
        )

    return Bag(
        tok_embeddings=nn.Embedding(V, D),
        layers=nn.ModuleDict({str(n): block() for n in range(DEPTH)}),
        norm=nn.RMSNorm(D),
        output=bare(D, V),
    )


TORCHTITAN_BLOCK: Kinds = {
    **norm("attention_norm", "attn_norm"),
    **norm("ffn_norm", "mlp_norm"),
    **norm("attention.q_norm", "q_norm", width=HEAD),
    **norm("attention.k_norm", "k_norm", width=HEAD),
    **linear("attention.wo", "attn_out", HEADS * HEAD),
    **{
        name: what
        for letter in "qkv"
        for name, what in linear(f"attention.qkv_linear.w{letter}", "qkv", D).items()
    },
}
TORCHTITAN_ENDS = embedding("tok_embeddings") | output_norm("norm") | head("output")
TORCHTITAN_MLP = {
    **linear("feed_forward.w1", "mlp_gate", D),
    **linear("feed_forward.w2", "mlp_out", F),
    **linear("feed_forward.w3", "mlp_in", D),
}
TORCHTITAN_MOE: Kinds = {
    "moe.router.gate.weight": ("router", "hidden_weight", D),
    "moe.experts.w1_EFD": ("mlp_gate", "hidden_weight", D),
    "moe.experts.w2_EDF": ("mlp_out", "hidden_weight", F),
    "moe.experts.w3_EFD": ("mlp_in", "hidden_weight", D),
}


class LayerNormLinear(nn.Linear):
    """A linear layer with the norm before it built in, as Transformer Engine has it."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__(fan_in, fan_out)
        self.layer_norm_weight = nn.Parameter(torch.empty(fan_in))
        self.layer_norm_bias = nn.Parameter(torch.empty(fan_in))


def megatron() -> nn.Module:
    """The modules of a Megatron-core-style model, whose embedding is no nn.Embedding."""

    def block() -> nn.Module:
        return Bag(
            self_attention=Bag(linear_proj=bare(D, D), linear_qkv=LayerNormLinear(D, 3 * D)),
            mlp=Bag(linear_fc1=LayerNormLinear(D, F), linear_fc2=bare(F, D)),
        )

    return Bag(
        embedding=Bag(word_embeddings=Bag(weight=nn.Parameter(torch.empty(V, D)))),
        decoder=Bag(
            layers=nn.ModuleList(block() for _ in range(DEPTH)), final_layernorm=nn.RMSNorm(D)
        ),
        output_layer=bare(D, V),
    )


MEGATRON: Kinds = {
    **embedding("embedding.word_embeddings"),
    **in_block(
        "decoder.layers",
        linear("self_attention.linear_qkv", "qkv", D, D),
        linear("self_attention.linear_proj", "attn_out", D),
        linear("mlp.linear_fc1", "mlp_in", D, F),
        linear("mlp.linear_fc2", "mlp_out", F),
        {
            "self_attention.linear_qkv.layer_norm_weight": ("attn_norm", "hidden_norm", D),
            "self_attention.linear_qkv.layer_norm_bias": ("attn_norm_bias", "hidden_bias", D),
            "mlp.linear_fc1.layer_norm_weight": ("mlp_norm", "hidden_norm", D),
            "mlp.linear_fc1.layer_norm_bias": ("mlp_norm_bias", "hidden_bias", D),
        },
    ),
    **output_norm("decoder.final_layernorm"),
    **head("output_layer"),
}
