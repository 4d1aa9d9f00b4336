"""The scaling checks: they pass for Complete(d)P, fail for the rest, and see planted errors."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models import of_scale
from planted_errors import caught_by, every_shift, has_no_effect
from torch import nn

from completedp.common.errors import CompletedpError
from completedp.evidence.check import Check, check_from
from completedp.evidence.config import CheckConfig
from completedp.evidence.gradcheck import invariant_rows
from completedp.evidence.report import Report
from completedp.evidence.result import CheckResult
from completedp.evidence.run import COORDCHECK, GRADCHECK, judge, measure_all, write_check
from completedp.evidence.scaling import Measurement, sweep
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
TRAINED = ("lr", "init_std", "multiplier")


def needs_training(shift: Shift) -> bool:
    return shift.hyperparameter in TRAINED and shift.axis in ("width", "depth")


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
    report.verdict(False, "x < y")
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
    with pytest.raises(CompletedpError, match=r"'test_checks:failing' cannot be checked.*'mask'"):
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
