"""Listed trials: the list grows, its sites have scales of their own, and workers share it."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import error_of
from studies import BASE, LONG, finished_once, make_recipe, objective_of, settings, write_tokens
from torch import nn

from completedp.common.errors import CompletedpError
from completedp.studies import worker
from completedp.studies.cells import (
    NAME,
    Cell,
    Cells,
    Wanted,
    add_cells,
    add_sites,
    read_cells,
    read_sites,
)
from completedp.studies.listed import list_trials
from completedp.studies.objective import engine_of
from completedp.studies.run import best, open_study
from completedp.studies.space import make_space
from completedp.studies.spec import Site, StudySpec
from completedp.studies.status import status
from completedp.studies.store import Store, Study
from completedp.studies.worker import Fold, Progress, work
from completedp.tasks.task import Task, task_from
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale
from completedp.training.slots import Slots
from completedp.training.trials import Trial

WIDE = replace(BASE, width=2 * BASE.width)
SITES = [
    Site(scale=WIDE, rules=Rules()),
    Site(scale=WIDE, rules=Rules(parameterisation="sp")),
    Site(scale=BASE, rules=Rules()),
]
CELLS = [Cell(site, (x,), seed) for site in (0, 1, 2) for x in (-1.0, 1.0) for seed in (0, 1)]
"""Four trials at each site."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("cells"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "store.db")) as opened:
        yield opened


def make_cells(
    store: Store, data: str, cells: Sequence[Cell] = CELLS, sites: Sequence[Site] = SITES
) -> Study:
    """A study of listed trials over the learning rate, new or there already; no cells, no list."""
    config, recipe = settings(data), make_recipe()
    spec = StudySpec(
        engine=NAME,
        seed=0,
        stop_early=False,
        space=make_space(recipe, "global", tunables=("lr",)),
        recipe=recipe,
        sites=(),
        task=task_from(config, recipe).identity(recipe.base),
        trials=1,
    )
    study = open_study(store, "cells", spec)
    if cells:
        add_sites(study, sites)
        add_cells(study, cells)
    return study


def test_the_list_grows_and_numbers_stay(data: str, store: Store) -> None:
    """What is asked for again is there already; what is new comes after, each once."""
    study = make_cells(store, data, CELLS[:4])
    assert study.counts()["budget"] == 4
    new = [CELLS[2], CELLS[5], CELLS[5], CELLS[4]]
    assert add_cells(study, new) == read_cells(study) == [*CELLS[:4], CELLS[5], CELLS[4]]
    assert study.counts()["budget"] == 6
    assert add_cells(study, CELLS[:2]) == read_cells(store.study())
    assert study.counts()["budget"] == 6


def test_sites_grow_and_numbers_stay(data: str, store: Store) -> None:
    """A site that is there keeps its number, whatever is asked for with it."""
    study = make_cells(store, data, CELLS[:1], SITES[:2])
    longer = Site(scale=replace(BASE, tokens=2 * BASE.tokens), rules=Rules())
    assert add_sites(study, [longer, SITES[0], longer]) == [*SITES[:2], longer]
    assert read_sites(store.study()) == [*SITES[:2], longer]


@pytest.mark.parametrize("sites", [SITES[:1], SITES])
def test_a_trial_is_known_by_its_rounded_point(
    data: str, store: Store, sites: Sequence[Site]
) -> None:
    """A fitted point, whose last digits are another machine's, is the trial that is there."""
    study = make_cells(store, data, [])
    objective = objective_of(study, data)

    def listed(octaves: float) -> list[int]:
        wanted = {site: Wanted(site=site, octaves=(octaves,), seed=0) for site in sites}
        return list(list_trials(study, objective, wanted).values())

    first = listed(1 / 3)
    assert listed(1 / 3 + 1e-13) == first
    assert set(listed(1 / 3 + 1e-6)).isdisjoint(first)


