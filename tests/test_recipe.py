"""Recipes on disk: exact round trips, strict reading, all-or-nothing writing."""

import copy
import json
import math
import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import BASE, error_of
from hypothesis import given
from hypothesis import strategies as st

import completedp as cdp
from completedp.theory.evidence import Evidence, Rung, SearchRecord, Standing
from completedp.theory.hparams import Hyperparameters, Values
from completedp.theory.recipe import Recipe
from completedp.theory.recipe_page import recipe_page
from completedp.theory.rules import AXES, Rules, Shift
from completedp.theory.scale import Ratios, Scale
from completedp.theory.schedule import Schedule
from completedp.theory.transfer import Transfer

WIDTHS = {"embedding": 64, "qkv": 64, "mlp_out": 256, "q_norm": 16, "unembedding": 64}
SHIFT = Shift(role="qk_norm", hyperparameter="eps", axis="width", by=-1.0)
SCALES = [Scale(**BASE), Scale(**(BASE | {"width": 128, "tokens": 4 * BASE["tokens"]}))]
EVIDENCE = Evidence(
    rungs=tuple(
        Rung(
            scale=scale,
            seeds=(2**31, 2**31 + 1),
            standings=(
                Standing(candidate="found", losses=(2.25, 2.75)),
                Standing(candidate="start", losses=(2.5, math.inf)),
            ),
        )
        for scale in SCALES
    ),
    chosen="found",
    searches=(
        SearchRecord(
            study="s",
            engine="random",
            space="type",
            trials=7,
            seed=3,
            sites=tuple(SCALES),
            digest="4567cdef0123",
        ),
    ),
    model="reference",
    text="a text",
    digest="0123abcd",
    tokens_per_parameter=12.5,
    tau=(0.25, math.inf),
    seconds={"NVIDIA H200": 12.5},
)


def make(**changes: Any) -> Recipe:
    """A recipe in which no field has its default."""
    fields: dict[str, Any] = {
        "base": Scale(**BASE),
        "hyperparameters": Hyperparameters(
            values=Values(
                lr=2**-7, weight_decay=0.3, eps=1e-9, beta1=0.8, beta2=0.99, init_std=0.03
            ),
            depth=BASE["depth"],
            log2={"lr/type/qkv": 0.1, "eps/depth/2": -1 / 3},
        ),
        "widths": WIDTHS,
        "head_dim": 16,
        "rules": Rules(alpha=0.5, token_exponent=0.3, beta_rule="power", shifts=(SHIFT,)),
        "schedule": Schedule(kind="piecewise", warmup=0.1, boundaries=(0.5,), levels=(1.0, 0.1)),
        "no_decay": ("hidden_norm", "qk_norm"),
        "overrides": {r"sub_norm$": "latent_norm", r"\.wide\.": "mlp_in"},
        "constants": {"config.logit_scale": 0.0625, "embed_tokens.embed_scale": 8.0},
        "provenance": {"who": "a search", "trials": 768, "loss": 4.344, "real": True},
        "evidence": EVIDENCE,
    }
    return Recipe(**(fields | changes))


