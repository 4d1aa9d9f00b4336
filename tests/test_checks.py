"""The scaling checks: they pass for Complete(d)P, fail for the rest, and see planted errors."""

import itertools
import json
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import foreign
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import of_scale
from own_models import Block, NanoGPT
from planted_errors import caught_by, every_shift, has_no_effect, needs_training
from torch import Tensor, nn

import completedp as cdp
from completedp.cli.main import _parse
from completedp.common.errors import CompletedpError
from completedp.evidence import run as evidence_run
from completedp.evidence.check import Check, check_from, make_check
from completedp.evidence.config import CheckConfig, CheckSettings
from completedp.evidence.gradcheck import invariant_rows
from completedp.evidence.report import Report
from completedp.evidence.result import CheckResult
from completedp.evidence.rows import Row
from completedp.evidence.run import COORDCHECK, GRADCHECK, judge, measure_all, write_check
from completedp.evidence.scaling import Measurement, limit_recipe, sweep
from completedp.evidence.text import check_text
from completedp.evidence.windows import byte_text, byte_windows
from completedp.tasks.data import training_batches
from completedp.tasks.losses import logits_of
from completedp.tasks.weights import give_memory, without_weights
from completedp.theory.roles import MODULE_TYPES
from completedp.theory.rules import Rules, Shift
from completedp.theory.scale import Scale

torch.set_num_threads(1)
SMALL = CheckConfig(
    widths=(64, 128, 256),
    depths=(2, 4, 8),
    batch=512,
    seeds=1,
    parameterisations=("completedp", "completep", "mup", "sp"),
    device="cpu",
    tolerance=0.2,  # one seed
)


@pytest.fixture(scope="module")
def small() -> Check:
    return check_from(SMALL)


@pytest.fixture(scope="module")
def measured(small: Check) -> list[Measurement]:
    return measure_all(small, quiet=True)


@pytest.fixture(scope="module")
def coordinates(small: Check, measured: list[Measurement]) -> CheckResult:
    return judge(COORDCHECK, small, measured)


@pytest.fixture(scope="module")
def gradients(small: Check, measured: list[Measurement]) -> CheckResult:
    return judge(GRADCHECK, small, measured)


def along_width(config: CheckConfig) -> Measurement:
    """The sizes that a config's model has at its widths, by the default rules."""
    return sweep(check_from(config), Rules(), "width")


def test_coordcheck_passes_for_completedp(coordinates: CheckResult) -> None:
    """With the rules nothing grows with width or depth."""
    assert coordinates.failures("completedp") == []
    assert coordinates.failures("completep") == []


def test_coordcheck_fails_where_it_should(coordinates: CheckResult) -> None:
    """Without rules features grow with width; without a depth rule they grow with depth."""
    grown = {row.what for row in coordinates.failures("sp", "width") if row.slope > 0.5}
    assert {"qkv", "attn_out", "mlp_in", "mlp_out", "stream"} <= grown
    for name in ("sp", "mup"):
        assert "stream" in {row.what for row in coordinates.failures(name, "depth")}
    assert coordinates.failures("mup", "width") == []


def test_gradcheck_passes_for_completedp(gradients: CheckResult) -> None:
    """Gradients scale as eps does; the output norm, as printed, is the one known exception."""
    assert gradients.failures("completedp") == []
    known = [row for row in gradients.rows if row.verdict == "known"]
    assert {row.what for row in known} == {"output_norm"}


def test_output_norm_switch_makes_it_pass(small: Check, measured: list[Measurement]) -> None:
    """With output_norm_eps="gradient" the output norm's row passes like the others."""
    mended = [
        replace(m, rules=replace(m.rules, output_norm_eps="gradient"))
        for m in measured
        if m.rules.parameterisation == "completedp"
    ]
    rows = judge(GRADCHECK, small, mended).rows
    assert {row.verdict for row in rows} == {"pass"}


def test_gradcheck_finds_the_papers_corrections(gradients: CheckResult) -> None:
    """CompleteP's eps fails in width where the paper corrects it: embedding, QK norms, output."""
    wrong = {
        row.what for row in gradients.failures("completep", "width") if row.quantity == "gradient"
    }
    assert wrong == {"embedding", "q_norm", "k_norm", "unembedding"}


def test_gradcheck_fails_for_sp(gradients: CheckResult) -> None:
    """A constant eps is wrong for hidden weights in width and depth, and over batch and tokens."""
    for axis in ("width", "depth"):
        assert "mlp_out" in {row.what for row in gradients.failures("sp", axis)}
    for axis in ("batch", "tokens"):
        quantities = {row.quantity for row in gradients.failures("sp", axis)}
        assert quantities == {"decay", "noise", "memory"}


