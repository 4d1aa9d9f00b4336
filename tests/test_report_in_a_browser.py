"""The report as a browser shows it: both themes, a desk and a phone. Needs Chromium; skips without.

pytest -m slow tests/test_report_in_a_browser.py
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import EXECUTABLE, Browser
from studies import make_recipe, make_study, planted, write_tokens
from test_report import check, noted, run

from completedp.evidence.reporting.gather import write_report
from completedp.studies.engines import Proposal
from completedp.studies.spec import StudySpec
from completedp.studies.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on this machine"),
]
RESULTS = Path(__file__).parent.parent / "docs" / "results"
WIDTHS = {"desk": 1280, "phone": 390}
SHOWN = """
[...document.querySelectorAll('.drawn > *, .chart svg')].map(each => {
  const box = each.getBoundingClientRect();
  const image = each.querySelector('img');
  return [box.width, box.height, image === null ? 1 : image.naturalWidth];
})
"""
LIGHTNESS = """
getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)
  .reduce((sum, each) => sum + Number(each), 0) / 765
"""
CUT = """
[...document.querySelectorAll('td, th, p, h1, h2, h3')].filter(each => {
  const box = each.getBoundingClientRect();
  return !each.closest('.wide') && box.right > document.documentElement.clientWidth + 1;
}).length
"""

UNSEEN = """
[...document.querySelectorAll('.chart path, .chart polyline')].map(each => {
  const look = getComputedStyle(each), box = each.getBoundingClientRect();
  return [look.stroke, look.opacity, box.width + box.height];
}).filter(([stroke, opacity, size]) => stroke === 'none' || opacity < .1 || size === 0)
"""
"""Marks of a chart that have no colour or no size."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    found = write_report([str(RESULTS)], path, "Every figure")
    assert found["bytes"] < 2_000_000
    return path


def search(folder: Path) -> None:
    """A search with more trials than are drawn, of which coordinates mattered, and its recipe."""
    tokens = write_tokens(folder)
    with Store(str(folder / "search.db")) as store:
        study = make_study(store, tokens, trials=600)
        bounds = StudySpec.from_dict(study.spec).space.bounds
        rng = np.random.default_rng(0)
        for i in range(600):
            point = rng.uniform(bounds.low, bounds.high)
            here = Proposal(point=point, seed=i)
            claim = study.claim("w", lambda *_, here=here: here, lease_seconds=60)
            assert claim is not None
            loss = 3 + float(np.abs(point[:5]) @ [0.5, 0.4, 0.3, 0.3, 0.2])
            study.finish(claim, loss=loss, status="ok", steps=1, curve=[])
        noted(study, recommended=[3.1, 3.2], recommended_earlier=[3.4, 3.5], start=[4.5, 4.6])
    make_recipe(lr=2.0**-5).save(folder / "best.json")


def runs(folder: Path) -> None:
    """Two training runs, one of them at work."""
    run(folder / "a")
    run(folder / "b", status=None, steps=12)


def checks(folder: Path) -> None:
    """A check that failed, with some drawing."""
    check(folder)
    shutil.copy(RESULTS / "lr-width.svg", folder / "coordcheck.svg")


def partial(folder: Path) -> None:
    """A figure that was begun."""
    tokens = write_tokens(folder)
    with Store(str(folder / "lr-batch-cpu.db")) as store:
        planted(make_study(store, tokens, name="sweep"), tokens, [3.0])


CHARTS = {search: 5, runs: 1, checks: 1, partial: 0}
"""Each page, and how many charts and drawings it has."""


@pytest.fixture(scope="module", params=CHARTS, ids=lambda make: make.__name__)
def other_page(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("other")
    (folder / "of").mkdir()
    request.param(folder / "of")
    write_report([str(folder / "of")], folder / "report.html", "One of them")
    return folder / "report.html", CHARTS[request.param]


def look(browser: Browser, page: Path, charts: int, width: int, dark: bool) -> None:
    """It opens without a complaint or a request, every drawing is seen, nothing is cut off."""
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    drawings = browser.evaluate(SHOWN)
    assert len(drawings) == charts
    for drawn in drawings:
        assert min(drawn) > 0, drawn
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate(CUT) == 0
    assert (browser.evaluate(LIGHTNESS) < 0.3) == dark
    unseen = browser.evaluate(UNSEEN)
    assert unseen == [], unseen


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_the_page_of_all_figures(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """The page of every figure is as it should be, at a desk and on a phone, light and dark."""
    look(browser, page, len(list(RESULTS.glob("*.svg"))), width, dark)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_pages_of_other_things(
    browser: Browser, other_page: tuple[Path, int], width: int, dark: bool
) -> None:
    """So are those of a search with its recipe, of runs, of checks, and of a partial figure."""
    look(browser, *other_page, width, dark)


def test_the_browser_sees_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    """A page with a script that fails, a request, and a line that is too wide is not taken."""
    wrong = tmp_path / "wrong.html"
    wrong.write_text(
        "<!doctype html><p style='width:3000px'>wide</p><script>none()</script>"
        "<img src='http://127.0.0.1:9/x.png'>"
    )
    browser.open(wrong)
    said = " ".join(browser.complaints)
    assert "none is not defined" in said
    assert "asked for http://127.0.0.1:9/x.png" in said
    assert not browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate(CUT) == 1
