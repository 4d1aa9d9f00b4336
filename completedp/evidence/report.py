"""One self-contained HTML page: headings, paragraphs, tables, figures. No scripts, no links out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from completedp.common.files import write_text_atomically

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; background: #fff; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .9rem; margin: 1rem 0; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { font-size: .75rem; overflow-x: auto; background: #f6f6f6; padding: .8rem; }
svg { max-width: 100%; height: auto; }
.pass { color: #0a6b2d; font-weight: 600; } .fail { color: #b00020; font-weight: 600; }
""".strip()


class Report:
    """Built from top to bottom, then written."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """A section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """A paragraph of plain text."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def verdict(self, passed: bool, text: str) -> None:
        """A line that starts with pass or FAIL."""
        kind, word = ("pass", "pass") if passed else ("fail", "FAIL")
        self._parts.append(f'<p><span class="{kind}">{word}</span> {escape(text)}</p>')

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; cells that are numbers are set to the right."""

        def cell(value: object, tag: str = "td") -> str:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            return f"<{tag}{' class=number' if number else ''}>{escape(text)}</{tag}>"

        head = "".join(cell(name, "th") for name in header)
        body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
        self._parts.append(f"<table><tr>{head}</tr>{body}</table>")

    def preformatted(self, text: str) -> None:
        """Text as it is, in columns."""
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def figure(self, svg: str) -> None:
        """An SVG made by plots.py."""
        self._parts.append(svg)

    def write(self, path: Path) -> None:
        """Write the page."""
        body = "\n".join(self._parts)
        write_text_atomically(
            path,
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>"
            f"<body>\n{body}\n</body></html>\n",
        )
