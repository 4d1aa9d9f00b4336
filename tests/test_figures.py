"""Figures: their verdicts on planted numbers, and small ones from end to end."""

import contextlib
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from figures_table import PAGE, with_table
from helpers import error_of
from hypothesis import given
from hypothesis import strategies as st
from store_again import restore
from studies import OPTIONS, write_tokens

from completedp.evidence.figures import (
    annealing,
    base_size,
    global_baseline,
    landscape,
    lr_width,
    schedules,
    search_curves,
    sweeps,
    tokens_exponent,
    tokens_law,
    tree,
)
from completedp.evidence.figures import lab as lab_module
from completedp.evidence.figures.bowl import Range, bottom, loss_there, next_points, points_for
from completedp.evidence.figures.figure import (
    SIZES,
    SPEEDS,
    Found,
    cost_text,
    judged,
    size_of_change,
    spread,
    student,
)
from completedp.evidence.figures.headline import (
    BEGINS,
    FROM_UNIFORM,
    GLOBAL,
    MODULE,
    PAPERS,
    SHARED,
    UNIFORM,
    Headline,
)
from completedp.evidence.figures.lab import Ended, Lab
from completedp.evidence.figures.lines import MOVES, STAYS, Curve
from completedp.evidence.figures.registry import FIGURES, figure_named
from completedp.evidence.figures.run import raw_of, run_figure, text_of
from completedp.evidence.figures.stopwatch import Stopwatch
from completedp.evidence.figures.sweeps import Sweep
from completedp.evidence.reporting.figures import figure_part
from completedp.lm.reference import ReferenceModel
from completedp.lm.shape import Shape
from completedp.studies import worker
from completedp.studies.cells import Wanted
from completedp.studies.engines import PAPER_GRID
from completedp.studies.store import Store
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.cost import short, too_small_for
from completedp.training.slots import Slots

FOUR = replace(OPTIONS, slots=4)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.1, 0.4), "pass"),
        ((0.6, 0.9), "fail"),
        ((0.4, 0.6), "not settled"),
        (None, "not settled"),
    ],
)
def test_a_verdict_is_of_the_whole_interval(interval: Any, verdict: str) -> None:
    """Within the limit it passes, beyond it fails, and across it nothing is settled."""
    assert judged("x", 0.5, interval, at_most=0.5).verdict == verdict
    assert judged("x", math.inf, (math.inf, math.inf), at_most=0.5).verdict == "not settled"


def test_the_size_of_a_change() -> None:
    """An interval around 0 has sizes from 0 on, one below it those of its ends turned round."""
    assert size_of_change(0.1, 0.3) == pytest.approx((0.0, 0.4))
    assert size_of_change(-1.0, 0.25) == pytest.approx((0.75, 1.25))


