"""A recipe in a report: its values as tables, its multipliers as a heat map."""

from __future__ import annotations

import math
from pathlib import Path

from completedp.evidence.report import Report
from completedp.evidence.reporting.part import Part, command, shown
from completedp.theory.evidence import Evidence
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, MODULE_TYPES

_WHOLE = "every tensor"


def recipe_part(path: Path, recipe: Recipe) -> Part:
    """A recipe's file."""
    log2 = {name: value for name, value in recipe.hyperparameters.log2.items() if value}
    evidence = recipe.evidence or Evidence()

    def body(report: Report) -> None:
        report.heading("Values at the base", level=3)
        report.table(
            ["", ""],
            [["base", str(recipe.base)]]
            + [[name, f"{value:.6g}"] for name, value in vars(recipe.values).items()]
            + [["schedule", shown(recipe.schedule.to_dict())]],
        )
        columns, rows = multiplier_map(log2)
        if rows:
            report.heading("Multipliers, in octaves", level=3)
            report.paragraph(
                "What each module type, block or branch has beyond the values above: +1 is twice, "
                "-1 is half."
            )
            report.heat_map("", columns, rows)
        _ladder(report, evidence)
        report.fold("rules and origin")
        report.table(["", ""], [[k, shown(v)] for k, v in recipe.rules.to_dict().items()])
        if recipe.provenance:
            report.table(["", ""], [[str(k), shown(v)] for k, v in recipe.provenance.items()])
        report.unfold()

    searched = f", {evidence.trials:,} trials" if evidence.trials else ""
    return Part(
        title=f"recipe {path.name}",
        says=f"Values tuned at {recipe.base}, to be carried to other scales by its rules.",
        found=f"{len(log2)} multipliers{searched}",
        command=command("recipe", "show", str(path)),
        body=body,
    )


def multiplier_map(
    log2: dict[str, float],
) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Multipliers by place (rows) and value (columns): types first, then blocks."""
    cells: dict[str, dict[str, float]] = {}
    for name, value in log2.items():
        tunable, kind, *rest = name.split("/")
        cells.setdefault(_place(kind, rest), {})[tunable] = value
    columns = list(dict.fromkeys(tunable for row in cells.values() for tunable in row))
    order = [_WHOLE, *MODULE_TYPES, *BRANCHES]
    ranked = sorted(cells, key=lambda row: order.index(row) if row in order else len(order))
    return columns, [(row, [cells[row].get(column) for column in columns]) for row in ranked]


def _place(kind: str, rest: list[str]) -> str:
    if kind == "global":
        return _WHOLE
    if kind == "depth":
        return f"block {rest[0]}"
    return rest[0] if kind == "type" else ", block ".join(rest)


def _ladder(report: Report, evidence: Evidence) -> None:
    rows: list[list[object]] = []
    for rung in evidence.rungs:
        scale = str(rung.scale)
        for standing in rung.standings:
            chosen = "chosen" if standing.candidate == evidence.chosen else ""
            mean = f"{standing.mean:.4f}" if math.isfinite(standing.mean) else "diverged"
            rows.append([scale, standing.candidate, mean, chosen])
            scale = ""
    if rows:
        report.heading("Where it was checked, on fresh seeds", level=3)
        report.table(["scale", "candidate", "loss", ""], rows)
