"""The main job in miniature, on a CPU in a few minutes, with one page that shows what was found.

Tune the learning rate of a tiny model on the standard library's own sources, carry it to a model
four times wider and deeper, train that one with the rules and without, and check the scaling.
Every part is an ordinary run folder: the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from completedp.evidence.config import CheckConfig
from completedp.evidence.coordcheck import coordcheck
from completedp.evidence.plots import check_svg, curves_svg, require_matplotlib
from completedp.evidence.report import Report
from completedp.evidence.run import measure_all
from completedp.evidence.scaling import CheckResult
from completedp.evidence.text import check_text
from completedp.lm.prepare import prepare_source
from completedp.theory.files import write_text_atomically
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.build import meta_model, model_config
from completedp.training.config import Shape, TrainConfig
from completedp.training.loop import Result, train
from completedp.training.metrics import read_metrics

SHAPE = Shape(head_dim=16)
CONTEXT = 64
BASE = Scale(width=64, depth=2, batch=512, tokens=300 * 512)
TARGET = replace(BASE, width=256, depth=8)
LEARNING_RATES = tuple(2.0**-k for k in (11, 10, 9, 8, 7))
CHECK = CheckConfig(
    widths=(64, 128, 256), depths=(2, 4, 8), seeds=2, parameterisations=("completedp", "sp")
)


def quickstart(out: Path) -> dict[str, Any]:
    """Run it all; returns, prints and reports what was found."""
    require_matplotlib()
    data = out / "data"
    _say("1/4 tokens from the standard library's sources")
    manifest = prepare_source("stdlib", str(data), tokenizer="bytes", valid_fraction=0.03)

    _say(f"2/4 learning rate of the base model ({BASE})")
    recipe = Recipe.for_model(
        meta_model(model_config(SHAPE, manifest.vocab, BASE)),
        BASE,
        lr=LEARNING_RATES[0],
        provenance={"tuned_by": "completedp quickstart"},
    )
    tried: dict[float, Result] = {}
    for lr in LEARNING_RATES:
        tried[lr] = _train(out, f"base-lr-{lr:g}", recipe.with_values(lr=lr), BASE)
        _say(f"    lr {lr:.2e}: {_loss(tried[lr])}")
    best = min(tried, key=lambda lr: _rank(tried[lr]))
    recipe = recipe.with_values(lr=best)
    recipe.save(out / "recipe.json")

    _say(f"3/4 the same values carried to {TARGET}")
    runs = {}
    for name in ("completedp", "sp"):
        runs[name] = _train(out, f"target-{name}", recipe.with_rules(parameterisation=name), TARGET)
        _say(f"    {name}: {_loss(runs[name])}")

    _say("4/4 coordinate check")
    check = coordcheck(CHECK, measure_all(CHECK))
    print(check_text(check))
    found = {
        "learning_rates": {f"{lr:g}": result.valid_loss for lr, result in tried.items()},
        "best_lr": best,
        "base_valid_loss": tried[best].valid_loss,
        "target_valid_loss": {name: result.valid_loss for name, result in runs.items()},
        "coordcheck": {name: check.passed(name) for name in CHECK.parameterisations},
    }
    write_text_atomically(out / "result.json", json.dumps(found, indent=2) + "\n")
    page = out / "report.html"
    _report(page, out, recipe, tried, runs, check, best)
    print(_sentence(tried[best], runs))
    print(f"report: {page}")
    return found


def _train(out: Path, name: str, recipe: Recipe, scale: Scale) -> Result:
    config = TrainConfig(
        data=str(out / "data"),
        out=str(out / name),
        recipe=name,
        width=scale.width,
        depth=scale.depth,
        batch=scale.batch,
        tokens=scale.tokens,
        context=CONTEXT,
        shape=SHAPE,
        log_every=2,
        checkpoint_every=50,
    )
    return train(config, recipe=recipe)


def _loss(result: Result) -> str:
    if result.valid_loss is None:
        return f"{result.status} at step {result.steps}"
    return f"validation loss {result.valid_loss:.4f}"


def _rank(result: Result) -> float:
    return float("inf") if result.valid_loss is None else result.valid_loss


def _sentence(base: Result, runs: dict[str, Result]) -> str:
    """What happened, whichever way it went."""
    ours, plain = runs["completedp"], runs["sp"]
    better = _rank(ours) < _rank(plain)
    return (
        f"Base: {_loss(base)}. Four times wider and deeper with the same text: "
        f"{_loss(ours)} with the rules, {_loss(plain)} with the base's values as they are: "
        + ("the rules helped." if better else "the rules did not help here.")
    )


def _report(
    page: Path,
    out: Path,
    recipe: Recipe,
    tried: dict[float, Result],
    runs: dict[str, Result],
    check: CheckResult,
    best: float,
) -> None:
    from completedp.apply.plan import plan

    report = Report("completedp quickstart")
    report.paragraph(_sentence(tried[best], runs))
    report.heading("Tuned on the base model")
    report.paragraph(f"{BASE}; text: the Python standard library's sources, as bytes.")
    report.table(
        ["learning rate", "validation loss", ""],
        [[lr, r.valid_loss or r.status, "best" * (lr == best)] for lr, r in tried.items()],
    )
    report.heading("Carried to the target")
    report.paragraph(f"{TARGET}.")
    model = meta_model(model_config(SHAPE, 257, TARGET))
    report.preformatted(str(plan(model, recipe, TARGET)))
    report.heading("Training")
    folders = {"base": f"base-lr-{best:g}"} | {f"target, {n}": f"target-{n}" for n in runs}
    curves = {}
    for name, folder in folders.items():
        rows = [r for r in read_metrics(out / folder) if r.get("loss") is not None]
        curves[name] = ([r["step"] for r in rows], [r["loss"] for r in rows])
    report.figure(curves_svg(curves, "step", "training loss, nats per byte"))
    report.heading("Coordinate check")
    report.paragraph(
        "How far each tensor's own change moves its module's output in the first steps, against "
        "width and depth. With the rules it is the same at every size; without, it grows, and so "
        "the best learning rate shifts. Slopes are in the legends; dashed lines fail."
    )
    for name in CHECK.parameterisations:
        failures = check.failures(name)
        text = f"{name}: {len(failures)} of the slopes are off" if failures else f"{name}"
        report.verdict(not failures, text)
    report.figure(check_svg(check, ["own"]))
    report.write(page)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
