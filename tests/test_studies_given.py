"""What `cdp.search` is given: mistakes are said in a line before anything is stored or trained."""

from pathlib import Path
from typing import Any

import own_models as own
import pytest
from helpers import error_of
from studies import write_tokens

import completedp as cdp
from completedp.studies.run import ladder_outlook
from completedp.studies.session import Search
from completedp.studies.store import Store

CONTEXT = 16
BASE = cdp.Scale(width=16, depth=1, batch=4 * CONTEXT, tokens=4 * CONTEXT * 3)
TWICE = cdp.Ratios(depth=2)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("given"))


def searched(tokens: str, folder: Path, **given: Any) -> Search:
    plain: dict[str, Any] = {"space": "global", "slots": 1, "eval_examples": 4, "trials": 2}
    plain |= {"context": CONTEXT}
    plain |= {"compile": False, "quiet": True, "device": "cpu", "store": str(folder / "s.db")}
    return cdp.search(own.nano, BASE, tokens, **(plain | given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"eval_examples": 0}, "eval_examples = 0 must be a whole number of at least 1"),
        ({"eval_examples": -3}, "eval_examples = -3"),
        *(({"trials": n}, f"trials = {n!r} must be a whole") for n in (-1, 0, 1.5, "a", None)),
        *(({"slots": n}, f"slots = {n!r} must be a whole") for n in (-1, 0, 1.5, "a")),
        ({"context": 1.5}, "context = 1.5 must be a whole"),
        ({"seed": -1}, "seed = -1 must be a whole number from 0"),
        ({"seed": "a"}, "seed = 'a' must be a whole number"),
        ({"seed": 0.5}, "seed = 0.5"),
        ({"reach": "a"}, "reach = 'a' must be a number"),
        ({"reach": float("nan")}, "reach = nan"),
        ({"sites": BASE}, "is given twice"),
        ({"sites": [1]}, "sites = 1 must be Scales, Ratios to the base"),
        ({"sites": ["deep=2"]}, "'deep=2' must be AXIS=NUMBER"),
        ({"targets": [1]}, "targets = 1 must be Scales, Ratios to the base"),
        ({"targets": None}, "targets = None must be Scales"),
        ({"store": None}, "store = None must be a path, or a URL"),
        ({"store": 3}, "store = 3 must be a path, or a URL"),
    ],
)
def test_a_mistake_is_said_before_anything_is_stored(
    given: dict[str, Any],
    said: str,
    tokens: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line that quotes what was given, and no store that a corrected call would not fit."""
    monkeypatch.chdir(tmp_path)
    assert said in error_of(searched, tokens, tmp_path, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", [BASE.times(TWICE), TWICE, "depth=2", "depth=2x"])
@pytest.mark.parametrize("alone", [False, True])
def test_scales_are_given_as_such_or_relative_to_the_base(
    where: Any, alone: bool, tokens: str, tmp_path: Path
) -> None:
    """Sites, targets and rungs take a Scale, Ratios or their text, alone or in a list."""
    given = where if alone else [where]
    with searched(tokens, tmp_path, sites=given, targets=given) as study:
        assert [site.scale for site in study.objective.spec.sites] == [BASE, BASE.times(TWICE)]
        ladder = study.ladder(given, seeds=1, quiet=True)
        assert [rung.scale for rung in ladder.rungs] == [BASE, BASE.times(TWICE)]
    searched(tokens, tmp_path, sites=[BASE.times(TWICE)], targets=[TWICE]).close()


def test_a_rung_that_is_no_scale_is_said(tokens: str, tmp_path: Path) -> None:
    """A mistake in a ladder is one line, too."""
    with searched(tokens, tmp_path) as study:
        for rungs, said in (
            ([2], "rungs = 2 must be Scales"),
            (["tokens"], "'tokens' must be AXIS=NUMBER"),
            (["tokens=2", cdp.Ratios(tokens=2)], "is given twice"),
        ):
            assert said in error_of(study.best, rungs, seeds=1, quiet=True)
            assert said in error_of(study.ladder, rungs, seeds=1)


def test_a_store_may_be_a_path(tmp_path: Path) -> None:
    """As every other file in Python."""
    Store(tmp_path / "s.db").close()
    assert (tmp_path / "s.db").exists()


def test_a_ladder_that_nobody_named_grows_along_all_that_a_base_lacks(
    tokens: str, tmp_path: Path
) -> None:
    """Where no rungs are given the choice is made at a longer and at a larger scale; "base", or no
    rung, is the base alone."""
    with searched(tokens, tmp_path) as study:
        larger = cdp.Ratios(width=2, depth=2, tokens=2)
        takes = ladder_outlook(study.study, study.objective).left
        assert {*takes} == {BASE, BASE.times(cdp.Ratios(tokens=2)), BASE.times(larger)}
        assert study.ladder(seeds=1, quiet=True).rungs[1].scale == BASE.times(cdp.Ratios(tokens=2))
        for alone in ("base", ()):
            assert [rung.scale for rung in study.ladder(alone, seeds=1, quiet=True).rungs] == [BASE]


@pytest.mark.parametrize("seeds", [-1, 0, 1.5, "a"])
def test_seeds_of_a_ladder_are_a_number(seeds: Any, tokens: str, tmp_path: Path) -> None:
    """How many fresh seeds measure a recipe is at least one, and a mistake is one line."""
    with searched(tokens, tmp_path) as study:
        for rungs in ((), "tokens=2"):
            said = error_of(study.best, rungs, seeds=seeds, quiet=True)
            assert f"seeds = {seeds!r} must be a whole number of at least 1" in said
