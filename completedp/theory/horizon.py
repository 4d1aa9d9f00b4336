"""What was measured of a recipe's horizon, as its provenance keeps it."""

from __future__ import annotations

from completedp.common.checks import is_finite
from completedp.theory.recipe import Recipe

CRITICAL_BATCH = "critical_batch"
"""Tokens a step above which more of them gain little, where the recipe was measured."""


BATCH_HOLDS_TO = "horizon_batch_holds_to"
"""Tokens a step up to which the batch rule held there, for as many tokens."""


def batch_holds_to(recipe: Recipe) -> float | None:
    """The batch that a recipe records its batch rule to hold to; None where it records none."""
    found = recipe.provenance.get(BATCH_HOLDS_TO)
    return float(found) if is_finite(found) and found > 0 else None


def critical_batch(recipe: Recipe) -> float | None:
    """The critical batch that a recipe records, in tokens; None where it records none."""
    found = recipe.provenance.get(CRITICAL_BATCH)
    return float(found) if is_finite(found) and found > 0 else None


def is_batch_known(batch: float | None, error: float | None) -> bool:
    """Whether a critical batch is known to a half: a batch far below it sees no signal."""
    return batch is not None and error is not None and error <= batch / 2


def critical_batch_words(batch: float, error: float | None) -> str:
    """A critical batch that was measured, as people may use it.

    >>> critical_batch_words(20_426, 5_962)
    'critical batch 20,426 +- 5,962 tokens'
    >>> critical_batch_words(218_460, 225_237)
    'critical batch not known: 218,460 +- 225,237 tokens'
    >>> critical_batch_words(1_002, None)
    'critical batch not known: 1,002 tokens, measured too few times'
    """
    known = "" if is_batch_known(batch, error) else " not known:"
    sure = "" if error is None else f" +- {error:,.0f}"
    few = ", measured too few times" if error is None else ""
    return f"critical batch{known} {batch:,.0f}{sure} tokens{few}"