def test_intervals_of_few_seeds_are_wide() -> None:
    """Student's t is the tables', and the parts of a difference add up in squares."""
    for freedom, value in ((1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (100, 1.984)):
        assert student(freedom) == pytest.approx(value, rel=0.01)
    assert spread([1.0, 1.0], seeds=3) == pytest.approx(student(4) * math.sqrt(2))
    assert spread([3.0, 4.0], seeds=3) == pytest.approx(student(3) * 5.0)  # Welch's 3.7
    assert spread([0.01, 5.0], seeds=3) == pytest.approx(student(2) * 5.0, rel=1e-4)
    assert spread([1.0, 1.0], seeds=1) == math.inf
    assert spread([math.inf, 1.0], seeds=3) == math.inf
    assert spread([0.0, 1e-90], seeds=3) == pytest.approx(0.0, abs=1e-80)


OVER = Range(octaves=(-2.0, -1.0, 0.0, 1.0, 2.0), seeds=3, reach=8)


def measured(loss: Any, over: Range = OVER) -> dict[float, dict[int, float]]:
    """A curve as it would be measured, of losses by octave and seed."""
    losses: dict[float, dict[int, float]] = {}
    while points := next_points(losses, over):
        for octave, seed in points:
            losses.setdefault(octave, {})[seed] = loss(octave, seed)
        assert len(losses) < 40
    return losses


@given(place=st.floats(-6.5, 6.5))
def test_a_bottom_is_found_wherever_it_is(place: float) -> None:
    """The range moves on to a bottom beyond it, and seeds are trained around the bottom alone."""
    losses = measured(lambda octave, seed: 2.0 + 0.1 * (octave - place) ** 2)
    found = bottom(losses, OVER)
    assert found.octaves == pytest.approx((place,), abs=1e-6)
    whole = [octave for octave, seeds in losses.items() if len(seeds) == 3]
    assert all(abs(octave - place) < 3.0 for octave in whole)
    assert loss_there(losses, place) == pytest.approx(2.0)


def test_beside_divergence_the_step_is_halved() -> None:
    """Where the next octave diverges, points between it and the lowest bracket the bottom."""

    def loss(octave: float, seed: int) -> float:
        return math.inf if octave >= 1.0 else 2.0 + 0.1 * (octave - 0.1) ** 2

    losses = measured(loss)
    assert 0.5 in losses
    assert bottom(losses, OVER).octaves == pytest.approx((0.1,), abs=1e-6)
    assert loss_there(losses, 1.5) == math.inf


def test_a_range_may_begin_elsewhere() -> None:
    """A guess moves where a curve is looked for by whole steps, and what is found is the same."""
    moved = replace(OVER, first=2).moved(-2.6)
    assert moved.octaves == (-5.0, -4.0, -3.0, -2.0, -1.0)
    losses = measured(lambda octave, seed: (octave - 0.7) ** 2, moved)
    assert bottom(losses, moved).octaves == pytest.approx((0.7,))
    assert len(losses[-4.0]) == 2


def test_a_bottom_out_of_reach_is_not_made_up() -> None:
    """A curve that falls to the end of its reach, or diverges everywhere, has no optimum."""
    assert bottom(measured(lambda octave, seed: -octave), OVER).octaves is None
    assert bottom(measured(lambda octave, seed: math.inf), OVER).octaves is None


AT = replace(
    lr_width.FIGURE.sizes["tiny"],
    over=OVER,
    factors=(1, 2, 8),
    lines=lr_width._lines("completedp", "sp"),
)


def planted(drifts: dict[str, float], noise: float) -> dict[Curve, Any]:
    """Curves whose bottoms move by so much over the whole axis, each seed a little apart."""
    return {
        Curve(line, factor): measured(
            lambda octave, seed, line=line, factor=factor: (
                2.0
                + 0.1
                * (octave - drifts[line.name] * math.log2(factor) / 3 - noise * (seed - 1)) ** 2
            )
        )
        for line in AT.lines
        for factor in AT.factors
    }


@pytest.mark.parametrize(
    ("drifts", "noise", "verdicts"),
    [
        ({"completedp": 0.1, "sp": -3.0}, 0.02, ["pass", "pass"]),
        ({"completedp": 1.5, "sp": -0.1}, 0.02, ["fail", "fail"]),
        ({"completedp": 0.4, "sp": -0.6}, 0.3, ["not settled", "not settled"]),
    ],
)
def test_a_planted_drift_is_found(
    drifts: dict[str, float], noise: float, verdicts: list[str]
) -> None:
    """The drift over the axis is the planted one, and the verdict is that on its interval."""
    assert [line.expects for line in AT.lines] == [STAYS, MOVES]
    found = lr_width.FIGURE.judge(AT, planted(drifts, noise))
    assert [finding.verdict for finding in found.findings] == verdicts
    for finding, drift in zip(found.findings, drifts.values(), strict=True):
        assert finding.measured == pytest.approx(abs(drift), abs=1e-6)
    last = found.numbers["curves"][2]
    cost = 0.1 * drifts["completedp"] ** 2
    assert last["cost"] == pytest.approx(cost, abs=1e-6)
    assert found.svg.startswith("<svg")


def test_what_moves_and_comes_back_did_not_stay() -> None:
    """A line that is to stay put is judged where it is furthest from its beginning."""
    at = replace(AT, lines=AT.lines[:1])
    curves = {
        Curve(at.lines[0], factor): measured(
            lambda octave, seed, place=place: (octave - place - 0.02 * (seed - 1)) ** 2
        )
        for factor, place in ((1, 0.0), (2, -0.9), (8, 0.1))
    }
    (finding,) = lr_width.FIGURE.judge(at, curves).findings
    assert (finding.verdict, finding.measured) == ("fail", pytest.approx(0.9))


def test_a_drift_at_the_narrow_end_is_the_base_s() -> None:
    """Where a line that should stay does not, its drift without the first factor is told, too."""
    line = AT.lines[0]
    at = replace(AT, lines=(line,))
    curves = {
        Curve(line, factor): measured(
            lambda octave, seed, place=place: (octave - place - 0.02 * (seed - 1)) ** 2
        )
        for factor, place in ((1, 0.9), (2, 0.1), (8, 0.0))
    }
    found = lr_width.FIGURE.judge(at, curves)
    (whole,) = found.findings
    assert (whole.verdict, whole.measured) == ("fail", pytest.approx(0.9))
    (later,) = found.numbers["from_the_second"]
    assert later["drift"] == pytest.approx(-0.1)
    assert found.text.endswith(
        f"completedp, from x2 on to x8: -0.10 +- {later['half']:.2f} octaves"
    )
    stays = {curve: measured(lambda octave, seed: octave**2) for curve in curves}
    assert lr_width.FIGURE.judge(at, stays).numbers["from_the_second"] == []


def test_a_sweep_goes_on_from_its_kept_measurements(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store made of what was measured nothing is left to train, and losses are what they were,
    those of diverged trials among them; other tokens are refused."""
    figure = FIGURES["lr-batch"]
    assert isinstance(figure, Sweep)
    at = figure.sizes["tiny"]

    def trained(wanted: dict[Any, Wanted]) -> dict[Any, Ended]:
        return {
            key: Ended(loss=loss(each), first=0, lowest=0, last=0) for key, each in wanted.items()
        }

    def loss(wanted: Wanted) -> float:
        octave = wanted.octaves[0]
        return math.inf if octave > 2 else 2 + 0.1 * octave**2 + 0.01 * wanted.seed

    fake: Any = SimpleNamespace(check=lambda _: None, trained=trained)
    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "study_of", lambda *_: fake)
        before = sweeps.measure(fake, at, figure.vary)
    raw = figure.judge(at, before).raw
    with Store(str(tmp_path / "s.db")) as store:
        lab = Lab(figure.name, "tiny", store, data=tokens, options=FOUR, quiet=True)
        restored = restore(figure, {"size": "tiny", "digest": lab.digest}, raw, lab)
        assert 0 < restored <= len(raw)  # the same training is one trial
        monkeypatch.setattr(lab_module, "work_shown", lambda *_, **__: pytest.fail("trained"))
        assert sweeps.measure(lab, at, figure.vary) == before
        assert "measured on tokens abc" in error_of(
            restore, figure, {"size": "tiny", "digest": "abc"}, raw, lab
        )


def test_what_the_first_optimum_costs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the bottom has moved so far that its curve ends before the first one's optimum;
    it diverges where a trial has, and nothing is said of what nobody trained."""
    broken = math.inf

    class Study:
        def check(self, wanted: Wanted) -> None: ...

        def trained(self, wanted: dict[Any, Wanted]) -> dict[Any, Ended]:
            return {key: self.ended(each) for key, each in wanted.items()}

        def ended(self, wanted: Wanted) -> Ended:
            grown = math.log2(wanted.site.scale.width / AT.setting.base.width)
            moves = wanted.site.rules.parameterisation == "sp"
            place = wanted.octaves[0] + (2.0 * grown if moves else 0.0)
            loss = 2.0 + 0.1 * place**2 if place < broken else math.inf
            return Ended(loss=loss, first=0.0, lowest=0.0, last=0.0)

    monkeypatch.setattr(sweeps, "study_of", lambda *_: Study())
    lab: Any = None
    found = lr_width.FIGURE.judge(AT, sweeps.measure(lab, AT, "lr"))
    rows = {(row["line"], row["factor"]): row for row in found.numbers["curves"]}
    assert rows["sp", 8]["drift"] == pytest.approx(-6.0)
    assert rows["sp", 8]["cost"] == pytest.approx(0.1 * 6.0**2)
    assert rows["completedp", 8]["cost"] == pytest.approx(0.0)
    broken = 5.0
    found = lr_width.FIGURE.judge(AT, sweeps.measure(lab, AT, "lr"))
    rows = {(row["line"], row["factor"]): row for row in found.numbers["curves"]}
    assert rows["sp", 8]["diverges"]
    assert not rows["sp", 2]["diverges"]
    curve = {-1.0: {0: 2.1}, 0.0: {0: 2.0}, 1.0: {0: 2.1}}
    assert loss_there(curve, 1.5) is None
    assert points_for(1.5, curve, OVER) == [(2.0, 0)]
    assert points_for(2.5, curve, OVER) == [(2.0, 0), (3.0, 0)]
    assert points_for(0.5, curve, OVER) == []


def test_rescaled_optima_are_compared_after_division() -> None:
    """A value that grows with the root of the factor does not drift once divided by it."""
    line = replace(AT.lines[0], rescaled=0.5)
    at = replace(AT, lines=(line,))
    curves = {
        Curve(line, factor): measured(
            lambda octave, seed, factor=factor: (octave - 0.5 * math.log2(factor)) ** 2
        )
        for factor in at.factors
    }
    found = lr_width.FIGURE.judge(at, curves)
    assert found.findings[0].measured == pytest.approx(0.0, abs=1e-6)


def test_every_figure_costs_what_its_size_may() -> None:
    """On one H200 about ten minutes, on two cores a quarter of an hour, the paper's anything; the
    headline, which is three searches and runs of 500 times the FLOP, about an hour on either."""
    assert len(FIGURES) >= 12
    for name, figure in FIGURES.items():
        assert figure.name == name
        seconds = {size: figure.cost(size).seconds(SPEEDS[size]) for size in SIZES}
        long = name == "headline"
        assert seconds["gpu"] <= (4200 if long else 660), name
        assert seconds["cpu"] <= (3600 if long else 900), name
        assert cost_text(figure, "cpu")


def test_the_page_has_the_table() -> None:
    """docs/figures.md lists the figures with their costs: mend it with `make docs`."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)
    assert all(f"| `{name}` |" in page for name in FIGURES)


def test_the_page_says_what_paper_sizes_are() -> None:
    """Weights, tokens and FLOP of its paragraph on them, and what no H200 holds, are those of the
    definitions."""
    text = PAGE.read_text(encoding="utf-8")
    (told,) = (line for line in text.split("\n\n") if line.startswith("The `paper` sizes"))
    words = " ".join(told.split())
    at = {name: figure.sizes["paper"] for name, figure in FIGURES.items()}

    def weights(name: str, scale: Scale) -> str:
        setting = at[name].setting
        make = ReferenceModel(vocab=setting.vocab, shape=Shape(head_dim=setting.head_dim))
        with torch.device("meta"):
            return short(sum(p.numel() for p in make(scale).parameters()))

    base, cost = at["headline"].setting.base, at["headline"].setting.cost
    assert f"50M weights has {weights('headline', base)} here" in words
    target = base.times(at["headline"].scales[-1])
    times = cost(target, 1).flop / cost(base, 1).flop
    larger = f"{weights('headline', target)} weights and {short(target.tokens)} tokens"
    assert f"`headline` ends at {larger}, {times:,.0f} times" in words
    scale = at["downstream"].scale
    asked = f"{weights('downstream', scale)} and {short(scale.tokens)}"
    assert f"`downstream` at {asked} (" in words
    places = [base_size._LINE.scale(base, factor) for factor in at["base-size"].factors]
    one, two, three = (weights("base-size", scale) for scale in places)
    assert f"`base-size` have {one}, {two} and {three} (" in words
    assert f"`annealing` {weights('annealing', at['annealing'].setting.base)}," in words
    too_large = [
        f"`{name}`"
        for name, figure in FIGURES.items()
        if "H200" in too_small_for(figure.cost("paper").memory_bytes)
    ]
    assert f"trials of {', '.join(too_large[:-1])} and {too_large[-1]} are too large" in words


def test_what_to_see_is_true_whatever_the_verdict() -> None:
    """It is one sentence: what holds if the claim does, a question, or what is drawn."""
    drawn = ("base-size", "headline", "downstream", "tokens-exponent", "search-curves")
    for name, figure in FIGURES.items():
        if name not in (*drawn, "global-baseline"):
            assert figure.see.startswith("If the claim holds, ") or figure.see.endswith("?"), name
        assert figure.see[-1] in ".?"
        assert ". " not in figure.see


def test_a_name_that_is_not_there() -> None:
    """The error lists the figures that there are."""
    assert "lr-width" in error_of(figure_named, "lr-widht")


def test_a_large_size_needs_text(tmp_path: Path) -> None:
    """Only on a CPU will the standard library do."""
    message = error_of(run_figure, "lr-width", "gpu", out=tmp_path, options=OPTIONS, quiet=True)
    assert "--data" in message


def test_what_trains_nothing_takes_no_model(tmp_path: Path) -> None:
    """A model or text that would not be used is said so."""
    message = error_of(run_figure, "sde", "cpu", out=tmp_path, model="mine:make", quiet=True)
    assert "trains nothing" in message


@pytest.mark.parametrize("size", SIZES)
def test_every_curve_of_every_sweep_can_be_planned(size: str) -> None:
    """No factor of any sweep takes beta out of (0, 1), and batches are whole sequences."""
    for figure in FIGURES.values():
        if not isinstance(figure, Sweep):
            continue
        at = figure.sizes[size]
        for line in at.lines:
            for factor in at.factors:
                scale = line.scale(at.setting.base, factor)
                ratios = scale / at.setting.base
                grown = line.rules.factors("hidden_weight", ratios).one_minus_beta
                assert 0.0 < line.rules.scale_beta("beta1", 0.9, grown) < 1.0
                assert scale.batch % at.setting.context == 0
                assert scale.width % at.setting.head_dim == 0
                assert scale.steps >= 20


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("figures"))


@pytest.mark.filterwarnings("ignore:lr-depth leaves out")
@pytest.mark.parametrize("name", [name for name in FIGURES if name not in ("sde", "downstream")])
def test_a_figure_of_a_model_that_breaks_says_so(tokens: str, tmp_path: Path, name: str) -> None:
    """Where every trial diverges, a figure ends in one line and leaves no results."""
    message = error_of(
        run_figure,
        name,
        "tiny",
        out=tmp_path,
        data=tokens,
        model="own_models:broken",
        options=FOUR,
        quiet=True,
    )
    assert "diverge" in message
    assert not (tmp_path / f"{name}.json").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("lr-width", "lr-depth", "wd-batch", "lr-tokens", "tokens-law", "tokens-exponent"),
        *("landscape", "search-curves", "module-transfer", "base-size", "global-baseline"),
    ],
)
def test_a_figure_from_end_to_end(
    tokens: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains, judges, draws and writes; again it trains nothing and writes the same."""
    found, written = run_figure(name, "tiny", out=tmp_path, data=tokens, options=FOUR, quiet=True)
    assert found.findings
    assert json.loads((tmp_path / f"{name}.json").read_text())["numbers"] == json.loads(
        json.dumps(written["numbers"])
    )
    assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
    assert raw_of(tmp_path / f"{name}.json.xz") == json.loads(json.dumps(found.raw))
    assert all(str(finding) in text_of(FIGURES[name], found) for finding in found.findings)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Slots, "run", forbidden)
    again, _ = run_figure(name, "tiny", out=tmp_path, data=tokens, options=FOUR, quiet=True)
    assert (again.findings, again.svg) == (found.findings, found.svg)


def test_a_figure_of_an_own_model_and_loss(tokens: str, tmp_path: Path) -> None:
    """It trains with the overrides and the loss that are given, says them in its results, and warns
    of the lines that it leaves out, which change the reference model."""
    given: dict[str, Any] = {
        "data": tokens, "model": "own_models:placed", "options": FOUR, "quiet": True
    }  # fmt: skip
    assert "name their types" in error_of(run_figure, "lr-batch", "tiny", out=tmp_path, **given)
    own: Any = {"loss": "own_models:raised", "override": ("places=position",)}
    with pytest.warns(UserWarning, match="qk_norm: completedp, alpha 1/2, no QK norms"):
        found, written = run_figure("lr-depth", "tiny", out=tmp_path, **given, **own)
    assert {curve["line"] for curve in found.numbers["curves"]} == {"completedp, alpha 1"}
    assert min(row["loss"] for row in found.raw if row["loss"]) > 10
    assert (written["loss"], written["override"]) == (own["loss"], list(own["override"]))
    made = figure_part(tmp_path / "lr-depth.json", written).command
    assert made is not None
    assert "--loss own_models:raised --override places=position " in made


def test_a_headline_without_sites_searches_at_the_base_alone(tokens: str, tmp_path: Path) -> None:
    """Its estimate has the trials that it trains, all of its searches train at the base, values by
    module begin where each arm of one value was after the shared trials, and the paper's baseline
    moves its five values alone, from an initial scale of 0.02 at width 512."""
    whole = FIGURES["headline"].sizes["tiny"]
    arms = (PAPERS, UNIFORM, GLOBAL, MODULE, FROM_UNIFORM)
    every = (*arms, *SHARED)
    at = replace(whole, sites=(), rungs=(), scales=(Ratios(),), seeds=(2,), around=(), arms=every)
    figure = Headline(sizes={"tiny": at})
    with Store(str(tmp_path / "headline.db")) as store:
        lab = Lab("headline", "tiny", store, data=tokens, options=FOUR, quiet=True)
        found = figure.run("tiny", lab)
        searched = {arm: store.study(arm).trials(curves=False) for arm in arms}
        tuned = store.study(PAPERS).spec["space"]["coordinates"]
        starts = {
            arm: Recipe.from_dict(store.study(arm).spec["recipe"]).hyperparameters for arm in arms
        }
    counts = {arm: len(rows) for arm, rows in searched.items()}
    shared = dict.fromkeys((PAPERS, UNIFORM, GLOBAL), at.total)
    assert counts == shared | dict.fromkeys((MODULE, FROM_UNIFORM), at.trials)
    assert sorted(tuned) == sorted(f"{name}/global" for name in PAPER_GRID)
    for begins, (arm, before) in zip(SHARED, BEGINS.items(), strict=True):
        shared = Recipe.from_dict(found.numbers["recipes"][begins])
        assert shared.hyperparameters == starts[arm]
        begun, embedding = starts[arm].log2, "init_std/type/embedding"
        assert begun.get(embedding, 0.0) == starts[before].log2.get(embedding, 0.0)
        assert begun["lr/global"] != starts[before].log2.get("lr/global", 0.0)
    papers = Recipe.from_dict(found.numbers["recipes"][PAPERS])
    std = papers.values.init_std * 2 ** papers.hyperparameters.log2["init_std/global"]
    assert std == pytest.approx(0.02 * math.sqrt(512 / at.setting.base.width))
    assert set(papers.hyperparameters.log2) <= {*tuned, "init_std/global"}
    assert {row.site for rows in searched.values() for row in rows} == {0}
    assert found.summary["target"]["flops_ratio"] == 1.0
    measured = at.seeds[0] * (len(at.arms) + sum(at.lengths))  # a run twice as long counts twice
    assert figure.cost("tiny").trials == sum(counts.values()) + measured


def test_more_trials_of_a_search_are_chosen_from(tokens: str, tmp_path: Path) -> None:
    """A search that was given more trials climbs its ladder again; else what was found stays."""
    setting = FIGURES["headline"].sizes["tiny"].setting
    with Store(str(tmp_path / "s.db")) as store:
        lab = Lab("headline", "tiny", store, data=tokens, options=FOUR, quiet=True)
        task = lab.task(setting)
        start = lab.recipe(task, setting)

        def found(trials: int) -> Recipe:
            options: dict[str, Any] = {"space": "global", "tunables": ("lr",), "trials": trials}
            return lab.search("lr", task, start, **options).best((), 1)

        first, same, more = found(4), found(4), found(8)
    assert same == first
    assert more.evidence is not None
    assert more.evidence.searches[-1].trials == 8


def test_a_figure_goes_on_where_it_stopped(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption the rest is trained, and the numbers are those of a run in one go."""
    whole, _ = run_figure(
        "lr-batch", "tiny", out=tmp_path / "whole", data=tokens, options=FOUR, quiet=True
    )
    finish, ended = worker._finish, []

    def interrupted(*arguments: Any) -> None:
        if len(ended) == 5:
            raise KeyboardInterrupt
        ended.append(finish(*arguments))

    parts = tmp_path / "parts"
    monkeypatch.setattr(worker, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_figure("lr-batch", "tiny", out=parts, data=tokens, options=FOUR, quiet=True)
    monkeypatch.setattr(worker, "_finish", finish)
    noted = json.loads((parts / "lr-batch-tiny.seconds").read_text())["seconds"]
    began = time.monotonic()
    found, written = run_figure(
        "lr-batch", "tiny", out=parts, data=tokens, options=FOUR, quiet=True
    )
    took = time.monotonic() - began
    assert noted > 0
    assert written["seconds"] == pytest.approx(noted + took, abs=0.5 + 0.2 * took)
    assert not (parts / "lr-batch-tiny.seconds").exists()
    for one, other in zip(whole.raw, found.raw, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


def lab_of(store: Store, tokens: str) -> Lab:
    return Lab("annealing", "tiny", store, data=tokens, options=FOUR, quiet=True)


def watch(grown: tree.Tree, monkeypatch: pytest.MonkeyPatch, most: int | None = None) -> list[Any]:
    """What a tree trains, in order; interrupted when so many have ended."""
    trained: list[Any] = []
    run = grown._runner.run

    def watched(*arguments: Any, **options: Any) -> Any:
        for outcome in run(*arguments, **options):
            trained.append(outcome.key)
            yield outcome
            if len(trained) == most:
                raise KeyboardInterrupt

    monkeypatch.setattr(grown._runner, "run", watched)
    return trained


def test_a_tree_has_the_losses_of_its_schedules(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's loss is that of the whole run with its schedule, also in a tree that was resumed."""
    at = annealing.FIGURE.sizes["tiny"]
    monkeypatch.setattr(tree, "_FRESH", 0)
    with Store(str(tmp_path / "tree.db")) as store:
        cut = tree.Tree(lab_of(store, tokens), at)
        watch(cut, monkeypatch, most=8)
        with pytest.raises(KeyboardInterrupt):
            cut.grown()
        grown = tree.Tree(lab_of(store, tokens), at)
        losses = grown.grown()
        assert len(losses) == schedules.count_nodes(at.levels, at.intervals) == 14
        some = [(0, 0, 1, 1), (0, 1), (1, 1, 1, 1)]
        alone = grown.confirmed(some)
        for levels in some:
            assert alone[levels][0] == pytest.approx(losses[levels], abs=1e-5)
        assert alone[(0, 1)][1] != pytest.approx(losses[0, 1], abs=1e-5)  # another seed
        trained = watch(grown, monkeypatch)
        assert (grown.grown(), trained) == (losses, [])  # nothing is left to train


def test_an_interrupted_tree_loses_nothing(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had ended before an interruption, of the nodes or of the fresh seeds, is trained again
    only on the way to what is missing, and the losses are those of a tree in one go."""
    at = annealing.FIGURE.sizes["tiny"]
    contenders = [(0, 0, 1, 1), (0, 1), (1, 1, 1, 1)]
    with Store(str(tmp_path / "whole.db")) as store:
        grown = tree.Tree(lab_of(store, tokens), at)
        whole, fresh = grown.grown(), grown.confirmed(contenders)
    with Store(str(tmp_path / "parts.db")) as store:
        cut, again = (tree.Tree(lab_of(store, tokens), at) for _ in range(2))
        first = watch(cut, monkeypatch, most=11)
        with pytest.raises(KeyboardInterrupt):
            cut.grown()
        rest = watch(again, monkeypatch)
        assert again.grown() == pytest.approx(whole, abs=1e-5)
        missing = set(whole) - set(first)
        assert any(len(node) == at.intervals for node in first)
        for node in {*first} & {*rest}:
            assert any(there[: len(node)] == node for there in missing)
        cut, again = (tree.Tree(lab_of(store, tokens), at) for _ in range(2))
        first = watch(cut, monkeypatch, most=4)
        with pytest.raises(KeyboardInterrupt):
            cut.confirmed(contenders)
        rest = watch(again, monkeypatch)
        confirmed = again.confirmed(contenders)
        assert len(first) == 4
        assert len({*first, *rest}) == len(first + rest) == len(contenders) * at.seeds
        for levels in contenders:
            assert confirmed[levels] == pytest.approx(fresh[levels], abs=1e-5)


def test_losses_are_noted_as_time_goes() -> None:
    """After so many seconds a note has all losses since the last one, and at the end, however it
    comes, a note has the rest."""
    notes: dict[str, Any] = {}
    study: Any = SimpleNamespace(note=notes.get, set_note=notes.__setitem__)

    def read() -> dict[Any, float]:
        return tree._Noted(study, "x", every=0.0).losses

    with tree._Noted(study, "x", every=0.0) as noted:
        noted.add((0,), 1.0)
        assert read() == {(0,): 1.0}  # as a kill would leave it
    with contextlib.suppress(KeyboardInterrupt), tree._Noted(study, "x", every=1e9) as noted:
        noted.add((1,), math.inf)
        noted.add((0, 1), 2.0)
        assert read() == {(0,): 1.0}
        raise KeyboardInterrupt
    assert read() == {(0,): 1.0, (1,): math.inf, (0, 1): 2.0}
    assert len(notes) == 2


def test_the_paper_s_tree() -> None:
    """4,845 schedules are 20,348 intervals, and every child goes on as high or lower."""
    whole: list[schedules.Levels] = [()]
    for _ in range(16):
        whole = [child for node in whole for child in schedules.children(node, 5)]
    assert len(whole) == 4845
    assert schedules.count_nodes(5, 16) == 20_348
    assert schedules.children((0, 2), 4) == [(0, 2, 2), (0, 2, 3)]
    schedule = schedules.schedule_of((0, 1), 4)
    rates = [schedule(step, 100) for step in (10, 30, 60, 90)]
    assert rates == pytest.approx([1.0, 0.4, 0.4, 0.4])


def test_a_beginning_that_costs_is_seen() -> None:
    """A best schedule that does not begin as the shorter one's has its cost measured."""
    at = replace(annealing.FIGURE.sizes["tiny"], horizons=(1, 2))
    losses = {(0,): 3.0, (1,): 2.9, (0, 0): 2.5, (0, 1): 2.3, (1, 1): 2.4}
    assert annealing.contenders(losses, (1, 2)) == [(0, 1), (1, 1)]
    fresh = {(0, 1): [2.3, 2.31, 2.29], (1, 1): [2.4, 2.42, 2.38]}
    (finding,) = annealing.FIGURE.judge(at, losses, fresh).findings
    assert (finding.verdict, finding.measured) == ("pass", pytest.approx(0.1))
    tied = losses | {(1, 1): 2.0}  # now the longer best begins as the shorter one
    (finding,) = annealing.FIGURE.judge(at, tied, fresh).findings
    assert (finding.verdict, finding.measured) == ("fail", 0.0)


def test_rough_and_smooth_boundaries() -> None:
    """A straight boundary has dimension 1, one that fills the plane 2."""
    broken = np.zeros((64, 64), dtype=bool)
    broken[40:] = True
    dimension, error = landscape.box_dimension(landscape.boundary(broken))
    assert dimension == pytest.approx(1.0, abs=0.01)
    assert error < 0.01
    speckled = np.indices((64, 64)).sum(axis=0) % 2 == 0
    rough, _ = landscape.box_dimension(landscape.boundary(speckled))
    assert rough is not None
    assert rough > 1.7
    assert landscape.box_dimension(np.zeros((64, 64), dtype=bool)) == (None, 0.0)


def test_limits_and_ways_downhill() -> None:
    """The limit is below the first break above the middle; a second valley holds what falls in."""
    octaves = np.linspace(-3, 3, 13).tolist()
    broken = np.array(octaves) > 1.2
    assert landscape.limit_of(octaves, broken) == 1.0
    assert landscape.limit_of(octaves, np.zeros(13, dtype=bool)) == 3.0
    x, y = np.meshgrid(np.linspace(-3, 3, 31), np.linspace(-3, 3, 31), indexing="ij")
    nothing = np.zeros(x.shape, dtype=bool)
    bowl = landscape.Map(losses=x**2 + y**2, broken=nothing)
    assert landscape.downhill_share(bowl) == 1.0
    two = np.minimum((x - 1.5) ** 2, (x + 1.5) ** 2 + 0.5) + y**2
    assert 0.4 < landscape.downhill_share(landscape.Map(losses=two, broken=nothing)) < 0.7


@given(floor=st.floats(0.5, 3.0), factor=st.floats(0.5, 3.0), power=st.floats(0.1, 1.0))
def test_a_law_is_found(floor: float, factor: float, power: float) -> None:
    """Losses on a law give its floor and its power back."""
    compute = 1e12 * 4.0 ** np.arange(6)
    found = tokens_law.fit_law(compute, floor + factor * (compute / 1e12) ** -power)
    assert found[0] == pytest.approx(floor, abs=0.05)
    assert found[2] == pytest.approx(power, abs=0.05)


def test_what_the_order_of_losses_follows() -> None:
    """The value that decides the loss explains it all, another nothing; divergence is the worst."""
    chosen = global_baseline.drawn(2000)
    losses = (chosen[:, 0] - 4.0) ** 2 + 1e-6 * np.arange(2000)
    losses[chosen[:, 0] == 9] = math.inf
    assert global_baseline.explained(chosen[:, 0], losses) > 0.95
    assert global_baseline.explained(chosen[:, 1], losses) < 0.02
    low, high = global_baseline.resampled_lead(chosen, losses)
    assert 0.9 < low < high < 1.0
    mean, least, most = global_baseline.best_of(losses, 2000)
    assert mean == least == most == losses.min()


def test_what_a_small_base_costs() -> None:
    """The penalty is the difference on the same seeds, with the interval of its mean."""
    at = base_size.FIGURE.sizes["tiny"]
    losses = {1: [2.05, 2.15, 2.25], 2: [2.0, 2.1, 2.2]}
    found = base_size.FIGURE.judge(at, {}, {1: 0.5, 2: -0.5}, losses)
    (finding,) = found.findings
    assert finding.measured == pytest.approx(0.05)
    assert finding.verdict == "fail"


def test_a_stopwatch_counts_what_was_killed(tmp_path: Path) -> None:
    """The parts before count, also of a process that had no time to say goodbye."""
    path = tmp_path / "x.seconds"
    path.write_text('{"seconds": 100.0}')
    with Stopwatch(path, every=0.01) as watch:
        time.sleep(0.1)
        assert json.loads(path.read_text())["seconds"] >= 100.0  # written while it runs
        assert 100.1 <= watch.seconds < 110.0
        watch.finished()
    assert not path.exists()
    path.write_text("half a fi")
    with Stopwatch(path) as watch:
        assert watch.seconds < 10.0
    assert json.loads(path.read_text())["seconds"] < 10.0


@pytest.mark.parametrize(
    ("exponents", "verdicts"),
    [
        ((0.5, 0.5), ["pass"] * 7),
        ((0.5, 0.1), ["pass", "pass", "pass", "fail", "fail", "pass", "fail"]),
    ],
)
def test_a_planted_exponent_is_found(exponents: tuple[float, ...], verdicts: list[str]) -> None:
    """Bowls whose bottoms fall by a power of the tokens give it back, and what 1/2 costs there."""
    over = Range(octaves=(-2.0, -1.0, 0.0, 1.0, 2.0), seeds=3, first=3)
    at = replace(tokens_exponent.FIGURE.sizes["tiny"], over=over, factors=(1, 4, 16))
    curves = {
        (index, factor): measured(
            lambda octave, seed, e=exponent, f=factor: (
                2.0 + 0.1 * (octave + e * math.log2(f) - 0.01 * (seed - 1)) ** 2
            ),
            over.moved(-0.25 * math.log2(factor)),
        )
        for index, exponent in enumerate(exponents)
        for factor in at.factors
    }
    found = tokens_exponent.FIGURE.judge(at, curves)
    assert [finding.verdict for finding in found.findings] == verdicts
    for row, exponent in zip(found.numbers["models"], exponents, strict=True):
        assert row["exponent"] == pytest.approx(exponent, abs=0.01)
    cost = 0.1 * (4 * (0.5 - exponents[1])) ** 2
    assert found.findings[4].measured == pytest.approx(cost, abs=0.01)


def test_rates_that_fall_by_no_power_are_told() -> None:
    """Where the best rate falls and comes back no exponent takes it along, and the length that is
    furthest from the fitted one is what counts."""
    over = Range(octaves=(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0), seeds=3, first=3)
    tiny = tokens_exponent.FIGURE.sizes["tiny"]
    at = replace(tiny, over=over, factors=(1, 4, 16), models=tiny.models[:1])
    curves = {
        (0, factor): measured(
            lambda octave, seed, place=place: (octave - place - 0.01 * (seed - 1)) ** 2, over
        )
        for factor, place in zip(at.factors, (0.0, -1.5, 0.0), strict=True)
    }
    finding = tokens_exponent.FIGURE.judge(at, curves).findings[2]
    assert finding.verdict == "fail"
    assert finding.measured == pytest.approx(1.5, abs=0.01)  # the slope of all three is 0


def test_searches_are_compared_on_fresh_seeds() -> None:
    """Each arm's end is set against another's seed by seed; a missing one is said."""
    at = search_curves.FIGURE.sizes["tiny"]
    ends = {"ours": 2.0, "paper": 2.1, "cma-es": 2.2, "type": 2.05, "full": 1.999}
    noise = (0.0, 0.001)

    def curve(end: float) -> list[search_curves.Place]:
        return [
            search_curves.Place(
                trials=n, seconds=n / 2, losses=tuple(end + 1 / n + e for e in noise)
            )
            for n in (1, 1_000_000)
        ]

    curves = {arm: curve(end) for arm, end in ends.items()}
    found = search_curves.FIGURE.judge(at, [2.5, 2.501], curves)
    assert [finding.verdict for finding in found.findings] == ["pass"] * 5
    assert found.findings[0].measured == pytest.approx(0.5, abs=1e-5)
    del curves["cma-es"]
    without = search_curves.FIGURE.judge(at, [2.5, 2.501], curves)
    assert len(without.findings) == 4
    assert "cmaes is not installed" in without.text


def test_without_scikit_learn_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensitivity is left out with what would bring it; everything else is there."""
    monkeypatch.setattr(global_baseline, "has_processes", lambda: False)
    chosen = global_baseline.drawn(40)
    found = global_baseline.FIGURE.judge(
        global_baseline.FIGURE.sizes["tiny"], chosen, chosen[:, 0] + 0.01 * chosen[:, 1]
    )
    assert 'pip install "completedp[gp]"' in found.text
    assert "slices" not in found.numbers


def test_a_planted_sensitivity_is_found() -> None:
    """Around a bowl's optimum the process rises as the bowl does, and along noise it is flat."""
    pytest.importorskip("sklearn")
    chosen = global_baseline.drawn(400)
    rates = np.log2(global_baseline.PAPER_GRID["lr"])[chosen[:, 0]]
    noise = np.random.default_rng(0).normal(0, 0.005, 400)
    slices = global_baseline.slices_of(chosen, 2.0 + 0.02 * (rates + 6.64) ** 2 + noise)
    assert slices is not None
    found = dict(zip(np.round(slices["lr"].octaves, 2), slices["lr"].rise, strict=True))
    assert found[1.0] == pytest.approx(0.02, abs=0.01)
    assert found[-1.74] == pytest.approx(0.06, abs=0.02)
    assert abs(slices["one_minus_beta2"].nearby) < 0.01


def test_what_is_computed_anew_has_its_own_seconds(tmp_path: Path) -> None:
    """A figure without training took as long as its last run, however slow one before was."""
    (tmp_path / "sde.json").write_text('{"size": "tiny", "seconds": 1000.0}')
    _, written = run_figure("sde", "tiny", out=tmp_path, quiet=True)
    assert 0 < written["seconds"] < 1000


def test_a_trial_that_diverged_is_written_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinite losses, in numbers or measurements, do not lose what a figure has trained."""
    found = Found(
        findings=[], numbers={"loss": math.inf}, raw=[(1.0, math.nan)], text="", svg="<svg/>"
    )
    monkeypatch.setattr(type(FIGURES["sde"]), "run", lambda *_: found)
    _, written = run_figure("sde", "tiny", out=tmp_path, quiet=True)
    assert written["numbers"] == {"loss": None}
    assert json.loads((tmp_path / "sde.json").read_text())["numbers"] == {"loss": None}
    assert raw_of(tmp_path / "sde.json.xz") == [[1.0, None]]


def test_fractions_of_a_large_model_are_said_right() -> None:
    """A model of two thirds of the large one's width is said to be that."""
    figure = FIGURES["base-size"]
    at = figure.sizes["paper"]
    claims = [
        figure._finding(at, {"factor": factor, "penalty": 0.0, "half": 0.1}).claim
        for factor in at.factors[:-1]
    ]
    assert [claim.split()[2] for claim in claims] == ["1/3", "2/3"]
