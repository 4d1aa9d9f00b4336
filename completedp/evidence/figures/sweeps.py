"""Sweeps as figures: does a best value stay put along an axis, and under which rules?

A figure is a list of lines. A line is one set of rules along one axis (or several that grow
together) from one model; at each factor it has a curve of loss over octaves of the hyperparameter,
whose bottom is measured (bowl.py). The verdict is the drift of the bottom over the whole axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from completedp.evidence.figures.bowl import (
    Losses,
    Range,
    bottom,
    loss_there,
    mean_losses,
    next_points,
)
from completedp.evidence.figures.drawing import (
    BAND,
    INK,
    QUIET,
    canvas,
    factors_axis,
    finish,
    powers_of_two,
    shades,
)
from completedp.evidence.figures.figure import (
    Cost,
    Finding,
    Found,
    Setting,
    judged,
    same_training,
    size_of_change,
    spread,
)
from completedp.evidence.optimum import Optimum
from completedp.studies.cells import Wanted
from completedp.studies.spec import Site
from completedp.theory.rules import AXES, Rules
from completedp.theory.scale import Ratios, Scale

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab, ListedStudy

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
    start: Ratios = field(default_factory=Ratios)
    """Where its factor 1 is, from the base."""
    guess: float = 0.0
    """Octaves that the optimum may move by when the factor doubles: where its range begins."""
    rescaled: float = 0.0
    """The power of the factor that the hyperparameter is divided by before optima are compared."""

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
    """Loss lost by using the first optimum; infinite where that diverges."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A figure of this kind."""

    name: str
    claim: str
    paper: str
    vary: str
    """The hyperparameter, as a global value."""
    axis: str
    """What grows, for people."""
    limit: float
    """Octaves that an optimum which stays may drift over the whole axis."""
    sizes: Mapping[str, SweepSize]

    def cost(self, size: str) -> Cost:
        """Curves that are the same training are trained once; seeds only around the bottom."""
        at = self.sizes[size]
        base, total = at.setting.base, Cost()
        seen: dict[Any, Scale] = {}
        for line in at.lines:
            for factor in at.factors:
                scale = line.scale(base, factor)
                seen[same_training(line.rules, scale, base), line.shape] = scale
        for scale in seen.values():
            total += at.setting.cost(scale, at.over.trials)
        shapes = len({(shape, scale) for (_, shape), scale in seen.items()})
        return replace(total, shapes=shapes)

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        at = self.sizes[size]
        if lab.model is not None:  # the reference model's parts are not to be changed in another's
            at = replace(at, lines=tuple(line for line in at.lines if not line.shape))
        measured = measure(lab, at, self.vary)
        return self.judge(at, measured)

    def judge(self, at: SweepSize, measured: Mapping[Curve, Losses]) -> Found:
        """The verdict on measured curves, and the drawing."""
        rows = {line: rows_of(line, at, measured) for line in at.lines}
        findings = [
            finding
            for line in at.lines
            if (finding := self._finding(line, rows[line], at.over.seeds)) is not None
        ]
        every = [row for of_line in rows.values() for row in of_line]
        return Found(
            findings=findings,
            numbers={"limit": self.limit, "curves": [_plain(row) for row in every]},
            raw=_raw(measured, at),
            text=table(every),
            svg=self._draw(at, measured, rows),
        )

    def _finding(self, line: Line, rows: Sequence[Row], seeds: int) -> Finding | None:
        if line.expects is None:
            return None
        last = rows[-1]
        over = f"over x{last.factor} in {self.axis}"
        size = interval = None
        if last.drift is not None and last.half is not None:
            size, interval = abs(last.drift), size_of_change(last.drift, last.half)
        if line.expects == STAYS:
            claim = f"{line.name}: the best {words(self.vary)} moves by at most {self.limit:g}"
            return judged(
                f"{claim} octaves {over}", size, interval, unit="octaves", at_most=self.limit
            )
        claim = f"{line.name}: the best {words(self.vary)} moves by more than {self.limit:g}"
        return judged(
            f"{claim} octaves {over}", size, interval, unit="octaves", at_least=self.limit
        )

    def _draw(
        self,
        at: SweepSize,
        measured: Mapping[Curve, Losses],
        rows: Mapping[Line, Sequence[Row]],
    ) -> str:
        count = len(at.lines) + 1
        columns = min(count, 5 if count in (5, 9, 10) else 4)
        limits = _loss_limits(measured, rows)
        below = said(at, self.vary)
        with canvas(math.ceil(count / columns), columns, self.claim, below, panel=(3.0, 2.9)) as (
            figure,
            grid,
        ):
            panels = list(grid.flat)
            for panel, line in zip(panels, at.lines, strict=False):
                curves = {factor: measured[Curve(line, factor)] for factor in at.factors}
                _draw_line(panel, line, curves, rows[line], _value(at.setting, line, self.vary))
                panel.set_ylim(*limits)
                panel.set_xlabel(_x_label(self.vary, line))
            for panel in panels[::columns]:
                panel.set_ylabel("validation loss")
            _draw_drift(panels[len(at.lines)], at, rows, self.limit, self.axis)
            for panel in panels[count:]:
                panel.set_visible(False)
            return finish(figure)


