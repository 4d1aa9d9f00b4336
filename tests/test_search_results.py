"""What a search has found: its status, its exports, its best recipe, and the verbs for them."""

import calendar
import csv
import errno
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from studies import (
    BASE,
    LONG,
    MODEL,
    OPTIONS,
    make_recipe,
    make_study,
    objective_of,
    planted,
    searched,
    settings,
    write_tokens,
)

from completedp.cli.recipe import ShowVerb as RecipeShow
from completedp.cli.search import BestVerb, ExportVerb, StartVerb, StatusVerb
from completedp.common.checks import check_each_once
from completedp.common.errors import CompletedpError
from completedp.lm.reference import meta_model
from completedp.lm.shape import Shape
from completedp.studies import ladder, spent
from completedp.studies.candidates import (
    EARLIER,
    HALF_WAY,
    LUCKIEST,
    RECOMMENDED,
    WITHOUT_DEPTH,
    WITHOUT_LR,
    candidates,
)
from completedp.studies.export import export_csv, export_optuna
from completedp.studies.ladder import START, Kept
from completedp.studies.run import Best, best, ladder_outlook
from completedp.studies.status import _rate, status
from completedp.studies.store import Store, Study
from completedp.studies.worker import make_fold
from completedp.theory.evidence import Evidence, Rung, SearchRecord, Standing
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("search"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_status_of_a_young_study(data: str, store: Store) -> None:
    """Before anything has finished there is no best, and JSON has no infinity."""
    study = make_study(store, data, trials=7)
    found = status(study)
    assert found.lines().startswith("tune: 0/7 trials")
    assert str(found) == found.lines()
    assert "best none yet; 0 diverged" in found.lines()
    assert "impossible" not in found.lines()
    assert "at work: nobody; 0 trials wait" in found.lines()
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["best_loss"] is None
    planted(study, data, [math.inf])
    found = status(study)
    assert found.counts["diverged"] == 1
    json.dumps(asdict(found), allow_nan=False)


def test_status_of_a_study_at_work(data: str, store: Store) -> None:
    """It counts trials, names who has some in hand, and leaves out who has given them back."""
    study = make_study(store, data, trials=10)
    fold = make_fold(study, objective_of(study, data))
    start = study.claim("w", fold.propose, lease_seconds=LONG)
    assert start is not None
    planted(study, data, [2.25, math.inf])
    planted(study, data, [2.0], status="stopped")  # an estimate is not the best
    study.finish(start, loss=2.5, status="ok", steps=1, curve=[2.5])
    claims = [study.claim(name, fold.propose, lease_seconds=LONG) for name in ("a", "b", "b")]
    found = status(study)
    assert found.workers == {"a": 1, "b": 2}
    assert (found.best_loss, found.start_loss, found.stopped) == (2.25, 2.5, 1)
    assert found.counts["finished"] == 4
    assert found.engine == {"radius": 1.0}
    assert found.per_minute > 0
    assert found.eta_seconds == pytest.approx(6 * 60 / found.per_minute)
    lines = found.lines()
    assert "tune: 4/10 trials" in lines
    assert "best 2.2500 (start 2.5000); 1 diverged, 1 stopped early" in lines
    assert "at work: a (1), b (2); 0 trials wait for a worker" in lines
    assert claims[0] is not None
    study.release(claims[0])
    assert "at work: b (2); 1 trials wait for a worker" in status(study).lines()


@pytest.mark.parametrize("engine", ["recombine", "trust-region", "random", "cma-es", "tpe"])
def test_status_of_every_engine(data: str, store: Store, engine: str) -> None:
    """Whatever the engine, its study can be looked at without tokens."""
    if engine in ("cma-es", "tpe"):
        pytest.importorskip("cmaes")
        pytest.importorskip("optuna")
    study = make_study(store, data, trials=30, engine=engine)
    planted(study, data, [2.0, 2.1, 1.9, math.inf])
    found = status(study)
    assert found.best_loss == 1.9
    json.dumps(asdict(found), allow_nan=False)
    assert len(found.lines().splitlines()) == (4 if found.engine else 3)


def test_a_full_disk_leaves_the_old_csv(
    data: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that cannot be written is one line, and what was there is as it was."""
    study = make_study(store, data, trials=7)
    path = tmp_path / "trials.csv"
    export_csv(make_study(store, data, name="older", trials=3), path)
    old = path.read_text()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    said = error_of(export_csv, study, path)
    assert "No space left on device" in said
    assert path.read_text() == old
    assert [each.name for each in tmp_path.glob("*trials*")] == ["trials.csv"]


def test_an_export_replaces_nothing_else(data: str, store: Store, tmp_path: Path) -> None:
    """A text or a recipe of that name is kept, in one line; an earlier export is replaced."""
    study = make_study(store, data, trials=3)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a text that somebody wrote")
    assert "is no table of trials" in error_of(export_csv, study, corpus)
    assert corpus.read_text() == "a text that somebody wrote"
    assert export_csv(study, tmp_path / "trials.csv") == export_csv(study, tmp_path / "trials.csv")


def test_csv_holds_every_trial(data: str, store: Store, tmp_path: Path) -> None:
    """The file read back has the points to the last bit, losses, states and UTC times."""
    study = make_study(store, data, trials=5)
    planted(study, data, [2.5, math.inf, 2.0])
    fold = make_fold(study, objective_of(study, data))
    study.claim("w", fold.propose, lease_seconds=LONG)
    assert export_csv(study, tmp_path / "trials.csv") == 4
    with (tmp_path / "trials.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    names = study.spec["space"]["coordinates"]
    rows = study.trials()
    assert [[float(line[n]) for n in names] for line in found] == [r.point.tolist() for r in rows]
    assert [line["loss"] for line in found] == ["2.5", "inf", "2.0", ""]
    assert [line["state"] for line in found] == ["finished"] * 3 + ["running"]
    assert [line["status"] for line in found] == ["ok", "diverged", "ok", ""]
    assert [int(line["seed"]) for line in found] == [r.seed for r in rows]
    assert [int(line["site"]) for line in found] == [0] * 4
    stamp = time.strptime(found[0]["finished_at"], "%Y-%m-%dT%H:%M:%SZ")
    assert abs(calendar.timegm(stamp) - time.time()) < LONG
    assert found[3]["finished_at"] == ""


def test_optuna_gets_every_finished_trial(data: str, store: Store, tmp_path: Path) -> None:
    """An Optuna study has one trial a finished trial, with its point; whole ones have values."""
    optuna = pytest.importorskip("optuna")
    study = make_study(store, data, trials=6)
    planted(study, data, [2.5, math.inf, 2.0])
    planted(study, data, [2.25], status="stopped")
    fold = make_fold(study, objective_of(study, data))
    study.claim("w", fold.propose, lease_seconds=LONG)
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    assert export_optuna(study, url) == 4
    trials = optuna.load_study(study_name="tune", storage=url).trials
    assert [t.value for t in trials] == [2.5, None, 2.0, None]
    assert [t.state.name for t in trials] == ["COMPLETE", "PRUNED", "COMPLETE", "PRUNED"]
    for trial, row in zip(trials, study.trials(), strict=False):
        names = study.spec["space"]["coordinates"]
        assert [trial.params[name] for name in names] == pytest.approx(row.point.tolist())
        assert trial.user_attrs["status"] == row.status
        assert row.started_at is not None
        assert trial.datetime_start.timestamp() == pytest.approx(row.started_at, abs=1e-3)
        assert trial.datetime_start <= trial.datetime_complete
    assert "already has a study 'tune'" in error_of(export_optuna, study, url)


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("sqlite:////nowhere/at/all.db", "no folder '/nowhere/at'"),
        ("sqlite://", "'sqlite://' names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("foo://u:secret@host/x", "Optuna cannot use 'foo://u:***@host/x'"),
        ("redis://u:secret@host", "Optuna cannot use 'redis://u:***@host'"),
        ("://x", "'://x' is no URL of a database"),
    ],
)
def test_optuna_storages_that_cannot_be(data: str, store: Store, storage: str, said: str) -> None:
    """A storage that Optuna cannot open is one line without its password."""
    pytest.importorskip("optuna")
    message = error_of(export_optuna, make_study(store, data), storage)
    assert said in message
    assert "secret" not in message


def test_optuna_writes_into_no_other_file(data: str, tmp_path: Path) -> None:
    """A store, another program's database and a text are left as they are."""
    pytest.importorskip("optuna")
    paths = [tmp_path / name for name in ("store.db", "other.db", "text.db")]
    with sqlite3.connect(paths[1]) as other:
        other.execute("CREATE TABLE notes (x)")
    paths[2].write_text("not a database, and longer than a header of one would be " * 9)
    with Store(str(paths[0])) as store:
        study = make_study(store, data)
        before = [path.read_bytes() for path in paths]
        for path in paths:
            message = error_of(export_optuna, study, f"sqlite:///{path}")
            assert "is a file of something else: name another" in message
    assert [path.read_bytes() for path in paths[1:]] == before[1:]


def longer(times: int) -> Scale:
    """The base with more tokens."""
    return replace(BASE, tokens=times * BASE.tokens)


def plant_ladder(
    monkeypatch: pytest.MonkeyPatch, losses: Callable[[str, int], list[float]]
) -> list[list[str]]:
    """Measure by `losses(candidate, tokens ratio)` instead of training; who was measured."""
    measured: list[list[str]] = []

    def measure(runner: Any, candidates: dict[str, Recipe], scale: Any, *_: Any) -> Rung:
        measured.append(list(candidates))
        ratio = scale.tokens // BASE.tokens
        standings = [Standing(candidate=name, losses=losses(name, ratio)) for name in measured[-1]]
        return Rung(scale=scale, standings=sorted(standings, key=lambda s: s.mean))

    monkeypatch.setattr(ladder, "measure", measure)
    return measured


def test_the_best_is_what_wins_on_the_last_rung(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest mean on the last rung is the recipe, and its evidence says how it came there."""
    study = make_study(store, data, trials=30, recipe=replace(make_recipe(), provenance={"a": "b"}))
    claims = planted(study, data, [2.5, *np.linspace(2.4, 2.2, 9), 1.0])

    def losses(name: str, ratio: int) -> list[float]:
        if name == LUCKIEST:  # best on the first rung, and not on the second
            return [1.5, 1.5] if ratio == 2 else [3.0, 3.0]
        return {START: [2.5, 2.6], RECOMMENDED: [2.3, 2.4]}.get(name, [4.0, 4.0])

    measured = plant_ladder(monkeypatch, losses)
    found = best(study, objective_of(study, data), rungs=[longer(2), longer(4)], seeds=2)
    everyone = {START, RECOMMENDED, LUCKIEST, EARLIER, HALF_WAY, WITHOUT_LR, WITHOUT_DEPTH}
    assert set(measured[0]) == everyone
    assert {START, RECOMMENDED, LUCKIEST} < set(measured[1]) < everyone
    assert set(measured[2]) == {START, RECOMMENDED}  # at the base, for the record
    assert found.chosen == RECOMMENDED
    fold = make_fold(study, objective_of(study, data))
    fold.catch_up()
    names = study.spec["space"]["coordinates"]
    point = found.recipe.hyperparameters.vector(names)
    assert point.tolist() == fold.engine.recommend().tolist()
    assert point.tolist() != claims[-1].point.tolist()
    assert found.recipe.provenance == {"a": "b"}  # the user's own words, and no others
    told = found.recipe.evidence
    assert told is not None
    assert told.searches == (
        SearchRecord(
            study="tune",
            engine="recombine",
            space="kronecker",
            trials=11,
            sites=(BASE,),
            digest=told.digest,
        ),
    )
    assert (told.chosen, told.rungs) == (RECOMMENDED, tuple(found.rungs))
    assert told.ranges(BASE) == {
        **{axis: (1.0, 1.0) for axis in ("width", "depth", "batch")},
        "tokens": (1.0, 4.0),
    }
    objective = objective_of(study, data)
    assert (told.model, told.text, told.digest) == (
        "reference",
        "tokens",
        objective.task.data.digest,
    )
    parameters = sum(p.numel() for p in meta_model(MODEL).parameters())
    assert told.tokens_per_parameter == pytest.approx(BASE.tokens / parameters, rel=1e-3)
    at_base = objective.task.plan(found.recipe, BASE)
    taus = [tensor.tau for tensor in at_base.tensors if tensor.info.role.is_matrix]
    assert told.tau == pytest.approx((min(taus), max(taus)))
    note = study.get_note("best")
    assert note is not None
    assert (note["chosen"], len(note["rungs"])) == (RECOMMENDED, 3)
    assert note["trials"] == study.counts()["finished"]
    assert "recommended beats the start by 0.2000 +- 0.0707" in found.lines()


def test_a_start_that_cannot_train_gives_no_recipe(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every candidate diverges there is no best one, and one line that says so."""
    study = make_study(store, data)
    planted(study, data, [math.inf, math.inf])
    plant_ladder(monkeypatch, lambda name, ratio: [math.inf])
    assert "all candidates diverge on width 16" in error_of(best, study, objective_of(study, data))


def test_a_ladder_outlives_its_store(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store cannot be written any more, what was measured is still the answer."""
    study = make_study(store, data)
    planted(study, data, [2.5, 2.0])
    plant_ladder(monkeypatch, lambda name, ratio: [2.5] if name == START else [2.0])

    def gone(*_: Any) -> None:
        raise CompletedpError("cannot write the store")

    monkeypatch.setattr(Study, "set_note", gone)
    with pytest.warns(UserWarning, match="not noted in the study: cannot write the store"):
        found = best(study, objective_of(study, data), rungs=())
    assert found.chosen == RECOMMENDED


def test_a_candidate_that_cannot_be_carried_is_named(data: str, store: Store) -> None:
    """A rung where a candidate has no plan is one line that names both, before any training."""
    study = make_study(store, data, recipe=make_recipe(beta1=0.7))
    planted(study, data, [2.5])
    message = error_of(
        best, study, objective_of(study, data), rungs=[replace(BASE, batch=4 * BASE.batch)]
    )
    assert "start cannot be carried to width 16" in message
    assert "beta" in message


def test_the_rate_leaves_pauses_out() -> None:
    """A pause between trials is not taken for slow trials."""

    def row(number: int, started: float, finished: float) -> Any:
        return SimpleNamespace(number=number, started_at=started, finished_at=finished)

    steady = [row(n, 10.0 * n, 10.0 * (n + 1)) for n in range(20)]
    assert _rate(steady) == pytest.approx(0.1)
    paused = [row(n, t := 10.0 * n + (n >= 10) * 1e5, t + 10.0) for n in range(20)]
    assert _rate(paused) == pytest.approx(0.1)
    assert _rate([]) == 0.0


def test_trials_of_a_worker_share_its_device(store: Store) -> None:
    """Time in which a worker has several trials counts once, pauses not at all, by device."""
    study = store.create_study("timed", {"trials": 9})
    spans = [("a", 0, 10), ("a", 5, 12), ("a", 100, 103), ("b", 0, 4), ("old", 1, 3)]
    rows = [SimpleNamespace(worker=w, started_at=s, finished_at=e) for w, s, e in spans]
    rows.append(SimpleNamespace(worker="a", started_at=200.0, finished_at=None))
    study.trials = lambda **_: rows  # type: ignore[method-assign]
    spent.note_device(study, "a", "NVIDIA H200")
    spent.note_device(study, "b", "NVIDIA H200")
    assert spent.device_seconds(study) == {"NVIDIA H200": 12.0 + 3.0 + 4.0, spent.UNKNOWN: 2.0}


def test_ladders_count_even_if_they_end_early(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ladder's time is the study's from then on, also of one that was stopped half way."""
    clock = iter([100.0, 105.0, 200.0, 202.0])
    monkeypatch.setattr(spent, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    study = store.create_study("timed", {"trials": 1})
    seconds = spent.device_seconds(study)
    assert seconds == {}
    with pytest.raises(KeyboardInterrupt), spent.ladder_time(study, "GPU", seconds):
        raise KeyboardInterrupt
    assert seconds == spent.device_seconds(study) == {"GPU": 5.0}
    with spent.ladder_time(study, "GPU", seconds):
        pass
    assert seconds == spent.device_seconds(study) == {"GPU": 7.0}


def test_a_worker_says_what_it_trains_on(data: str, store: Store) -> None:
    """After real work, the study knows its device and that it took some time."""
    study = make_study(store, data, trials=2)
    searched(study, data, slots=2)
    ((device, seconds),) = spent.device_seconds(study).items()
    assert device.startswith("CPU (")
    assert seconds > 0


def test_a_study_begun_before_evidence_goes_on(data: str, store: Store) -> None:
    """What is known of the start, and how that is written, do not make another study of it."""
    study = make_study(store, data)
    old = json.loads(json.dumps(study.spec))
    old["recipe"]["schema"] = 2
    del old["recipe"]["evidence"]
    assert store.create_study("older", old).spec["recipe"]["schema"] == 2
    assert store.create_study("older", study.spec).name == "older"
    objective_of(store.study("older"), data)
    other = json.loads(json.dumps(study.spec))
    other["recipe"]["values"]["lr"] = 0.5
    assert "recipe.values.lr" in error_of(store.create_study, "older", other)


def test_the_recipe_is_written_and_searched_on(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A found recipe survives the disk, starts a wider study, and old rungs are not its own."""
    study = make_study(store, data, trials=8, space="type")
    planted(study, data, [2.5, 2.0])
    plant_ladder(monkeypatch, lambda name, ratio: [2.5] if name == START else [2.0])
    first = best(study, objective_of(study, data), rungs=[longer(2)], seeds=1).recipe
    first.save(tmp_path / "recipe.json")
    loaded = Recipe.load(tmp_path / "recipe.json")
    assert loaded == first
    wider = make_study(store, data, name="wider", space="kronecker", recipe=loaded)
    start = dict(zip(wider.spec["space"]["coordinates"], wider.spec["space"]["start"], strict=True))
    assert start["lr/type/qkv"] == first.hyperparameters.log2["lr/type/qkv"] != 0.0
    planted(wider, data, [2.0, 2.0])
    second = best(wider, objective_of(wider, data), rungs=(), seeds=1).recipe
    assert first.evidence is not None
    assert second.evidence is not None
    assert [len(one.evidence.rungs) for one in (first, second) if one.evidence] == [2, 1]
    assert [search.study for search in second.evidence.searches] == ["tune", "wider"]
    assert second.evidence.trials == 4


def test_the_start_is_kept_when_nothing_beats_it(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that found nothing gives the start's values, and says so."""
    study = make_study(store, data, trials=8)
    planted(study, data, [2.5, 2.4, 2.3])
    plant_ladder(monkeypatch, lambda name, ratio: [2.0] if name == START else [2.1])
    found = best(study, objective_of(study, data), rungs=(), seeds=1)
    assert found.recipe.evidence is not None
    assert found.chosen == found.recipe.evidence.chosen == START
    assert "nothing found beats the start" in found.lines()
    names = study.spec["space"]["coordinates"]
    start = found.recipe.hyperparameters.vector(names)
    assert start.tolist() == study.spec["space"]["start"]
    assert found.recipe.values == make_recipe().values


@pytest.mark.parametrize("engine", ["random", "recombine"])
def test_equal_candidates_are_measured_once(
    data: str, store: Store, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """A recommendation that is the best trial up to rounding, or the start, is one candidate."""
    study = make_study(store, data, trials=8, engine=engine)
    planted(study, data, [2.5, 2.6])
    measured = plant_ladder(monkeypatch, lambda name, ratio: [2.0])
    assert best(study, objective_of(study, data), rungs=(), seeds=1).chosen == START
    planted(study, data, [2.0])
    best(study, objective_of(study, data), rungs=(), seeds=1)
    assert measured == [[START], [START, RECOMMENDED, HALF_WAY, WITHOUT_LR, WITHOUT_DEPTH]]


def test_candidates_are_what_their_names_say(data: str, store: Store) -> None:
    """Each candidate is the recommendation changed in the way that its name says, and no other."""
    study = make_study(store, data, trials=30)
    planted(study, data, [2.5, *np.linspace(2.4, 2.0, 19)])
    objective = objective_of(study, data)
    found = candidates(study, objective)
    names = objective.space.coordinates
    start, best_, half, no_lr, earlier = (
        found[name].hyperparameters.vector(names)
        for name in (START, RECOMMENDED, HALF_WAY, WITHOUT_LR, EARLIER)
    )
    assert np.allclose(half, (start + best_) / 2)
    is_lr = np.array([name.startswith("lr/") for name in names])
    assert (no_lr[is_lr] == start[is_lr]).all()
    assert (no_lr[~is_lr] == best_[~is_lr]).all()
    assert not np.allclose(no_lr, best_)
    half_told = objective.engine(study)
    for trial in study.finished_since(0)[:10]:
        trial.tell(half_told)
    assert earlier.tolist() == half_told.recommend().tolist()
    flat, whole = found[WITHOUT_DEPTH].hyperparameters, found[RECOMMENDED].hyperparameters
    layers = range(1, BASE.depth + 1)
    for tunable in ("lr", "weight_decay"):
        mean = np.mean(
            [math.log2(math.prod(whole.multipliers(tunable, "qkv", n).values())) for n in layers]
        )
        for layer in layers:
            product = math.prod(flat.multipliers(tunable, "qkv", layer).values())
            assert math.log2(product) == pytest.approx(mean)


def test_a_ladder_that_was_stopped_goes_on(data: str, store: Store) -> None:
    """What was measured before is not trained again, and the standings come out the same."""
    study = make_study(store, data, trials=8, space="global", tunables=("lr",))
    planted(study, data, [2.5, 2.0])
    objective = objective_of(study, data, slots=2)
    whole = best(study, objective, rungs=[longer(2)], seeds=2)
    note = study.get_note(Kept.NOTE)
    assert note is not None
    lost = dict(list(note.items())[:-3])
    study.set_note(Kept.NOTE, lost)
    trained: list[Any] = []
    run = objective.runner.run

    def counted(trials: list[Any], *rest: Any, **options: Any) -> Any:
        trained.extend(trials)
        return run(trials, *rest, **options)

    objective.runner.run = counted  # type: ignore[method-assign]
    again = best(study, objective, rungs=[longer(2)], seeds=2)
    assert len(trained) == 3
    assert [rung.to_dict() for rung in again.rungs] == [rung.to_dict() for rung in whole.rungs]


@pytest.mark.parametrize("rungs", [[], [2], [2, 4]])
def test_what_a_ladder_takes_is_known_before(data: str, store: Store, rungs: list[int]) -> None:
    """No more trials are trained than was said, and on the first rung as many as was said, where
    afterwards none is left."""
    study = make_study(store, data, trials=8, space="global", tunables=("lr",))
    planted(study, data, [2.5, 2.0])
    objective = objective_of(study, data, slots=2)
    scales = [longer(factor) for factor in rungs]
    before = ladder_outlook(study, objective, rungs=scales, seeds=2)
    best(study, objective, rungs=scales, seeds=2)
    note = study.get_note(Kept.NOTE) or {}
    assert len(note) <= sum(before.left.values())
    first = scales[0] if scales else BASE
    assert before.left[first] == 2 * len(candidates(study, objective))
    after = ladder_outlook(study, objective, rungs=scales, seeds=2)
    assert first not in after.left
    assert (before.begun, after.begun) == (False, True)
    for other in ({"rungs": [longer(8)]}, {"rungs": [*scales, longer(8)]}, {"seeds": 3}):
        asked = {"rungs": scales, "seeds": 2} | other
        assert not ladder_outlook(study, objective, **asked).begun


def test_a_ladder_that_is_only_asked_for_its_cost(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`search best --dry-run` says what it would take, and measures and writes nothing."""
    path = str(tmp_path / "s.db")
    with Store(path) as store:
        study = make_study(store, data, trials=8, space="global", tunables=("lr",))
        planted(study, data, [2.5, 2.0])
        options: dict[str, Any] = {"slots": 2, "device": "cpu", "compile": False}
        out = tmp_path / "of" / "mine" / "best.json"
        verb = BestVerb(
            store=path, data=data, out=str(out), rungs=("tokens=2",), dry_run=True, **options
        )
        assert verb.run() == 0
        assert "cost: " in capsys.readouterr().out
        assert study.get_note(Kept.NOTE) is None
    assert not out.parent.parent.exists()


def test_a_real_best(data: str, store: Store) -> None:
    """From a bad start, what a short search recommends is measured better on fresh seeds."""
    study = make_study(
        store, data, trials=12, recipe=make_recipe(lr=2.0**-10), space="global", tunables=("lr",)
    )
    searched(study, data, slots=4)
    found = best(study, objective_of(study, data, slots=4), rungs=(), seeds=2)
    standings = found.rungs[0].standings
    assert found.chosen != START
    assert standings[-1].candidate == START
    assert standings[0].mean < standings[-1].mean - 0.1
    assert found.recipe.hyperparameters.log2["lr/global"] > 0.5


def test_best_before_any_trial_is_one_line(data: str, store: Store) -> None:
    """A study without a finished trial has nothing to recommend."""
    study = make_study(store, data)
    assert "no trial of 'tune' has finished yet" in error_of(best, study, objective_of(study, data))


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({START: [2.0, 2.2], RECOMMENDED: [1.0, 1.2]}, "by 1.0000 +- 0.1414"),
        ({START: [2.0, 2.2], RECOMMENDED: [1.9, 2.1]}, "which is within the noise"),
        ({START: [2.0], RECOMMENDED: [1.9]}, "by 0.1000, on one seed alone"),
        ({START: [math.inf], RECOMMENDED: [1.9]}, "trains there, where the start diverges"),
        ({START: [math.inf, 2.0], RECOMMENDED: [math.inf, 2.0]}, "nothing found beats the start"),
    ],
)
def test_what_the_best_says(losses: dict[str, list[float]], words: str) -> None:
    """The verdict over the start is in words that its numbers bear, and never shows a NaN."""
    standings = [Standing(candidate=name, losses=found) for name, found in losses.items()]
    standings.sort(key=lambda standing: standing.mean)
    rung = Rung(scale=BASE, standings=standings)
    said = Best(recipe=make_recipe(), chosen=standings[0].candidate, rungs=[rung]).lines()
    assert words in said
    assert "nan" not in said
    assert "inf" not in said


def start_verb(tokens: str, folder: Path, **changes: Any) -> StartVerb:
    """`search start` of the small study, its recipe and store in a folder."""
    recipe = folder / "recipe.json"
    make_recipe().save(recipe)
    plain: dict[str, Any] = asdict(settings(tokens)) | asdict(OPTIONS)
    plain |= {"recipe": str(recipe), "store": str(folder / "new.db"), "shape": Shape()}
    return StartVerb(**(plain | changes))


def test_the_verbs_from_start_to_recipe(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """start, start again with more trials, status, export and best do what they say."""
    assert start_verb(data, tmp_path).run() == 0
    assert "search: 4/4 trials" in capsys.readouterr().out
    assert start_verb(data, tmp_path, trials=6).run() == 0
    assert "search: 6/6 trials" in capsys.readouterr().out
    where: dict[str, Any] = {"store": str(tmp_path / "new.db")}
    assert StatusVerb(json=True, watch=True, **where).run() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["finished"] == found["counts"]["budget"] == 6
    assert ExportVerb(out=str(tmp_path / "made" / "trials.csv"), **where).run() == 0
    assert capsys.readouterr().out.startswith("6 trials in ")
    assert len((tmp_path / "made" / "trials.csv").read_text().splitlines()) == 7
    out = str(tmp_path / "best.json")
    where |= asdict(OPTIONS) | {"data": data}
    verb = BestVerb(out=out, seeds=2, rungs=("tokens=2",), json=True, **where)
    assert verb.run() == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    written = Recipe.load(out).evidence
    assert written is not None
    assert written.chosen == chosen
    assert [name for name in written.seconds if not name.startswith("CPU")] == []
    assert sum(written.seconds.values()) > 0
    assert RecipeShow(recipe=out).run() == 0
    assert "tokens x2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "nowhere"},
        {"context": 17},
        {"shape": Shape(head_dim=7)},
        {"device": "moon"},
        {"slots": 0},
        {"recipe": "nowhere.json"},
        {"engine": "paper-grid"},
    ],
)
def test_a_failed_start_writes_nothing(data: str, tmp_path: Path, changes: dict[str, Any]) -> None:
    """A mistake in `search start` is one line, and no store is made."""
    verb = start_verb(data, tmp_path, **changes)
    error_of(verb.run)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]


def test_a_store_is_not_written_over(data: str, store: Store, tmp_path: Path) -> None:
    """`export` and `best` refuse an output that is a database or a folder, and `best` one that is
    not a recipe of its study, before any work."""
    study = make_study(store, data)
    planted(study, data, [2.5, 2.0])
    file = tmp_path / "store.db"
    where: dict[str, Any] = {"store": str(file)}
    options: dict[str, Any] = asdict(OPTIONS) | where | {"data": data}
    for out, words in ((str(file), "is a database"), (str(tmp_path), "is a folder"), (" ", "out")):
        assert words in error_of(ExportVerb(out=out, **where).run)
        assert words in error_of(BestVerb(out=out, **options).run)
    (tmp_path / "notes.txt").write_text("mine")
    recipe = Recipe.shipped("adamw-reference")
    recipe.save(tmp_path / "mine.json")
    other = SearchRecord(study="other", engine="recombine", space="type", trials=3, seed=0)
    known = replace(recipe, evidence=Evidence(searches=(other,)))
    known.save(tmp_path / "other.json")
    for name, words in (
        ("notes.txt", "is no recipe"),
        ("mine.json", "is a recipe of no search"),
        ("other.json", "is a recipe of the study 'other'"),
    ):
        assert words in error_of(BestVerb(out=str(tmp_path / name), **options).run)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert study.counts()["finished"] == 2
    assert study.get_note("best") is None


def test_a_rung_or_site_counts_once() -> None:
    """One that is given twice would weigh twice."""
    once = [
        Scale(width=8, depth=1, batch=8, tokens=80),
        Scale(width=16, depth=1, batch=8, tokens=80),
    ]
    check_each_once("rung", once)
    assert "is given twice" in error_of(check_each_once, "rung", [*once, once[0]])
