"""The reference model: the same function as Qwen3, causal, and safe to make on the meta device."""

import warnings
from typing import Any

import pytest
import torch
from helpers import error_of
from models import VOCAB, make_model, make_plan, make_recipe, token_batches
from torch import Tensor

from completedp.lm.transformer import ModelConfig, Transformer, rotary_angles
from completedp.theory.rules import Rules

TOKENS = token_batches(1, seed=5)[0]


def random_model(**options: Any) -> Transformer:
    """A float64 model in which every parameter, gains and biases too, is random."""
    model = make_model(**options).double()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.2 + (1.0 if parameter.ndim == 1 else 0.0))
    return model


def qwen3(model: Transformer) -> Any:
    """Hugging Face's Qwen3 of the same shape with the same weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers")
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(
            vocab_size=model.config.vocab,
            hidden_size=model.config.width,
            intermediate_size=model.config.hidden,
            num_hidden_layers=model.config.depth,
            num_attention_heads=model.config.heads,
            num_key_value_heads=model.config.heads,
            head_dim=model.config.head_dim,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": model.config.rope_theta},
            attention_bias=False,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
        other = Qwen3ForCausalLM(config).double().eval()
    weights = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.output_norm.weight,
        "lm_head.weight": model.unembedding.weight,
    }
    for layer, block in enumerate(model.blocks):
        q, k, v = block.attn.qkv.weight.chunk(3)
        names = {
            "input_layernorm": block.attn_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.q_norm": block.attn.q_norm.weight,
            "self_attn.k_norm": block.attn.k_norm.weight,
            "self_attn.o_proj": block.attn.out.weight,
            "post_attention_layernorm": block.mlp_norm.weight,
            "mlp.gate_proj": block.mlp.gate.weight,
            "mlp.up_proj": block.mlp.up.weight,
            "mlp.down_proj": block.mlp.down.weight,
        }
        weights |= {f"model.layers.{layer}.{n}.weight": w for n, w in names.items()}
    other.load_state_dict(weights)
    return other


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float32, 1e-4)], ids=["64", "32"]
)
@torch.no_grad()
def test_same_function_as_qwen3(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float
) -> None:
    """With Qwen3's weights the model gives Qwen3's logits, to the rounding of its float32 norms."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = random_model(mlp="swiglu", mlp_width=96, depth=3, rope_theta=5000.0)
    other = qwen3(model).to(dtype)
    ours, theirs = model.to(dtype)(TOKENS), other(TOKENS).logits
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [{}, {"mlp": "swiglu"}, {"qk_norm": False}, {"bias": True, "output_bias": True}]
)
@torch.no_grad()
def test_causality(options: dict[str, Any]) -> None:
    """Changing a token changes logits at its own and later positions, and no earlier ones."""
    model = random_model(**options)
    changed = TOKENS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % VOCAB
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=1e-12, atol=1e-12)
    assert ((before[:, 9:] - after[:, 9:]).abs().amax(-1) > 1e-9).all()


@torch.no_grad()
def test_sequences_do_not_see_each_other() -> None:
    """A sequence has the logits it has alone, and a prefix those it has in the whole."""
    model = random_model()
    whole = model(TOKENS)
    torch.testing.assert_close(model(TOKENS[:1]), whole[:1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model(TOKENS[:, :5]), whole[:, :5], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_positions_matter() -> None:
    """The same tokens in another order are another sequence, by rotary positions alone."""
    model = random_model(depth=1)
    tokens = torch.tensor([[1, 2, 3, 4], [2, 1, 3, 4]])
    logits = model(tokens)
    assert not torch.allclose(logits[0, -1], logits[1, -1], atol=1e-6)


@torch.no_grad()
def test_without_branches_the_model_is_a_bigram() -> None:
    """With multipliers of 0 the logits are the unembedding of the token's own normed embedding."""
    model = random_model()
    model.residual_multipliers.zero_()
    table = model.unembedding(model.output_norm(model.embedding.weight))
    torch.testing.assert_close(model(TOKENS), table[TOKENS], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("branch", [0, 1])
@torch.no_grad()
def test_each_residual_multiplier_scales_its_branch(layer: int, branch: int) -> None:
    """A multiplier does what multiplying its branch's last matrix by it does."""
    model, folded = random_model(), random_model()
    model.residual_multipliers[layer, branch] = 0.3
    block = folded.blocks[layer]
    (block.mlp.down if branch else block.attn.out).weight.mul_(0.3)
    torch.testing.assert_close(model(TOKENS), folded(TOKENS), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_output_multiplier_scales_logits() -> None:
    """The output multiplier multiplies the features, and so the logits."""
    model = random_model()
    logits, features = model(TOKENS), model(TOKENS, logits=False)
    model.output_multiplier.fill_(0.25)
    torch.testing.assert_close(model(TOKENS), 0.25 * logits)
    torch.testing.assert_close(model(TOKENS, logits=False), 0.25 * features)
    torch.testing.assert_close(model.unembedding(model(TOKENS, logits=False)), model(TOKENS))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 60}, ["60", "16"]),
        ({"head_dim": 15, "width": 60}, ["15", "even"]),
        ({"head_dim": 0}, ["head_dim"]),
        ({"depth": 0}, ["depth"]),
        ({"vocab": 0}, ["vocab"]),
        ({"width": -64}, ["width", "-64"]),
        ({"mlp": "relu"}, ["'relu'"]),
        ({"mlp_width": 0}, ["mlp_width"]),
        ({"mlp_width": -8}, ["mlp_width"]),
    ],
)
def test_bad_shapes_are_one_line_errors(options: dict[str, Any], said: list[str]) -> None:
    """A shape that cannot be is one line that quotes it."""
    good = {"vocab": VOCAB, "width": 64, "depth": 2, "head_dim": 16}
    message = error_of(ModelConfig, **(good | options))
    for word in said:
        assert word in message


