"""Sweeps as figures: does a best value stay put along an axis, and under which rules?

A figure is a list of lines (lines.py). Every curve is measured to where its bottom is known, scale
by scale; the verdict is the drift of the bottom over the whole axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from completedp.common.warn import warn
from completedp.evidence.figures.bowl import (
    Losses,
    Range,
    bottom,
    mean_losses,
    next_points,
    points_for,
)
from completedp.evidence.figures.drawing import INK
from completedp.evidence.figures.figure import (
    PASS,
    Finding,
    Found,
    Setting,
    judged,
    same_training,
    size_of_change,
    worst,
)
from completedp.evidence.figures.lines import (
    STAYS,
    Curve,
    Line,
    Row,
    SweepSize,
    begun_at,
    rows_of,
    table,
    words,
)
from completedp.evidence.figures.sweep_drawing import draw
from completedp.studies.cells import Wanted, work_of
from completedp.studies.spec import Site
from completedp.theory.scale import Scale
from completedp.training.cost import Cost

if TYPE_CHECKING:
    from completedp.evidence.figures.lab import Lab, ListedStudy
    from completedp.tasks.task import Task
    from completedp.theory.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A figure of this kind."""

    name: str
    claim: str
    paper: str
    see: str
    vary: str
    """The hyperparameter, as a global value."""
    axis: str
    """What grows, for people."""
    limit: float
    """Octaves that an optimum which stays may drift over the whole axis."""
    sizes: Mapping[str, SweepSize]

    def cost(self, size: str) -> Cost:
        """Curves that are the same training are trained once; seeds only around the bottom."""
        at = self.sizes[size]
        base, total = at.setting.base, Cost()
        seen: dict[Any, Scale] = {}
        for line in at.lines:
            for factor in at.factors:
                scale = line.scale(base, factor)
                seen[same_training(line.rules, scale, base), line.shape, line.values] = scale
        for scale in seen.values():
            total += at.setting.cost(scale, at.over.trials)
        shapes = len({(shape, scale) for (_, shape, _), scale in seen.items()})
        return replace(total, shapes=shapes)

    def run(self, size: str, lab: Lab) -> Found:
        """Train, judge, draw."""
        at = self.sizes[size]
        if lab.model is not None:  # the reference model's parts are not to be changed in another's
            at = self._as_it_is(at)
        measured = measure(lab, at, self.vary)
        lab.check_stable()
        return self.judge(at, measured)

    def _as_it_is(self, at: SweepSize) -> SweepSize:
        """Without the lines that change the reference model, which is said."""
        left = [line for line in at.lines if line.shape]
        if left:
            parts = ", ".join(dict.fromkeys(name for line in left for name, _ in line.shape))
            warn(
                f"{self.name} leaves out the lines that change the reference model's {parts}: "
                f"{'; '.join(line.name for line in left)}"
            )
        return replace(at, lines=tuple(line for line in at.lines if line not in left))

    def judge(self, at: SweepSize, measured: Mapping[Curve, Losses]) -> Found:
        """The verdict on measured curves, and the drawing."""
        rows = {line: rows_of(line, at, measured) for line in at.lines}
        findings = {
            line: self._finding(line, of_line)
            for line, of_line in rows.items()
            if line.expects is not None
        }
        drifting = [
            line
            for line, finding in findings.items()
            if line.expects == STAYS and finding.verdict != PASS and len(at.factors) > 2
        ]
        later = replace(at, factors=at.factors[1:])
        again = [_plain(rows_of(line, later, measured)[-1]) for line in drifting]
        every = [row for of_line in rows.values() for row in of_line]
        return Found(
            findings=list(findings.values()),
            numbers={
                "limit": self.limit,
                "curves": [_plain(row) for row in every],
                "from_the_second": again,
            },
            raw=_raw(measured, at),
            text="\n".join([table(every), *(_since(later.factors[0], row) for row in again)]),
            svg=draw(self, at, measured, rows),
        )

    def _finding(self, line: Line, rows: Sequence[Row]) -> Finding:
        """What stays has to at every factor: it fails with one, and the one that says most is
        told. What moves has to by the last."""
        last = rows[-1].factor
        if line.expects == STAYS:
            claim = f"{line.name}: the best {words(self.vary)} moves by at most {self.limit:g}"
            claim += f" octaves up to x{last} in {self.axis}"
            every = [_judged(claim, row, at_most=self.limit) for row in rows[1:]]
            return worst(every)
        claim = f"{line.name}: the best {words(self.vary)} moves by more than {self.limit:g}"
        claim += f" octaves over x{last} in {self.axis}"
        return _judged(claim, rows[-1], at_least=self.limit)


def _judged(claim: str, row: Row, **limits: float) -> Finding:
    size = interval = None
    if row.drift is not None and row.half is not None:
        size, interval = abs(row.drift), size_of_change(row.drift, row.half)
    return judged(claim, size, interval, unit="octaves", **limits)


def _since(factor: int, row: Mapping[str, Any]) -> str:
    """Whether a drift that may be too large is at its small end. No verdict: it was asked after."""
    drift, half = (row[key] for key in ("drift", "half"))
    shown = "not measured" if drift is None else f"{drift:+.2f}"
    shown += "" if half is None else f" +- {half:.2f}"
    return f"{row['line']}, from x{factor} on to x{row['factor']}: {shown} octaves"