@pytest.mark.parametrize("alpha", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("horizon", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("convention", ["torch", "independent"])
def test_invariants_hold_for_every_choice(alpha: float, horizon: float, convention: str) -> None:
    """The invariants of Complete(d)P hold for any alpha, horizon and decay convention."""
    rules = Rules(alpha=alpha, token_exponent=horizon, weight_decay=convention)
    assert {row.verdict for row in invariant_rows(rules)} == {"pass"}


PLANTED = [shift for shift in every_shift(0.5) if not has_no_effect(shift)]


@pytest.fixture(scope="module")
def sound(measured: list[Measurement]) -> dict[str, Measurement]:
    return {m.axis: m for m in measured if m.rules.parameterisation == "completedp"}


@pytest.mark.parametrize(
    "shift",
    [s for s in PLANTED if not needs_training(s)],
    ids=lambda s: f"{s.hyperparameter}-{s.role}-{s.axis}",
)
def test_wrong_exponents_are_caught_by_arithmetic(
    shift: Shift, small: Check, sound: dict[str, Measurement]
) -> None:
    """Every wrong exponent of eps, decay and beta, and any over batch and tokens, is caught."""
    assert caught_by(shift, small, Rules(), sound)


@pytest.mark.parametrize(
    "shift",
    [s for s in PLANTED if needs_training(s)],
    ids=lambda s: f"{s.hyperparameter}-{s.role}-{s.axis}",
)
def test_wrong_exponents_are_caught_by_training(
    shift: Shift, small: Check, sound: dict[str, Measurement]
) -> None:
    """Every wrong exponent of a learning rate, init or multiplier shows in the coordinate check."""
    assert "coordcheck" in caught_by(shift, small, Rules(), sound)


@pytest.mark.parametrize("by", [-0.25, 0.25])
def test_a_residual_exponent_that_is_off_by_a_quarter_is_caught(
    by: float, small: Check, sound: dict[str, Measurement]
) -> None:
    """What the blocks add to the stream shows it, along the depth where rows mix layers."""
    shift = Shift(role="residual", hyperparameter="multiplier", axis="depth", by=by)
    assert "coordcheck" in caught_by(shift, small, Rules(), sound)


def test_the_planted_test_can_fail(small: Check, sound: dict[str, Measurement]) -> None:
    """With nothing planted, nothing is caught."""
    nothing = Shift(role="hidden_weight", hyperparameter="lr", axis="width", by=0.0)
    assert caught_by(nothing, small, Rules(), sound) == []


def test_slope_of_a_known_power() -> None:
    """The slope of values that grow as size^0.7 is 0.7."""
    sizes = (64, 128, 256, 512)
    values = np.log2(np.array(sizes, dtype=float) ** 0.7)[:, None] + np.array([[0.1, -0.1]])
    measurement = Measurement("width", Rules(), sizes, {("own", "qkv"): values})
    slope, error = measurement.slope(("own", "qkv"))
    assert slope == pytest.approx(0.7)
    assert error == pytest.approx(0.0, abs=1e-12)


def test_measurements_repeat() -> None:
    """The same config measures the same numbers."""
    config = replace(SMALL, widths=(32, 64), depths=(2,), batch=128, steps=2)
    first, second = (along_width(config).values for _ in range(2))
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_check_files(coordinates: CheckResult, gradients: CheckResult, tmp_path: Path) -> None:
    """A check writes its numbers as JSON and a plot, and prints a verdict for every axis."""
    for result in (coordinates, gradients):
        write_check(result, tmp_path)
        saved = json.loads((tmp_path / f"{result.check}.json").read_text())
        assert saved["passed"]["completedp"] is True
        assert saved["passed"]["sp"] is False
        assert (tmp_path / f"{result.check}.svg").read_text().startswith("<svg")
        text = str(result)
        assert re.search(r"completedp +width +pass", text)
        assert re.search(r"sp +width +FAIL", text)


def test_report_is_self_contained(coordinates: CheckResult, tmp_path: Path) -> None:
    """A report escapes what it is given, and neither scripts nor loads anything."""
    report = Report("<title>")
    report.heading("a & b")
    report.paragraph("<script>alert(1)</script>")
    report.table(["name", "value"], [["<b>", 1.5]])
    report.preformatted("<pre>")
    report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r'(src|href)="?http', page)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": ()}, "widths"),
        ({"widths": (64,), "depths": (2,)}, "at least two"),
        ({"steps": 0}, "steps = 0"),
        ({"parameterisations": ("up",)}, "'up'"),
        ({"batch": 100}, "not a whole number of sequences"),
        ({"override": ("up=mlp_in",)}, "'up=mlp_in' is for a model of your own"),
    ],
)
def test_impossible_checks(changes: dict[str, object], message: str) -> None:
    """A check that cannot be is one line."""
    with pytest.raises(CompletedpError, match=message):
        check_from(replace(SMALL, **changes))  # type: ignore[arg-type]


