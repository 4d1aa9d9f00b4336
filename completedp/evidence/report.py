"""One self-contained HTML page: headings, paragraphs, tables, drawings.

No scripts, no links out: the page's own policy forbids both. Light or dark as the reader's system
is, and readable on a phone. All text is escaped; a drawing from a file is put in as an image, in
which a browser runs nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from completedp.common.files import check_replaceable, write_text_atomically
from completedp.evidence.hover import NUMBER, without_marks

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --quiet: #5b6875; --page: #fff; --card: #f5f7f9;
  --line: #dce2e8; --link: #1458a0; --pass: #12623a; --pass-back: #daf1e3; --fail: #a01529;
  --fail-back: #fbdfe3; --open: #7a4f00; --open-back: #ffedc7; --plain: #3a4d60;
  --plain-back: #e4ebf2; --c0: #1667b7; --c1: #d9820f; --c2: #2a8a5f; --c3: #7d4fb3; --c4: #c43d3d;
  --c5: #7a8591; --up: #d9820f; --down: #1667b7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --quiet: #9aa8b5; --page: #14181c;
  --card: #1c2228; --line: #333c45; --link: #7db6f2; --pass: #83dba7; --pass-back: #143a26;
  --fail: #ff9dab; --fail-back: #4a151d; --open: #ffcf70; --open-back: #43320b; --plain: #b6c6d6;
  --plain-back: #2a343e; --c0: #6cb1f5; --c1: #f2ab4a; --c2: #62c795; --c3: #b792e6; --c4: #f08080;
  --c5: #a3afba; }
  .drawn > * { filter: invert(.91) hue-rotate(180deg); mix-blend-mode: lighten; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 66rem; margin: 0 auto;
  padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--page);
  overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .4rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.4rem 0 .2rem; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--link); }
.lead { font-size: 1.15rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre, code { font: .85em/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .7rem .9rem; margin: .8rem 0; }
.wraps { white-space: pre-wrap; }
td code { white-space: pre-wrap; overflow-wrap: anywhere; }
td { min-width: 4.5rem; }
.pass, .fail, .open, .plain { display: inline-block; padding: .05rem .5rem; border-radius: 1rem;
  font-weight: 600; font-size: .85rem; white-space: nowrap; }
.pass { color: var(--pass); background: var(--pass-back); }
.fail { color: var(--fail); background: var(--fail-back); }
.open { color: var(--open); background: var(--open-back); }
.plain { color: var(--plain); background: var(--plain-back); }
.drawn img, .drawn svg { display: block; max-width: 100%; height: auto; background: #fff;
  border-radius: 6px; }
.over { position: relative; width: fit-content; max-width: 100%; }
.over i { position: absolute; width: .8rem; height: .8rem; margin: -.4rem 0 0 -.4rem;
  border-radius: 50%; } .over i:hover { box-shadow: 0 0 0 2px var(--link); }
.chart svg { display: block; width: 100%; max-width: 46rem; height: auto; }
.chart text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.chart .tick { fill: var(--quiet); font-size: 12px; }
.heat td { text-align: center; min-width: 3.6rem; padding: .25rem .4rem; border: 0;
  font-variant-numeric: tabular-nums; }
.heat .up { background: color-mix(in srgb, var(--up) var(--part), var(--card)); }
.heat .down { background: color-mix(in srgb, var(--down) var(--part), var(--card)); }
.bar { height: .75rem; min-width: 1px; border-radius: 2px; background: var(--c0); }
td.barred { min-width: 9rem; width: 16rem; }
.summary { table-layout: fixed; width: 100%; }
.summary th:nth-child(1) { width: 8.5rem; } .summary th:last-child { width: 36%; }
.with-paper th:nth-child(2) { width: 29%; } .summary td code { color: var(--quiet); }
.lines { list-style: none; margin: 0; padding: 0; }
.lines li { padding-left: 1.3em; text-indent: -1.3em; margin-bottom: .15rem; }
.lines li::before { display: inline-block; width: 1.3em; text-indent: 0; font-weight: 700; }
.lines .is-pass::before { content: "\\2713"; color: var(--pass); }
.lines .is-fail::before { content: "\\2717"; color: var(--fail); }
.lines .is-open::before { content: "?"; color: var(--open); }
.lines .is-plain::before { content: ""; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--link); }
@media (max-width: 46rem) { body { padding: 1rem .8rem 3rem; } h1 { font-size: 1.4rem; }
  .chart svg { min-width: 38rem; } .drawn svg { min-width: 60rem; }
  .over, .over img { min-width: min(60rem, var(--own, 60rem)); } }
@media (max-width: 46rem) { .stacked tr, .stacked td { display: block; border: 0; padding: 0; }
  .stacked tr { padding: .8rem 0; border-bottom: 1px solid var(--line); }
  .stacked tr:first-child { display: none; } .stacked td { margin: .15rem 0; }
  .with-paper td:nth-child(3):not(:empty)::before { content: "In the paper: "; font-weight: 600; } }
@media print { .wide { overflow: visible; } details { display: block; } }
""".strip()
_BEGINNING = "<!doctype html>"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CLASSES = {
    "pass": "pass",
    "fail": "fail",
    "diverged": "fail",
    "not settled": "open",
    "not finished": "open",
    "left out": "fail",
}


