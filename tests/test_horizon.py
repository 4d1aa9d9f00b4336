"""The horizon's fit: exponents from planted losses, and from runs that resume and grow."""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import CONTEXT, make_recipe, write_tokens

from completedp.apply.plan import plan
from completedp.common.errors import CompletedpError
from completedp.evidence import horizon
from completedp.evidence.config import HorizonGrid
from completedp.evidence.exponents import Fit, Size, fit_exponent
from completedp.evidence.horizon import (
    BATCH,
    BOTH,
    TOKENS,
    fit_horizon,
    horizon_left,
    judge_horizon,
)
from completedp.evidence.horizon_result import HorizonResult
from completedp.lm.reference import meta_model
from completedp.lm.transformer import ModelConfig
from completedp.studies import worker
from completedp.studies.cells import read_sites
from completedp.studies.run import start
from completedp.studies.store import Store, TrialRow
from completedp.theory.horizon import critical_batch, fitted_to
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.folder import Result
from completedp.training.slots import Slots

OCTAVES = tuple(np.arange(-4.0, 5.0))
CANDIDATES = (0.0, 0.25, 0.5)
FACTORS = (1.0, 4.0, 16.0)


def sizes(
    exponent: float, *, sign: int = -1, curve: float = 0.1, noise: float = 0.0, seed: int = 0
) -> list[Size]:
    """Parabolas whose bottoms are at 0.3 octaves at base, each seed's shifted by noise."""
    rng = np.random.default_rng(seed)
    found = []
    for factor in FACTORS:
        place = 0.3 + sign * exponent * math.log2(factor) + noise * rng.normal(size=4)
        losses = 3.0 - 0.1 * math.log2(factor) + curve * (np.array(OCTAVES)[:, None] - place) ** 2
        found.append(Size(factor=factor, octaves=OCTAVES, losses=losses))
    return found


@settings(max_examples=20)
@given(exponent=st.floats(0, 0.8))
def test_a_planted_exponent_is_found(exponent: float) -> None:
    """Of exact parabolas the exponent is exact, and what others cost is read off the last one."""
    fit = fit_exponent(TOKENS, sizes(exponent), CANDIDATES)
    assert fit.exponent == pytest.approx(exponent, abs=1e-9)
    assert fit.error == pytest.approx(0.0, abs=1e-9)
    assert [None, *fit.local()[1:]] == [None, *[pytest.approx(exponent, abs=1e-9)] * 2]
    for candidate in CANDIDATES:
        off = 4 * (candidate - exponent)
        cost = fit.cost_of(candidate)
        assert cost.cost is not None
        # Beyond the points around the lowest, the loss is on lines between those of the grid.
        assert 0.1 * off**2 - 1e-9 <= cost.cost <= 0.1 * off**2 + 0.1 / 4 + 1e-9
    assert fit.close is not None
    assert fit.close[0] <= exponent + 0.01
    assert fit.close[1] >= exponent - 0.01


def test_a_batch_s_exponent_has_the_other_sign() -> None:
    """The learning rate rises with the batch, and its exponent is above 0 too."""
    fit = fit_exponent(BATCH, sizes(0.4, sign=1), CANDIDATES)
    assert fit.exponent == pytest.approx(0.4)


def test_the_error_is_that_of_repetitions() -> None:
    """What seeds drawn again say is how far fits of other seeds are from the truth."""
    fits = [fit_exponent(TOKENS, sizes(0.25, noise=0.4, seed=s), ()) for s in range(20)]
    spread = float(np.std([fit.exponent for fit in fits if fit.exponent is not None]))
    errors = [fit.error for fit in fits if fit.error is not None]
    assert len(errors) == 20
    assert float(np.mean(errors)) == pytest.approx(spread, rel=0.4)
    assert fit_exponent(TOKENS, sizes(0.25, noise=0.4), ()).error != pytest.approx(0, abs=0.01)


def test_a_bent_line_has_an_error_that_seeds_do_not_see() -> None:
    """Optima that are not on a line make the exponent uncertain, however well each is known."""
    straight = sizes(0.25)
    bent = [*straight[:2], sizes(0.0)[2]]  # back to where the base's is
    fit = fit_exponent(TOKENS, bent, ())
    places = np.array([0.3, -0.2, 0.3])
    assert fit.exponent == pytest.approx(0.0, abs=1e-9)  # the ends are level
    left = places - places.mean()
    assert fit.error == pytest.approx(math.sqrt((left**2).sum() / 8))
    assert fit.freedom == 1  # of three points on a line of two numbers, however many the seeds
    assert fit_exponent(TOKENS, sizes(0.25, noise=0.4), ()).freedom in (1, 9)


