"""Commands on a report's page: typed again, they go on with what the page is of."""

import functools
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import own_models as own
import pytest
import torch
from studies import make_study, write_tokens
from test_costs import SIZES, run

import completedp as cdp
from completedp.common.surface import Command, running
from completedp.evidence.reporting.gather import gather
from completedp.studies.store import Store
from completedp.studies.typed import call_of, note_command, noted_command, typed_command
from completedp.tasks.losses import next_token_loss


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
    """What comes after a worker, and after a look at what is finished, is `search best` of a
    search, and nothing of a sweep's trials."""
    rest = f"--data {data} --no-compile {SIZES}"
    words = f"sweep --out {tmp_path} --factors 1 --octaves -1 0 1 --seeds 1 {rest}"
    assert run(words.split(), monkeypatch) == 0
    worker = f"search worker --store {tmp_path}/sweep.db --study sweep --data {data} --no-compile"
    capsys.readouterr()
    assert run(worker.split(), monkeypatch) == 0
    assert "search best" not in capsys.readouterr().err
    begin = f"search start --trials 1 --store {tmp_path}/s.db --study mine {rest}"
    assert run(begin.split(), monkeypatch) == 0
    named = capsys.readouterr().err.splitlines()[-1]
    assert named.startswith(f"completedp: next: completedp search best --store {tmp_path}/s.db ")
    status = ["search", "status", "--store", f"{tmp_path}/s.db"]
    assert run(status, monkeypatch) == 0
    assert capsys.readouterr().err.splitlines() == [named]  # with the data it was begun with
    assert run([*status, "--json"], monkeypatch) == 0
    assert run([*status[:3], f"{tmp_path}/sweep.db"], monkeypatch) == 0
    assert capsys.readouterr().err == ""


def test_a_name_with_an_equals_sign_is_one_word(
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The data that the next command names are those of the search, whatever they are called."""
    (tmp_path / "vocab=7").symlink_to(data)
    given = ["--data", f"{tmp_path}/vocab=7", "--no-compile", *SIZES.split()]
    store = ["--store", f"{tmp_path}/s.db"]
    assert run(["search", "start", "--trials=1", *store, *given], monkeypatch) == 0
    capsys.readouterr()
    assert run(["search", "status", *store], monkeypatch) == 0
    assert f"--data {tmp_path}/vocab=7" in capsys.readouterr().err


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


def test_a_call_holds_no_data() -> None:
    """Values that are long or not plain go by their argument's name, and short ones are written."""
    rows = [([1, 2, 3], [2, 3, 4])] * 5_000
    base = cdp.Scale(width=16, depth=1, batch=64, tokens=256)
    given = {
        "make": None,
        "base": base,
        "data": {"train": rows, "valid": rows},
        "recipe": "x" * 600,
    }
    given |= {"tunables": ["lr", "eps"], "overrides": {"a": "norm"}, "reach": float("inf")}
    given |= {"targets": [cdp.Ratios(depth=2), "depth=3"], "sites": [object()]}
    given |= {"eval_examples": np.int64(8), "loss": [torch.zeros(1)]}
    assert call_of(cdp.search, given) == (
        f"cdp.search(None, base=cdp.{base!r}, data=data, loss=loss, recipe=recipe, "
        f"overrides={{'a': 'norm'}}, tunables=['lr', 'eps'], reach=reach, "
        f"targets=[cdp.{cdp.Ratios(depth=2)!r}, 'depth=3'], sites=sites, "
        "eval_examples=eval_examples)"
    )


class Maker:
    """What users make models by."""

    def make(self, scale: cdp.Scale) -> Any: ...

    __call__ = make


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (own.nano, "'own_models:nano'"),
        (own.NanoGPT, "'own_models:NanoGPT'"),
        (lambda scale: None, "make"),
        (Maker().make, "make"),
        (Maker(), "make"),
        (functools.partial(own.nano), "make"),
    ],
)
def test_a_call_names_functions_so_that_they_are_found(make: Any, shown: str) -> None:
    """A module's are the text that finds them; what has no name goes by its argument's."""
    assert call_of(cdp.search, {"make": make}) == f"cdp.search({shown})"


def test_a_script_names_its_functions_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no other program can import is named as in its own."""

    def make(scale: cdp.Scale) -> Any: ...

    monkeypatch.setattr(make, "__module__", "__main__")
    assert call_of(cdp.search, {"make": make}) == "cdp.search(make)"


def test_the_call_of_a_model_and_loss_of_the_users_own_goes_on(data: str, tmp_path: Path) -> None:
    """The names in a noted call are what a search takes: run as code, it trains no more."""
    base = cdp.Scale(width=16, depth=1, batch=64, tokens=256)
    options: dict[str, Any] = {"space": "global", "slots": 1, "eval_examples": 4, "compile": False}
    store = str(tmp_path / "s.db")
    with cdp.search(
        own.nano, base, data, 2, store, 16, loss=next_token_loss, quiet=True, **options
    ) as first:
        call = noted_command(first.study)
    assert call is not None
    assert "'own_models:nano'" in call
    assert "loss='completedp.tasks.losses:next_token_loss'" in call
    with eval(call, {"cdp": cdp}) as again:
        assert {trial.attempt for trial in again.trials()} == {1}
        assert noted_command(again.study) == call


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
