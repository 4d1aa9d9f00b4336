"""What was measured of a recipe's horizon, as its provenance keeps it."""

from __future__ import annotations

from completedp.common.checks import is_finite
from completedp.theory.recipe import Recipe

CRITICAL_BATCH = "critical_batch"
"""Tokens a step above which more of them gain little, where the recipe was measured."""


BATCH_HOLDS_TO = "horizon_batch_holds_to"
"""Tokens a step up to which the batch rule held there, for as many tokens."""


TOKENS_TO = "horizon_tokens_to"
"""Tokens in all up to which the token exponent was fitted there."""


def fitted_to(recipe: Recipe) -> float | None:
    """The tokens that a recipe records its token exponent to be fitted to; None where it records
    none."""
    found = recipe.provenance.get(TOKENS_TO)
    return float(found) if is_finite(found) and found > 0 else None


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


def least_batch(batch: float, error: float) -> float:
    """What a critical batch is above with 95 %: of noise over signal the signal is what is known
    badly, so the interval is its."""
    return batch / (1.0 + 1.645 * error / batch)


def critical_batch_words(batch: float, error: float | None) -> str:
    """A critical batch that was measured, as people may use it.

    >>> critical_batch_words(20_426, 5_962)
    'critical batch 20,426 +- 5,962 tokens'
    >>> critical_batch_words(218_460, 225_237)
    'critical batch not known, at least 81,030 tokens (218,460 +- 225,237)'
    >>> critical_batch_words(1_002, None)
    'critical batch not known: 1,002 tokens, measured too few times'
    """
    if error is None:
        return f"critical batch not known: {batch:,.0f} tokens, measured too few times"
    if is_batch_known(batch, error):
        return f"critical batch {batch:,.0f} +- {error:,.0f} tokens"
    least = least_batch(batch, error)
    return f"critical batch not known, at least {least:,.0f} tokens ({batch:,.0f} +- {error:,.0f})"
