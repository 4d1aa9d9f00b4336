"""The report as a browser shows it: both themes, a desk and a phone. Needs Chromium; skips without.

pytest -m slow tests/test_report_in_a_browser.py
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import EXECUTABLE, Browser

from completedp.evidence.reporting.gather import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on this machine"),
]
RESULTS = Path(__file__).parent.parent / "docs" / "results"
WIDTHS = {"desk": 1280, "phone": 390}
SHOWN = """
[...document.querySelectorAll('.drawn > *, .chart svg')].map(each => {
  const box = each.getBoundingClientRect();
  return each.tagName === 'IMG' ? [box.width, box.height, each.naturalWidth]
                                : [box.width, box.height, 1];
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


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_the_page_of_all_figures(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """It opens without a complaint or a request, every drawing is seen, nothing is cut off."""
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    drawings = browser.evaluate(SHOWN)
    assert len(drawings) == len(list(RESULTS.glob("*.svg")))
    for drawn in drawings:
        assert min(drawn) > 0, drawn
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate(CUT) == 0
    assert (browser.evaluate(LIGHTNESS) < 0.3) == dark


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