def test_a_flat_bowl_says_that_exponents_are_alike() -> None:
    """Where the loss hardly depends on the rate, the exponents that do as well are many."""
    flat, steep = (
        fit_exponent(TOKENS, sizes(0.25, curve=curve, noise=0.1), CANDIDATES)
        for curve in (0.001, 0.3)
    )
    assert flat.close is not None
    assert steep.close is not None
    assert flat.close[1] - flat.close[0] > 0.5 > 0.15 > steep.close[1] - steep.close[0]


def test_one_seed_has_no_error() -> None:
    """An exponent of one seed is told without an error."""
    alone = [size.mean_of(np.array([0])) for size in sizes(0.25, noise=0.1)]
    fit = fit_exponent(TOKENS, alone, CANDIDATES)
    assert fit.exponent is not None
    assert fit.error is None
    assert fit.cost_of(0.5).error is None


GRID = HorizonGrid(seeds=2, batch_growth=0.5)


def planted(
    token: float, batch: float, *, base: float = 0.0, worse: float = 0.0
) -> dict[Any, float]:
    """Losses of all points of `GRID`; those of a batch above x2 are worse by some."""
    done = {}
    recipe = make_recipe()
    for what in (TOKENS, BOTH, BATCH):
        for factor in horizon._scales(GRID, recipe, what):
            slope = batch if what == BATCH else -token
            place = base + slope * math.log2(factor)
            for octave in horizon._tried(GRID, what, factor):
                loss = 3.0 + 0.1 * (octave - place) ** 2
                loss += worse * (what == BATCH and factor > 2)
                for seed in range(GRID.seeds):
                    done[horizon.Point(what, factor, octave, seed)] = loss
    return done


def judged(token: float, batch: float, **changes: float) -> HorizonResult:
    losses = planted(token, batch, **changes)
    return judge_horizon(GRID, make_recipe(), losses, folder=Path("nowhere"))


def test_the_recipe_gets_the_exponent_and_its_evidence() -> None:
    """What is fitted is in the recipe's rules and provenance, which survive the disk."""
    found = judged(0.21, 0.4)
    assert found.recipe.rules.token_exponent == 0.21
    assert found.before.rules.token_exponent == 0.5
    again = Recipe.from_dict(json.loads(json.dumps(found.recipe.to_dict())))
    assert again == found.recipe
    told = again.provenance
    assert told["horizon_token_exponent"] == pytest.approx(0.21)
    assert told["horizon_batch_exponent"] == pytest.approx(0.4)
    reach = 16 * found.before.base.tokens
    assert told["horizon_tokens_to"] == fitted_to(again) == reach
    assert fitted_to(again.with_rules(beta_rule="keep")) == reach
    assert fitted_to(again.with_rules(token_exponent=0.5)) is None  # which nobody fitted
    assert "fitted 0.21 +- 0.00; 0.5 costs 0.1" in str(found)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["token_exponent"] == (
        found.tokens.exponent
    )


@pytest.mark.parametrize(("fitted", "kept"), [(-0.1, 0.0), (0.6, 0.6)])
def test_an_exponent_outside_the_rules_is_the_nearest(fitted: float, kept: float) -> None:
    """The rules take exponents from 0 to 1."""
    found = judged(fitted, 0.5)
    assert fitted_to(found.recipe) is not None
    assert found.tokens.exponent == pytest.approx(fitted)
    assert found.recipe.rules.token_exponent == pytest.approx(kept)
    assert ("nearest" in str(found)) == (fitted < 0)


def test_the_batch_up_to_which_the_rule_holds() -> None:
    """It ends before the batch at which the base's best loss is no longer reached."""
    base = make_recipe().base.batch
    assert judged(0.25, 0.5).batch_holds_to == 4 * base
    assert judged(0.25, 0.5, worse=0.1).batch_holds_to == 2 * base
    assert judged(0.25, -0.3).batch_holds_to == base
    assert "does not hold beyond" in str(judged(0.25, -0.3))


def test_what_is_not_bracketed_is_not_fitted() -> None:
    """A best rate at the end of those tried leaves the recipe's exponent, and says what to do."""
    found = judged(0.25, 0.5, base=6.0)
    assert found.tokens.exponent is None
    assert found.recipe.rules == found.before.rules
    assert "with more octaves goes on" in str(found)
    earlier = judged(0.25, 0.5).recipe
    assert "horizon_close_from" in earlier.provenance
    losses = planted(0.25, 0.5, base=6.0)
    again = judge_horizon(GRID, earlier, losses, folder=Path("nowhere")).recipe
    assert not {"horizon_token_exponent", "horizon_close_from"} & again.provenance.keys()


