"""Judge what is kept in docs/results again, after a change in how verdicts are reached.

    python scripts/judge_again.py [NAME ...]
    make docs

Nothing is trained: findings, numbers and the drawing are made of the measurements, NAME.json.xz.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.common.files import json_text, plain, write_text_atomically
from completedp.evidence.figures.annealing import Annealing
from completedp.evidence.figures.figure import Found
from completedp.evidence.figures.headline import Headline, Run
from completedp.evidence.figures.lines import Curve
from completedp.evidence.figures.module_transfer import ModuleTransfer
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.run import raw_of
from completedp.evidence.figures.sweeps import Sweep
from completedp.evidence.figures.tokens_exponent import TokensExponent
from completedp.theory.recipe import Recipe

RESULTS = Path(__file__).parent.parent / "docs" / "results"
KINDS = (Sweep, Headline, ModuleTransfer, TokensExponent, Annealing)
NAMES = tuple(name for name, figure in FIGURES.items() if isinstance(figure, KINDS))
"""Figures whose verdict needs no more than their measurements."""


def judged_again(name: str, folder: Path = RESULTS) -> tuple[Found, dict[str, Any]]:
    """What a figure's measurements say today, and what its file says."""
    written = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    raw, figure = raw_of(folder / f"{name}.json.xz"), FIGURES[name]
    if isinstance(figure, Sweep):
        return _of_sweep(figure, written["size"], raw), written
    if isinstance(figure, ModuleTransfer):
        losses = np.array([row["losses"] for row in raw["scales"]])
        return figure.judge(figure.sizes[written["size"]], losses, raw["log2"]), written
    if isinstance(figure, TokensExponent):
        return figure.judge(figure.sizes[written["size"]], _horizons(raw)), written
    if isinstance(figure, Annealing):
        nodes, fresh = (
            {tuple(map(int, levels)): found for levels, found in raw[part].items()}
            for part in ("nodes", "fresh")
        )
        nodes = {levels: math.inf if loss is None else loss for levels, loss in nodes.items()}
        return figure.judge(figure.sizes[written["size"]], nodes, fresh), written
    assert isinstance(figure, Headline)
    found = {Run(**run): losses for run, losses in raw}
    recipes = written["numbers"]["recipes"]
    chosen = {arm: Recipe.from_dict(recipe) for arm, recipe in recipes.items()}
    return figure.judge(figure.sizes[written["size"]], found, chosen), written


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


def _of_sweep(figure: Sweep, size: str, raw: list[dict[str, Any]]) -> Found:
    """Of the lines that were measured."""
    at = figure.sizes[size]
    by_name = {line.name: line for line in at.lines}
    measured: dict[Curve, dict[float, dict[int, float]]] = {}
    for row in raw:
        curve = Curve(by_name[row["line"]], row["factor"])
        loss = math.inf if row["loss"] is None else row["loss"]
        measured.setdefault(curve, {}).setdefault(row["octaves"], {})[row["seed"]] = loss
    lines = {curve.line.name for curve in measured}
    at = replace(at, lines=tuple(line for line in at.lines if line.name in lines))
    return figure.judge(at, measured)


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
