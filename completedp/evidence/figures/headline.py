"""headline: per-module values of a small model against global ones, up to 500 times the FLOP.

The arms; all but the first are tuned by the same engine, with trials at the base and at a deeper
and longer scale, and chosen by the same ladder:

    untuned   where `global` starts
    paper     the five values of the search in the paper's appendix, and the usual ones of all else
    uniform   one value for every module, the initial scale and the schedule's parts among them
    global    the same, from an embedding that starts eight times larger than the rest
    module    the first trials of `global`, then as many over module types as it has besides
    module from uniform    the same from those of `uniform`
    shared global, shared uniform    where these two begin: what they gain over it is by module

So all but the first and the last have had as many trials at the same scales. They are then trained
at scales up to the target on seeds that nothing was chosen by, `global` also for longer: the
speed-up is the tokens that it needs for the loss of `module`. At the target the learning rates of
both are moved, too: what a user loses by never tuning there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.common.files import plain
from completedp.evidence.figures.drawing import AMBER, BLUE, GREEN, GREY, INK, RED, VIOLET
from completedp.evidence.figures.figure import Finding, Found, Setting, judged, student
from completedp.evidence.figures.headline_drawing import draw
from completedp.evidence.figures.settings import PAPER, setting
from completedp.studies.cells import Wanted
from completedp.studies.engines import PAPER_GRID
from completedp.studies.sites import trials_by_site
from completedp.studies.spec import Site
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab

UNTUNED, PAPERS, UNIFORM, GLOBAL, MODULE = "untuned", "paper", "uniform", "global", "module"
FROM_UNIFORM = "module from uniform"
BEGINS = {MODULE: GLOBAL, FROM_UNIFORM: UNIFORM}
"""The arm whose first trials a search of values by module goes on from."""
SHARED = {"shared global": GLOBAL, "shared uniform": UNIFORM}
"""The arm whose first trials are all that these have."""
ARMS = {
    UNTUNED: INK,
    PAPERS: AMBER,
    UNIFORM: GREY,
    GLOBAL: RED,
    MODULE: BLUE,
    FROM_UNIFORM: GREEN,
    "shared global": VIOLET,
    "shared uniform": AMBER,
}
SCHEDULED = ("warmup", "power")
TUNABLES = (*TUNABLE, *SCHEDULED)
_USUAL_STD = 0.02
"""The initial scale of `paper`, GPT-2's, at the usual width: the paper does not say its own. At
another width it is the one that makes features of the same size."""
_FRESH = 1_000_000
"""The first seed of those that nothing was chosen by."""
_CANDIDATES = 6
"""About how many stand on the first rung of a ladder."""
_DRAWS = 20_000
_ENDLESS = 1e6
"""Times the tokens that stand for never."""


@dataclass(frozen=True, kw_only=True)
class HeadlineSize:
    """What is searched, and where it is measured."""

    setting: Setting
    token_exponent: float
    """Of the horizon rule; the printed 1/2 is too steep for every recipe that was measured."""
    sites: tuple[Ratios, ...]
    """Where the rounds of a search train that are not at the base; none: all are there."""
    shared: int
    """Trials over global values that `global` and `module` have in common."""
    trials: int
    """Trials that each has after them."""
    rungs: tuple[Ratios, ...]
    rung_seeds: int
    scales: tuple[Ratios, ...]
    """Where the arms are measured, from the base to the target."""
    seeds: tuple[int, ...]
    """At each of them."""
    lengths: tuple[float, ...]
    """How much longer `global` trains besides."""
    around: tuple[float, ...] = ()
    """Octaves that learning rates are moved by at the target."""
    usual_width: int = PAPER.base.width
    """Where `paper` begins with the usual initial scale; elsewhere with one as good."""
    arms: tuple[str, ...] = (UNIFORM, GLOBAL, MODULE)
    tunables: tuple[str, ...] = TUNABLES
    search_seed: int = 0
    """Of every arm's engine: two searches of one kind differ by more than their seeds of training
    do."""

    @property
    def total(self) -> int:
        """Trials of each arm."""
        return self.shared + self.trials

    def trials_of(self, arm: str) -> int:
        """How many of them chose an arm's values."""
        return 0 if arm == UNTUNED else self.shared if arm in SHARED else self.total

    @property
    def by_module(self) -> list[str]:
        """The arms that have values by module."""
        return [arm for arm in self.arms if arm in BEGINS]


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """How many times the tokens one arm needs for the loss of another at one scale."""

    speedup: float | None
    """None where its loss does not fall with its length."""
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The figure."""

    name: str = "headline"
    claim: str = (
        "Per-module values found on a small model train a far larger one faster than global "
        "values tuned with as many trials"
    )
    paper: str = "Figure 1"
    see: str = "How many times the tokens global values need for the loss of per-module ones."
    sizes: Mapping[str, HeadlineSize]

    def cost(self, size: str) -> Cost:
        """Searches, ladders, and the runs at every scale."""
        at = self.sizes[size]
        base, price = at.setting.base, at.setting.cost
        tuned = [arm for arm in at.arms if arm != UNTUNED and arm not in SHARED]
        total = Cost()
        sites = [base, *map(base.times, at.sites)]
        for place, scale in enumerate(sites):
            both = [trials_by_site(each, len(sites))[place] for each in (at.total, at.trials)]
            apart = len(tuned) - len(at.by_module)
            total += price(scale, both[0] * apart + both[1] * len(at.by_module))
        for rung in at.rungs:
            total += price(base.times(rung), len(tuned) * _CANDIDATES * at.rung_seeds)
        for ratios, seeds in zip(at.scales, at.seeds, strict=True):
            runs = seeds * (len(at.arms) + sum(at.lengths))
            total += price(base.times(ratios), runs)
        return total + price(base.times(at.scales[-1]), 2 * len(at.around))

    def run(self, size: str, lab: Lab) -> Found:
        """Search, climb, train, judge, draw."""
        at = self.sizes[size]
        task = lab.task(at.setting)
        starts = {
            UNIFORM: _start(lab.plain_recipe(task, at.setting), at),
            GLOBAL: _start(lab.recipe(task, at.setting), at),
        }
        wider = at.usual_width / at.setting.base.width
        starts[PAPERS] = _with_std(starts[UNIFORM], _USUAL_STD * math.sqrt(wider))
        searches = {
            arm: self._searched(lab, at, arm, start, trials=at.total, space="global")
            for arm, start in starts.items()
            if arm in at.arms
        }
        for arm in at.by_module:
            middle = searches[BEGINS[arm]].recommended_after(at.shared)
            searches[arm] = self._searched(lab, at, arm, middle, trials=at.trials, space="type")
        rungs = [at.setting.base.times(rung) for rung in at.rungs]
        chosen = {arm: search.best(rungs, at.rung_seeds) for arm, search in searches.items()}
        if UNTUNED in at.arms:
            chosen[UNTUNED] = starts[GLOBAL]
        for arm in SHARED.keys() & set(at.arms):
            chosen[arm] = searches[SHARED[arm]].recommended_after(at.shared)
        losses = self._trained(lab, at, starts[UNIFORM], chosen)
        lab.check_stable()
        return self.judge(at, losses, chosen)

    def _searched(
        self, lab: Lab, at: HeadlineSize, arm: str, start: Recipe, *, trials: int, space: str
    ) -> Any:
        base = at.setting.base
        return lab.search(
            arm,
            lab.task(at.setting),
            start,
            space=space,
            tunables=tuple(PAPER_GRID) if arm == PAPERS else at.tunables,
            trials=trials,
            sites=[base.times(site) for site in at.sites],
            targets=[base.times(ratios) for ratios in (*at.rungs, *at.scales)],
            seed=at.search_seed,
        )

    def _trained(
        self, lab: Lab, at: HeadlineSize, neutral: Recipe, chosen: Mapping[str, Recipe]
    ) -> dict[Run, list[float]]:
        """The losses of every run by seed."""
        names = sorted(
            {"lr/global", *(f"schedule/{part}" for part in SCHEDULED)}.union(
                *(recipe.hyperparameters.log2 for recipe in (neutral, *chosen.values()))
            )
        )
        moved = {arm: _octaves(names, neutral, recipe) for arm, recipe in chosen.items()}
        study = lab.listed("measured", lab.task(at.setting), neutral, names)
        wanted = {}
        for run in self.runs(at):
            scale = at.setting.base.times(at.scales[run.place])
            scale = replace(scale, tokens=_whole(scale, run.length))
            octaves = moved[run.arm] + run.octave * np.array([n == "lr/global" for n in names])
            seeds = at.seeds[run.place] if not run.octave else 1
            for seed in range(seeds):
                wanted[run, seed] = Wanted(
                    site=Site(scale=scale, rules=neutral.rules),
                    octaves=tuple(octaves.tolist()),
                    seed=_FRESH + seed,
                )
        losses: dict[Run, list[float]] = {}
        for (run, _), ended in study.trained(wanted).items():
            losses.setdefault(run, []).append(ended.loss)
        return losses

    def runs(self, at: HeadlineSize) -> list[Run]:
        """Everything that is measured."""
        places = range(len(at.scales))
        found = [Run(arm, place) for place in places for arm in at.arms]
        found += [Run(GLOBAL, place, length) for place in places for length in at.lengths]
        last = places[-1]
        return found + [Run(a, last, octave=o) for a in (GLOBAL, MODULE) for o in at.around]

    def judge(
        self,
        at: HeadlineSize,
        losses: Mapping[Run, Sequence[float]],
        chosen: Mapping[str, Recipe],
    ) -> Found:
        """The speed-up at each scale, and what moving the learning rate would gain."""
        rows: list[dict[str, Any]] = []
        base = at.setting.base
        for place, ratios in enumerate(at.scales):
            scale = base.times(ratios)
            means = {arm: float(np.mean(losses[Run(arm, place)])) for arm in at.arms}
            rows.append(
                {
                    "scale": scale.to_dict(),
                    "flops_ratio": at.setting.cost(scale, 1).flop / at.setting.cost(base, 1).flop,
                    "losses": {arm: list(losses[Run(arm, place)]) for arm in at.arms},
                    "means": means,
                    "longer": {
                        f"{length:g}": list(losses[Run(GLOBAL, place, length)])
                        for length in at.lengths
                    },
                    **{
                        f"speedup_over_{arm}": asdict(_speedup(at, place, losses, arm))
                        for arm in at.arms
                        if arm != MODULE
                    },
                    **{
                        f"speedup_of_{arm}": {
                            other: asdict(_speedup(at, place, losses, other, of=arm))
                            for other in at.arms
                            if other not in BEGINS
                        }
                        for arm in at.by_module
                        if arm != MODULE
                    },
                }
            )
        last = len(at.scales) - 1
        moved = {  # all of one seed: what seeds differ by is no regret
            arm: {
                0.0: losses[Run(arm, last)][0],
                **{o: losses[Run(arm, last, octave=o)][0] for o in at.around},
            }
            for arm in (GLOBAL, MODULE)
        }
        regret = {
            arm: curve[0.0] - min(curve.values()) for arm, curve in moved.items() if at.around
        }
        summary = {
            "base": _summed(rows[0]),
            "target": {"flops_ratio": rows[-1]["flops_ratio"], **_summed(rows[-1])},
        }
        numbers = {
            "regret": regret,
            "trials": {arm: at.trials_of(arm) for arm in at.arms},
            "scales": rows,
            "learning rates at the target": {
                arm: [[o, loss] for o, loss in sorted(curve.items())]
                for arm, curve in moved.items()
            },
            "recipes": {arm: recipe.to_dict() for arm, recipe in chosen.items()},
        }
        raw = [[asdict(run), list(found)] for run, found in losses.items()]
        return Found(
            findings=_findings(rows, regret, at),
            summary=plain(summary),
            numbers=plain(numbers),
            raw=plain(raw),
            text=_table(rows, regret),
            svg=draw(
                self.claim,
                f"Base: {base}. {at.total} trials an arm; the same ladder chooses.",
                rows,
                colours={arm: ARMS[arm] for arm in at.arms},
                other=GLOBAL,
                moved=moved if at.around else {},
            ),
        )


@dataclass(frozen=True, order=True)
class Run:
    """One thing to train: an arm at one of the scales, perhaps longer, or with other rates."""

    arm: str
    place: int
    length: float = 1.0
    octave: float = 0.0


def _start(recipe: Recipe, at: HeadlineSize) -> Recipe:
    return replace(recipe, rules=replace(recipe.rules, token_exponent=at.token_exponent))


def _with_std(recipe: Recipe, std: float) -> Recipe:
    """The recipe with another initial scale, as a multiplier: arms differ in nothing else."""
    log2 = {"init_std/global": math.log2(std / recipe.values.init_std)}
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def _octaves(names: Sequence[str], neutral: Recipe, recipe: Recipe) -> np.ndarray:
    """How far a recipe is from the neutral one, along each coordinate."""
    moved = recipe.hyperparameters.vector(names) - neutral.hyperparameters.vector(names)
    for part in SCHEDULED:
        octaves = math.log2(getattr(recipe.schedule, part) / getattr(neutral.schedule, part))
        moved += octaves * np.array([name == f"schedule/{part}" for name in names])
    return moved


def _whole(scale: Scale, length: float) -> int:
    """So many times the tokens, in whole steps."""
    return scale.batch * round(scale.steps * length)


def _speedup(
    at: HeadlineSize,
    place: int,
    losses: Mapping[Run, Sequence[float]],
    over: str,
    of: str = MODULE,
) -> Speedup:
    """The tokens that an arm needs for the loss of another, on `global`'s line in log tokens.

    The interval is that of draws of every mean around what was measured, with the spread between
    seeds that all runs at the scale have in common.
    """
    lengths = np.log([1.0, *at.lengths])
    runs = [Run(GLOBAL, place, length) for length in (1.0, *at.lengths)]
    cells = [losses[run] for run in (*runs, Run(of, place), Run(over, place))]
    if not np.isfinite(np.concatenate([np.asarray(cell) for cell in cells])).all():
        return Speedup(speedup=None, low=None, high=None)
    means = np.array([np.mean(cell) for cell in cells])
    counts = np.array([len(cell) for cell in cells])
    each = cells[:-1] if over == GLOBAL else cells  # every run's own, once
    freedom = sum(len(cell) - 1 for cell in each)
    spread = sum(float(np.var(cell)) * len(cell) for cell in each)

    def needed(drawn: np.ndarray) -> np.ndarray:
        line = drawn[..., : len(runs)]
        centred = lengths - lengths.mean()
        fall = -(line @ centred) / (centred @ centred)
        level = line.mean(-1) + fall * lengths.mean()  # of the line at length 1
        above = level if over == GLOBAL else drawn[..., -1]
        with np.errstate(divide="ignore", over="ignore"):
            times = np.exp((above - drawn[..., -2]) / fall)
        return np.where(fall > 0, np.minimum(times, _ENDLESS), _ENDLESS)

    value = float(needed(means))
    if value >= _ENDLESS:
        return Speedup(speedup=None, low=None, high=None)
    if freedom < 1:
        return Speedup(speedup=value, low=None, high=None)
    error = math.sqrt(spread / freedom) / np.sqrt(counts) * student(freedom) / 1.959964
    drawn = means + error * np.random.default_rng(0).standard_normal((_DRAWS, len(means)))
    low, high = np.quantile(needed(drawn), [0.025, 0.975])
    return Speedup(speedup=value, low=float(low), high=float(high) if high < _ENDLESS else None)


def _summed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The speed-up over `global`, and those over every arm: another may be the better baseline."""
    others = [arm for arm in row["means"] if arm != MODULE]
    over = {arm: row[f"speedup_over_{arm}"] for arm in others}
    return {**over[GLOBAL], "over": over}


