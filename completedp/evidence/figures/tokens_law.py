"""tokens-law: scaling laws of models trained with and without the rule for the token horizon.

Models of growing width and depth, each for the same number of tokens a weight, with the values of
one small base carried by rules that differ in the token horizon alone. A law E + A / C^p is fitted
to the losses over compute C; with the rule the loss that no compute removes, E, should be lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import BLUE, GREEN, GREY, canvas, finish
from completedp.evidence.figures.figure import Found, Setting, judged, mean_and_half
from completedp.evidence.figures.lines import all_axes_but
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import tuned_octave
from completedp.studies.cells import Wanted
from completedp.studies.spec import Site
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab

RULES = {
    "no rule for tokens": Rules(axes=all_axes_but("tokens")),
    "square-root rule": Rules(),
    "exponent 1/4": Rules(token_exponent=0.25),
}
COLOURS = {"no rule for tokens": GREY, "square-root rule": BLUE, "exponent 1/4": GREEN}
_BOOTSTRAPS = 400


@dataclass(frozen=True, kw_only=True)
class LawSize:
    """Models by factors of (width, depth, tokens) from the base; the batch stays."""

    setting: Setting
    growth: tuple[tuple[int, int, int], ...]
    seeds: int
    over: Range
    """Where the base's learning rate is tuned before it is carried on."""

    def scales(self) -> list[Scale]:
        """Every model, smallest first."""
        base = self.setting.base
        return [
            replace(base, width=base.width * w, depth=base.depth * d, tokens=base.tokens * t)
            for w, d, t in self.growth
        ]

    def compute(self) -> list[float]:
        """FLOP of each model's run."""
        return [self.setting.cost(scale, 1).flop for scale in self.scales()]


@dataclass(frozen=True, kw_only=True)
class TokensLaw:
    """The figure."""

    name: str = "tokens-law"
    claim: str = (
        "With the rule for the token horizon models scale better: the loss that no compute removes "
        "is lower"
    )
    paper: str = "Figure 6"
    see: str = (
        "If the claim holds, the floor of the square-root rule, the first number of its law, is "
        "below that of no rule for tokens."
    )
    sizes: Mapping[str, LawSize]

    def cost(self, size: str) -> Cost:
        """Every model under every rule."""
        at = self.sizes[size]
        total = replace(at.setting.cost(at.setting.base, at.over.trials), shapes=0)
        for scale in at.scales():
            distinct = 1 if scale.tokens == at.setting.base.tokens else len(RULES)
            total += at.setting.cost(scale, distinct * at.seeds)
        return total

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        at = self.sizes[size]
        tuned = tuned_octave(lab, at.setting, at.over)
        task = lab.task(at.setting)
        study = lab.listed("law", task, lab.recipe(task, at.setting), ["lr/global"])
        wanted = {
            (name, index, seed): Wanted(
                site=Site(scale=scale, rules=rules), octaves=(tuned,), seed=seed
            )
            for name, rules in RULES.items()
            for index, scale in enumerate(at.scales())
            for seed in range(at.seeds)
        }
        losses = {name: np.empty((len(at.growth), at.seeds)) for name in RULES}
        for (name, index, seed), ended in study.trained(wanted).items():
            losses[name][index, seed] = ended.loss
        lab.check_stable()
        return self.judge(at, losses)

    def judge(self, at: LawSize, losses: Mapping[str, np.ndarray]) -> Found:
        """Laws fitted to each rule's losses, and their floors compared."""
        compute = np.array(at.compute())
        laws = {name: fit_law(compute, values.mean(axis=1)) for name, values in losses.items()}
        without, with_rule = losses["no rule for tokens"], losses["square-root rule"]
        floors = resampled_floors(compute, without, with_rule)
        gap = laws["no rule for tokens"][0] - laws["square-root rule"][0]
        largest = (without[-1] - with_rule[-1]).tolist()
        mean, half = mean_and_half(largest)
        findings = [
            judged(
                "the irreducible loss without the rule is above that with it",
                gap,
                floors,
                unit="nats",
                at_least=0.0,
            ),
            judged(
                "the largest model ends lower with the rule",
                mean,
                (mean - half, mean + half),
                unit="nats",
                at_least=0.0,
            ),
        ]
        rows = [
            {
                "scale": scale.to_dict(),
                "flop": float(flop),
                "losses": {name: values[index].tolist() for name, values in losses.items()},
            }
            for index, (scale, flop) in enumerate(zip(at.scales(), compute, strict=True))
        ]
        plain = {
            name: {"floor": law[0], "factor": law[1], "power": law[2]} for name, law in laws.items()
        }
        return Found(
            findings=findings,
            numbers={"laws": plain, "models": rows},
            raw=rows,
            text=_table(plain, rows),
            svg=_draw(self.claim, at, compute, losses, laws),
        )