def test_batches_that_grow_along_are_whole_sequences() -> None:
    """A root of two in the batch is the nearest number of examples."""
    recipe = make_recipe()
    unit = recipe.base.batch // 4
    grid = HorizonGrid(batch_growth=0.5, factors=(1, 2, 4))
    batches = [scale.batch // unit for scale in horizon._scales(grid, recipe, BOTH, unit).values()]
    assert batches == [4, 6, 8]


@pytest.mark.parametrize("growing", [True, False])
def test_a_recipe_is_not_said_to_have_what_it_has_not(growing: bool) -> None:
    """Where the fit that counts fails, the last line says that the exponent is as before, whatever
    another fit found; where both are fitted, the recipe has both on record."""
    losses = planted(-0.1, 0.5)
    if growing:
        losses |= {p: float(p.octave) for p in losses if p.what == BOTH and p.factor > 1}
    found = judge_horizon(GRID, make_recipe(), losses, folder=Path("nowhere"))
    told = found.recipe.provenance
    assert told["horizon_token_exponent_alone"] == pytest.approx(-0.1)
    assert ("as before: none was fitted, as the batch grows along" in found.outcome) == growing
    assert ("the recipe has the nearest" in str(found)) == (not growing)
    assert ("horizon_token_exponent" in told) == (not growing)
    assert found.recipe.rules.token_exponent == (0.5 if growing else 0.0)


@pytest.mark.parametrize(("error", "kept"), [(400.0, 1000.0), (600.0, None), (None, None)])
def test_a_critical_batch_is_kept_where_it_is_known(
    error: float | None, kept: float | None
) -> None:
    """The recipe records it with an error of up to a half, and else nothing that a plan reads."""
    numbers = {"steps": 1, "tokens": 1, "parameters": 1, "seconds": 0.0}
    losses = {"train_loss": 1.0, "valid_loss": 1.0, "valid_bits_per_byte": None}
    noise = Result(
        status="ok",
        last_finite_loss=1.0,
        critical_batch=1000.0,
        critical_batch_error=error,
        **numbers,  # type: ignore[arg-type]
        **losses,  # type: ignore[arg-type]
    )
    done = planted(0.25, 0.5)
    found = judge_horizon(GRID, make_recipe(), done, folder=Path("nowhere"), noise=noise)
    assert critical_batch(found.recipe) == kept
    assert ("too uncertain" in str(found)) == (kept is None)


@settings(max_examples=40)
@given(
    factor=st.sampled_from([4, 16]),
    octave=st.floats(-6, 3),
    best=st.floats(-2, 2),
    growth=st.sampled_from([None, 0.5]),
)
def test_a_rate_is_reached_as_a_plan_would(
    factor: int, octave: float, best: float, growth: float | None
) -> None:
    """Every tensor has the base's rate times 2^octave, and the betas, eps and decay of the exponent
    that takes the base's best rate there.

    The share of the batch is the batch rule's.
    """
    recipe, what = make_recipe(weight_decay=0.1), TOKENS if growth is None else BOTH
    grid = HorizonGrid(batch_growth=growth, factors=(1, factor))
    scale = horizon._scales(grid, recipe, what)[factor]
    exponent, left = horizon._reached(what, factor, octave, best)
    carried = recipe.with_rules(token_exponent=exponent)
    model = meta_model(ModelConfig(vocab=257, width=16, depth=1, head_dim=8))
    there = plan(model, carried.with_values(lr=recipe.values.lr * 2**left), scale)
    as_planned, base = plan(model, carried, scale), plan(model, recipe, recipe.base)
    share = (scale.batch / recipe.base.batch) ** 0.5
    for tensor, its, own in zip(there.tensors, as_planned.tensors, base.tensors, strict=True):
        assert tensor.lr == pytest.approx(own.lr * 2**octave * share)
        assert (tensor.beta1, tensor.beta2, tensor.eps) == (its.beta1, its.beta2, its.eps)
        assert tensor.weight_decay == its.weight_decay
        if (best - octave) / math.log2(factor) == exponent:  # the plan itself, from the best rate
            assert tensor.lr == pytest.approx(its.lr * 2**best)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("horizon"))


