"""Charts as SVG in a page's own colours, light or dark, with values that show under the pointer.

For pages alone, and without matplotlib: points, lines and level marks over two axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 46
_MOST = 400
"""Points of a line that are drawn; more would not be seen."""
DOTS, TOLD = 400, 60
"""Dots of a series that are drawn, and points of any that tell their values."""
_LAYERS = 3
"""Dots are in so many layers, so that it is darker where they are many."""
_COLOURS = 6
_LINE = 20
"""Height of a row of the legend."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points by their two values, as dots or joined by a line."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    titles: Sequence[str] = ()
    """What each point says under the pointer; its values, where it is not given."""
    errors: Sequence[float] = ()
    """Of few points, which are not joined: half the length of the bar that each has."""
    colour: int = 0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A level across the chart."""

    name: str
    y: float
    colour: int


def chart(
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    marks: Sequence[Mark] = (),
    span_y: tuple[float, float] | None = None,
) -> str:
    """A chart; what is outside of `span_y` is not drawn. Empty where there is nothing to draw."""
    series = [_drawable(each) for each in series]
    series = [each for each in series if each.points]
    if not series:
        return ""
    xs = [p[0] for each in series for p in each.points]
    ys = [p[1] for each in series for p in each.points] + [mark.y for mark in marks]
    bars = [(p, e) for each in series for p, e in zip(each.points, each.errors, strict=False)]
    ys += [p[1] + way * error for p, error in bars for way in (-1, 1)]
    low, high = span_y or _widened(min(ys), max(ys))
    across, down = _widened(min(xs), max(xs), 0.02), (low, high)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return (
            _LEFT + (point[0] - across[0]) / (across[1] - across[0]) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (point[1] - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [_axes(across, down, x, y, place)]
    for mark in marks:
        if low <= mark.y <= high:
            parts.append(_mark(mark, place, across))
    parts += [_drawn(each, place, (low, high)) for each in series]
    legend = [(each.name, each.colour, each.dots or bool(each.errors)) for each in series]
    legend += [(mark.name, mark.colour, False) for mark in marks]
    rows, legend_text = _legend(legend)
    whole = _HEIGHT + rows * _LINE
    label = escape(f"{y} against {x}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {whole}" role="img" aria-label="{label}">'
        f"{''.join(parts)}{legend_text}</svg>"
    )


def sample(points: Sequence[tuple[float, float]], most: int) -> list[int]:
    """Which points to keep of many: the lowest, the last, and some of the others, in order.

    >>> sample([(0, 1), (1, 9), (2, 9), (3, 9), (4, 9), (5, 9), (6, 9), (7, 9)], 4)
    [0, 1, 3, 7]
    """
    if len(points) <= most:
        return list(range(len(points)))
    lowest = sorted(range(len(points)), key=lambda i: points[i][1])[: most // 4]
    kept = {*lowest, *range(len(points) - most // 4, len(points))}
    others = [i for i in range(len(points)) if i not in kept]
    every = len(others) / (most - len(kept))
    return sorted(kept | {others[int(i * every)] for i in range(most - len(kept))})


def _drawable(series: Series) -> Series:
    """Without what has no place; thinned where there are many."""
    titles = series.titles or [f"{series.name}: {a:.6g}, {b:.5g}" for a, b in series.points]
    errors = series.errors or [0.0] * len(titles)
    kept = [
        each
        for each in zip(series.points, titles, errors, strict=True)
        if all(map(math.isfinite, each[0]))
    ]
    if series.dots:
        thinned = [kept[i] for i in sample([point for point, *_ in kept], DOTS)]
    else:
        thinned = kept[:: max(1, math.ceil(len(kept) / _MOST))]
        if kept and thinned[-1] is not kept[-1]:
            thinned.append(kept[-1])
    return replace(
        series,
        points=[point for point, *_ in thinned],
        titles=[title for _, title, _ in thinned],
        errors=[error for *_, error in thinned] if series.errors else (),
    )


Place = Callable[[tuple[float, float]], tuple[float, float]]


def _drawn(series: Series, place: Place, span: tuple[float, float]) -> str:
    colour = f"var(--c{series.colour % _COLOURS})"
    inside = [
        (point, title)
        for point, title in zip(series.points, series.titles, strict=True)
        if span[0] <= point[1] <= span[1]
    ]
    if not inside:
        return ""
    places = [place(point) for point, _ in inside]
    if series.dots:  # a path of strokes of no length: a circle each would be four times as long
        told = sample([point for point, _ in inside], TOLD)
        layers = [places[i::_LAYERS] for i in range(_LAYERS)]
        parts = [
            f'<path d="{"".join(f"M{_at(at)}h0" for at in layer)}" style="stroke:{colour};'
            'stroke-width:6;stroke-linecap:round;opacity:.5"/>'
            for layer in layers
            if layer
        ]
    else:
        told = list(range(0, len(inside), math.ceil(len(inside) / TOLD)))
        line = " ".join(map(_at, places))
        parts = [f'<polyline points="{line}" style="fill:none;stroke:{colour};stroke-width:1.8"/>']
        if series.errors:
            parts = _bars(series, place, colour)
    spots = "".join(
        f'<circle cx="{places[i][0]:.1f}" cy="{places[i][1]:.1f}" r="6">'
        f"<title>{escape(inside[i][1])}</title></circle>"
        for i in told
    )
    return f'{"".join(parts)}<g style="fill:transparent">{spots}</g>'


def _bars(series: Series, place: Place, colour: str) -> list[str]:
    """A dot and its error at every point."""
    parts = []
    for (x, y), error in zip(series.points, series.errors, strict=True):
        (across, middle), (_, top), (_, end) = (place((x, y + way * error)) for way in (0, 1, -1))
        parts.append(
            f'<circle cx="{across:.1f}" cy="{middle:.1f}" r="4.5" style="fill:{colour}"/>'
            f'<path d="M{across:.1f},{top:.1f}V{end:.1f}" style="stroke:{colour};stroke-width:2"/>'
        )
    return parts


def _at(place: tuple[float, float]) -> str:
    return f"{place[0]:.1f},{place[1]:.1f}"


def _mark(mark: Mark, place: Place, across: tuple[float, float]) -> str:
    ends = [place((end, mark.y)) for end in across]
    return (
        f'<line x1="{ends[0][0]:.1f}" x2="{ends[1][0]:.1f}" y1="{ends[0][1]:.1f}" '
        f'y2="{ends[1][1]:.1f}" style="stroke:var(--c{mark.colour % _COLOURS});stroke-width:1.5;'
        f'stroke-dasharray:2 4"><title>{escape(mark.name)}: {mark.y:.4f}</title></line>'
    )


def _axes(
    across: tuple[float, float],
    down: tuple[float, float],
    x: str,
    y: str,
    place: Place,
) -> str:
    parts = []
    for tick in _ticks(*down):
        (_, height) = place((across[0], tick))
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
            'style="stroke:var(--line)"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">'
            f"{tick:.6g}</text>"
        )
    for tick in _ticks(*across):
        left, _ = place((tick, down[0]))
        parts.append(
            f'<text class="tick" x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 18}" '
            f'text-anchor="middle">{_short(tick)}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    high = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text transform="translate(14 {high}) rotate(-90)" text-anchor="middle">'
        f"{escape(y)}</text>"
    )
    return "".join(parts)


def _legend(entries: Sequence[tuple[str, int, bool]]) -> tuple[int, str]:
    """Rows that it takes, and the rows, below the chart."""
    parts: list[str] = []
    left, row = _LEFT, 0
    for name, colour, is_dots in entries:
        wide = 30 + 7 * len(name)
        if left + wide > _WIDTH and left > _LEFT:
            left, row = _LEFT, row + 1
        height = _HEIGHT + row * _LINE + 12
        fill = f"var(--c{colour % _COLOURS})"
        parts.append(
            f'<circle cx="{left + 8}" cy="{height - 4}" r="4" style="fill:{fill}"/>'
            if is_dots
            else f'<rect x="{left}" y="{height - 6}" width="16" height="3" style="fill:{fill}"/>'
        )
        parts.append(f'<text x="{left + 22}" y="{height}">{escape(name)}</text>')
        left += wide + 12
    return row + 1, "".join(parts)


def _widened(low: float, high: float, by: float = 0.06) -> tuple[float, float]:
    size = high - low or max(abs(high), 1.0) * 0.1
    return low - by * size, high + by * size


def _ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers within."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    """A number for an axis: 1.5M, 20k, 0.25.

    >>> _short(1_500_000.0), _short(20_000.0), _short(0.25)
    ('1.5M', '20k', '0.25')
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.6g}"
