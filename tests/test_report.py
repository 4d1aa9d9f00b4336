"""The report: what each path is, a page that nothing can break out of, and what is missing."""

import json
import lzma
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import error_of
from studies import BASE, make_recipe, make_study, planted, write_tokens

import completedp
from completedp.cli.report import ReportVerb
from completedp.evidence.charts import DOTS, TOLD, Mark, Series, chart, sample
from completedp.evidence.hover import without_marks
from completedp.evidence.report import Report, smaller_svg
from completedp.evidence.reporting import searches
from completedp.evidence.reporting.gather import LARGEST, gather, page_of, sentence, write_report
from completedp.evidence.reporting.recipes import global_values, multiplier_map
from completedp.evidence.reporting.searches import mattered
from completedp.studies.candidates import MEANINGS
from completedp.studies.engines import Proposal
from completedp.studies.spec import StudySpec
from completedp.studies.store import Store, Study, TrialRow
from completedp.theory.evidence import Rung, Standing
from completedp.theory.transfer import Transfer

EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
RESULTS = Path(__file__).parent.parent / "docs" / "results"
VOID = {"meta", "br", "img", "line", "circle", "rect", "polyline"}


class Page(HTMLParser):
    """A page as a browser would read it: tags that are open, attributes, text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def write(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def figure(folder: Path, *verdicts: str, name: str = "lr-width", words: str = "It stays") -> Path:
    findings = [
        {"claim": f"{words} {i}", "measured": 0.25, "low": 0.1, "high": 0.4, "unit": "octaves",
         "verdict": verdict}
        for i, verdict in enumerate(verdicts)
    ]  # fmt: skip
    (folder / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text>{words}</text></svg>'
    )
    rows = [{"line": words, "factor": 2, "loss": None, "scale": {"width": 8, "depth": 2}}]
    return write(
        folder / f"{name}.json",
        {"figure": name, "claim": words, "paper": "Figure 2", "size": "cpu", "data": words,
         "model": "reference", "findings": findings, "seconds": 61.0, "device": words,
         "numbers": {"limit": 0.5, "curves": rows, "laws": {"rule": {"floor": 1.5}}}},
    )  # fmt: skip


def check(folder: Path, words: str = "qkv") -> Path:
    row = {"parameterisation": "completedp", "axis": "width", "quantity": "own", "what": words,
           "expected": 0.0, "slope": 0.4, "error": None, "verdict": "fail"}  # fmt: skip
    return write(
        folder / "coordcheck.json",
        {"check": "coordcheck", "config": {"model": words, "widths": [8, 16], "depths": [2]},
         "passed": {"completedp": False, "sp": True}, "rows": [row]},
    )  # fmt: skip


def sweep(folder: Path, words: str = "completedp") -> Path:
    best = {"octaves": [0.5], "errors": [0.1], "loss": 2.0}
    lines = [
        {"parameterisation": words, "axis": "base", "factor": 1, "optimum": best, "drift": [0.0],
         "cost": 0.0, "losses": []},
        {"parameterisation": words, "axis": "width", "factor": 4, "optimum": best, "drift": [-0.7],
         "cost": 0.03, "losses": []},
    ]  # fmt: skip
    grid = {"vary": ["lr"], "axes": ["width"], "factors": [1, 4], "octaves": [-1.0, 1.0]}
    typed = "completedp sweep --data DATA --vary lr"
    return write(folder / "verdict.json", {"grid": grid, "lines": lines, "command": typed})


def horizon(folder: Path) -> Path:
    size = {"factor": 2.0, "optimum": -0.3, "optimum_error": 0.1, "best_loss": 2.0,
            "exponent_since_last": 0.3}  # fmt: skip
    cost = {"exponent": 0.5, "loss": 2.01, "cost": 0.01, "error": 0.002}
    fit = {"exponent": 0.31, "error": 0.05, "close": [0.2, 0.4], "sizes": [size], "costs": [cost]}
    fits = {"tokens": fit, "batch": None}
    return write(folder / "verdict.json", {"grid": {"factors": [1, 2]}, "fits": fits})


def run(folder: Path, *, status: str | None = "ok", steps: int = 20) -> Path:
    recipe = make_recipe()
    folder.mkdir(parents=True)
    recipe.save(folder / "recipe.json")
    write(folder / "config.json", {"data": "tokens", "out": str(folder), "lr": 0.5, "seed": 3})
    rows = [
        {"step": step, "tokens": 64 * step, "loss": 5.0 - step / 10} for step in range(1, steps, 2)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    if status is not None:
        loss = 3.25 if status == "ok" else None
        write(folder / "result.json", {"status": status, "steps": steps, "valid_loss": loss})
    return folder


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, tokens: str) -> Path:
    """A folder with one of each, whose names would all like to be markup."""
    folder = tmp_path_factory.mktemp("results")
    figure(folder, "pass", "fail", words=EVIL)
    check(folder / "checks", EVIL)
    sweep(folder / "sweep", EVIL)
    horizon(folder / "fitted")
    run(folder / "runs" / "a")
    run(folder / "runs" / "b", status=None, steps=8)
    make_recipe().save(folder / "best.json")
    with Store(str(folder / "search.db")) as store:
        study = make_study(store, tokens, name=EVIL, trials=10)
        planted(study, tokens, [3.0, 2.5, 2.75, float("inf"), 2.25, 2.5, 2.4, 2.3, 2.6, 2.9])
        rung = {"scale": study.spec["sites"][0]["scale"], "standings": [
            {"candidate": "recommended", "losses": [2.0, 2.2]},
            {"candidate": "start", "losses": [2.5, None]}]}  # fmt: skip
        study.set_note("best", {"chosen": "recommended", "rungs": [rung]})
    return folder


def test_a_page_of_everything(everything: Path, tmp_path: Path) -> None:
    """Every kind is found by its content and is on the page, with its verdict and its command."""
    found = write_report([str(everything)], tmp_path / "page.html", "All of it")
    titles = " | ".join(part["title"] for part in found["parts"])
    for title in ("lr-width", "coordcheck", "sweep of lr", "fitted horizon", "training runs",
                  "recipe best.json", "search "):  # fmt: skip
        assert title in titles
    page = Page((tmp_path / "page.html").read_text())
    assert page.open == []
    verdicts = {part["title"]: part["verdict"] for part in found["parts"]}
    assert verdicts["lr-width"] == verdicts["coordcheck"] == "fail"
    assert verdicts["training runs"] == "not finished"
    assert verdicts["recipe best.json"] == "measured"
    for words in ("drifts by up to 0.70 octaves", "exponent 0.31 +- 0.05",
                  "completedp sweep --data DATA --vary lr", "step 7 of 20", "What to see",
                  "2.1000 +- 0.1000 on fresh seeds; recommended trains there", "Training loss",
                  "explains more than that", "1:01"):  # fmt: skip
        assert words in page.text, words
    assert found["bytes"] < 200_000


def test_the_headline_comes_first(tmp_path: Path) -> None:
    """Figures are in the paper's order after the headline, which gives the page its sentence; the
    first table has what the paper found beside every number."""
    for name in ("lr-depth", "headline", "lr-width"):
        path = figure(tmp_path, "pass", "not settled", name=name)
        if name == "headline":
            ends = {"speedup": 1.5, "low": 1.25, "high": None}
            ends["over"] = {"uniform": {"speedup": 1.1, "low": 0.9, "high": 1.4}}
            target = {"flops_ratio": 518.2, **ends}
            write(path, json.loads(path.read_text()) | {"base": ends, "target": target})
    parts = gather([str(tmp_path)])
    assert [part.title for part in parts] == ["headline", "lr-width", "lr-depth"]
    text = Page(page_of(parts, "x").html()).text
    assert "1.50 [1.25, -] times the tokens at 518 times its FLOP" in text
    assert "one initial scale, too, need 1.10 [0.90, 1.40]" in text
    table = text[: text.index("What to see")]
    for part in parts:
        assert part.paper
        assert part.paper in table
        for outcome in part.outcomes:
            assert f"{outcome.claim}: {outcome.measured}" in table


def test_only_what_passes_is_left_to_be_counted(tmp_path: Path) -> None:
    """The first table has every claim of a figure that fails or is not settled."""
    figure(tmp_path, *["pass"] * 6, "fail", "pass", "not settled", words="Claim")
    text = Page(page_of(gather([str(tmp_path)]), "x").html()).text
    table = text[: text.index("What to see")]
    for shown in (0, 1, 2, 3, 6, 8):
        assert f"Claim {shown}: 0.25" in table
    assert "Claim 4: 0.25" not in table
    assert "and 3 more that pass" in table


def test_nothing_a_file_says_becomes_markup(everything: Path, tmp_path: Path) -> None:
    """Names with markup in them are shown as they are; there are no scripts, handlers, or links."""
    write_report([str(everything)], tmp_path / "page.html", EVIL)
    html = (tmp_path / "page.html").read_text()
    page = Page(html)
    assert EVIL in page.text
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    for name, value in page.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:image/svg+xml,%3Csvg"))
    assert "default-src 'none'" in html
    (image,) = re.findall(r"src='data:image/svg\+xml,([^']*)'", html)
    assert unquote(image).startswith("<svg")
    assert EVIL in unquote(image)


def test_the_markup_test_can_fail() -> None:
    """Text that is put in without escaping is seen by the reader of the test."""
    report = Report("x")
    report.figure(EVIL)
    assert "script" in Page(report.html()).tags


def test_a_drawing_that_is_missing_is_said(tmp_path: Path) -> None:
    """A figure without its drawing is shown with its numbers, and says what is not there."""
    path = figure(tmp_path, "pass")
    path.with_suffix(".svg").unlink()
    parts = gather([str(path)])
    assert "lr-width.svg is missing" in Page(page_of(parts, "x").html()).text


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["pass", "pass"], "All 2 claims hold."),
        (["pass", "fail", "not settled"], "Of 3 claims 1 hold, 1 does not, 1 is not settled."),
    ],
)
def test_the_sentence(tmp_path: Path, verdicts: list[str], said: str) -> None:
    """What holds, what does not, and what is open are counted; what is not finished is said."""
    figure(tmp_path, *verdicts)
    assert sentence(gather([str(tmp_path)])) == said
    run(tmp_path / "run", status=None)
    assert sentence(gather([str(tmp_path)])) == f"{said[:-1]}; 1 is not finished."


def test_a_page_of_one_part_begins_with_what_it_found(tmp_path: Path) -> None:
    """Where there is one part and no claim to judge, its finding is the sentence."""
    run(tmp_path / "a")
    run(tmp_path / "b")
    parts = gather([str(tmp_path)])
    assert sentence(parts) == "training runs: lowest validation loss 3.2500."
    make_recipe().save(tmp_path / "best.json")
    assert sentence(gather([str(tmp_path)])) == "2 parts, measured, with no claim to judge."


def test_a_path_is_taken_once(tmp_path: Path) -> None:
    """A file that is named, and is in a folder that is named, is on the page once."""
    path = figure(tmp_path, "pass")
    assert len(gather([str(path), str(tmp_path), str(path)])) == 1


def test_what_is_nothing_known(tmp_path: Path) -> None:
    """A path that is not there, holds nothing known, or only looks right is one line."""
    assert "nothing at" in error_of(gather, [str(tmp_path / "none")])
    assert "does not hold" in error_of(gather, [str(tmp_path)])
    other = write(tmp_path / "other.json", {"a": 1})
    assert "other.json" in error_of(gather, [str(other)])
    half = write(tmp_path / "half.json", {"figure": "x", "findings": [{}], "claim": "y"})
    assert "not a whole figure's verdict" in error_of(gather, [str(half)])
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0 and nothing")
    assert "x.db" in error_of(gather, [str(tmp_path / "x.db")])
    assert "Name one" in error_of(gather, [])


def broken(path: Path, how: str) -> None:
    """Make a figure's verdict one that cannot be read, or not all of it."""
    data = json.loads(path.read_text())
    if how == "cut":
        path.write_text(path.read_text()[:-20])
    elif how == "keys":
        write(path, data | {"findings": [{}]})
    else:
        write(path, data | {"numbers": {"curves": [{"line": 1}]}})