def test_a_model_of_ones_own_is_measured_as_the_reference_model_is() -> None:
    """The reference model, given as a user's function, has every size to the last bit."""
    config = replace(SMALL, widths=(64, 128), depths=(2,), steps=3)
    built_in = along_width(config)
    given = along_width(replace(config, model="models:of_scale"))
    assert given.values.keys() == built_in.values.keys()
    for key, values in built_in.values.items():
        assert np.array_equal(given.values[key], values), key


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_checks_of_hugging_face_models(family: str) -> None:
    """With the rules, by hooks, nothing grows; without them features grow and the check says so."""
    pytest.importorskip("transformers")
    config = replace(
        SMALL,
        widths=(64, 256),
        depths=(2, 8),
        parameterisations=("completedp", "sp"),
        tolerance=0.3,  # one seed, few sizes
        model=f"benchmarks.model_checks:{family}",
    )
    check = check_from(config)
    measurements = measure_all(check, quiet=True)
    for result in (judge(name, check, measurements) for name in (COORDCHECK, GRADCHECK)):
        assert result.failures("completedp") == []
        assert result.failures("sp", "width")
        assert result.failures("sp", "depth")


def bitnet(scale: Scale) -> nn.Module:
    from transformers import BitNetConfig, BitNetForCausalLM

    sizes = {"hidden_size": scale.width, "num_hidden_layers": scale.depth}
    sizes["intermediate_size"] = 2 * scale.width
    heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), scale.width // 16)
    return BitNetForCausalLM(
        BitNetConfig(**sizes, **heads, vocab_size=257, tie_word_embeddings=False, pad_token_id=None)
    )


def test_checks_of_a_model_with_overrides() -> None:
    """What the user types by an override is measured under that type; untyped, it is one line."""
    pytest.importorskip("transformers")
    config = replace(SMALL, widths=(32, 64), depths=(2,), steps=2, model="test_checks:bitnet")
    with pytest.raises(CompletedpError, match="attn_sub_norm"):
        along_width(config)
    found = along_width(replace(config, override=("sub_norm=latent_norm",)))
    assert ("gradient", "latent_norm") in found.values
    with pytest.raises(CompletedpError, match="'sub_norm' must be REGEX=TYPE"):
        along_width(replace(config, override=("sub_norm",)))


def awkward(scale: Scale) -> nn.Module:
    """The reference model, with an output that is a tuple."""
    model = of_scale(scale)
    forward = model.forward
    model.forward = lambda tokens: (forward(tokens), torch.zeros(()))  # type: ignore[method-assign]
    return model


def failing(scale: Scale) -> nn.Module:
    model = of_scale(scale)
    model.forward = lambda tokens, mask: tokens  # type: ignore[method-assign]
    return model


def test_models_that_give_several_things_or_fail() -> None:
    """Logits may come first of a tuple; a forward pass that fails is one line that quotes it."""
    config = replace(SMALL, widths=(64, 128), depths=(2,), steps=2)
    plain = along_width(replace(config, model="models:of_scale"))
    found = along_width(replace(config, model="test_checks:awkward"))
    for key, values in plain.values.items():
        assert np.array_equal(found.values[key], values), key
    with pytest.raises(
        CompletedpError, match=r"test_checks:failing fails on a batch: TypeError.*'mask'"
    ):
        along_width(replace(config, model="test_checks:failing"))


def made_wrong(scale: Scale) -> object:
    return of_scale(replace(scale, width=128)) if scale.width == 64 else 3


def test_models_that_cannot_be_checked() -> None:
    """A function that makes something else, or of another size, is one line that quotes it."""
    config = replace(SMALL, widths=(64, 128), depths=(2,), model="test_checks:made_wrong")
    with pytest.raises(CompletedpError, match="gave width 128 and depth 2 when asked for 64"):
        along_width(config)
    config = replace(config, widths=(32, 128))
    with pytest.raises(CompletedpError, match="test_checks:made_wrong gave a int at"):
        along_width(config)


QUICK = {"widths": (64, 128, 256), "depths": (2, 8), "seeds": 1, "device": "cpu", "quiet": True}
QUICK["tolerance"] = 0.2  # one seed
BOTH = ("completedp", "sp")
VIT: dict[str, Any] = {
    "make": foreign.vit,
    "data": foreign.images,
    "loss": foreign.classification,
    "overrides": foreign.VIT_TYPES,
}
MASKED: dict[str, Any] = {
    "make": foreign.masked,
    "data": foreign.masked_text,
    "loss": foreign.masked_loss,
    "batch": 16,
}


@pytest.mark.slow
@pytest.mark.parametrize("model", [VIT, MASKED], ids=["images", "masked"])
def test_checks_of_models_that_predict_no_next_token(model: dict[str, Any]) -> None:
    """A classifier of images and a masked language model pass with the rules and fail without."""
    check = cdp.coordcheck(**model, parameterisations=BOTH, **QUICK)
    assert not check.passed
    assert check.holds("completedp"), check
    assert not check.holds("sp", "width")
    assert not check.holds("sp", "depth")
    assert {"qkv", "attn_out", "mlp_in", "mlp_out"} <= {
        row.what for row in check.failures("sp", "width")
    }
    assert cdp.gradcheck(**model, **QUICK).passed