def _findings(
    rows: Sequence[Mapping[str, Any]], regret: Mapping[str, float], at: HeadlineSize
) -> list[Finding]:
    def of(row: Mapping[str, Any], claim: str, at_least: float, over: str = GLOBAL) -> Finding:
        found = row[f"speedup_over_{over}"]
        interval = None if found["high"] is None else (found["low"], found["high"])
        return judged(claim, found["speedup"], interval, unit="times", at_least=at_least)

    ratio = rows[-1]["flops_ratio"]
    findings = [
        of(rows[0], "at the base per-module values save tokens", 1.0),
        of(rows[-1], f"at {ratio:,.0f} times its FLOP they still do", 1.0),
        of(rows[-1], f"at {ratio:,.0f} times its FLOP they are worth 1.3 times the tokens", 1.3),
    ]
    if UNIFORM in at.arms:
        findings += [
            of(rows[0], "at the base they do over one value for every module", 1.0, UNIFORM),
            of(rows[-1], f"at {ratio:,.0f} times its FLOP they do over it, too", 1.0, UNIFORM),
        ]
    if not regret:
        return findings
    half = _paired_half([*rows[-1]["losses"].values(), *rows[-1]["longer"].values()])
    findings.append(
        judged(
            "there, moving their learning rate gains at most 0.01 nats",
            regret[MODULE],
            None if half is None else (regret[MODULE] - half, regret[MODULE] + half),
            unit="nats",
            at_most=0.01,
        )
    )
    return findings


