"""HorizonResult: what was fitted of a horizon, as text and as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from completedp.common.surface import option
from completedp.evidence.config import HorizonGrid
from completedp.evidence.exponents import CLOSE, Fit
from completedp.evidence.optimum import place_text
from completedp.theory.horizon import critical_batch_words, is_batch_known
from completedp.theory.recipe import Recipe

TOKENS, BATCH, BOTH = "tokens", "batch", "tokens and batch"
"""What grows."""
TOLERANCE = 0.01
"""Nats that the batch rule may cost and still hold."""


@dataclass(frozen=True, kw_only=True)
class HorizonResult:
    """What was fitted. Prints as tables."""

    grid: HorizonGrid
    recipe: Recipe
    """With the fitted token exponent, where there is one, and the evidence in its provenance."""
    before: Recipe
    tokens: Fit
    both: Fit | None
    """Tokens with the batch growing along."""
    batch: Fit | None
    batch_holds_to: int | None
    """The largest batch tried, in tokens, up to which the batch rule costs under `TOLERANCE`."""
    critical_batch: float | None
    critical_batch_error: float | None
    folder: Path

    @property
    def fitted(self) -> Fit:
        """The fit that the recipe's exponent is of: as runs are going to grow, if that is said."""
        return self.both or self.tokens

    @property
    def outcome(self) -> str:
        """What the recipe has for it, in a line."""
        exponent = f"token_exponent {self.recipe.rules.token_exponent:g}"
        if self.fitted.exponent is not None:
            return exponent
        grown = ", as the batch grows along" if self.both is not None else ""
        return f"{exponent}, as before: none was fitted{grown}"

    @property
    def is_batch_known(self) -> bool:
        """Whether the recipe is to record the critical batch."""
        return is_batch_known(self.critical_batch, self.critical_batch_error)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        fits = {"tokens": self.tokens, "tokens_and_batch": self.both, "batch": self.batch}
        return {
            "token_exponent": self.fitted.exponent,
            "token_exponent_error": self.fitted.error,
            "batch_exponent": None if self.batch is None else self.batch.exponent,
            "batch_exponent_error": None if self.batch is None else self.batch.error,
            "batch_holds_to": self.batch_holds_to,
            "critical_batch": self.critical_batch,
            "critical_batch_error": self.critical_batch_error,
            "grid": self.grid.to_dict(),
            "fits": {name: fit and fit.to_dict() for name, fit in fits.items()},
        }

    def __str__(self) -> str:
        return horizon_text(self)

    __repr__ = __str__


def horizon_text(result: HorizonResult) -> str:
    """All that was fitted."""
    printed = result.before.rules.token_exponent
    parts = [_fit_text(result.tokens, printed, "token exponent") + _nearest(result, result.tokens)]
    if result.both is not None:
        growth = result.grid.batch_growth
        title = f"token exponent with the batch growing as tokens^{growth:g}"
        parts.append(_fit_text(result.both, printed, title) + _nearest(result, result.both))
    if result.batch is not None:
        parts.append(_fit_text(result.batch, 0.5, "batch exponent") + _holds(result))
    if result.critical_batch is not None:
        words = critical_batch_words(result.critical_batch, result.critical_batch_error)
        parts.append(
            f"{words}, from the gradient's noise at the base, whose batch is "
            f"{result.before.base.batch:,}"
            + ("" if result.is_batch_known else ": too uncertain for the recipe to record")
        )
    return "\n\n".join(parts)


def _fit_text(fit: Fit, printed: float, title: str) -> str:
    lines = [
        f"{title}: best learning rates, octaves from the recipe's at base",
        f"{fit.what.partition(' ')[0]:>10} {'best rate':>16} {'since last':>11} {'best loss':>10}",
    ]
    for size, best, local in zip(fit.sizes, fit.optima, fit.local(), strict=True):
        place = place_text(best.octaves, best.errors)
        since = "" if local is None else f"{local:.2f}"
        loss = "diverged" if best.loss is None else f"{best.loss:.4f}"
        lines.append(f"{f'x{size.factor:g}':>10} {place:>16} {since:>11} {loss:>10}")
    if fit.exponent is None:
        lines.append(
            "not fitted: a best learning rate is at the end of those tried; the same command with "
            f"more {option('octaves')} goes on from here"
        )
        return "\n".join(lines)
    lines += [_verdict(fit, printed), *_costs(fit)]
    return "\n".join(lines)


def _verdict(fit: Fit, printed: float) -> str:
    assert fit.exponent is not None
    said = f"fitted {fit.exponent:.2f}{_plus_minus(fit.error, '.2f')}"
    if fit.error is None:
        said += " (one seed: no error)"
    cost = fit.cost_of(printed)
    if cost.cost is None:
        said += f"; {printed:g} is outside the learning rates tried at x{fit.largest.factor:g}"
    else:
        said += f"; {printed:g} costs {cost.cost:.4f}{_plus_minus(cost.error, '.4f')} nats"
        said += f" at x{fit.largest.factor:g}"
    return said


def _nearest(result: HorizonResult, fit: Fit) -> str:
    """Where the recipe cannot have what was fitted for it."""
    if fit is not result.fitted or fit.exponent is None or 0 <= fit.exponent <= 1:
        return ""
    return "\nthe rules take exponents from 0 to 1, so the recipe has the nearest of them"


def _costs(fit: Fit) -> list[str]:
    """The loss that each exponent has at the largest size."""
    lines = [f"at x{fit.largest.factor:g} {fit.what.partition(' ')[0]}, from the base's best rate:"]
    for cost in sorted(fit.costs, key=lambda cost: cost.exponent):
        name = "fitted" if cost.exponent == fit.exponent else f"{cost.exponent:g}"
        shown = "outside the rates tried"
        if cost.loss is not None and cost.cost is not None:
            shown = f"loss {cost.loss:.4f}"
            if name != "fitted":
                shown += f", {cost.cost:+.4f}{_plus_minus(cost.error, '.4f')}"
        lines.append(f"{name:>10} {shown}")
    if fit.close is not None:
        low, high = fit.close
        lines.append(
            f"exponents from {low:.2f} to {high:.2f} are within {CLOSE:g} nats of the best there"
        )
    return lines


def _holds(result: HorizonResult) -> str:
    base, holds = result.before.base.batch, result.batch_holds_to
    if holds is None:
        return ""
    if holds == base:
        return f"\nthe batch rule does not hold beyond the base's {base:,} tokens a step"
    return f"\nthe batch rule holds to {holds:,} tokens a step (x{holds / base:g}), of those tried"


def _plus_minus(error: float | None, form: str) -> str:
    return "" if error is None else f" +- {error:{form}}"