def test_learnt_positions_are_measured() -> None:
    """A tensor that its model adds to the stream itself has rows of its own, as a table would."""
    check = cdp.coordcheck(**VIT, **QUICK | {"depths": (2,), "steps": 2})
    rows = {(row.quantity, row.what) for row in check.rows}
    assert {("own", "position"), ("initial", "position"), ("own", "embedding")} <= rows


def test_python_and_the_command_line_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """The same check from either has the same numbers, and the same record of what was checked."""
    sizes = shlex.split(
        "--widths 64 128 --depths 2 --seeds 1 --steps 2 --device cpu --json --tolerance 0.2"
    )
    named = shlex.split("--model foreign:vit --data foreign:images --loss foreign:classification")
    named += ["--override", *(f"{regex}={kind}" for regex, kind in foreign.VIT_TYPES.items())]
    quick: dict[str, Any] = QUICK | {"widths": [64, 128], "depths": [2], "steps": 2}
    for verb, function in (("coordcheck", cdp.coordcheck), ("gradcheck", cdp.gradcheck)):
        for arguments, options in (([], {}), (named, VIT)):
            code = _parse([verb, *sizes, *arguments]).run()
            result = function(**options, **quick)
            assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result.to_dict()))
            assert code == (0 if result.passed else 1)


def test_a_result_prints_its_verdicts(coordinates: CheckResult) -> None:
    """`print(check)` and the prompt show what the command prints; `passed` is of all asked for."""
    assert str(coordinates) == repr(coordinates) == coordinates.text()
    assert "output_norm" in coordinates.text(all_rows=True)
    assert coordinates.passed is False
    sound = [row for row in coordinates.rows if row.parameterisation == "completedp"]
    assert replace(coordinates, rows=sound).passed is True
    assert coordinates.failures() == [row for row in coordinates.rows if row.verdict == "fail"]


def test_bytes_are_those_of_old() -> None:
    """The windows of a seed are drawn from the text in one stream, batch after batch."""
    data, text = byte_windows("stdlib", 8), byte_text("stdlib")
    rng = np.random.default_rng(3)
    batches = training_batches(data, 4, 3, torch.device("cpu"))
    for _ in range(3):
        starts = rng.integers(0, len(text) - 8, 4)
        inputs, targets = next(batches)
        assert np.array_equal(inputs.numpy(), [text[s : s + 8] for s in starts])
        assert np.array_equal(targets.numpy(), [text[s + 1 : s + 9] for s in starts])


SIZES = {"widths": (64, 128), "depths": (2,), "batch": 256, "steps": 3, "seeds": 1, "quiet": True}


def test_a_recipe_is_checked_by_its_own_values() -> None:
    """Given the check's own recipe as a recipe, every number is the same, to the last bit."""
    own = cdp.coordcheck(**SIZES)
    recipe = limit_recipe(own.checked, Rules())
    assert cdp.coordcheck(recipe=recipe, **SIZES).rows == own.rows
    tuned = recipe.hyperparameters
    louder = replace(tuned, log2={**tuned.log2, "lr/type/qkv": 3})
    rows = cdp.coordcheck(recipe=replace(recipe, hyperparameters=louder), **SIZES).rows
    sizes = {
        (r.quantity, r.what): (r.values, o.values) for r, o in zip(rows, own.rows, strict=True)
    }
    loud, quiet = sizes["own", "qkv"]
    assert np.divide(loud, quiet) == pytest.approx(8, rel=0.2)  # larger steps, a little less linear


def test_the_sizes_and_rules_are_a_recipes_unless_given(tmp_path: Path) -> None:
    """Base, rules and shape are the recipe's; what is given replaces them, from a file too."""
    base = Scale(width=32, depth=3, batch=512, tokens=512 * 100)
    with torch.device("meta"):
        model = cdp.Transformer(cdp.ModelConfig(vocab=96, width=32, depth=3, head_dim=8))
    rules = Rules(parameterisation="mup", output_norm_eps="gradient")
    recipe = cdp.Recipe.for_model(model, base, lr=2.0**-9, rules=rules)
    recipe.save(tmp_path / "recipe.json")
    check = check_from(CheckConfig(recipe=str(tmp_path / "recipe.json")))
    assert (check.widths, check.depths) == ((32, 64, 128), (3, 6, 12))
    assert (check.base, check.lr, check.rules) == (base, 2.0**-9, (rules,))
    made = check.task.model(base)
    assert isinstance(made, cdp.Transformer)
    assert (made.config.head_dim, made.config.bias, made.config.output_bias) == (8, False, False)
    asked = CheckSettings(widths=(64, 128), lr=0.5, parameterisations=("sp",), alpha=0.5)
    check = make_check(recipe=recipe, settings=asked)
    assert (check.widths, check.lr, check.recipe) == ((64, 128), 0.5, recipe.with_values(lr=0.5))
    assert check.rules == (replace(rules, parameterisation="sp", alpha=0.5),)


