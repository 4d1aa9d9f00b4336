"""Training runs in a report: their curves over each other, their ends in one table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from completedp.common.files import read_json
from completedp.common.progress import duration
from completedp.evidence.charts import Series, chart
from completedp.evidence.report import Report, chip, code
from completedp.evidence.reporting.part import (
    FAIL,
    MEASURED,
    UNFINISHED,
    Outcome,
    Part,
    command,
    number,
)
from completedp.lm.shape import Shape
from completedp.theory.horizon import is_batch_known
from completedp.theory.recipe import Recipe
from completedp.training.config import TrainConfig
from completedp.training.folder import TRAINING, where_diverged
from completedp.training.metrics import read_metrics

_EARLY = 0.02
"""The part of a run whose losses may be above the chart."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder, as far as it got."""

    folder: Path
    config: dict[str, Any]
    batch: int | None
    """Tokens a step."""
    steps: int | None
    """In all, where the recipe says so."""
    metrics: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.folder.name or str(self.folder)

    @property
    def status(self) -> str:
        """ok, diverged, stopped or unfinished."""
        return str(self.result.get("status", "unfinished"))


def read_run(folder: Path) -> Run:
    """A run from its folder."""
    config = read_json(folder / "config.json", "run's config")
    result = folder / "result.json"
    batch, steps = config.get("batch"), None
    if (folder / "recipe.json").exists():
        base = Recipe.load(folder / "recipe.json").base
        batch = batch or base.batch
        steps = (config.get("tokens") or base.tokens) // batch
    return Run(
        folder=folder,
        config=config,
        batch=batch,
        steps=steps,
        metrics=read_metrics(folder),
        result=read_json(result, "run's result") if result.exists() else {},
    )


def _span(curves: Sequence[Series]) -> tuple[float, float] | None:
    """Losses that a chart shows: without the first steps, which would take all its room."""
    losses = [
        loss
        for each in curves
        for place, loss in each.points
        if math.isfinite(loss) and place >= _EARLY * each.points[-1][0]
    ]
    if not losses:
        return None
    room = 0.05 * (max(losses) - min(losses)) or 0.05
    return min(losses) - room, max(losses) + room


def runs_part(runs: Sequence[Run]) -> Part:
    """All runs together, so that they can be compared."""

    def body(report: Report) -> None:
        for key, name in (("valid_loss", "validation"), ("loss", "training")):
            series = [_curve(run, key, i) for i, run in enumerate(runs)]
            curves = [each for each in series if len(each.points) > 1]
            drawn = chart(curves, x="tokens", y=f"{name} loss, nats", span_y=_span(curves))
            if drawn:
                report.heading(f"{name.capitalize()} loss", level=3)
                report.chart(drawn)
        report.table(
            [
                "run",
                "status",
                "step",
                "training loss",
                "validation loss",
                "bits a byte",
                "parameters",
                "critical batch",
                "time",
            ],
            [_row(run) for run in runs],
        )
        report.fold("commands")
        report.table(["run", "command"], [[run.name, code(_command(run))] for run in runs])
        report.unfold()

    ends = [loss for run in runs if (loss := number(run.result.get("valid_loss"))) is not None]
    return Part(
        title="training runs" if len(runs) > 1 else f"training run {runs[0].name}",
        says=f"{len(runs)} training run{'s' * (len(runs) > 1)}, side by side.",
        outcomes=[_outcome(run) for run in runs],
        found=f"lowest validation loss {min(ends):.4f}" if ends else "none has ended",
        command=_command(runs[0]) if len(runs) == 1 else None,
        body=body,
    )


def _outcome(run: Run) -> Outcome:
    loss = number(run.result.get("valid_loss"))
    last = run.metrics[-1]["step"] if run.metrics else 0
    if run.status == "ok" and loss is not None:
        return Outcome(claim=f"{run.name} trains", measured=f"{loss:.4f}", verdict=MEASURED)
    if run.status == "diverged":
        where = where_diverged(run.result)
        measured = "diverged" if where == TRAINING else f"diverged in its {where}"
        return Outcome(claim=f"{run.name} trains", measured=measured, verdict=FAIL)
    of = "" if run.steps is None else f" of {run.steps:,}"
    return Outcome(claim=f"{run.name} trains", measured=f"step {last:,}{of}", verdict=UNFINISHED)


def _curve(run: Run, key: str, colour: int) -> Series:
    points = [
        (float(row["step"] * (run.batch or 1)), loss)
        for row in run.metrics
        if (loss := number(row.get(key))) is not None
    ]
    return Series(name=run.name, points=points, colour=colour)


def _row(run: Run) -> list[object]:
    result = run.result
    last = run.metrics[-1]["step"] if run.metrics else 0
    seconds = number(result.get("seconds"))
    of = "" if run.steps is None else f" of {run.steps:,}"
    return [
        run.name,
        chip({"ok": "ended", "diverged": "diverged"}.get(run.status, UNFINISHED)),
        f"{result.get('steps', last):,}{of}".replace(" ", "\u00a0"),
        *(_loss(result.get(name)) for name in ("train_loss", "valid_loss", "valid_bits_per_byte")),
        result.get("parameters", ""),
        _critical_batch(result),
        "" if seconds is None else duration(seconds),
    ]


def _critical_batch(result: Mapping[str, Any]) -> str:
    found = number(result.get("critical_batch"))
    if found is None:
        return ""
    known = is_batch_known(found, number(result.get("critical_batch_error")))
    return f"{found:,.0f}" if known else "not known"


def _loss(value: Any) -> str:
    found = number(value)
    return "" if found is None else f"{found:.4f}"


def _command(run: Run) -> str:
    """The command that goes on with a run, or repeats it: what differs from the usual options."""
    usual = {field.name: field.default for field in fields(TrainConfig)}
    given = {
        name: value
        for name, value in run.config.items()
        if name in usual and value != usual[name] and not isinstance(value, dict)
    }
    given.pop("stop_after", None)  # where it is stopped already
    shape = run.config.get("shape")
    if isinstance(shape, dict):
        usual = {field.name: field.default for field in fields(Shape)}
        given |= {k: v for k, v in shape.items() if k in usual and v != usual[k]}
    if given.pop("qk_norm", True) is False:  # the one that is left out by a flag
        given["no_qk_norm"] = True
    return command("train", **given)
