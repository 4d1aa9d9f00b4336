"""base-size: the loss of a large model with the learning rate that is best for each smaller one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from completedp.evidence.figures.bowl import Losses, Range, bottom, planned_octaves
from completedp.evidence.figures.drawing import BLUE, GREEN, GREY, canvas, finish, powers_of_two
from completedp.evidence.figures.figure import Finding, Found, Setting, judged, mean_and_half
from completedp.evidence.figures.lines import Curve, Line, SweepSize
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import measure
from completedp.studies.cells import Wanted
from completedp.studies.spec import Site
from completedp.theory.rules import Rules
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab

_FRESH = 1_000
"""The first seed of those that no optimum was found by."""
_LINE = Line(name="completedp", colour=BLUE, grows=("width", "depth"), rules=Rules())


@dataclass(frozen=True, kw_only=True)
class BaseSizes:
    """Models of which the last is the large one, in width and depth together."""

    setting: Setting
    over: Range
    factors: tuple[int, ...]
    seeds: int
    """Fresh ones, at the large model."""
    allowed: float = 0.01
    """Nats that a learning rate may cost and still be as good as the best."""

    @property
    def sweep(self) -> SweepSize:
        """The sweep that finds every model's best learning rate."""
        return SweepSize(setting=self.setting, over=self.over, factors=self.factors, lines=(_LINE,))


@dataclass(frozen=True, kw_only=True)
class BaseSize:
    """The figure."""

    name: str = "base-size"
    claim: str = (
        "A learning rate tuned on too small a model costs a little on a large one, and nothing "
        "from some size on"
    )
    paper: str = "Figure 12"
    see: str = "The loss that each smaller model's learning rate costs on the large one."
    sizes: Mapping[str, BaseSizes]

    def cost(self, size: str) -> Cost:
        """A curve at each size, and the large model with each one's optimum."""
        at = self.sizes[size]
        total = Cost()
        for factor in at.factors:
            scale = _LINE.scale(at.setting.base, factor)
            total += at.setting.cost(scale, at.over.trials)
        last = _LINE.scale(at.setting.base, at.factors[-1])
        again = at.setting.cost(last, len(at.factors) * at.seeds)
        return total + replace(again, shapes=0)

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        at = self.sizes[size]
        measured = measure(lab, at.sweep, "lr")
        curves = {factor: measured[Curve(_LINE, factor)] for factor in at.factors}
        optima = {factor: bottom(curves[factor], at.over).octaves for factor in at.factors}
        found = {factor: place[0] for factor, place in optima.items() if place is not None}
        task = lab.task(at.setting)
        study = lab.listed("at the large model", task, lab.recipe(task, at.setting), ["lr/global"])
        site = Site(scale=_LINE.scale(at.setting.base, at.factors[-1]), rules=_LINE.rules)
        wanted = {
            (factor, seed): Wanted(site=site, octaves=(octave,), seed=_FRESH + seed)
            for factor, octave in found.items()
            for seed in range(at.seeds)
        }
        losses: dict[int, list[float]] = {}
        for (factor, _), ended in study.trained(wanted).items() if wanted else ():
            losses.setdefault(factor, []).append(ended.loss)
        lab.check_stable()
        return self.judge(at, curves, found, losses)

    def judge(
        self,
        at: BaseSizes,
        curves: Mapping[int, Losses],
        optima: Mapping[int, float],
        losses: Mapping[int, Sequence[float]],
    ) -> Found:
        """The verdict: what each smaller model's optimum costs, seed by seed."""
        last = at.factors[-1]
        rows = []
        for factor in at.factors:
            mean = half = None
            if factor in losses and last in losses:
                mean, half = mean_and_half(
                    [a - b for a, b in zip(losses[factor], losses[last], strict=True)]
                )
            rows.append(
                {
                    "factor": factor,
                    "scale": _LINE.scale(at.setting.base, factor).to_dict(),
                    "octaves": optima.get(factor),
                    "losses": list(losses.get(factor, [])),
                    "penalty": mean,
                    "half": half,
                }
            )
        findings = [self._finding(at, row) for row in rows[:-1]]
        return Found(
            findings=findings,
            numbers={"allowed": at.allowed, "models": rows},
            raw={
                "curves": {
                    str(factor): [
                        [octave, seed, loss if math.isfinite(loss) else None]
                        for octave, seeds in sorted(curve.items())
                        for seed, loss in sorted(seeds.items())
                    ]
                    for factor, curve in curves.items()
                },
                "models": rows,
            },
            text=_table(rows),
            svg=_draw(self.claim, at, rows),
        )

    def _finding(self, at: BaseSizes, row: Mapping[str, Any]) -> Finding:
        last, penalty, half = at.factors[-1], row["penalty"], row["half"]
        interval = None if penalty is None else (penalty - half, penalty + half)
        return judged(
            f"tuned at {Fraction(row['factor'], last)} of the width and depth, the large model "
            f"loses at most {at.allowed:g} nats",
            penalty,
            interval,
            unit="nats",
            at_most=at.allowed,
        )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    out = [f"{'tuned at':<24} {'optimum, octaves':>16} {'penalty at the largest':>24}"]
    for row in rows:
        scale = row["scale"]
        place = "not bracketed" if row["octaves"] is None else f"{row['octaves']:+.2f}"
        lost = "" if row["penalty"] is None else f"{row['penalty']:+.4f} +- {row['half']:.4f}"
        name = f"width {scale['width']}, depth {scale['depth']}"
        out.append(f"{name:<24} {place:>16} {lost:>24}")
    return "\n".join(out)


