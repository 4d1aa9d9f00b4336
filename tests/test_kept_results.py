"""What docs/results says follows from the measurements that are kept beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from judge_again import NAMES, RESULTS, judged_again

from completedp.common.files import plain
from completedp.evidence.figures.figure import setting_of
from completedp.evidence.figures.registry import FIGURES


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


@pytest.mark.parametrize("name", NAMES)
def test_a_verdict_follows_from_its_measurements(name: str) -> None:
    """Judging the kept losses again gives the kept findings and numbers."""
    found, written = judged_again(name)
    assert_same(plain([vars(finding) for finding in found.findings]), written["findings"])
    assert_same(plain(found.numbers), written["numbers"])
    assert_same(plain(found.summary), {key: written[key] for key in found.summary})


@pytest.mark.parametrize("name", FIGURES)
def test_what_was_run_is_what_would_be_run_today(name: str) -> None:
    """A figure that was given another base since has no results until it is run again."""
    written = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert written["setting"] == plain(setting_of(FIGURES[name], written["size"]))