def _paired_half(cells: Sequence[Sequence[float]]) -> float | None:
    """Half the interval of 95 % of what two runs of one seed differ by, from runs at one scale.

    Their noise is what is left of these runs by arm and seed without the means of both.
    """
    losses = np.array(cells)
    freedom = (losses.shape[0] - 1) * (losses.shape[1] - 1)
    if freedom < 1 or not np.isfinite(losses).all():
        return None
    left = losses - losses.mean(0) - losses.mean(1, keepdims=True) + losses.mean()
    return student(freedom) * math.sqrt(2 * float((left**2).sum()) / freedom)


def times_shown(speedup: Mapping[str, float | None]) -> str:
    """A speed-up and its interval, for people."""
    value, low, high = speedup["speedup"], speedup["low"], speedup["high"]
    if value is None:
        return "not measured"
    ends = "" if low is None else f" [{low:.2f}, {'-' if high is None else f'{high:.2f}'}]"
    return f"{value:.2f}{ends}"


def _table(rows: Sequence[Mapping[str, Any]], regret: Mapping[str, float]) -> str:
    arms = list(rows[0]["means"])
    others = [arm for arm in arms if arm != MODULE]
    titles = " ".join(f"{arm:>8}" for arm in arms)
    titles += "".join(f" {'times over ' + arm:>19}" for arm in others)
    out = [f"{'FLOP':>7} {titles}"]
    for row in rows:
        columns = " ".join(f"{row['means'][arm]:>{max(8, len(arm))}.4f}" for arm in arms)
        columns += "".join(f" {times_shown(row[f'speedup_over_{arm}']):>19}" for arm in others)
        out.append(f"{'x' + format(row['flops_ratio'], ',.0f'):>7} {columns}")
    for arm in arms:
        if (name := f"speedup_of_{arm}") in rows[0]:
            for row in rows:
                over = (f"{times_shown(each)} over {other}" for other, each in row[name].items())
                out.append(f"{arm} at x{row['flops_ratio']:,.0f}: {', '.join(over)}")
    if regret:
        lost = ", ".join(f"{arm} {nats:.4f}" for arm, nats in regret.items())
        out.append(f"regret of the learning rate at the target: {lost}")
    return "\n".join(out)


