"""Learning-rate schedules as pure functions of (step, steps), with peak 1.

Every length is a fraction of the run, so that a schedule means the same at any duration. A
schedule multiplies planned learning rates; it never replaces them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from completedp.common.checks import check_is, check_number, check_one_of, several
from completedp.common.errors import CompletedpError

KINDS = ("cosine", "constant", "piecewise", "wsd")
_OF_KINDS = {
    "final": ("cosine", "wsd"),
    "decay": ("wsd",),
    "power": ("cosine", "wsd"),
    "boundaries": ("piecewise",),
    "levels": ("piecewise",),
}
"""The kinds that have a part; what is not named they all have."""
POWERS = (1 / 64, 64.0)
"""The least and the largest power of a fall."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A shape of the learning rate over a run; call it with (step, steps).

    Gives a fraction of the peak rate, from 0 to 1. Lengths are fractions of the run.

    >>> schedule = Schedule(kind="wsd", warmup=0.1, decay=0.2)
    >>> [round(schedule(step, 100), 2) for step in (0, 9, 50, 99)]
    [0.1, 1.0, 1.0, 0.05]
    """

    kind: str = "cosine"
    """cosine, constant, piecewise (constant in pieces), or wsd (warm-up, stable, decay)."""
    warmup: float = 0.02
    """Fraction of the steps over which the rate rises linearly to its peak."""
    final: float = 0.0
    """What cosine and wsd end at, as a fraction of the peak."""
    decay: float = 0.2
    """wsd: the last fraction of the steps, over which the rate falls linearly."""
    power: float = 1.0
    """The fall of cosine and wsd to this power: above 1 it comes earlier, below 1 later."""
    boundaries: tuple[float, ...] = ()
    """piecewise: increasing fractions of the run at which the rate changes."""
    levels: tuple[float, ...] = (1.0,)
    """piecewise: one level before, between and after the boundaries, as fractions of the peak."""

    def __post_init__(self) -> None:
        check_one_of("schedule", self.kind, KINDS)
        for name in ("warmup", "final", "decay"):
            value = check_number(f"schedule {name}", getattr(self, name), low=0, high=1)
            object.__setattr__(self, name, value)
        power = check_number("schedule power", self.power, low=POWERS[0], high=POWERS[1])
        object.__setattr__(self, "power", power)
        for name in ("boundaries", "levels"):
            given = several(getattr(self, name))
            values = tuple(check_number(f"schedule {name}", each, low=0, high=1) for each in given)
            object.__setattr__(self, name, values)
        if self.kind == "wsd" and self.warmup + self.decay > 1:
            raise CompletedpError(
                f"schedule warmup = {self.warmup:g} and decay = {self.decay:g} overlap: "
                "together they may be at most 1"
            )
        if list(self.boundaries) != sorted({*self.boundaries} - {0, 1}):
            raise CompletedpError(
                f"schedule boundaries = {list(self.boundaries)} must increase within (0, 1)"
            )
        if self.kind == "piecewise" and len(self.levels) != len(self.boundaries) + 1:
            raise CompletedpError(
                f"schedule piecewise with {len(self.boundaries)} boundaries needs "
                f"{len(self.boundaries) + 1} levels, and has {len(self.levels)}"
            )

    def __call__(self, step: int, steps: int) -> float:
        """The multiplier of update number `step`, counted from 0, of `steps`."""
        warmup_steps = round(self.warmup * steps)
        if step < warmup_steps:
            return self._shape(0.0) * (step + 1) / warmup_steps
        if self.kind in ("piecewise", "wsd"):  # positions are fractions of the whole run
            return self._shape(step / steps)
        return self._shape((step - warmup_steps) / max(1, steps - warmup_steps))

    def _shape(self, progress: float) -> float:
        """The schedule without its warm-up, progress going from 0 towards 1."""
        if self.kind == "cosine":
            return self._fall(0.5 * (1 + math.cos(math.pi * progress)))
        if self.kind == "wsd":
            left = 1 - progress
            return 1.0 if left >= self.decay else self._fall(left / self.decay)
        if self.kind == "piecewise":
            return self.levels[sum(progress >= boundary for boundary in self.boundaries)]
        return 1.0

    def _fall(self, left: float) -> float:
        """Between the peak, where all is left of the fall, and the final rate, where nothing is."""
        return self.final + (1 - self.final) * left**self.power

    def has(self, part: str) -> bool:
        """Whether a part changes anything of its kind.

        >>> Schedule(kind="cosine").has("final"), Schedule(kind="cosine").has("decay")
        (True, False)
        """
        return self.kind in kinds_with(part)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without a power of 1, as older versions wrote them."""
        plain = asdict(self) | {
            "boundaries": list(self.boundaries),
            "levels": list(self.levels),
        }
        return plain if self.power != 1.0 else {k: v for k, v in plain.items() if k != "power"}


def kinds_with(part: str) -> tuple[str, ...]:
    """The kinds of schedule that have a part."""
    return _OF_KINDS.get(part, KINDS)


def check_schedule(value: object) -> None:
    """Raise where something else was given than a schedule, such as its kind alone."""
    check_is("schedule", value, Schedule, f"a Schedule: Schedule(kind={KINDS[0]!r})")
