"""What a recipe is known to be good for: its evidence, tau, and the cautions of a plan."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import BASE, error_of
from hypothesis import given
from hypothesis import strategies as st
from models import make_model, make_plan, make_recipe, scale
from shipped_recipes import TRIALS, ship

import completedp as cdp
from completedp.apply.plan import make_plan as plan_quietly
from completedp.cli.recipe import ChangeVerb
from completedp.studies.config import StudyConfig
from completedp.theory.evidence import Evidence, Rung, Standing
from completedp.theory.recipe import Recipe
from completedp.theory.recipe_page import recipe_page
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios, Scale
from completedp.theory.schedule import Schedule
from completedp.theory.timescale import base_timescales, matrix_range, timescale
from completedp.theory.transfer import Transfer
from completedp.theory.trust import (
    LEAST_DEPTH,
    LEAST_MEMORY,
    LEAST_STEPS,
    LEAST_TOKENS_PER_PARAMETER,
    LEAST_WIDTH,
    LONGEST_TAU,
    beyond_measured_batch,
    doubts,
    far_horizon,
    few_steps,
    few_tokens,
    idle_decay,
    small_base,
    unchecked,
)

GOOD = Scale(width=256, depth=4, batch=1024, tokens=1024 * 5000)
WIDE = Ratios(width=2.0)


def checked_at(*ratios: Ratios, base: Scale = GOOD, losses: tuple[float, ...] = (2.0,)) -> Evidence:
    """Evidence of rungs at the base and at some ratios to it."""
    rungs = [
        Rung(scale=base.times(each), standings=[Standing(candidate="found", losses=losses)])
        for each in (Ratios(), *ratios)
    ]
    return Evidence(rungs=tuple(rungs), chosen="found", tokens_per_parameter=25.0)


def good_recipe(evidence: Evidence | None) -> Recipe:
    return replace(Recipe.default(), base=GOOD, evidence=evidence)


# tau ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("independent", [False, True])
def test_tau_is_how_long_decay_takes_to_forget(independent: bool) -> None:
    """AdamW without gradients, run for tau run lengths, leaves 1/e of a weight."""
    lr, decay, steps = 0.01, (0.002 if independent else 0.2), 500
    tau = timescale(lr, decay, steps, independent=independent)
    assert tau == pytest.approx(1.0)
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    torch_decay = decay / lr if independent else decay
    optimizer = torch.optim.AdamW([weight], lr=lr, weight_decay=torch_decay)
    weight.grad = torch.zeros_like(weight)
    for _ in range(round(tau * steps)):
        optimizer.step()
    assert weight.item() == pytest.approx(math.exp(-1), rel=2e-3)
    assert timescale(lr, 0.0, steps, independent=independent) == math.inf


@pytest.mark.parametrize("convention", ["torch", "independent"])
@pytest.mark.parametrize("way", ["buffer", "fold"])
@given(batch=st.integers(0, 3), tokens=st.integers(0, 4))
def test_rules_keep_tau_along_batch_and_tokens(
    convention: str, way: Any, batch: int, tokens: int
) -> None:
    """However a multiplier is carried and decay is meant, tau at the target is that at base."""
    log2 = {"lr/type/qkv": 1.0, "weight_decay/depth/2": -2.0}
    recipe = make_recipe(log2, rules=Rules(weight_decay=convention, beta_rule="power"))
    target = scale(batch=BASE["batch"] * 2**batch, tokens=BASE["tokens"] * 2 ** (batch + tokens))
    found = plan_quietly(make_model(device="meta"), recipe, target, multipliers=way)
    at_base = base_timescales(recipe)
    for tensor in found.tensors:
        low, high = at_base[tensor.info.type]
        assert low * 0.999 <= tensor.tau <= high * 1.001
        group_decay = tensor.lr * tensor.knobs["weight_decay"] * target.steps
        assert tensor.tau == pytest.approx(1 / group_decay)


def test_tau_is_shown_wherever_a_plan_is() -> None:
    """The table, the explanation and the export say it; what does not decay has no end."""
    found = make_plan(make_recipe(no_decay=("hidden_norm",)))
    tensor, norm = found["blocks.0.attn.qkv.weight"], found["blocks.0.attn_norm.weight"]
    row = next(line for line in str(found).splitlines() if ".qkv." in line)
    assert row.split()[-1] == f"{tensor.tau:.3g}"
    assert "infinite: no decay" in found.explain(norm.name)
    line = found.explain(tensor.name, "tau")
    assert f"{tensor.tau:.4g} run lengths" in line
    assert "\n" not in line
    taus = {each["name"]: each["tau"] for each in found.to_dict()["tensors"]}
    assert (taus[tensor.name], taus[norm.name]) == (tensor.tau, None)


# doubts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("small", "ratios", "named"),
    [
        ({"width": LEAST_WIDTH - 1}, WIDE, f"width {LEAST_WIDTH - 1} (better {LEAST_WIDTH}"),
        ({"depth": LEAST_DEPTH - 1}, Ratios(depth=2.0), f"depth {LEAST_DEPTH - 1}"),
        ({"tokens": 1024 * (LEAST_STEPS - 1)}, WIDE, f"{LEAST_STEPS - 1} steps"),
    ],
)
def test_small_bases_are_doubted(small: dict[str, int], ratios: Ratios, named: str) -> None:
    """Just below a threshold is said with its number, where the target grows; at it, nothing."""
    base = replace(GOOD, **small)
    (line,) = small_base(base, ratios, 20.0)
    assert named in line
    assert list(small_base(base, Ratios(), 20.0)) == []
    ((axis, size),) = small.items()
    at_it = replace(base, **{axis: size + (1024 if axis == "tokens" else 1)})
    assert list(small_base(at_it, ratios, 20.0)) == []


def test_short_bases_are_doubted_by_their_model() -> None:
    """Tokens a parameter count as recorded, else as told; all faults of a base are one line."""
    few = LEAST_TOKENS_PER_PARAMETER - 0.5
    target = GOOD.times(WIDE)
    told = list(doubts(good_recipe(None), target, tokens_per_parameter=few))
    assert "9.5 tokens a parameter" in told[0]
    recipe = good_recipe(checked_at(WIDE))
    assert list(doubts(recipe, target, tokens_per_parameter=few)) == []  # it records 25
    tiny = Scale(width=16, depth=1, batch=64, tokens=640)
    (line,) = small_base(tiny, Ratios(width=4.0, depth=4.0), 0.1)
    assert line.count("better") == 4


def test_the_base_models_size_is_worked_out_from_the_target() -> None:
    """A plan of a larger model counts the base's parameters to within a few in a hundred."""
    recipe = make_recipe()
    params = sum(p.numel() for p in make_model(device="meta").parameters())
    found = make_plan(recipe, width=256, depth=8)
    (line, *_) = found.cautions
    assert f"{BASE['tokens'] / params:.2g} tokens a parameter" in line


