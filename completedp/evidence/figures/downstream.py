"""downstream: answers to questions, of models trained with global and with per-module values.

The global learning rate is tuned at the base and learning rates by module type and depth are
searched from there, as in module-transfer. Both are carried to a larger model, which is trained
with several seeds and judged by lm-evaluation-harness (harness.py): on passages of the held-out
text and their continuations, and at the paper's size on tasks that the harness gets from the
network.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.common.errors import ScaleWarning
from completedp.common.extras import import_extra
from completedp.common.files import read_json, write_text_atomically
from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import BLUE, GREY, INK, RED, canvas, finish
from completedp.evidence.figures.figure import Finding, Found, Setting, judged, mean_and_half
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import tuned
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab

GLOBAL, MODULE = "global", "module"
COLOURS = {GLOBAL: RED, MODULE: BLUE}
CONTINUATIONS = "continuations"
_FRESH = 1_000_000
"""The first seed of those that nothing was chosen by."""
_STEP = {"tiny": 0.005, "cpu": 0.005, "gpu": 0.015, "paper": 0.0}
"""Seconds that a step of one run at a time takes longer than in slots."""


@dataclass(frozen=True, kw_only=True)
class DownstreamSize:
    """A search at the base, the large model, and what it is asked."""

    setting: Setting
    over: Range
    """Where the global learning rate is tuned."""
    trials: int
    """Of the search."""
    target: Ratios
    seeds: int
    items: int
    """Questions of `continuations`."""
    tasks: tuple[str, ...] = (CONTINUATIONS,)

    @property
    def scale(self) -> Scale:
        """The large model's."""
        return self.setting.base.times(self.target)


@dataclass(frozen=True, kw_only=True)
class Downstream:
    """The figure."""

    name: str = "downstream"
    claim: str = "Per-module values make the model better at tasks, and not at its loss alone"
    paper: str = "Figures 9 and 10"
    see: str = "The share of right answers with global and with per-module values, by task."
    sizes: Mapping[str, DownstreamSize]

    def cost(self, size: str) -> Cost:
        """The search, in slots; the runs at the target, one at a time."""
        at = self.sizes[size]
        total = at.setting.cost(at.setting.base, at.over.trials + at.trials + 3 * at.seeds)
        runs = len(COLOURS) * at.seeds
        seconds = runs * (at.scale.steps * _STEP[size] + at.items * len(at.tasks) * 0.02)
        return total + at.setting.cost(at.scale, runs) + Cost(seconds_besides=seconds)

    def run(self, size: str, lab: Lab) -> Found:
        """Search, train, ask, judge, draw."""
        import_extra("lm_eval", self.name)  # before hours of training, not after
        at = self.sizes[size]
        task, start = tuned(lab, at.setting, at.over)
        module = lab.rates_by_module(task, start, trials=at.trials, seeds=at.seeds)
        plain = replace(module, evidence=None)
        return self.judge(at, *_asked(lab, at, {GLOBAL: start, MODULE: plain}))

    def judge(
        self,
        at: DownstreamSize,
        losses: Mapping[str, Sequence[float | None]],
        answers: Mapping[str, Mapping[str, Sequence[float]]],
    ) -> Found:
        """The difference in right answers by task, seed by seed; None where a run diverged."""
        findings = []
        rows: list[dict[str, Any]] = []
        for task in at.tasks:
            findings.append(_finding(at, task, answers[GLOBAL][task], answers[MODULE][task]))
            rows += [
                {
                    "task": task,
                    "values": arm,
                    "right": float(np.mean(answers[arm][task])) if answers[arm][task] else None,
                    "by seed": list(answers[arm][task]),
                }
                for arm in COLOURS
            ]
        ends = {arm: list(losses[arm]) for arm in COLOURS}
        numbers = {"losses": ends, "tasks": rows}
        return Found(
            findings=findings,
            numbers=numbers,
            raw=numbers,
            text=_table(rows, losses),
            svg=_draw(self.claim, at, answers),
        )


