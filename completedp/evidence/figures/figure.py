"""Figure: a claim of the paper as an experiment, at any of its sizes, with a verdict in numbers.

A figure is one definition that says what is trained at each size, what that costs, what the numbers
say of the claim, and how they are drawn. No torch here: `figure --list` answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from completedp.common.errors import CompletedpError
from completedp.theory.roles import Role
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale
from completedp.training.cost import Cost, Speed, training_cost

SIZES = ("cpu", "gpu", "paper")
TINY = "tiny"
"""A size for tests: seconds, and no claim can be judged by it."""
PASS, FAIL, OPEN = "pass", "fail", "not settled"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim, what was measured, and whether it holds."""

    claim: str
    measured: float | None
    """None where it could not be measured."""
    low: float | None
    high: float | None
    """The interval of 95 %."""
    unit: str
    verdict: str
    """pass, fail, or not settled: the interval has the limit in it, or nothing was measured."""

    def __str__(self) -> str:
        shown = "not measured"
        if self.measured is not None:
            shown = f"{self.measured:.3g}"
            if self.low is not None and self.high is not None:
                shown += f" [{self.low:.3g}, {self.high:.3g}]"
            shown += f" {self.unit}".rstrip()
        return f"{self.verdict:<12} {self.claim}: {shown}"


def all_diverged(what: str, trials: int) -> CompletedpError:
    """What to say where there is nothing to judge."""
    return CompletedpError(
        f"all {trials:,} trials of {what} diverged, and there is nothing to judge: look at the "
        "model, its loss and its data (`completedp train` shows a run step by step)"
    )


