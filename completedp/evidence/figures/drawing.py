"""How the figures look: a colour for each set of rules, powers of two on axes, a claim on top."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from completedp.evidence.plots import pyplot, svg_text

INK, QUIET, GRID = "#1f2933", "#66727f", "#e4e8ec"
BLUE, AMBER, VIOLET, RED, GREEN, GREY = (
    "#1667b7",
    "#d9820f",
    "#7d4fb3",
    "#c43d3d",
    "#2a8a5f",
    "#7a8591",
)
COLOURS = {"completedp": BLUE, "completep": VIOLET, "mup": AMBER, "sp": RED}
"""Of the parameterisations, the same in every figure."""
BAND = "#dcebe3"
"""Where the claim holds."""


_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def canvas(
    rows: int, columns: int, claim: str, setting: str, *, panel: tuple[float, float] = (3.4, 2.9)
) -> Iterator[tuple[Any, Any]]:
    """A figure with its claim as the title and the setting below it, and its panels."""
    plt = pyplot()
    width, height = panel[0] * columns, panel[1] * rows
    title = textwrap.wrap(f"Claim: {claim}", max(24, int(width * 10)))  # true or not
    below = textwrap.wrap(setting, max(30, int(width * 14)))
    head = 0.12 + 0.24 * len(title) + 0.18 * len(below)
    whole = height + head
    with plt.rc_context(_STYLE):
        figure, panels = plt.subplots(
            rows, columns, figsize=(width, whole), squeeze=False, layout="constrained"
        )
        figure.get_layout_engine().set(rect=(0.0, 0.0, 1.0, height / whole))
        top = 1 - 0.08 / whole
        corner: dict[str, Any] = {"ha": "left", "va": "top"}
        figure.text(0.01, top, "\n".join(title), fontsize=12, weight="bold", **corner)
        under = top - 0.235 * len(title) / whole
        figure.text(0.01, under, "\n".join(below), fontsize=8.5, color=QUIET, **corner)
        yield figure, panels


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """From a light tint of a colour to a dark one."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    found = []
    for i in range(count):
        t = -0.55 + (0.75 * i / (count - 1) if count > 1 else 0.55)  # below 0 towards white
        mix = [c + (1 - c) * -t if t < 0 else c * (1 - t) for c in (red, green, blue)]
        found.append((mix[0], mix[1], mix[2]))
    return found


def powers_of_two(panel: Any, which: str, low: float, high: float, base: float = 0.0) -> None:
    """Label an axis of octaves: an octave o stands for 2^(base + o)."""
    first, last = math.ceil(low + base - 1e-9), math.floor(high + base + 1e-9)
    every = max(1, math.ceil((last - first + 1) / 8))
    marks = list(range(first, last + 1, every))
    labels = [f"$2^{{{mark}}}$" for mark in marks]
    getattr(panel, f"set_{which}ticks")([mark - base for mark in marks], labels)
    setattr(panel, f"fmt_{which}data", lambda octave: f"2^{base + octave:.2f}")


def factors_axis(panel: Any, factors: Sequence[int]) -> None:
    """A log axis along x of how many times the base."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(factors), [f"x{factor}" for factor in factors])
    panel.minorticks_off()
    panel.fmt_xdata = lambda factor: f"x{factor:g}"


def finish(figure: Any) -> str:
    """The figure as SVG."""
    return svg_text(figure)
