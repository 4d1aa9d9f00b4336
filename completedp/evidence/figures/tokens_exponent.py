"""tokens-exponent: which power of the number of tokens the best learning rate falls with.

The paper has 1/2. Here the best learning rate is measured at several lengths of training, for
models of several sizes, and the power is fitted with its uncertainty (exponents.py). A learning
rate at a longer horizon is reached by the exponent that takes the base's best rate there, so that
betas, eps and decay are those of a plan with that exponent. What 1/2 costs at the longest is told
besides, as a bowl is flat at its bottom, and how far the best rates are from the fitted power.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.evidence.exponents import CANDIDATES, MIDDLE, Fit, Size, fit_exponent, reached
from completedp.evidence.figures.bowl import Losses, Range, bottom, next_points, planned_octaves
from completedp.evidence.figures.drawing import BLUE, GREY, canvas, factors_axis, finish, shades
from completedp.evidence.figures.figure import (
    Finding,
    Found,
    Setting,
    judged,
    size_of_change,
    spread,
    student,
    worst,
)
from completedp.evidence.figures.settings import PAPER, setting
from completedp.studies.cells import Wanted
from completedp.studies.spec import Site
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios, Scale
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab, ListedStudy

PRINTED = 0.5
NEAR = 0.1
"""An exponent this near to the printed one counts as it."""
ALLOWED = 0.01
"""Nats that the printed exponent may cost at the longest and still be as good."""
LEFT = 0.5
"""Octaves that a fitted exponent may leave of the drift."""


@dataclass(frozen=True, kw_only=True)
class ExponentSize:
    """Lengths of training, for models of several sizes."""

    setting: Setting
    over: Range
    """Every seed over the whole range: costs are read from all of the curve."""
    factors: tuple[int, ...]
    """Times the base's tokens."""
    models: tuple[Ratios, ...]
    """Widths and depths, from the base's."""

    def scale(self, model: Ratios, factor: int) -> Scale:
        """Where a curve is trained."""
        return self.setting.base.times(model * Ratios(tokens=float(factor)))


@dataclass(frozen=True, kw_only=True)
class TokensExponent:
    """The figure."""

    name: str = "tokens-exponent"
    claim: str = "The best learning rate falls as the number of tokens to the power of 1/2"
    paper: str = "Section 2.3 assumes it; measured beyond the paper"
    see: str = (
        "Points are best learning rates at each length of training, the line is the fitted power; "
        "the second panel has what each exponent costs at the longest."
    )
    sizes: Mapping[str, ExponentSize]

    def cost(self, size: str) -> Cost:
        """Every curve."""
        at = self.sizes[size]
        total = Cost()
        for model in at.models:
            for factor in at.factors:
                total += at.setting.cost(at.scale(model, factor), at.over.trials)
        return total

    def run(self, size: str, lab: Lab) -> Found:
        """Train, fit, judge, draw."""
        at = self.sizes[size]
        task = lab.task(at.setting)
        study = lab.listed("horizons", task, lab.recipe(task, at.setting), ["lr/global"])
        curves: dict[tuple[int, int], Losses] = {}
        for index, model in enumerate(at.models):
            base, *longer = sorted(at.factors)
            curves[index, base] = _curve(study, at.scale(model, base), base, at.over)
            found = bottom(curves[index, base], at.over).octaves
            best = 0.0 if found is None else found[0]
            for factor in reversed(longer):
                scale = at.scale(model, factor)
                curves[index, factor] = _curve(study, scale, factor, at.over, best)
        lab.check_stable()
        return self.judge(at, curves)

    def judge(self, at: ExponentSize, curves: Mapping[tuple[int, int], Losses]) -> Found:
        """The exponent of each model, what the printed one costs, and whether models agree."""
        fits = [
            fit_exponent(
                "tokens",
                [_size(curves[index, factor], factor, at.over.seeds) for factor in at.factors],
                (*CANDIDATES, PRINTED),
            )
            for index in range(len(at.models))
        ]
        findings: list[Finding] = []
        for model, fit in zip(at.models, fits, strict=True):
            findings += _findings(_name(at, model), fit)
        if len(fits) > 1:
            findings.append(_agreement(fits[0], fits[-1]))
        rows = [
            {"model": _name(at, model), **fit.to_dict()}
            for model, fit in zip(at.models, fits, strict=True)
        ]
        return Found(
            findings=findings,
            numbers={
                "models": [_short(row) for row in rows],
                "costs at the longest": [
                    {"model": row["model"], **cost} for row in rows for cost in row["costs"]
                ],
            },
            raw=rows,
            text=_table(rows),
            svg=_draw(self.claim, at, fits),
        )