Law = tuple[float, float, float]


def fit_law(compute: np.ndarray, losses: np.ndarray) -> Law:
    """E, A and p of E + A (C / C_0)^-p, C_0 the least compute: least squares, p on a fine grid."""
    ratio = compute / compute[0]
    best: tuple[float, Law] | None = None
    for power in np.geomspace(0.01, 1.5, 400):
        rows = np.stack([np.ones_like(ratio), ratio**-power], axis=1)
        (floor, factor), *_ = np.linalg.lstsq(rows, losses, rcond=None)
        if factor < 0 or floor < 0:
            continue
        rest = float(((rows @ [floor, factor] - losses) ** 2).sum())
        if best is None or rest < best[0]:
            best = rest, (float(floor), float(factor), float(power))
    return best[1] if best is not None else (math.nan, math.nan, math.nan)


def resampled_floors(
    compute: np.ndarray, one: np.ndarray, other: np.ndarray, seed: int = 0
) -> tuple[float, float]:
    """The interval of 95 % of the difference of two laws' floors, over draws of the seeds."""
    rng = np.random.default_rng(seed)
    seeds = one.shape[1]
    gaps = []
    for _ in range(_BOOTSTRAPS):
        chosen = rng.integers(0, seeds, (len(compute), seeds))
        means = [np.take_along_axis(x, chosen, axis=1).mean(axis=1) for x in (one, other)]
        gaps.append(fit_law(compute, means[0])[0] - fit_law(compute, means[1])[0])
    low, high = np.nanquantile(gaps, [0.025, 0.975])
    return float(low), float(high)


def _table(laws: Mapping[str, Mapping[str, float]], rows: Sequence[Mapping[str, Any]]) -> str:
    out = [
        f"{'':<22} {'irreducible':>12} {'power':>7}"
        + "".join(f"{row['flop']:>12.1e}" for row in rows)
    ]
    for name, law in laws.items():
        means = "".join(f"{float(np.mean(row['losses'][name])):>12.4f}" for row in rows)
        out.append(f"{name:<22} {law['floor']:>12.4f} {law['power']:>7.3f}{means}")
    return "\n".join(out)


def _draw(
    claim: str,
    at: LawSize,
    compute: np.ndarray,
    losses: Mapping[str, np.ndarray],
    laws: Mapping[str, Law],
) -> str:
    base = at.setting.base
    below = (
        f"Values of one base ({base}) carried to larger models and longer runs; {at.seeds} seeds. "
        "Lines are fitted laws (c: FLOP over the base's), bars of one standard error."
    )
    means = np.stack([values.mean(axis=1) for values in losses.values()])
    lowest_drawn = means.min() - 0.5 * (means.max() - means.min())
    with canvas(1, 1, claim, below, panel=(6.6, 4.0)) as (figure, grid):
        panel = grid[0][0]
        fine = np.geomspace(compute[0], compute[-1] * 2, 100)
        for name, values in losses.items():
            floor, factor, power = laws[name]
            colour = COLOURS[name]
            panel.errorbar(
                compute,
                values.mean(axis=1),
                yerr=values.std(axis=1, ddof=1) / math.sqrt(values.shape[1]),
                fmt="o",
                color=colour,
                capsize=2,
                markersize=5,
            )
            if math.isfinite(floor):
                panel.plot(
                    fine,
                    floor + factor * (fine / compute[0]) ** -power,
                    color=colour,
                    label=f"{name}: {floor:.3f} + {factor:.2f} c^-{power:.3f}",
                )
                if floor > lowest_drawn:
                    panel.axhline(floor, color=colour, linestyle="--", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_xlabel("training FLOP")
        panel.set_ylabel("validation loss")
        panel.legend()
        return finish(figure)


FIGURE = TokensLaw(
    sizes={
        "tiny": LawSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=10),
            growth=((1, 1, 1), (1, 1, 2), (2, 1, 4)),
            seeds=2,
            over=Range(octaves=planned_octaves(-2, 4, 2), seeds=2, reach=6),
        ),
        "cpu": LawSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=100),
            growth=((1, 1, 1), (1, 1, 2), (2, 1, 4), (2, 2, 8)),
            seeds=3,
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
        ),
        "gpu": LawSize(
            setting=setting("gpu", width=64, depth=2, sequences=8, steps=2048),
            growth=((1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 5), (3, 2, 8), (4, 2, 16)),
            seeds=4,
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
        ),
        "paper": LawSize(
            setting=PAPER,
            growth=((1, 1, 1), (1, 2, 2), (2, 2, 4), (2, 4, 8), (3, 4, 16), (4, 4, 32)),
            seeds=3,
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
        ),
    }
)
