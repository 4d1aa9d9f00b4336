"""landscape: loss over the learning rates of two modules, and where training breaks.

One trial for each point of a plane, all other rates at their global value. Where training diverges
its last stable loss is shown. Three things are measured: how far apart the modules' limits of
stability are, how rough the boundary is (its box-counting dimension; a smooth line has 1), and from
how much of the stable region the way downhill leads to the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from completedp.evidence.figures.drawing import INK, RED, canvas, finish, powers_of_two
from completedp.evidence.figures.figure import Finding, Found, Setting, all_diverged, judged
from completedp.evidence.figures.settings import PAPER, setting
from completedp.studies.cells import Wanted
from completedp.studies.spec import Site
from completedp.theory.rules import Rules
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Ended, Lab

Plane = tuple[str, str]
APART = 1.0
"""Octaves that two modules' limits are apart at least, where the paper says that they differ."""
ROUGH = 1.05
"""A dimension that no smooth line has on a grid."""
LOST, LEARNED = 0.5, 0.1
"""Nats above its lowest loss at which training has broken; and the part of what the best learned
that it has to have learned."""
NEAR = 0.05
"""Nats from the best that still count as having got there."""


@dataclass(frozen=True, kw_only=True)
class LandscapeSize:
    """Planes, and how finely they are looked at."""

    setting: Setting
    planes: tuple[Plane, ...]
    points: int
    """Along each side."""
    low: float
    high: float
    """Octaves from the global value."""

    @property
    def octaves(self) -> list[float]:
        """Along a side."""
        return np.linspace(self.low, self.high, self.points).tolist()