def judged(
    claim: str,
    measured: float | None,
    interval: tuple[float, float] | None,
    *,
    unit: str = "",
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> Finding:
    """Pass where the whole interval is within the limits, fail where all of it is outside."""
    low, high = interval or (None, None)
    verdict = OPEN
    if low is not None and high is not None and math.isfinite(low + high):
        if at_least <= low and high <= at_most:
            verdict = PASS
        elif high < at_least or low > at_most:
            verdict = FAIL
    if measured is not None and not math.isfinite(measured):
        measured = low = high = None
    return Finding(claim=claim, measured=measured, low=low, high=high, unit=unit, verdict=verdict)


def worst(findings: Iterable[Finding]) -> Finding:
    """What speaks most against a claim that all of these have to bear out."""
    order = (PASS, OPEN, FAIL)
    return max(findings, key=lambda found: (order.index(found.verdict), found.measured or 0.0))


def size_of_change(change: float, half: float) -> tuple[float, float]:
    """The interval of a change's size, given that of the change: |x| of all x within."""
    low, high = change - half, change + half
    nearest = 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
    return nearest, max(abs(low), abs(high))


def spread(errors: Iterable[float], seeds: int) -> float:
    """Half the interval of 95 % of a sum or difference, from the standard errors of its parts.

    Welch's: of parts with unlike errors the larger one's few seeds count.
    """
    whole, fourths = 0.0, 0.0
    for error in errors:
        whole, fourths = whole + error**2, fourths + error**4
    if not fourths or not math.isfinite(fourths):
        return math.sqrt(whole) if seeds > 1 else math.inf
    return student(math.floor((seeds - 1) * whole**2 / fourths + 1e-9)) * math.sqrt(whole)


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """A mean, and half of its interval of 95 %."""
    mean = sum(values) / len(values)
    if len(values) < 2 or not math.isfinite(mean):
        return mean, math.inf
    return mean, student(len(values) - 1) * standard_error(values)


def standard_error(values: Iterable[float]) -> float:
    """Of the mean of those that are finite; 0, which is no bar in a drawing, of fewer than two."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return 0.0
    mean = sum(finite) / len(finite)
    variance = sum((value - mean) ** 2 for value in finite) / (len(finite) - 1)
    return math.sqrt(variance / len(finite))


def student(freedom: int) -> float:
    """Student's t at 97.5 %, from 5 degrees on by its Cornish-Fisher series, within 0.2 %."""
    if freedom <= 4:
        return {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}.get(freedom, math.inf)
    z, n = 1.959964, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a figure found."""

    findings: Sequence[Finding]
    numbers: dict[str, Any]
    """What the findings were judged by, as plain values."""
    raw: Any
    """Every measurement, as plain values."""
    text: str
    """The numbers as a table for people."""
    svg: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The few numbers that stand beside the verdict."""


CORES, H200 = "2 CPU cores", "one H200"
_H200_PEAK = 989.0
"""TFLOP/s in bfloat16."""
_OF_PEAK = 0.75
"""The rest goes to evaluation and to slots that wait: `lr-width` and `headline` took 252 and 2,981
seconds where all of it would take 185 and 2,259."""
_ON_H200 = Speed(device=H200, flop_a_second=_OF_PEAK * _H200_PEAK * 1e12, by_width=True)
SPEEDS = {
    TINY: Speed(device=CORES, flop_a_second=3e10, each_step=1e-3),
    "cpu": Speed(device=CORES, flop_a_second=3e10, each_step=1e-3, compiling=10.0),
    "gpu": replace(_ON_H200, each_step=1e-5, compiling=20.0),
    "paper": replace(_ON_H200, compiling=60.0),
}
"""Of the machine that a size is meant for: measured on two idle cores and on one H200 with models
of width 64 to 512; the same is assumed of the paper's."""


def speed_by_peak(size: str, peak: float) -> Speed:
    """The speed at a size on a GPU of so many TFLOP/s, from that on an H200."""
    known = SPEEDS["gpu" if size in (TINY, "cpu") else size]
    return replace(
        known,
        device=f"a GPU of {peak:,.0f} TFLOP/s",
        flop_a_second=known.flop_a_second * peak / _H200_PEAK,
        known="from an H200 by their peaks",
    )


def same_training(rules: Rules, scale: Scale, base: Scale) -> Any:
    """Equal for rules that carry any recipe to a scale in the same way."""
    ratios = scale / base
    factors = tuple(tuple(rules.factors(role, ratios).to_dict().values()) for role in Role)
    betas = rules.beta_rule if rules.memory_factor(ratios) != 1.0 else ""
    return scale, factors, rules.residual_multiplier(ratios), betas, rules.weight_decay


class Figure(Protocol):
    """One experiment."""

    @property
    def name(self) -> str:
        """As the command line has it."""
        ...

    @property
    def claim(self) -> str:
        """What the paper says, in one sentence."""
        ...

    @property
    def paper(self) -> str:
        """Where the paper says it."""
        ...

    @property
    def see(self) -> str:
        """What to see in the drawing, for readers who see it for the first time."""
        ...

    @property
    def sizes(self) -> Mapping[str, Any]:
        """What is trained at each size; those that train have a `setting`."""
        ...

    def cost(self, size: str) -> Cost:
        """What a size takes."""
        ...

    def run(self, size: str, lab: Any) -> Found:
        """Train what is not trained yet in a `Lab`, judge, and draw."""
        ...


def setting_of(figure: Figure, size: str) -> dict[str, Any] | None:
    """The base and the values that a figure's trials start from, as plain values."""
    found = getattr(figure.sizes[size], "setting", None)
    return None if found is None else asdict(found)


def cost_text(figure: Figure, size: str, speed: Speed | None = None) -> str:
    """What a size takes, for people: on the machine that it is meant for, or on another."""
    cost = figure.cost(size)
    if not cost.trials:
        return f"no training, about {cost.seconds_besides:.0f} s"
    return f"{cost}: {(speed or SPEEDS[size]).text(cost)}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trials of a figure have in common at one size: the base and its text."""

    base: Scale
    context: int
    head_dim: int
    vocab: int
    """Of the text that the cost is reckoned for; a user's may have another."""
    eval_examples: int
    values: dict[str, float]
    """Global values from which octaves count."""

    def cost(self, scale: Scale, trials: float) -> Cost:
        """Of so many trials at a scale."""
        return training_cost(scale, vocab=self.vocab, context=self.context, trials=trials)