@pytest.mark.parametrize(
    ("evidence", "asked", "said"),
    [
        (None, Ratios(width=4.0), "records no run that checked it; asked for: width x4, depth x1"),
        (None, Ratios(), None),
        (checked_at(), Ratios(tokens=2.0), "checked at its base alone; asked for: width x1"),
        (checked_at(Ratios(width=2, tokens=4)), Ratios(width=2, tokens=4), None),
        (checked_at(Ratios(width=2, tokens=4)), Ratios(tokens=2), None),
        (
            checked_at(Ratios(width=2, tokens=4)),
            Ratios(width=4, depth=4, batch=2, tokens=16),
            "checked to width x2, depth x1, batch x1, tokens x4; asked for: x4, x4, x2, x16",
        ),
        (checked_at(WIDE), Ratios(width=0.25), "asked for: x0.25, x1, x1, x1"),
        (checked_at(WIDE, losses=(2.0, math.inf)), WIDE, "records no run"),  # it diverged there
    ],
)
def test_one_line_says_how_far_a_recipe_was_checked(
    evidence: Evidence | None, asked: Ratios, said: str | None
) -> None:
    """Beyond the rungs on which the values trained, along any axis, both are quoted."""
    lines = list(unchecked(good_recipe(evidence), asked))
    assert [said in line for line in lines if said] == [True] * (said is not None)
    assert len(lines) == (said is not None)


