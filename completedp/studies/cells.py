"""Cells: a study whose trials are listed beforehand, as a sweep's are.

The list is kept with the study, so any worker on any machine can take its part. It may grow: what
is asked for later and not there yet is added at the end, and what is there stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.studies.engines import Bounds, Engine, Proposal
from completedp.studies.spec import Site
from completedp.studies.study import Study
from completedp.theory.scale import Scale

NAME = "cells"
"""The engine's name in a study's spec, and the note's that holds the list."""
SITES = "sites"
"""The note that holds where cells train; their list may grow as well."""


@dataclass(frozen=True)
class Cell:
    """One trial to be run: a site's number, a point, a seed."""

    site: int
    point: tuple[float, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A trial to be run: where, octaves from the recipe's own values, seed."""

    site: Site
    octaves: tuple[float, ...]
    seed: int


class Cells(Engine):
    """Proposes what the study's list says."""

    def __init__(self, bounds: Bounds, seed: int, *, study: Study | None = None) -> None:
        super().__init__(bounds, seed)
        self._study = study
        self._cells: list[Cell] = []

    def propose(self, number: int) -> Proposal | None:
        """The cell of that number; None while the list is still being made."""
        if number >= len(self._cells):
            if self._study is None:
                raise CompletedpError("a list of cells belongs to a study")
            self._cells = read_cells(self._study)
        if number >= len(self._cells):
            return None
        cell = self._cells[number]
        return Proposal(point=np.array(cell.point), seed=cell.seed, site=cell.site)

    def _propose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        proposed = self.propose(number)
        return self.bounds.start if proposed is None else proposed.point


def read_cells(study: Study) -> list[Cell]:
    """The list of a study, by trial number."""
    note: dict[str, Any] = study.get_note(NAME) or {"cells": []}
    return [Cell(site, tuple(point), seed) for site, point, seed in note["cells"]]


def add_cells(study: Study, wanted: Sequence[Cell]) -> list[Cell]:
    """Add to a study's list what is not in it; returns the whole list."""

    def grown(note: dict[str, Any] | None) -> dict[str, Any]:
        there = [Cell(s, tuple(p), seed) for s, p, seed in (note or {"cells": []})["cells"]]
        every = dict.fromkeys((*there, *wanted))  # each once, in the order they came
        return {"cells": [[c.site, list(c.point), c.seed] for c in every]}

    cells = study.change_note(NAME, grown)["cells"]
    study.set_budget(len(cells))
    return [Cell(site, tuple(point), seed) for site, point, seed in cells]


def read_sites(study: Study) -> list[Site]:
    """Where the cells of a study train, by number."""
    note = study.get_note(SITES) or {"sites": []}
    return [Site.from_dict(site) for site in note["sites"]]


def add_sites(study: Study, wanted: Sequence[Site]) -> list[Site]:
    """Add to a study's sites those that are not there; returns all of them."""

    def grown(note: dict[str, Any] | None) -> dict[str, Any]:
        every = [Site.from_dict(site) for site in (note or {"sites": []})["sites"]]
        every = dict.fromkeys((*every, *wanted))
        return {"sites": [site.to_dict() for site in every]}

    return [Site.from_dict(site) for site in study.change_note(SITES, grown)["sites"]]


def work_of(scale: Scale) -> float:
    """What a trial costs, up to a factor, to put the large ones first."""
    return float(scale.width**2 * scale.depth * scale.tokens)