def at(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The data with one entry replaced; the last part of the path may be new."""
    data = copy.deepcopy(data)
    *parents, last = path.split(".")
    inner: Any = data
    for key in parents:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    inner[int(last) if isinstance(inner, list) else last] = value
    return data


def without(data: dict[str, Any], path: str) -> dict[str, Any]:
    data = copy.deepcopy(data)
    *parents, last = path.split(".")
    inner: Any = data
    for key in parents:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    del inner[last]
    return data


def on_disk(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(recipe.to_dict()))


def load_error(folder: Path, data: Any) -> str:
    path = folder / "recipe.json"
    path.write_text(json.dumps(data))
    message = error_of(Recipe.load, path)
    assert str(path) in message
    return message.replace(str(path), "")


names = [
    "lr/type/qkv",
    "eps/type/q_norm",
    "init_std/type/embedding",
    "lr/depth/1",
    "residual/depth/2",
]
recipes = st.builds(
    make,
    hyperparameters=st.builds(
        Hyperparameters,
        values=st.builds(
            Values,
            lr=st.floats(1e-12, 10),
            weight_decay=st.floats(0, 10),
            eps=st.floats(1e-30, 1),
            beta1=st.floats(0, 1, exclude_max=True),
            beta2=st.floats(0, 1, exclude_max=True),
            init_std=st.floats(1e-9, 10),
        ),
        depth=st.just(BASE["depth"]),
        log2=st.dictionaries(st.sampled_from(names), st.floats(-50, 50)),
    ),
    head_dim=st.none() | st.integers(1, 512),
    rules=st.builds(
        Rules,
        parameterisation=st.sampled_from(("sp", "mup", "completep", "completedp")),
        alpha=st.floats(0.5, 1),
        axes=st.lists(st.sampled_from(AXES), unique=True).map(tuple),
        token_exponent=st.floats(0, 1),
        shifts=st.lists(
            st.builds(lambda by: Shift(**(vars(SHIFT) | {"by": by})), st.floats(-2, 2))
        ).map(tuple),
    ),
    schedule=st.builds(
        Schedule,
        kind=st.sampled_from(("cosine", "constant")),
        warmup=st.floats(0, 1),
        final=st.floats(0, 1),
    ),
    overrides=st.dictionaries(st.sampled_from(("a", r"\d+$")), st.sampled_from(("qkv", "router"))),
    constants=st.none() | st.dictionaries(st.text(), st.floats(-1e9, 1e9)),
    no_decay=st.lists(st.sampled_from(("hidden_norm", "output_bias")), unique=True).map(tuple),
    provenance=st.dictionaries(
        st.text(),
        st.text()
        | st.integers()
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
)


@given(recipe=recipes)
def test_round_trip_through_a_file_is_equal(recipe: Recipe) -> None:
    """What is saved is what is loaded, to the last bit of every number."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.json"
        recipe.save(path)
        assert Recipe.load(path) == recipe
        again = Path(folder) / "again.json"
        Recipe.load(str(path)).save(again)
        assert again.read_bytes() == path.read_bytes()


def test_from_dict_is_the_inverse_of_to_dict() -> None:
    """A recipe goes through plain values and back without a file."""
    assert Recipe.from_dict(make().to_dict()) == make()


def test_to_dict_is_a_copy() -> None:
    """Changing what `to_dict` gave never changes the recipe it came from."""
    recipe = make()
    plain = recipe.to_dict()
    plain["values"]["lr"] = 1.0
    plain["rules"]["shifts"][0]["by"] = 5.0
    plain["widths"]["qkv"] = 1
    assert recipe == make()


def test_file_is_readable_json_with_a_schema(tmp_path: Path) -> None:
    """The file is indented JSON that says its schema and has a last newline."""
    make().save(tmp_path / "recipe.json")
    text = (tmp_path / "recipe.json").read_text()
    assert text.endswith("}\n")
    assert text.count("\n") > 20
    assert json.loads(text)["schema"] == 3


def test_files_of_the_first_schema_are_read(tmp_path: Path) -> None:
    """A file from before overrides, constants and optimizers has none, none noted, and AdamW."""
    data = on_disk(make()) | {"schema": 1}
    for path in ("overrides", "constants", "rules.optimizer", "evidence"):
        data = without(data, path)
    (tmp_path / "old.json").write_text(json.dumps(data))
    found = Recipe.load(tmp_path / "old.json")
    assert found == make(overrides={}, constants=None, evidence=None)
    assert found.rules.optimizer == "adamw"
    assert found.to_dict()["schema"] == 3


def test_files_of_the_second_schema_are_read(tmp_path: Path) -> None:
    """A file from before evidence has none, keeps its words, and is written as schema 3."""
    data = without(on_disk(make()), "evidence") | {"schema": 2}
    (tmp_path / "old.json").write_text(json.dumps(data))
    found = Recipe.load(tmp_path / "old.json")
    assert found == make(evidence=None)
    assert found.to_dict()["schema"] == 3


def test_other_values_leave_the_evidence_behind_and_other_rules_what_they_touch() -> None:
    """What was measured is said of the values and rules that were measured, and of no others; at
    the base no rule does anything."""
    recipe = make()
    assert recipe.with_values(lr=recipe.values.lr).evidence == EVIDENCE
    assert recipe.with_rules(alpha=0.5).evidence == EVIDENCE
    assert recipe.with_values(lr=1.0).evidence is None
    kept = recipe.with_rules(parameterisation="sp").evidence
    assert kept is not None
    assert kept.tokens_per_parameter == EVIDENCE.tokens_per_parameter
    assert all(rung.scale == recipe.base for rung in kept.rungs)
    assert kept.ranges(recipe.base) in ({}, dict.fromkeys(AXES, (1.0, 1.0)))
    assert (kept.searches, kept.seconds) == (EVIDENCE.searches, EVIDENCE.seconds)
    assert kept.trials > 0


@pytest.mark.parametrize(
    ("choices", "kept"),
    [
        ({"alpha": 0.5}, ["base", "batch and tokens", "longer"]),
        ({"beta_rule": "keep"}, ["base", "deeper", "batch and tokens"]),
        ({"beta_rule": "power"}, ["base", "deeper", "batch and tokens"]),
        ({"token_exponent": 0.25}, ["base", "deeper"]),
        ({"parameterisation": "sp"}, ["base", "batch and tokens"]),
        ({"weight_decay": "independent"}, None),
    ],
)
def test_evidence_stays_where_another_rule_changes_nothing(
    choices: dict[str, Any], kept: list[str] | None
) -> None:
    """A rung goes along to other rules exactly if every value there is the same by both."""
    base = Scale(**BASE)
    scales = {
        "base": base,
        "deeper": base.times(Ratios(depth=2)),
        "batch and tokens": base.times(Ratios(batch=4, tokens=4)),
        "longer": base.times(Ratios(tokens=4)),
    }
    found = (Standing(candidate="found", losses=(2.0,)),)
    rungs = tuple(Rung(scale=scale, standings=found) for scale in scales.values())
    mine = make(rules=Rules(), evidence=replace(EVIDENCE, rungs=rungs, chosen="found"))
    other = mine.with_rules(**choices)
    if kept is None:
        assert other.evidence is None
        return
    assert other.evidence is not None
    assert [rung.scale for rung in other.evidence.rungs] == [scales[name] for name in kept]

    def values(recipe: Recipe, scale: Scale) -> list[float]:
        carried = Transfer(recipe, scale)
        of_types = [
            carried.value(name, kind, 1).target
            for kind in recipe.types
            for name in carried.hyperparameters(kind)
        ]
        return [*of_types, carried.value("residual", "mlp", 1).target]

    alike = [name for name, scale in scales.items() if values(mine, scale) == values(other, scale)]
    assert alike == kept


def test_save_makes_missing_folders(tmp_path: Path) -> None:
    """A recipe can be saved into a folder that is not there yet."""
    make().save(tmp_path / "a" / "b" / "recipe.json")
    assert Recipe.load(tmp_path / "a" / "b" / "recipe.json") == make()


@pytest.mark.parametrize("failing", ["fsync", "write"])
def test_a_failed_save_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """When writing fails the old recipe is still there, whole, with nothing beside it."""
    path = tmp_path / "recipe.json"
    make().save(path)
    before = path.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    else:
        monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        make(no_decay=()).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["recipe.json"]


@pytest.mark.parametrize(
    "where", ["", "base.", "values.", "rules.", "schedule.", "rules.shifts.0."]
)
@pytest.mark.parametrize("key", ["learning_rate", "Base"])
def test_unknown_keys_are_errors_at_each_level(tmp_path: Path, where: str, key: str) -> None:
    """A key nobody reads is one line that names it and where it is."""
    message = load_error(tmp_path, at(on_disk(make()), where + key, 1))
    assert key in message
    assert where.replace(".0.", "[0].") in message


@pytest.mark.parametrize("where", ["", "provenance."])
def test_odd_keys_do_not_break_the_line(tmp_path: Path, where: str) -> None:
    """A key with a line break in it is still a one-line error."""
    assert "a\\nb" in load_error(tmp_path, at(on_disk(make()), where + "a\nb", None))


@pytest.mark.parametrize(
    "path",
    [
        *("schema", "base", "head_dim", "values", "log2_multipliers", "no_decay", "widths"),
        *("rules", "schedule", "provenance", "base.width", "base.tokens", "values.lr"),
        *("overrides", "constants", "evidence"),
    ],
)
def test_missing_keys_are_errors(tmp_path: Path, path: str) -> None:
    """A key that is not there is one line that names it."""
    message = load_error(tmp_path, without(on_disk(make()), path))
    assert path in message
    assert "missing" in message


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schema", 4, "schema"),
        ("schema", 0, "schema"),
        ("schema", "1", "schema"),
        ("schema", True, "schema"),
        ("schema", None, "schema"),
        ("base", [64, 2], "base"),
        ("base.width", "64", "base.width"),
        ("base.width", 0, "width"),
        ("base.depth", 3.5, "depth"),
        ("base.depth", 1, "eps/depth/2"),
        ("base.batch", True, "base.batch"),
        ("base.tokens", 1, "tokens"),
        ("head_dim", "16", "head_dim"),
        ("head_dim", 0, "head_dim"),
        ("head_dim", -16, "head_dim"),
        ("values", None, "values"),
        ("values.lr", -1e-3, "lr"),
        ("values.lr", "1e-3", "values.lr"),
        ("values.lr", None, "values.lr"),
        ("values.lr", math.nan, "lr"),
        ("values.eps", math.inf, "eps"),
        ("values.beta1", 1.0, "beta1"),
        ("values.beta1", -0.1, "beta1"),
        ("values.beta2", 1, "beta2"),
        ("values.weight_decay", -0.1, "weight_decay"),
        ("log2_multipliers", [], "log2_multipliers"),
        ("log2_multipliers.lr/type/nothing", 1.0, "lr/type/nothing"),
        ("log2_multipliers.lr/depth/3", 1.0, "lr/depth/3"),
        ("log2_multipliers.lr/global", math.nan, "lr/global"),
        ("log2_multipliers.lr/global", "1", "lr/global"),
        ("no_decay", "hidden_norm", "no_decay"),
        ("no_decay", ["norms"], "no_decay"),
        ("no_decay", [3], "no_decay"),
        ("widths", [], "widths"),
        ("widths.attention", 64, "attention"),
        ("widths.qkv", 64.5, "qkv"),
        ("widths.qkv", 0, "qkv"),
        ("widths.qkv", True, "qkv"),
        ("overrides", [], "overrides"),
        ("overrides", None, "overrides"),
        ("overrides.(odd", "mlp_in", "override '(odd'"),
        ("overrides.odd", "mlp", "override 'odd'"),
        ("overrides.odd", 3, "override 'odd'"),
        ("constants", [1.0], "constants"),
        ("constants.a", "1", "constants.a"),
        ("constants.a", True, "constants.a"),
        ("constants.a", math.nan, "constants.a"),
        ("rules.optimizer", "sgd", "'sgd'"),
        ("rules.optimizer", 3, "rules.optimizer"),
        ("rules", "completedp", "rules"),
        ("rules.parameterisation", "mUP", "parameterisation"),
        ("rules.alpha", 0.4, "alpha"),
        ("rules.alpha", "1", "rules.alpha"),
        ("rules.alpha", math.nan, "alpha"),
        ("rules.axes", "width", "rules.axes"),
        ("rules.axes", ["heads"], "heads"),
        ("rules.axes", [["width"]], "width"),
        ("rules.token_exponent", 2, "token_exponent"),
        ("rules.output_norm_eps", "x1", "output_norm_eps"),
        ("rules.beta_rule", None, "rules.beta_rule"),
        ("rules.weight_decay", 0.1, "rules.weight_decay"),
        ("rules.shifts", {}, "rules.shifts"),
        ("rules.shifts.0", "lr", "rules.shifts[0]"),
        ("rules.shifts.0.role", "norm", "norm"),
        ("rules.shifts.0.by", "1", "by"),
        ("rules.shifts.0.by", math.nan, "by"),
        ("schedule", 3, "schedule"),
        ("schedule.kind", "linear", "linear"),
        ("schedule.warmup", 1.5, "warmup"),
        ("schedule.warmup", math.nan, "warmup"),
        ("schedule.boundaries", [0.5, 0.2], "boundaries"),
        ("schedule.boundaries", ["0.5"], "boundaries"),
        ("schedule.levels", [1.0], "levels"),
        ("schedule.levels", [1.0, math.nan], "levels"),
        ("schedule.levels", [1.0, math.inf], "levels"),
        ("schedule.levels", [1.0, None], "levels"),
        ("provenance", "me", "provenance"),
        ("provenance.who", None, "provenance.who"),
        ("provenance.who", ["a", "b"], "provenance.who"),
        ("provenance.who", math.inf, "provenance.who"),
        ("evidence", [], "evidence"),
        ("evidence.losses", 1, "evidence.losses"),
        ("evidence.chosen", "nobody", "evidence: chosen = 'nobody'"),
        ("evidence.tau", [1.0], "evidence: tau = [1.0]"),
        ("evidence.tau", [2.0, 1.0], "evidence: tau"),
        ("evidence.tau", ["short", 1.0], "evidence.tau"),
        ("evidence.tokens_per_parameter", -1, "evidence: tokens_per_parameter"),
        ("evidence.seconds", {"H200": -1}, "evidence: seconds.H200"),
        ("evidence.rungs.1.scale.width", 0, "evidence.rungs[1].scale: width"),
        ("evidence.rungs.1.seeds", [1.5, 2], "evidence.rungs[1].seeds"),
        ("evidence.rungs.1.seeds", [1], "evidence.rungs[1]: 'found' has 2 losses for 1 seeds"),
        ("evidence.rungs.0.standings", [], "evidence.rungs[0]"),
        ("evidence.rungs.0.standings.1.losses", [], "evidence.rungs[0].standings[1]"),
        ("evidence.rungs.0.standings.1.losses", ["low"], "rungs[0].standings[1].losses"),
        ("evidence.searches.0.trials", -1, "evidence.searches[0]: trials"),
        ("evidence.searches.0.engine", None, "evidence.searches[0].engine"),
        ("evidence.searches.0.sites", [{}], "evidence.searches[0].sites[0].width"),
    ],
)
def test_bad_entries_are_one_line_errors(tmp_path: Path, path: str, value: Any, named: str) -> None:
    """Every wrong type and impossible value is one line that names its key."""
    assert named in load_error(tmp_path, at(on_disk(make()), path, value))