def test_many_may_add_at_once(data: str, store: Store, tmp_path: Path) -> None:
    """Lists that are added at the same moment are all there, each cell once."""
    make_cells(store, data, CELLS[:1])
    together = threading.Barrier(4, timeout=LONG)

    def add(part: int) -> None:
        with Store(str(tmp_path / "store.db")) as mine:
            study = mine.study()
            together.wait()
            for cell in CELLS[part:] + CELLS[:part]:
                add_cells(study, [cell])

    threads = [threading.Thread(target=add, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = read_cells(store.study())
    assert len(listed) == len(set(listed)) == len(CELLS)
    assert store.study().counts()["budget"] == len(CELLS)


def test_two_scales_in_one_study(data: str, store: Store) -> None:
    """Every trial of a study has the loss of its recipe, rules and scale trained alone."""
    study = make_cells(store, data)
    work(study, objective_of(study, data, slots=3))
    rows = study.trials()
    assert finished_once(rows, len(CELLS))
    runner = objective_of(study, data).runner
    for row, cell in zip(rows, CELLS, strict=True):
        assert (row.site, tuple(row.point), row.seed) == (cell.site, cell.point, cell.seed)
        site = SITES[cell.site]
        recipe = site.recipe(make_recipe(lr=make_recipe().values.lr * 2 ** cell.point[0]))
        (alone,) = runner.run([runner.trial(recipe, site.scale, cell.seed, None)], site.scale)
        assert row.loss == pytest.approx(alone.valid_loss, abs=1e-5)
    assert len({row.loss for row in rows}) == len(rows)


def test_trials_of_one_scale_train_together(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites that differ in rules alone share a stack, which has no more slots than trials there."""
    study = make_cells(store, data)
    stacks: list[tuple[int, list[int]]] = []
    run = Slots.run

    def counted(self: Slots, trials: Iterator[Trial[Any]], **options: Any) -> Any:
        mine: list[int] = []
        stacks.append((self.count, mine))

        def seen() -> Iterator[Trial[Any]]:
            for trial in trials:
                mine.append(trial.key.site)
                yield trial

        return run(self, seen(), **options)

    monkeypatch.setattr(Slots, "run", counted)
    work(study, objective_of(study, data, slots=64))
    assert stacks == [(8, [0] * 4 + [1] * 4), (4, [2] * 4)]


def test_a_trial_of_another_scale_is_trained_afterwards(data: str, store: Store) -> None:
    """A worker that comes upon another scale finishes what runs, then that one, then goes on."""
    order = [CELLS[n] for n in (0, 8, 1, 9, 2, 10)]  # wide, base, wide, base, ...
    study = make_cells(store, data, order)
    held: list[int] = []

    def report(fold: Fold, done: Progress) -> None:
        held.append(study.counts()["running"])

    work(study, objective_of(study, data, slots=4), report=report)
    assert finished_once(study.trials(), 6)
    assert [row.sequence for row in study.trials()] == list(range(6))
    assert max(held) == 2  # one in training, one that waits for its turn
    assert [row.site for row in study.trials()] == [cell.site for cell in order]


def test_what_waits_is_given_back(data: str, store: Store) -> None:
    """An interrupted worker gives back the trial of another scale that it had claimed, too."""
    study = make_cells(store, data, [CELLS[0], CELLS[8], CELLS[1]])

    def interrupt(fold: Fold, done: Progress) -> None:
        assert study.counts()["running"] == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(study, objective_of(study, data, slots=2), report=interrupt)
    assert study.counts()["expired"] == 2
    work(study, objective_of(study, data, slots=2))
    assert finished_once(study.trials(), 3)
    assert {row.attempt for row in study.trials()} == {1}


def test_workers_share_the_list(data: str, store: Store, tmp_path: Path) -> None:
    """Three workers at once train every cell once, at its own site, as one alone would."""
    study = make_cells(store, data)
    together = threading.Barrier(3, timeout=LONG)
    faults: list[BaseException] = []

    def run(name: str) -> None:
        begun: list[Fold] = []

        def report(fold: Fold, done: Progress) -> None:
            if not begun:
                begun.append(fold)
                together.wait()

        try:
            with Store(str(tmp_path / "store.db"), create=False) as mine:
                own = mine.study()
                work(own, objective_of(own, data, slots=2), name=name, report=report)
        except BaseException as fault:
            faults.append(fault)
            together.abort()

    threads = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    rows = study.trials()
    assert finished_once(rows, len(CELLS))
    assert {row.worker for row in rows} == set("abc")
    assert {row.attempt for row in rows} == {1}
    assert [Cell(row.site, tuple(row.point), row.seed) for row in rows] == CELLS
    with Store(str(tmp_path / "alone.db")) as other:
        alone = make_cells(other, data)
        work(alone, objective_of(alone, data, slots=2))
        losses = [row.loss for row in alone.trials()]
    assert [row.loss for row in rows] == pytest.approx(losses, abs=1e-5)


def test_a_worker_trains_what_is_added_meanwhile(data: str, store: Store) -> None:
    """Cells and sites that are added while a worker is at it are trained by it, too."""
    study = make_cells(store, data, CELLS[:2], SITES[:1])

    def grow(fold: Fold, done: Progress) -> None:
        add_sites(study, SITES)
        add_cells(study, CELLS)

    work(study, objective_of(study, data, slots=2), report=grow)
    rows = study.trials()
    assert finished_once(rows, len(CELLS))
    assert [row.site for row in rows] == [cell.site for cell in CELLS]


def test_a_worker_waits_for_the_list(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who joins a study before its trials are listed waits for them."""
    monkeypatch.setattr(worker, "_WAIT_SECONDS", 0.02)
    study = make_cells(store, data, ())
    looks: list[int] = []

    def report(fold: Fold, done: Progress) -> None:
        looks.append(done.trials)
        if len(looks) == 3:
            make_cells(store, data, CELLS[:2])

    work(study, objective_of(study, data), report=report)
    assert looks[:3] == [0, 0, 0]
    assert finished_once(study.trials(), 2)


def test_a_cell_without_a_plan_is_impossible(data: str, store: Store) -> None:
    """A site where the recipe cannot be carried has no result but a reason; the others go on."""
    crowded = Site(scale=replace(BASE, batch=16 * BASE.batch), rules=Rules())
    study = make_cells(store, data, [Cell(0, (0.0,), 0), Cell(1, (0.0,), 0)], [crowded, SITES[2]])
    work(study, objective_of(study, data))
    assert [row.status for row in study.trials()] == ["impossible", "ok"]
    assert "1 impossible, the first: " in status(study).lines()


def test_a_machine_that_cannot_make_the_model_spoils_nothing(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that fails here alone ends the worker with one line, and the trial is given back."""
    study = make_cells(store, data, [CELLS[0], CELLS[8]])
    objective, make = objective_of(study, data), Task.model

    def broken(self: Task, scale: Scale, *_: Any) -> nn.Module:
        if scale == WIDE:
            raise CompletedpError("no file here")
        return make(self, scale)

    with monkeypatch.context() as patched:
        patched.setattr(Task, "model", broken)
        assert error_of(work, study, objective) == "no file here"
    assert (study.counts()["expired"], study.counts()["finished"]) == (1, 0)
    work(study, objective_of(study, data))
    assert [(row.status, row.attempt) for row in study.trials()] == [("ok", 1)] * 2


def test_a_list_is_no_search(data: str, store: Store) -> None:
    """It can be looked at and worked on; a best recipe of several scales is refused."""
    study = make_cells(store, data)
    work(study, objective_of(study, data, slots=4))
    found = status(study)
    assert found.counts["finished"] == len(CELLS)
    assert found.start_loss is None
    assert "not a search" in error_of(best, study, objective_of(study, data))
    engine = engine_of(StudySpec.from_dict(study.spec))
    assert isinstance(engine, Cells)
    assert "belongs to a study" in error_of(engine.propose, 0)
