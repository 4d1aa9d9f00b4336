"""Plots as SVG text, which a page can hold inline. matplotlib is imported when one is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from completedp.common.extras import import_extra
from completedp.evidence import hover
from completedp.evidence.horizon_result import BATCH, HorizonResult

if TYPE_CHECKING:
    from completedp.evidence.config import SweepGrid
    from completedp.evidence.exponents import Fit
    from completedp.evidence.result import CheckResult
    from completedp.evidence.rows import Row

_QUANTITY_TITLES = {
    "own": "own contribution to the output",
    "change": "change of the output",
    "initial": "output at initialisation",
    "gradient": "gradient",
}


def check_svg(result: CheckResult, quantities: Sequence[str] = tuple(_QUANTITY_TITLES)) -> str:
    """Sizes against width (above) and depth (below), log-log, side by side for comparison."""
    measured = [row for row in result.rows if row.values and row.quantity in quantities]
    names = list(dict.fromkeys(row.parameterisation for row in measured))
    along = list(dict.fromkeys(row.axis for row in measured))
    quantities = list(dict.fromkeys(row.quantity for row in measured))
    plt = pyplot()
    columns = [(name, quantity) for name in names for quantity in quantities]
    figure, axes = plt.subplots(
        len(along),
        len(columns),
        figsize=(4.6 * len(columns), 3.1 * len(along)),
        squeeze=False,
        layout="constrained",
        sharey="col" if len(quantities) > 1 else True,
    )
    for panels, axis in zip(axes, along, strict=True):
        sizes = result.checked.sizes(axis)
        for panel, (name, quantity) in zip(panels, columns, strict=True):
            rows = [
                row
                for row in measured
                if (row.parameterisation, row.axis, row.quantity) == (name, axis, quantity)
            ]
            _panel(panel, rows, sizes)
            panel.set_title(f"{name}: {_QUANTITY_TITLES[quantity]}", fontsize=9)
            panel.set_xlabel(axis, fontsize=8)
            panel.tick_params(labelsize=7, labelleft=True)
            if panel is panels[0]:
                panel.set_ylabel("root mean square", fontsize=8)
    return svg_text(figure)


def sweep_svg(config: SweepGrid, lines: Sequence[Any]) -> str:
    """Loss against the hyperparameters: a row per axis, a column per parameterisation.

    With one hyperparameter a panel has a curve per scale; with two, a map at the largest scale,
    with the base's optimum and its own.
    """
    plt = pyplot()
    names, rows = config.parameterisations, config.axes
    figure, axes = plt.subplots(
        len(rows),
        len(names),
        figsize=(4.4 * len(names), 3.4 * len(rows)),
        squeeze=False,
        sharex=True,
        sharey=len(config.grid) == 1,
        layout="constrained",
    )
    draw = _sweep_curves if len(config.grid) == 1 else _sweep_map
    for row, axis in zip(axes, rows, strict=True):
        for panel, name in zip(row, names, strict=True):
            mine = [line for line in lines if line.parameterisation == name]
            draw(panel, config, [line for line in mine if line.axis in ("base", axis)], axis)
            panel.set_title(f"{axis}, {name}", fontsize=10)
    for panel in axes[-1]:
        panel.set_xlabel(f"log2({config.vary[0]} / recipe's)")
    return svg_text(figure)


def _sweep_curves(panel: Any, config: SweepGrid, curves: Sequence[Any], axis: str) -> None:
    """Mean losses as lines, seeds as points; the optima dotted. Divergence leaves a gap."""
    shades = pyplot().get_cmap("viridis")
    for index, line in enumerate(curves):
        colour = shades(index / max(1, len(curves) - 1) * 0.85)
        points = [
            (octave, row)
            for octave, row in zip(config.octaves, line.losses, strict=True)
            if all(x is not None for x in row)
        ]
        xs, means = [octave for octave, _ in points], [sum(row) / len(row) for _, row in points]
        for octave, row in points:
            panel.plot([octave] * len(row), row, ".", color=colour, markersize=3, alpha=0.6)
        panel.plot(xs, means, "-o", color=colour, markersize=4, label=f"{axis} x{line.factor}")
        if line.optimum.octaves is not None:
            panel.axvline(line.optimum.octaves[0], color=colour, linewidth=1, linestyle=":")
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=8)
    panel.set_ylabel("validation loss")


def _sweep_map(panel: Any, config: SweepGrid, maps: Sequence[Any], axis: str) -> None:
    """Mean losses of the largest scale in colour; diverged cells are blank."""
    last = maps[-1]
    means = [
        [sum(cell) / len(cell) if None not in cell else float("nan") for cell in row]
        for row in last.losses
    ]
    # Rows of `means` are the first hyperparameter, which is drawn along x.
    turned = [list(column) for column in zip(*means, strict=True)]
    colours = panel.pcolormesh(
        config.octaves, config.second_octaves, turned, shading="nearest", cmap="viridis_r"
    )
    panel.figure.colorbar(colours, ax=panel, label=f"loss at {axis} x{last.factor}")
    for line, marker, label in ((maps[0], "o", "base's optimum"), (last, "*", "optimum")):
        if line.optimum.octaves is not None:
            x, y = line.optimum.octaves
            panel.plot(x, y, marker, color="red", markersize=9, label=label, fillstyle="none")
    panel.set_ylabel(f"log2({config.vary[1]} / recipe's)")
    if panel.get_legend_handles_labels()[0]:  # neither may be bracketed
        panel.legend(frameon=True, fontsize=7)


def horizon_svg(result: HorizonResult) -> str:
    """Best learning rates against tokens, and batch, with the fitted line and the rule's."""
    plt = pyplot()
    fits = [fit for fit in (result.tokens, result.both, result.batch) if fit is not None]
    figure, panels = plt.subplots(
        1, len(fits), figsize=(4.6 * len(fits), 3.4), squeeze=False, layout="constrained"
    )
    for panel, fit in zip(panels[0], fits, strict=True):
        rule = 0.5 if fit.what == BATCH else result.before.rules.token_exponent
        _horizon_panel(panel, fit, rule)
    return svg_text(figure)