def _curve(study: ListedStudy, scale: Scale, factor: int, over: Range, best: float = 0.0) -> Losses:
    """A bowl at one length of training, begun where the learning rate may be best."""
    begun = over.moved(best - MIDDLE * math.log2(factor))
    losses: dict[float, dict[int, float]] = {}
    while points := next_points(losses, begun):
        wanted = {}
        for octave, seed in points:
            exponent, left = reached(factor, octave, best)
            site = Site(scale=scale, rules=Rules(token_exponent=exponent))
            wanted[octave, seed] = Wanted(site=site, octaves=(left,), seed=seed)
        for (octave, seed), ended in study.trained(wanted).items():
            losses.setdefault(octave, {})[seed] = ended.loss
    return losses


def _size(losses: Losses, factor: int, seeds: int) -> Size:
    """A curve as a fit takes it: the points that have all seeds."""
    whole = sorted(octave for octave, by_seed in losses.items() if len(by_seed) >= seeds)
    found = [[losses[octave][seed] for seed in range(seeds)] for octave in whole]
    return Size(factor=float(factor), octaves=tuple(whole), losses=np.array(found))


def _name(at: ExponentSize, model: Ratios) -> str:
    scale = at.scale(model, 1)
    return f"width {scale.width}, depth {scale.depth}"


def _findings(name: str, fit: Fit) -> list[Finding]:
    value, half = fit.exponent, None
    if fit.error is not None:
        half = student(fit.freedom) * fit.error
    interval = None if value is None or half is None else (value - half, value + half)
    found = [
        judged(
            f"{name}: the exponent is within {NEAR:g} of 1/2",
            value,
            interval,
            at_least=PRINTED - NEAR,
            at_most=PRINTED + NEAR,
        )
    ]
    cost = next((each for each in fit.costs if each.exponent == PRINTED), None)
    lost = None if cost is None else cost.cost
    sure = None
    if cost is not None and cost.error is not None:
        sure = student(cost.freedom) * cost.error
    around = None if lost is None or sure is None else (lost - sure, lost + sure)
    claim = f"{name}: at x{fit.largest.factor:g} tokens 1/2 costs at most {ALLOWED:g} nats"
    found.append(judged(claim, lost, around, unit="nats", at_most=ALLOWED))
    return [*found, worst(_drifts(name, fit))]


def _drifts(name: str, fit: Fit) -> Iterator[Finding]:
    """How far the best rate is, at each length, from where the fitted exponent takes the base's."""
    claim = f"{name}: by the fitted exponent the best rate moves by at most {LEFT:g} octaves"
    claim += f" up to x{fit.largest.factor:g} in tokens"
    base = fit.optima[0]
    for size, best in zip(fit.sizes[1:], fit.optima[1:], strict=True):
        drift = interval = None
        if fit.exponent is not None and base.octaves and best.octaves:
            drift = best.octaves[0] - base.octaves[0] + fit.exponent * math.log2(size.factor)
            if base.errors and best.errors:
                half = spread([base.errors[0], best.errors[0]], size.losses.shape[1])
                interval = size_of_change(drift, half)
            drift = abs(drift)
        yield judged(claim, drift, interval, unit="octaves", at_most=LEFT)