class Markup(str):
    """Text that is HTML already, made by the functions here: it is not escaped again."""

    __slots__ = ()


def chip(word: str) -> Markup:
    """A verdict in its colour."""
    return Markup(f'<span class="{_CLASSES.get(word, "plain")}">{escape(word)}</span>')


def judged_lines(lines: Sequence[tuple[str, str]]) -> Markup:
    """A list of a verdict and a text each, the verdict as a mark."""
    items = (
        f'<li class="is-{_CLASSES.get(word, "plain")}">{escape(text)}</li>' for word, text in lines
    )
    return Markup(f'<ul class="lines">{"".join(items)}</ul>')


def link(anchor: str, text: str) -> Markup:
    """A link to a heading of the page."""
    return Markup(f'<a href="#{escape(anchor)}">{escape(text)}</a>')


def code(text: str) -> Markup:
    """A command, or part of one."""
    return Markup(f"<code>{escape(text)}</code>")


def bar(part: float) -> Markup:
    """A bar, of a part from 0 to 1."""
    return Markup(f'<div class="bar" style="width:{100 * min(1.0, max(0.0, part)):.1f}%"></div>')


def heat(value: float, most: float) -> Markup:
    """A cell of a heat map: a signed number, coloured by its size."""
    side = "up" if value > 0 else "down"
    part = min(1.0, abs(value) / most) if most > 0 else 0.0
    return Markup(f'<td class="{side}" style="--part:{75 * part:.0f}%">{value:+.2f}</td>')


