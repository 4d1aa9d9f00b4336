"""Checkpoints: planned Hugging Face models, and the reference model saved as Qwen3."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from models import VOCAB, make_model, make_recipe, scale, token_batches, train
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.plan import Plan, plan
from completedp.lm.qwen3 import save_as_qwen3
from completedp.lm.transformer import Transformer
from completedp.tasks.sources import HuggingFace

WIDTH, DEPTH = 128, 4
LLAMA = {
    "vocab_size": VOCAB,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
OPTIONS = {
    "llama": LLAMA,
    "olmo2": LLAMA,
    "gemma3_text": LLAMA | {"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 16},
    "gpt_oss": LLAMA
    | {
        "head_dim": 16,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "deepseek_v3": LLAMA
    | {
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 48,
    },
    "gpt2": {k: v for k, v in LLAMA.items() if "_size" not in k} | {"vocab_size": VOCAB},
}


def family_model(family: str, width: int, depth: int) -> nn.Module:
    """A small model of a transformers family, its heads of 16."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": width // 16}
    config = CONFIG_MAPPING[family](**(OPTIONS[family] | sizes))
    return AutoModelForCausalLM.from_config(config)


def family_plan(family: str, model: nn.Module) -> Plan:
    """The model's plan, its values from a copy of half the width and depth."""
    with torch.device("meta"):
        base = family_model(family, 64, 2)
    recipe = cdp.Recipe.for_model(base, scale(), lr=2**-7)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the model's own initialisation")  # GPT-2's
        warnings.filterwarnings("ignore", "model.* no rule for routers")
        return plan(model, recipe, scale(width=WIDTH, depth=DEPTH))