def _asked(
    lab: Lab, at: DownstreamSize, recipes: Mapping[str, Recipe]
) -> tuple[dict[str, list[float | None]], dict[str, dict[str, list[float]]]]:
    """Validation losses and right answers, of every run; runs resume in their own folders."""
    from completedp.evidence.harness import (
        Scorer,
        continuation_items,
        judge_model,
        tokenizer_of,
        trained_model,
    )
    from completedp.training.config import TrainConfig
    from completedp.training.devices import choose_device
    from completedp.training.loop import train

    task, scale = lab.task(at.setting), at.scale
    tokenizer = tokenizer_of(task.data.name)
    items = continuation_items(task.data, tokenizer, at.items)
    device = str(choose_device(lab.options.device))
    losses: dict[str, list[float | None]] = {arm: [] for arm in recipes}
    answers: dict[str, dict[str, list[float]]] = {
        arm: {name: [] for name in at.tasks} for arm in recipes
    }
    for arm, recipe in recipes.items():
        for seed in range(at.seeds):
            folder = lab.folder / f"{lab.name}-{lab.size}" / f"{arm}-{seed}"
            sizes: dict[str, Any] = scale.to_dict()
            config = TrainConfig(
                data=task.data.name,
                out=str(folder),
                model=lab.model,
                loss=lab.loss,
                override=tuple(f"{name}={kind}" for name, kind in lab.overrides.items()),
                context=task.data.unit,
                eval_sequences=task.eval_examples,
                seed=_FRESH + seed,
                noise_every=0,
                checkpoint_every=max(1, scale.steps // 2),
                device=lab.options.device,
                **sizes,
            )
            with warnings.catch_warnings():  # that the base is small is what a size says
                warnings.simplefilter("ignore", ScaleWarning)
                result = train(config, task=task, recipe=recipe, quiet=lab.quiet)
            losses[arm].append(result.valid_loss)
            if result.status != "ok":
                continue
            kept = folder / "answers.json"
            if not kept.exists():
                model = trained_model(task, recipe, scale, folder, device)
                scorer = Scorer(model, tokenizer, task.data.unit)
                found = judge_model(scorer, at.tasks, items)
                write_text_atomically(kept, json.dumps(found))
            for name, right in read_json(kept, "note of answers").items():
                answers[arm][name].append(right)
    return losses, answers


def _finding(
    at: DownstreamSize, task: str, without: Sequence[float], with_them: Sequence[float]
) -> Finding:
    claim = f"{task}: more right answers with per-module values"
    if len(without) < at.seeds or len(with_them) < at.seeds:
        return judged(f"{claim} (a run diverged)", None, None)
    pairs = [100 * (b - a) for a, b in zip(without, with_them, strict=True)]
    gain, half = mean_and_half(pairs)
    return judged(claim, gain, (gain - half, gain + half), unit="percent", at_least=0.0)


def _table(rows: Sequence[Mapping[str, Any]], losses: Mapping[str, Sequence[float | None]]) -> str:
    out = [f"{'task':<20} {'values':<8} {'right':>8}"]
    for row in rows:
        right = "diverged" if row["right"] is None else f"{100 * row['right']:.1f} %"
        out.append(f"{row['task']:<20} {row['values']:<8} {right:>8}")
    for arm, values in losses.items():
        shown = ", ".join("diverged" if x is None else f"{x:.4f}" for x in values)
        out.append(f"{'validation loss':<20} {arm:<8} {shown}")
    return "\n".join(out)


def _draw(
    claim: str, at: DownstreamSize, answers: Mapping[str, Mapping[str, Sequence[float]]]
) -> str:
    below = (
        f"{at.scale}, values tuned at {at.setting.base}; {at.seeds} seeds, a dot each, bars their "
        f"means. {CONTINUATIONS}: which of four passages of the held-out text goes on from this "
        "one; dashed is guessing."
    )
    wide = max(4.4, 1.6 * len(at.tasks))
    with canvas(1, 1, claim, below, panel=(wide, 3.4)) as (figure, grid):
        panel = grid[0][0]
        for shift, (arm, colour) in zip((-0.2, 0.2), COLOURS.items(), strict=True):
            for i, task in enumerate(at.tasks):
                right = [100 * x for x in answers[arm][task]]
                if right:
                    label = f"{arm} values" if i == 0 else None
                    panel.bar(i + shift, np.mean(right), 0.36, color=colour, alpha=0.6, label=label)
                    panel.plot([i + shift] * len(right), right, "o", color=INK, markersize=3)
        if CONTINUATIONS in at.tasks:
            place = at.tasks.index(CONTINUATIONS)
            panel.plot([place - 0.45, place + 0.45], [25, 25], "--", color=GREY)
        panel.set_xticks(range(len(at.tasks)), at.tasks)
        panel.fmt_xdata = lambda place: at.tasks[round(place)]
        panel.set_ylabel("right answers, percent")
        panel.legend()
        return finish(figure)


_HARNESS = ("hellaswag", "arc_easy", "piqa", "winogrande")

FIGURE = Downstream(
    sizes={
        "tiny": DownstreamSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=10),
            over=Range(octaves=planned_octaves(-2, 4, 2), seeds=2, reach=6),
            trials=3,
            target=Ratios(width=2.0),
            seeds=2,
            items=6,
        ),
        "cpu": DownstreamSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=200),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            trials=96,
            target=Ratios(width=2.0, tokens=2.0),
            seeds=3,
            items=200,
        ),
        "gpu": DownstreamSize(
            setting=setting("gpu", width=64, depth=4, sequences=16, steps=1024),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            trials=384,
            target=Ratios(width=4.0, tokens=2.0),
            seeds=3,
            items=1000,
        ),
        "paper": DownstreamSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            trials=5000,
            target=Ratios(width=3.0, depth=4.0, tokens=16.0),
            seeds=3,
            items=2000,
            tasks=(CONTINUATIONS, *_HARNESS),
        ),
    }
)
