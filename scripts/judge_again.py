"""Judge what is kept in docs/results again, after a change in how verdicts are reached.

    python scripts/judge_again.py [NAME ...]
    make docs

Nothing is trained: findings, numbers and the drawing are made of the measurements, NAME.json.xz.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.common.files import json_text, plain, write_text_atomically
from completedp.evidence.figures.annealing import Annealing
from completedp.evidence.figures.base_size import BaseSize
from completedp.evidence.figures.figure import Found
from completedp.evidence.figures.headline import Headline, Run
from completedp.evidence.figures.landscape import Landscape, Map
from completedp.evidence.figures.lines import Curve
from completedp.evidence.figures.module_transfer import ModuleTransfer
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.run import raw_of
from completedp.evidence.figures.search_curves import LABELS, Place, SearchCurves
from completedp.evidence.figures.sweeps import Sweep
from completedp.evidence.figures.tokens_exponent import TokensExponent
from completedp.evidence.figures.tokens_law import TokensLaw
from completedp.theory.recipe import Recipe

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def judged_again(name: str, folder: Path = RESULTS) -> tuple[Found, dict[str, Any]]:
    """What a figure's measurements say today, and what its file says."""
    written = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    raw, figure = raw_of(folder / f"{name}.json.xz"), FIGURES[name]
    return READERS[type(figure)](figure, figure.sizes[written["size"]], raw, written), written


def _number(loss: float | None) -> float:
    """A loss as JSON has it: None where it was infinite."""
    return math.inf if loss is None else loss


def _of_lines(figure: ModuleTransfer, at: Any, raw: Any, _: Any) -> Found:
    losses = np.array([row["losses"] for row in raw["scales"]])
    return figure.judge(at, losses, raw["log2"])


def _of_horizons(figure: TokensExponent, at: Any, raw: Any, _: Any) -> Found:
    return figure.judge(at, _horizons(raw))


def _of_tree(figure: Annealing, at: Any, raw: Any, _: Any) -> Found:
    nodes, fresh = (
        {tuple(map(int, levels)): found for levels, found in raw[part].items()}
        for part in ("nodes", "fresh")
    )
    return figure.judge(at, {levels: _number(loss) for levels, loss in nodes.items()}, fresh)


def _of_headline(figure: Headline, at: Any, raw: Any, written: Any) -> Found:
    found = {Run(**run): losses for run, losses in raw}
    recipes = written["numbers"]["recipes"]
    chosen = {arm: Recipe.from_dict(recipe) for arm, recipe in recipes.items()}
    return figure.judge(at, found, chosen)


def _of_law(figure: TokensLaw, at: Any, raw: Any, _: Any) -> Found:
    names = raw[0]["losses"]
    return figure.judge(
        at, {name: np.array([row["losses"][name] for row in raw]) for name in names}
    )


def _of_searches(figure: SearchCurves, at: Any, raw: Any, _: Any) -> Found:
    arms = {label: arm for arm, label in LABELS.items()}
    curves: dict[str, list[Place]] = {}
    for row in raw["curves"]:
        losses = tuple(map(_number, row["losses"]))
        place = Place(trials=row["trials"], seconds=row["seconds"], losses=losses)
        curves.setdefault(arms[row["search"]], []).append(place)
    return figure.judge(at, list(map(_number, raw["start"])), curves)


def _of_bases(figure: BaseSize, at: Any, raw: Any, _: Any) -> Found:
    curves: dict[int, dict[float, dict[int, float]]] = {}
    for factor, rows in raw["curves"].items():
        for octave, seed, loss in rows:
            curves.setdefault(int(factor), {}).setdefault(octave, {})[seed] = _number(loss)
    known = [row for row in raw["models"] if row["octaves"] is not None]
    optima = {row["factor"]: row["octaves"] for row in known}
    return figure.judge(at, curves, optima, {row["factor"]: row["losses"] for row in known})


def _of_planes(figure: Landscape, at: Any, raw: Any, _: Any) -> Found:
    maps = {
        plane: Map(losses=np.array(found["losses"]), broken=np.array(found["broken"], dtype=bool))
        for plane in at.planes
        for found in [raw["planes"][" and ".join(plane)]]
    }
    return figure.judge(at, maps)


def _horizons(raw: list[dict[str, Any]]) -> dict[tuple[int, int], Any]:
    """The curves of every model and length of training."""
    return {
        (model, round(size["factor"])): {
            octave: dict(enumerate(losses))
            for octave, losses in zip(size["octaves"], size["losses"], strict=True)
        }
        for model, row in enumerate(raw)
        for size in row["sizes"]
    }


def _of_sweep(figure: Sweep, at: Any, raw: list[dict[str, Any]], _: Any) -> Found:
    """Of the lines that were measured, with as many seeds as there are of them."""
    by_name = {line.name: line for line in at.lines}
    measured: dict[Curve, dict[float, dict[int, float]]] = {}
    for row in raw:
        curve = Curve(by_name[row["line"]], row["factor"])
        at_octave = measured.setdefault(curve, {}).setdefault(row["octaves"], {})
        at_octave[row["seed"]] = _number(row["loss"])
    lines = {curve.line.name for curve in measured}
    over = replace(at.over, seeds=1 + max(row["seed"] for row in raw))
    at = replace(at, over=over, lines=tuple(line for line in at.lines if line.name in lines))
    return figure.judge(at, measured)


READERS: dict[type, Callable[[Any, Any, Any, Any], Found]] = {
    Sweep: _of_sweep,
    Headline: _of_headline,
    ModuleTransfer: _of_lines,
    TokensExponent: _of_horizons,
    TokensLaw: _of_law,
    Annealing: _of_tree,
    SearchCurves: _of_searches,
    BaseSize: _of_bases,
    Landscape: _of_planes,
}
"""Figures whose verdict needs no more than their measurements: of each kind what judges it by the
figure, its size, its measurements and its file."""
NAMES = tuple(name for name, figure in FIGURES.items() if type(figure) in READERS)


def main() -> None:
    """Rewrite NAME.json and NAME.svg."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    for name in parser.parse_args().names:
        found, written = judged_again(name)
        before = [finding["verdict"] for finding in written["findings"]]
        written["findings"] = [vars(finding) for finding in found.findings]
        written["numbers"] = found.numbers
        written |= found.summary
        write_text_atomically(RESULTS / f"{name}.json", json_text(plain(written)))
        write_text_atomically(RESULTS / f"{name}.svg", found.svg)
        after = [finding.verdict for finding in found.findings]
        print(f"{name}: {'as before' if before == after else f'{before} -> {after}'}")


if __name__ == "__main__":
    main()
