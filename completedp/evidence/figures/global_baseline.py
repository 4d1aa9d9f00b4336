"""global-baseline: the paper's random search of global values over its discrete grid.

How good the best of so many trials is, how the loss is spread at each value of each
hyperparameter, and how weight decay and learning rate go together. Where scikit-learn is installed,
a Gaussian process says besides how much each value matters around the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.evidence.figures.drawing import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    RED,
    VIOLET,
    canvas,
    finish,
)
from completedp.evidence.figures.figure import Found, Setting, judged
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.sensitivity import Slice, has_processes, sensitivity
from completedp.studies.cells import Wanted
from completedp.studies.engines import PAPER_GRID, paper_levels
from completedp.studies.spec import Site
from completedp.theory.rules import Rules
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab

TUNED = tuple(PAPER_GRID)
_LABELS = {
    "lr": "learning rate",
    "eps": "eps",
    "one_minus_beta1": "1 - beta1",
    "one_minus_beta2": "1 - beta2",
    "weight_decay": "weight decay",
}
_DRAWS = 400
"""Resamplings for intervals."""
_CLOSE = 0.02


@dataclass(frozen=True, kw_only=True)
class BaselineSize:
    """A number of trials at the base."""

    setting: Setting
    trials: int


@dataclass(frozen=True, kw_only=True)
class GlobalBaseline:
    """The figure."""

    name: str = "global-baseline"
    claim: str = (
        "A random search over the paper's grid of global values: the learning rate matters most, "
        "and more trials hardly help any more"
    )
    paper: str = "Figure 18"
    see: str = (
        "Where the bars of a value reach low, good trials have it; the first panel says how much "
        "more trials would help."
    )
    sizes: Mapping[str, BaselineSize]

    def cost(self, size: str) -> Cost:
        """Trials at the base."""
        at = self.sizes[size]
        return at.setting.cost(at.setting.base, at.trials)

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        at = self.sizes[size]
        task = lab.task(at.setting)
        recipe = lab.recipe(task, at.setting)
        coordinates = [f"{tunable}/global" for tunable in TUNED]
        levels = paper_levels(coordinates, recipe.values)
        chosen = drawn(at.trials)
        site = Site(scale=at.setting.base, rules=Rules())
        study = lab.listed("grid", task, recipe, coordinates)
        wanted = {
            number: Wanted(
                site=site,
                octaves=tuple(levels[i][level] for i, level in enumerate(row)),
                seed=number,
            )
            for number, row in enumerate(chosen.tolist())
        }
        trained = study.trained(wanted)
        lab.check_stable()
        return self.judge(at, chosen, np.array([trained[n].loss for n in range(at.trials)]))

    def judge(self, at: BaselineSize, chosen: np.ndarray, losses: np.ndarray) -> Found:
        """What the losses say of each hyperparameter and of the number of trials."""
        half = best_of(losses, max(1, len(losses) // 2))
        gap = half[0] - float(losses.min())
        shares = {name: explained(chosen[:, i], losses) for i, name in enumerate(TUNED)}
        others = max(share for name, share in shares.items() if name != "lr")
        findings = [
            judged(
                f"half as many trials would have ended within {_CLOSE} nats of the best",
                gap,
                (half[1] - float(losses.min()), half[2] - float(losses.min())),
                unit="nats",
                at_most=_CLOSE,
            ),
            judged(
                "of the order of losses the learning rate explains more than any other value",
                shares["lr"] - others,
                resampled_lead(chosen, losses),
                at_least=0.0,
            ),
        ]
        best = int(np.argmin(losses))
        values = {name: PAPER_GRID[name][int(chosen[best, i])] for i, name in enumerate(TUNED)}
        numbers = {
            "best": {"loss": float(losses[best]), **values},
            "explained": shares,
            "diverged": int(np.isinf(losses).sum()),
            "trials": len(losses),
        }
        slices = slices_of(chosen, losses)
        if slices is not None:
            numbers["rise beside the optimum"] = {n: x.nearby for n, x in slices.items()}
            numbers["slices"] = {n: x.to_dict() for n, x in slices.items()}
        return Found(
            findings=findings,
            numbers=numbers,
            raw={
                "grid": {name: list(PAPER_GRID[name]) for name in TUNED},
                "levels": chosen.tolist(),
                "losses": [round(x, 5) if math.isfinite(x) else None for x in losses.tolist()],
            },
            text=_table(numbers),
            svg=_draw(self.claim, at, chosen, losses, slices),
        )


def slices_of(chosen: np.ndarray, losses: np.ndarray) -> dict[str, Slice] | None:
    """A Gaussian process around the optimum; None without scikit-learn, or with too few trials."""
    if not has_processes():
        return None
    levels = {name: np.log2(PAPER_GRID[name]) for name in TUNED}
    points = np.stack([levels[name][chosen[:, i]] for i, name in enumerate(TUNED)], axis=1)
    return sensitivity(points, losses, {name: levels[name].tolist() for name in TUNED})


def drawn(trials: int, seed: int = 0) -> np.ndarray:
    """Which level of each hyperparameter each trial has, at random, [trials, hyperparameters]."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, len(PAPER_GRID[name]), trials) for name in TUNED], axis=1)


