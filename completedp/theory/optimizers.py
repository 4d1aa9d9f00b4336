"""Optimizers: which hyperparameters each has, how they are tuned, and which rule carries each on.

The optimizer is a coordinate of the rule table (tables.py). How a tensor starts and what multiplies
its output do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Knob:
    """One hyperparameter of an optimizer."""

    name: str
    """As the optimizer takes it: `beta1`."""
    tunable: str
    """As it is tuned, on a log2 scale: `one_minus_beta1`."""
    rule: str
    """The row of the rule table that carries it on: `one_minus_beta`, for both betas."""

    @property
    def is_complement(self) -> bool:
        """Whether 1 minus the value is what is tuned and scaled."""
        return self.tunable == f"one_minus_{self.name}"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer as the theory knows it."""

    name: str
    knobs: tuple[Knob, ...]
    rules: tuple[str, ...]
    """Its rows of the rule table, in the order in which they print."""


ADAMW = Optimizer(
    name="adamw",
    knobs=(
        Knob("lr", "lr", "lr"),
        Knob("weight_decay", "weight_decay", "weight_decay"),
        Knob("eps", "eps", "eps"),
        Knob("beta1", "one_minus_beta1", "one_minus_beta"),
        Knob("beta2", "one_minus_beta2", "one_minus_beta"),
    ),
    rules=("lr", "eps", "weight_decay", "one_minus_beta"),
)

OPTIMIZERS: dict[str, Optimizer] = {optimizer.name: optimizer for optimizer in (ADAMW,)}
