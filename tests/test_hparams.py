"""Hyperparameters: exact log2 vectors, strict names, and multipliers carried over depth."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from hypothesis import given
from hypothesis import strategies as st

from completedp.common.errors import CompletedpError
from completedp.theory.hparams import (
    Hyperparameters,
    Values,
    check_coordinate,
    interpolate,
)

VALUES = Values(lr=2**-8)
GELU = [
    *("embedding", "attn_norm", "qkv", "q_norm", "k_norm", "attn_out"),
    *("mlp_norm", "mlp_in", "mlp_out", "output_norm", "unembedding"),
]
finite = st.floats(-1000, 1000)
moderate = st.floats(-20, 20)


def coordinates(depth: int) -> list[str]:
    """Of every kind, as a search may have them."""
    by_type = [f"lr/type/{name}" for name in GELU]
    return ["eps/global", *by_type, *(f"residual/depth/{n}" for n in range(1, depth + 1))]


def bits(vector: Any) -> list[bytes]:
    return [struct.pack("<d", x) for x in vector]


def with_log2(depth: int = 4, **log2: float) -> Hyperparameters:
    """Hyperparameters with these log2 multipliers; lr__depth__3 stands for lr/depth/3."""
    named = {name.replace("__", "/"): value for name, value in log2.items()}
    return Hyperparameters(values=VALUES, depth=depth, log2=named)


@given(data=st.data(), depth=st.integers(1, 6))
def test_vector_round_trip_is_bitwise(data: st.DataObject, depth: int) -> None:
    """A point put into hyperparameters and read out again has the same bits."""
    names = coordinates(depth)
    point = data.draw(st.lists(finite, min_size=len(names), max_size=len(names)))
    hyperparameters = Hyperparameters(values=VALUES, depth=depth).with_vector(names, point)
    assert bits(hyperparameters.vector(names)) == bits(point)


@given(data=st.data(), depth=st.integers(1, 6))
def test_hyperparameters_round_trip_through_a_vector(data: st.DataObject, depth: int) -> None:
    """Hyperparameters whose multipliers are all in a search's coordinates come back equal."""
    names = coordinates(depth)
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    start = Hyperparameters(
        values=VALUES, depth=depth, log2={name: data.draw(finite) for name in chosen}
    )
    again = start.with_vector(chosen, start.vector(chosen))
    assert again == start
    assert bits(again.log2.values()) == bits(start.log2.values())


def test_vector_of_the_wrong_length_is_refused() -> None:
    """A point has as many numbers as the search has coordinates."""
    with pytest.raises(ValueError, match="argument 2 is"):
        with_log2().with_vector(["lr/global", "eps/global"], [1.0])


def test_with_vector_keeps_other_coordinates() -> None:
    """Moving in some coordinates leaves the others where they were."""
    moved = with_log2(lr__global=1.0, eps__global=2.0).with_vector(["lr/global"], [3.0])
    assert dict(moved.log2) == {"lr/global": 3.0, "eps/global": 2.0}


@pytest.mark.parametrize("depth", [1, 2, 4, 7])
@given(data=st.data())
def test_depth_multipliers_are_themselves_at_base_depth(data: st.DataObject, depth: int) -> None:
    """At base depth each layer has exactly its own multiplier."""
    log2 = {f"lr/depth/{layer}": data.draw(moderate) for layer in range(1, depth + 1)}
    hyperparameters = Hyperparameters(values=VALUES, depth=depth, log2=log2)
    for layer in range(1, depth + 1):
        found = hyperparameters.multipliers("lr", "qkv", layer, depth)["depth"]
        assert found == pytest.approx(2.0 ** log2[f"lr/depth/{layer}"], rel=1e-12)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(1, 1.0), (2, 1.0), (3, 1.5), (4, 2.0), (5, 3.0), (6, 4.0), (7, 6.0), (8, 8.0)],
)
def test_four_layers_to_eight_by_hand(layer: int, expected: float) -> None:
    """Multipliers 1, 2, 4, 8 at l/L = 1/4 .. 1 become these at l/8: held below the first layer,
    linear in the multiplier (1.5 between 1 and 2, not the 1.41 of its logarithm)."""
    log2 = with_log2(lr__depth__2=1.0, lr__depth__3=2.0, lr__depth__4=3.0)
    found = log2.multipliers("lr", "qkv", layer, 8)
    assert math.prod(found.values()) == pytest.approx(expected, rel=1e-12)