def test_a_recipe_with_a_wrong_rule_fails() -> None:
    """A recipe is carried by its own rules, so that a fault in them shows, and in theirs alone."""
    own = cdp.coordcheck(**SIZES)
    wrong = Shift(role="hidden_weight", hyperparameter="lr", axis="width", by=1.0)
    recipe = limit_recipe(own.checked, Rules(shifts=(wrong,)))
    assert own.passed
    assert {row.what for row in cdp.coordcheck(recipe=recipe, **SIZES).failures()} >= {"qkv"}


SEARCHED = {
    "lr/type/qkv": 1.0,
    "lr/type/mlp_out": -1.0,
    "lr/type/embedding": 1.0,
    "lr/type/q_norm": 2.0,
    "lr/depth/1": 0.25,
    "lr/layer/mlp_in/2": -0.5,
    "one_minus_beta1/type/k_norm": -1.0,
    "eps/type/mlp_norm": 3.0,
    "init_std/global": 1.5,
    "init_std/type/qkv": 1.0,
    "residual/type/mlp": 0.5,
}
PER_MODULE = {"widths": (64, 128, 256), "depths": (2, 4, 8), "batch": 512, "seeds": 1}
PER_MODULE["tolerance"] = 0.2  # one seed


def per_module_recipe(rules: Rules) -> cdp.Recipe:
    """What a search might have found for the reference model, far from the limit in its start."""
    base = Scale(width=64, depth=2, batch=512, tokens=512 * 100)
    with torch.device("meta"):
        model = cdp.Transformer(cdp.ModelConfig(vocab=257, width=64, depth=2, head_dim=16))
    recipe = cdp.Recipe.for_model(model, base, lr=2.0**-7, init_std=0.1, rules=rules)
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=SEARCHED))


def test_a_recipe_of_per_module_values_passes_near_its_limit(tmp_path: Path) -> None:
    """With values of their own for types, layers and branches, nothing grows; from a file."""
    per_module_recipe(Rules()).save(tmp_path / "recipe.json")
    settings = PER_MODULE | {"quiet": True, "device": "cpu", "near_limit": True}
    check = cdp.coordcheck(recipe=tmp_path / "recipe.json", **settings)
    assert check.passed, check
    assert check.checked.lr == 2.0**-10


@pytest.mark.parametrize(
    "wrong",
    [
        Shift(role="residual", hyperparameter="multiplier", axis="depth", by=0.25),
        Shift(role="hidden_norm", hyperparameter="lr", axis="depth", by=-0.25),
    ],
    ids=lambda shift: f"{shift.hyperparameter}-{shift.role}-{shift.by}",
)
def test_a_recipe_of_per_module_values_with_a_wrong_rule_fails(wrong: Shift) -> None:
    """An exponent of its rules that is off by 1/4 shows, also that of the residual branches."""
    settings = PER_MODULE | {"widths": (64,), "quiet": True, "device": "cpu", "near_limit": True}
    check = cdp.coordcheck(recipe=per_module_recipe(Rules(shifts=(wrong,))), **settings)
    assert not check.passed, check


def test_the_near_limit_is_of_a_recipe() -> None:
    """Without a recipe there is nothing to bring near its limit."""
    with pytest.raises(CompletedpError, match="near_limit is of a recipe"):
        cdp.coordcheck(near_limit=True, **SIZES)