def _horizon_panel(panel: Any, fit: Fit, rule: float) -> None:
    """Optima with their errors; lines through their middle, and from the base by the rule."""
    known = [
        (size.factor, best.octaves[0], 0.0 if best.errors is None else best.errors[0])
        for size, best in zip(fit.sizes, fit.optima, strict=True)
        if best.octaves is not None
    ]
    doublings = [math.log2(factor) for factor, _, _ in known]
    octaves = [octave for _, octave, _ in known]
    panel.errorbar(doublings, octaves, yerr=[e for _, _, e in known], fmt="o", capsize=3)
    sign = 1.0 if fit.what == BATCH else -1.0
    ends = [0.0, math.log2(fit.largest.factor)]
    if fit.exponent is not None:
        error = "" if fit.error is None else f" +- {fit.error:.2f}"
        x, y = sum(doublings) / len(doublings), sum(octaves) / len(octaves)
        line = [y + sign * fit.exponent * (end - x) for end in ends]
        panel.plot(ends, line, label=f"fitted {fit.exponent:.2f}{error}")
        line = [octaves[0] + sign * rule * end for end in ends]
        panel.plot(ends, line, "--", color="grey", label=f"the recipe's rule, {rule:g}")
        panel.legend(frameon=False, fontsize=8)
    panel.set_xticks([math.log2(size.factor) for size in fit.sizes])
    panel.set_xticklabels([f"x{size.factor:g}" for size in fit.sizes])
    panel.set_xlabel(fit.what)
    panel.set_ylabel("log2(best lr / recipe's at base)")
    panel.grid(alpha=0.3)


def _panel(panel: Any, rows: list[Row], sizes: Sequence[int]) -> None:
    """Lines that fail are drawn thick and dashed."""
    for row in rows:
        failed = row.verdict == "fail"
        panel.plot(
            sizes,
            row.values,
            marker="o",
            markersize=3,
            linewidth=2.0 if failed else 1.0,
            linestyle="--" if failed else "-",
            label=f"{row.what} {row.slope:+.2f}{' FAIL' if failed else ''}",
        )
    panel.set_xscale("log", base=2)
    if any(0 < value < math.inf for row in rows for value in row.values):  # else all diverged
        panel.set_yscale("log", base=2)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.grid(alpha=0.3)
    panel.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def require_matplotlib() -> None:
    """One line if plots cannot be drawn, before the work that they would show."""
    import_extra("matplotlib", "drawing plots")


def pyplot() -> Any:
    """matplotlib.pyplot without a screen, for SVG that is small and always the same."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"  # text stays text: smaller, searchable
    plt.rcParams["svg.hashsalt"] = "completedp"  # the same figure is the same file
    return plt


def svg_text(figure: Any) -> str:
    """A figure as SVG, with values to read off its points; it is closed."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    values = hover.marks(figure)
    pyplot().close(figure)
    text = buffer.getvalue()
    return f"{text[text.index('<svg') : text.rindex('</svg>')]}{values}</svg>\n"
