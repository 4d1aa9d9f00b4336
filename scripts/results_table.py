"""Write docs/results.md: every figure and table of the paper, its command, its finding and ours.

python scripts/results_table.py

Ours is read from docs/results/NAME.json, as `completedp figure NAME --out docs/results` writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from completedp.evidence.figures.figure import FAIL, OPEN, PASS
from completedp.evidence.figures.registry import FIGURES

DOCS = Path(__file__).parent.parent / "docs"
PAGE, RESULTS = DOCS / "results.md", DOCS / "results"
BEGIN, END = "<!-- results: begin (make docs) -->", "<!-- results: end -->"
NOT_RUN = "not yet run at gpu size"


@dataclass(frozen=True)
class Place:
    """A figure or table of the paper."""

    where: str
    found: str
    """What the paper found, in our words."""
    figures: tuple[str, ...]
    """Names of the experiments that ask the same."""


PAPER = (
    Place(
        "Figure 1",
        "Values tuned per module on 50M weights: global ones need 2.3 times the training there, "
        "and 1.32 times at about 600 times the compute",
        ("headline",),
    ),
    Place(
        "Figure 2",
        "With the rules the best learning rate stays put over width, and over depth for alpha of "
        "1/2 and 1",
        ("lr-width", "lr-depth"),
    ),
    Place(
        "Figure 3",
        "Over batch sizes it stays put by the square-root rule, and moves without",
        ("lr-batch",),
    ),
    Place(
        "Figure 4",
        "The best weight decay moves with the batch; divided by the root of its growth it stays "
        "put, and by the full rule too",
        ("wd-batch",),
    ),
    Place(
        "Equations 1 and 2",
        "AdamW's steps follow an SDE that the batch rule leaves as it is; less noise alone lowers "
        "the loss",
        ("sde",),
    ),
    Place(
        "Figure 5",
        "With more steps the best learning rate falls, about as one over the root of their number",
        ("lr-tokens",),
    ),
    Place(
        "Section 2.3",
        "The power of 1/2 is taken to agree with the 0.3 to 0.7 that others fitted",
        ("tokens-exponent",),
    ),
    Place(
        "Figure 6",
        "With the token rule the fitted law has a lower floor than without",
        ("tokens-law",),
    ),
    Place(
        "Figure 7",
        "Of all stepwise schedules the best of a short run never begins the best of a longer one",
        ("annealing",),
    ),
    Place(
        "Figure 8",
        "Over two modules' learning rates, where training breaks has a ragged edge; inside it the "
        "way down is plain",
        ("landscape",),
    ),
    Place(
        "Figures 9 and 10",
        "At 7.2B weights per-module values are better than global ones at downstream tasks too",
        ("downstream",),
    ),
    Place(
        "Figure 11",
        "On the line from global to per-module learning rates the latter are better at every "
        "scale, and near the best",
        ("module-transfer",),
    ),
    Place(
        "Figure 12",
        "For a model of 483M a rate tuned at 58M costs a little, and one tuned at 136M nothing",
        ("base-size",),
    ),
    Place(
        "Figure 13",
        "Without QK norms training is less stable, and the best rate still stays put over depth",
        ("lr-depth",),
    ),
    Place(
        "Figure 14",
        "When tokens grow by the batch alone the best learning rate stays put",
        ("lr-tokens",),
    ),
    Place(
        "Figure 15",
        "For models of several sizes the best rate falls with the number of steps alike",
        ("lr-tokens",),
    ),
    Place(
        "Figure 16",
        "Searches by type and depth: most of the gain is in the types, some in the depths, none in "
        "uncoupling them",
        ("search-curves",),
    ),
    Place(
        "Figure 17",
        "CMA-ES on the same search space, for comparison",
        ("search-curves",),
    ),
    Place(
        "Figure 18",
        "2,048 random trials of global values: which of them matter, and how the best loss falls "
        "with trials",
        ("global-baseline",),
    ),
)


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
    for place in PAPER:
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
        f"[numbers](results/{name}.json), [every measurement](results/{name}.json.xz)."
    )
    lines += ["", "| claim | measured | interval of 95 % | verdict |", "| --- " * 4 + "|"]
    for finding in result["findings"]:
        cells = [finding["claim"], _number(finding["measured"], finding["unit"])]
        low, high = _number(finding["low"]), _number(finding["high"])
        cells += [f"{low} to {high}" if low and high else "", finding["verdict"]]
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return lines + _drifts(result["numbers"].get("curves", ()))


def _drifts(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sweep's drifts, scale by scale: where it holds, and from where on it does not."""
    factors = list(dict.fromkeys(curve["factor"] for curve in curves))[1:]
    if not factors:
        return []
    found: dict[str, list[str]] = {}
    for curve in curves:
        if curve["factor"] in factors:
            found.setdefault(curve["line"], []).append(_drift(curve))
    title = " | ".join(f"x{factor}" for factor in factors)
    rows = [f"| {line} | {' | '.join(cells)} |" for line, cells in found.items()]
    head = [f"| octaves of drift (nats lost) | {title} |", "| --- " * (1 + len(factors)) + "|"]
    return ["", *head, *rows]


def _drift(curve: Mapping[str, Any]) -> str:
    if curve["drift"] is None:
        return "not bracketed"
    half = "" if curve["half"] is None else f" +- {curve['half']:.2f}"
    lost = "diverges" if curve["diverges"] else f"{curve['cost']:.3f}"
    return f"{curve['drift']:+.2f}{half} ({lost})"


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.3g} {unit}".rstrip()


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
