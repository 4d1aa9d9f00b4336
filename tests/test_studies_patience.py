"""A search in Python: Ctrl-C is answered in a line, and hours on a CPU are warned of."""

import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch
from studies import write_tokens

import completedp as cdp
from completedp.studies import session
from completedp.studies.session import Search

CONTEXT = 16
BASE = cdp.Scale(width=16, depth=1, batch=4 * CONTEXT, tokens=4 * CONTEXT * 3)
GOES_ON = "completedp: interrupted: the same call goes on where it stopped"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("patience"))


def searched(tokens: str, folder: Path, *, quiet: bool = True, trials: int = 2) -> Search:
    return cdp.search(
        own.nano,
        BASE,
        tokens,
        trials,
        str(folder / "s.db"),
        CONTEXT,
        space="global",
        slots=1,
        eval_examples=4,
        device="cpu",
        compile=False,
        quiet=quiet,
    )


class Struck:
    """A forward pass that Ctrl-C strikes, if it is to."""

    now = False

    def __call__(self, mlp: Any, x: torch.Tensor) -> torch.Tensor:
        if self.now and torch.is_grad_enabled():
            raise KeyboardInterrupt
        return mlp.c_proj(torch.nn.functional.gelu(mlp.c_fc(x)))


def test_a_search_that_is_interrupted_says_how_it_goes_on(
    tokens: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, a KeyboardInterrupt with nothing of torch in its traceback, and no trial lost."""
    strike = Struck()
    monkeypatch.setattr(own.MLP, "forward", lambda mlp, x: strike(mlp, x))
    study = searched(tokens, tmp_path, trials=1)
    strike.now = True
    for call in (
        lambda: study.run(2, quiet=True),
        lambda: study.best((), seeds=1, quiet=True),
        lambda: study.ladder((), seeds=1, quiet=True),
    ):
        capsys.readouterr()
        with pytest.raises(KeyboardInterrupt) as caught:
            call()
        assert capsys.readouterr().err.splitlines() == [GOES_ON]
        shown = "".join(traceback.format_exception(caught.value))
        assert "torch" not in shown
        assert shown.count("File ") <= 5
    strike.now = False
    study.close()
    with searched(tokens, tmp_path) as again:
        assert [row.attempt for row in again.trials()] == [1, 1]


def test_the_call_itself_ends_in_its_own_frame(
    tokens: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`cdp.search` is interrupted as its parts are."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "work", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        searched(tokens, tmp_path)
    assert GOES_ON in capsys.readouterr().err.splitlines()
    assert "in interrupted" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("quiet", [True, False])
def test_hours_on_a_cpu_are_warned_of(
    quiet: bool, tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the estimate and what to do, until a trial was begun; quiet or not."""
    estimate = session.estimate_trials

    def slower(*given: Any) -> Any:
        return replace(estimate(*given), seconds=7_200.0)

    monkeypatch.setattr(session, "estimate_trials", slower)
    with said_while() as lines:
        searched(tokens, tmp_path, quiet=quiet).close()
    (line,) = lines
    assert re.fullmatch(r"2 trials will take about 2:00:00 on .*: take fewer trials, .*", line)
    with said_while() as lines, searched(tokens, tmp_path, quiet=quiet, trials=3) as study:
        assert lines == []
        study.best((), seeds=1, quiet=quiet)
    (line,) = lines
    assert re.fullmatch(r"\d trials will take about 2:00:00 on .*: take lower rungs, .*", line)


def test_what_is_soon_over_is_not_warned_of(tokens: str, tmp_path: Path) -> None:
    """Seconds on a CPU are nothing to say."""
    with said_while() as lines:
        searched(tokens, tmp_path).close()
    assert lines == []


@contextmanager
def said_while() -> Iterator[list[str]]:
    """The warnings of times."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True, action="always") as said:
        yield lines
    lines += [str(each.message) for each in said if "trials will take" in str(each.message)]
