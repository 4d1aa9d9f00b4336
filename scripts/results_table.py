"""Write docs/results.md: every figure and table of the paper, its command, its finding and ours.

python scripts/results_table.py

Ours is read from docs/results/NAME.json, as `completedp figure NAME --out docs/results` writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from completedp.evidence.figures.figure import FAIL, OPEN, PASS
from completedp.evidence.figures.lines import drift_table
from completedp.evidence.figures.paper import PLACES
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.sweeps import Sweep

DOCS = Path(__file__).parent.parent / "docs"
PAGE, RESULTS = DOCS / "results.md", DOCS / "results"
BEGIN, END = "<!-- results: begin (make docs) -->", "<!-- results: end -->"
NOT_RUN = "not yet run at gpu size"


def result_of(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """What a figure found, where it has been run."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def as_markdown(folder: Path = RESULTS) -> str:
    """Both tables: the paper's places, and the findings of every figure that has been run."""
    lines = ["| in the paper | what it found | command | ours |", "| --- " * 4 + "|"]
    lines.append(
        "| Table 1 | By which powers of width, depth, batch and tokens each value is multiplied | "
        "`completedp rules` | [as printed](rules.md); [what it leaves open](choices.md) |"
    )
    for place in PLACES:
        commands = ", ".join(f"`completedp figure {name}`" for name in place.figures)
        ours = "; ".join(dict.fromkeys(_summary(name, folder) for name in place.figures))
        lines.append(f"| {place.where} | {place.found} | {commands} | {ours} |")
    found = {name: result_of(name, folder) for name in FIGURES}
    sections = [_findings(name, result) for name, result in found.items() if result is not None]
    if sections:
        lines += ["", "## What was measured"]
    for section in sections:
        lines += ["", *section]
    return "\n".join(lines)


def with_table(page: str, folder: Path = RESULTS) -> str:
    """The page with what is between its markers made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{as_markdown(folder)}\n{END}{after}"


def _summary(name: str, folder: Path) -> str:
    result = result_of(name, folder)
    if result is None:
        return NOT_RUN
    counts = Counter(finding["verdict"] for finding in result["findings"])
    said = [f"{counts[verdict]} {verdict}" for verdict in (PASS, FAIL, OPEN) if counts[verdict]]
    run = f"[{name}](#{name}): {', '.join(said)}"
    return run if result["size"] != "cpu" else f"{run} at cpu size; {NOT_RUN}"


def _findings(name: str, result: dict[str, Any]) -> list[str]:
    """One figure's section: every finding with its number and interval."""
    command = f"completedp figure {name} --size {result['size']}"
    if result["data"] != "stdlib":
        command += f" --data {result['data']}"
    lines = [f"### {name}", "", f"{result['claim']}.", ""]
    lines.append(
        f"`{command} --out docs/results`: {result['seconds']:,.0f} s on {result['device']}, torch "
        f"{result['versions']['torch']}. [Drawing](results/{name}.svg), "
        f"[numbers](results/{name}.json), [measurements](results/{name}.json.xz)."
    )
    if missing := not_run(name, result):
        lines += ["", f"Defined since, and not yet run: {'; '.join(missing)}."]
    lines += ["", "| claim | measured | interval of 95 % | verdict |", "| --- " * 4 + "|"]
    for finding in result["findings"]:
        cells = [finding["claim"], _number(finding["measured"], finding["unit"])]
        low, high = _number(finding["low"]), _number(finding["high"])
        sure = low and high and finding["low"] < finding["high"]  # else one number, no sample
        cells += [f"{low} to {high}" if sure else "", finding["verdict"]]
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return lines + _drifts(result["numbers"].get("curves", ()))


def not_run(name: str, result: dict[str, Any]) -> list[str]:
    """Lines of a sweep that its definition has and its results have not."""
    figure = FIGURES[name]
    if not isinstance(figure, Sweep):
        return []
    run = {row["line"] for row in result["numbers"]["curves"]}
    return [line.name for line in figure.sizes[result["size"]].lines if line.name not in run]


def _drifts(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sweep's drifts, scale by scale: where it holds, and from where on it does not."""
    header, rows = drift_table(curves)
    if not rows:
        return []
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return ["", lines[0], "| --- " * len(header) + "|", *lines[1:]]


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.3g} {unit}".rstrip()


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