@dataclass(frozen=True, kw_only=True)
class Map:
    """A plane: losses [first module, second module], and where training broke."""

    losses: np.ndarray
    broken: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The figure."""

    name: str = "landscape"
    claim: str = (
        "Training breaks at different learning rates in different modules, along a boundary of "
        "complex shape; inside it the way downhill leads to the best"
    )
    paper: str = "Figure 8"
    see: str = (
        "Loss over two modules' learning rates: is the white line, where training breaks, ragged, "
        "and does the way downhill inside it lead to the star?"
    )
    sizes: Mapping[str, LandscapeSize]

    def cost(self, size: str) -> Cost:
        """A trial for every point."""
        at = self.sizes[size]
        total = at.setting.cost(at.setting.base, len(at.planes) * at.points**2)
        # Planning a trial and filling its slot take longer than many a step of a small model.
        return replace(total, seconds_besides=0.01 * total.trials)

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        at = self.sizes[size]
        task = lab.task(at.setting)
        recipe = lab.recipe(task, at.setting)
        site = Site(scale=at.setting.base, rules=Rules())
        maps = {}
        for plane in at.planes:
            coordinates = [f"lr/type/{module}" for module in plane]
            study = lab.listed(" and ".join(plane), task, recipe, coordinates)
            wanted = {
                (i, j): Wanted(site=site, octaves=(a, b), seed=0)
                for i, a in enumerate(at.octaves)
                for j, b in enumerate(at.octaves)
            }
            trained = study.trained(wanted)
            lab.check_stable()
            maps[plane] = as_map(trained, at.points)
            if maps[plane].broken.all():
                raise all_diverged(f"{self.name} over {' and '.join(plane)}", len(wanted))
        return self.judge(at, maps)

    def judge(self, at: LandscapeSize, maps: Mapping[Plane, Map]) -> Found:
        """The verdict on maps, and the drawing."""
        octaves, step = at.octaves, (at.high - at.low) / (at.points - 1)
        limits: dict[str, float] = {}
        planes: dict[str, dict[str, Any]] = {}
        findings: list[Finding] = []
        for plane, found in maps.items():
            middle = int(np.argmin(np.abs(octaves)))
            limits[plane[0]] = limit_of(octaves, found.broken[:, middle])
            limits[plane[1]] = limit_of(octaves, found.broken[middle, :])
            dimension, error = box_dimension(boundary(found.broken))
            share = downhill_share(found)
            planes[" and ".join(plane)] = {
                "best": float(found.losses[~found.broken].min()),
                "broken": float(found.broken.mean()),
                "dimension": dimension,
                "dimension_error": error,
                "downhill": share,
            }
            name = " and ".join(plane)
            findings.append(
                judged(
                    f"{name}: downhill from at least 90 % of the stable points leads to within "
                    f"{NEAR} nats of the best",
                    share,
                    (share, share),
                    at_least=0.9,
                )
            )
            findings.append(
                judged(
                    f"{name}: the boundary is rougher than a line, its box-counting dimension "
                    f"above {ROUGH:g}",
                    dimension,
                    None if dimension is None else (dimension - 2 * error, dimension + 2 * error),
                    at_least=ROUGH,
                )
            )
        apart = max(limits.values()) - min(limits.values())
        beyond = max(limits.values()) >= octaves[-1]
        findings.insert(
            0,
            judged(
                f"modules' limits of stability are at least {APART:g} octave apart"
                + (" (what is beyond the map is taken at its end)" if beyond else ""),
                apart,
                (apart - step, apart + step),
                unit="octaves",
                at_least=APART,
            ),
        )
        return Found(
            findings=findings,
            numbers={"limits": limits, "planes": planes, "step": step, "high": at.high},
            raw={
                "octaves": octaves,
                "planes": {
                    " and ".join(plane): {
                        "losses": np.round(found.losses, 5).tolist(),
                        "broken": found.broken.astype(int).tolist(),
                    }
                    for plane, found in maps.items()
                },
            },
            text=_table(limits, planes, at.high),
            svg=_draw(self.claim, at, maps),
        )


def as_map(trained: Mapping[tuple[int, int], Ended], points: int) -> Map:
    """Every trial's loss, and whether training broke.

    Adam's steps have a size of their own: training that breaks need not end in infinities. Broken
    is what diverged, what ended well above the lowest loss it had been at, and what hardly learned.
    """
    most = max(ended.first - ended.last for ended in trained.values())
    losses, broken = np.empty((points, points)), np.zeros((points, points), dtype=bool)
    for place, ended in trained.items():
        diverged = not math.isfinite(ended.loss)
        losses[place] = ended.last if diverged else ended.loss
        lost, learned = ended.last - ended.lowest, ended.first - ended.last
        broken[place] = diverged or lost > LOST or learned < LEARNED * most
    finite = losses[np.isfinite(losses)]
    return Map(losses=np.where(np.isfinite(losses), losses, finite.max()), broken=broken)


def limit_of(octaves: Sequence[float], broken: np.ndarray) -> float:
    """The highest octave up to which nothing breaks, from the middle on."""
    middle = int(np.argmin(np.abs(octaves)))
    after = np.flatnonzero(broken[middle:])
    return float(octaves[-1] if not len(after) else octaves[max(0, middle + int(after[0]) - 1)])


def boundary(broken: np.ndarray) -> np.ndarray:
    """Stable points beside broken ones."""
    around = np.pad(broken, 1, mode="edge")
    beside = around[:-2, 1:-1] | around[2:, 1:-1] | around[1:-1, :-2] | around[1:-1, 2:]
    return ~broken & beside


def box_dimension(edge: np.ndarray) -> tuple[float | None, float]:
    """The slope of log2(boxes touched) over log2(boxes along a side), and its error."""
    size = len(edge)
    sides = [side for side in (1, 2, 4, 8, 16) if size // side >= 4]
    if not edge.any() or len(sides) < 3:
        return None, 0.0
    counts = []
    for side in sides:
        whole = size // side * side
        boxes = edge[:whole, :whole].reshape(size // side, side, size // side, side)
        counts.append(int(boxes.any(axis=(1, 3)).sum()))
    x = -np.log2(sides)
    slope, offset = np.polyfit(x, np.log2(counts), 1)
    rest = np.log2(counts) - slope * x - offset
    error = math.sqrt(float((rest**2).sum()) / (len(x) - 2) / float(((x - x.mean()) ** 2).sum()))
    return float(slope), error


def downhill_share(found: Map) -> float:
    """The part of the stable points from which going downhill ends near the best.

    On losses averaged over each point's neighbours, as one seed's noise makes pits everywhere.
    """
    smooth = _averaged(np.where(found.broken, np.nan, found.losses))
    smooth = np.where(found.broken, np.inf, smooth)
    good = smooth <= smooth.min() + NEAR
    reached = 0
    stable = np.argwhere(~found.broken)
    for start in stable:
        place = tuple(start)
        while True:
            rows = slice(max(0, place[0] - 2), place[0] + 3)
            columns = slice(max(0, place[1] - 2), place[1] + 3)
            around = smooth[rows, columns]
            best = np.unravel_index(np.argmin(around), around.shape)
            there = (rows.start + int(best[0]), columns.start + int(best[1]))
            if smooth[there] >= smooth[place]:
                break
            place = there
        reached += bool(good[place])
    return reached / len(stable)


def _averaged(losses: np.ndarray) -> np.ndarray:
    """The mean of every point and its neighbours that are there."""
    padded = np.pad(losses, 1, constant_values=np.nan)
    size = len(losses)
    parts = [padded[i : i + size, j : j + size] for i in range(3) for j in range(3)]
    there = np.isfinite(parts)
    return np.where(there, parts, 0.0).sum(axis=0) / np.maximum(1, there.sum(axis=0))


def _table(limits: Mapping[str, float], planes: Mapping[str, Any], high: float) -> str:
    out = ["limit of stability, octaves above the global learning rate"]
    for module, limit in sorted(limits.items(), key=lambda pair: pair[1]):
        out.append(f"    {module:<14} {limit:+.2f}{' or more' if limit >= high else ''}")
    for name, row in planes.items():
        dimension = "" if row["dimension"] is None else f", dimension {row['dimension']:.2f}"
        out.append(
            f"{name}: best {row['best']:.4f}, {row['broken']:.0%} broken{dimension}, downhill from "
            f"{row['downhill']:.0%}"
        )
    return "\n".join(out)


def _draw(claim: str, at: LandscapeSize, maps: Mapping[Plane, Map]) -> str:
    value = math.log2(at.setting.values["lr"])
    setting = (
        f"Final loss over the learning rates of two modules, {at.points} x {at.points} trials of "
        f"{at.setting.base}, {at.setting.base.steps:,} steps; the others at the global value "
        "(cross). White line: where training breaks; star: the best; black: broken, or among the "
        "2 % of highest losses."
    )
    with canvas(1, len(maps), claim, setting, panel=(5.2, 4.4)) as (figure, grid):
        for panel, (plane, found) in zip(grid[0], maps.items(), strict=True):
            _draw_map(panel, at, plane, found, value)
        return finish(figure)


def _draw_map(panel: Any, at: LandscapeSize, plane: Plane, found: Map, value: float) -> None:
    octaves = at.octaves
    stable = found.losses[~found.broken]
    low, high = float(stable.min()), float(np.quantile(stable, 0.98))
    colours = panel.pcolormesh(
        octaves,
        octaves,
        found.losses.T,
        cmap="magma_r",
        vmin=low,
        vmax=max(high, low + 0.1),
        shading="nearest",
        rasterized=True,
    )
    if found.broken.any():
        panel.contour(
            octaves,
            octaves,
            found.broken.T.astype(float),
            levels=[0.5],
            colors="white",
            linewidths=1.2,
        )
    masked = np.where(found.broken, np.inf, found.losses)
    i, j = np.unravel_index(np.argmin(masked), masked.shape)
    panel.plot(octaves[i], octaves[j], "*", color="white", markeredgecolor=INK, markersize=13)
    panel.plot(0, 0, "x", color=RED, markersize=8, markeredgewidth=2)
    panel.grid(visible=False)
    panel.set_title(" and ".join(plane), loc="left")
    panel.set_xlabel(f"learning rate of {plane[0]}")
    panel.set_ylabel(f"learning rate of {plane[1]}")
    for which in ("x", "y"):
        powers_of_two(panel, which, at.low, at.high, value)
    panel.figure.colorbar(colours, ax=panel, label="loss", pad=0.02, extend="max")


_PLANES = (("qkv", "mlp_in"), ("embedding", "unembedding"))

FIGURE = Landscape(
    sizes={
        "tiny": LandscapeSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=10),
            planes=_PLANES[:1],
            points=5,
            low=-4.0,
            high=10.0,
        ),
        "cpu": LandscapeSize(
            setting=setting("cpu", width=32, depth=2, sequences=4, steps=100),
            planes=_PLANES,
            points=12,
            low=-5.0,
            high=8.0,
        ),
        "gpu": LandscapeSize(
            setting=setting("gpu", width=64, depth=4, sequences=8, steps=512),
            planes=_PLANES,
            points=64,
            low=-5.0,
            high=8.0,
        ),
        "paper": LandscapeSize(
            setting=PAPER,
            planes=(*_PLANES, ("attn_out", "mlp_out"), ("qkv", "unembedding")),
            points=64,
            low=-5.0,
            high=8.0,
        ),
    }
)
