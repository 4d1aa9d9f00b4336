"""search-curves: how fast searches get better, by trials and by time on the device.

Learning rates of a small model by module type and depth are searched by several engines from the
same start, and in narrower and wider spaces from where the first of them ended:

    ours        kronecker, by the default engine
    paper       kronecker, by the paper's trust region
    cma-es      kronecker, by the paper's asynchronous CMA-ES
    type        without depth, from the projection of ours
    full        every module of every layer, from ours

What a search would recommend after so many trials is trained on seeds that it never saw: the best
trial so far is partly the luckiest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    RED,
    VIOLET,
    canvas,
    finish,
)
from completedp.evidence.figures.figure import (
    Finding,
    Found,
    Setting,
    judged,
    mean_and_half,
    standard_error,
)
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import tuned
from completedp.studies.cells import Wanted
from completedp.studies.space import project
from completedp.studies.spec import Site
from completedp.theory.recipe import Recipe
from completedp.theory.rules import Rules
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import FinishedSearch, Lab

_FRESH = 1_000_000
"""The first seed of those that nothing was chosen by."""
_PARTS = 8
"""Places on a curve."""
OURS, THEIRS, CMA, TYPE, FULL = "ours", "paper", "cma-es", "type", "full"
ENGINES = {OURS: "recombine", THEIRS: "trust-region", CMA: "cma-es"}
COLOURS = {OURS: BLUE, THEIRS: RED, CMA: AMBER, TYPE: GREEN, FULL: VIOLET}
LABELS = {
    OURS: "kronecker, ours",
    THEIRS: "kronecker, the paper's trust region",
    CMA: "kronecker, CMA-ES",
    TYPE: "type only, from ours",
    FULL: "fully uncoupled, from ours",
}
NEAR = 0.01
"""Nats within which two searches have ended at the same place."""


@dataclass(frozen=True, kw_only=True)
class CurvesSize:
    """Searches at one base."""

    setting: Setting
    over: Range
    """Where the global learning rate that all start from is tuned."""
    trials: int
    """Of each search."""
    seeds: int
    """Fresh ones, at every place of a curve."""
    tunables: tuple[str, ...] = ("lr",)

    @property
    def places(self) -> list[int]:
        """After how many trials what is recommended is measured."""
        return sorted({max(1, round(self.trials * i / _PARTS)) for i in range(1, _PARTS + 1)})


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place on a curve."""

    trials: int
    """Of this search, and of that which it goes on from."""
    seconds: float
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over fresh seeds; infinite where one diverged."""
        return float(np.mean(self.losses))


@dataclass(frozen=True, kw_only=True)
class SearchCurves:
    """The figure."""

    name: str = "search-curves"
    claim: str = (
        "Local random search finds good learning rates by module type and depth, and uncoupling "
        "them further, or CMA-ES, finds no better ones"
    )
    paper: str = "Figures 16 and 17"
    see: str = (
        "Lower is better: the loss on fresh seeds of what each search would recommend after so "
        "many trials, and after so much time on the device."
    )
    sizes: Mapping[str, CurvesSize]

    def cost(self, size: str) -> Cost:
        """Every search, and the places of every curve."""
        at = self.sizes[size]
        arms = len(LABELS)
        trials = at.over.trials + arms * at.trials + (1 + arms * _PARTS) * at.seeds
        return at.setting.cost(at.setting.base, trials)

    def run(self, size: str, lab: Lab) -> Found:
        """Search, measure on fresh seeds, judge, draw."""
        at = self.sizes[size]
        task, start = tuned(lab, at.setting, at.over)

        def search(arm: str, begin: Recipe, space: str, engine: str) -> FinishedSearch:
            return lab.search(
                arm,
                task,
                begin,
                space=space,
                tunables=at.tunables,
                trials=at.trials,
                engine=engine,
            )

        engines = dict(ENGINES)
        if find_spec("cmaes") is None:
            del engines[CMA]
        searches = {arm: search(arm, start, "kronecker", name) for arm, name in engines.items()}
        middle = searches[OURS].recommended_after(at.trials)
        flat = project(middle.hyperparameters, task.types(at.setting.base), middle.rules)
        narrow = replace(middle, hyperparameters=flat)
        searches[TYPE] = search(TYPE, narrow, "type", ENGINES[OURS])
        searches[FULL] = search(FULL, middle, "full", ENGINES[OURS])
        lab.check_stable()
        return self.judge(at, *self._measured(lab, at, start, searches))

    def _measured(
        self,
        lab: Lab,
        at: CurvesSize,
        start: Recipe,
        searches: Mapping[str, FinishedSearch],
    ) -> tuple[tuple[float, ...], dict[str, list[Place]]]:
        """The start's losses and every curve, on the same fresh seeds."""
        recipes = {
            (arm, count): each.recommended_after(count)
            for arm, each in searches.items()
            for count in at.places
        }
        every = (start, *recipes.values())
        names = sorted(set().union(*(recipe.hyperparameters.log2 for recipe in every)))
        zero = start.hyperparameters.vector(names)
        task = lab.task(at.setting)
        study = lab.listed("on fresh seeds", task, start, names)
        site = Site(scale=at.setting.base, rules=Rules())
        wanted = {
            (key, seed): Wanted(
                site=site,
                octaves=tuple((recipe.hyperparameters.vector(names) - zero).tolist()),
                seed=_FRESH + seed,
            )
            for key, recipe in {("start", 0): start, **recipes}.items()
            for seed in range(at.seeds)
        }
        losses: dict[tuple[str, int], list[float]] = {}
        for (key, _), ended in study.trained(wanted).items():
            losses.setdefault(key, []).append(ended.loss)
        before = at.trials, searches[OURS].seconds_after(at.trials)
        curves = {
            arm: [
                Place(
                    trials=count + (before[0] if arm in (TYPE, FULL) else 0),
                    seconds=each.seconds_after(count) + (before[1] if arm in (TYPE, FULL) else 0.0),
                    losses=tuple(losses[arm, count]),
                )
                for count in at.places
            ]
            for arm, each in searches.items()
        }
        return tuple(losses["start", 0]), curves

    def judge(
        self,
        at: CurvesSize,
        start: Sequence[float],
        curves: Mapping[str, Sequence[Place]],
    ) -> Found:
        """Where each search ended, against the others, seed by seed."""
        ends = {arm: places[-1].losses for arm, places in curves.items()}
        findings = [
            _compared("ours ends below the global learning rate", start, ends[OURS]),
            _compared(
                f"ours ends no more than {NEAR:g} nats above the paper's trust region",
                ends[THEIRS],
                ends[OURS],
                at_least=-NEAR,
            ),
        ]
        if CMA in ends:
            claim = "the paper's trust region ends below CMA-ES"
            findings.append(_compared(claim, ends[CMA], ends[THEIRS]))
        findings += [
            _compared(
                f"uncoupling every layer gains no more than {NEAR:g} nats over kronecker",
                ends[OURS],
                ends[FULL],
                at_least=-math.inf,
                at_most=NEAR,
            ),
            _compared("multipliers without depth end above kronecker", ends[TYPE], ends[OURS]),
        ]
        left_out = [] if CMA in curves else [f"{LABELS[CMA]}: the package cmaes is not installed"]
        rows = [
            {
                "search": LABELS[arm],
                "trials": place.trials,
                "seconds": round(place.seconds, 2),
                "loss": place.mean if math.isfinite(place.mean) else None,
                "losses": [x if math.isfinite(x) else None for x in place.losses],
            }
            for arm, places in curves.items()
            for place in places
        ]
        numbers = {
            "start": [x if math.isfinite(x) else None for x in start],
            "left out": left_out,
            "ends": [row for row in rows if row["trials"] == _last(rows, row["search"])],
        }
        return Found(
            findings=findings,
            numbers=numbers,
            raw={"start": numbers["start"], "left out": left_out, "curves": rows},
            text=_table(start, curves, left_out),
            svg=_draw(self.claim, at, start, curves, left_out),
        )


