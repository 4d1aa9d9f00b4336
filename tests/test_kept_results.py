"""What docs/results says follows from the measurements that are kept beside it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from completedp.evidence.figures.figure import Found
from completedp.evidence.figures.headline import Headline, Run
from completedp.evidence.figures.lines import Curve
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.run import raw_of
from completedp.evidence.figures.sweeps import Sweep
from completedp.theory.recipe import Recipe

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def kept(name: str) -> tuple[dict[str, Any], Any]:
    """A figure's verdict and its measurements."""
    written = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return written, raw_of(RESULTS / f"{name}.json.xz")


def judged_again(figure: Sweep, size: str, raw: list[dict[str, Any]]) -> Found:
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


def assert_same(mine: Any, written: Any) -> None:
    """Equal up to the last digits of a fit, which libraries may round otherwise."""
    if isinstance(written, dict):
        assert list(mine) == list(written)
        for key, value in written.items():
            assert_same(mine[key], value)
    elif isinstance(written, list):
        assert len(mine) == len(written)
        for one, other in zip(mine, written, strict=True):
            assert_same(one, other)
    elif isinstance(written, float):
        assert mine == pytest.approx(written, rel=1e-5, abs=1e-5)
    else:
        assert mine == written


@pytest.mark.parametrize("name", [n for n, figure in FIGURES.items() if isinstance(figure, Sweep)])
def test_a_sweeps_verdict_follows_from_its_measurements(name: str) -> None:
    """Judging the kept losses again gives the kept findings and numbers."""
    figure = FIGURES[name]
    assert isinstance(figure, Sweep)
    written, raw = kept(name)
    found = judged_again(figure, written["size"], raw)
    assert_same([vars(finding) for finding in found.findings], written["findings"])
    assert_same(found.numbers, written["numbers"])


def test_the_headlines_verdict_follows_from_its_measurements() -> None:
    """Judging the kept losses again gives the kept findings and speed-ups."""
    figure = FIGURES["headline"]
    assert isinstance(figure, Headline)
    written, raw = kept("headline")
    losses = {Run(**run): losses for run, losses in raw}
    recipes = written["numbers"]["recipes"]
    chosen = {arm: Recipe.from_dict(recipe) for arm, recipe in recipes.items()}
    found = figure.judge(figure.sizes[written["size"]], losses, chosen)
    assert_same([vars(finding) for finding in found.findings], written["findings"])
    assert_same(found.numbers, written["numbers"])
    assert_same(found.summary, {key: written[key] for key in found.summary})