def _draw(claim: str, at: BaseSizes, rows: Sequence[Mapping[str, Any]]) -> str:
    base, last = at.setting.base, rows[-1]["scale"]
    below = (
        f"Loss of the model of width {last['width']} and depth {last['depth']} ({base.tokens:,} "
        f"tokens, {base.steps:,} steps) with the learning rate that is best for each model; "
        f"{at.seeds} fresh seeds, bars of 95 %."
    )
    with canvas(1, 2, claim, below, panel=(4.6, 3.3)) as (figure, grid):
        left, right = grid[0]
        known = [row for row in rows if row["penalty"] is not None]
        places = range(len(known))
        names = [f"{row['scale']['width']} x {row['scale']['depth']}" for row in known]
        left.axhspan(-at.allowed, at.allowed, color="#dcebe3", zorder=0)
        left.errorbar(
            list(places),
            [row["penalty"] for row in known],
            yerr=[row["half"] if math.isfinite(row["half"]) else 0.0 for row in known],
            fmt="D-",
            color=BLUE,
            capsize=3,
        )
        left.set_xticks(list(places), names)
        left.set_xlabel("tuned at width x depth")
        left.set_ylabel("nats above its own best")
        left.set_title("what a small base costs", loc="left")
        right.plot(list(places), [row["octaves"] for row in known], "D-", color=GREEN, markersize=5)
        right.axhline(known[-1]["octaves"] if known else 0.0, color=GREY, linestyle="--")
        right.set_xticks(list(places), names)
        right.set_xlabel("width x depth")
        right.set_ylabel("best learning rate at the base")
        right.set_title("the best learning rate", loc="left")
        if known:
            low, high = min(r["octaves"] for r in known), max(r["octaves"] for r in known)
            right.set_ylim(low - 1, high + 1)
            powers_of_two(right, "y", low - 1, high + 1, math.log2(at.setting.values["lr"]))
        return finish(figure)


FIGURE = BaseSize(
    sizes={
        "tiny": BaseSizes(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=20),
            over=Range(octaves=planned_octaves(-2, 4, 2), seeds=2, reach=6),
            factors=(1, 2),
            seeds=2,
        ),
        "cpu": BaseSizes(
            setting=setting("cpu", width=16, depth=1, sequences=8, steps=200),
            over=Range(octaves=planned_octaves(-2, 3), seeds=3),
            factors=(1, 2, 4),
            seeds=4,
        ),
        "gpu": BaseSizes(
            setting=setting("gpu", width=32, depth=1, sequences=8, steps=4096),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            factors=(1, 2, 4, 8),
            seeds=6,
        ),
        "paper": BaseSizes(
            # The paper's are of 58M, 136M and 483M weights; these of 64M, 204M and 494M.
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            factors=(1, 2, 3),
            seeds=3,
        ),
    }
)