def best_of(losses: np.ndarray, count: int, seed: int = 0) -> tuple[float, float, float]:
    """The best of so many of the trials: its mean over draws, and the interval of 95 %."""
    rng = np.random.default_rng(seed)
    found = [
        float(losses[rng.choice(len(losses), count, replace=False)].min()) for _ in range(_DRAWS)
    ]
    low, high = quantiles(found, (0.025, 0.975))
    return float(np.mean(found)), low, high


def explained(levels: np.ndarray, losses: np.ndarray) -> float:
    """The part of the variance of the losses' ranks that a hyperparameter's levels explain."""
    ranks = np.argsort(np.argsort(losses, kind="stable")).astype(float)
    ranks[np.isinf(losses)] = ranks[np.isinf(losses)].mean() if np.isinf(losses).any() else 0.0
    total = float(((ranks - ranks.mean()) ** 2).sum())
    between = sum(
        float((levels == level).sum() * (ranks[levels == level].mean() - ranks.mean()) ** 2)
        for level in np.unique(levels)
    )
    return between / total if total else 0.0


def resampled_lead(chosen: np.ndarray, losses: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The interval of 95 % of the learning rate's lead in `explained`, over draws of the trials."""
    rng = np.random.default_rng(seed)
    leads = []
    for _ in range(_DRAWS // 4):
        rows = rng.integers(0, len(losses), len(losses))
        shares = [explained(chosen[rows, i], losses[rows]) for i in range(len(TUNED))]
        leads.append(shares[TUNED.index("lr")] - max(shares[1:]))
    low, high = np.quantile(leads, [0.025, 0.975])
    return float(low), float(high)


def quantiles(values: Sequence[float], parts: Sequence[float]) -> list[float]:
    """Quantiles that infinite values do not spoil."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in parts]


def _table(numbers: Mapping[str, Any]) -> str:
    best = numbers["best"]
    shown = ", ".join(f"{_LABELS[name]} {best[name]:g}" for name in TUNED)
    out = [
        f"{numbers['trials']} trials, {numbers['diverged']} diverged; best {best['loss']:.4f}: "
        f"{shown}",
        "part of the losses' order that each explains alone:",
    ]
    out += [f"    {_LABELS[name]:<14} {numbers['explained'][name]:.2f}" for name in TUNED]
    rises = numbers.get("rise beside the optimum")
    if rises is None:
        need = "more trials" if has_processes() else 'scikit-learn: pip install "completedp[gp]"'
        out.append(f"the sensitivity around the optimum is left out: it needs {need}")
    else:
        out.append("rise at the values beside the optimum's, by a Gaussian process, nats:")
        out += [f"    {_LABELS[name]:<14} {rises[name]:.4f}" for name in TUNED]
    return "\n".join(out)


def _draw(
    claim: str,
    at: BaselineSize,
    chosen: np.ndarray,
    losses: np.ndarray,
    slices: Mapping[str, Slice] | None,
) -> str:
    base = at.setting.base
    below = (
        f"{len(losses)} trials of {base}. Bars: the middle half of the losses of all trials with "
        "that value, dots their medians; those above the panels are not shown. Map: the median by "
        "weight decay and learning rate."
    )
    if slices is not None:
        below += (
            " Last: a Gaussian process along each value, the others at their best, with what it "
            "expects one trial to be off by."
        )
    finite = losses[np.isfinite(losses)]
    low, high = float(finite.min()), float(np.quantile(finite, 0.9))
    with canvas(2, 4, claim, below, panel=(3.2, 2.7)) as (figure, grid):
        panels = list(grid.flat)
        _draw_best(panels[0], losses)
        for panel, (i, name) in zip(panels[1:6], enumerate(TUNED), strict=True):
            _draw_marginal(panel, name, chosen[:, i], losses)
            panel.set_ylim(low - 0.05 * (high - low), high)
        _draw_map(panels[6], chosen, losses)
        if slices is None:
            panels[7].set_visible(False)
        else:
            _draw_slices(panels[7], slices)
        for panel in (panels[0], panels[4]):
            panel.set_ylabel("validation loss")
        return finish(figure)


def _draw_best(panel: Any, losses: np.ndarray) -> None:
    counts = sorted({int(x) for x in np.geomspace(1, len(losses), 24)})
    found = np.array([best_of(losses, count) for count in counts])
    shown = np.flatnonzero(np.isfinite(found).all(axis=1))
    kept = [counts[i] for i in shown]
    panel.fill_between(kept, found[shown, 1], found[shown, 2], color=GREY, alpha=0.25)
    panel.plot(kept, found[shown, 0], color=BLUE)
    panel.set_xscale("log", base=2)
    panel.set_xlabel("trials")
    panel.set_title("best of so many trials", loc="left")


def _draw_marginal(panel: Any, name: str, levels: np.ndarray, losses: np.ndarray) -> None:
    values = PAPER_GRID[name]
    for level in range(len(values)):
        here = losses[levels == level].tolist()
        if not here:
            continue
        low, middle, high = quantiles(here, (0.25, 0.5, 0.75))
        if math.isfinite(low):
            top = high if math.isfinite(high) else 1e3
            panel.plot([level, level], [low, top], color=BLUE, linewidth=4, alpha=0.35)
        if math.isfinite(middle):
            panel.plot(level, middle, "o", color=BLUE, markeredgecolor=INK, markersize=5)
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values], rotation=60)
    panel.tick_params(axis="x", labelsize=7)
    panel.set_title(_LABELS[name], loc="left")


def _draw_slices(panel: Any, slices: Mapping[str, Slice]) -> None:
    colours = (BLUE, AMBER, VIOLET, RED, GREEN)
    for colour, (name, found) in zip(colours, slices.items(), strict=True):
        rise, error = np.array(found.rise), np.array(found.error)
        panel.plot(found.octaves, rise, color=colour, label=_LABELS[name])
        panel.fill_between(found.octaves, rise - error, rise + error, color=colour, alpha=0.12)
    panel.set_xlabel("octaves from the optimum")
    panel.set_ylabel("nats above it")
    panel.set_xlim(-8, 8)
    panel.set_title("around the optimum", loc="left")
    panel.legend(fontsize=6)


def _draw_map(panel: Any, chosen: np.ndarray, losses: np.ndarray) -> None:
    rate, decay = TUNED.index("lr"), TUNED.index("weight_decay")
    sizes = len(PAPER_GRID["weight_decay"]), len(PAPER_GRID["lr"])
    medians = np.full(sizes, np.nan)
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            here = losses[(chosen[:, decay] == i) & (chosen[:, rate] == j)]
            if len(here):
                (middle,) = quantiles(here.tolist(), (0.5,))
                medians[i, j] = middle if math.isfinite(middle) else math.nan
    colours = panel.imshow(medians, cmap="magma_r", origin="lower", aspect="auto")
    panel.grid(visible=False)
    panel.set_xticks(range(sizes[1]), [f"{x:g}" for x in PAPER_GRID["lr"]], rotation=60)
    panel.set_yticks(range(sizes[0]), [f"{x:g}" for x in PAPER_GRID["weight_decay"]])
    panel.tick_params(labelsize=7)
    panel.set_xlabel("learning rate")
    panel.set_ylabel("weight decay")
    panel.set_title("median loss", loc="left")
    panel.figure.colorbar(colours, ax=panel)


FIGURE = GlobalBaseline(
    sizes={
        "tiny": BaselineSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=10), trials=12
        ),
        "cpu": BaselineSize(
            setting=setting("cpu", width=32, depth=2, sequences=4, steps=150), trials=256
        ),
        "gpu": BaselineSize(
            setting=setting("gpu", width=64, depth=4, sequences=16, steps=1024), trials=2048
        ),
        "paper": BaselineSize(setting=PAPER, trials=2048),
    }
)