class Report:
    """Built from top to bottom, then written."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str, *, anchor: str | None = None, level: int = 2) -> None:
        """A section."""
        mark = "" if anchor is None else f' id="{escape(anchor)}"'
        self._parts.append(f"<h{level}{mark}>{_text(text)}</h{level}>")

    def paragraph(self, text: str, kind: str = "") -> None:
        """A paragraph; `kind` may be lead or quiet."""
        mark = f' class="{kind}"' if kind else ""
        self._parts.append(f"<p{mark}>{_text(text)}</p>")

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        stacked: bool = False,
        kind: str = "",
    ) -> None:
        """A table; cells that are numbers are set to the right.

        On a phone the cells of a `stacked` one are below each other. `kind` may be summary.
        """
        looks = f"{'stacked ' * stacked}{kind}".strip()
        mark = f' class="{looks}"' if looks else ""
        numbers = [
            bool(rows) and all(_is_number(row[i]) or row[i] == "" for row in rows)
            for i in range(len(header))
        ]
        head = "".join(_cell(name, "th", n) for name, n in zip(header, numbers, strict=True))
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        self._parts.append(f'<div class="wide"><table{mark}><tr>{head}</tr>{body}</table></div>')

    def heat_map(
        self, corner: str, columns: Sequence[str], rows: Sequence[tuple[str, list[float | None]]]
    ) -> None:
        """Signed numbers by row and column, coloured by size; None leaves a cell empty."""
        most = max((abs(x) for _, row in rows for x in row if x is not None), default=0.0)
        head = "".join(_cell(name, "th", False) for name in (corner, *columns))
        body = "".join(
            f"<tr><th>{escape(name)}</th>"
            + "".join("<td></td>" if x is None else heat(x, most) for x in row)
            + "</tr>"
            for name, row in rows
        )
        table = f'<table class="heat"><tr>{head}</tr>{body}</table>'
        self._parts.append(f'<div class="wide">{table}</div>')

    def preformatted(self, text: str) -> None:
        """Text as it is, in columns."""
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def command(self, text: str) -> None:
        """A command, all of which is seen."""
        self._parts.append(f'<pre class="wraps">{escape(text)}</pre>')

    def figure(self, svg: str) -> None:
        """An SVG that this process has drawn with plots.py."""
        self._parts.append(f'<div class="wide drawn">{svg}</div>')

    def drawing(self, svg: str, words: str) -> None:
        """An SVG from a file, and what it shows in words."""
        svg, spots = without_marks(svg)
        over = "".join(
            f'<i style="left:{at.left:.2f}%;top:{at.top:.2f}%" title="{escape(at.words)}"></i>'
            for at in spots
        )
        self._parts.append(
            f'<div class="wide drawn"><div class="over"{_own_width(svg)}>'
            f'<img alt="{escape(words)}" '
            f"src='{_address(smaller_svg(svg))}'>{over}</div></div>"
        )

    def chart(self, svg: str) -> None:
        """A chart made by charts.py, which has the page's colours."""
        self._parts.append(f'<div class="wide chart">{svg}</div>')

    def fold(self, summary: str) -> None:
        """What follows, up to `unfold`, is shown on demand."""
        self._parts.append(f"<details><summary>{escape(summary)}</summary>")

    def unfold(self) -> None:
        """The end of what `fold` began."""
        self._parts.append("</details>")

    def wholly(self, write: Callable[[Report], None]) -> None:
        """What `write` adds; nothing of it where it raises, which might leave a tag open."""
        before = len(self._parts)
        try:
            write(self)
        except BaseException:
            del self._parts[before:]
            raise

    def html(self) -> str:
        """The page."""
        body = "\n".join(self._parts)
        return (
            f'{_BEGINNING}\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>"
            f"<body>\n{body}\n</body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page, over an earlier one and nothing else."""
        check_replaceable(path, _BEGINNING, "page of ours")
        write_text_atomically(path, self.html())


def smaller_svg(svg: str) -> str:
    """The same drawing in fewer bytes: coordinates to a hundredth, each style once, no names that
    nothing asks for, no comments or metadata."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<\?xml[^>]*\?>|<!DOCTYPE[^>]*>", "", svg)

    def rounded(found: re.Match[str]) -> str:
        return re.sub(r"(\.\d\d)\d+", r"\1", found.group())

    svg = re.sub(r'(?<= d=")[^"]*|(?<= [xy]=")[^"]*', rounded, svg)
    asked_for = set(re.findall(r"#([^\s\"')]+)", svg))

    def without_name(tag: re.Match[str]) -> str:
        found = re.search(r' id="([^"]*)"', tag.group())
        unasked = found is not None and found[1] not in asked_for
        return tag.group().replace(found[0], "", 1) if found and unasked else tag.group()

    svg = re.sub(_TAG, without_name, svg)
    return re.sub(r">\s+<", "><", _each_style_once(svg)).strip()


_TAG = r"<[^<>]+>"


def _each_style_once(svg: str) -> str:
    """Styles that several elements have, as classes."""
    if ' class="' in svg:  # which are somebody's own
        return svg
    counts = Counter(re.findall(r' style="([^"]*)"', svg))
    names = {style: f"s{i}" for i, (style, n) in enumerate(counts.items()) if n > 1}

    def classed(tag: re.Match[str]) -> str:
        found = re.search(r' style="([^"]*)"', tag.group())
        if found is None or found[1] not in names:
            return tag.group()
        return tag.group().replace(found[0], f' class="{names[found[1]]}"', 1)

    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    svg = re.sub(_TAG, classed, svg)
    return re.sub(r"<svg[^<>]*>", rf"\g<0><style>{rules}</style>", svg, count=1) if names else svg


def _own_width(svg: str) -> str:
    """A style that says how wide a drawing is by itself: on a phone it is not made wider."""
    found = re.search(rf'<svg[^>]* width="{NUMBER}pt"', svg)
    return f' style="--own:{float(found[1]) * 4 / 3:.0f}px"' if found else ""


def _address(svg: str) -> str:
    """A drawing as an address for an attribute in single quotes: what means something there is
    written as its code. Base64 would be a third longer."""
    plain = re.sub(r"[\t\r\n]", " ", svg)  # which an address loses, and paths have
    for sign in "%#&'<":
        plain = plain.replace(sign, f"%{ord(sign):X}")
    return f"data:image/svg+xml,{plain}"


def _text(text: str) -> str:
    return text if isinstance(text, Markup) else escape(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object, tag: str = "td", number: bool | None = None) -> str:
    number = _is_number(value) if number is None else number
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if isinstance(value, int) and _is_number(value):
        text = f"{value:,}"
    kind = ' class="number"' if number else ""
    if isinstance(value, Markup) and 'class="bar"' in value:
        kind = ' class="barred"'
    return f"<{tag}{kind}>{value if isinstance(value, Markup) else escape(text)}</{tag}>"
