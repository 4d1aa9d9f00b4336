"""Damage: files and rows that somebody edited or a disk broke are one line that says what to do."""

import errno
import json
import math
import os
import sqlite3
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import error_of
from studies import write_tokens

import completedp as cdp
from completedp.cli.main import main
from completedp.cli.shared import VERBS
from completedp.common.checks import printable
from completedp.evidence.run import gradcheck
from completedp.lm.corpora import fingerprint
from completedp.lm.tokenizer import BPETokenizer
from completedp.lm.tokens import Manifest
from completedp.studies import ray_workers
from completedp.studies.engines import Proposal
from completedp.studies.export import export_optuna
from completedp.studies.spec import StudySpec
from completedp.studies.status import status
from completedp.studies.store import Store
from completedp.theory.hparams import check_coordinate
from completedp.training.folder import Result, check_extra, read_result

SPEC = {"trials": 3}


def run(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, str, str]:
    """`completedp ARGUMENTS` in this process: exit code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["completedp", *arguments])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of one study with a finished and a running trial."""
    path = tmp_path / "store.db"
    with Store(str(path)) as store:
        study = store.create_study("tune", SPEC)
        study.set_note("devices", {"w": "cpu"})
        for number in range(2):
            made = Proposal(point=np.zeros(2), seed=number)
            claim = study.claim("w", lambda _, made=made: made, lease_seconds=0.0 if number else 60)
            assert claim is not None
            if not number:
                study.finish(claim, loss=1.0, status="ok", steps=1, curve=[1.0], result={"a": 1})
    return path


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("point", "text"),
        ("point", b"123"),
        ("point", np.array([math.nan, 0.0]).tobytes()),
        ("loss", "text"),
        ("curve", b"12345"),
        ("result", "[1]"),
        ("result", "{"),
        ("result", "[" * 100_000),
        ("seed", "text"),
        ("status", b"\xff"),
        ("sequence", "x"),
        ("finished_at", "x"),
        ("started_at", 1e308),
        ("worker", b"\xff"),
        ("lease_until", "x"),
        ("attempt", 1.5),
    ],
)
def test_a_damaged_trial_is_one_line(path: Path, column: str, value: Any) -> None:
    """A row with a value of another kind is named with its trial, and says to restore the store."""
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE completedp_trials SET {column} = ? WHERE number = 0", (value,))
    file.close()
    with Store(str(path), create=False) as store:
        message = error_of(store.study("tune").trials)
    assert f"its {column} is" in message
    assert "restore the store" in message


def test_a_finished_trial_without_a_loss_is_one_line(path: Path) -> None:
    """What an engine is told has a loss and a status."""
    for column in ("loss", "status"):
        with sqlite3.connect(path) as file:
            file.execute(f"UPDATE completedp_trials SET {column} = NULL WHERE number = 0")
        file.close()
        with Store(str(path), create=False) as store:
            assert f"its {column} is None" in error_of(store.study("tune").finished_since, 0)
        with sqlite3.connect(path) as file:
            file.execute(f"UPDATE completedp_trials SET {column} = 1 WHERE number = 0")
        file.close()


@pytest.mark.parametrize(
    ("key", "value"), [("file", "a" * 5000), ("file", "\ud800"), ("sha256", "\ud800")]
)
def test_a_shard_of_an_impossible_name_is_one_line(tmp_path: Path, key: str, value: str) -> None:
    """A name that no file can have, or a digest that is none, is a fault of the manifest."""
    folder = write_tokens(tmp_path)
    manifest = Path(folder, "manifest.json")
    data = json.loads(manifest.read_text())
    data["splits"]["train"]["shards"][0][key] = value
    manifest.write_text(json.dumps(data))
    assert "prepare again" in error_of(Manifest.load, folder)


