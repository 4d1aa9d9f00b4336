"""Scale and Ratios: strict values, and the arithmetic between them."""

import math
from typing import Any

import pytest
from helpers import BASE, error_of
from hypothesis import given
from hypothesis import strategies as st

import completedp as cdp
from completedp.theory.scale import Factor, Ratios, Scale

NAMES = ("width", "depth", "batch", "tokens")
sizes = st.integers(1, 10**12)
scales = st.tuples(st.integers(1, 10**5), st.integers(1, 10**3), sizes, sizes).map(
    lambda s: Scale(width=s[0], depth=s[1], batch=min(s[2:]), tokens=max(s[2:]))
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 1.5, math.inf, math.nan, True, "64", None, [64]])
def test_bad_scale_is_one_line_quoting_the_value(name: str, value: Any) -> None:
    """A scale is whole numbers of at least 1, and the error names the field and quotes it."""
    message = error_of(Scale, **(BASE | {name: value}))
    assert name in message
    assert repr(value) in message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -2.0, math.inf, math.nan, False, "4", None])
def test_bad_ratio_is_one_line_quoting_the_value(name: str, value: Any) -> None:
    """A ratio is a finite number above 0, and the error names the axis and quotes it."""
    message = error_of(Ratios, **{name: value})
    assert name in message
    assert repr(value) in message


def test_a_depth_that_no_list_could_hold() -> None:
    """More than 10,000 blocks are refused before anything is made of that length."""
    assert "depth = 1000000000000" in error_of(Scale, **(BASE | {"depth": 10**12}))


def test_ratios_of_nothing() -> None:
    """A text that names no axis is refused, and not taken for the same size."""
    for text in ("", ",", " "):
        assert repr(text) in error_of(Ratios.parse, text)


@given(st.integers(1, 10**9), st.integers(1, 10**4), st.integers(0, 4))
def test_a_factor_makes_what_the_arithmetic_makes(base: int, digits: int, places: int) -> None:
    """`4x` of a base is exactly that many times it where that is whole, and else an error that
    names the base; a ratio of the same text is the same number."""
    text = f"{digits / 10**places:.{places}f}x"
    whole, left = divmod(base * digits, 10**places)
    if left:
        assert f"{base:,}" in error_of(Factor.parse(text).of, "batch", base)
    else:
        assert Factor.parse(text).of("batch", base) == whole
    assert Ratios.parse(f"batch={text}") == Ratios.parse(f"batch={text[:-1]}")
    assert Ratios.parse(f"batch={text}").batch == digits / 10**places


def test_resized_takes_numbers_and_factors() -> None:
    """Sizes that are not given stay, numbers are taken, factors are of what was."""
    base = Scale(width=256, depth=4, batch=1024, tokens=4096)
    found = base.resized(width=512, depth=None, batch=Factor("0.5"))
    assert found == Scale(width=512, depth=4, batch=512, tokens=4096)
    assert "width" in error_of(base.resized, width=Factor("nan"))


def test_fewer_tokens_than_a_batch_is_an_error() -> None:
    """A run has at least one step."""
    message = error_of(Scale, **(BASE | {"batch": 1025, "tokens": 1024}))
    assert "1024" in message
    assert "1025" in message


def test_whole_floats_are_welcome() -> None:
    """1e9 means 10**9 and is kept as a whole number."""
    scale = Scale(**(BASE | {"tokens": 1e9}))
    assert scale.tokens == 10**9
    assert isinstance(scale.tokens, int)
    assert scale == Scale(**(BASE | {"tokens": 10**9}))


def test_missing_or_positional_arguments_are_refused() -> None:
    """All four sizes are given by name."""
    with pytest.raises(TypeError):
        Scale(64, 2, 1024, 65536)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Scale(width=64, depth=2, batch=1024)  # type: ignore[call-arg]


def test_division_gives_the_ratios() -> None:
    """Target over base is the four ratios, r and the ratio of steps."""
    base = Scale(width=256, depth=4, batch=16_384, tokens=16_384_000)
    target = Scale(width=1024, depth=16, batch=65_536, tokens=262_144_000)
    found = target / base
    assert found == Ratios(width=4, depth=4, batch=4, tokens=16)
    assert (found.r, found.steps) == (0.25, 4.0)
    assert (base.steps, target.steps) == (1000, 4000)


def test_a_last_partial_batch_is_no_step() -> None:
    """Steps are whole batches."""
    assert Scale(width=1, depth=1, batch=1000, tokens=2999).steps == 2


@given(a=scales, b=scales, c=scales)
def test_ratios_compose(a: Scale, b: Scale, c: Scale) -> None:
    """From a to b, then from b to c, is from a to c."""
    composed = ((b / a) * (c / b)).to_dict()
    assert composed == pytest.approx((c / a).to_dict(), rel=1e-12)


@given(scale=scales)
def test_a_scale_over_itself_is_one(scale: Scale) -> None:
    """A scale's ratios to itself are exactly the neutral element."""
    assert scale / scale == Ratios()
    assert Ratios() * (scale / scale) == Ratios()


def test_frozen_and_plain() -> None:
    """Scales and ratios are values: immutable, hashable, and plain dicts for JSON."""
    scale = cdp.Scale(**BASE)
    with pytest.raises(AttributeError):
        scale.width = 1  # type: ignore[misc]
    assert {scale: 1}[cdp.Scale(**BASE)] == 1
    assert scale.to_dict() == BASE
    assert Ratios(width=2).to_dict() == {"width": 2, "depth": 1.0, "batch": 1.0, "tokens": 1.0}
    assert "65,536 tokens" in str(scale)
