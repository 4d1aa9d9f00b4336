"""Settings that every test file shares, and the databases that tests of the store run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from postgres_server import Server, server, why_not

settings.register_profile("suite", deadline=None, max_examples=50)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as the terminal. Tests are run in many, and see one."""
    monkeypatch.setenv("COLUMNS", "180")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    if reason := why_not():
        pytest.skip(reason)
    with server("fsync=off") as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("postgres").database()
