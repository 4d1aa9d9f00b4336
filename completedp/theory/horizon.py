"""What was measured of a recipe's horizon, as its provenance keeps it."""

from __future__ import annotations

from completedp.theory.recipe import Recipe

CRITICAL_BATCH = "critical_batch"
"""Tokens a step above which more of them gain little, where the recipe was measured."""


def critical_batch(recipe: Recipe) -> float | None:
    """The critical batch that a recipe records, in tokens; None where it records none."""
    found = recipe.provenance.get(CRITICAL_BATCH)
    if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
        return None
    return float(found)
