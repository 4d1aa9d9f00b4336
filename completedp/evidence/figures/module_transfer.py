"""module-transfer: per-module learning rates of a small model, on the line from the global one.

The global learning rate is tuned at the base, then learning rates by module type and depth are
searched from there. At each scale models are trained along the straight line, in log2, from the
global rates (0) to the per-module ones (1) and a little beyond: the gain should be there at every
scale, and the lowest point near 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import BLUE, GREEN, INK, canvas, finish, shades
from completedp.evidence.figures.figure import Finding, Found, Setting, judged, mean_and_half
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import tuned
from completedp.studies.cells import Wanted
from completedp.studies.spec import Site
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios, Scale
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab

_FRESH = 1_000
"""The first seed of those that nothing was chosen by."""


@dataclass(frozen=True, kw_only=True)
class ModuleSize:
    """A search at the base, and the scales that its result is carried to."""

    setting: Setting
    over: Range
    """Where the global learning rate is tuned."""
    trials: int
    """Of the search."""
    ratios: tuple[Ratios, ...]
    along: tuple[float, ...]
    """Places on the line."""
    seeds: int

    def scales(self) -> list[Scale]:
        """Where the line is walked, the base first."""
        return [self.setting.base.times(ratios) for ratios in self.ratios]


@dataclass(frozen=True, kw_only=True)
class ModuleTransfer:
    """The figure."""

    name: str = "module-transfer"
    claim: str = (
        "Per-module learning rates found on a small model are better than the global one at every "
        "scale, and stay near the best on the line between the two"
    )
    paper: str = "Figure 11"
    see: str = "If the claim holds, curves fall from 0 (global) to 1 (per module) at every scale."
    sizes: Mapping[str, ModuleSize]

    def cost(self, size: str) -> Cost:
        """The search and the line."""
        at = self.sizes[size]
        total = at.setting.cost(at.setting.base, at.over.trials + at.trials + 3 * at.seeds)
        for scale in at.scales():
            total += at.setting.cost(scale, len(at.along) * at.seeds)
        return total

    def run(self, size: str, lab: Lab) -> Found:
        """Search, train, judge, draw."""
        at = self.sizes[size]
        task, start = tuned(lab, at.setting, at.over)
        found = lab.rates_by_module(task, start, trials=at.trials, seeds=at.seeds)
        names = sorted(set(start.hyperparameters.log2) | set(found.hyperparameters.log2))
        names = [name for name in names if name.startswith("lr/")]
        direction = found.hyperparameters.vector(names) - start.hyperparameters.vector(names)
        study = lab.listed("line", task, start, names)
        wanted = {
            (index, place, seed): Wanted(
                site=Site(scale=scale, rules=Rules()),
                octaves=tuple((place * direction).tolist()),
                seed=_FRESH + seed,
            )
            for index, scale in enumerate(at.scales())
            for place in at.along
            for seed in range(at.seeds)
        }
        losses = np.empty((len(at.ratios), len(at.along), at.seeds))
        for (index, place, seed), ended in study.trained(wanted).items():
            losses[index, at.along.index(place), seed] = ended.loss
        moved = dict(zip(names, direction.tolist(), strict=True))
        lab.check_stable()
        return self.judge(at, losses, moved)

    def judge(self, at: ModuleSize, losses: np.ndarray, moved: Mapping[str, float]) -> Found:
        """The gain at each scale, and where on the line its lowest point is."""
        zero, one = at.along.index(0.0), at.along.index(1.0)
        findings: list[Finding] = []
        rows: list[dict[str, Any]] = []
        for scale, here in zip(at.scales(), losses, strict=True):
            gain, half = mean_and_half((here[zero] - here[one]).tolist())
            means = here.mean(axis=1)
            lowest = at.along[int(np.argmin(means))]
            rows.append(
                {
                    "scale": scale.to_dict(),
                    "gain": gain,
                    "half": half,
                    "lowest": lowest,
                    "losses": here.tolist(),
                }
            )
            name = f"width {scale.width}, depth {scale.depth}"
            findings.append(
                judged(
                    f"{name}: per-module rates are better than the global one",
                    gain,
                    (gain - half, gain + half),
                    unit="nats",
                    at_least=0.0,
                )
            )
            others = [place for place in range(len(at.along)) if place != one]
            best = min(others, key=lambda place: float(means[place]))
            lost, around = mean_and_half((here[one] - here[best]).tolist())
            findings.append(
                judged(
                    f"{name}: on the line nothing is better than them by more than 0.01 nats",
                    lost,
                    (lost - around, lost + around),
                    unit="nats",
                    at_most=0.01,
                )
            )
        return Found(
            findings=findings,
            numbers={"along": list(at.along), "scales": rows, "log2": dict(moved)},
            raw={"along": list(at.along), "scales": rows, "log2": dict(moved)},
            text=_table(rows),
            svg=_draw(self.claim, at, losses, rows, moved),
        )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    out = [f"{'scale':<24} {'gain over global':>20} {'lowest at':>10}"]
    for row in rows:
        name = f"width {row['scale']['width']}, depth {row['scale']['depth']}"
        gain = f"{row['gain']:+.4f} +- {row['half']:.4f}"
        out.append(f"{name:<24} {gain:>20} {row['lowest']:>10g}")
    return "\n".join(out)


def _draw(
    claim: str,
    at: ModuleSize,
    losses: np.ndarray,
    rows: Sequence[Mapping[str, Any]],
    moved: Mapping[str, float],
) -> str:
    base = at.setting.base
    below = (
        f"Base: {base}; {at.trials} trials of search there. {at.seeds} fresh seeds, bars of one "
        "standard error. 0 is the global learning rate, 1 the per-module ones."
    )
    with canvas(1, 2, claim, below, panel=(4.8, 3.5)) as (figure, grid):
        left, right = grid[0]
        zero = at.along.index(0.0)
        for colour, here, row in zip(shades(BLUE, len(rows)), losses, rows, strict=True):
            above = here - here[zero].mean()
            left.errorbar(
                at.along,
                above.mean(axis=1),
                yerr=above.std(axis=1, ddof=1) / math.sqrt(at.seeds) if at.seeds > 1 else None,
                color=colour,
                marker="o",
                markersize=4,
                capsize=2,
                label=f"width {row['scale']['width']}, depth {row['scale']['depth']}",
            )
        left.axhline(0.0, color=INK, linewidth=0.8)
        left.set_xlabel("from global to per module")
        left.set_ylabel("nats from the global learning rate's")
        left.set_title("the line between the two", loc="left")
        left.legend()
        names = sorted(moved, key=moved.__getitem__)
        right.barh(
            range(len(names)),
            [moved[name] for name in names],
            color=[GREEN if "/type/" in name else BLUE for name in names],
        )
        right.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=7)
        right.axvline(0.0, color=INK, linewidth=0.8)
        right.set_xlabel("octaves from the global learning rate")
        right.set_title("what the search found", loc="left")
        return finish(figure)


def _short(name: str) -> str:
    return name.removeprefix("lr/").removeprefix("type/").replace("depth/", "layer ")


_ALONG = (-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25)

FIGURE = ModuleTransfer(
    sizes={
        "tiny": ModuleSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=10),
            over=Range(octaves=planned_octaves(-2, 4, 2), seeds=2, reach=6),
            trials=6,
            ratios=(Ratios(), Ratios(width=2.0, depth=2.0)),
            along=(0.0, 0.5, 1.0),
            seeds=2,
        ),
        "cpu": ModuleSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=200),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            trials=96,
            ratios=(Ratios(), Ratios(width=2.0), Ratios(depth=2.0)),
            along=_ALONG,
            seeds=3,
        ),
        "gpu": ModuleSize(
            setting=setting("gpu", width=64, depth=4, sequences=16, steps=2048),
            over=Range(octaves=planned_octaves(-3, 2), seeds=3),
            trials=384,
            ratios=(Ratios(), Ratios(width=2.0), Ratios(width=2.0, depth=2.0), Ratios(width=4.0)),
            along=_ALONG,
            seeds=3,
        ),
        "paper": ModuleSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            trials=5000,
            ratios=(Ratios(), Ratios(width=2.0, depth=2.0), Ratios(width=3.0, depth=4.0)),
            along=_ALONG,
            seeds=3,
        ),
    }
)
