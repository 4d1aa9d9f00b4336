"""The main job in miniature, on a CPU in a few minutes, with one page that shows what was found.

The figure `headline` at a size of its own, on the standard library's sources: tune a tiny model's
global values, search per-module values with as many trials, let a ladder choose, carry both to a
model larger in width, depth, batch and tokens, train both there on fresh seeds, and say how many
more tokens the global values need to get as far, or that they do not. All trials are studies in a
store: the same command goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from completedp.apply.table import render
from completedp.common.files import user_path, write_json
from completedp.common.process import only_process
from completedp.common.terminal import WIDE
from completedp.evidence.figures.figure import Found
from completedp.evidence.figures.headline import GLOBAL, MODULE, UNTUNED, Headline, HeadlineSize
from completedp.evidence.figures.lab import Lab, stdlib_tokens
from completedp.evidence.figures.settings import setting
from completedp.evidence.plots import require_matplotlib
from completedp.evidence.report import Report
from completedp.evidence.reporting.recipes import recipe_part
from completedp.evidence.reporting.searches import search_part
from completedp.studies.config import WorkerConfig
from completedp.studies.store import Store
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale

SIZE = "quickstart"
STORY = HeadlineSize(
    setting=setting("cpu", width=32, depth=2, sequences=8, steps=448),
    token_exponent=0.25,
    sites=(Ratios(depth=2),),
    shared=32,
    trials=48,
    rungs=(Ratios(tokens=2),),
    rung_seeds=2,
    scales=(Ratios(), Ratios(width=2, depth=2, batch=2, tokens=3)),
    seeds=(4, 2),
    lengths=(1.5,),
    arms=(UNTUNED, GLOBAL, MODULE),
)
OPTIONS = WorkerConfig(device="cpu")


def quickstart(out: Path) -> dict[str, Any]:
    """Run it all; returns what was found, and writes it to a page."""
    require_matplotlib()
    out = user_path(out)
    story = Headline(
        claim="Untuned, global and per-module values, carried to a larger model",
        sizes={SIZE: STORY},
    )
    with only_process(out), Store(str(out / "search.db")) as store:
        _say(f"base: {STORY.setting.base}, the standard library's sources as bytes")
        _say(f"target: {_target()}")
        lab = Lab(SIZE, SIZE, store, data=stdlib_tokens(out), options=OPTIONS)
        found = story.run(SIZE, lab)
        recipe = Recipe.from_dict(found.numbers["recipes"][MODULE])
        recipe.save(out / "recipe.json")
        page = out / "report.html"
        _report(page, lab, found, recipe)
    result = {
        "sentence": sentence(found.numbers),
        "report": str(page),
        "recipe": str(out / "recipe.json"),
        **found.summary,
        "scales": found.numbers["scales"],
    }
    write_json(out / "result.json", result)
    return result


def sentence(numbers: Mapping[str, Any]) -> str:
    """What happened at the target, whichever way it went."""
    there = numbers["scales"][-1]
    means = {arm: there["means"][arm] for arm in (UNTUNED, GLOBAL, MODULE)}
    shown = {arm: "diverged" if mean is None else f"{mean:.4f}" for arm, mean in means.items()}
    text = (
        f"Loss at the target: {shown[UNTUNED]} untuned, {shown[GLOBAL]} with global values tuned "
        f"small, {shown[MODULE]} with per-module values tuned small."
    )
    if None in means.values():
        return text
    needs = {arm: _tokens(there[f"speedup_over_{arm}"]) for arm in (UNTUNED, GLOBAL)}
    if None in needs.values():
        return f"{text} Longer training did not lower the loss, so no speed-up can be told."
    text += (
        f" To match the per-module values, untuned ones would need {needs[UNTUNED]} the tokens, "
        f"global ones {needs[GLOBAL]}; brackets have what the spread of the seeds allows."
    )
    if not means[GLOBAL] > means[MODULE]:
        text += " Here, per-module values do not beat global ones."
    return text


def _tokens(speedup: Mapping[str, float | None]) -> str | None:
    """How many times the tokens, and within which bounds."""
    if speedup["speedup"] is None:
        return None
    if speedup["low"] is None:
        return f"{speedup['speedup']:.2f} times"
    upto = "or more" if speedup["high"] is None else f"to {speedup['high']:.2f}"
    return f"{speedup['speedup']:.2f} ({speedup['low']:.2f} {upto}) times"


def _target() -> Scale:
    return STORY.setting.base.times(STORY.scales[-1])


def _report(page: Path, lab: Lab, found: Found, recipe: Recipe) -> None:
    report = Report("completedp quickstart")
    report.paragraph(sentence(found.numbers), "lead")
    report.heading("From the base to the target")
    report.paragraph(
        f"Base: {STORY.setting.base}; target: {_target()}; text: the Python standard library's "
        f"sources, as bytes. Global and per-module values had {STORY.total} trials each, part of "
        f"them at {STORY.setting.base.times(STORY.sites[0])}, and the same ladder chose. "
        "Fresh seeds; the global values are also trained for longer, to see how many tokens they "
        "would need."
    )
    report.figure(found.svg)
    report.preformatted(found.text)
    for arm in (GLOBAL, MODULE):
        part = search_part(lab.store.study(arm), "search.db")
        report.heading(f"The search of {arm} values")
        report.paragraph(part.found)
        part.body(report)
    report.heading("The recipe")
    recipe_part(page.with_name("recipe.json"), recipe).body(report)
    report.heading("The plan: the recipe at the target")
    report.paragraph("Every value with its factors: completedp plan --explain NAME.")
    plan = lab.task(STORY.setting).plan(recipe, _target())
    report.preformatted(render(plan, plan.cautions, WIDE))
    report.write(page)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