@pytest.mark.parametrize("how", ["cut", "keys", "numbers"])
def test_a_broken_file_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """What cannot be read of a folder is named with the reason, on the page and to the user, and
    all else is shown; where nothing else is, it is an error."""
    figure(tmp_path, "pass", "pass")
    bad = figure(tmp_path, "pass", name="lr-depth")
    broken(bad, how)
    out = tmp_path / "page.html"
    assert ReportVerb(paths=(str(tmp_path),), out=str(out)).run() == 0
    said = capsys.readouterr()
    page = Page(out.read_text())
    assert page.open == []
    for text in (said.err, page.text):
        assert "lr-depth" in text
        assert {"cut": "is not a result", "keys": "'claim'", "numbers": "'factor'"}[how] in text
    assert "lr-width: 2 pass" in said.out
    assert "It stays 1" in page.text
    if how != "numbers":
        assert "All 2 claims hold. Left out: lr-depth.json." in page.text
    (tmp_path / "lr-width.json").unlink()
    for path in (bad, tmp_path):
        assert "lr-depth" in error_of(write_report, [str(path)], out, "x")


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes the page, says what is on it, and as JSON the same."""
    figure(tmp_path, "pass", "pass")
    out = str(tmp_path / "page.html")
    assert ReportVerb(paths=(str(tmp_path),), out=out).run() == 0
    assert "lr-width: 2 pass" in capsys.readouterr().out
    assert ReportVerb(paths=(str(tmp_path),), out=out, json=True).run() == 0
    assert json.loads(capsys.readouterr().out)["parts"][0]["verdict"] == "pass"


def test_which_coordinates_mattered() -> None:
    """A coordinate that decides the losses explains them, also by a bowl; noise does not."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 3))
    one_stage = np.zeros(200, dtype=bool)
    shares = mattered(points, (points[:, 1] - 0.2) ** 2, one_stage)
    assert shares[1] > 0.85
    assert max(shares[0], shares[2]) < 0.1
    assert mattered(np.ones((200, 1)), rng.normal(size=200), one_stage).tolist() == [0.0]
    assert mattered(np.ones((0, 2)), np.ones(0), one_stage[:0]).tolist() == [0.0, 0.0]