def fitted(data: str, out: Path, **changes: Any) -> HorizonResult:
    """A fit in seconds."""
    plain: dict[str, Any] = {"factors": (1, 2), "batch_factors": (1,), "octaves": (-2.0, 0.0, 2.0)}
    plain |= {"seeds": 2, "context": CONTEXT, "eval_examples": 8, "slots": 4, "noise": False}
    plain |= {"device": "cpu", "compile": False, "quiet": True, "recipe": make_recipe()}
    return fit_horizon(None, data=data, out=out, **(plain | changes))


def left_of(data: str, out: Path) -> Mapping[Scale, int]:
    """What of the largest fit below is still to train."""
    grid = HorizonGrid(
        factors=(1, 2), batch_factors=(1, 2), batch_growth=1.0, octaves=(-2.0, 0.0, 2.0), seeds=2
    )
    task, recipe = start(
        None, data, base=None, recipe=make_recipe(), context=CONTEXT, eval_examples=8
    )
    return horizon_left(grid, task, recipe, out, None).left


def trials_in(folder: Path) -> list[TrialRow]:
    with Store(str(folder / "horizon.db"), create=False) as store:
        return store.study("horizon").trials()


def losses(fit: Fit) -> np.ndarray:
    return np.array([size.losses for size in fit.sizes])


def test_a_fit_from_end_to_end(data: str, tmp_path: Path) -> None:
    """Trials, verdict, plot and recipe are there, the base trained once, the noise measured."""
    found = fitted(data, tmp_path / "fit.json", batch_factors=(1, 2), batch_growth=1.0, noise=True)
    assert found.both is not None
    assert found.batch is not None
    assert not left_of(data, tmp_path / "fit.json")
    assert sum(left_of(data, tmp_path / "new.json").values()) == 4 * 6 + 1
    # The base of all three, tokens x2, both x2, batch x2: 3 rates x 2 seeds each.
    assert len(trials_in(tmp_path / "fit")) == 4 * 6
    assert (losses(found.tokens)[0] == losses(found.batch)[0]).all()
    assert (losses(found.tokens)[1] != losses(found.both)[1]).all()
    assert Recipe.load(tmp_path / "fit.json") == found.recipe
    assert found.critical_batch is not None
    assert (critical_batch(found.recipe) is not None) == found.is_batch_known
    verdict = json.loads((tmp_path / "fit/verdict.json").read_text())
    assert verdict.pop("command").startswith("cdp.fit_horizon(None, ")
    assert verdict.pop("task")["data"]
    assert verdict.pop("recipe") == json.loads(json.dumps(found.before.to_dict()))
    assert verdict == json.loads(json.dumps(found.to_dict()))
    assert (tmp_path / "fit/horizon.svg").read_text().startswith("<svg")


def test_longer_horizons_start_from_the_base_s_best_rate(data: str, tmp_path: Path) -> None:
    """Where the base is best away from the recipe's rate, exponents at a longer one are from there:
    the trial that an exponent of 1/2 would give has the rules of 1/2."""
    recipe = make_recipe().with_values(lr=make_recipe().values.lr / 2**4)  # too low by far
    octaves = (0.0, 2.0, 4.0, 6.0)
    found = fitted(data, tmp_path / "fit.json", recipe=recipe, octaves=octaves, factors=(1, 4))
    with Store(str(tmp_path / "fit/horizon.db"), create=False) as store:
        study = store.study("horizon")
        noted = study.get_note("base's best rate")
        sites = read_sites(study)
    assert noted is not None
    best = found.tokens.optima[0].octaves or found.tokens.optima[0].lowest
    assert best is not None
    assert noted["octaves"] == pytest.approx(best[0], abs=1e-3)
    assert noted["octaves"] > 1
    used = {site.rules.token_exponent for site in sites if site.scale.tokens > recipe.base.tokens}
    tried = found.tokens.sizes[1].octaves
    expected = {min(1.0, max(0.0, (noted["octaves"] - octave) / 2)) for octave in tried}
    assert sorted(used) == pytest.approx(sorted(expected))


