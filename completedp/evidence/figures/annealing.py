"""annealing: every non-increasing schedule in steps, as a tree whose shared beginnings are one.

A run has intervals, and in each the learning rate is at one of a few levels, never above the one
before. Schedules that begin alike are the same training up to where they part: a node of the tree
is an interval, begun from its parent's weights and moments. 4,845 schedules of 16 intervals are
20,348 interval-runs instead of 77,520. Children are trained before cousins, so that few states are
kept at a time; what has ended is noted in the store, and only the ways to what is missing are
trained again after an interruption.

The verdict is on fresh seeds: at each horizon, does the best schedule lose when it has to begin
with the best of a shorter horizon?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from completedp.evidence.figures.drawing import BLUE, GREY, canvas, finish, shades
from completedp.evidence.figures.figure import (
    Finding,
    Found,
    all_diverged,
    judged,
    mean_and_half,
)
from completedp.evidence.figures.schedules import (
    STEP_DOWN,
    AnnealingSize,
    Levels,
    count_nodes,
)
from completedp.evidence.figures.settings import setting
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab


@dataclass(frozen=True, kw_only=True)
class Annealing:
    """The figure."""

    name: str = "annealing"
    claim: str = (
        "The best learning-rate schedule of a short run is never the beginning of a longer run's"
    )
    paper: str = "Figure 7"
    see: str = "The best schedule of each horizon: is a short one the beginning of a longer one?"
    sizes: Mapping[str, AnnealingSize]

    def cost(self, size: str) -> Cost:
        """Every node of the tree once, and the contenders again."""
        at = self.sizes[size]
        steps = at.setting.base.steps // at.intervals
        nodes = count_nodes(at.levels, at.intervals)
        again = 2 * at.seeds * sum(at.horizons)
        runs = (nodes + again) / at.intervals
        whole = at.setting.cost(at.setting.base, runs)
        return replace(
            whole, trials=nodes, steps=(nodes + again) * steps, seconds_besides=0.004 * nodes
        )

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        from completedp.evidence.figures.tree import Tree

        at = self.sizes[size]
        tree = Tree(lab, at)
        losses = tree.grown()
        if not any(map(math.isfinite, losses.values())):
            raise all_diverged(self.name, len(losses))
        fresh = tree.confirmed(contenders(losses, at.horizons))
        return self.judge(at, losses, fresh)

    def judge(
        self, at: AnnealingSize, losses: Mapping[Levels, float], fresh: Mapping[Levels, list[float]]
    ) -> Found:
        """The verdict on the tree's losses and on those of fresh seeds."""
        best = {horizon: best_at(losses, horizon) for horizon in at.horizons}
        findings: list[Finding] = []
        pairs = []
        for short, long in pairwise(at.horizons):
            tied = best_at(losses, long, best[short])
            lost = differences(fresh, tied, best[long])
            pairs.append(
                {"short": short, "long": long, "continued": list(tied), "differences": lost}
            )
            findings.append(_finding(short, long, tied == best[long], lost))
        numbers = {
            "schedules": sum(len(levels) == at.intervals for levels in losses),
            "interval_runs": len(losses),
            "best": {
                str(horizon): {"levels": list(levels), "loss": losses[levels]}
                for horizon, levels in best.items()
            },
            "pairs": pairs,
        }
        return Found(
            findings=findings,
            numbers=numbers,
            raw={
                "nodes": {
                    "".join(map(str, levels)): None if math.isinf(loss) else round(loss, 5)
                    for levels, loss in losses.items()
                },
                "fresh": {"".join(map(str, levels)): values for levels, values in fresh.items()},
            },
            text=_table(at, best, losses, pairs),
            svg=_draw(self.claim, at, best, losses),
        )


def _finding(short: int, long: int, same: bool, lost: Sequence[float]) -> Finding:
    claim = f"{long} intervals: having to begin with the best of {short} costs more than nothing"
    if same:
        return judged(claim, 0.0, (0.0, 0.0), unit="nats", at_least=1e-9)
    mean, half = mean_and_half(lost)
    return judged(claim, mean, (mean - half, mean + half), unit="nats", at_least=0.0)


def best_at(losses: Mapping[Levels, float], horizon: int, begins: Levels = ()) -> Levels:
    """The best schedule of a length, of those that begin in a given way."""
    there = [
        levels for levels in losses if len(levels) == horizon and levels[: len(begins)] == begins
    ]
    return min(there, key=lambda levels: (losses[levels], levels))


def contenders(losses: Mapping[Levels, float], horizons: Sequence[int]) -> list[Levels]:
    """What the verdict compares: each horizon's best, and the best that begins with the last's."""
    found = []
    for short, long in pairwise(horizons):
        found += [best_at(losses, long), best_at(losses, long, best_at(losses, short))]
    return list(dict.fromkeys(found))


def differences(fresh: Mapping[Levels, Sequence[float]], one: Levels, other: Levels) -> list[float]:
    """By how much one schedule ends above another, seed by seed."""
    return [a - b for a, b in zip(fresh[one], fresh[other], strict=True)]


