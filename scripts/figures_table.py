"""Write the table of figures into docs/figures.md, between its markers.

python scripts/figures_table.py
"""

from __future__ import annotations

from pathlib import Path

from completedp.common.progress import duration
from completedp.evidence.figures.figure import SIZES, SPEEDS
from completedp.evidence.figures.registry import FIGURES

PAGE = Path(__file__).parent.parent / "docs" / "figures.md"
BEGIN, END = "<!-- figures: begin (make docs) -->", "<!-- figures: end -->"


def as_markdown() -> str:
    """Every figure: what it claims, where the paper says it, and what each size takes."""
    lines = ["| figure | the claim | in the paper | cpu | gpu | paper |", "| --- " * 6 + "|"]
    for name, figure in FIGURES.items():
        costs = [_short(figure.cost(size).seconds(SPEEDS[size])) for size in SIZES]
        lines.append(f"| `{name}` | {figure.claim} | {figure.paper} | {' | '.join(costs)} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with what is between its markers made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{as_markdown()}\n{END}{after}"


def _short(seconds: float) -> str:
    """Minutes and seconds, or hours where they are many."""
    return duration(seconds) if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
