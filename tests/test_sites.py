"""A search at several scales: rounds in turn, losses relative to the start, and what it finds."""

import math
from pathlib import Path

import numpy as np
import pytest
from helpers import error_of
from studies import BASE, make_recipe, settings, write_tokens

from completedp.studies import sites
from completedp.studies.config import WorkerConfig
from completedp.studies.engines import Bounds, Engine, RandomSearch, Told
from completedp.studies.objective import Objective
from completedp.studies.registry import make_engine
from completedp.studies.run import open_study, spec_from
from completedp.studies.sites import ROUND, STARTS, SeveralSites, site_of, trials_by_site
from completedp.studies.status import status
from completedp.studies.store import Store
from completedp.studies.worker import work
from completedp.tasks.task import task_from
from completedp.theory.scale import Ratios

BOUNDS = Bounds(low=np.full(3, -4.0), high=np.full(3, 4.0), start=np.ones(3))


class Recording(RandomSearch):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(BOUNDS, seed=1)
        self.heard: list[tuple[int, float]] = []

    def _learn(self, trial: Told) -> None:
        self.heard.append((trial.number, trial.loss))


def test_trials_go_to_the_sites_in_turn() -> None:
    """Rounds go to the sites in turn, and the first trials of each are the start itself."""
    engine = SeveralSites(Recording(), 3)
    found = [engine.propose(number) for number in range(7 * ROUND)]
    assert [p.site for p in found if p is not None] == [n // ROUND % 3 for n in range(7 * ROUND)]
    at_start = [n for n, p in enumerate(found) if p is not None and (p.point == 1.0).all()]
    assert at_start == [site * ROUND + n for site in range(3) for n in range(STARTS)]


def test_the_trials_of_a_site_are_counted_as_they_go() -> None:
    """How many of the first trials a site has is what going through them gives."""
    for sites_there in (1, 2, 3):
        for trials in (0, 1, ROUND, ROUND + 5, 3 * ROUND, 7 * ROUND - 1):
            went = [site_of(number, sites_there) for number in range(trials)]
            counted = [went.count(site) for site in range(sites_there)]
            assert trials_by_site(trials, sites_there) == counted


def test_an_engine_is_told_the_gain_over_the_start_of_its_site() -> None:
    """Losses are told less the mean of the start's there, once that is known, in order."""
    inner = Recording()
    engine = SeveralSites(inner, 2)
    point = np.zeros(3)
    engine.tell(STARTS, point, 3.5)  # before any start has finished
    for number in range(STARTS):
        assert inner.heard == []
        engine.tell(number, point, 3.0 + 0.1 * number)
    level = 3.0 + 0.1 * (STARTS - 1) / 2
    assert inner.heard[0] == (STARTS, pytest.approx(3.5 - level))
    assert [number for number, _ in inner.heard] == [STARTS, *range(STARTS)]
    engine.tell(2 * ROUND, point, 2.0)
    assert inner.heard[-1] == (2 * ROUND, pytest.approx(2.0 - level))
    engine.tell(ROUND + STARTS, point, 1.0)  # the other site has no level yet
    assert inner.heard[-1][0] == 2 * ROUND
    assert engine.told == STARTS + 3
    assert engine.describe()["gain"] == pytest.approx(level - 2.0)


def test_a_site_where_the_start_diverges_says_nothing_good() -> None:
    """Where the start diverges there is nothing to compare with: trials count as diverged."""
    inner = Recording()
    engine = SeveralSites(inner, 2)
    for number in range(STARTS):
        engine.tell(number, np.zeros(3), math.inf)
    engine.tell(STARTS, np.zeros(3), 1.0)
    assert {loss for _, loss in inner.heard} == {math.inf}
    assert "gain" not in engine.describe()


def recommended(engine: Engine, losses: list[np.ndarray], trials: int) -> np.ndarray:
    """What an engine recommends on bowls with these bottoms, one a site, with noise."""
    rng = np.random.default_rng(0)
    for start in range(0, trials, ROUND):
        proposals = {n: engine.propose(n) for n in range(start, start + ROUND)}
        for number, proposed in proposals.items():
            assert proposed is not None
            away = proposed.point - losses[proposed.site]
            loss = 3.0 - proposed.site + 0.02 * float(away @ away) + 0.005 * rng.normal()
            engine.tell(number, proposed.point, loss)
    return engine.recommend()


def test_what_is_found_gains_at_every_site() -> None:
    """Of two sites with bottoms apart it goes between them, and the base alone to its own."""
    bounds = Bounds(low=np.full(12, -4.0), high=np.full(12, 4.0), start=np.full(12, 2.0))
    bottoms = [np.zeros(12), np.full(12, 1.5)]
    both = recommended(SeveralSites(make_engine("recombine", bounds, 0), 2), bottoms, 12 * ROUND)
    alone = recommended(make_engine("recombine", bounds, 0), bottoms, 12 * ROUND)
    worst = [max(float(((p - b) ** 2).sum()) for b in bottoms) for p in (both, alone)]
    assert worst[0] < 0.7 * worst[1]
    assert 0.25 < both.mean() < 1.25  # between the two
    assert alone.mean() < 0.25


def test_a_search_at_two_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials train at their own sites, resumed to the same, and status speaks of the base alone."""
    monkeypatch.setattr(sites, "ROUND", 3)
    monkeypatch.setattr(sites, "STARTS", 1)
    data = write_tokens(tmp_path)
    config = settings(data, trials=8, sites=("depth=2,tokens=2",), space="global")
    recipe = make_recipe()
    task = task_from(config, recipe)
    spec = spec_from(config, task, recipe)
    assert spec.sites[1].scale == BASE.times(Ratios(depth=2, tokens=2))
    options = WorkerConfig(slots=2, device="cpu", compile=False)
    with Store(str(tmp_path / "s.db")) as store:
        study = open_study(store, "both", spec)
        work(study, Objective(spec, task, options))
        rows = study.trials()
        assert [row.site for row in rows] == [0, 0, 0, 1, 1, 1, 0, 0]
        assert [row.steps for row in rows] == [BASE.steps * (1 + row.site) for row in rows]
        base = [row.loss for row in rows if row.site == 0 and row.loss is not None]
        assert status(study).best_loss == min(base)
    refused = settings(data, sites=("tokens=2",), stop_early=True)
    assert "stop_early" in error_of(spec_from, refused, task, recipe)