_TWICE = Ratios(width=2, depth=2, batch=2, tokens=4)

FIGURE = Headline(
    sizes={
        "tiny": HeadlineSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=10),
            token_exponent=0.25,
            sites=(Ratios(tokens=2),),
            shared=8,
            trials=8,
            rungs=(Ratios(tokens=2),),
            rung_seeds=1,
            scales=(Ratios(), Ratios(width=2, depth=2, batch=2, tokens=4)),
            seeds=(2, 2),
            lengths=(2.0,),
            around=(-1.0, 1.0),
        ),
        "cpu": HeadlineSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=400),
            token_exponent=0.25,
            sites=(Ratios(depth=2, tokens=2),),
            shared=64,
            trials=64,
            rungs=(Ratios(width=2, depth=2, tokens=2),),
            rung_seeds=2,
            scales=(Ratios(), _TWICE),
            seeds=(4, 3),
            lengths=(1.5,),
            around=(-0.5, 0.5),
        ),
        "gpu": HeadlineSize(
            setting=setting("gpu", width=64, depth=4, sequences=16, steps=2048),
            token_exponent=0.25,
            sites=(Ratios(depth=2, tokens=2),),
            shared=128,
            trials=384,
            rungs=(_TWICE,),
            rung_seeds=3,
            scales=(
                Ratios(),
                _TWICE,
                Ratios(width=2, depth=2, batch=4, tokens=8),
                Ratios(width=4, depth=2, batch=4, tokens=24),
            ),
            seeds=(8, 4, 3, 2),
            lengths=(1.5,),
            around=(-0.5, 0.5),
        ),
        "paper": HeadlineSize(
            setting=PAPER,
            token_exponent=0.5,
            sites=(Ratios(depth=2, tokens=2),),
            shared=2500,
            trials=2500,
            rungs=(_TWICE,),
            rung_seeds=3,
            scales=(Ratios(), _TWICE, Ratios(width=8, depth=8, batch=8, tokens=32)),
            seeds=(4, 3, 2),
            lengths=(1.5, 2.0),
            around=(-1.0, -0.5, 0.5, 1.0),
        ),
    }
)