def test_a_hugging_face_config_is_checked_by_name(tmp_path: Path) -> None:
    """`hf:` has the numbers of a function that makes the same model, of the text's 257 tokens."""
    hf = pytest.importorskip("transformers")

    def config(width: int, depth: int, vocab: int) -> Any:
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": depth}
        heads = {"num_attention_heads": width // 16, "num_key_value_heads": width // 32}
        return hf.LlamaConfig(**sizes, **heads, vocab_size=vocab)

    def make(scale: Scale) -> nn.Module:
        return hf.LlamaForCausalLM(config(scale.width, scale.depth, 257))

    config(128, 3, 50_000).save_pretrained(tmp_path)
    check = cdp.coordcheck(f"hf:{tmp_path}", **SIZES)
    assert check.checked.task.name == f"hf:{tmp_path}"
    assert check.rows == cdp.coordcheck(make, **SIZES).rows


@pytest.mark.parametrize(
    ("width", "keys", "widths"),
    [
        (128, 4, (64, 128, 256)),  # 32 to a head of keys and its queries, so the usual ones
        (2048, 8, (256, 512, 1024)),
        (384, 8, (96, 192, 384)),
    ],
)
def test_the_widths_of_a_config_are_those_it_takes(
    width: int, keys: int, widths: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without widths a check of `hf:` takes the usual ones, or the least that the heads divide
    times 1, 2 and 4; the model can be made at each."""
    hf = pytest.importorskip("transformers")
    heads = {"num_attention_heads": 2 * keys, "num_key_value_heads": keys}
    hf.LlamaConfig(hidden_size=width, **heads).save_pretrained(tmp_path)
    monkeypatch.setattr(evidence_run, "run_check", lambda _, check, *__, **___: check)
    check: Any = cdp.coordcheck(f"hf:{tmp_path}")
    assert check.widths == widths
    for size in widths:
        assert check.task.blank(check.scale("width", size)) is not None
    assert check_from(CheckConfig(model=f"hf:{tmp_path}")).widths[:3] == widths
    given: Any = cdp.coordcheck(f"hf:{tmp_path}", widths=(512, 1024))
    assert given.widths == (512, 1024)


def test_a_verdict_says_what_it_is_not_of(coordinates: CheckResult) -> None:
    """An axis with one size is named under the verdicts, as nothing was compared along it."""
    assert "not checked" not in str(coordinates)
    for axis in ("width", "depth"):
        one = replace(coordinates.checked, **{f"{axis}s": (64,)})
        said = str(replace(coordinates, checked=one))
        assert f"not checked: {axis}, of one size (64); {axis}s takes two or more" in said


def test_blocks_that_nobody_calls_are_said_not_to_be_checked(coordinates: CheckResult) -> None:
    """Where no block was seen the verdict is not of what blocks add, and says so, in JSON too;
    a check of gradients looks at their tensors."""
    unseen = replace(coordinates, rows=[row for row in coordinates.rows if row.what != "blocks"])
    assert coordinates.unchecked == []
    assert "not checked: what blocks add to their stream" in " ".join(str(unseen).split())
    assert unseen.to_dict()["unchecked"] == unseen.unchecked
    assert replace(unseen, check="gradcheck").unchecked == []


def test_what_no_plan_draws_keeps_its_values() -> None:
    """A frozen tensor of the user's own, which no plan draws, is there as it was made."""
    model = foreign.Masked(32, 1)
    made = model.pos.clone()
    assert torch.equal(give_memory(without_weights(model), "cpu").get_parameter("pos"), made)
    assert not model.pos.requires_grad


def with_dropout(scale: Scale) -> nn.Module:
    model = foreign.Masked(scale.width, scale.depth)
    for block in model.blocks:
        block.get_submodule("mlp").add_module("dropout", nn.Dropout(0.5))
    return model


def test_chance_in_a_model_is_not_taken_for_change() -> None:
    """With dropout the numbers repeat, and nothing looks moved that was not trained."""
    options = MASKED | SIZES | {"make": with_dropout, "batch": 8}
    first = cdp.coordcheck(**options)
    torch.rand(7)
    assert cdp.coordcheck(**options).rows == first.rows
    still = cdp.coordcheck(**options, lr=1e-12)
    moved = {r.what: r.values for r in still.rows if r.quantity == "change"}
    assert max(*moved["stream"], *moved["unembedding"]) < 1e-6


# --- What a model returns, and what plans of it warn of

NANO: dict[str, Any] = {**SIZES, "widths": (32, 64), "context": 16, "batch": 128, "tolerance": 0.3}


class Returns(NanoGPT):
    """Divides its logits by its width, and returns them as some model does."""

    def __init__(self, scale: Scale, wrap: Callable[[Tensor], Any], divided: bool) -> None:
        super().__init__(scale.width, scale.depth)
        self.wrap, self.by = wrap, scale.width if divided else 1

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(tokens) / self.by
        if targets is None:
            return self.wrap(logits)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def own_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return model(inputs, targets)


class Given(NamedTuple):
    """A tuple whose first is no logits, but that names them."""

    loss: float
    logits: Tensor


RETURNS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda logits: logits,
    "tuple": lambda logits: (logits, None),
    "attribute": lambda logits: Given(0.0, logits),
    "dict": lambda logits: {"logits": logits},
    "log-probabilities": lambda logits: logits.log_softmax(-1),
}


@pytest.mark.filterwarnings("ignore:probed. logits = 0.015625 and was 0.03125 at base")
@pytest.mark.parametrize("form", RETURNS)
def test_what_a_model_returns_is_measured(form: str) -> None:
    """What is done behind the head shows in a row of its own, in any form that losses read."""
    sound = cdp.coordcheck(lambda scale: Returns(scale, RETURNS[form], divided=False), **NANO)
    assert sound.passed, sound
    check = cdp.coordcheck(lambda scale: Returns(scale, RETURNS[form], divided=True), **NANO)
    row, *others = check.failures()
    assert {each.quantity for each in others} <= {"factor"}  # where it is seen as one, too
    assert (row.quantity, row.what, row.expected) == ("change", "output", 0.0)
    assert row.slope == pytest.approx(-1, abs=0.3)


@pytest.mark.filterwarnings("ignore:probed. logits")
def test_a_loss_that_a_model_returns_is_measured() -> None:
    """One number is what a model with a loss of its own returns, and it moves alike at any size."""
    for divided in (False, True):
        make = partial(Returns, wrap=RETURNS["tensor"], divided=divided)
        check = cdp.coordcheck(make, loss=own_loss, **NANO)
        assert check.passed is not divided, check
        rows = (row for row in check.failures() if row.quantity != "factor")
        assert {row.what for row in rows} <= {"output"}


@pytest.mark.parametrize(
    "wrap", [lambda logits: logits[:, -1:], lambda logits: (logits.flatten(0, 1), 3)]
)
def test_what_the_head_gives_is_one_row(wrap: Callable[[Tensor], Any]) -> None:
    """Returned as it is, or a part of it, it is measured as the head's output and not again."""

    class Plain(NanoGPT):
        def forward(self, tokens: Tensor) -> Any:
            return wrap(super().forward(tokens))

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return logits_of(model(inputs)).square().mean()

    check = cdp.coordcheck(lambda scale: Plain(scale.width, scale.depth), loss=loss, **NANO)
    kinds = {row.what for row in check.rows if row.quantity == "change"}
    assert kinds == {"unembedding", "stream", "blocks"}


def test_logits_by_the_embedding_s_weight_are_measured() -> None:
    """Where no module makes the logits, what the model returns is the one sight of them; their
    multiplier, which is then in the norm before them, is no movement of the norm's."""

    class Tied(NanoGPT):
        def __init__(self, scale: Scale) -> None:
            super().__init__(scale.width, scale.depth)
            self.lm_head = nn.Identity()

        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) @ self.wte.weight.T

    sizes: dict[str, Any] = NANO | {"widths": (64, 128), "seeds": 2}
    check = cdp.coordcheck(Tied, overrides={"wte": "tied_embedding"}, **sizes)
    assert ("change", "output") in {(row.quantity, row.what) for row in check.rows}
    assert check.passed, check
    gradients = cdp.gradcheck(Tied, overrides={"wte": "tied_embedding"}, **sizes).rows
    (norm,) = (r for r in gradients if (r.quantity, r.what) == ("gradient", "output_norm"))
    assert norm.slope == pytest.approx(-1, abs=0.3)  # as it is where a module makes the logits