def test_a_far_horizon_is_said() -> None:
    """What exponents differ by is told from where the recipe was checked, and not before."""
    recipe = Recipe.default()
    assert recipe.evidence is not None
    checked = recipe.evidence.ranges(recipe.base)["tokens"][1]
    assert not list(far_horizon(recipe, Ratios(tokens=99 * checked)))
    (line,) = far_horizon(recipe, Ratios(tokens=10_000 * checked))
    assert "exponents of 0.25 and 0.5 give learning rates that differ x10," in line
    assert "this recipe has 0.25" in line
    fixed = recipe.with_rules(axes=("width", "depth"))
    assert not list(far_horizon(fixed, Ratios(tokens=10_000 * checked)))


def test_a_batch_in_sequences_is_doubted() -> None:
    """A batch far below the base's is quoted, with what it counts; half of the base's is not."""
    base = cdp.Recipe.default().base
    small = replace(base, batch=64)
    (line,) = few_tokens(small, small / base)
    assert "64 tokens" in line
    assert "not sequences" in line
    half = replace(base, batch=base.batch // 2)
    assert list(few_tokens(half, half / base)) == []


@pytest.mark.parametrize(
    ("batch", "tokens", "doubted"),
    [(4.0, 1.0, True), (2.0, 1.0, False), (4.0, 4.0, False), (8.0, 2.0, True), (1.0, 0.25, False)],
)
def test_a_batch_that_outgrows_its_tokens_is_doubted(
    batch: float, tokens: float, doubted: bool
) -> None:
    """Beyond twice what the tokens grow by, both ratios are quoted; a shorter run alone is none."""
    ratios = Ratios(batch=batch, tokens=tokens)
    lines = list(few_steps(GOOD.times(ratios), ratios))
    assert len(lines) == doubted
    assert all(f"batch grows x{batch:g} and the tokens x{tokens:g}" in line for line in lines)


@pytest.mark.parametrize(
    ("steps", "batch", "doubt"),
    [(8192, 8, ""), (32768, 16, "critical batch"), (2048, 8, "leaves 256 steps"), (1024, 2, "")],
)
def test_kept_betas_are_doubted_beyond_what_was_tried(steps: int, batch: int, doubt: str) -> None:
    """Kept betas are doubted where the batch outgrew what was tried, or leaves too few steps."""
    base, ratios = replace(GOOD, tokens=GOOD.batch * steps), Ratios(batch=batch)
    lines = list(few_steps(base.times(ratios), ratios, betas_kept=True))
    assert len(lines) == bool(doubt)
    assert all(doubt in line and "beta_rule" not in line for line in lines)


def test_a_batch_beyond_what_was_fitted_is_doubted() -> None:
    """A recipe that records how far its batch rule held warns beyond that, for as many tokens."""
    batch = make_recipe().base.batch
    recipe = replace(make_recipe(), provenance={"horizon_batch_holds_to": 2.0 * batch})
    (line,) = beyond_measured_batch(recipe, Ratios(batch=4, tokens=1))
    assert f"hold to {2 * batch:,} tokens a step, from {batch:,}" in line
    for within in (Ratios(batch=2), Ratios(batch=4, tokens=2), Ratios(tokens=4)):
        assert list(beyond_measured_batch(recipe, within)) == []
    assert list(beyond_measured_batch(make_recipe(), Ratios(batch=64))) == []


def test_an_example_batch_for_the_default_recipe_is_doubted() -> None:
    """512, as of sequences, is too few tokens a step for a recipe whose base has 4,096."""
    base = cdp.Recipe.default().base
    target = replace(base, batch=512)
    assert len(list(few_tokens(target, target / base))) == 1


def test_a_recipe_is_changed_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`recipe change` writes what `with_rules` and `with_schedule` give; without a change it says
    what to give."""
    out = str(tmp_path / "new.json")
    assert ChangeVerb(recipe="default", beta_rule="linear", out=out).run() == 0
    assert Recipe.load(out) == Recipe.default().with_rules(beta_rule="linear")
    assert f"completedp recipe compare default {out}" in capsys.readouterr().err
    assert "nothing to change: give --parameterisation, " in error_of(
        ChangeVerb(recipe="default", out=out).run
    )
    assert ChangeVerb(recipe="default", beta_rule="linear", out=out).run() == 0  # the same again
    verb = ChangeVerb(recipe="default", schedule="wsd", final=0.1, token_exponent=0.5, out=out)
    assert f"{out!r} is there, and is another" in error_of(verb.run)
    (tmp_path / "notes.json").write_text("{}")
    lost = replace(verb, out=str(tmp_path / "notes.json"))
    assert "is there, and is another" in error_of(lost.run)
    Path(out).unlink()
    assert verb.run() == 0
    changed = Recipe.default().with_rules(token_exponent=0.5)
    assert Recipe.load(out) == changed.with_schedule(kind="wsd", final=0.1)
    assert "warmup = 2.0" in error_of(ChangeVerb(recipe="default", warmup=2.0, out=out).run)
    odd = ChangeVerb(recipe="default", token_exponent=0.5, out="new")
    assert "--out new must end in .json" in error_of(odd.run)


def test_another_schedule_was_not_what_was_measured() -> None:
    """A recipe with another schedule keeps on record which search found its values, and nothing
    that was measured; with the same one it is the recipe itself."""
    recipe = Recipe.default()
    other = recipe.with_schedule(final=0.25)
    assert other.schedule == replace(recipe.schedule, final=0.25)
    assert recipe.evidence is not None
    assert other.evidence == replace(recipe.evidence, rungs=(), chosen=None)
    assert other.evidence.trials == recipe.evidence.trials > 0
    assert other == replace(recipe, schedule=other.schedule, evidence=other.evidence)
    assert recipe.with_schedule(warmup=recipe.schedule.warmup) is recipe
    assert "'warm_up'" in error_of(lambda: recipe.with_schedule(warm_up=0.1))
    unused = error_of(lambda: recipe.with_schedule(decay=0.3))
    assert "a cosine schedule has no decay, which would change nothing: choose wsd" in unused
    assert "choose cosine or wsd" in error_of(
        lambda: recipe.with_schedule(kind="constant", final=0.5)
    )
    same = error_of(lambda: recipe.with_schedule(decay=recipe.schedule.decay))
    assert "a cosine schedule has no decay" in same
    assert recipe.with_schedule(kind="wsd", decay=0.3).schedule.decay == 0.3


def test_a_schedule_of_another_kind_has_nothing_of_the_old_ones_fall() -> None:
    """Warm-up and final rate stay, where the kind has one; the power that was tuned for another
    fall, and pieces, do not; and a recipe's page has the parts of its kind."""
    recipe = make_recipe().with_schedule(power=0.5, warmup=0.1, final=0.2)
    assert recipe.with_schedule(kind="wsd").schedule == Schedule(
        kind="wsd", warmup=0.1, final=0.2, decay=0.2
    )
    assert recipe.with_schedule(kind="constant").schedule == Schedule(kind="constant", warmup=0.1)
    assert recipe.with_schedule(kind="wsd", power=2.0).schedule.power == 2.0
    pieces = recipe.with_schedule(kind="piecewise", boundaries=(0.5,), levels=(1.0, 0.1))
    assert pieces.with_schedule(kind="cosine").schedule == Schedule(warmup=0.1)
    assert "kind wsd, warmup 0.1, final 0.2, decay 0.2" in str(recipe.with_schedule(kind="wsd"))
    assert "power 0.5" in str(recipe)
    assert "decay" not in str(recipe).partition("schedule")[2].partition("\n")[0]


def test_a_search_begins_with_the_rules_and_the_schedule_that_are_given() -> None:
    """Flags that are given are those of the recipe it starts from; without any it is the recipe."""
    recipe = make_recipe()
    assert StudyConfig(data="tokens").with_choices(recipe) is recipe
    given: dict[str, Any] = {"schedule": "wsd", "warmup": 0.1, "final": 0.2, "decay": 0.3}
    config = StudyConfig(data="tokens", token_exponent=0.25, beta_rule="keep", **given)
    schedule = {"kind": "wsd", "warmup": 0.1, "final": 0.2, "decay": 0.3}
    ruled = recipe.with_rules(token_exponent=0.25, beta_rule="keep")
    assert config.with_choices(recipe) == ruled.with_schedule(**schedule)


def test_the_horizon_is_measured_as_far_as_it_was_fitted() -> None:
    """What a recipe's fit says of tokens counts as measured: only beyond it the exponent is
    doubted."""
    recipe = Recipe.default()
    assert recipe.evidence is not None
    checked = recipe.evidence.ranges(recipe.base)["tokens"][1]
    far = Ratios(tokens=200 * checked)
    assert list(far_horizon(recipe, far))
    reach = 16 * checked * recipe.base.tokens
    fit = {"horizon_tokens_to": reach, "horizon_token_exponent": recipe.rules.token_exponent}
    fitted = replace(recipe, provenance={**recipe.provenance, **fit})
    assert not list(far_horizon(fitted, far))
    assert list(far_horizon(fitted.with_rules(token_exponent=0.5), far))
    (line,) = far_horizon(fitted, Ratios(tokens=1600 * checked))
    assert line.startswith(f"the tokens grow x{1600 * checked:,.0f}, x100 of what was measured")


def test_a_decay_that_does_nothing_is_said() -> None:
    """If every matrix forgets more slowly than the threshold; none decaying is a choice."""
    (line,) = idle_decay([LONGEST_TAU + 1.0, 400.0, math.inf])
    assert "does nothing" in line
    assert "is 11 run lengths" in line
    assert list(idle_decay([LONGEST_TAU - 1.0, 400.0])) == []
    assert list(idle_decay([math.inf, math.inf])) == []
    assert list(idle_decay([])) == []


def test_a_plan_warns_and_says_it_first() -> None:
    """`cdp.plan` warns in a category of its own; the same lines begin the table and the export."""
    model, recipe = make_model(128, device="meta"), make_recipe()
    with pytest.warns(cdp.ScaleWarning) as caught:
        found = cdp.plan(model, recipe, scale(width=128))
    lines = [str(warning.message) for warning in caught]
    assert lines == list(found.cautions) == found.to_dict()["cautions"]
    assert len(lines) == 3
    assert str(found).startswith(f"caution: {lines[0]}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", cdp.ScaleWarning)
        plan_quietly(model, recipe, scale(width=128))  # trials are planned so
        decaying = replace(recipe, hyperparameters=make_recipe(weight_decay=2.0).hyperparameters)
        cdp.plan(make_model(device="meta"), decaying, scale())  # at base nothing is asked of it


# What people see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 100, 120, 180])
@pytest.mark.parametrize("depth", [2, 12])
def test_the_table_fits_the_terminal(
    columns: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its columns there is a row for every type, and no number is cut."""
    monkeypatch.setenv("COLUMNS", str(columns))
    log2 = {"lr/type/qkv": -0.123456, "one_minus_beta1/type/qkv": 0.5}
    found = make_plan(make_recipe(log2), width=256, depth=depth)
    text = str(found)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    for tensor in found.tensors:
        for value in (tensor.lr, tensor.weight_decay, tensor.eps, tensor.tau):
            assert f"{value:.3g}" in text
    assert f"blocks.0-{depth - 1}.attn.qkv.weight" in text
    assert f"{found['blocks.0.attn.qkv.weight'].beta1:.4g}" in text


def test_names_too_long_for_the_terminal_go_on_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name is folded, whole, and the numbers beside it stay."""
    monkeypatch.setenv("COLUMNS", "80")

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_name_that_is_far_longer_than_others = make_model(device="meta")

    found = cdp.plan(Wrapper(), make_recipe(), scale())
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = text.replace("\n", " ").split()
    assert f"{found.tensors[0].lr:.3g}" in rows


def test_shipped_recipes_load_by_name() -> None:
    """Every name is a recipe, the default first; another name is a line that lists them."""
    assert Recipe.names()[0] == "default"
    for name in Recipe.names():
        assert Recipe.shipped(name) == Recipe.find(name)
    assert Recipe.shipped("default") == Recipe.default()
    assert "adamw-reference" in error_of(Recipe.shipped, "nothing")
    assert "by name there are default" in error_of(Recipe.find, "nothing")


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    """What is no name is a path; a fault in a file there is said as it is."""
    make_recipe().save(tmp_path / "mine.json")
    assert Recipe.find(tmp_path / "mine.json") == Recipe.find(str(tmp_path / "mine.json"))
    (tmp_path / "mine.json").write_text("{")
    assert "by name" not in error_of(Recipe.find, tmp_path / "mine.json")


def test_the_reference_is_what_for_model_starts_from() -> None:
    """adamw-reference has the usual values, rules and schedule, and not one multiplier."""
    reference = Recipe.shipped("adamw-reference")
    model = make_model(256, 4, "meta", head_dim=64)
    usual = Recipe.for_model(model, reference.base)
    assert dict(reference.hyperparameters.log2) == {}
    assert set(usual.widths.items()) <= set(reference.widths.items())
    kept = {"widths": reference.widths, "provenance": reference.provenance}
    assert replace(usual, evidence=None, **kept) == reference


def test_the_defaults_evidence_is_of_its_values() -> None:
    """The recorded tau and tokens a parameter are those of the recipe and its base model."""
    recipe = Recipe.default()
    assert recipe.evidence is not None
    assert recipe.evidence.tau == pytest.approx(matrix_range(base_timescales(recipe)), rel=1e-3)
    model = make_model(64, 4, "meta", head_dim=64, vocab=1024)
    parameters = sum(p.numel() for p in model.parameters())
    recorded = recipe.evidence.tokens_per_parameter
    assert recorded == pytest.approx(recipe.base.tokens / parameters, rel=1e-2)


@pytest.mark.parametrize(("batch", "warns"), [(1.0, False), (4.0, False), (16.0, True)])
def test_a_short_memory_is_said(batch: float, warns: bool) -> None:
    """A batch for which second moments forget within ten steps is a caution with both numbers."""
    recipe = Recipe.shipped("strong-global").with_rules(beta_rule="power")
    target = recipe.base.times(Ratios(batch=batch, tokens=batch))
    model = make_model(target.width, target.depth, "meta", head_dim=64)
    found = plan_quietly(model, recipe, target)
    beta2 = min(tensor.values["beta2"].target for tensor in found.tensors)
    lines = [line for line in found.cautions if "second moments" in line]
    assert bool(lines) is warns is (1 / (1 - beta2) < LEAST_MEMORY)
    assert all(f"falls to {beta2:.3g}:" in line for line in lines)


def test_kept_betas_are_no_short_memory() -> None:
    """What a caution of a short memory says to set ends it."""
    recipe = Recipe.shipped("strong-global").with_rules(beta_rule="power")
    target = recipe.base.times(Ratios(batch=16, tokens=16))
    model = make_model(target.width, target.depth, "meta", head_dim=64)
    (said,) = (line for line in plan_quietly(model, recipe, target).cautions if "moments" in line)
    assert said.endswith('recipe.with_rules(beta_rule="keep")')
    assert "shorten the optimizer's memory 4 times" in said  # 16 / 16^(2 x 1/4)
    kept = plan_quietly(model, recipe.with_rules(beta_rule="keep"), target)
    assert not [line for line in kept.cautions if "moments" in line]
    assert all(t.values["beta2"].base == t.values["beta2"].target for t in kept.tensors)
    assert "r 4 (betas kept);" in str(kept)


@pytest.mark.parametrize(
    ("tokens", "rule", "warns"),
    [(4, "power", False), (8, "power", True), (8, "linear", True), (64, "keep", False)],
)
def test_a_long_memory_is_said(tokens: int, rule: str, warns: bool) -> None:
    """Memories that become eight times longer are a caution, whose advice ends it."""
    recipe = make_recipe(rules=Rules(beta_rule=rule))
    lines = list(doubts(recipe, recipe.base.times(Ratios(tokens=tokens))))
    found = [line for line in lines if f"memory {tokens} times longer" in line]
    assert len(found) == warns
    assert all(line.endswith('recipe.with_rules(beta_rule="keep")') for line in found)


@pytest.mark.parametrize("rule", ["linear", "power"])
@pytest.mark.parametrize("exponent", [0.5, 0.25])
def test_the_printed_r_is_what_the_betas_follow(rule: str, exponent: float) -> None:
    """By either rule and any token exponent the plan's r takes the base's beta to the target's."""
    recipe = Recipe.default().with_rules(beta_rule=rule, token_exponent=exponent)
    target = recipe.base.times(Ratios(batch=2, tokens=8))
    model = make_model(target.width, target.depth, "meta", head_dim=64)
    found = plan_quietly(model, recipe, target)
    (printed,) = (line for line in str(found).split("ratios")[1].split(",") if line[:3] == " r ")
    r = float(printed.split(";")[0].split()[1])
    assert r == pytest.approx(2 / 8 ** (2 * exponent), rel=1e-3)
    for tensor in found.tensors:
        base, there = tensor.values["beta1"].base, tensor.values["beta1"].target
        expected = 1 - (1 - base) * r if rule == "linear" else base**r
        assert there == pytest.approx(expected, rel=1e-3)


def test_python_takes_a_recipe_as_the_command_line_does(tmp_path: Path) -> None:
    """A name or a file in the place of a recipe gives the same plan."""
    recipe = Recipe.shipped("strong-global")
    model = make_model(64, 4, "meta", head_dim=64)
    recipe.save(tmp_path / "mine.json")
    expected = cdp.plan(model, recipe, recipe.base).to_dict()
    for named in ("strong-global", tmp_path / "mine.json", str(tmp_path / "mine.json")):
        assert cdp.plan(model, named, recipe.base).to_dict() == expected
    with pytest.raises(cdp.CompletedpError, match=r"no recipe at 'no.json'; by name there are"):
        cdp.plan(model, "no.json", recipe.base)


@pytest.mark.parametrize("name", ["default", "strong-global"])
def test_what_ships_is_what_was_found(name: str) -> None:
    """A tuned recipe follows from its search's own file by the script that says so, its betas kept,
    with the searches on record."""
    found = ship(Recipe.load(TRIALS.with_name(f"{name}.json")))
    kept, ships = found.with_rules(beta_rule="keep"), Recipe.shipped(name)
    measured = {"evidence": None, "provenance": {}}  # the critical batch, besides
    assert replace(ships, **measured) == replace(kept, **measured)
    assert found.evidence is not None
    assert ships.evidence is not None
    assert ships.evidence.searches == found.evidence.searches
    assert ships.evidence.chosen == "beta_rule=keep"


def test_a_search_on_other_data_than_the_ladder_s_is_said() -> None:
    """A recipe's page says which searches trained on other data than what was checked."""
    recipe = Recipe.default()
    assert recipe.evidence is not None
    said = " ".join(recipe_page("default", recipe).split())
    assert said.count("on other data (digest cc9775ef)") == len(recipe.evidence.searches)
    same = [replace(each, digest=recipe.evidence.digest) for each in recipe.evidence.searches]
    evidence = replace(recipe.evidence, searches=tuple(same))
    assert "other data" not in recipe_page("default", replace(recipe, evidence=evidence))


def test_the_defaults_gate_has_what_a_plan_would_lend_it() -> None:
    """The base model had none: its values are those of a recipe that does not know gates."""
    recipe, gate = Recipe.default(), "mlp_gate"
    tuned = recipe.hyperparameters
    log2 = {name: octaves for name, octaves in tuned.log2.items() if not name.endswith(gate)}
    assert len(log2) < len(tuned.log2)
    without = replace(
        recipe,
        widths={name: width for name, width in recipe.widths.items() if name != gate},
        hyperparameters=replace(tuned, log2=log2),
    )
    own, borrowed = Transfer(recipe, recipe.base), Transfer(without, recipe.base)
    assert borrowed.is_borrowed(gate)
    for name in own.hyperparameters(gate):
        assert own.value(name, gate, layer=1).base == pytest.approx(
            borrowed.value(name, gate, layer=1).base, rel=1e-12
        )


def verb(*arguments: str) -> Any:
    from completedp.cli.main import _parse

    return _parse(["recipe", *arguments])


def searched_recipe() -> Recipe:
    """One as a wide search leaves it: multipliers of every kind, a ladder, long words."""
    types = ("embedding", "qkv", "mlp_out", "unembedding")
    log2 = {f"{t}/type/{m}": -7.123 for t in ("lr", "eps", "weight_decay") for m in types}
    log2 |= {f"{t}/depth/2": 0.25 for t in ("lr", "one_minus_beta1", "one_minus_beta2")}
    log2 |= {"init_std/type/qkv": 1.5, "residual/type/attn": -1.0, "lr/layer/mlp_out/1": 0.5}
    evidence = checked_at(Ratios(width=2, tokens=4), base=scale(), losses=(2.5, 2.25, 2.0))
    return replace(make_recipe(log2), evidence=replace(evidence, text="words " * 40))


def test_a_recipe_is_shown_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`recipe show` has every value, multiplier and rung, and no longer lines than 80."""
    recipe = searched_recipe()
    recipe.save(tmp_path / "r.json")
    assert verb("show", str(tmp_path / "r.json")).run() == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= max(80, len(str(tmp_path)) + 7)  # its own path
    for value in vars(recipe.values).values():
        assert f"{value:.6g}" in text
    for multiplier in recipe.hyperparameters.log2.values():
        assert f"x{2.0**multiplier:.3g}" in text
    for part in ("mlp_out, block 1", "block 2", "2.2500 +- 0.1443", "width x2, tokens x4"):
        assert part in text
    assert "to width x2, depth x1, batch x1, tokens x4" in text


def test_recipes_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`recipe compare` names what differs, with both values, and nothing else but how far both
    were checked."""
    assert verb("compare", "adamw-reference", "adamw-reference").run() == 0
    assert capsys.readouterr().out == "adamw-reference and adamw-reference do not differ\n"
    checked = "both were checked to width x4, depth x2, batch x16, tokens x8"
    for other in ("default", "strong-global"):
        assert verb("compare", "default", other).run() == 0
        assert capsys.readouterr().out.splitlines().count(checked) == 1
    recipe = Recipe.shipped("adamw-reference").with_values(lr=0.25)
    recipe.save(tmp_path / "r.json")
    assert verb("compare", "adamw-reference", str(tmp_path / "r.json"), "--json").run() == 0
    found = json.loads(capsys.readouterr().out)["differences"]
    assert found.pop("values.lr") == [0.00390625, 0.25]
    assert all(key.startswith("evidence") for key in found)
    wider = replace(recipe.hyperparameters, log2={"init_std/type/embedding": 2.34})
    replace(recipe, hyperparameters=wider).save(tmp_path / "r.json")
    assert verb("compare", str(tmp_path / "r.json"), "adamw-reference").run() == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows["lr"] == ["0.25", "0.00390625"]
    assert rows["init_std/type/embedding"] == ["x5.063", "x1"]
    assert "alpha" not in rows
    assert verb("compare", "default", "adamw-reference").run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith("qkv ") for line in lines)  # the base's width says it


def test_many_multipliers_are_compared_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Where two recipes differ in many, a cell is the second's over the first's."""
    assert verb("compare", "strong-global", "default").run() == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    begin = lines.index(["multipliers", "of", "default,", "in", "those", "of", "strong-global:"])
    one, other = (Recipe.shipped(name) for name in ("strong-global", "default"))
    assert lines[begin + 1][0] == "lr"
    assert lines[begin + 2][:2] == ["every", "tensor"]
    ratio = 2 ** (other.hyperparameters.log2["lr/global"] - one.hyperparameters.log2["lr/global"])
    assert lines[begin + 2][2] == f"x{ratio:.3g}"
    attn = next(line for line in lines if line[:1] == ["attn"])
    assert attn[1:] == [f"x{2 ** other.hyperparameters.log2['residual/type/attn']:.3g}"]


def test_recipes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` and `show` print JSON with the evidence and what follows from it."""
    assert verb("list", "--json").run() == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == list(Recipe.names())
    assert verb("list").run() == 0
    words = capsys.readouterr().out.split()
    assert set(Recipe.names()) <= set(words)
    assert verb("show", "default", "--json").run() == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["checked"]["tokens"] == [1.0, 8.0]
    assert shown["tau"]["qkv"][0] == pytest.approx(0.571306, rel=1e-4)
    extra = ("tau", "checked")
    plain = {key: value for key, value in shown.items() if key not in extra}
    assert Recipe.from_dict(plain) == Recipe.default()


@pytest.mark.parametrize(
    ("batch", "tokens", "exponent", "said"),
    [
        (16, 16, 0.25, "r is 4: the batch x16 and, by a token exponent of 0.25, the tokens x16"),
        (16, 16, 0.5, None),  # r is 1
        (4, 16, 0.25, None),
        (16, 4, 0.25, None),  # which few steps say
        (0.5, 1 / 64, 0.25, None),  # a smaller batch raises nothing
    ],
)
def test_rates_that_rise_with_the_batch_are_said(
    batch: float, tokens: float, exponent: float, said: str | None
) -> None:
    """Where r is above 2 though the tokens grow as well, a caution has the batch at which it is."""
    recipe = make_recipe(rules=Rules(beta_rule="keep", token_exponent=exponent))
    lines = list(doubts(recipe, recipe.base.times(Ratios(batch=batch, tokens=tokens))))
    found = [line for line in lines if line.startswith("r is")]
    assert [line.startswith(said or "-") for line in found] == ([True] if said else [])
    if not said:
        return
    most = float(found[0].split("take at most ")[1].split(" tokens")[0].replace(",", ""))
    smaller = Ratios(batch=most / recipe.base.batch, tokens=tokens)
    assert recipe.rules.r(smaller) == pytest.approx(2, rel=1e-3)
