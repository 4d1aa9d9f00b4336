"""Plausible wrong arguments at the front door: one line that quotes them, never Python's own error.

And what is nearly right, a number of numpy's or a name where several may be, is taken as meant.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BASE, error_of

import completedp as cdp
from completedp.common.warn import warn

SCALE = cdp.Scale(**BASE)
RATIOS = cdp.Ratios(width=4)
CONFIG = cdp.ModelConfig(vocab=64, width=64, depth=2)


def make() -> cdp.Transformer:
    return cdp.Transformer(CONFIG)


def of_two(width: int, depth: int) -> cdp.Transformer:
    return cdp.Transformer(cdp.ModelConfig(vocab=64, width=width, depth=depth))


def data(split: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(4, dtype=torch.long),) * 2] * 8


MODEL = make()
RECIPE = cdp.Recipe.for_model(MODEL, SCALE, lr=2**-8)
PLAN = cdp.plan(MODEL, RECIPE, SCALE)


def for_model(**options: Any) -> cdp.Recipe:
    return cdp.Recipe.for_model(MODEL, SCALE, **options)


def factors(*given: Any, **choices: Any) -> cdp.Factors:
    return cdp.factors("hidden_weight", *given, **choices)


def scheduled(schedule: Any, steps: Any = 10) -> object:
    return cdp.attach_schedule(PLAN.adamw(), schedule, steps)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: cdp.Recipe.for_model(make, SCALE), "model = <function make at 0x"),  # type: ignore
    (lambda: cdp.Recipe.for_model(None, SCALE), "model = None must be a torch.nn.Module"),  # type: ignore
    (lambda: cdp.Recipe.for_model(MODEL, {"width": 64}), "base = {'width': 64} must be a Scale"),  # type: ignore
    (lambda: cdp.plan("hf:x", RECIPE, SCALE), "model = 'hf:x' must be a torch.nn.Module"),  # type: ignore
    (lambda: cdp.plan(MODEL, None, SCALE), "recipe = None must be a Recipe, its file, or"),  # type: ignore
    (lambda: cdp.plan(MODEL, RECIPE.to_dict(), SCALE), "recipe = {'schema': 3, "),  # type: ignore
    (lambda: cdp.plan(MODEL, RECIPE, None), "target = None must be a Scale"),  # type: ignore
    (lambda: cdp.Transfer(RECIPE, RATIOS), "target = Ratios(width=4, "),  # type: ignore
    (lambda: cdp.train(make, RECIPE, None, data="x", out="y"), "target = None must be a Scale"),  # type: ignore
    (lambda: cdp.search(make, 3, data="x"), "base = 3 must be a Scale"),  # type: ignore
    (
        lambda: cdp.search(of_two, SCALE, data),
        "of_two asks for width, depth, and is given one",
    ),  # type: ignore
    (lambda: cdp.Recipe.load(None), "None is no path"),  # type: ignore
    (lambda: cdp.Recipe.load(""), "'' is no path"),
    (lambda: SCALE / 2, "divisor = 2 must be a Scale"),  # type: ignore
    (lambda: SCALE.times(2), "ratios = 2 must be Ratios"),  # type: ignore
    (lambda: factors(None), "ratios = None must be Ratios: target / base"),
    (lambda: factors({"width": 4}), "ratios = {'width': 4} must be Ratios: target / base"),
    (lambda: factors(SCALE), "must be Ratios: target / base"),
    (lambda: factors(RATIOS, foo=1), "unknown choice of rules 'foo': choose from param"),
    (lambda: RECIPE.with_rules(alpa=1), "'alpa' (did you mean alpha?): choose from"),
    (lambda: for_model(schedule="cosine"), "schedule = 'cosine' must be a Schedule"),
    (lambda: for_model(rules="completedp"), "rules = 'completedp' must be Rules"),
    (lambda: for_model(overrides=["a=b"]), "overrides = ['a=b'] must be a dict"),
    (lambda: for_model(axes=None), "unknown axis None: choose from width"),
    (lambda: for_model(no_decay="hiden_norm"), "'hiden_norm' (did you mean hidden_norm?)"),
    (lambda: for_model(optimizer="muon"), "write {'hidden_weight': 'muon'}"),
    (lambda: scheduled("cosine"), "schedule = 'cosine' must be a Schedule"),
    (lambda: scheduled(cdp.Schedule(), "all"), "steps = 'all' must be a whole number"),
    (lambda: PLAN.explain(None), "name = None must be that of a tensor or a module"),  # type: ignore
    (lambda: PLAN.check(None), "optimizer = None must be a torch optimizer"),  # type: ignore
    (lambda: PLAN.initialise(seed="a"), "seed = 'a' must be a whole number"),  # type: ignore
    (lambda: PLAN.initialise(seed=None), "seed = None must be a whole number"),  # type: ignore
    (lambda: PLAN.initialise(seed=1.5), "seed = 1.5 must be a whole number"),  # type: ignore
    (lambda: PLAN.initialise(seed=2**70), "303424 must be a whole number from 0 to 10000000000000"),
    (lambda: PLAN.adamw(foo=1), "unknown option 'foo': choose from maximize, amsgrad"),
    (lambda: PLAN.adamw("torch", foo=1), "unknown option 'foo'"),
    (lambda: RECIPE.save("/proc/x.json"), "'/proc/x.json': choose a place that you may write to"),
    (lambda: RECIPE.save("a\0b"), r"'a\x00b' is no path"),
    (lambda: cdp.coordcheck(widths=(64, 128), out="/proc/x"), "'/proc/x': choose a place that"),
    (lambda: cdp.sweep(make, SCALE, data="x", seeds=1.5), "seeds = 1.5 must be a whole"),  # type: ignore
    (lambda: cdp.fit_horizon(make, data="x", seeds=1.5), "seeds = 1.5 must be a whole"),  # type: ignore
    (lambda: cdp.fit_horizon(make, data="x", seeds=-1), "seeds = -1 must be a whole"),
    (lambda: cdp.ModelConfig(vocab=10.5, width=64, depth=2), "vocab = 10.5 must be a whole"),  # type: ignore
    (lambda: cdp.sweep(make, SCALE, factors=2, data="x"), "factors = [2] must start with 1"),  # type: ignore
    (lambda: cdp.sweep(make, SCALE, factors=(1, "a"), data="x"), "factors = 'a' must be a whole"),  # type: ignore
    (lambda: cdp.coordcheck(widths=("a", "b")), "widths = 'a' must be a whole number"),  # type: ignore
]


@pytest.mark.parametrize(("call", "line"), WRONG, ids=[line for _, line in WRONG])
def test_wrong_arguments_are_one_line(call: Callable[[], Any], line: str) -> None:
    """What is of another kind than is asked for is quoted, with what to give instead."""
    assert line in error_of(call)


def test_numbers_of_numpy_are_numbers() -> None:
    """They are taken wherever numbers are, and kept as plain ones, which a JSON file takes."""
    wide = cdp.Ratios(width=np.int64(4), depth=np.float32(2))
    assert wide == cdp.Ratios(width=4, depth=2)
    recipe = for_model(
        lr=np.float32(2**-8),
        alpha=np.float32(0.5),
        schedule=cdp.Schedule(warmup=np.float32(0.25), levels=(np.float64(1),)),
    )
    assert recipe == for_model(lr=2**-8, alpha=0.5, schedule=cdp.Schedule(warmup=0.25))
    assert cdp.Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    numbers = (*vars(wide).values(), *vars(recipe.values).values(), recipe.rules.alpha)
    assert {type(number) for number in numbers} <= {int, float}
    log2 = {"lr/global": np.float32(1)}
    kept = cdp.Hyperparameters(values=recipe.values, depth=2, log2=log2).log2
    assert json.dumps(dict(kept)) == '{"lr/global": 1.0}'
    assert type(cdp.ModelConfig(vocab=np.int64(64), width=64, depth=2).vocab) is int
    assert error_of(cdp.Ratios, width=True).startswith("ratio width = True must be")


def test_a_name_alone_is_one_of_several() -> None:
    """A name where several may be is not taken for its letters."""
    recipe = for_model(axes="width", no_decay="hidden_norm")
    assert (recipe.rules.axes, recipe.no_decay) == (("width",), ("hidden_norm",))


def test_whole_numbers_are_one_seed() -> None:
    """A seed draws the same whatever kind of number it is."""

    def drawn(seed: Any) -> torch.Tensor:
        PLAN.initialise(seed)
        return MODEL.embedding.weight.detach().clone()

    assert torch.equal(drawn(3), drawn(np.int64(3)))
    assert torch.equal(drawn(3), drawn(3.0))
    assert not torch.equal(drawn(3), drawn(4))


def test_what_is_explained_has_its_article() -> None:
    """`explain` says an output_norm, and a hidden_weight."""
    assert "is output_norm, an output_norm, " in PLAN.explain("output_norm.weight")
    assert ", a hidden_weight, " in PLAN.explain("blocks.0.attn.qkv.weight")


def test_a_warning_is_of_the_users_line_and_said_once_there() -> None:
    """Whichever files of the package find it, Python counts a warning at the line that calls."""
    folder = Path(cdp.__file__).parent
    inner, outer = folder / "apply" / "inner.py", folder / "outer.py"
    names: dict[str, Any] = {"warn": warn}
    exec(compile("def find():\n    warn('narrow')", str(inner), "exec"), names)
    exec(compile("def call():\n    find()\n    warn('narrow')", str(outer), "exec"), names)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        names["call"]()
    assert [(str(each.message), each.filename) for each in said] == [("narrow", __file__)]


def test_a_folder_that_begins_with_our_name_is_the_users() -> None:
    """A warning of a call from beside the package is at that call."""
    theirs = str(Path(cdp.__file__).parent) + "_of_mine/train.py"
    names: dict[str, Any] = {"warn": warn}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        exec(compile("warn('narrow')", theirs, "exec"), names)
    assert [each.filename for each in said] == [theirs]
