"""Names: what the words in a parameter's name say. The last evidence, after structure and shape.

The tables hold the names of the Hugging Face families, nanoGPT, torchtitan, Megatron-core,
OLMo-core and the reference model. Every pattern must match a whole word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

# What torch.compile, DistributedDataParallel, FSDP and activation checkpointing put into names.
WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPERS = re.compile(rf"(?<![^.])(?:{'|'.join(WRAPPERS)})\.")
_DIMENSIONS = re.compile(r"_[A-Z]{2,}$")  # torchtitan's experts: w1_EFD

_BRANCHES = (
    (r".*(?:attn|attention).*", "attn"),
    (r".*(?:mlp|ffn|feed_?forward|moe|expert).*|ff", "mlp"),
)
_OUTSIDE_BLOCKS = (
    (r"wte|tok|embed|embed_(?:in|tokens)|embeddings?", "embedding"),
    (r"(?:tok|word|token|patch)_?emb\w*", "embedding"),
    (r"wpe|pos|pos\w*_?emb\w*|position\w*|embed_positions", "position"),
    (r"(?:cls|class|mask|dist|distillation|reg|register|storage)_tokens?", "position"),  # of images
    (r"norm(?:_f)?|ln_f|(?:final|output|out)_?(?:layer_?)?norm", "output_norm"),
    (r"lm_head|head|output|output_layer|w_out|embed_out|unembed(?:ding)?", "unembedding"),
    (r"classifier|score", "unembedding"),
)
_NORMS = (
    (r"(?:q|query)_?(?:layer_?)?norm|ln_q", "q_norm"),
    (r"(?:k|key)_?(?:layer_?)?norm|ln_k", "k_norm"),
    (r"(?:q|kv)_a_(?:layer_?)?norm", "latent_norm"),
    (r"post_(?:self_attn|attn)_?(?:layer_?)?norm|(?:attn|attention)_post_norm", "attn_post_norm"),
    (r"post_(?:feedforward|ffn|mlp)_?(?:layer_?)?norm|(?:mlp|ffn)_post_norm", "mlp_post_norm"),
    (r"(?:pre_)?(?:mlp|ffn|feed_?forward)_?(?:layer_?)?norm", "mlp_norm"),
    (r"ln_?2|norm_?2|ln_mlp|final_layer_?norm|layer_?norm_after", "mlp_norm"),
    (r"input_layer_?norm|(?:(?:self_)?attn|attention)_(?:layer_?)?norm", "attn_norm"),
    (r"ln_?1|norm_?1|ln_attn|pre_(?:attn|attention)_?(?:layer_?)?norm", "attn_norm"),
    (r"layer_?norm_before", "attn_norm"),
)
_MATRICES = {
    "attn": (
        (r"qkv|query|key|value|query_key_value|c_attn|[Ww]qkv|[qkv]", "qkv"),
        (r"[Ww]_?[qkv]|(?:[qkv]|qkv|in)_proj|linear_qkv|to_(?:[qkv]|qkv)", "qkv"),
        (r"q_a_proj|kv_a_proj(?:_with_mqa)?", "qkv"),  # DeepSeek's, down to what is kept of a token
        (r"(?:q|kv)_b_proj", "latent_up"),
        (r"g_proj|gate_proj", "attn_gate"),
        (r"o|out|proj|dense|[Ww]_?o|w_out|(?:o|out|c)_proj|linear_proj|to_out", "attn_out"),
    ),
    "mlp": (
        (r"router|shared_expert_gate|wg", "router"),
        (r"gate|gate_proj|w_?gate", "mlp_gate"),
        (
            r"up|fc1|fc_in|c_fc|dense_h_to_4h|w_?up|wi|w3|w12|(?:up|gate_up)_proj|linear(?:_fc)?1",
            "mlp_in",
        ),
        (
            r"down|fc2|fc_out|dense_4h_to_h|w_?down|wo|w2|(?:down|c)_proj|linear(?:_fc)?2",
            "mlp_out",
        ),
    ),
}


def canonical_name(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    return _WRAPPERS.sub("", name)


def split_key(key: str) -> tuple[str, str]:
    """A parameter's key in its module, as what it belongs to and `weight` or `bias`.

    `weight` belongs to the module itself (""); `gate_up_proj_bias` to `gate_up_proj`.
    """
    for kind in ("weight", "bias"):
        if key == kind or key.endswith(f"_{kind}"):
            return key[: -len(kind)].rstrip("_"), kind
    return _DIMENSIONS.sub("", key), "weight"


def block_of(name: str, layer: int | None) -> str:
    """What tells a block, counted from 1, from all others: the path up to its number, or where a
    name has none the number alone.

    >>> block_of("encoder.2.attn.proj.weight", 3), block_of("blocks.c.attn.proj.weight", 3)
    ('encoder.2', '3')
    """
    words, number = name.split("."), str((layer or 0) - 1)
    if number in words:
        return ".".join(words[: words.index(number) + 1])
    return "" if layer is None else str(layer)


def branch_of(words: Iterable[str]) -> str | None:
    """The residual branch that the nearest telling word names: `attn`, `mlp` or none."""
    return next((b for word in words if (b := _look_up(word.lower(), _BRANCHES))), None)


def outside_blocks(word: str) -> str | None:
    """The type of what is not in a block, by its module's name."""
    return _look_up(word, _OUTSIDE_BLOCKS)


def says_embedding(word: str) -> bool:
    """Whether a word is of what makes the stream, and not of what makes the logits of it."""
    return re.search(r"(?<!un)emb", word.lower()) is not None and "out" not in word.lower()


def norm_in_block(word: str, siblings: Collection[str]) -> str | None:
    """The type of a norm in a block, `siblings` being the names of the block's norms.

    `post_attention_layernorm` is the norm before the feed-forward in Llama, and the one after the
    attention in Gemma 3, where the feed-forward has another, and in OLMo-2, where no norm is first.
    """
    if re.fullmatch(r"post_attention_layer_?norm", word):
        types = {_look_up(s, _NORMS) for s in siblings if s != word}
        return "mlp_norm" if "attn_norm" in types and "mlp_norm" not in types else "attn_post_norm"
    return _look_up(word, _NORMS)


def matrix_in_block(word: str, branch: str | None, siblings: Collection[str]) -> str | None:
    """The type of a matrix in a block, by its name and those of the matrices beside it.

    Where nothing says the branch, the name must say it: one that both branches use says nothing.
    """
    if word == "w1" and branch != "attn":  # Llama's gate where there are three, the input of two
        return "mlp_gate" if "w3" in siblings else "mlp_in"
    tables = [table for name, table in _MATRICES.items() if branch in (name, None)]
    types = {found for table in tables if (found := _look_up(word, table))}
    return types.pop() if len(types) == 1 else None


def _look_up(word: str, table: Iterable[tuple[str, str]]) -> str | None:
    return next((kind for pattern, kind in table if re.fullmatch(pattern, word)), None)