def test_what_mattered_in_a_search_of_stages() -> None:
    """That losses fall from one stage to the next is not laid to all that the second moves."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 4))
    first = np.arange(300) < 150
    points[first, 2:] = 0.0  # the first stage moves two coordinates, the second the others
    points[~first, :2] = 0.7
    losses = np.where(first, points[:, 0] ** 2 + 5.0, points[:, 2] ** 2)
    assert mattered(points, losses, np.zeros_like(first))[3] > 0.2
    shares = mattered(points, losses, first)
    assert min(shares[0], shares[2]) > 0.85
    assert max(shares[1], shares[3]) < 0.1


@pytest.mark.parametrize(("trials", "first"), [(24, 0), (200, 0), (300, 128)])
def test_luck_does_not_matter(trials: int, first: int) -> None:
    """Of sixty coordinates that do nothing one is named in a report of ten at most, with stages as
    without."""
    rng = np.random.default_rng(0)
    in_first = np.arange(trials) < first
    named = [
        mattered(rng.normal(size=(trials, 60)), rng.normal(size=trials), in_first).any()
        for _ in range(100)
    ]
    assert np.mean(named) <= 0.1


def test_what_every_tensor_has_is_what_a_plan_gives_it() -> None:
    """The values of a recipe's page, its global multipliers applied, are those of a transfer to the
    base for a type that has no others."""
    log2 = {"lr/global": 3.5, "one_minus_beta1/global": 1.5, "residual/global": -2.0}
    recipe, log2 = make_recipe(), log2 | {"lr/type/embedding": 1.0}
    recipe = replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))
    shown = {name: (value, words) for name, value, words in global_values(recipe)}
    there = Transfer(recipe, recipe.base)
    for name in ("lr", "weight_decay", "eps", "beta1", "beta2", "init_std"):
        assert shown[name][0] == pytest.approx(there.value(name, "qkv", layer=1).target)
    assert shown["lr"][1].endswith("lr moved by +3.50 octaves")
    assert shown["beta1"][1].startswith("from 0.9: 1 - beta1 moved")
    assert shown["residual"][0] == 0.25
    assert shown["eps"][1] == ""
    assert "residual" not in {name for name, *_ in global_values(make_recipe())}


def noted(study: Study, *rungs: dict[str, list[float]], **losses: list[float]) -> None:
    """A ladder as `search best` notes it, at the base and then at twice the tokens; the first is
    chosen."""
    kept = []
    for at, found in enumerate((losses, *rungs)):
        named = [Standing(candidate=n.replace("_", " "), losses=x) for n, x in found.items()]
        kept.append(Rung(scale=replace(BASE, tokens=BASE.tokens * (1 + at)), standings=named))
    trials = study.counts()["finished"]
    best = {"chosen": kept[0].standings[0].candidate, "rungs": [rung.to_dict() for rung in kept]}
    study.set_note("best", best | {"trials": trials})


def test_what_a_search_is_worth_comes_first(tokens: str, tmp_path: Path) -> None:
    """The page of a search begins with what it gained, and how much of that is by module; it says
    what candidates are, what to doubt, and when it was made."""
    rng = np.random.default_rng(1)
    with Store(str(tmp_path / "search.db")) as store:
        study = make_study(store, tokens, trials=40, reach=0.5)
        losses = [9.0, *(3 - 0.05 * i + 0.001 * rng.normal() for i in range(39))]
        planted(study, tokens, losses)
        noted(study, recommended=[2.0, 2.1], global_values=[2.3, 2.3], start=[3.0, 3.1])
    page = page_of(gather([str(tmp_path / "search.db")]), "x")
    text = Page(page.html()).text
    assert "Tuning lowers the loss from 3.0500 to 2.0500 nats" in text
    assert "by 1.0000 +- 0.0707 on 2 fresh seeds; 0.2500 of it is that of values by module" in text
    assert "no claim to judge" not in text
    assert MEANINGS["global values"] in text
    assert "recommended (chosen)" in text
    assert "Caution: the base is small or short" in text
    assert f"completedp {completedp.__version__}, 20" in text


def history(study_in: Path) -> tuple[str, dict[str, tuple[float, float]]]:
    """The text of a search's page, and where in its first chart what it says of points is."""
    html = page_of(gather([str(study_in)]), "x").html()
    chart = re.findall(r'<div class="wide chart">.*?</svg></div>', html)[0]
    found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="6"><title>([^<]*)<', chart)
    return Page(html).text, {words: (float(x), float(y)) for x, y, words in found}