def sequences(steps: int, length: int = 24, seed: int = 0) -> list[Tensor]:
    """Batches in which every token is 5 times the last, plus 1: soon learnt."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(steps):
        tokens = [torch.randint(VOCAB, (8,), generator=generator)]
        for _ in range(length - 1):
            tokens.append((5 * tokens[-1] + 1) % VOCAB)
        found.append(torch.stack(tokens, dim=1))
    return found


def trained(family: str) -> Plan:
    """The plan of a model that has been initialised and trained a little."""
    found = family_plan(family, family_model(family, WIDTH, DEPTH))
    found.initialise(0)
    torch.manual_seed(0)
    losses = train(lambda tokens: found.model(tokens).logits, found.adamw(), sequences(20))
    assert losses[-1] < losses[0] - 0.5
    found.model.eval()
    return found


def reloaded(model: nn.Module, folder: Path) -> nn.Module:
    """The model saved and loaded in the ordinary way."""
    from transformers import AutoModelForCausalLM

    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def generated(model: nn.Module, prompt: Tensor) -> Tensor:
    return model.generate(prompt, max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss", "deepseek_v3", "olmo2"])
def test_folded_models_are_ordinary_checkpoints(family: str, tmp_path: Path) -> None:
    """A planned model loads without this package: the same logits bit for bit, the same text."""
    pytest.importorskip("transformers")
    found = trained(family)
    assert set(found.ways.values()) == {"fold"}
    assert set(found.residual_multipliers) == {(0.5, 0.5)}
    model, tokens = found.model, sequences(1, seed=1)[0]
    other = reloaded(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(other(tokens).logits, model(tokens).logits)
    text = generated(model, tokens[:, :6])
    assert torch.equal(generated(other, tokens[:, :6]), text)
    assert len(text[:, 6:].unique()) > 2
    assert "completedp" not in (tmp_path / "config.json").read_text()


@pytest.mark.filterwarnings("ignore:.*embed_scale")  # Gemma's, which is not what is tested here
def test_hooked_models_need_attach(tmp_path: Path) -> None:
    """Where nothing can be folded a loaded model is another one until its plan is attached."""
    pytest.importorskip("transformers")
    family = "gemma3_text"
    found = trained(family)
    assert (found.ways["attn"], found.ways["mlp"]) == ("hook", "hook")
    model, tokens = found.model, sequences(1, seed=1)[0]
    other = reloaded(model, tmp_path)
    with torch.no_grad():
        logits = model(tokens).logits
        assert not torch.allclose(other(tokens).logits, logits, atol=1e-2)
        family_plan(family, other).attach()
        assert torch.equal(other(tokens).logits, logits)
    prompt = tokens[:, :6]
    assert torch.equal(generated(other, prompt), generated(model, prompt))


# Residual multipliers far from 1, which differ by branch and by depth.
LOG2 = {"residual/type/attn": 2.0, "residual/type/mlp": -0.5, "residual/depth/1": -1.0}


def reference(way: str = "fold", dtype: torch.dtype = torch.float64, **options: Any) -> Plan:
    """The plan of a reference model with SwiGLU that has been trained a little."""
    options = {"mlp": "swiglu", "mlp_width": 96, "rope_theta": 5_000.0} | options
    recipe = make_recipe(LOG2, model=options, lr=2**-6)
    model = make_model(WIDTH, DEPTH, **options).to(dtype)
    found = plan(model, recipe, scale(width=WIDTH, depth=DEPTH), multipliers=way)
    found.initialise(0)
    losses = train(model, found.adamw(), sequences(20))
    assert losses[-1] < losses[0] - 0.5
    return found


def in_float64(model: nn.Module) -> nn.Module:
    """A Qwen3 whose norms and rotary angles, always in float32, are in float64 instead."""
    rotary = model.model.rotary_emb
    theta, size = model.config.rope_parameters["rope_theta"], model.config.head_dim

    def angles(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        rates = theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        both = (position_ids[..., None] * rates).repeat(1, 1, 2)
        return both.cos(), both.sin()

    rotary.forward = angles
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = lambda x, m=module: F.rms_norm(
                x, m.weight.shape, m.weight, m.variance_epsilon
            )
    return model


def test_the_reference_model_as_qwen3(tmp_path: Path) -> None:
    """An ordinary Qwen3 checkpoint gives its logits, to float64's own rounding where Qwen3 allows
    float64, and to that of its norms and angles, always in float32, where it does not."""
    from transformers import AutoModelForCausalLM

    found = reference()
    model, tokens = found.model, token_batches(1, length=48)[0]
    assert len({x for pair in found.residual_multipliers for x in pair}) == 6
    save_as_qwen3(model, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"config.json", "model.safetensors"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("qwen3", ["Qwen3ForCausalLM"])
    other = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = model(tokens)
        # float32's rounding, which differs from processor to processor; what is exact is below
        torch.testing.assert_close(other(tokens).logits, logits, rtol=1e-4, atol=1e-4)
        exact = in_float64(other)(tokens).logits
    torch.testing.assert_close(exact, logits, rtol=1e-10, atol=1e-10)


def test_every_tensor_matters_to_qwen3() -> None:
    """The comparison above can fail: training has moved every kind of tensor off its start."""
    found = reference()
    for tensor in found.tensors:
        if tensor.init_value is not None:
            gain = found.model.get_parameter(tensor.name)
            assert gain.std() > 1e-3
            assert not torch.equal(gain, gain.flip(0))


def test_qwen3_writes_the_same_text(tmp_path: Path) -> None:
    """Greedy generation with transformers' cache is our own model's argmax, token by token."""
    from transformers import AutoModelForCausalLM

    model = reference(dtype=torch.float32).model
    save_as_qwen3(torch.compile(model, backend="eager"), tmp_path, context=64)
    other = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert other.dtype == torch.float32
    assert other.config.max_position_embeddings == 64
    tokens = prompt = sequences(1, seed=1)[0][:, :6]
    with torch.no_grad():
        for _ in range(12):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generated(other, prompt), tokens)
    assert len(tokens[:, 6:].unique()) > 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mlp": "gelu"}, ("gelu", "swiglu")),
        ({"bias": True}, ("biases",)),
        ({"output_bias": True}, ("biases",)),
        ({"qk_norm": False}, ("QK norms",)),
        ({"device": "meta"}, ("embedding.weight", "meta")),
    ],
)
def test_what_qwen3_cannot_hold(
    options: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    """A model that Qwen3 cannot be is one line that says why, and nothing is written."""
    model = make_model(**({"mlp": "swiglu"} | options))
    message = error_of(save_as_qwen3, model, tmp_path / "out")
    for word in ("Qwen3", *words):
        assert word in message
    assert not (tmp_path / "out").exists()


def test_multipliers_by_hooks_are_refused(tmp_path: Path) -> None:
    """What hooks multiply no checkpoint holds, and the error says how to plan instead."""
    message = error_of(save_as_qwen3, reference("hook").model, tmp_path)
    assert 'multipliers="fold"' in message


def test_multipliers_in_buffers_are_taken_into_the_weights(tmp_path: Path) -> None:
    """A model that multiplies by its buffers is saved as the same function."""
    from transformers import AutoModelForCausalLM

    model: Any = reference("buffer").model
    model.output_multiplier.fill_(0.5)
    assert bool((model.residual_multipliers != 1).any())
    save_as_qwen3(model, tmp_path)
    other = in_float64(AutoModelForCausalLM.from_pretrained(tmp_path))
    tokens = sequences(1)[0]
    with torch.no_grad():
        torch.testing.assert_close(other(tokens).logits, model(tokens), rtol=0, atol=1e-10)


def test_other_models_and_norms(tmp_path: Path) -> None:
    """Only the reference model is saved, and only with norms of its own."""
    assert "Linear" in error_of(save_as_qwen3, nn.Linear(2, 2), tmp_path)
    model: Transformer = make_model(mlp="swiglu")
    model.blocks[1].mlp_norm = nn.LayerNorm(64)
    message = error_of(save_as_qwen3, model, tmp_path)
    assert "blocks.1.mlp_norm" in message
    assert "LayerNorm" in message


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """Saving over a file is an error, and not nothing."""
    (tmp_path / "file").write_text("")
    assert "not a folder" in error_of(save_as_qwen3, make_model(mlp="swiglu"), tmp_path / "file")


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed one line says what to install."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "completedp[hf]" in error_of(save_as_qwen3, make_model(mlp="swiglu"), tmp_path)


def test_a_wider_config_has_wider_experts() -> None:
    """Every feed-forward width of a config goes with the width, those of its experts too."""
    from transformers import CONFIG_MAPPING

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 96}
    config = CONFIG_MAPPING["qwen2_moe"](**(LLAMA | sizes | own | {"intermediate_size": 128}))
    wider = HuggingFace("hf:x", config).scaled(scale(width=128, depth=2))
    assert wider.intermediate_size == 256
    assert wider.moe_intermediate_size == 96
    assert wider.shared_expert_intermediate_size == 192
