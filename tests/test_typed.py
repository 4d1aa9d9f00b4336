"""Commands on a report's page: typed again, they go on with what the page is of."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from studies import make_study, write_tokens
from test_costs import SIZES, run

import completedp as cdp
from completedp.common.surface import Command, running
from completedp.evidence.reporting.gather import gather
from completedp.studies.store import Store
from completedp.studies.typed import call_of, note_command, noted_command, typed_command


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("typed"))


@pytest.mark.parametrize(
    ("words", "store"),
    [
        (f"search start --trials 3 --store OUT/s.db --study mine {SIZES}", "s.db"),
        (f"sweep --out OUT --factors 1 --octaves -1 0 1 --seeds 1 {SIZES}", "sweep.db"),
    ],
)
def test_a_page_says_what_goes_on_with_it(
    words: str,
    store: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command of a search or a sweep is all of what was typed: again, it trains no more."""
    typed = [*words.replace("OUT", str(tmp_path)).split(), "--data", data, "--no-compile"]
    assert run(typed, monkeypatch) == 0
    (part,) = gather([str(tmp_path)])
    assert part.command is not None
    program, *again = shlex.split(part.command)
    assert (program, again) == ("completedp", typed)
    assert run(again, monkeypatch) == 0
    with Store(str(tmp_path / store), create=False) as kept:
        (study,) = (kept.study(name) for name in kept.studies())
        assert {row.attempt for row in study.trials()} == {1}
        assert study.counts()["finished"] == 3


def test_the_page_of_an_unfinished_figure_says_its_data_and_model(
    data: str,
    tmp_path: Path,
) -> None:
    """What was begun goes on with the data and the model that it was begun with."""
    typed = ("figure", "lr-width", "--size", "gpu", "--data", "my tokens", "--model", "nano:make")
    with Store(str(tmp_path / "lr-width-gpu.db")) as store, running(Command(typed=typed)):
        note_command(make_study(store, data, name="sweep"))
    (part,) = gather([str(tmp_path)])
    assert part.command is not None
    assert shlex.split(part.command) == ["completedp", *typed]


def test_a_worker_on_a_list_of_trials_names_no_search_to_end(
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What comes after a worker is `search best` of a search, and nothing of a sweep's trials."""
    rest = f"--data {data} --no-compile {SIZES}"
    words = f"sweep --out {tmp_path} --factors 1 --octaves -1 0 1 --seeds 1 {rest}"
    assert run(words.split(), monkeypatch) == 0
    worker = f"search worker --store {tmp_path}/sweep.db --study sweep --data {data} --no-compile"
    capsys.readouterr()
    assert run(worker.split(), monkeypatch) == 0
    assert "search best" not in capsys.readouterr().err
    begin = f"search start --trials 1 --store {tmp_path}/s.db --study mine {rest}"
    assert run(begin.split(), monkeypatch) == 0
    assert "search best" in capsys.readouterr().err


def test_the_page_of_a_search_in_python_has_its_call(data: str, tmp_path: Path) -> None:
    """Run as code, the call on the page goes on with the search and trains no more."""
    base = cdp.Scale(width=64, depth=1, batch=64, tokens=256)
    options: dict[str, Any] = {"space": "global", "slots": 1, "eval_examples": 4, "compile": False}
    store = str(tmp_path / "s.db")
    first = cdp.search(None, base, data, 2, store, 16, quiet=True, **options)
    losses = [trial.loss for trial in first.trials()]
    first.close()
    (part,) = gather([str(tmp_path)])
    assert part.command is not None
    again = eval(part.command, {"cdp": cdp})
    assert [trial.loss for trial in again.trials()] == losses
    assert {trial.attempt for trial in again.trials()} == {1}
    again.close()


def test_a_call_names_what_it_cannot_write() -> None:
    """A function goes by its name, other things by their argument's; a password is left out."""

    def make(scale: cdp.Scale) -> Any: ...

    base = cdp.Scale(width=16, depth=1, batch=64, tokens=256)
    given = {"make": make, "base": base, "data": object(), "recipe": cdp.Recipe.default()}
    given |= {"store": "postgresql://me:secret@host/db", "targets": [base], "trials": 300}
    call = call_of(cdp.search, given)
    assert call == (
        f"cdp.search(make, base=cdp.{base!r}, data=data, store='postgresql://me@host/db', "
        f"recipe=recipe, targets=[cdp.{base!r}])"
    )


def test_nothing_was_typed_in_python(data: str, tmp_path: Path) -> None:
    """A study that was begun in Python has no command."""
    with Store(str(tmp_path / "s.db")) as store:
        study = make_study(store, data)
        note_command(study)
        assert noted_command(study) is None
        for odd in ({}, {"typed": 3}, {"typed": None}):
            study.set_note("command", odd)
            assert noted_command(study) is None


@pytest.mark.parametrize(
    "words",
    [
        ("--store", "postgresql://me:SECRET@host/db"),
        ("--store=postgresql://me:SECRET@host/db?password=SECRET",),
        ("--store", "mysql://me:SECRET@host/db"),
        ("--store", "postgresql://me:SECRET@host:notaport/db"),
    ],
)
def test_a_password_is_not_kept(words: tuple[str, ...]) -> None:
    """Whatever URL was typed, its password is not in what is kept of the command."""
    with running(Command(typed=("search", "start", *words))):
        kept = typed_command()
    assert kept is not None
    assert kept.startswith("completedp search start --store")
    assert "SECRET" not in kept