PATHS = [
    *("schema", "base", "base.width", "base.depth", "head_dim", "values", "values.lr"),
    *("values.beta1", "log2_multipliers", "log2_multipliers.lr/global", "no_decay", "widths"),
    *("widths.qkv", "rules", "rules.alpha", "rules.axes", "rules.shifts", "rules.shifts.0"),
    *("rules.shifts.0.role", "schedule", "schedule.kind", "schedule.warmup"),
    *("schedule.boundaries", "schedule.levels", "provenance", "provenance.who"),
    *("overrides", "overrides.odd", "constants", "constants.a", "rules.optimizer"),
    *("evidence", "evidence.rungs", "evidence.rungs.0", "evidence.rungs.0.seeds"),
    *("evidence.rungs.0.standings", "evidence.rungs.0.standings.0.losses", "evidence.searches"),
    *("evidence.searches.0.sites", "evidence.tau", "evidence.seconds", "evidence.chosen"),
    *("evidence.tokens_per_parameter", "evidence.text"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def recipe_or_error(data: Any) -> Recipe | str:
    try:
        return Recipe.from_dict(data)
    except cdp.CompletedpError as error:
        return str(error)


@given(path=st.sampled_from(PATHS), value=json_values)
def test_any_json_in_any_place_loads_or_is_one_line(path: str, value: Any) -> None:
    """Whatever stands in a file, reading it gives a recipe or the package's one-line error."""
    found = recipe_or_error(at(on_disk(make()), path, value))
    if isinstance(found, str):
        assert "\n" not in found
    else:
        again = Recipe.from_dict(on_disk(found))
        assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "null", "[]", '"recipe"', "3", "\ud7ff{"])