def measure(lab: Lab, at: SweepSize, vary: str) -> dict[Curve, Losses]:
    """Every curve of a sweep, to where its bottom is measured.

    Scale by scale, the largest first, so that a program is compiled once and has many trials.
    """
    studies: dict[Any, ListedStudy] = {}
    for line in at.lines:
        kind = line.shape, line.rules.weight_decay
        if kind not in studies:
            studies[kind] = _study(lab, at.setting, line, vary)
    measured: dict[Curve, dict[float, dict[int, float]]] = {}
    curves = [Curve(line, factor) for line in at.lines for factor in at.factors]
    places = {curve: curve.line.scale(at.setting.base, curve.factor) for curve in curves}
    for curve in curves:
        studies[curve.line.shape, curve.line.rules.weight_decay].check(
            _wanted(curve, places[curve], 0.0, 0)
        )
    for scale in sorted(set(places.values()), key=_work, reverse=True):
        for kind, study in studies.items():
            here = [
                curve
                for curve in curves
                if places[curve] == scale
                and (curve.line.shape, curve.line.rules.weight_decay) == kind
            ]
            measured |= _bottoms(study, here, scale, at.over)
    return {curve: measured[curve] for curve in curves}


def begun_at(curve: Curve, over: Range) -> Range:
    """Where a curve is first looked for; it is found wherever it is, but sooner there."""
    return over.moved(curve.line.guess * math.log2(curve.factor))


def tuned_octave(lab: Lab, setting: Setting, over: Range) -> float:
    """The base's best learning rate, in octaves from the setting's value.

    The lowest one measured where it is not bracketed.
    """
    line = Line(name="base", colour=INK, grows=("width",))
    at = SweepSize(setting=setting, over=over, factors=(1,), lines=(line,))
    losses = measure(lab, at, "lr")[Curve(line, 1)]
    found, means = bottom(losses, over).octaves, mean_losses(losses)
    return min(means, key=means.__getitem__) if found is None else found[0]


def _bottoms(
    study: ListedStudy, curves: Sequence[Curve], scale: Scale, over: Range
) -> dict[Curve, dict[float, dict[int, float]]]:
    found: dict[Curve, dict[float, dict[int, float]]] = {curve: {} for curve in curves}
    while True:
        wanted = {
            (curve, octave, seed): _wanted(curve, scale, octave, seed)
            for curve, losses in found.items()
            for octave, seed in next_points(losses, begun_at(curve, over))
        }
        if not wanted:
            return found
        for (curve, octave, seed), ended in study.trained(wanted).items():
            found[curve].setdefault(octave, {})[seed] = ended.loss


def _study(lab: Lab, setting: Setting, line: Line, vary: str) -> ListedStudy:
    """Lines that change the model, or what decay means, are studies of their own."""
    task = lab.task(setting, dict(line.shape))
    recipe = lab.recipe(task, setting)
    name = ", ".join(f"{key} {value}" for key, value in line.shape) or "sweep"
    if line.rules.weight_decay == "independent":  # the same training at the base
        values = recipe.values
        recipe = recipe.with_rules(weight_decay="independent").with_values(
            weight_decay=values.lr * values.weight_decay
        )
        name += ", independent decay"
    return lab.listed(name, task, recipe, [f"{vary}/global"])


def _wanted(curve: Curve, scale: Scale, octave: float, seed: int) -> Wanted:
    return Wanted(site=Site(scale=scale, rules=curve.line.rules), octaves=(octave,), seed=seed)


def _work(scale: Scale) -> float:
    return float(scale.width**2 * scale.depth * scale.tokens)


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
            cost = max(0.0, loss_there(losses, first + moved) - optimum.loss)
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
        f"{'best loss':>10} {'cost':>9}"
    ]
    for row in rows:
        place = "not bracketed" if row.octaves is None else f"{row.octaves:+.2f}"
        place += "" if row.error is None or row.octaves is None else f" +- {row.error:.2f}"
        drift = "" if row.drift is None else f"{row.drift:+.2f}"
        drift += "" if row.half is None else f" +- {row.half:.2f}"
        since = "" if row.since is None else f"{row.since:+.2f}"
        loss = "diverged" if row.loss is None else f"{row.loss:.4f}"
        cost = "" if row.cost is None else f"{row.cost:.4f}"
        cost = "diverges" if row.cost == math.inf else cost
        out.append(
            f"{row.line:<{wide}} {'x' + str(row.factor):>6} {place:>17} {drift:>15} {since:>6} "
            f"{loss:>10} {cost:>9}"
        )
    return "\n".join(out)


def _plain(row: Row) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in vars(row).items()
    } | {"diverges": row.cost == math.inf}