def test_what_cannot_be_read_is_said() -> None:
    """A model that returns no logits is checked without, and one line says so."""

    class Lists(NanoGPT):
        def forward(self, tokens: Tensor) -> Any:
            return [super().forward(tokens)]

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return model(inputs)[0].square().mean()

    with pytest.warns(UserWarning, match="not measured: it returns a list"):
        check = cdp.coordcheck(lambda scale: Lists(scale.width, scale.depth), loss=loss, **NANO)
    assert "output" not in {row.what for row in check.rows}


@pytest.mark.parametrize("function", [cdp.coordcheck, cdp.gradcheck])
def test_what_plans_warn_of_is_said_once(function: Callable[..., CheckResult]) -> None:
    """A factor that moves with the width is named before anything is measured, and not again."""

    def make(scale: Scale) -> nn.Module:
        return Returns(scale, RETURNS["tensor"], divided=True)

    asked = NANO | {"widths": (32, 64, 128), "depths": (1, 2), "seeds": 2, "steps": 2}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        function(make, parameterisations=BOTH, **asked)
    (line,) = (str(each.message) for each in said)
    assert line.startswith("probed: logits = 0.015625 and was 0.03125 at base")


def vit_with_heads(heads: int | None, scale: Scale) -> nn.Module:
    """Heads of 16, or so many of them; one that attends by no softmax has none that show."""
    model = foreign.ViT(scale.width, scale.depth)

    def attend(own: foreign.Attention, x: Tensor) -> Tensor:
        q, k, v = own.qkv(x).unflatten(-1, (3, heads or scale.width // 16, -1)).movedim(-3, 0)
        if heads == 0:
            return own.proj((q + k + v).flatten(-2))
        mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        return own.proj(mixed.transpose(1, 2).flatten(-2))

    for block in model.blocks:
        attention = block.get_submodule("attn")
        attention.forward = partial(attend, attention)  # type: ignore[method-assign]
    return model


def test_heads_that_grow_are_seen_with_any_data() -> None:
    """No probe can run a classifier of images: its heads are seen as it is measured."""
    asked = SIZES | {"batch": 16, "steps": 2, "tolerance": 1.0}
    grown = VIT | {"make": partial(vit_with_heads, 4)}
    with pytest.raises(CompletedpError, match="head_dim is 32 and was 16 at base"):
        cdp.coordcheck(**grown, **asked)
    cdp.coordcheck(**VIT | {"make": partial(vit_with_heads, None)}, **asked)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        unseen = VIT | {"make": partial(vit_with_heads, 0), "parameterisations": BOTH}
        cdp.coordcheck(**unseen, **asked | {"seeds": 2, "depths": (1, 2)})
    assert ["head size not visible" in str(each.message) for each in said] == [True]


def two_batches(split: str, examples: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    yield from itertools.islice(foreign.masked_text(split, examples, seed), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 3}, "unknown setting 'step'"),
        ({"parameterisations": "sp"}, r"parameterisations = 'sp' must be a sequence"),
        ({"widths": 64}, "widths = 64 must be a sequence"),
        ({"overrides": {"a": "qkv"}}, "'a=qkv' is for a model of your own"),
        ({"data": foreign.images}, "reference model reads a folder of tokens"),
        ({**MASKED, "text": "stdlib"}, "text 'stdlib' and data are both given"),
        ({**MASKED, "data": two_batches}, "'train' ended after 2 batches"),
        ({**MASKED, "loss": lambda *_: 3}, "the loss must be one number"),
        ({"make": foreign.masked}, "'foreign:masked' has 64 tokens, and the check's text 257"),
        ({"make": 3}, "the model is a int"),
        ({"recipe": "nowhere.json"}, "'nowhere.json'"),
        ({"loss": "nowhere:loss"}, "'nowhere:loss'"),
    ],
)
def test_impossible_requests(options: dict[str, Any], message: str) -> None:
    """What cannot be checked is one line that quotes it."""
    with pytest.raises(CompletedpError, match=message):
        cdp.coordcheck(**SIZES | options)


