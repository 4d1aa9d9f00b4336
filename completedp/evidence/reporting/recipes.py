"""A recipe in a report: its values as tables, its multipliers as a heat map."""

from __future__ import annotations

from pathlib import Path

from completedp.evidence.report import Report
from completedp.evidence.reporting.part import Part, command, ladder_rows, shown
from completedp.theory.evidence import Evidence
from completedp.theory.recipe import Recipe
from completedp.theory.recipe_page import by_place, rank


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
    rows = by_place(log2)
    columns = list(dict.fromkeys(tunable for row in rows.values() for tunable in row))
    ranked = sorted(rows, key=rank)
    return columns, [(place, [rows[place].get(column) for column in columns]) for place in ranked]


def _ladder(report: Report, evidence: Evidence) -> None:
    rows = [[*row[:3], row[4]] for row in ladder_rows(evidence.rungs, evidence.chosen)]
    if rows:
        report.heading("Where it was checked, on fresh seeds", level=3)
        report.table(["scale", "candidate", "loss", ""], rows)
