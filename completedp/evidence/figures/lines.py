"""Lines: what a sweep of a figure is made of, and what was found of each of its curves.

A line is one set of rules along one axis (or several that grow together) from one model; at each
factor it has a curve of loss over octaves of the hyperparameter (bowl.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from completedp.evidence.figures.bowl import Losses, Range, bottom, loss_there
from completedp.evidence.figures.figure import Setting, spread
from completedp.evidence.optimum import Optimum
from completedp.theory.rules import AXES, Rules
from completedp.theory.scale import Ratios, Scale

STAYS, MOVES = "stays", "moves"


def all_axes_but(axis: str) -> tuple[str, ...]:
    """The rules of every axis but one, which is left unscaled."""
    return tuple(name for name in AXES if name != axis)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One set of rules along an axis, from one model."""

    name: str
    colour: str
    grows: tuple[str, ...]
    """The axes that grow, together."""
    rules: Rules = field(default_factory=Rules)
    expects: str | None = None
    """What the paper says of its optimum: it stays, or it moves; nothing where it says nothing."""
    shape: tuple[tuple[str, Any], ...] = ()
    """What is changed of the reference model's shape."""
    values: tuple[tuple[str, float], ...] = ()
    """What is changed of the setting's values at the base."""
    start: Ratios = field(default_factory=Ratios)
    """Where its factor 1 is, from the base."""
    guess: float = 0.0
    """Octaves that the optimum may move by when the factor doubles: where its range begins."""
    rescaled: float = 0.0
    """The power of the factor that the hyperparameter is divided by before optima are compared."""

    @property
    def kind(self) -> Any:
        """Lines of one kind share a study."""
        return self.shape, self.values, self.rules.weight_decay

    def scale(self, base: Scale, factor: int) -> Scale:
        """Where its curve of a factor is trained."""
        grown = Ratios(**{axis: float(factor) for axis in self.grows})
        return base.times(self.start * grown)


@dataclass(frozen=True, kw_only=True)
class SweepSize:
    """A size of a sweep."""

    setting: Setting
    over: Range
    factors: tuple[int, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Curve:
    """One line at one factor."""

    line: Line
    factor: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was found of one curve."""

    line: str
    factor: int
    octaves: float | None
    """The optimum, from the base's value; rescaled where the line says so."""
    error: float | None
    loss: float | None
    drift: float | None
    """Octaves from the line's first optimum."""
    half: float | None
    """Half the interval of 95 % of the drift."""
    since: float | None
    """Octaves from the optimum at the factor before."""
    cost: float | None
    """Loss lost by using the first optimum: infinite where that diverges, None where nobody knows.
    """


def begun_at(curve: Curve, over: Range) -> Range:
    """Where a curve is first looked for; it is found wherever it is, but sooner there."""
    return over.moved(curve.line.guess * math.log2(curve.factor))


def rows_of(line: Line, at: SweepSize, measured: Mapping[Curve, Losses]) -> list[Row]:
    """The optima of a line, each against the first."""
    found: list[Row] = []
    optima: list[Optimum] = []
    places: list[float | None] = []
    for factor in at.factors:
        losses = measured[Curve(line, factor)]
        optimum = bottom(losses, at.over)
        optima.append(optimum)
        moved = line.rescaled * math.log2(factor)
        place = None if optimum.octaves is None else optimum.octaves[0] - moved
        places.append(place)
        first, before = places[0], places[-2] if len(places) > 1 else None
        drift = None if place is None or first is None else place - first
        half = cost = None
        if drift is not None and factor != at.factors[0]:
            errors = [x.errors[0] for x in (optima[0], optimum) if x.errors is not None]
            half = spread(errors, at.over.seeds) if len(errors) == 2 else None
        if first is not None and optimum.loss is not None:
            there = loss_there(losses, first + moved)
            cost = None if there is None else max(0.0, there - optimum.loss)
        found.append(
            Row(
                line=line.name,
                factor=factor,
                octaves=place,
                error=None if optimum.errors is None else optimum.errors[0],
                loss=optimum.loss,
                drift=drift,
                half=half,
                since=None if place is None or before is None else place - before,
                cost=cost,
            )
        )
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows for people."""
    wide = max(len(row.line) for row in rows)
    out = [
        f"{'':<{wide}} {'scale':>6} {'optimum, octaves':>17} {'drift':>15} {'since':>6} "
        f"{'best loss':>10} {'cost':>12}"
    ]
    for row in rows:
        place = "not bracketed" if row.octaves is None else f"{row.octaves:+.2f}"
        place += "" if row.error is None or row.octaves is None else f" +- {row.error:.2f}"
        drift = "" if row.drift is None else f"{row.drift:+.2f}"
        drift += "" if row.half is None else f" +- {row.half:.2f}"
        since = "" if row.since is None else f"{row.since:+.2f}"
        loss = "diverged" if row.loss is None else f"{row.loss:.4f}"
        cost = "not measured" if row.cost is None else f"{row.cost:.4f}"
        cost = "diverges" if row.cost == math.inf else cost
        out.append(
            f"{row.line:<{wide}} {'x' + str(row.factor):>6} {place:>17} {drift:>15} {since:>6} "
            f"{loss:>10} {cost:>12}"
        )
    return "\n".join(out)


def drift_table(curves: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the drifts, scale by scale, of rows as a figure's file keeps them."""
    factors = list(dict.fromkeys(curve["factor"] for curve in curves))[1:]
    found: dict[str, list[str]] = {}
    for curve in curves:
        if curve["factor"] in factors:
            found.setdefault(str(curve["line"]), []).append(_drift(curve))
    header = ["octaves of drift; lowest loss (lost)", *(f"x{factor}" for factor in factors)]
    return header, [[line, *cells] for line, cells in found.items()]


def _drift(curve: Mapping[str, Any]) -> str:
    if curve["drift"] is None:
        return "not bracketed"
    half = "" if curve["half"] is None else f" +- {curve['half']:.2f}"
    lost = "not measured" if curve["cost"] is None else f"{curve['cost']:.3f}"
    lost = "diverges" if curve["diverges"] else lost
    return f"{curve['drift']:+.2f}{half}; {curve['loss']:.3f} ({lost})"


def words(vary: str) -> str:
    """A hyperparameter for people."""
    return {"lr": "learning rate", "weight_decay": "weight decay"}.get(vary, vary)
