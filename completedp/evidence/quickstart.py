"""The main job in miniature, on a CPU in a few minutes, with one page that shows what was found.

On the standard library's own sources: tune a tiny model's global values, search per-module values
from there, carry both to a model larger in width, depth, batch and tokens, train both there, and
say how many more tokens the global values need to get as far, or that they do not. The searches are
studies in a store and the rest is written down stage by stage: the same command goes on where it
stopped.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.common.files import read_json, write_text_atomically
from completedp.common.progress import Reporter
from completedp.evidence.plots import curves_svg, require_matplotlib, search_svg
from completedp.evidence.report import Report
from completedp.lm.prepare import prepare_source
from completedp.lm.shape import Shape
from completedp.studies.config import REACH, WorkerConfig
from completedp.studies.objective import Objective, search_spec
from completedp.studies.registry import DEFAULT_ENGINE
from completedp.studies.run import best, open_study
from completedp.studies.session import work_shown
from completedp.studies.store import Store, Study
from completedp.tasks.task import Task, make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.runner import Runner

SHAPE = Shape(head_dim=16)
CONTEXT = 64
BASE = Scale(width=64, depth=2, batch=512, tokens=200 * 512)
TARGET = Scale(width=128, depth=4, batch=1024, tokens=2 * BASE.tokens)
LONGER = replace(TARGET, tokens=TARGET.tokens * 3 // 2)
"""What the global values are trained for besides, to see how many tokens they would need."""
TRIALS = {"global": 64, "kronecker": 80}
CONFIRM_SEEDS, TARGET_SEEDS = 3, 2
OPTIONS = WorkerConfig(device="cpu")
SMOOTHED_OVER = 10
"""Steps, where curves are drawn."""


def quickstart(out: Path) -> dict[str, Any]:
    """Run it all; returns what was found, and writes it to a page."""
    require_matplotlib()
    data = str(out / "data")
    _say("1/4 tokens from the standard library's sources")
    prepare_source("stdlib", data, tokenizer="bytes", valid_fraction=0.03)
    task = make_task(None, data, context=CONTEXT, shape=SHAPE)
    usual = task.recipe(
        BASE, lr=2.0**-7.5, init_std=0.05, provenance={"tuned_by": "completedp quickstart"}
    )
    with Store(str(out / "search.db")) as store:
        _say(f"2/4 global values of the base model ({BASE})")
        tuned = _search(store, out, task, usual, "global")
        _say("3/4 per-module values, from there")
        modules = _search(store, out, task, tuned, "kronecker")
        _say(f"4/4 both carried to {TARGET}")
        runs = _at_target(out, task, tuned, modules)
        studies = {name: store.study(name) for name in TRIALS}
        confirmed = {name: study.get_note("best") or {} for name, study in studies.items()}
        page = out / "report.html"
        _report(page, task, studies, confirmed, tuned, modules, runs)
    found = {
        "sentence": sentence(runs),
        "report": str(page),
        "speedup": speedup(runs),
        "target": {name: {"tokens": r["tokens"], "valid": r["valid"]} for name, r in runs.items()},
        "confirmed": confirmed,
    }
    write_text_atomically(out / "result.json", json.dumps(found, indent=2) + "\n")
    return found


def speedup(runs: Mapping[str, Mapping[str, Any]]) -> float | None:
    """How many times the tokens the global values need to reach the per-module loss.

    On the line, in the logarithm of tokens, through their losses at two lengths; None where they
    do not get there on it.
    """
    modules, short, long = (
        _mean(runs[name]["valid"]) for name in ("per module", "global", "global, longer")
    )
    fall = short - long
    if not all(map(math.isfinite, (modules, short, long))) or not fall > 0:
        return None
    ratio = LONGER.tokens / TARGET.tokens
    return float(ratio ** ((short - modules) / fall))


def _search(store: Store, out: Path, task: Task, start: Recipe, space: str) -> Recipe:
    """Search a space from a recipe; returns what is best on fresh seeds, and writes it."""
    path = out / f"recipe-{space}.json"
    spec = search_spec(
        task,
        start,
        trials=TRIALS[space],
        space=space,
        tunables=None,
        reach=REACH,
        targets=[TARGET],
        engine=DEFAULT_ENGINE,
        seed=0,
        stop_early=False,
    )
    study = open_study(store, space, spec)
    objective = Objective(spec, task, OPTIONS)
    work_shown(study, objective, title="    search")
    if study.get_note("best") is None or not path.exists():
        found = best(study, objective, seeds=CONFIRM_SEEDS)
        found.recipe.save(path)
        _say("    " + found.lines().replace("\n", "\n    "))
    return Recipe.load(path)


def _at_target(out: Path, task: Task, tuned: Recipe, modules: Recipe) -> dict[str, dict[str, Any]]:
    """Both recipes at the target, the global one also for longer: losses by run and seed."""
    path = out / "target.json"
    if path.exists():
        return read_json(path, "target")
    runner = Runner(task, device=OPTIONS.device)
    wanted = {
        "per module": (modules, TARGET),
        "global": (tuned, TARGET),
        "global, longer": (tuned, LONGER),
    }
    trials = [
        runner.trial(recipe, scale, seed, name)
        for name, (recipe, scale) in wanted.items()
        for seed in range(TARGET_SEEDS)
    ]
    runs: dict[str, dict[str, Any]] = {
        name: {"tokens": scale.tokens, "valid": [], "curves": []}
        for name, (_, scale) in wanted.items()
    }
    total, done = sum(trial.steps for trial in trials), 0
    with Reporter("    trial-steps", total) as reporter:

        def progress(steps: int) -> None:
            nonlocal done
            done += steps
            reporter.update(done, lambda: "")

        for outcome in runner.run(trials, LONGER, count=len(trials), progress=progress):
            run = runs[outcome.key]
            run["valid"].append(outcome.valid_loss)
            run["curves"].append([round(x, 4) for x in outcome.losses])
    write_text_atomically(path, json.dumps(runs) + "\n")
    return runs


def sentence(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """What happened, whichever way it went."""
    modules, tuned = _mean(runs["per module"]["valid"]), _mean(runs["global"]["valid"])
    gain, times = tuned - modules, speedup(runs)
    text = f"At the target: {modules:.4f} with per-module values, {tuned:.4f} with global ones"
    if not math.isfinite(tuned):
        return f"{text}: the global values diverge there."
    if not gain > 0:
        return f"{text}: the per-module values did not help there."
    ratio = LONGER.tokens / TARGET.tokens
    if times is None:
        needed = f"which {ratio:g} times the tokens did not bring the global ones any nearer to"
    elif times > ratio**2:
        needed = f"for which the global ones would need over {ratio**2:.1f} times the tokens"
    else:
        needed = f"for which the global ones would need {times:.2f} times the tokens"
    return f"{text}: better by {gain:.4f}, {needed}."


def _report(
    page: Path,
    task: Task,
    studies: Mapping[str, Study],
    confirmed: Mapping[str, Mapping[str, Any]],
    tuned: Recipe,
    modules: Recipe,
    runs: Mapping[str, Mapping[str, Any]],
) -> None:
    report = Report("completedp quickstart")
    report.paragraph(sentence(runs))
    report.heading("The searches")
    report.paragraph(
        f"Base: {BASE}; text: the Python standard library's sources, as bytes. A dot is a trial, "
        "the line the best so far. Trials that were stopped early are not drawn."
    )
    report.figure(search_svg({f"{name} values": study.trials() for name, study in studies.items()}))
    report.paragraph(
        "The best trial of a search is partly the luckiest. What counts is the loss on fresh seeds:"
    )
    rows = []
    for name, note in confirmed.items():
        for standing in note["rungs"][0]["standings"]:
            chosen = "chosen" if standing["candidate"] == note["chosen"] else ""
            rows.append([name, standing["candidate"], _mean(standing["losses"]), chosen])
    report.table(["search", "candidate", "validation loss", ""], rows)
    report.heading("Carried to the target")
    ratio = LONGER.tokens / TARGET.tokens
    report.paragraph(
        f"{TARGET}: each twice the base. The global values are also trained "
        f"on {ratio:g} times the tokens, to see how many they would need."
    )
    report.table(
        ["values", "tokens", "validation loss", "seeds"],
        [[name, r["tokens"], _mean(r["valid"]), len(r["valid"])] for name, r in runs.items()],
    )
    curves = {}
    for name, run in runs.items():
        smooth = smoothed(run["curves"])
        tokens = (np.arange(len(smooth)) + SMOOTHED_OVER) * TARGET.batch
        curves[name] = (tokens.tolist(), smooth)
    report.figure(curves_svg(curves, "tokens", "training loss, nats per byte"))
    report.heading("The recipe, at the target")
    report.paragraph("recipe-kronecker.json; every value with its factors: completedp plan.")
    report.preformatted(str(task.plan(modules, TARGET)))
    report.paragraph(f"The global values it started from: {tuned.values}.")
    report.write(page)


def smoothed(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean curve over some steps at a time, to where the first of them diverged."""
    common = min(map(len, curves))
    if common < SMOOTHED_OVER:
        return []
    mean = np.mean([curve[:common] for curve in curves], axis=0)
    return np.convolve(mean, np.ones(SMOOTHED_OVER) / SMOOTHED_OVER, mode="valid").tolist()


def _mean(losses: Sequence[float | None]) -> float:
    return float(np.mean([math.inf if loss is None else loss for loss in losses]))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