def measure(lab: Lab, at: SweepSize, vary: str) -> dict[Curve, Losses]:
    """Every curve of a sweep, to where its bottom is measured, and the first one's optimum on it.

    Each line's first scale first; then scale by scale, the largest first, so that a program is
    compiled once and has many trials.
    """
    studies: dict[Any, ListedStudy] = {}
    for line in at.lines:
        if line.kind not in studies:
            studies[line.kind] = study_of(lab, at.setting, line, vary)
    curves = [Curve(line, factor) for line in at.lines for factor in at.factors]
    places = {curve: curve.line.scale(at.setting.base, curve.factor) for curve in curves}
    for curve in curves:
        studies[curve.line.kind].check(wanted_at(curve, places[curve], 0.0, 0))
    measured: dict[Curve, dict[float, dict[int, float]]] = {}
    optima: dict[Line, float] = {}
    for firsts in (True, False):
        rest = [curve for curve in curves if (curve.factor == at.factors[0]) == firsts]
        for scale in sorted({places[curve] for curve in rest}, key=work_of, reverse=True):
            for kind, study in studies.items():
                here = [c for c in rest if places[c] == scale and c.line.kind == kind]
                measured |= _bottoms(study, here, scale, at.over, optima)
        for curve in rest if firsts else ():
            found = bottom(measured[curve], at.over).octaves
            if found is not None:
                optima[curve.line] = found[0]
    return {curve: measured[curve] for curve in curves}


def tuned_octave(lab: Lab, setting: Setting, over: Range) -> float:
    """The base's best learning rate, in octaves from the setting's value.

    The lowest one measured where it is not bracketed. Without the last digits, in which machines
    differ: what a figure trains from here goes on on another.
    """
    line = Line(name="base", colour=INK, grows=("width",))
    at = SweepSize(setting=setting, over=over, factors=(1,), lines=(line,))
    losses = measure(lab, at, "lr")[Curve(line, 1)]
    found, means = bottom(losses, over).octaves, mean_losses(losses)
    return min(means, key=means.__getitem__) if found is None else round(found[0], 9)


def tuned(lab: Lab, setting: Setting, over: Range) -> tuple[Task, Recipe]:
    """A setting's task, and its recipe with the base's best learning rate."""
    octave = tuned_octave(lab, setting, over)
    task = lab.task(setting)
    recipe = lab.recipe(task, setting)
    return task, recipe.with_values(lr=recipe.values.lr * 2.0**octave)


def _bottoms(
    study: ListedStudy,
    curves: Sequence[Curve],
    scale: Scale,
    over: Range,
    optima: Mapping[Line, float],
) -> dict[Curve, dict[float, dict[int, float]]]:
    """Curves at one scale: where their bottoms are, then what the first scale's optimum costs."""
    found: dict[Curve, dict[float, dict[int, float]]] = {curve: {} for curve in curves}

    def trained(points: Callable[[Curve], list[tuple[float, int]]]) -> bool:
        wanted = {
            (curve, octave, seed): wanted_at(curve, scale, octave, seed)
            for curve in curves
            for octave, seed in points(curve)
        }
        ended = study.trained(wanted) if wanted else {}
        for (curve, octave, seed), trial in ended.items():
            found[curve].setdefault(octave, {})[seed] = trial.loss
        return bool(wanted)

    while trained(lambda curve: next_points(found[curve], begun_at(curve, over))):
        pass

    def of_the_first(curve: Curve) -> list[tuple[float, int]]:
        if curve.line not in optima:
            return []
        octave = optima[curve.line] + curve.line.rescaled * math.log2(curve.factor)
        return points_for(octave, found[curve], over)

    trained(of_the_first)
    return found


def study_of(lab: Lab, setting: Setting, line: Line, vary: str) -> ListedStudy:
    """Lines that change the model, or what decay means, are studies of their own."""
    task = lab.task(setting, dict(line.shape))
    recipe = lab.recipe(task, replace(setting, values=setting.values | dict(line.values)))
    name = ", ".join(f"{key} {value}" for key, value in (*line.shape, *line.values)) or "sweep"
    if line.rules.weight_decay == "independent":  # the same training at the base
        values = recipe.values
        recipe = recipe.with_rules(weight_decay="independent").with_values(
            weight_decay=values.lr * values.weight_decay
        )
        name += ", independent decay"
    return lab.listed(name, task, recipe, [f"{vary}/global"])


def wanted_at(curve: Curve, scale: Scale, octave: float, seed: int) -> Wanted:
    """A trial of a curve."""
    return Wanted(site=Site(scale=scale, rules=curve.line.rules), octaves=(octave,), seed=seed)


def _plain(row: Row) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in vars(row).items()
    } | {"diverges": row.cost == math.inf}


def _raw(measured: Mapping[Curve, Losses], at: SweepSize) -> list[dict[str, Any]]:
    return [
        {
            "line": curve.line.name,
            "factor": curve.factor,
            "scale": curve.line.scale(at.setting.base, curve.factor).to_dict(),
            "octaves": octave,
            "seed": seed,
            "loss": loss if math.isfinite(loss) else None,
        }
        for curve, losses in measured.items()
        for octave, seeds in sorted(losses.items())
        for seed, loss in sorted(seeds.items())
    ]
