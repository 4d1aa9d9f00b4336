"""Sweeps and fitted horizons in a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from completedp.evidence.optimum import drift_text, place_text
from completedp.evidence.report import Report
from completedp.evidence.reporting.part import (
    Part,
    drawn,
    number,
    shown,
    table,
    typed_in,
)
from completedp.theory.horizon import critical_batch_words


def sweep_part(path: Path, data: Mapping[str, Any]) -> Part:
    """A sweep's verdict.json, with sweep.svg beside it."""
    grid, lines = data["grid"], data["lines"]
    vary = shown(grid["vary"])

    def body(report: Report) -> None:
        report.paragraph(
            "What to see: with rules that hold, the bottoms of a panel's curves are one above the "
            "other. Octaves count from the recipe's value; the cost is the loss lost by using the "
            "base's best value."
        )
        drawn(report, path.with_name("sweep.svg"), f"loss against {vary} at each scale")
        header = ["rules", "scale", "best, octaves", "drift", "best loss", "cost, nats"]
        table(report, header, [_line(line) for line in lines])

    return Part(
        title=f"sweep of {vary} along {shown(grid['axes'])}",
        says=f"Does the best {vary} stay in place as a model or its training grows?",
        found=_found(lines),
        command=typed_in(data),
        body=body,
    )


def _line(line: Mapping[str, Any]) -> list[object]:
    best, cost = line["optimum"], number(line.get("cost"))
    drift = "" if line.get("drift") is None else ", ".join(f"{x:+.2f}" for x in line["drift"])
    loss = number(best.get("loss"))
    scale = "base" if line["axis"] == "base" else f"{line['axis']} x{line['factor']}"
    return [
        str(line["parameterisation"]),
        scale,
        place_text(best.get("octaves"), best.get("errors")),
        drift,
        "diverged" if loss is None else f"{loss:.4f}",
        "" if cost is None else f"{cost:.4f}",
    ]


def _found(lines: list[Mapping[str, Any]]) -> str:
    """The furthest drift and the largest cost of each set of rules."""
    found = []
    for name in dict.fromkeys(str(line["parameterisation"]) for line in lines):
        mine = [line for line in lines if line["parameterisation"] == name]
        drifts = [abs(x) for line in mine for x in line.get("drift") or ()]
        costs = [cost for line in mine if (cost := number(line.get("cost"))) is not None]
        found.append(f"{name}: {drift_text(drifts, costs)}")
    return "; ".join(found)


def horizon_part(path: Path, data: Mapping[str, Any]) -> Part:
    """A fitted horizon's verdict.json, with horizon.svg beside it."""
    fits = {name: fit for name, fit in data["fits"].items() if fit is not None}

    def body(report: Report) -> None:
        report.paragraph(
            "What to see: best learning rates against the length of training, with the fitted "
            "power and the rule's. A bowl is flat at its bottom: the exponents that are as good as "
            "the best but for 0.005 nats may be many."
        )
        drawn(report, path.with_name("horizon.svg"), "best learning rates against tokens and batch")
        for name, fit in fits.items():
            report.heading(f"Along {name.replace('_', ' ')}", level=3)
            report.paragraph(_exponent(fit))
            rows = [_size(size) for size in fit["sizes"]]
            report.table(["times the base", "best, octaves", "since last", "best loss"], rows)
            costs = [_cost(cost) for cost in fit["costs"]]
            report.table(["exponent", "loss at the longest", "cost, nats"], costs)

    critical = number(data.get("critical_batch"))
    said = [_exponent(fits["tokens"])] if "tokens" in fits else []
    if critical is not None:
        said.append(critical_batch_words(critical, number(data.get("critical_batch_error"))))
    return Part(
        title="fitted horizon",
        says="Which power of the number of tokens the best learning rate follows, for this model "
        "and this text.",
        found="; ".join(said),
        command=typed_in(data),
        body=body,
    )


def _exponent(fit: Mapping[str, Any]) -> str:
    value, error = number(fit.get("exponent")), number(fit.get("error"))
    if value is None:
        return "not fitted: a best learning rate is at the end of those tried"
    said = f"exponent {value:.2f}" + ("" if error is None else f" +- {error:.2f}")
    if fit.get("close") is not None:
        low, high = fit["close"]
        said += f"; from {low:.2f} to {high:.2f} is as good"
    return said


def _size(size: Mapping[str, Any]) -> list[object]:
    best, error = number(size.get("optimum")), number(size.get("optimum_error"))
    place = "not bracketed" if best is None else f"{best:+.2f}"
    place += "" if best is None or error is None else f" +- {error:.2f}"
    since, loss = number(size.get("exponent_since_last")), number(size.get("best_loss"))
    return [
        f"x{size['factor']:g}",
        place,
        "" if since is None else f"{since:.2f}",
        "diverged" if loss is None else f"{loss:.4f}",
    ]


def _cost(cost: Mapping[str, Any]) -> list[object]:
    loss, lost, error = (number(cost.get(name)) for name in ("loss", "cost", "error"))
    shown_cost = "outside of what was tried"
    if lost is not None:
        shown_cost = f"{lost:+.4f}" + ("" if error is None else f" +- {error:.4f}")
    return [f"{cost['exponent']:.3g}", "" if loss is None else f"{loss:.4f}", shown_cost]