def test_a_history_has_what_was_recommended_on_fresh_seeds(tokens: str, tmp_path: Path) -> None:
    """What was recommended is on the history at the trials after which it was, at its mean over
    fresh seeds; also where more trials came since."""
    path = tmp_path / "search.db"
    with Store(str(path)) as store:
        study = make_study(store, tokens, trials=42)
        planted(study, tokens, [3 - 0.01 * i for i in range(40)])
        noted(study, recommended=[2.5, 2.6], recommended_earlier=[2.7, 2.8], start=[3.0, 3.1])
        planted(study, tokens, [2.0])
    text, places = history(path)
    start, earlier, last = (
        places[words]
        for words in (
            "the start: 3.0500 +- 0.0500",
            "after 20 trials: 2.7500 +- 0.0500",
            "after 40 trials: 2.5500 +- 0.0500",
        )
    )
    trial = {number: places[f"trial {number}: {3 - 0.01 * number:.4f}"] for number in (19, 39)}
    assert (earlier[0], last[0]) == (trial[19][0], trial[39][0])
    assert start[0] == pytest.approx(2 * earlier[0] - last[0], abs=0.2)  # at 0
    assert start[1] < earlier[1] < last[1]
    assert earlier[1] == pytest.approx((start[1] * 2 + last[1] * 3) / 5, abs=0.2)
    assert "means over fresh seeds, bars their standard errors" in text
    assert "elsewhere" not in text


