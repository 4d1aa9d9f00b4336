"""Schedules: shapes by hand, fractions of the run, and values within the peak."""

import itertools
import math
from typing import Any

import pytest
from helpers import error_of
from hypothesis import assume, given
from hypothesis import strategies as st

from completedp.theory.schedule import Schedule

fraction = st.floats(0, 1)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    boundaries = tuple(sorted(draw(st.sets(st.floats(0.01, 0.99), max_size=4))))
    levels = draw(st.lists(fraction, min_size=len(boundaries) + 1, max_size=len(boundaries) + 1))
    warmup = draw(st.floats(0, 0.5))
    return Schedule(
        kind=draw(st.sampled_from(("cosine", "constant", "piecewise", "wsd"))),
        warmup=warmup,
        final=draw(fraction),
        decay=draw(st.floats(0, 0.5)),
        power=draw(st.floats(0.5, 4)),
        boundaries=boundaries,
        levels=tuple(levels),
    )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(kind="constant", warmup=0), {0: 1.0, 50: 1.0, 99: 1.0}),
        (Schedule(kind="constant", warmup=0.1), {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 99: 1.0}),
        (Schedule(kind="cosine", warmup=0), {0: 1.0, 25: 0.8535534, 50: 0.5, 75: 0.1464466}),
        (Schedule(kind="cosine", warmup=0, final=0.1), {0: 1.0, 50: 0.55, 100: 0.1}),
        (Schedule(kind="cosine", warmup=0.2), {0: 0.05, 19: 1.0, 20: 1.0, 60: 0.5, 100: 0.0}),
        (
            Schedule(kind="wsd", warmup=0.1, decay=0.2, final=0.5),
            {0: 0.1, 9: 1.0, 10: 1.0, 80: 1.0, 90: 0.75, 100: 0.5},
        ),
        (Schedule(kind="cosine", warmup=0, power=2, final=0.2), {0: 1.0, 50: 0.4, 100: 0.2}),
        (Schedule(kind="wsd", warmup=0, decay=1, power=0.5), {0: 1.0, 75: 0.5, 100: 0.0}),
        (Schedule(kind="wsd", warmup=0, decay=0), {0: 1.0, 99: 1.0}),
        (Schedule(kind="wsd", warmup=0, decay=1), {0: 1.0, 50: 0.5, 75: 0.25}),
        (
            Schedule(kind="piecewise", warmup=0, boundaries=(0.5, 0.8), levels=(1.0, 0.3, 0.1)),
            {0: 1.0, 49: 1.0, 50: 0.3, 79: 0.3, 80: 0.1, 99: 0.1},
        ),
        (
            Schedule(kind="piecewise", warmup=0.1, boundaries=(0.5,), levels=(0.6, 0.2)),
            {0: 0.06, 9: 0.6, 10: 0.6, 50: 0.2},
        ),
        (Schedule(kind="piecewise", warmup=0), {0: 1.0, 99: 1.0}),
        (Schedule(kind="constant", warmup=1), {0: 0.01, 49: 0.5, 99: 1.0}),
    ],
)
def test_shapes_by_hand(schedule: Schedule, expected: dict[int, float]) -> None:
    """In a run of 100 steps each kind has the values worked out by hand."""
    found = {step: schedule(step, 100) for step in expected}
    assert found == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("steps", [10, 100, 1000, 10_000])
@pytest.mark.parametrize("kind", ["cosine", "constant", "wsd"])
def test_warm_up_is_a_fraction_of_the_run(kind: str, steps: int) -> None:
    """Whatever the duration, the rate rises linearly and reaches its peak after the fraction."""
    schedule = Schedule(kind=kind, warmup=0.3)
    rise = [schedule(step, steps) for step in range(3 * steps // 10)]
    assert rise == pytest.approx([(step + 1) / len(rise) for step in range(len(rise))])


@given(
    kind=st.sampled_from(("cosine", "wsd")),
    warmup=st.floats(0, 0.5),
    final=fraction,
    decay=st.floats(0, 0.5),
    steps=st.integers(1, 300),
)
def test_rates_rise_then_fall(
    kind: str, warmup: float, final: float, decay: float, steps: int
) -> None:
    """Cosine and wsd rise through the warm-up, never rise after it, and stay above their end."""
    schedule = Schedule(kind=kind, warmup=warmup, final=final, decay=decay)
    rates = [schedule(step, steps) for step in range(steps)]
    peak = round(warmup * steps)
    rising, falling = rates[:peak], rates[peak:]
    assert rising == sorted(rising)
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(falling))
    assert all(rate >= final - 1e-12 for rate in falling)


@given(schedule=schedules(), steps=st.integers(1, 400))
def test_multiplier_is_within_the_peak(schedule: Schedule, steps: int) -> None:
    """At every step of every run the multiplier is in [0, 1]."""
    assert all(-1e-12 <= schedule(step, steps) <= 1 + 1e-12 for step in range(steps))


@given(schedule=schedules(), position=st.floats(0.001, 0.999))
def test_shape_does_not_depend_on_duration(schedule: Schedule, position: float) -> None:
    """At the same fraction of a long run and of one ten times longer the multiplier is the same."""
    assume(all(abs(position - b) > 1e-3 for b in (*schedule.boundaries, schedule.warmup)))
    short, long = 100_000, 1_000_000
    at_short = schedule(int(position * short), short)
    assert schedule(int(position * long), long) == pytest.approx(at_short, abs=1e-2)


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"kind": "linear"}, "'linear'"),
        ({"kind": None}, "None"),
        ({"warmup": 100}, "100"),
        ({"warmup": -0.1}, "-0.1"),
        ({"warmup": math.nan}, "nan"),
        ({"warmup": True}, "True"),
        ({"final": "0"}, "'0'"),
        ({"final": 1.1}, "1.1"),
        ({"decay": 2}, "2"),
        ({"power": 0}, "power = 0"),
        ({"power": math.nan}, "nan"),
        ({"kind": "wsd", "warmup": 0.6, "decay": 0.6}, "0.6"),
        ({"boundaries": (0.5, 0.5)}, "0.5"),
        ({"boundaries": (0.8, 0.2)}, "0.8"),
        ({"boundaries": (0.0,)}, "0.0"),
        ({"boundaries": (1.0,)}, "1.0"),
        ({"boundaries": (math.nan,)}, "nan"),
        ({"kind": "piecewise", "boundaries": (0.5,)}, "2 levels"),
        ({"kind": "piecewise", "levels": ()}, "1 levels"),
        ({"kind": "piecewise", "levels": (1.5,)}, "1.5"),
        ({"kind": "piecewise", "levels": (-0.5,)}, "-0.5"),
        ({"kind": "piecewise", "levels": (math.nan,)}, "nan"),
    ],
)
def test_bad_schedules_are_one_line_errors(options: dict[str, Any], quoted: str) -> None:
    """An impossible shape is one line that quotes what is wrong."""
    assert quoted in error_of(Schedule, **options)


def test_the_shortest_run() -> None:
    """A run of one step has a rate above 0 in every kind."""
    for kind in ("cosine", "constant", "piecewise", "wsd"):
        for warmup in (0.0, 0.02, 0.5, 0.8):
            assert Schedule(kind=kind, warmup=warmup)(0, 1) > 0
