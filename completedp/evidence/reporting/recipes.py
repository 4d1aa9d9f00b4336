"""A recipe in a report: its values as tables, its multipliers as a heat map."""

from __future__ import annotations

from pathlib import Path

from completedp.evidence.report import Report
from completedp.evidence.reporting.part import Part, command, ladder, shown
from completedp.theory.evidence import Evidence
from completedp.theory.optimizers import knobs_by_value
from completedp.theory.recipe import Recipe
from completedp.theory.recipe_page import by_place, rank
from completedp.theory.schedule import Schedule
from completedp.theory.trust import LARGER, shown_ranges, small_base


def recipe_part(path: Path, recipe: Recipe) -> Part:
    """A recipe's file."""
    log2 = {name: value for name, value in recipe.hyperparameters.log2.items() if value}
    evidence = recipe.evidence or Evidence()

    def body(report: Report) -> None:
        for line in small_base(recipe.base, LARGER, evidence.tokens_per_parameter):
            report.paragraph(f"Caution: {line}.")
        ranges = evidence.ranges(recipe.base)
        checked = f"to {shown_ranges(ranges)}" if ranges else "nowhere"
        if ranges and all(end == 1.0 for both in ranges.values() for end in both):
            checked = "at its base alone, whose best may not carry"
        report.heading("Values at the base, of every tensor", level=3)
        report.table(
            ["", "", ""],
            [["base", str(recipe.base), ""], ["checked", checked, ""]]
            + [[name, f"{tuned:.6g}", words] for name, tuned, words in global_values(recipe)]
            + [["schedule", _in_words(recipe.schedule), ""]],
        )
        columns, rows = multiplier_map(
            {name: octaves for name, octaves in log2.items() if not name.endswith("/global")}
        )
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


def global_values(recipe: Recipe) -> list[tuple[str, float, str]]:
    """What every tensor has before the multipliers of its own: name, value, and how it comes to be
    that, where it was moved from what the recipe's values say."""
    tuned, knobs = recipe.hyperparameters, knobs_by_value()
    rows = []
    for name, value in {**vars(tuned.values), "residual": 1.0}.items():
        knob = knobs.get(name)
        is_beta = knob is not None and knob.is_complement
        octaves = tuned.log2.get(f"{knob.tunable if knob else name}/global", 0.0)
        moved = 1 - (1 - value) * 2**octaves if is_beta else value * 2**octaves
        what = f"1 - {name}" if is_beta else name
        words = f"from {value:.6g}: {what} moved by {octaves:+.2f} octaves" if octaves else ""
        if words or name != "residual":
            rows.append((name, moved, words))
    return rows


def _in_words(schedule: Schedule) -> str:
    """A schedule, without what it does not have."""
    return shown({name: each for name, each in schedule.to_dict().items() if schedule.has(name)})


def multiplier_map(
    log2: dict[str, float],
) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Multipliers by place (rows) and value (columns): types first, then blocks."""
    rows = by_place(log2)
    columns = list(dict.fromkeys(tunable for row in rows.values() for tunable in row))
    ranked = sorted(rows, key=rank)
    return columns, [(place, [rows[place].get(column) for column in columns]) for place in ranked]


def _ladder(report: Report, evidence: Evidence) -> None:
    if evidence.rungs:
        report.heading("Where it was checked, on fresh seeds", level=3)
        ladder(report, evidence.rungs, evidence.chosen)
