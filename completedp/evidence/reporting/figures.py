"""A figure in a report: its drawing, what to see in it, and the numbers it was judged by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from completedp.common.progress import duration
from completedp.evidence.figures.headline import UNIFORM, times_shown
from completedp.evidence.figures.lines import drift_table
from completedp.evidence.figures.paper import found_in_paper
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.report import Report, chip
from completedp.evidence.reporting.part import (
    MEASURED,
    Outcome,
    Part,
    command,
    drawn,
    number,
    shown,
    table,
)


def figure_part(path: Path, data: Mapping[str, Any]) -> Part:
    """A figure's NAME.json, with NAME.svg beside it."""
    name = str(data["figure"])
    outcomes = [
        Outcome(claim=str(each["claim"]), measured=_measured(each), verdict=str(each["verdict"]))
        for each in data["findings"]
    ]
    size, text, model = str(data["size"]), data.get("data"), data.get("model")
    made = command(
        "figure",
        name,
        size=size,
        data=None if text in (None, "stdlib") else text,
        model=None if model in (None, "reference") else model,
        loss=data.get("loss"),
        override=data.get("override"),
        out=str(path.parent),
    )

    def body(report: Report) -> None:
        if name in FIGURES:
            report.paragraph(f"What to see: {FIGURES[name].see}")
        drawn(report, path.with_suffix(".svg"), f"{name}: {data['claim']}")
        numbers = data.get("numbers", {})
        if "curves" in numbers:
            table(report, *drift_table(numbers["curves"]))
        report.fold("Numbers that it was judged by")
        for title, header, rows in tables_of(numbers):
            report.heading(title, level=3)
            table(report, header, rows)
        report.unfold()
        report.paragraph(_made(data), "quiet")

    return Part(
        title=name,
        says=f"{data['claim']}.",
        source=str(data.get("paper", "")),
        paper=found_in_paper(name),
        lead=_lead(data) if name == "headline" else "",
        outcomes=outcomes,
        found=_counted(outcomes),
        command=made,
        size=size,
        body=body,
    )


def _measured(finding: Mapping[str, Any]) -> str:
    value = number(finding.get("measured"))
    if value is None:
        return "not measured"
    low, high = number(finding.get("low")), number(finding.get("high"))
    sure = "" if low is None or high is None or low == high else f" [{low:.3g}, {high:.3g}]"
    return f"{value:.3g}{sure} {finding.get('unit', '')}".rstrip()


def _counted(outcomes: list[Outcome]) -> str:
    if len(outcomes) == 1:
        return outcomes[0].measured
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.verdict] = counts.get(outcome.verdict, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or MEASURED


def _lead(data: Mapping[str, Any]) -> str:
    """What the headline says, in a sentence."""
    target, base = (data.get(key) for key in ("target", "base"))
    keys = {"speedup", "low", "high"}
    if not target or not base or not keys <= target.keys() & base.keys():
        return ""
    if target["speedup"] is None:
        return ""
    said = (
        "Values found by module on a small model: global ones need "
        f"{times_shown(target)} times the tokens at {target['flops_ratio']:,.0f} times its FLOP, "
        f"and {times_shown(base)} times at its own size"
    )
    over = [each.get("over", {}).get(UNIFORM) for each in (target, base)]
    if None in over:
        return f"{said}."
    there, here = map(times_shown, over)
    return f"{said}; those that share one initial scale, too, need {there} and {here}."


def _made(data: Mapping[str, Any]) -> str:
    seconds = number(data.get("seconds"))
    parts = [f"size {data['size']}", f"text {data.get('data')}", f"model {data.get('model')}"]
    if data.get("device"):
        parts.append(f"device {data['device']}")
    if seconds is not None:
        parts.append(f"took {duration(seconds)}")
    parts += [f"{name} {version}" for name, version in (data.get("versions") or {}).items()]
    return ", ".join(parts)


Table = tuple[str, list[str], list[list[object]]]


def tables_of(numbers: Mapping[str, Any]) -> list[Table]:
    """A figure's numbers as tables: single ones in one, lists and groups each in its own."""
    single = [[key, _value(value)] for key, value in numbers.items() if not _is_group(value)]
    found: list[Table] = [("Numbers", ["", ""], single)] if single else []
    for key, value in numbers.items():
        if not _is_group(value):
            continue
        if isinstance(value, dict):
            rows = [({"": name} | _as_row(each)) for name, each in value.items()]
        else:
            rows = [_as_row(each) for each in value]
        header = list(dict.fromkeys(name for row in rows for name in row))
        body: list[list[object]] = [[row.get(name, "") for name in header] for row in rows]
        title = key.replace("_", " ")
        found.append((title[:1].upper() + title[1:], [h.replace("_", " ") for h in header], body))
    return found


def _is_group(value: Any) -> bool:
    """Whether a value has rows of its own: a list of objects, or an object of objects or lists."""
    if isinstance(value, list):
        return any(isinstance(each, dict) for each in value)
    return isinstance(value, dict) and any(isinstance(x, dict | list) for x in value.values())


def _as_row(value: Any) -> dict[str, object]:
    if isinstance(value, dict):
        return {str(key): _value(each) for key, each in value.items()}
    return {"value": _value(value)}


def _value(value: Any) -> object:
    if isinstance(value, str) and value in ("pass", "fail", "not settled"):
        return chip(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, list) and len(value) > 16:
        return f"{len(value)} values"
    if isinstance(value, list | dict):
        text = shown(_rounded(value))
        return text if len(text) <= 240 else f"{text[:240]} ..."
    return shown(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