@given(
    profile=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    depth=st.integers(1, 64),
)
def test_interpolation_stays_within_its_profile(profile: list[float], depth: int) -> None:
    """Interpolated multipliers lie between the base's, and the last layer keeps the last one."""
    found = [interpolate(np.array(profile), layer, depth) for layer in range(1, depth + 1)]
    assert min(profile) * (1 - 1e-12) <= min(found)
    assert max(found) <= max(profile) * (1 + 1e-12)
    assert found[-1] == profile[-1]


@pytest.mark.parametrize("depth", [9, 12, 30])
def test_held_constant_below_the_first_base_layer(depth: int) -> None:
    """Layers with l/L under 1/L_base have the first base layer's multiplier."""
    profile = np.array([5.0, 1.0, 1.0])
    below = [layer for layer in range(1, depth + 1) if layer / depth <= 1 / 3]
    assert {interpolate(profile, layer, depth) for layer in below} == {5.0}


def test_multipliers_are_named_and_multiply() -> None:
    """Global, type and depth multipliers each act on the tensors they name."""
    log2 = with_log2(
        lr__global=1, lr__type__qkv=2, lr__depth__3=3, lr__layer__qkv__3=4, eps__global=7
    )
    assert log2.multipliers("lr", "qkv", 3, 4) == {"global": 2, "type": 4, "depth": 8 * 16}
    assert log2.multipliers("lr", "mlp_in", 3, 4) == {"global": 2, "type": 1, "depth": 8}
    assert log2.multipliers("lr", "qkv", 2, 4) == {"global": 2, "type": 4, "depth": 1}
    assert log2.multipliers("lr", "embedding") == {"global": 2, "type": 1}
    assert log2.multipliers("weight_decay", "qkv", 3, 4)["global"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "lr/global",
        "one_minus_beta1/type/q_norm",
        "init_std/depth/4",
        "eps/layer/mlp_out/1",
        "residual/type/attn",
        "residual/layer/mlp/2",
    ],
)
def test_good_coordinate_names(name: str) -> None:
    """Coordinates are tunable/global, /type/TYPE, /depth/LAYER or /layer/TYPE/LAYER."""
    check_coordinate(name, 4)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "lr",
        "lr/",
        "lr/type",
        "lr/type/attention",
        "lr/type/attn",
        "residual/type/qkv",
        "lr/depth/0",
        "lr/depth/5",
        "lr/depth/-1",
        "lr/depth/01",
        "lr/depth/x",
        "lr/layer/qkv",
        "lr/layer/qkv/9",
        "lr/global/",
        "beta1/global",
        "momentum/type/qkv",
        " lr/global",
    ],
)
def test_bad_coordinate_names_are_one_line_errors(name: str) -> None:
    """A name that is no coordinate of this base is quoted in one line."""
    message = error_of(Hyperparameters, values=VALUES, depth=4, log2={name: 0.0})
    assert repr(name) in message


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, True])
def test_bad_multipliers_are_one_line_errors(value: Any) -> None:
    """A log2 multiplier is a finite number."""
    message = error_of(Hyperparameters, values=VALUES, depth=4, log2={"lr/global": value})
    assert "lr/global" in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0),
        ("lr", -1e-3),
        ("lr", math.nan),
        ("lr", "1e-3"),
        ("lr", True),
        ("lr", 10**400),
        ("eps", 0.0),
        ("eps", math.inf),
        ("init_std", -0.02),
        ("weight_decay", -0.1),
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta2", 1.5),
        ("beta2", None),
    ],
)
def test_bad_values_are_one_line_errors(name: str, value: Any) -> None:
    """An impossible base value is one line that names it and quotes it."""
    message = error_of(Values, **({"lr": 1e-3} | {name: value}))
    assert name in message
    assert repr(value)[:40] in message


def test_edge_values_are_allowed() -> None:
    """No decay and no momentum are choices a user may make."""
    values = Values(lr=1, weight_decay=0, beta1=0, beta2=0.0)
    assert values.of("one_minus_beta1") == 1.0
    assert values.of("residual") == 1.0


def test_hyperparameters_keep_their_own_copy() -> None:
    """Changing the mapping that was given does not change the hyperparameters made from it."""
    given_log2 = {"lr/global": 1.0}
    hyperparameters = Hyperparameters(values=VALUES, depth=4, log2=given_log2)
    given_log2["lr/global"] = 2.0
    assert hyperparameters.log2["lr/global"] == 1.0


def test_errors_are_the_packages_own() -> None:
    """Bad names raise the package's error even when they are not text."""
    with pytest.raises(CompletedpError):
        check_coordinate(3, 4)  # type: ignore[arg-type]
