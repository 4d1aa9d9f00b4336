"""Optimizers: which hyperparameters each has, how they are tuned, and which rule carries each on.

An optimizer is data. Its description is here, its rows of the rule table in tables.py, its step in
apply/updates.py; nothing else names what it has. Two words mean the same for all of them: `lr` is
what a schedule multiplies, and `weight_decay` what the rules' convention and `no_decay` are about.
How a tensor starts and what multiplies its output do not depend on the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from completedp.common.checks import check_number
from completedp.common.errors import CompletedpError

LR, WEIGHT_DECAY = "lr", "weight_decay"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One hyperparameter of an optimizer."""

    name: str
    """As plans call it: `beta1`."""
    rule: str
    """The row of the rule table that carries it on: `one_minus_beta`, for both betas."""
    value: str = ""
    """As recipes call it. Optimizers that share the name share the value; one that needs a rate of
    its own calls it by another (`muon_lr`). Its own name where none is given."""
    default: float | None = None
    """What a recipe has that does not say; None where it has to say."""
    is_complement: bool = False
    """Whether it is in [0, 1), and 1 minus it is what is tuned and scaled."""
    may_be_zero: bool = False
    """Whether 0 is allowed, which no multiplier changes."""
    power: int = 0
    """A weight W that becomes c W trains the same if this is multiplied by c^power: 1 of what has
    a weight's size, -1 of what is added to gradients. Weight decay follows from lr."""
    key: str = ""
    """In a torch group: `betas`. Its own name where none is given."""
    place: int | None = None
    """Its place under that key, where it is one of several."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value or self.name)
        object.__setattr__(self, "key", self.key or self.name)

    @property
    def tunable(self) -> str:
        """As it is tuned, on a log2 scale: `one_minus_beta1`."""
        return f"one_minus_{self.value}" if self.is_complement else self.value

    def check(self, given: Any) -> float:
        """The value as a plain number; raise unless it is one that this can be."""
        value = check_number(self.value, given)
        if self.is_complement:
            if not 0 <= value < 1:
                raise CompletedpError(f"{self.value} = {value!r} must be in [0, 1)")
        elif value < 0 and self.may_be_zero:
            raise CompletedpError(f"{self.value} = {value!r} must not be negative")
        elif value <= 0 and not self.may_be_zero:
            raise CompletedpError(f"{self.value} = {value!r} must be above 0")
        return value


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer as the theory knows it.

    >>> ADAMW.group({"lr": 0.1, "weight_decay": 0.0, "eps": 1e-8, "beta1": 0.9, "beta2": 0.95})
    {'lr': 0.1, 'weight_decay': 0.0, 'eps': 1e-08, 'betas': (0.9, 0.95)}
    """

    name: str
    knobs: tuple[Knob, ...]
    rules: tuple[str, ...]
    """Its rows of the rule table, in the order in which they print."""

    def group(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Values by the knobs' names, as a torch group has them."""
        group: dict[str, Any] = {}
        for knob in self.knobs:
            value = values[knob.name]
            group[knob.key] = value if knob.place is None else (*group.get(knob.key, ()), value)
        return group

    def read(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of `group`; None for what the group does not have."""
        found = {}
        for knob in self.knobs:
            value = group.get(knob.key)
            found[knob.name] = value if value is None or knob.place is None else value[knob.place]
        return found


ADAMW = Optimizer(
    name="adamw",
    knobs=(
        Knob(name=LR, rule=LR, power=1),
        Knob(name=WEIGHT_DECAY, rule=WEIGHT_DECAY, default=0.1, may_be_zero=True),
        Knob(name="eps", rule="eps", default=1e-8, power=-1),
        Knob(
            name="beta1",
            rule="one_minus_beta",
            default=0.9,
            is_complement=True,
            key="betas",
            place=0,
        ),
        Knob(
            name="beta2",
            rule="one_minus_beta",
            default=0.95,
            is_complement=True,
            key="betas",
            place=1,
        ),
    ),
    rules=(LR, "eps", WEIGHT_DECAY, "one_minus_beta"),
)

MUON = Optimizer(
    name="muon",
    knobs=(
        Knob(name=LR, value="muon_lr", rule=LR, default=0.02, power=1),
        Knob(
            name=WEIGHT_DECAY,
            value="muon_weight_decay",
            rule=WEIGHT_DECAY,
            default=0.1,
            may_be_zero=True,
        ),
        Knob(
            name="momentum",
            value="muon_momentum",
            rule="one_minus_momentum",
            default=0.95,
            is_complement=True,
        ),
    ),
    rules=(LR, WEIGHT_DECAY, "one_minus_momentum"),
)
"""Momentum whose matrix is made orthogonal; the defaults are those that its author trains with."""

OPTIMIZERS: dict[str, Optimizer] = {ADAMW.name: ADAMW}
"""By name. Others come with their rows: `tables.register`."""
DEFAULT = ADAMW.name
"""What trains tensors of which nothing else is said."""


def knobs_by_value(optimizers: Iterable[Optimizer] | None = None) -> dict[str, Knob]:
    """By what recipes call them, the knobs of these optimizers, or of all."""
    knobs: dict[str, Knob] = {}
    for optimizer in OPTIMIZERS.values() if optimizers is None else optimizers:
        for knob in optimizer.knobs:
            knobs.setdefault(knob.value, knob)
    return knobs
