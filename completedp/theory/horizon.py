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


FITTED = "horizon_token_exponent"
"""The token exponent that was fitted, which the rules may have the nearest to."""
_ROUNDED = 1e-3


def as_rule(exponent: float) -> float:
    """A fitted token exponent as the rules take it."""
    return round(min(1.0, max(0.0, exponent)), 3)


def fitted_to(recipe: Recipe) -> float | None:
    """The tokens that a recipe records its token exponent to be fitted to; None where it records
    none, or has had another exponent since."""
    exponent = recipe.provenance.get(FITTED)
    if not is_finite(exponent):
        return None
    is_its = abs(as_rule(exponent) - recipe.rules.token_exponent) < 1.5 * _ROUNDED
    return recorded(recipe, TOKENS_TO) if is_its else None


def recorded(recipe: Recipe, what: str) -> float | None:
    """A number of tokens that a recipe has on record; None where it has none."""
    found = recipe.provenance.get(what)
    return float(found) if is_finite(found) and found > 0 else None


def critical_batch(recipe: Recipe) -> float | None:
    """The critical batch that a recipe records, in tokens; None where it records none."""
    return recorded(recipe, CRITICAL_BATCH)


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