@pytest.mark.parametrize("columns", [80, 100])
def test_checks_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its columns every row is there, whatever it is called, and no number is cut."""
    rows = [
        Row(
            parameterisation="completedp",
            axis="tokens",
            quantity="gradient",
            what=what,
            expected=-0.5,
            slope=-1 - number / 100,
            error=0.0123,
            verdict="known" if what == "output_norm" else "fail",
        )
        for number, what in enumerate(MODULE_TYPES)
    ]
    monkeypatch.setenv("COLUMNS", str(columns))
    text = check_text(rows)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    for row in rows:
        assert f"{row.slope:+.2f}" in text
    assert "\nknown: " in text


@pytest.mark.parametrize(
    ("seeds", "widths", "said"),
    [
        (3, (64, 256), []),
        (1, (64, 256), ["one seed"]),
        (1, (32, 128), ["one seed", "wide models"]),
        (3, (64, 128), ["widths of 64 to 128 are too near each other for a slope"]),
    ],
)
def test_what_may_fail_sound_rules_is_said(
    seeds: int, widths: tuple[int, ...], said: list[str]
) -> None:
    """One seed, narrow models and sizes near each other fail sound rules as well: a check that
    fails says so, also in its JSON."""
    checked = make_check(settings=CheckSettings(seeds=seeds, widths=widths))
    failed = Row(
        parameterisation="completedp",
        axis="width",
        quantity="own",
        what="qkv",
        expected=0.0,
        slope=1.0,
        error=None,
        verdict="fail",
    )
    found = CheckResult(check="coordcheck", checked=checked, rows=[failed])
    assert len(found.doubts) == len(said)
    assert all(words in line for words, line in zip(said, found.doubts, strict=True))
    assert str(found).count("in doubt: ") == len(said)
    assert found.to_dict()["doubts"] == found.doubts
    assert not CheckResult(check="coordcheck", checked=checked, rows=[]).doubts
    own = make_check(recipe="default", settings=CheckSettings(widths=(64, 256)))
    (line,) = CheckResult(check="coordcheck", checked=own, rows=[failed]).doubts
    assert "near_limit" in line


class Fading(Block):
    """Attention that a wider model multiplies by less."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x)) * x.shape[-1] ** -0.5
        return x + self.mlp(self.ln_2(x))


def fading(scale: Scale) -> torch.nn.Module:
    """A branch over the root of the width, which no slope of a feature shows."""
    model = NanoGPT(scale.width, 0)
    model.h = torch.nn.ModuleList(Fading(scale.width) for _ in range(scale.depth))
    return model


@pytest.mark.parametrize("check", [cdp.coordcheck, cdp.gradcheck])
@pytest.mark.filterwarnings("ignore:probed")
def test_a_factor_of_the_models_own_that_moves_fails(check: Any) -> None:
    """It is on top of every rule: a row of its own with the power it goes by, and no pass."""
    found = check(fading, widths=(32, 64), depths=(2, 4), steps=2, seeds=1, batch=128, quiet=True)
    (row,) = [row for row in found.rows if row.quantity == "factor"]
    assert (row.axis, row.what, row.verdict) == ("width", "the attn branch", "fail")
    assert row.slope == pytest.approx(-0.5, abs=1e-3)
    assert not found.passed
    assert row in found.failures("completedp", "width")


def test_a_check_in_python_is_kept_as_its_call(tmp_path: Path) -> None:
    """What is written says by which call it was made, with every setting that was given."""
    sizes = {"widths": (64, 128), "depths": (1,), "steps": 1, "seeds": 1, "context": 16}
    cdp.coordcheck(**sizes, batch=32, lr=2**-9, out=tmp_path, quiet=True)
    saved = json.loads((tmp_path / "coordcheck.json").read_text())
    assert saved["command"] == (
        f"cdp.coordcheck(widths=[64, 128], depths=[1], out={str(tmp_path)!r}, quiet=True, "
        "steps=1, seeds=1, context=16, batch=32, lr=0.001953125)"
    )