@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        ({}, ["blocks.0.attn.q_norm.weight"], ["blocks.0.mlp.gate.weight", "unembedding.bias"]),
        ({"qk_norm": False}, ["blocks.0.attn.qkv.weight"], ["blocks.0.attn.q_norm.weight"]),
        ({"bias": True}, ["blocks.1.mlp.down.bias"], ["unembedding.bias"]),
        ({"output_bias": True}, ["unembedding.bias"], ["blocks.0.attn.qkv.bias"]),
        ({"mlp": "swiglu", "bias": True}, ["blocks.0.mlp.gate.bias"], []),
    ],
)
def test_options_make_the_tensors_they_say(
    options: dict[str, Any], present: list[str], absent: list[str]
) -> None:
    """QK norms, biases and gates are there when asked for, and only then."""
    names = {name for name, _ in make_model(device="meta", **options).named_parameters()}
    assert set(present) <= names
    assert not set(absent) & names


@pytest.mark.parametrize("width", [64, 128, 256])
def test_width_grows_by_heads(width: int) -> None:
    """At any width a head has the same size and the QK norms the same length."""
    model = make_model(width=width, device="meta")
    assert model.config.heads == width // 16
    assert model.blocks[0].attn.q_norm.weight.shape == (16,)
    assert model.blocks[0].mlp.up.weight.shape == (4 * width, width)


@pytest.mark.parametrize("parameterisation", ["completedp", "completep"])
def test_made_on_meta_then_filled(parameterisation: str) -> None:
    """Meta, to_empty and initialise give the model that was made on the CPU, to the bit."""
    recipe = make_recipe(model={"bias": True}, rules=Rules(parameterisation=parameterisation))
    on_meta = make_plan(recipe, device="meta", bias=True)
    direct = make_plan(recipe, device="cpu", bias=True)
    on_meta.model.to_empty(device="cpu")
    for value in on_meta.model.state_dict().values():
        value.fill_(float("nan"))
    for found in (on_meta, direct):
        found.initialise(4)
    with torch.no_grad():
        logits = on_meta.model(TOKENS)
        assert torch.isfinite(logits).all()
        assert torch.equal(logits, direct.model(TOKENS))


def dtypes_of_stream(model: Transformer) -> set[torch.dtype]:
    seen: set[torch.dtype] = set()
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    model(TOKENS)
    return seen


def test_compute_dtype_leaves_the_stream_wide() -> None:
    """In bfloat16 the matrix products are narrow, the residual stream and gradients are not."""
    model = Transformer(make_model().config, compute_dtype=torch.bfloat16)
    assert dtypes_of_stream(model) == {torch.float32}
    logits: Tensor = model(TOKENS)
    assert logits.dtype == torch.bfloat16
    logits.float().logsumexp(-1).sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_multipliers_are_saved_with_the_weights() -> None:
    """A checkpoint brings back the residual and output multipliers."""
    model, other = make_model(), make_model()
    model.residual_multipliers.fill_(0.5)
    model.output_multiplier.fill_(0.25)
    other.load_state_dict(model.state_dict())
    assert other.residual_multipliers.tolist() == [[0.5, 0.5]] * 2
    assert other.output_multiplier.item() == 0.25


def test_config_as_plain_values() -> None:
    """A configuration goes through a dict and back."""
    config = make_model(device="meta", mlp="swiglu").config
    assert ModelConfig(**config.to_dict()) == config


def test_angles_are_constants_to_the_compiler() -> None:
    """The rotary tables are marked as torch's own decorator would mark them."""

    @torch.compiler.assume_constant_result
    def marked() -> None: ...

    assert vars(marked).items() <= vars(rotary_angles).items()
    assert vars(marked)


@pytest.mark.parametrize("mode", [torch.inference_mode(), torch.device("meta")])
def test_a_first_pass_leaves_nothing_of_its_mode(mode: Any) -> None:
    """After a pass under inference mode, or another default device, a model trains as ever."""
    model, length = make_model(), TOKENS.shape[1] - 1
    rotary_angles.__globals__["_rotary_table"].cache_clear()
    with mode:
        rotary_angles(length, 16, model.config.rope_theta, torch.device("cpu"), torch.float32)
    model(TOKENS[:, :-1]).sum().backward()
    assert model.embedding.weight.grad is not None


def test_no_width_is_zero() -> None:
    """A feed-forward ratio that rounds to no feature at all is refused."""
    assert "mlp_ratio" in error_of(ModelConfig, vocab=8, width=64, depth=1, mlp_ratio=0.001)
