"""Cost: what training takes, reckoned before it begins. No torch: `figure --list` answers at once.

FLOP are 6 for a weight and token, and those of attention. Time is FLOP over what a device does of
them a second, and what every step and every compiled shape takes besides.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from completedp.common.progress import duration
from completedp.theory.scale import Scale


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What some trials take, on whatever device."""

    trials: int = 0
    steps: int = 0
    """Of all trials together."""
    tokens: int = 0
    flop: float = 0.0
    at_peak: float = 0.0
    """FLOP at a GPU's peak that take as long: of narrow models it does fewer a second."""
    shapes: int = 0
    """Programs to compile."""
    seconds_besides: float = 0.0
    """Of work that is no training."""
    memory_bytes: float = 0.0
    """Of the largest trial on a GPU; 0 where that was not reckoned."""

    def __add__(self, other: Cost) -> Cost:
        mine, theirs = asdict(self), asdict(other)
        both = Cost(**{name: mine[name] + theirs[name] for name in mine})
        return replace(both, memory_bytes=max(self.memory_bytes, other.memory_bytes))

    def seconds(self, speed: Speed) -> float:
        """About how long it takes on a device."""
        flop = self.at_peak if speed.by_width else self.flop
        training = flop / speed.flop_a_second + self.steps * speed.each_step
        return training + self.compiling(speed) + self.seconds_besides

    def compiling(self, speed: Speed) -> float:
        """The part of it in which programs are compiled."""
        return speed.compiling * self.shapes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return self.line()

    def line(self, counted: str = "tokens") -> str:
        """For people; `counted` is what the data have so many of."""
        if not self.trials:
            return "no training"
        trials = f"{self.trials:,} trial{'s' * (self.trials > 1)}"
        return (
            f"{trials}, {self.steps:,} steps, {short(self.tokens)} {counted}, "
            f"{self.flop:.1e} FLOP".replace("e+", "e")
        )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a device trains, and how that is known."""

    device: str
    flop_a_second: float
    by_width: bool = False
    """Whether those are of a GPU's peak, of which a model reaches a part by its width."""
    each_step: float = 0.0
    """Seconds that a step of a trial takes besides."""
    compiling: float = 0.0
    """Seconds to compile a shape."""
    known: str = ""
    """How: `measured`, or which part of a peak is used."""

    def text(self, cost: Cost) -> str:
        """How long something takes on it, for people."""
        compiling = round(cost.compiling(self))
        known = f", {self.known}" if self.known else ""
        part = f", {duration(compiling)} of it compiling" if compiling else ""
        return f"about {duration(cost.seconds(self))} on {self.device}{known}{part}"


def training_cost(scale: Scale, *, vocab: int, context: int, trials: float) -> Cost:
    """What so many trials of the reference model at a scale take."""
    block = 12 * scale.width**2  # four matrices of attention, two of an MLP four times as wide
    weights = scale.depth * block + vocab * scale.width  # an embedding is read, not multiplied
    flop = flop_a_token(weights, scale, context) * scale.tokens
    return replace(cost_of(scale, flop, trials), memory_bytes=memory_of(scale, vocab))


def cost_of(scale: Scale, flop: float, trials: float = 1) -> Cost:
    """Of so many trials at a scale that take so many FLOP each."""
    count = math.ceil(trials)
    return Cost(
        trials=count,
        steps=count * scale.steps,
        tokens=count * scale.steps * scale.batch,
        flop=flop * trials,
        at_peak=flop * trials / utilisation(scale.width),
        shapes=1,
    )


def memory_of(scale: Scale, vocab: int) -> float:
    """Bytes that a trial of the reference model takes in a slot of a GPU, about: weights, gradients
    and moments, and what its backward pass reads, with products in bfloat16."""
    width, batch = scale.width, scale.batch
    parameters = 12 * scale.depth * width**2 + 2 * vocab * width
    # Logits and their gradient; before them the last stream, and the features and their gradient.
    end = 4 * min(batch * vocab, _MOST_LOGITS) + batch * (4 + 2 * 2) * width
    kept = kept_a_block(width, 4 * width, compute_bytes=2)
    return 16 * parameters + batch * scale.depth * kept + end


def kept_a_block(width: float, hidden: float, *, compute_bytes: int) -> float:
    """Bytes that the backward pass of a block reads, by the token.

    That is the stream before each branch (float32), and in the type of the products: two normed
    inputs, qkv, rotated q and k, attention's output, and the feed-forward layer's hidden values
    before and after their nonlinearity.
    """
    return 2 * 4 * width + compute_bytes * (2 * width + 3 * width + 2 * width + width + 2 * hidden)


def flop_a_token(weights: float, scale: Scale, context: int) -> float:
    """Of training, with causal attention over the context."""
    return 6 * weights + 12 * scale.depth * scale.width * context / 2


_MOST_LOGITS = 2**25
"""The loss of more is computed in chunks (lm/loss.py)."""
IN_SLOTS_EACH_STEP, ALONE_EACH_BLOCK = 1e-5, 3e-3
"""Seconds on a GPU that a step takes besides its FLOP: in slots, and alone, by the block."""
COMPILING = {"cuda": 20.0, "cpu": 10.0}
"""Seconds to compile a shape."""


LONG_ON_CPU = 1800.0
"""Seconds of training on a CPU that people do not expect."""
PEAKS = {
    "A10": 125,
    "A100": 312,
    "B200": 2250,
    "H100": 989,
    "H200": 989,
    "L4": 121,
    "L40S": 362,
    "MI300X": 1307,
}
"""TFLOP/s of GPUs in bfloat16 without sparsity, by their makers' data sheets; H100 and H200 are the
SXM ones."""
MEMORIES = {
    "A10": 24,
    "A100": 80,
    "B200": 180,
    "H100": 80,
    "H200": 141,
    "L4": 24,
    "L40S": 48,
    "MI300X": 192,
}
"""GB of the same; there are A100 of 40, too."""


def too_small_for(memory_bytes: float) -> list[str]:
    """The GPUs that do not hold so much.

    >>> too_small_for(50e9)
    ['A10', 'L4', 'L40S']
    """
    return [name for name, memory in MEMORIES.items() if memory * 1e9 < memory_bytes]


def gpu_speed(peak: float, *, width: int, depth: int, slots: bool) -> Speed:
    """Of a GPU with a peak in TFLOP/s. Measured on an H200: docs/benchmarks.md."""
    part = utilisation(width)
    return Speed(
        device=f"a GPU of {peak:,.0f} TFLOP/s",
        flop_a_second=peak * 1e12 * part,
        each_step=IN_SLOTS_EACH_STEP if slots else ALONE_EACH_BLOCK * depth,
        compiling=COMPILING["cuda"] if slots else 0.0,
        known=f"{part:.0%} of it used at width {width}",
    )


def utilisation(width: int) -> float:
    """The part of its peak that a GPU reaches: small models are bound by memory.

    >>> utilisation(64), utilisation(256), utilisation(4096)
    (0.05, 0.2, 0.35)
    """
    return min(0.35, width / 1280)


def short(count: float) -> str:
    """A number as people say it.

    >>> short(16_000_000), short(999), short(4.8e9), short(999_997_440)
    ('16M', '999', '4.8B', '1B')
    """
    count = float(f"{count:.3g}")  # before its unit is chosen: 999.9M is a thousand of them
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"