def test_a_fit_goes_on_where_it_stopped(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption what is missing is run, and the finished fit trains nothing more."""
    whole = fitted(data, tmp_path / "whole.json")
    finish, ended = worker._finish, []

    def interrupted(*arguments: Any) -> None:
        if len(ended) == 5:
            raise KeyboardInterrupt
        ended.append(finish(*arguments))

    monkeypatch.setattr(worker, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted(data, tmp_path / "again.json")
    assert not (tmp_path / "again.json").exists()
    monkeypatch.setattr(worker, "_finish", finish)
    resumed = fitted(data, tmp_path / "again.json")
    assert losses(resumed.tokens) == pytest.approx(losses(whole.tokens), abs=1e-5)
    assert {row.attempt for row in trials_in(tmp_path / "again")} <= {1, 2}

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Slots, "run", forbidden)
    assert fitted(data, tmp_path / "again.json").to_dict() == resumed.to_dict()


def test_a_fit_replaces_nothing_but_its_own_recipe(data: str, tmp_path: Path) -> None:
    """A file that is there is left alone, before anything is trained, unless a fit wrote it."""
    there = tmp_path / "mine.json"
    make_recipe().save(there)
    before = there.read_text()
    message = error_of(fitted, data, there)
    assert f"{str(there)!r} is there, and no fit of that name" in message
    assert there.read_text() == before
    assert not there.with_suffix("").exists()


def test_a_fit_may_grow(data: str, tmp_path: Path) -> None:
    """More rates, seeds and sizes add trials to those that are there."""
    before = fitted(data, tmp_path / "fit.json", seeds=1)
    assert len(trials_in(tmp_path / "fit")) == 6
    more = fitted(data, tmp_path / "fit.json", octaves=(-2.0, 0.0, 2.0, 4.0), factors=(1, 2, 4))
    assert len(trials_in(tmp_path / "fit")) == 4 * 2 * 3
    assert (losses(more.tokens)[:2, :3, :1] == losses(before.tokens)).all()


def test_a_fit_without_matplotlib_has_no_plot(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plot is left out where it cannot be drawn, and nothing else."""
    monkeypatch.setattr(horizon, "find_spec", lambda name: None)
    fitted(data, tmp_path / "fit.json", seeds=1)
    assert (tmp_path / "fit/verdict.json").exists()
    assert not (tmp_path / "fit/horizon.svg").exists()


def test_fits_that_cannot_be_leave_nothing(data: str, tmp_path: Path) -> None:
    """What cannot be fitted is one line, before any trial."""
    other = make_recipe().with_rules(parameterisation="sp")
    for changes, words in (
        ({"out": tmp_path / "fit"}, "must end in .json"),
        ({"recipe": other}, "sp along width"),
        ({"recipe": make_recipe().with_rules(axes=("width", "tokens"))}, "leaves tokens or batch"),
        ({"batch_factors": (1, 16)}, "the largest r it can take"),
        ({"factors": (1,)}, "no exponent without a longer run"),
        ({"factors": (2, 4)}, "must start with 1"),
        ({"octaves": (0.0, 1.0)}, "three or more"),
        ({"batch_growth": 2.0}, "batch_growth = 2.0"),
        ({"seeds": 0}, "seeds = 0"),
    ):
        assert words in error_of(fitted, data, **({"out": tmp_path / "fit.json"} | changes))
        assert not list(tmp_path.iterdir())


def warned(recipe: Recipe, batch: int) -> list[str]:
    """What a plan at a batch warns of."""
    model = meta_model(ModelConfig(vocab=257, width=16, depth=1, head_dim=8))
    target = replace(recipe.base, batch=batch, tokens=64 * recipe.base.tokens)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan(model, recipe, target)
    said = (str(each.message) for each in caught)
    return [text for text in said if "critical batch" in text]


def test_a_plan_beyond_the_critical_batch_warns() -> None:
    """It does above the batch that the recipe records, and not below, nor without a record."""
    plain = make_recipe()
    known = replace(plain, provenance={"critical_batch": 3.0 * plain.base.batch})
    (message,) = warned(known, 6 * plain.base.batch)
    assert message.startswith(f"batch {6 * plain.base.batch:,} is 2 times the critical batch of")
    assert not warned(known, 2 * plain.base.batch)
    assert not warned(plain, 6 * plain.base.batch)
    small = replace(plain, provenance={"critical_batch": 1.0})
    assert not warned(small, plain.base.batch)  # where the recipe was tuned
    assert warned(small, 2 * plain.base.batch)


@pytest.mark.parametrize("value", ["much", True, -1.0, 0])
def test_what_is_no_batch_is_not_read_as_one(value: Any) -> None:
    """A provenance is the user's own: only a number above 0 is taken for a critical batch."""
    assert critical_batch(replace(make_recipe(), provenance={"critical_batch": value})) is None


def test_the_grid_is_checked() -> None:
    """A grid that cannot be is one line."""
    with pytest.raises(CompletedpError, match="batch_factors = "):
        HorizonGrid(batch_factors=())