def _raw(measured: Mapping[Curve, Losses], at: SweepSize) -> list[dict[str, Any]]:
    return [
        {
            "line": curve.line.name,
            "factor": curve.factor,
            "scale": curve.line.scale(at.setting.base, curve.factor).to_dict(),
            "octaves": octave,
            "seed": seed,
            "loss": loss if math.isfinite(loss) else None,
        }
        for curve, losses in measured.items()
        for octave, seeds in sorted(losses.items())
        for seed, loss in sorted(seeds.items())
    ]


def words(vary: str) -> str:
    """A hyperparameter for people."""
    return {"lr": "learning rate", "weight_decay": "weight decay"}.get(vary, vary)


def said(at: SweepSize, vary: str) -> str:
    """The setting in a line, for below the claim."""
    base = at.setting.base
    return (
        f"Base: {base}, {base.steps:,} steps. {at.over.seeds} seeds around each optimum; diamonds "
        f"mark the optima, bars their standard errors, the dashed line the base's best "
        f"{words(vary)}."
    )


def _value(setting: Setting, line: Line, vary: str) -> float:
    """Log2 of the base's value, as the line's rules have it."""
    value = math.log2(setting.values[vary])
    independent = vary == "weight_decay" and line.rules.weight_decay == "independent"
    return value + math.log2(setting.values["lr"]) if independent else value


def _x_label(vary: str, line: Line) -> str:
    name = f"{words(vary)} at the base"
    if line.rescaled:
        return f"{words(vary)} / factor^{line.rescaled:g}"
    return name if any(a in line.rules.axes for a in line.grows) else words(vary)


def _loss_limits(
    measured: Mapping[Curve, Losses], rows: Mapping[Line, Sequence[Row]]
) -> tuple[float, float]:
    """From the lowest loss to somewhat above the worst of the bottoms."""
    lowest = [min(mean_losses(losses).values()) for losses in measured.values() if losses]
    lowest += [row.loss for of_line in rows.values() for row in of_line if row.loss is not None]
    lowest = [loss for loss in lowest if math.isfinite(loss)] or [0.0, 1.0]
    room = max(0.1, 0.9 * (max(lowest) - min(lowest)))
    return min(lowest) - 0.08 * room, max(lowest) + room


def _draw_line(
    panel: Any, line: Line, curves: Mapping[int, Losses], rows: Sequence[Row], value: float
) -> None:
    """A curve for each factor, light to dark; the optima as diamonds."""
    low, high = math.inf, -math.inf
    for colour, (factor, losses), row in zip(
        shades(line.colour, len(curves)), curves.items(), rows, strict=True
    ):
        moved = line.rescaled * math.log2(factor)
        means = {o: m for o, m in sorted(mean_losses(losses).items()) if math.isfinite(m)}
        if not means:
            continue
        octaves = [octave - moved for octave in means]
        low, high = min(low, *octaves), max(high, *octaves)
        errors = [_error(list(losses[octave].values())) for octave in means]
        panel.errorbar(
            octaves,
            list(means.values()),
            yerr=errors,
            color=colour,
            marker="o",
            markersize=3,
            linewidth=1.5,
            elinewidth=1,
            label=f"x{factor}",
        )
        if row.octaves is not None and row.loss is not None:
            panel.errorbar(
                row.octaves,
                row.loss,
                xerr=row.error,
                color=colour,
                marker="D",
                markersize=6.5,
                markeredgecolor=INK,
                markeredgewidth=0.8,
                capsize=2,
                zorder=5,
            )
    if rows[0].octaves is not None:
        panel.axvline(rows[0].octaves, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    panel.set_title(line.name, loc="left")
    if math.isfinite(low):
        powers_of_two(panel, "x", low, high, value)
    panel.legend(loc="best", handlelength=0.8, labelspacing=0.2)


def _draw_drift(
    panel: Any,
    at: SweepSize,
    rows: Mapping[Line, Sequence[Row]],
    limit: float,
    axis: str,
) -> None:
    """Drift against the factor, all lines together, with the band that the claim allows."""
    panel.axhspan(-limit, limit, color=BAND, zorder=0)
    styles: dict[str, int] = {}
    for line, of_line in rows.items():
        known = [row for row in of_line if row.drift is not None]
        style = ("-", "--", ":", "-.")[styles.setdefault(line.colour, -1) + 1]
        styles[line.colour] += 1
        panel.errorbar(
            [row.factor for row in known],
            [row.drift for row in known],
            yerr=[row.half if row.half and math.isfinite(row.half) else 0.0 for row in known],
            color=line.colour,
            linestyle=style,
            marker="D",
            markersize=4.5,
            capsize=2,
            linewidth=1.5,
            label=line.name,
        )
    factors_axis(panel, at.factors)
    panel.set_title("drift of the optimum", loc="left")
    panel.set_xlabel(axis)
    panel.set_ylabel("octaves")
    panel.legend(fontsize=7)


def _error(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return 0.0
    mean = sum(finite) / len(finite)
    variance = sum((value - mean) ** 2 for value in finite) / (len(finite) - 1)
    return math.sqrt(variance / len(finite))
