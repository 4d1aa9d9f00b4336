"""Spaces: their coordinates, the ways between them, and bounds that hold wherever they are used."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers import error_of
from hypothesis import given
from hypothesis import strategies as st
from models import BASE_SCALE, make_model, make_recipe

from completedp.apply.plan import plan
from completedp.common.surface import Command, running
from completedp.studies.space import KINDS, make_space, project
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.schedule import Schedule

RECIPE = make_recipe()
TYPES = tuple(RECIPE.widths)


def moved(recipe: Recipe, log2: dict[str, float]) -> Recipe:
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def values_at(recipe: Recipe) -> list[tuple[float, ...]]:
    """Every number of the base model's plan."""
    planned = plan(make_model(device="meta"), recipe, BASE_SCALE)
    numbers = [
        (t.init_std or 0.0, t.lr, t.weight_decay, t.eps, t.beta1, t.beta2) for t in planned.tensors
    ]
    return [*numbers, *planned.residual_multipliers]


def test_the_number_of_coordinates() -> None:
    """11 types, 6 of them matrices, 2 branches and 2 layers make the counts worked out by hand."""
    depth = 2
    counts = {kind: len(make_space(RECIPE, kind, tunables=TUNABLE).coordinates) for kind in KINDS}
    in_blocks, outside = 8, 3
    assert counts["global"] == 7
    assert counts["type"] == 5 * 11 + 6 + 2
    assert counts["staged"] == counts["type"] + counts["global"]
    assert counts["paper"] == counts["type"] + depth
    assert counts["kronecker"] == counts["type"] + 7 * depth
    assert counts["full"] == 5 * (in_blocks * depth + outside) + (4 * depth + 2) + 2 * depth


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_tuned_where_nothing_is_said(kind: str) -> None:
    """What the optimizers have, and the schedule's warm-up and power where a multiplier changes
    them; but for the paper's space, which had none of the schedule."""

    def tuned(**schedule: object) -> set[str]:
        recipe = replace(RECIPE, schedule=Schedule(**schedule))  # pyright: ignore[reportArgumentType]
        space = make_space(recipe, kind)
        assert {*make_space(recipe, kind, tunables=TUNABLE).coordinates} <= {*space.coordinates}
        return {name for name in space.coordinates if name.startswith("schedule/")}

    parts = set() if kind == "paper" else {"schedule/warmup", "schedule/power"}
    assert tuned(warmup=0.1) == parts
    assert tuned(warmup=0.0) == parts - {"schedule/warmup"}
    assert tuned(kind="constant", warmup=0.1) == parts - {"schedule/power"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_the_recipe(kind: str) -> None:
    """Every space starts at the recipe it is made around, multipliers and all."""
    recipe = moved(RECIPE, {"lr/type/qkv": 0.5, "lr/depth/1": -0.3, "residual/global": 0.2})
    space = make_space(recipe, kind)
    assert values_at(space.recipe(recipe, space.bounds.start)) == values_at(recipe)


@pytest.mark.parametrize(("narrow", "wide"), list(itertools.combinations(KINDS, 2)))
def test_a_wider_space_starts_from_the_narrower_ones_best(narrow: str, wide: str) -> None:
    """Whatever point a narrow search ends at, the wider one starts with the same training."""
    first = make_space(RECIPE, narrow)
    rng = np.random.default_rng(0)
    best = first.recipe(RECIPE, rng.uniform(-0.5, 0.5, len(first.coordinates)))
    second = make_space(best, wide)
    assert values_at(second.recipe(best, second.bounds.start)) == values_at(best)


@pytest.mark.parametrize("kind", ["kronecker", "full"])
def test_projection_is_the_mean_over_depth(kind: str) -> None:
    """Without depth a type has the mean of its layers' log2 multipliers."""
    space = make_space(RECIPE, kind)
    rng = np.random.default_rng(1)
    point = rng.uniform(-1, 1, len(space.coordinates))
    there = space.recipe(RECIPE, point).hyperparameters
    flat = project(there, TYPES, RECIPE.rules)
    found = dict(zip(space.coordinates, point, strict=True))
    if kind == "full":
        expected = (found["lr/layer/qkv/1"] + found["lr/layer/qkv/2"]) / 2
    else:
        expected = found["lr/type/qkv"] + (found["lr/depth/1"] + found["lr/depth/2"]) / 2
    assert flat.log2["lr/type/qkv"] == pytest.approx(expected)
    assert flat.log2["lr/type/embedding"] == pytest.approx(found["lr/type/embedding"])
    assert all(name.split("/")[1] == "type" for name in flat.log2)


@given(st.lists(st.floats(-2, 2), min_size=65, max_size=65))
def test_projecting_what_has_no_depth_changes_nothing(point: list[float]) -> None:
    """A point of the `type` space is its own projection."""
    names = make_space(RECIPE, "type", tunables=TUNABLE).coordinates
    there = RECIPE.hyperparameters.with_vector(names, (point * 2)[: len(names)])
    flat = project(there, TYPES, RECIPE.rules)
    assert flat.vector(names) == pytest.approx(there.vector(names), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batches", [1, 4])
def test_every_corner_can_be_trained_at_every_named_scale(kind: str, batches: int) -> None:
    """At the upper bounds of all coordinates at once a plan is possible, at base and target."""
    target = replace(BASE_SCALE, batch=BASE_SCALE.batch * batches, depth=6)
    space = make_space(RECIPE, kind, scales=[target])
    top = space.recipe(RECIPE, space.bounds.high)
    plan(make_model(device="meta"), top, BASE_SCALE)
    found = plan(make_model(depth=6, device="meta"), top, target)
    largest = max(1 - t.beta1 for t in found.tensors)
    assert 0.9 < largest < 1  # the bound is close, not merely safe


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_near_the_limit_has_what_room_is_left(kind: str) -> None:
    """A search goes on from a recipe with a large 1 - beta1, and its corner can be trained too."""
    recipe = moved(RECIPE, {"one_minus_beta1/type/mlp_in": 2.4, "one_minus_beta1/global": 0.2})
    space = make_space(recipe, kind)
    top = space.recipe(recipe, space.bounds.high)
    found = plan(make_model(device="meta"), top, BASE_SCALE)
    assert 0.9 < max(1 - t.beta1 for t in found.tensors) < 1


def test_all_that_multiplies_a_tensor_shares_its_room() -> None:
    """With coordinates of the model, a type and a layer at once the corner can still be trained."""
    tunables = ("one_minus_beta1", "one_minus_beta1/layer/qkv/1", "one_minus_beta1/depth/2")
    space = make_space(RECIPE, "staged", tunables=tunables)
    top = space.recipe(RECIPE, space.bounds.high)
    found = plan(make_model(device="meta"), top, BASE_SCALE)
    assert 0.9 < max(1 - t.beta1 for t in found.tensors) < 1


@pytest.mark.parametrize("tunables", [("warmup",), ("decay",), ("warmup", "decay", "power")])
def test_every_corner_of_the_schedule_is_a_schedule(tunables: tuple[str, ...]) -> None:
    """However far a search may go, warm-up and decay fit the run, and the power its limits."""
    recipe = replace(RECIPE, schedule=Schedule(kind="wsd", warmup=0.3, decay=0.2))
    space = make_space(recipe, "global", tunables=tunables, reach=12.0)
    for corner in (space.bounds.low, space.bounds.high):
        found = space.recipe(recipe, corner).schedule
        assert found.warmup + found.decay <= 1
    assert found.warmup + found.decay > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_no_tensor_has_is_no_coordinate(kind: str) -> None:
    """Where the model has no matrix there is no initial scale to search, for the whole neither."""
    space = make_space(RECIPE, kind, types=("attn_norm", "output_norm"))
    assert not any(name.startswith("init_std/") for name in space.coordinates)
    assert any(name.startswith("lr/") for name in space.coordinates)
    named = make_space(RECIPE, kind, types=("embedding",), tunables=("one_minus_beta1/depth/1",))
    assert named.bounds.high.tolist() == [4.0]  # asked for by name, it is there, and does nothing


def test_bounds_are_as_wide_as_asked_elsewhere() -> None:
    """Coordinates without a limit of their own may go `reach` octaves either way."""
    space = make_space(RECIPE, "type", reach=3.0, tunables=("lr", "eps"))
    assert (space.bounds.high == 3.0).all()
    assert (space.bounds.low == -3.0).all()


def test_only_the_models_own_types() -> None:
    """Types that a recipe knows and the model has not are no coordinates."""
    known = tuple(Recipe.default().widths)
    assert "mlp_gate" in known
    space = make_space(Recipe.default(), "kronecker", types=TYPES, tunables=TUNABLE)
    assert len(space.coordinates) == 5 * (11 + 4) + (6 + 4) + (2 + 4)
    assert not any("mlp_gate" in name for name in space.coordinates)


def test_no_decay_is_not_searched() -> None:
    """A weight decay of 0 stays 0 whatever multiplies it, so it has no coordinates."""
    space = make_space(RECIPE.with_values(weight_decay=0.0), "global", tunables=TUNABLE)
    assert "weight_decay/global" not in space.coordinates
    assert len(space.coordinates) == len(TUNABLE) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_the_schedule_are_tuned(kind: str) -> None:
    """One coordinate each in every space, multiplied like any value, and fractions at most 1."""
    recipe = replace(RECIPE, schedule=replace(RECIPE.schedule, warmup=0.1, final=0.2))
    space = make_space(recipe, kind, tunables=("warmup", "final", "power"))
    assert space.coordinates == ("schedule/warmup", "schedule/final", "schedule/power")
    found = space.recipe(recipe, [1.0, 3.0, 1.0])
    assert (found.schedule.warmup, found.schedule.final) == (0.2, 1.0)
    assert found.schedule.power == 2.0
    assert found.hyperparameters == recipe.hyperparameters
    assert make_space(found, kind, tunables=("warmup",)).bounds.start.tolist() == [0.0]


def test_all_that_a_schedule_has_is_tuned() -> None:
    """Where nothing is said, every part of the schedule that a multiplier changes is searched."""
    for schedule, parts in (
        (Schedule(), ["warmup", "power"]),
        (Schedule(final=0.1), ["warmup", "final", "power"]),
        (Schedule(kind="wsd", final=0.1), ["warmup", "final", "decay", "power"]),
        (Schedule(kind="constant", warmup=0.0), []),
    ):
        space = make_space(replace(RECIPE, schedule=schedule), "global")
        found = [name for name in space.coordinates if name.startswith("schedule/")]
        assert found == [f"schedule/{part}" for part in parts]


def test_a_schedule_without_the_part_is_one_line() -> None:
    """What no multiplier changes, or a schedule of that kind does not have, cannot be tuned."""
    for tunable, words, python, flags in (
        ("final", "final is 0", "final=0.1", "--final 0.1"),
        ("decay", "cosine schedule has no decay", "kind='wsd'", "--schedule wsd"),
    ):
        said = error_of(make_space, RECIPE, "type", tunables=(tunable,))
        assert words in said
        assert said.endswith(f"begin with recipe.with_schedule({python})")
        with running(Command()):
            assert error_of(make_space, RECIPE, "type", tunables=(tunable,)).endswith(
                f": give {flags}"
            )


@pytest.mark.parametrize("part", ["warmup", "final", "decay", "power"])
@pytest.mark.parametrize("kind", ["constant", "cosine", "wsd"])
def test_what_a_schedule_without_a_part_advises_can_be_tuned(kind: str, part: str) -> None:
    """Whatever kind it is of, and however little it has: what is advised is searched."""
    empty = Schedule(kind=kind, warmup=0.0, decay=0.0)
    recipe = replace(RECIPE, schedule=empty)
    if empty.has(part) and getattr(empty, part) > 0:
        return
    advised = error_of(make_space, recipe, "global", tunables=(part,)).partition("with ")[2]
    better = eval(advised, {"recipe": recipe})
    assert make_space(better, "global", tunables=(part,)).coordinates == (f"schedule/{part}",)


def test_impossible_spaces() -> None:
    """Unknown kinds and hyperparameters, and betas without room, are one line each."""
    assert "unknown space 'layers'" in error_of(make_space, RECIPE, "layers")
    assert "'momentum'" in error_of(make_space, RECIPE, "type", tunables=("momentum",))
    assert "reach = 0" in error_of(make_space, RECIPE, "type", reach=0)
    assert "each once" in error_of(make_space, RECIPE, "type", tunables=("lr", "lr"))
    large = replace(BASE_SCALE, batch=BASE_SCALE.batch * 16)
    said = error_of(make_space, RECIPE, "type", scales=[large])
    assert "no room at one_minus_beta1/type/embedding" in said


def test_single_coordinates_are_searched_beside_the_rest() -> None:
    """Coordinates that are named are searched as they are, each once, with those of the space."""
    named = ("lr", "lr/type/qkv", "residual/depth/2", "lr/global", "warmup")
    found = make_space(RECIPE, "global", tunables=named)
    assert found.coordinates == (
        "lr/global",
        "lr/type/qkv",
        "residual/depth/2",
        "schedule/warmup",
    )
    assert "lr/type/nothing" in error_of(
        make_space, RECIPE, "global", tunables=("lr/type/nothing",)
    )
