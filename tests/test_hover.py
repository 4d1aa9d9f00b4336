"""Values that show when a pointer rests on a point of a drawing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from completedp.evidence.figures.drawing import canvas, factors_axis, finish, powers_of_two
from completedp.evidence.hover import MOST, without_marks
from completedp.evidence.report import Report

pytest.importorskip("matplotlib")


def drawing() -> str:
    """Two panels in a row that share what y is: markers, a line without, bars and what is apart."""
    with canvas(1, 2, "it holds", "a setting") as (figure, grid):
        left, right = grid[0]
        left.plot([1, 2, 4], [3.5, 3.25, 3.0], "o-", label="by <b>rules</b>")
        left.plot([1, 4], [3.2, 3.2], "--", label="to be seen only")
        left.axvline(2.0, marker="x")
        factors_axis(left, (1, 2, 4))
        left.set_xlabel("width")
        left.set_ylabel("loss")
        right.errorbar([-1.0, 0.0], [3.4, 3.1], [0.1, 0.1], fmt="s", capsize=2, label="fitted")
        right.bar([0.5], [3.3], 0.2, label="a bar")
        right.set_ylim(3.0, 3.6)
        right.set_yticks([3.1, 3.3], ["low", "high"])
        powers_of_two(right, "x", -1, 1, base=-7)
        return finish(figure)


def test_what_a_point_says() -> None:
    """Name and both values in the axes' own words; of a line without markers nothing."""
    _, spots = without_marks(drawing())
    assert [spot.words for spot in spots] == [
        "by <b>rules</b>: width = x1; loss = 3.5",
        "by <b>rules</b>: width = x2; loss = 3.25",
        "by <b>rules</b>: width = x4; loss = 3",
        "fitted: 2^-8.00; loss = 3.4",
        "fitted: 2^-7.00; loss = low",
        "a bar: 2^-6.50; loss = high",
    ]


def test_a_value_is_where_its_marker_is() -> None:
    """Every spot of a marker is, to a tenth of a point, where matplotlib itself has drawn it."""
    svg = drawing()
    plain, spots = without_marks(svg)
    width, height = map(float, re.findall(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)[0])
    drawn = re.findall(r'<use [^>]*x="([0-9.]+)" y="([0-9.]+)" style="fill: #1f77b4', plain)
    for spot in spots[:3]:
        place = spot.left * width / 100, spot.top * height / 100
        assert any(
            abs(place[0] - float(x)) < 0.1 and abs(place[1] - float(y)) < 0.1 for x, y in drawn
        )


@pytest.mark.parametrize(
    "svg",
    [
        '<svg viewBox="0 0 0 0"><circle class="value" cx="1" cy="1" r="5"><title></title></circle>',
        '<svg viewBox="0 0 9 9"><circle class="value" cx="1.2.3" cy="1" r="5"><title>a</title>',
        '<svg viewBox="0 0 . 9">',
        '<svg width="...pt">',
        f'<svg width="{"9" * 500}pt" viewBox="0 0 {"9" * 500} 9">',
    ],
)
def test_a_drawing_that_is_none_breaks_no_page(svg: str) -> None:
    """Whatever stands where a drawing has its sizes, the page is made."""
    page = Report("a page")
    page.drawing(svg, "a drawing")
    assert "data:image/svg+xml,%3Csvg" in page.html()


def test_white_space_of_a_path_stays() -> None:
    """Line ends and tabs part a path's numbers, and an address has none: they become spaces."""
    page = Report("a page")
    page.drawing('<svg><path d="M 1\t2\r\nL 3\n4"/></svg>', "a drawing")
    (address,) = re.findall(r"src='([^']*)'", page.html())
    assert 'd="M 1 2  L 3 4"' in address


def test_a_drawing_is_the_same_without() -> None:
    """What is left of a drawing has no mark, and what had none is left as it is."""
    plain, spots = without_marks(drawing())
    assert spots
    assert 'class="value"' not in plain
    assert without_marks(plain) == (plain, [])


@pytest.mark.parametrize(
    ("place", "kept"), [("10", True), ("1e9", False), ("99999", False), ('1" onload="x', False)]
)
def test_marks_of_a_strange_file(place: str, kept: bool) -> None:
    """A spot beyond the drawing is left out, and words are no markup on a page."""
    mark = f'<circle class="value" cx="{place}" cy="5" r="5"><title>&lt;script&gt;</title></circle>'
    svg = f'<svg viewBox="0 0 100 50">{mark * (MOST + 3)}</svg>'
    _, spots = without_marks(svg)
    assert len(spots) == (MOST if kept else 0)
    page = Report("a page")
    page.drawing(svg, "a drawing")
    found: Any = re.findall(r'<i style="([^"]*)" title="([^"]*)"></i>', page.html())
    assert len(found) == len(spots)
    assert set(found) <= {("left:10.00%;top:10.00%", "&lt;script&gt;")}
    assert "<script" not in page.html()