def test_files_that_are_no_recipe(tmp_path: Path, text: str) -> None:
    """Text that is no JSON object is one line that names the file."""
    path = tmp_path / "recipe.json"
    path.write_text(text)
    assert "recipe.json" in error_of(Recipe.load, path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A binary file is one line that names the file."""
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\xff\xfe\x00\x80")
    assert "weights.bin" in error_of(Recipe.load, path)


@pytest.mark.parametrize(
    "where", ["missing.json", "missing/recipe.json", ".", "a file/recipe.json"]
)
def test_paths_that_are_no_file(tmp_path: Path, where: str) -> None:
    """A missing file, a folder, and a path through a file are each one line that names the path."""
    (tmp_path / "a file").write_text("{}")
    path = tmp_path / where
    assert str(path) in error_of(Recipe.load, path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"widths": {"attention": 64}}, "attention"),
        ({"widths": {"qkv": "64"}}, "qkv"),
        ({"no_decay": ("norms",)}, "norms"),
        ({"overrides": {"(": "qkv"}}, "'('"),
        ({"constants": {"a": "b"}}, "constants.a"),
        ({"base": Scale(**(BASE | {"depth": 3}))}, "depth"),
    ],
)
def test_bad_recipes_cannot_be_made(changes: dict[str, Any], named: str) -> None:
    """The same checks hold for a recipe made in Python."""
    assert named in error_of(make, **changes)


def test_with_values_and_with_rules() -> None:
    """Other values or rules give another recipe; the rest and the original stay."""
    recipe = make()
    moved = recipe.with_values(lr=1.0).with_rules(parameterisation="sp")
    assert (moved.values.lr, moved.values.eps) == (1.0, recipe.values.eps)
    assert (moved.rules.parameterisation, moved.rules.alpha) == ("sp", 0.5)
    assert moved.hyperparameters.log2 == recipe.hyperparameters.log2
    assert recipe == make()
    assert "beta1" in error_of(recipe.with_values, beta1=1.0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_recipes_can_be_copied_and_sent(duplicate: Any) -> None:
    """A recipe survives deepcopy, and pickling to another process."""
    assert duplicate(make()) == make()


def test_a_schedule_is_shown_with_what_is_not_usual_of_it() -> None:
    """A power other than 1 is printed, and 1 is not."""
    recipe = Recipe.shipped("adamw-reference")
    bent = replace(recipe, schedule=replace(recipe.schedule, power=0.5))
    assert "power 0.5" in str(bent)
    assert "power" not in str(replace(recipe, schedule=Schedule()))


def test_a_printed_recipe_is_its_page() -> None:
    """`print(recipe)` is what `recipe show` prints, for one title or the other."""
    for name in Recipe.names():
        recipe = Recipe.shipped(name)
        assert str(recipe).splitlines()[1:] == recipe_page(name, recipe).splitlines()[1:]


def test_repr_is_a_line_that_differs_where_recipes_do() -> None:
    """It is short, and no two recipes share it; equal ones do."""
    recipe = Recipe.shipped("adamw-reference")
    assert len(repr(recipe)) < 250
    assert "\n" not in repr(recipe)
    assert "width 256, depth 4" in repr(recipe)
    assert repr(Recipe.from_dict(recipe.to_dict())) == repr(recipe)
    others = [
        recipe.with_values(lr=recipe.values.lr * (1 + 1e-12)),
        replace(recipe, provenance={"by": "hand"}),
        replace(recipe, schedule=replace(recipe.schedule, warmup=0.03)),
        replace(recipe, head_dim=32),
    ]
    assert len({repr(other) for other in [recipe, *others]}) == len(others) + 1


def test_a_recipe_is_saved_where_it_is_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` is the home folder for both."""
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = cdp.Recipe.default()
    recipe.save("~/mine.json")
    assert (tmp_path / "mine.json").exists()
    assert cdp.Recipe.load("~/mine.json") == recipe