def test_a_history_says_what_was_measured_elsewhere(tokens: str, tmp_path: Path) -> None:
    """What was recommended earlier and measured on a rung alone is not drawn beside losses of
    another scale: it is said where it was measured, beside all that was."""
    path = tmp_path / "search.db"
    with Store(str(path)) as store:
        study = make_study(store, tokens, trials=40)
        planted(study, tokens, [3 - 0.01 * i for i in range(40)])
        rung = {"recommended": [2.0], "recommended_earlier": [2.25], "start": [2.5]}
        noted(study, rung, recommended=[2.5, 2.6], start=[3.0, 3.1])
    text, places = history(path)
    assert "after 40 trials: 2.5500 +- 0.0500" in places
    assert not any(words.startswith("after 20 trials") for words in places)
    where = replace(BASE, tokens=2 * BASE.tokens)
    told = (
        f"elsewhere, at {where}: the start 2.5000, after 20 trials 2.2500, after 40 trials 2.0000."
    )
    assert told in text


@pytest.mark.parametrize("start", [[2.0, 2.0], [float("inf"), 3.0]])
def test_a_search_that_gains_nothing_promises_nothing(
    tokens: str, tmp_path: Path, start: list[float]
) -> None:
    """Where the start is as good, or diverges, there is no sentence of what tuning gains."""
    with Store(str(tmp_path / "search.db")) as store:
        study = make_study(store, tokens, trials=4)
        planted(study, tokens, [3.0, 2.5])
        noted(study, recommended=[2.0, 2.1], start=start)
    (part,) = gather([str(tmp_path / "search.db")])
    assert part.lead == ""


