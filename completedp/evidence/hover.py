"""Values that can be read off a drawing: what shows when a pointer rests on one of its points.

An SVG has them as circles that nobody sees, each with a title, which a browser shows. On a page
drawings are images, in which nothing answers a pointer, so there the same are put on top of them.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_ON_A_LINE, MOST = 64, 600
"""Points of one line, beyond which it is a curve to be seen and not read, and of a drawing."""
_REACH = 5
"""Radius of what a pointer meets, in points."""
_LONGEST = 300
NUMBER = r"([0-9]{1,6}(?:\.[0-9]{1,9})?)"
"""In a drawing, which may be anyone's file: one that is always a number, and of a sane size."""
_MARK = re.compile(
    rf'<circle class="value" cx="{NUMBER}" cy="{NUMBER}" [^>]*><title>([^<]*)</title></circle>\n?'
)
_BOX = re.compile(rf'<svg[^>]* viewBox="0 0 {NUMBER} {NUMBER}"')


@dataclass(frozen=True)
class Spot:
    """A point of a drawing: where, in percent from the left and the top, and what it says."""

    left: float
    top: float
    words: str


def marks(figure: Any) -> str:
    """What goes into the SVG of a matplotlib figure, over all it has drawn.

    It must have been drawn: only then it is settled where everything is.
    """
    height = figure.get_figheight() * 72
    lines = []
    for panel in figure.axes:
        frame = panel.get_window_extent()
        for x, y, name in _points(panel):
            across, up = panel.transData.transform((x, y))
            if not (math.isfinite(across) and math.isfinite(up) and frame.contains(across, up)):
                continue
            points = across * 72 / figure.dpi, height - up * 72 / figure.dpi
            words = html.escape(_words(figure, panel, x, y, name), quote=True)
            lines.append(
                f'<circle class="value" cx="{points[0]:.1f}" cy="{points[1]:.1f}" r="{_REACH}" '
                f'fill-opacity="0"><title>{words}</title></circle>\n'
            )
    return "".join(lines[:MOST])


def without_marks(svg: str) -> tuple[str, list[Spot]]:
    """A drawing without its marks, and these; text from a file, so no more is believed of it than
    that a spot is within the drawing."""
    box = _BOX.search(svg)
    if box is None:
        return svg, []
    width, height = max(1.0, float(box[1])), max(1.0, float(box[2]))
    spots = []
    for found in list(_MARK.finditer(svg))[:MOST]:
        left, top = 100 * float(found[1]) / width, 100 * float(found[2]) / height
        if left <= 100 and top <= 100:
            spots.append(Spot(left, top, html.unescape(found[3])[:_LONGEST]))
    return _MARK.sub("", svg), spots


def _points(panel: Any) -> Iterator[tuple[float, float, str]]:
    """Points of lines with markers, and the tops of bars, with the names of what they belong to."""
    named = {
        member: container.get_label()
        for container in panel.containers
        for member in container.get_children()
    }
    error_bars = [container for container in panel.containers if hasattr(container, "has_yerr")]
    caps = {cap for each in error_bars for cap in each.lines[1]}
    for line in (line for line in panel.lines if line not in caps):
        has_marker = line.get_marker() not in ("", " ", "None", None)
        xs, ys = line.get_xdata(orig=False), line.get_ydata(orig=False)
        if has_marker and line.get_transform() == panel.transData and len(xs) <= MOST_ON_A_LINE:
            name = named.get(line, line.get_label())
            yield from ((float(x), float(y), name) for x, y in zip(xs, ys, strict=True))
    for bar in panel.patches:
        if bar in named:
            yield bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height(), named[bar]


def _words(figure: Any, panel: Any, x: float, y: float, name: str) -> str:
    """The name, and both values with what their axes are called."""
    across = _shown(panel.xaxis, panel.fmt_xdata, x)
    up = _shown(panel.yaxis, panel.fmt_ydata, y)
    called = panel.get_xlabel(), _of_its_row(figure, panel)
    said = "; ".join(
        f"{axis} = {text}" if axis else text
        for axis, text in zip(called, (across, up), strict=True)
    )
    return said if not name or str(name).startswith("_") else f"{name}: {said}"


def _shown(axis: Any, form: Callable[[float], str] | None, value: float) -> str:
    """A value as the panel would have it, or as its axis names that very place."""
    if form is not None:
        return form(value)
    named = (tick for tick in axis.get_major_ticks() if tick.get_loc() == value)
    words = next((tick.label1.get_text() for tick in named), "")
    return words if words and "$" not in words else f"{value:.4g}"


def _of_its_row(figure: Any, panel: Any) -> str:
    """What the axis along y is called, by the panel or by another in its row, for both."""
    if panel.get_ylabel() or panel.get_subplotspec() is None:
        return panel.get_ylabel()
    row = panel.get_subplotspec().rowspan
    beside = (each for each in figure.axes if each.get_subplotspec() is not None)
    named = [each.get_ylabel() for each in beside if each.get_subplotspec().rowspan == row]
    return next((name for name in named if name), "")