def _compared(
    claim: str,
    above: Sequence[float],
    below: Sequence[float],
    *,
    at_least: float = 0.0,
    at_most: float = math.inf,
) -> Finding:
    """By how much the second is lower than the first, on the same seeds."""
    pairs = [a - b for a, b in zip(above, below, strict=True)]
    if not all(map(math.isfinite, pairs)):
        return judged(claim, None, None, unit="nats")
    gain, half = mean_and_half(pairs)
    return judged(
        claim,
        gain,
        (gain - half, gain + half),
        unit="nats",
        at_least=at_least,
        at_most=at_most,
    )


def _last(rows: Sequence[Mapping[str, Any]], search: str) -> int:
    return max(row["trials"] for row in rows if row["search"] == search)


def _table(
    start: Sequence[float], curves: Mapping[str, Sequence[Place]], left_out: Sequence[str]
) -> str:
    out = [f"{'':<36} {'trials':>7} {'seconds':>9} {'loss on fresh seeds':>20}"]
    out.append(f"{'the global learning rate':<36} {'':>7} {'':>9} {float(np.mean(start)):>20.4f}")
    for arm, places in curves.items():
        for place in (places[0], places[len(places) // 2], places[-1]):
            out.append(
                f"{LABELS[arm]:<36} {place.trials:>7} {place.seconds:>9.1f} {place.mean:>20.4f}"
            )
    return "\n".join([*out, *(f"left out: {each}" for each in left_out)])


def _draw(
    claim: str,
    at: CurvesSize,
    start: Sequence[float],
    curves: Mapping[str, Sequence[Place]],
    left_out: Sequence[str],
) -> str:
    below = (
        f"Base: {at.setting.base}. What each search recommends after so many trials, on {at.seeds} "
        "fresh seeds, bars of one standard error; dotted: the global learning rate they start from."
    )
    below += "".join(f" Left out: {each}." for each in left_out)
    with canvas(1, 2, claim, below, panel=(4.8, 3.6)) as (figure, grid):
        for panel, key, label in (
            (grid[0][0], "trials", "trials"),
            (grid[0][1], "seconds", "seconds on the device"),
        ):
            for arm, places in curves.items():
                shown = [place for place in places if math.isfinite(place.mean)]
                panel.errorbar(
                    [getattr(place, key) for place in shown],
                    [place.mean for place in shown],
                    yerr=[standard_error(place.losses) for place in shown],
                    color=COLOURS[arm],
                    marker="o",
                    markersize=3.5,
                    capsize=2,
                    label=LABELS[arm],
                )
            panel.axhline(float(np.mean(start)), color=GREY, linestyle=":")
            panel.set_xlabel(label)
            panel.set_ylabel("validation loss")
            panel.set_title(f"against {label}", loc="left")
        names = grid[0][0].get_legend_handles_labels()
        figure.legend(*names, loc="outside lower right", ncols=3)
        return finish(figure)


FIGURE = SearchCurves(
    sizes={
        "tiny": CurvesSize(
            setting=setting("tiny", width=16, depth=2, sequences=2, steps=10),
            over=Range(octaves=planned_octaves(-2, 4, 2), seeds=2, reach=6),
            trials=4,
            seeds=2,
        ),
        "cpu": CurvesSize(
            setting=setting("cpu", width=32, depth=2, sequences=4, steps=150),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            trials=96,
            seeds=4,
        ),
        "gpu": CurvesSize(
            setting=setting("gpu", width=64, depth=4, sequences=16, steps=512),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            trials=512,
            seeds=4,
        ),
        "paper": CurvesSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            trials=5000,
            seeds=3,
        ),
    }
)