def test_a_value_at_its_bound_is_said(tokens: str, tmp_path: Path) -> None:
    """A best trial at the end of what was searched is a caution that names the coordinate; of a
    beta, whose bound no reach moves, nothing is advised."""
    tunables = ("lr", "one_minus_beta1")
    with Store(str(tmp_path / "search.db")) as store:
        study = make_study(store, tokens, trials=40, space="global", tunables=tunables)
        bounds = StudySpec.from_dict(study.spec).space.bounds
        for i in range(12):
            part = i / 11
            at = (1 - part) * bounds.start + part * bounds.high
            here = Proposal(point=at, seed=i)
            claim = study.claim("w", lambda *_, here=here: here, lease_seconds=60)
            assert claim is not None
            study.finish(claim, loss=3 - part, status="ok", steps=1, curve=[])
    text = Page(page_of(gather([str(tmp_path / "search.db")]), "x").html()).text
    assert "(at its bound)" in text
    assert "Caution: the best trial is at the bound of lr/global: better values may" in text
    assert "at the bound of one_minus_beta1/global, which no search goes beyond" in text
    assert "losses along these coordinates" in text


def test_the_map_of_multipliers() -> None:
    """Rows are module types and blocks, columns are values; what is not tuned is empty."""
    log2 = {"lr/type/qkv": 1.0, "eps/type/qkv": -2.0, "lr/depth/2": 0.5, "lr/layer/mlp_in/1": 3.0}
    columns, rows = multiplier_map(log2)
    assert columns == ["lr", "eps"]
    assert dict(rows) == {
        "qkv": [1.0, -2.0],
        "block 2": [0.5, None],
        "mlp_in, block 1": [3.0, None],
    }


def test_smaller_drawings_look_the_same() -> None:
    """Coordinates lose digits that nobody sees; text, which may be a number, loses nothing."""
    svg = '<?xml version="1.0"?><svg><!-- x --><path d="M 1.23456 2"/>\n <text>1.23456</text></svg>'
    assert smaller_svg(svg) == '<svg><path d="M 1.23 2"/><text>1.23456</text></svg>'


