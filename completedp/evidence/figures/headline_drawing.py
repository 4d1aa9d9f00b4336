"""How the headline looks: losses by scale, tokens that are saved, rates moved at the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from completedp.evidence.figures.drawing import INK, canvas, finish
from completedp.evidence.figures.figure import standard_error


def draw(
    claim: str,
    below: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    colours: Mapping[str, str],
    other: str,
    moved: Mapping[str, Mapping[float, float]],
) -> str:
    """A drawing of the figure's rows, one a scale.

    `colours` are by arm; `other` is the arm that the losses are drawn from. `moved` has, by arm,
    the losses at the target by octaves of the learning rate; without any there is no panel.
    """
    below = f"{below} Fresh seeds. Bars: one standard error of losses, 95 % of tokens."
    with canvas(1, 3 if moved else 2, claim, below, panel=(3.6, 3.2)) as (figure, grid):
        _draw_losses(grid[0][0], rows, colours, other)
        _draw_speedups(grid[0][1], rows, colours)
        if moved:
            _draw_moved(grid[0][2], moved, colours)
        return finish(figure)


def _draw_losses(
    panel: Any, rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str], other: str
) -> None:
    for arm, colour in colours.items():
        above = [np.array(row["losses"][arm]) - row["means"][other] for row in rows]
        panel.errorbar(
            [row["flops_ratio"] for row in rows],
            [each.mean() for each in above],
            yerr=[standard_error(each) for each in above],
            color=colour,
            marker="o",
            markersize=4,
            capsize=2,
            label=arm,
        )
    panel.set_xscale("log")
    panel.set_xlabel("FLOP, times the base's")
    panel.set_ylabel(f"nats from the {other} arm's")
    panel.set_title("loss at each scale", loc="left")
    panel.legend()


def _draw_speedups(
    panel: Any, rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str]
) -> None:
    others = [arm for arm in colours if f"speedup_over_{arm}" in rows[0]]
    for place, arm in enumerate(others):
        beside = 1.12 ** (place - (len(others) - 1) / 2)  # bars of one scale do not hide each other
        told = [(row["flops_ratio"] * beside, row[f"speedup_over_{arm}"]) for row in rows]
        told = [(ratio, found) for ratio, found in told if found["low"] is not None]
        if not told:
            continue
        values = [found["speedup"] for _, found in told]
        down = [max(0.0, found["speedup"] - found["low"]) for _, found in told]
        up = [max(0.0, (found["high"] or 0.0) - found["speedup"]) for _, found in told]
        panel.errorbar(
            [ratio for ratio, _ in told],
            values,
            yerr=[down, up],
            color=colours[arm],
            linestyle="none",
            marker="o",
            capsize=3,
            label=arm,
        )
    if panel.has_data():
        panel.legend()
    panel.axhline(1.0, color=INK, linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("FLOP, times the base's")
    panel.set_title("tokens needed for module's loss", loc="left")


def _draw_moved(
    panel: Any, moved: Mapping[str, Mapping[float, float]], colours: Mapping[str, str]
) -> None:
    for arm, curve in moved.items():
        places = sorted(curve)
        panel.plot(places, [curve[o] for o in places], color=colours[arm], marker="o", label=arm)
    panel.set_xlabel("learning rate, octaves from the rules'")
    panel.set_ylabel("loss at the target")
    panel.set_title("never tuned there", loc="left")
    panel.legend()