def _agreement(one: Fit, other: Fit) -> Finding:
    """Whether the smallest and the largest model have one exponent."""
    change = interval = None
    if one.exponent is not None and other.exponent is not None:
        change = other.exponent - one.exponent
        if one.error is not None and other.error is not None:
            sure = student(min(one.freedom, other.freedom))
            half = sure * math.hypot(one.error, other.error)
            interval = (change - half, change + half)
    claim = f"the largest model's exponent is the smallest's within {2 * NEAR:g}"
    return judged(claim, change, interval, at_least=-2 * NEAR, at_most=2 * NEAR)


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    close = row["close"]
    return {
        "model": row["model"],
        "exponent": row["exponent"],
        "error": row["error"],
        "as good from": None if close is None else close[0],
        "as good to": None if close is None else close[1],
        **{f"best at x{size['factor']:g}": size["optimum"] for size in row["sizes"]},
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    out = [f"{'model':<22} {'exponent':>14} {'as good':>14}   best learning rates, octaves"]
    for row in rows:
        value = "not bracketed"
        if row["exponent"] is not None:
            value = f"{row['exponent']:.2f}"
            value += "" if row["error"] is None else f" +- {row['error']:.2f}"
        close = "" if row["close"] is None else "{:.2f} to {:.2f}".format(*row["close"])
        places = ", ".join(
            f"x{size['factor']:g} "
            + ("?" if size["optimum"] is None else f"{size['optimum']:+.2f}")
            for size in row["sizes"]
        )
        out.append(f"{row['model']:<22} {value:>14} {close:>14}   {places}")
        for cost in row["costs"]:
            if cost["cost"] is not None:
                out.append(f"{'':<22} {cost['exponent']:>14.2f} costs {cost['cost']:+.4f} nats")
    return "\n".join(out)


def _draw(claim: str, at: ExponentSize, fits: Sequence[Fit]) -> str:
    below = (
        f"Base: {at.setting.base}. {at.over.seeds} seeds, bars of one standard error. Right: the "
        f"loss at x{at.factors[-1]} tokens with the base's best learning rate carried there by an "
        "exponent."
    )
    with canvas(1, 2, claim, below, panel=(4.6, 3.6)) as (figure, grid):
        left, right = grid[0]
        for colour, model, fit in zip(shades(BLUE, len(fits)), at.models, fits, strict=True):
            _draw_optima(left, fit, colour, _name(at, model))
            _draw_costs(right, fit, colour)
        start = next((f.optima[0].octaves[0] for f in fits if f.optima[0].octaves is not None), 0.0)
        ends = np.array([1.0, at.factors[-1]])
        rule = start - PRINTED * np.log2(ends)
        left.plot(ends, rule, "--", color=GREY, label="the rule, 1/2")
        factors_axis(left, at.factors)
        left.set_xlabel("tokens, times the base's")
        left.set_ylabel("best learning rate, octaves")
        left.set_title("the best learning rate", loc="left")
        left.legend()
        right.axvline(PRINTED, color=GREY, linestyle="--")
        right.set_xlabel("exponent")
        right.set_ylabel("nats above the best exponent's")
        right.set_title(f"what an exponent costs at x{at.factors[-1]}", loc="left")
        return finish(figure)


def _draw_optima(panel: Any, fit: Fit, colour: Any, name: str) -> None:
    known = [
        (size.factor, best.octaves[0], 0.0 if best.errors is None else best.errors[0])
        for size, best in zip(fit.sizes, fit.optima, strict=True)
        if best.octaves is not None
    ]
    if not known:
        return
    factors, places, errors = (np.array(column) for column in zip(*known, strict=True))
    label = name
    if fit.exponent is not None:
        label += f": {fit.exponent:.2f}" + ("" if fit.error is None else f" +- {fit.error:.2f}")
        x = np.log2(factors)
        line = places.mean() - fit.exponent * (x - x.mean())
        panel.plot(factors, line, color=colour, linewidth=1.2)
    panel.errorbar(factors, places, yerr=errors, fmt="o", color=colour, capsize=2, label=label)


def _draw_costs(panel: Any, fit: Fit, colour: Any) -> None:
    base = fit.optima[0].octaves
    if base is None:
        return
    doublings = math.log2(fit.largest.factor)
    losses = {e: fit.largest.loss_at(base[0] - e * doublings) for e in np.linspace(0, 1, 101)}
    known = {e: loss for e, loss in losses.items() if loss is not None}
    if known:
        least = min(known.values())
        panel.plot(list(known), [loss - least for loss in known.values()], color=colour)


def _every_seed(low: float, high: float, seeds: int) -> Range:
    return Range(octaves=planned_octaves(low, high), seeds=seeds, first=seeds)


FIGURE = TokensExponent(
    sizes={
        "tiny": ExponentSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=20),
            over=Range(octaves=planned_octaves(-2, 2, 2), seeds=2, first=2, reach=4),
            factors=(1, 2),
            models=(Ratios(), Ratios(width=2.0)),
        ),
        "cpu": ExponentSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=128),
            over=_every_seed(-2, 2, 3),
            factors=(1, 2, 4, 8),
            models=(Ratios(), Ratios(width=2.0)),
        ),
        "gpu": ExponentSize(
            setting=setting("gpu", width=64, depth=2, sequences=16, steps=1024),
            over=_every_seed(-2, 2, 4),
            factors=(1, 2, 4, 8, 16),
            models=(Ratios(), Ratios(width=2.0)),
        ),
        "paper": ExponentSize(
            setting=PAPER,
            over=_every_seed(-3, 2, 3),
            factors=(1, 2, 4, 8, 16),
            models=(Ratios(), Ratios(width=2.0, depth=2.0), Ratios(width=3.0, depth=4.0)),
        ),
    }
)
