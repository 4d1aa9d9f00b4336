"""How a sweep looks: a panel for each line with a curve for each scale, and the drift of all."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from completedp.evidence.figures.bowl import Losses, mean_losses
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
from completedp.evidence.figures.figure import Setting, standard_error
from completedp.evidence.figures.lines import Curve, Line, Row, SweepSize, words

if TYPE_CHECKING:
    from completedp.evidence.figures.sweeps import Sweep

_DASHES = 3.6
"""Length of a legend's lines, in letters: dashes are told from whole lines."""
_TITLE = 34
"""Letters that fit above a panel."""
_MOST_NAMED_INSIDE = 3
"""Lines whose names leave room for their drifts; more are named below the panels."""


def draw(
    sweep: Sweep,
    at: SweepSize,
    measured: Mapping[Curve, Losses],
    rows: Mapping[Line, Sequence[Row]],
) -> str:
    """A panel for each line with its curves, and one with the drift of all."""
    count = len(at.lines) + 1
    columns = min(count, 5 if count in (5, 9, 10) else 4)
    limits = _loss_limits(measured, rows)
    below = said(at, sweep.vary)
    with canvas(math.ceil(count / columns), columns, sweep.claim, below, panel=(3.0, 2.9)) as (
        figure,
        grid,
    ):
        panels = list(grid.flat)
        for panel, line in zip(panels, at.lines, strict=False):
            curves = {factor: measured[Curve(line, factor)] for factor in at.factors}
            _draw_line(panel, line, curves, rows[line], _value(at.setting, line, sweep.vary))
            panel.set_ylim(*limits)
            panel.set_xlabel(_x_label(sweep.vary, line))
        for panel in panels[::columns]:
            panel.set_ylabel("validation loss")
        drift = panels[len(at.lines)]
        _draw_drift(drift, at, rows, sweep.limit, sweep.axis)
        if len(at.lines) <= _MOST_NAMED_INSIDE:
            drift.legend(fontsize=7, handlelength=_DASHES)
        else:
            figure.legend(
                *drift.get_legend_handles_labels(),
                loc="outside lower right",
                ncols=3,
                handlelength=_DASHES,
            )
        for panel in panels[count:]:
            panel.set_visible(False)
        return finish(figure)


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
    value = math.log2((setting.values | dict(line.values))[vary])
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
        errors = [standard_error(losses[octave].values()) for octave in means]
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
    panel.set_title(textwrap.fill(line.name, _TITLE), loc="left")
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
