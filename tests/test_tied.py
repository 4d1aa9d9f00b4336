"""Tied embeddings: one row of rules for the input and the output, in models as they come."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from models import VOCAB, make_model, scale, token_batches, train
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.export import export
from completedp.apply.multipliers import hooked, settings
from completedp.apply.plan import Plan, plan
from completedp.cli.main import _parse
from completedp.evidence.check import Check, make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows
from completedp.evidence.run import measure_all
from completedp.evidence.scaling import Measurement
from completedp.tasks.data import make_data
from completedp.tasks.sources import maker_from
from completedp.tasks.task import Task
from completedp.tasks.weights import give_memory, without_weights
from completedp.theory.rules import Shift
from completedp.training.checkpoint import load_checkpoint, save_checkpoint
from completedp.training.runner import Runner

VALUES = {"lr": 2**-6, "weight_decay": 0.5, "eps": 1e-4, "init_std": 0.05}
WIDER = {"width": 128, "depth": 4}  # powers of two, by which float32 is multiplied exactly
HEAD = 16
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of scales and own factors


def hugging_face(family: str, width: int = 64, depth: int = 2, **options: Any) -> Any:
    """A tiny tied model of a family, drawn on the CPU."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD // 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "use_cache": False,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    if family in ("qwen3", "gemma3_text"):
        sizes["head_dim"] = HEAD
    if family == "gpt2":
        del sizes["intermediate_size"], sizes["num_key_value_heads"]
        sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.CONFIG_MAPPING[family](**(sizes | options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_config(config)


class Logits(nn.Module):
    """A Hugging Face model whose output is its logits alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: Tensor) -> Tensor:
        return self.module(tokens).logits


def planned(family: str, way: str = "auto", base: Any = None, **values: Any) -> Plan:
    """A family's plan at twice the width and depth, in float64, initialised."""
    base = base or hugging_face(family)
    recipe = cdp.Recipe.for_model(base, scale(), **(VALUES | values))
    found = plan(hugging_face(family, **WIDER).double(), recipe, scale(**WIDER), multipliers=way)
    found.initialise(3)
    return found


def curve(found: Plan, steps: int = 12) -> list[float]:
    return train(Logits(found.model), found.adamw(), token_batches(steps))


def test_the_two_rows_are_one_under_the_factor() -> None:
    """With W = m_N V the output's row is the input's, and both are the tied one's: by hand too."""
    ratios = cdp.Ratios(width=4, depth=2, batch=2, tokens=8)
    given = {role: cdp.factors(role, ratios) for role in ("input_embedding", "output_weight")}
    found = cdp.factors("tied_embedding", ratios)
    rows = ("init_std", "lr", "eps", "weight_decay")
    assert [getattr(given["input_embedding"], name) for name in rows] == pytest.approx(
        [1, 0.5, 0.5, 0.5]
    )
    assert [getattr(given["output_weight"], name) for name in rows] == pytest.approx(
        [0.25, 0.125, 2, 2]
    )
    assert [getattr(found, name) for name in rows] == pytest.approx([1, 0.5, 0.5, 0.5])
    assert found.multiplier == 0.25
    powers = {"init_std": 1, "lr": 1, "eps": -1, "weight_decay": -1}  # of c, for V = c W
    for name, power in powers.items():
        changed = getattr(found, name) * found.multiplier**power
        assert changed == pytest.approx(getattr(given["output_weight"], name))


@pytest.mark.parametrize("parameterisation", ["sp", "mup", "completep", "completedp"])
def test_ratio_one_is_the_identity(parameterisation: str) -> None:
    """At its own base a tied model's plan has the base's values and multiplies by nothing."""
    model = hugging_face("qwen3")
    recipe = cdp.Recipe.for_model(model, scale(), **VALUES, parameterisation=parameterisation)
    found = plan(model, recipe, scale())
    tensor = found["model.embed_tokens.weight"]
    assert tensor.info.type == "tied_embedding"
    assert {name: getattr(tensor, name) for name in VALUES} == VALUES
    assert found.output_multiplier == 1.0
    assert not hooked(found)
    assert found["model.norm.weight"].init_value == 1.0


FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_ways_are_one_function(family: str) -> None:
    """Folded into the output norm, or hooked on the head: one loss curve over 12 steps of AdamW.

    A hook multiplies what it is given, so the curve is that of logits times 1/m_N.
    """
    decay = {"no_decay": ("output_norm", "hidden_norm")} if family == "gemma3_text" else {}
    folded, by_hook = (planned(family, way, **decay) for way in ("fold", "hook"))
    assert folded.ways["output"] == "fold"
    assert not hooked(folded)
    (head,) = (path for path in hooked(by_hook) if path == "lm_head")
    own = 2**0.5 if family == "gemma3_text" else 1.0  # its table's factor has grown
    assert hooked(by_hook)[head] == pytest.approx(0.5 * own)
    rel = 1e-5 if family == "gemma3_text" else 1e-9  # whose norms compute in float32
    assert curve(folded) == pytest.approx(curve(by_hook), rel=rel)


class ByHand(nn.Module):
    """The wider model with the factor on its logits written out."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.model.model(tokens).last_hidden_state
        return F.linear(hidden, self.model.model.embed_tokens.weight) * self.factor


def test_a_plan_trains_as_a_loop_written_by_hand() -> None:
    """Values, factor and residual multipliers as the table has them, in torch alone, for Qwen3."""
    base = hugging_face("qwen3")
    recipe = cdp.Recipe.for_model(base, scale(), **VALUES)
    target = scale(width=128)
    model = hugging_face("qwen3", width=128).double()
    found = plan(model, recipe, target)
    found.initialise(3)
    by_hand = copy.deepcopy(model)
    with torch.no_grad():  # what is folded into the norm is written out here
        by_hand.model.norm.weight.fill_(1.0)
    m = 2.0
    groups = []
    for name, parameter in by_hand.named_parameters():
        lr, decay, eps = VALUES["lr"], VALUES["weight_decay"], VALUES["eps"]
        if name == "model.embed_tokens.weight" or (
            name.endswith("norm.weight") and "layers" in name
        ):
            eps = eps if "q_norm" in name or "k_norm" in name else eps / m
        elif name != "model.norm.weight":
            lr, decay, eps = lr / m, decay * m, eps / m
        groups.append({"params": [parameter], "lr": lr, "weight_decay": decay, "eps": eps})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    losses = train(ByHand(by_hand, 1 / m), optimizer, token_batches(12))
    assert curve(found) == pytest.approx(losses, rel=1e-9)
    assert max(losses) - min(losses) > 0.01


def test_the_models_own_scale_is_used() -> None:
    """Granite divides its logits by a setting: it is the base's times m_N, however often set."""
    base = hugging_face("granite", logits_scaling=4.0)
    recipe = cdp.Recipe.for_model(base, scale(), **VALUES)
    model = hugging_face("granite", **WIDER, logits_scaling=7.0).double()
    found = plan(model, recipe, scale(**WIDER))
    assert found.ways["output"] == "setting"
    for _ in range(2):
        found.initialise(3)
        assert model.config.logits_scaling == 8.0
    assert settings(found) == {"logits_scaling": 8.0}
    assert "fold" in error_of(export, found, "hf")
    tokens, own = token_batches(1)[0], model(token_batches(1)[0]).logits
    folded = plan(model, recipe, scale(**WIDER), multipliers="fold")
    folded.initialise(3)
    assert model.config.logits_scaling == 4.0
    torch.testing.assert_close(model(tokens).logits, own)


def test_the_reference_model_tied() -> None:
    """A tied reference model is multiplied by its own buffer."""
    models = []
    for sizes in ({}, {"width": 128, "depth": 4}):
        models.append(make_model(**sizes))
        models[-1].unembedding.weight = models[-1].embedding.weight
    recipe = cdp.Recipe.for_model(models[0], scale(), **VALUES)
    found = plan(models[1], recipe, scale(width=128, depth=4))
    found.initialise(0)
    assert found.ways["output"] == "buffer"
    assert float(models[1].output_multiplier) == 0.5
    assert "unembedding.weight" not in {t.name for t in found.tensors}


def test_a_decaying_norm_that_stores_gain_minus_one() -> None:
    """Gemma's gains decay to 1: with decay nothing is folded, and asking for it says what to do."""
    assert set(planned("gemma3_text").ways.values()) == {"hook"}
    message = error_of(planned, "gemma3_text", "fold")
    for word in ("gain - 1", "no_decay", "hidden_norm", "hook"):
        assert word in message


def test_to_empty_unties_and_initialise_ties() -> None:
    """A model that to_empty made two tensors of is refused, until it is initialised."""
    recipe = cdp.Recipe.for_model(hugging_face("llama"), scale(), **VALUES)
    model = without_weights(hugging_face("llama", **WIDER))
    found = plan(model, recipe, scale(**WIDER))
    model.to_empty(device="cpu")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    message = error_of(found.param_groups)
    assert "lm_head.weight" in message
    assert "initialise" in message
    found.initialise(0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    again = without_weights(hugging_face("llama"))
    assert give_memory(again, "cpu").lm_head.weight is again.model.embed_tokens.weight


def test_a_live_optimizer_is_checked() -> None:
    """The tied tensor is in one group; another value of it, or no group with it, is reported."""
    found = planned("llama")
    optimizer = found.adamw()
    assert found.check(optimizer).passed
    weight = found.model.lm_head.weight
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    group["eps"] *= 2
    assert "model.embed_tokens.weight: eps" in str(found.check(optimizer))
    group["eps"] /= 2
    group["params"] = [p for p in group["params"] if p is not weight]
    assert "model.embed_tokens.weight is in no groups" in str(found.check(optimizer))


def test_the_other_name_of_a_tied_tensor_is_told() -> None:
    """Who asks for the head of a tied model is told which tensor that is."""
    message = error_of(planned("llama").explain, "lm_head.weight")
    assert "is model.embed_tokens.weight itself (tied)" in message


def test_other_ties_are_refused() -> None:
    """Blocks that share a tensor are no embedding and head."""
    model = hugging_face("llama")
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    message = error_of(cdp.Recipe.for_model, model, scale())
    assert "layers.1.mlp.up_proj.weight" in message
    assert "model.layers.0.mlp.up_proj.weight" in message


def test_checkpoints_hold_a_tied_tensor_once(tmp_path: Path) -> None:
    """A tied model resumes from its checkpoint to the bit."""
    found = planned("llama")
    optimizer, batches = found.adamw(), token_batches(6)
    train(Logits(found.model), optimizer, batches[:3])
    save_checkpoint(tmp_path, found.model, optimizer, 3, {}, run={})
    expected = train(Logits(found.model), optimizer, batches[3:])
    again = planned("llama")
    optimizer = again.adamw()
    path = tmp_path / "checkpoint.safetensors"
    assert load_checkpoint(path, again.model, optimizer).step == 3
    assert train(Logits(again.model), optimizer, batches[3:]) == expected


class Flat(nn.Module):
    """A tied Llama whose output is its logits."""

    def __init__(self, width: int, depth: int, **options: Any) -> None:
        super().__init__()
        self.inner = hugging_face("llama", width, depth, **options)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens).logits


def tiny_data(split: str) -> Any:
    generator = torch.Generator().manual_seed({"train": 0, "valid": 1}[split])
    tokens = torch.randint(VOCAB, (64, 17), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def test_slots_train_tied_models() -> None:
    """Tied trials train in slots, in one program, as each does alone: losses are the same."""
    data = make_data(tiny_data, 16)
    task = Task(make=lambda s: Flat(s.width, s.depth), data=data, eval_examples=4)
    base = cdp.Scale(width=64, depth=2, batch=64, tokens=64 * 6)
    recipe = task.recipe(base, **VALUES)
    target = replace(base, width=128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=cdp.ScaleWarning)
        runner = Runner(task, slots=2, device="cpu", compile=False)
        trials = [runner.trial(recipe, target, seed, seed) for seed in (0, 1)]
        found = {o.trial.key: o.losses for o in runner.run(trials, target)}
    assert runner.stack(target).count == 2
    from completedp.training.sequential import OneAtATime

    alone = OneAtATime(task, target, device=torch.device("cpu"), dtype=torch.float32)
    for outcome in alone.run([runner.trial(recipe, target, seed, seed) for seed in (0, 1)]):
        assert found[outcome.trial.key] == pytest.approx(outcome.losses, rel=1e-4)


@pytest.fixture(scope="module")
def check() -> Check:
    pytest.importorskip("transformers")
    settings = CheckSettings(widths=(64, 128, 256), depths=(2,), seeds=1, steps=6, batch=512)
    return make_check(lambda s: Flat(s.width, s.depth, vocab_size=257), settings=settings)


def measured(check: Check, **wrong: Any) -> Measurement:
    """A tied Llama over widths, with an error in its embedding's row if one is given."""
    shifts = (Shift(role="tied_embedding", axis="width", **wrong),) if wrong else ()
    (found,) = measure_all(replace(check, rules=(cdp.Rules(shifts=shifts),)), quiet=True)
    return found


@pytest.fixture(scope="module")
def sound(check: Check) -> Measurement:
    return measured(check)


def test_tied_models_pass_along_the_width(sound: Measurement) -> None:
    """Both uses of the tensor have rows, with the tolerance that such models have; of its initial
    logits no slope is asked for."""
    rows = {(row.quantity, row.what): row for row in coordinate_rows(sound)}
    assert {row.verdict for row in rows.values()} == {"pass"}
    assert ("own", "tied_embedding") in rows
    assert abs(rows["own", "logits"].slope) < 0.1
    assert ("initial", "logits") not in rows
    gradient = {row.what: row for row in gradient_rows(sound)}["tied_embedding"]
    assert gradient.slope == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize(
    ("hyperparameter", "row"),
    [
        ("multiplier", ("own", "logits")),
        ("lr", ("own", "tied_embedding")),
        ("init_std", ("initial", "tied_embedding")),
    ],
)
def test_a_wrong_exponent_of_the_row_is_caught(
    check: Check, hyperparameter: str, row: tuple[str, str]
) -> None:
    """Without the factor, or with another exponent of lr or init, the coordinate check fails."""
    found = coordinate_rows(measured(check, hyperparameter=hyperparameter, by=1.0))
    assert {(r.quantity, r.what): r.verdict for r in found}[row] == "fail"


def test_a_wrong_exponent_of_eps_is_caught(sound: Measurement) -> None:
    """The gradient check compares the row's eps with the gradient as it is."""
    shift = Shift(role="tied_embedding", axis="width", hyperparameter="eps", by=1.0)
    wrong = replace(sound, rules=cdp.Rules(shifts=(shift,)))
    verdicts = {row.what: row.verdict for row in gradient_rows(wrong)}
    assert verdicts["tied_embedding"] == "fail"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = hugging_face("qwen3").config
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path / "tied")
    return tmp_path / "tied"


def test_untie(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flag gives a Hugging Face config's model a head of its own, in the model's name too."""
    for flags, kind in (([], "tied_embedding"), (["--untie"], "unembedding")):
        assert _parse(["inspect", f"hf:{folder}", *flags]).run() == 0
        assert f" {kind} " in capsys.readouterr().out
    assert "--untie" in error_of(_parse(["inspect", "my:model", "--untie"]).run)
    made = maker_from(f"hf-untied:{folder}")(scale(width=128, depth=3))
    assert made.lm_head.weight is not made.model.embed_tokens.weight
    from completedp.training.config import TrainConfig

    config = TrainConfig(data="d", out="o", model=f"hf:{folder}", untie=True)
    assert config.model == f"hf-untied:{folder}"
    assert replace(config, seed=1).model == config.model


class ByProduct(own.NanoGPT):
    """Logits by a product with the embedding, which no module makes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.lm_head = nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) @ self.wte.weight.T


@pytest.mark.parametrize("way", ["@", "linear", "einsum"])
def test_a_table_that_makes_the_logits_by_a_product_is_refused_as_an_input_alone(way: str) -> None:
    """However the product is written, one line names the table and the override to type, which
    plans it as tied."""

    class Written(own.NanoGPT):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.lm_head = nn.Identity()

        def forward(self, tokens: Tensor) -> Tensor:
            x, rows = super().forward(tokens), self.wte.weight
            if way == "einsum":
                return torch.einsum("btd,vd->btv", x, rows)
            return F.linear(x, rows) if way == "linear" else x @ rows.T

    small, large = (cdp.Scale(width=w, depth=2, batch=64, tokens=6400) for w in (32, 128))
    message = error_of(cdp.Recipe.for_model, Written(32, 2), small)
    assert r"overrides={'wte\\.weight': 'tied_embedding'}" in message
    names = {r"wte\.weight": "tied_embedding"}
    recipe = cdp.Recipe.for_model(Written(32, 2), small, overrides=names)
    assert plan(Written(128, 2), recipe, large)["ln_f.weight"].init_value == 0.25


def test_logits_without_a_module_have_their_factor_whatever_is_asked() -> None:
    """Hooks cannot reach such logits: their factor is folded, and all ways train alike."""
    small, large = (cdp.Scale(width=w, depth=2, batch=64, tokens=6400) for w in (32, 128))
    names = {"wte": "tied_embedding"}
    recipe = cdp.Recipe.for_model(ByProduct(32, 2), small, lr=0.01, overrides=names)
    curves = []
    for way in ("hook", "fold"):
        model = ByProduct(128, 2).double()
        planned = cdp.plan(model, recipe, large, multipliers=way)  # type: ignore[arg-type]
        planned.initialise(1)
        curves.append(train(model, planned.adamw(), token_batches(6)))
    assert planned["ln_f.weight"].init_value == 0.25
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)