def test_a_study_that_lost_a_trial_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial that is gone is said in one line: it would leave a worker waiting for ever."""
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM completedp_trials WHERE number = 0")
    file.close()
    with Store(str(path), create=False) as store:
        assert "1 of its trials are gone: restore the store" in error_of(store.study("tune").counts)
    code, _, said = run(
        "search", "status", "--store", str(path), monkeypatch=monkeypatch, capsys=capsys
    )
    assert code == 2
    assert said.startswith("completedp: error: the study 'tune' in ")
    assert said.count("\n") == 1


def test_a_damaged_trial_is_not_taken_over(path: Path) -> None:
    """One that would be run again is read as strictly."""
    with sqlite3.connect(path) as file:
        file.execute("UPDATE completedp_trials SET point = 'x' WHERE number = 1")
    file.close()
    with Store(str(path), create=False) as store:
        study = store.study("tune")
        message = error_of(study.claim, "w", lambda _: None, lease_seconds=60.0)
    assert "its point is" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE completedp_studies SET spec = '{'", "its spec"),
        ("UPDATE completedp_studies SET spec = '[]'", "its spec"),
        ("UPDATE completedp_studies SET budget = 'many'", "its spec or budget"),
        ("UPDATE completedp_studies SET budget = -1", "its spec or budget"),
        ("UPDATE completedp_studies SET name = 'a' || char(27) || '[31m'", "\\x1b[31m"),
        ("UPDATE completedp_studies SET name = x'ff'", "named"),
        ("UPDATE completedp_notes SET value = '{'", "note 'devices'"),
        ("UPDATE completedp_notes SET value = '3'", "note 'devices'"),
    ],
)
def test_a_damaged_study_is_one_line(path: Path, change: str, words: str) -> None:
    """A spec, a name or a note that cannot be read says so and what to do, escape codes spelt."""
    with sqlite3.connect(path) as file:
        file.execute(change)
    file.close()
    with Store(str(path), create=False) as store:
        message = error_of(lambda: store.study().get_note("devices"))
    assert words in message
    assert "damaged" in message


@pytest.mark.parametrize("spec", [{}, {"space": []}, {"space": {"low": "x"}}, {"space": None}])
def test_a_damaged_spec_is_one_line(spec: dict[str, Any]) -> None:
    """A spec that lacks something is one line, whoever reads it."""
    assert "spec is damaged" in error_of(StudySpec.from_dict, spec)


@pytest.mark.parametrize("names", [["lr"], [1], ["lr/global", "eps/global"], [], None])
def test_damaged_coordinates_are_one_line(names: Any) -> None:
    """What is no name, or more or fewer names than bounds, is told as soon as a spec is read."""
    space = {"low": [-1.0], "high": [1.0], "start": [0.0], "coordinates": names, "kind": "staged"}
    assert "spec is damaged" in error_of(StudySpec.from_dict, {"space": space})


@pytest.mark.parametrize(
    "extra",
    [
        {"seconds": "x"},
        {"seconds": None},
        {"first_loss": [1]},
        {"first_loss": 10**400},
        {"last_finite_loss": "x"},
        {"gradient_noise": 3},
        {"gradient_noise": [1]},
        {"gradient_noise": [[1, 2]]},
        {"gradient_noise": [[1, 2, 3, "x"]]},
        {"gradient_noise": [[1, 2, 3, math.inf]]},
    ],
)
def test_what_goes_along_with_a_checkpoint_is_read_strictly(extra: dict[str, Any]) -> None:
    """A value that a run never writes there is one line; what it does write is not."""
    assert "remove it to start over" in error_of(check_extra, Path("checkpoint"), extra)
    good = {"seconds": 1.0, "first_loss": None, "last_finite_loss": None}
    check_extra(Path("checkpoint"), good | {"gradient_noise": [[0.0] * 4]})
    check_extra(Path("checkpoint"), {})


def a_result(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "status": "ok",
        "steps": 3,
        "tokens": 30,
        "train_loss": 1.0,
        "valid_loss": None,
        "valid_bits_per_byte": None,
        "last_finite_loss": 1.0,
        "parameters": 7,
        "seconds": 0.5,
    }
    return plain | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "fine"},
        {"status": ["ok"]},
        {"steps": "x"},
        {"steps": 1.5},
        {"seconds": None},
        {"train_loss": {}},
        {"other": 1},
    ],
)
def test_a_damaged_result_is_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A result.json that no run wrote says to remove it; one that a run wrote is read back."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(a_result(**changes)))
    assert "remove it" in error_of(read_result, path)
    path.write_text(json.dumps(a_result()))
    assert read_result(path) == Result(**a_result())


@pytest.mark.parametrize("verb", ["coordcheck", "gradcheck"])
def test_a_check_that_diverges_fails(
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Numbers that JSON has no word for are null, the plot is drawn, and the exit code is 1."""
    sizes = "--widths 64 128 --depths 2 --steps 2 --seeds 1 --batch 64 --context 16 --lr 1e30"
    given = (verb, *sizes.split(), "--json", "--out", str(tmp_path))
    code, out, _ = run(*given, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 1
    found = json.loads(out, parse_constant=pytest.fail)
    assert any(None in row["values"] for row in found["rows"])
    json.loads((tmp_path / f"{verb}.json").read_text(), parse_constant=pytest.fail)
    assert (tmp_path / f"{verb}.svg").exists()


def test_a_check_of_no_gradients_is_refused() -> None:
    """One step has no later half: a check that measured nothing would pass."""
    assert "take 2 or more" in error_of(gradcheck, widths=(64, 128), depths=(2,), steps=1)


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A corpus may have file names that are no text."""
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("some words")
    assert len(fingerprint(str(tmp_path))) == 32


def test_a_layer_of_many_digits() -> None:
    """A coordinate whose layer has 5,000 digits is one line like any other."""
    assert "base layer from 1 to 4" in error_of(check_coordinate, f"residual/depth/{'9' * 5000}", 4)
    check_coordinate("residual/depth/4", 4)
    assert error_of(check_coordinate, "residual/depth/5", 4)


def test_a_tokenizer_with_a_huge_id(tmp_path: Path) -> None:
    """An id that no model has a row for is refused before room is made for it."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE(vocab={"a": 0, "<|endoftext|>": 2**31 - 1}, merges=[])
    message = error_of(BPETokenizer, tokenizers.Tokenizer(model), "mine")
    assert "id 2147483647" in message


@pytest.mark.parametrize(
    "url",
    ["postgresql:/u:SECRET@h/db", "postgres:u:SECRET@h/db", "postgresql+psycopg:/u:SECRET@h/db"],
)
def test_a_url_with_a_missing_slash_is_no_path(url: str) -> None:
    """It is refused without being shown, as it may hold a password."""
    message = error_of(Store, url)
    assert "://" in message
    assert "SECRET" not in message


def test_an_optuna_url_that_is_none_is_not_shown(path: Path) -> None:
    """A port that is no number is one line without the password."""
    pytest.importorskip("optuna")
    with Store(str(path), create=False) as store:
        study = store.study()
        study.spec["space"] = {"coordinates": ["a"], "low": [0.0], "high": [1.0]}
        message = error_of(export_optuna, study, "postgresql://u:SECRET@h:notaport/x")
    assert "SECRET" not in message


def test_ray_refuses_every_way_to_show_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password among the URL's options is one as well."""
    secret = "postgresql://me@host/studies?password=hush"
    monkeypatch.setattr(sys, "argv", ["completedp", "--store", secret])
    message = error_of(ray_workers._refuse_shown_password, secret)
    assert "PGPASSWORD" in message
    assert "hush" not in message


def test_escape_codes_are_spelt_out() -> None:
    """Nothing from a store or a file can steer the terminal."""
    assert printable("a\x1b[31m\nb") == "a\\x1b[31m\nb"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory: take a smaller"),
        (OSError(errno.ENOSPC, "No space left on device"), "make room on the disk"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "that you may write to"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "smaller"),
    ],
)
def test_what_the_system_refuses_says_what_to_do(
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A full disk, a closed folder and a full memory are one line with advice."""

    def refused(_: Any) -> int:
        raise error

    monkeypatch.setattr(VERBS["doctor"], "run", refused)
    code, _, said = run("doctor", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert words in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SQLITE_FULL", "make room"),
        ("SQLITE_IOERR_WRITE", "make room"),
        ("SQLITE_READONLY", "copy the store"),
        ("SQLITE_CORRUPT", "from a copy"),
    ],
)
def test_what_sqlite_refuses_says_what_to_do(path: Path, code: str, words: str) -> None:
    """A full disk, a read-only store and a broken file are one line with advice."""
    fault = sqlite3.OperationalError("disk is full")
    fault.sqlite_errorname = code

    def refused(_: Any) -> None:
        raise sqlalchemy_error(fault)

    with Store(str(path), create=False) as store:
        assert words in error_of(store._database.run, refused)


def test_text_that_is_no_text_is_one_line(path: Path) -> None:
    """Bytes that are not UTF-8, in a table or in SQLite's words, mean a damaged file."""

    def refused(_: Any) -> None:
        b"\xe5".decode()

    with Store(str(path), create=False) as store:
        assert "is damaged" in error_of(store._database.run, refused)


def test_the_status_of_a_spec_without_an_engine(path: Path) -> None:
    """A spec that lost its engine is one line."""
    with Store(str(path)) as store:
        assert "spec is damaged" in error_of(status, store.create_study("mine", {"trials": 3}))


def sqlalchemy_error(fault: Exception) -> Exception:
    from sqlalchemy.exc import OperationalError

    return OperationalError("statement", {}, fault)


@pytest.mark.parametrize(("part", "goes_on"), [("status", False), ("worker", True)])
def test_what_search_says_when_it_is_interrupted(
    part: str,
    goes_on: bool,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only parts of `search` that go on where they stopped say that they do."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "study", interrupted)
    data = ("--data", "x") if part == "worker" else ()
    given = ("search", part, "--store", str(path), *data)
    code, _, said = run(*given, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 130
    assert ("goes on" in said) == goes_on


def test_release_on_the_command_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`search release` names the workers there are, gives a dead one's trials back, and says so."""
    with Store(str(path), create=False) as store:
        made = Proposal(point=np.zeros(2), seed=9)
        for _ in range(2):
            assert store.study().claim("dead-1", lambda _: made, lease_seconds=60.0) is not None
    here = {"monkeypatch": monkeypatch, "capsys": capsys}
    release = ("search", "release", "--store", str(path))
    code, _, said = run(*release, **here)
    assert code == 2
    assert "dead-1 (2)" in said
    code, _, said = run(*release, "--worker", "daed-1", **here)
    assert code == 2
    assert "dead-1 (2)" in said
    assert run(*release, "--worker", "dead-1", "--everyone", **here)[0] == 2
    code, out, _ = run(*release, "--worker", "dead-1", **here)
    assert (code, out) == (0, "given back: 1, 2\n")
    code, out, _ = run(*release, "--everyone", "--json", **here)
    assert (code, json.loads(out)) == (0, {"released": []})
    with Store(str(path), create=False) as store:
        assert store.study().counts()["expired"] == 2


def test_names_that_are_no_utf_8_are_read_or_refused(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder of such a name is reported; a database of such a name is refused in one line."""
    odd = os.fsdecode(b"odd\xff")
    folder = tmp_path / odd
    folder.mkdir()
    cdp.Recipe.default().save(folder / "best.json")
    page = tmp_path / "page.html"
    asked = ("report", str(folder), "--out", str(page), "--title", odd)
    code, _, _ = run(*asked, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "best.json" in page.read_text(encoding="utf-8")
    pytest.importorskip("optuna")
    url = f"sqlite:///{tmp_path / odd}.db"
    asked = ("search", "export", "--store", str(path), "--study", "tune", url)
    code, _, said = run(*asked, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "\n" not in said.strip()