def looks(svg: str) -> list[tuple[str, dict[str, str], str]]:
    """Of each element of a drawing: what it is, how it looks, and its text."""
    root = ElementTree.fromstring(svg)
    rules = {name: style for name, style in re.findall(r"\.(s\d+)\{([^}]*)\}", svg)}
    found = []
    for each in root.iter():
        given = dict(each.attrib)
        given["style"] = rules.get(given.pop("class", ""), given.get("style", ""))
        if not each.tag.endswith(("style", "metadata", "defs")) and "RDF" not in each.tag:
            found.append((each.tag, given, (each.text or "").strip()))
    return found


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.svg")), ids=lambda path: path.stem)
def test_smaller_drawings_have_every_element(path: Path) -> None:
    """A figure's drawing is smaller by a fifth at least, and each of its elements has the same
    style and text; names that are left out are asked for nowhere."""
    svg, _ = without_marks(path.read_text())
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    small = smaller_svg(svg)
    assert len(small) < 0.8 * len(svg)
    before, after = looks(svg), looks(small)
    for (tag, given, text), (also, kept, same) in zip(before, after, strict=True):
        assert (tag, text, given["style"]) == (also, same, kept["style"])
        assert given.keys() - kept.keys() <= {"id"}
    names = set(re.findall(r' id="([^"]*)"', small))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', small)) <= names


def test_classes_of_a_drawing_are_left_alone() -> None:
    """A drawing that has classes gets no others: an element with two would not be drawn."""
    svg = '<svg><path class="a" style="fill:red"/><path class="a" style="fill:red"/></svg>'
    assert smaller_svg(svg) == svg


