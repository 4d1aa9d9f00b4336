"""A coordinate or gradient check in a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from completedp.evidence.report import Report, chip
from completedp.evidence.reporting.part import (
    FAIL,
    MEASURED,
    PASS,
    Outcome,
    Part,
    drawn,
    number,
    table,
    typed_in,
)

_SAYS = {
    "coordcheck": "Do features move by the same amount at every width and depth?",
    "gradcheck": "Does AdamW's eps keep its size relative to the gradients, and do the invariants "
    "of the rules hold?",
}
_RULES = "completedp"


def check_part(path: Path, data: Mapping[str, Any]) -> Part:
    """A check's NAME.json, with NAME.svg beside it."""
    name = str(data["check"])
    outcomes = [_outcome(data, each, bool(passed)) for each, passed in data["passed"].items()]
    rows = list(data["rows"])
    bad = [row for row in rows if row["verdict"] != PASS]
    known = sum(row["verdict"] not in (PASS, FAIL) for row in rows)

    def body(report: Report) -> None:
        report.paragraph(
            "What to see: each line is the size of one quantity against width or depth, on log "
            "axes; its slope should be the one that theory expects. Lines that fail are dashed."
        )
        drawn(report, path.with_suffix(".svg"), f"{name}: sizes against width and depth")
        header = ["rules", "along", "what", "quantity", "expected", "slope", "error", "verdict"]
        if bad:
            report.heading("Rows that do not pass", level=3)
            table(report, header, [_row(row) for row in bad])
        report.fold(f"all {len(rows)} rows")
        report.table(header, [_row(row) for row in rows])
        report.unfold()

    return Part(
        title=name,
        says=_SAYS.get(name, ""),
        outcomes=outcomes,
        found=f"{len(rows) - len(bad)} of {len(rows)} rows pass"
        + (f", {known} known of the printed table" if known else ""),
        command=typed_in(data),
        body=body,
    )


def _outcome(data: Mapping[str, Any], rules: str, passed: bool) -> Outcome:
    """Of one set of rules. Others beside completedp's are there to be compared with."""
    mine = [row for row in data["rows"] if row["parameterisation"] == rules]
    failed = sum(row["verdict"] == FAIL for row in mine)
    furthest = max(
        (
            abs(row["slope"] - row["expected"])
            for row in mine
            if number(row["slope"]) is not None and row["verdict"] in (PASS, FAIL)
        ),
        default=0.0,
    )
    verdict = PASS if passed else FAIL
    if rules != _RULES and _RULES in data["passed"]:
        verdict = MEASURED
    return Outcome(
        claim=f"{rules}: every slope is where theory expects it",
        measured=f"{failed} of {len(mine)} rows fail; furthest from theory {furthest:.2f}",
        verdict=verdict,
    )


def _row(row: Mapping[str, Any]) -> list[object]:
    return [
        str(row["parameterisation"]),
        str(row["axis"]),
        str(row["what"]),
        str(row["quantity"]),
        _slope(row["expected"]),
        _slope(row["slope"]),
        _slope(row.get("error")),
        chip(str(row["verdict"])),
    ]


def _slope(value: Any) -> object:
    found = number(value)
    return "" if found is None else round(found, 3)