def _table(
    at: AnnealingSize,
    best: Mapping[int, Levels],
    losses: Mapping[Levels, float],
    pairs: Sequence[Mapping[str, Any]],
) -> str:
    schedules = sum(len(levels) == at.intervals for levels in losses)
    out = [
        f"{schedules:,} schedules as {len(losses):,} interval-runs; levels from 0, the highest "
        f"rate, each {STEP_DOWN} times below the last",
        f"{'intervals':>9}  {'best schedule':<{at.intervals}} {'loss':>8}",
    ]
    for horizon, levels in best.items():
        shown = "".join(map(str, levels))
        out.append(f"{horizon:>9}  {shown:<{at.intervals}} {losses[levels]:>8.4f}")
    for pair in pairs:
        shown = "".join(map(str, pair["continued"]))
        out.append(f"begun as the best of {pair['short']}, the best of {pair['long']} is {shown}")
    return "\n".join(out)


def _draw(
    claim: str,
    at: AnnealingSize,
    best: Mapping[int, Levels],
    losses: Mapping[Levels, float],
) -> str:
    base = at.setting.base
    below = (
        f"All {count_nodes(at.levels, at.intervals):,} beginnings of non-increasing schedules over "
        f"{at.levels} levels and {at.intervals} intervals of {base.steps // at.intervals} steps; "
        f"width {base.width}, depth {base.depth}. Left: the best of each horizon; right: how the "
        "schedules of each horizon are spread above its best."
    )
    peak = math.log2(at.setting.values["lr"])
    with canvas(1, 2, claim, below, panel=(5.2, 3.6)) as (figure, grid):
        left, right = grid[0]
        colours = shades(BLUE, len(best))
        for index, (colour, (horizon, levels)) in enumerate(
            zip(colours, best.items(), strict=True)
        ):
            rates = [peak - level * math.log2(STEP_DOWN) for level in levels]
            shift = 0.05 * (index - len(best) / 2)  # schedules lie on each other otherwise
            heights = [rate + shift for rate in rates]
            left.stairs(
                heights,
                range(horizon + 1),
                baseline=None,
                color=colour,
                linewidth=2.2,
                label=f"{horizon}: loss {losses[levels]:.3f}",
            )
            left.plot(horizon, heights[-1], "o", color=colour, markersize=5)
        left.set_xlabel("interval")
        rates = [at.setting.values["lr"] * STEP_DOWN**-level for level in range(at.levels)]
        left.set_yticks([math.log2(rate) for rate in rates], [f"{rate:.2g}" for rate in rates])
        left.fmt_ydata = lambda octave: f"{2**octave:.2g}"
        left.set_ylim(math.log2(rates[-1]) - 0.5, math.log2(rates[0]) + 0.5)
        left.set_ylabel("learning rate")
        left.set_title("the best schedule of each horizon", loc="left")
        left.legend(title="intervals", loc="lower left")
        for colour, horizon in zip(colours, best, strict=True):
            here = sorted(
                loss
                for levels, loss in losses.items()
                if len(levels) == horizon and math.isfinite(loss)
            )
            above = [max(loss - here[0], 1e-4) for loss in here]
            right.plot(
                [(i + 1) / len(above) for i in range(len(above))],
                above,
                color=colour,
                label=f"{horizon}",
                linewidth=1.6,
            )
        right.axhline(0.01, color=GREY, linewidth=0.8, linestyle="--")
        right.set_yscale("log")
        right.set_xlabel("part of the schedules, best first")
        right.set_ylabel("nats above the best")
        right.set_title("how much the schedule matters", loc="left")
        right.legend(title="intervals", ncols=2)
        return finish(figure)


FIGURE = Annealing(
    sizes={
        "tiny": AnnealingSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=16),
            levels=2,
            intervals=4,
            horizons=(2, 4),
            seeds=2,
        ),
        "cpu": AnnealingSize(
            setting=setting(
                "cpu", width=32, depth=2, sequences=4, steps=400, changed={"lr": 2.0**-5}
            ),
            levels=4,
            intervals=8,
            horizons=(2, 4, 6, 8),
            seeds=4,
        ),
        "gpu": AnnealingSize(
            setting=setting(
                "gpu", width=64, depth=4, sequences=8, steps=3072, changed={"lr": 2.0**-6}
            ),
            levels=5,
            intervals=16,
            horizons=(2, 4, 8, 12, 16),
            seeds=8,
        ),
        "paper": AnnealingSize(
            # As wide and deep as the paper's GPT-2 of 121M weights, whose embedding is tied; 16
            # intervals of 77M tokens.
            setting=setting(
                "paper", width=768, depth=12, sequences=128, steps=9408, changed={"lr": 0.0015}
            ),
            levels=5,
            intervals=16,
            horizons=(2, 4, 8, 12, 16),
            seeds=3,
        ),
    }
)