def test_many_dots_are_a_sample() -> None:
    """Of more dots than are drawn the lowest and the last are there, and some of all others."""
    rng = np.random.default_rng(0)
    points = [(float(i), float(loss)) for i, loss in enumerate(rng.normal(size=3000))]
    kept = sample(points, DOTS)
    assert len(kept) == len(set(kept)) == DOTS
    assert kept == sorted(kept)
    assert kept[-DOTS // 4 :] == list(range(3000 - DOTS // 4, 3000))
    lowest = sorted(range(3000), key=lambda i: points[i][1])
    assert {*lowest[: DOTS // 4]} <= {*kept}
    assert max(np.diff(kept)) < 60
    svg = chart([Series(name="x", points=points, dots=True)], x="", y="")
    assert svg.count("h0") == DOTS
    assert svg.count("<title>") == TOLD
    assert sample(points[:DOTS], DOTS) == list(range(DOTS))


def test_a_large_search_is_a_small_page(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charts of a search of 3,000 trials are below 100 kB, and say what they leave out."""
    monkeypatch.setattr(searches, "mattered", lambda points, *_: np.ones(points.shape[1]))
    rng = np.random.default_rng(0)
    with Store(str(tmp_path / "search.db")) as store:
        study = make_study(store, tokens, trials=3000)
    bounds = StudySpec.from_dict(study.spec).space.bounds
    rows = [
        TrialRow(
            number=i,
            state="finished",
            attempt=1,
            worker="w",
            seed=2**62 + i,
            site=0,
            point=rng.uniform(bounds.low, bounds.high),
            lease_until=0.0,
            started_at=float(i),
            sequence=i,
            finished_at=i + 1.0,
            loss=3 + float(rng.exponential()) / (1 + i / 300),
            status="ok",
            steps=1,
            curve=None,
            result=None,
        )
        for i in range(3000)
    ]
    monkeypatch.setattr(Study, "trials", lambda *_, **__: rows)
    html = page_of(gather([str(tmp_path / "search.db")]), "x").html()
    charts = re.findall(r'<div class="wide chart">.*?</svg></div>', html)
    assert len(charts) == 5
    assert sum(map(len, charts)) < 100_000
    text = Page(html).text
    said = f"dots {DOTS} are drawn and {TOLD} show their values: of the best, of the newest, and a"
    assert said in text


def test_all_figures_and_two_stores_of_searches_are_one_page_to_send(tmp_path: Path) -> None:
    """A page of every figure and of eight searches is below the size that the verb warns of; the
    trials of figures that have their verdicts on it are no parts of their own."""
    kept = RESULTS.parent.parent / "benchmarks" / "data"
    paths = [str(RESULTS)]
    for name in ("stores/search-curves-gpu.db", "headline/headline-gpu.db"):
        store = tmp_path / Path(name).name
        store.write_bytes(lzma.decompress((kept / f"{name}.xz").read_bytes()))
        paths.append(str(store))
    found = write_report(paths, tmp_path / "page.html", "x")
    assert found["bytes"] < 0.95 * LARGEST
    titles = [part["title"] for part in found["parts"]]
    assert sum(title.startswith("search '") for title in titles) == 8
    assert len(titles) == len(set(titles))
    assert found["sentence"].startswith("Of ")


def test_a_chart_has_its_points_in_place() -> None:
    """Higher values are further up and right; what is no number is left out; titles are escaped."""
    points = [(1.0, 5.0), (2.0, float("nan")), (4.0, 1.0)]
    svg = chart(
        [Series(name=EVIL, points=points, dots=True)],
        x="tokens",
        y="loss",
        marks=[Mark(name="start", y=3.0, colour=1)],
    )
    places = re.findall(r"M([\d.]+),([\d.]+)h0", svg)
    (x1, y1), (x2, y2) = [(float(a), float(b)) for a, b in places]
    assert x1 < x2
    assert y1 < y2  # down the page
    assert "script" not in Page(svg).tags
    assert chart([Series(name="none", points=[])], x="", y="") == ""


def test_a_store_in_a_folder_with_any_name(tmp_path: Path, tokens: str) -> None:
    """A path with signs that mean something in a URL is read, and nothing is made beside it."""
    folder = tmp_path / "run#2 100%?"
    folder.mkdir()
    with Store(str(folder / "search.db")) as store:
        make_study(store, tokens, name="mine", trials=10)
    (part,) = gather([str(folder / "search.db")])
    assert part.title == "search 'mine'"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "mysql"])
def test_a_password_in_a_url_is_not_shown(scheme: str) -> None:
    """A store that cannot be opened is an error without the password that was typed."""
    assert "SECRET" not in error_of(gather, [f"{scheme}://me:SECRET@127.0.0.1:1/none"])


def test_a_runs_command_is_of_its_own_shape(tmp_path: Path) -> None:
    """Options at their usual values are left out, and what differs of the model's shape is not."""
    folder = run(tmp_path / "a")
    shape = {"head_dim": 32, "mlp": "swiglu", "mlp_ratio": 4.0, "qk_norm": False, "bias": True}
    config = {"data": "tokens", "out": "a", "override": [], "shape": shape}
    write(folder / "config.json", config)
    html = page_of(gather([str(folder)]), "x").html()
    assert "completedp train --data tokens --out a --head-dim 32" in html
    for flag in ("--mlp swiglu", "--bias", "--no-qk-norm"):
        assert flag in html
    for flag in ("--override", "--mlp-ratio", "--qk-norm"):
        assert flag not in html.replace("--no-qk-norm", "")


def test_a_runs_command_has_every_digit(tmp_path: Path) -> None:
    """Rounded, a rate would be another run's, and the command refused."""
    folder = run(tmp_path / "a")
    write(folder / "config.json", {"data": "tokens", "out": "a", "lr": 0.00123456789})
    assert "--lr 0.00123456789" in page_of(gather([str(folder)]), "x").html()


def test_a_stopped_run_goes_on_to_its_end(tmp_path: Path) -> None:
    """The command that goes on with it does not stop where it did."""
    folder = run(tmp_path / "a", status="stopped")
    write(folder / "config.json", {"data": "tokens", "out": "a", "stop_after": 20})
    parts = gather([str(folder)])
    assert sentence(parts).endswith("To go on: completedp train --data tokens --out a")
    assert "--stop-after" not in page_of(parts, "x").html()


def test_a_page_replaces_nothing_but_a_page(tmp_path: Path, tokens: str) -> None:
    """The study, or the recipe, that is reported is not written over by its report."""
    with Store(str(tmp_path / "search.db")) as store:
        make_study(store, tokens, name="mine", trials=10)
    make_recipe().save(tmp_path / "best.json")
    for name in ("search.db", "best.json"):
        path = tmp_path / name
        before = path.read_bytes()
        assert "is no page of ours" in error_of(write_report, [str(path)], path, "x")
        assert path.read_bytes() == before
    for _ in range(2):
        write_report([str(tmp_path / "best.json")], tmp_path / "page.html", "x")
