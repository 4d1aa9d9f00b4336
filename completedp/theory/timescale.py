"""AdamW's timescale tau: over how much of a run its weights forget what they were, by decay.

A step keeps the part 1 - lr x weight_decay of a weight, so that weights are a moving average of
updates over 1 / (lr x weight_decay) steps. In lengths of the run that is

    tau = 1 / (lr x weight_decay x steps)

with the peak learning rate; where decay is independent of lr, 1 / (weight_decay x steps). Short of
1 the run ends with weights that its decay has shaped; well above 1 the decay does nothing. The
rules keep it along batch and tokens.
"""

from __future__ import annotations

import math

from completedp.theory.optimizers import LR, WEIGHT_DECAY
from completedp.theory.recipe import Recipe
from completedp.theory.roles import MODULE_TYPES
from completedp.theory.transfer import Transfer


def timescale(lr: float, weight_decay: float, steps: int, *, independent: bool = False) -> float:
    """Tau in run lengths; infinite where nothing decays.

    >>> round(timescale(lr=0.0051, weight_decay=0.0056, steps=976), 1)
    35.9
    """
    decay = (weight_decay if independent else lr * weight_decay) * steps
    return 1.0 / decay if decay else math.inf


def base_timescales(recipe: Recipe) -> dict[str, tuple[float, float]]:
    """By module type of the recipe: the shortest and the longest tau over the base's blocks."""
    at_base = Transfer(recipe, recipe.base)
    independent = recipe.rules.weight_decay == "independent"

    def tau(module_type: str, layer: int | None) -> float:
        knobs = recipe.rules.optimizer_of(MODULE_TYPES[module_type]).knobs
        if not any(knob.name == WEIGHT_DECAY for knob in knobs):
            return math.inf
        lr = at_base.value(LR, module_type, layer).target
        decay = at_base.value(WEIGHT_DECAY, module_type, layer).target
        return timescale(lr, decay, recipe.base.steps, independent=independent)

    blocks = range(1, recipe.base.depth + 1)
    found = {}
    for module_type in recipe.types:
        layers = blocks if MODULE_TYPES[module_type].in_blocks else (None,)
        taus = [tau(module_type, layer) for layer in layers]
        found[module_type] = min(taus), max(taus)
    return found


def matrix_range(taus: dict[str, tuple[float, float]]) -> tuple[float, float] | None:
    """The shortest and the longest tau of the types that are matrices; None without any."""
    ends = [tau for name, tau in taus.items() if MODULE_TYPES[name].is_matrix]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
