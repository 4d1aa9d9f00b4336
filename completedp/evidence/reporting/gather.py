"""Gather: paths to one page. What a path is, is told by what is in it.

    folder of a run     config.json and metrics.jsonl
    figure              NAME.json with findings, NAME.svg beside it
    check               coordcheck.json, gradcheck.json
    sweep, horizon      verdict.json with lines, or with fits
    recipe              a JSON file with values and a base
    store               a SQLite file, or postgresql://...: searches, and lists of trials

Of any other folder everything that is in it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import completedp
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, user_path
from completedp.evidence.figures.figure import SIZES, TINY
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.report import Markup, Report, chip, code, judged_lines, link
from completedp.evidence.reporting.checks import check_part
from completedp.evidence.reporting.figures import figure_part, unfinished_figure
from completedp.evidence.reporting.part import FAIL, OPEN, PASS, UNFINISHED, Outcome, Part
from completedp.evidence.reporting.recipes import recipe_part
from completedp.evidence.reporting.runs import Run, read_run, runs_part
from completedp.evidence.reporting.searches import is_list, list_part, progress_of, search_part
from completedp.evidence.reporting.sweeps import horizon_part, sweep_part
from completedp.studies.database import is_sqlite, tables_in, without_password
from completedp.studies.schema import STUDIES
from completedp.studies.store import Store
from completedp.studies.typed import noted_command
from completedp.theory.recipe import Recipe

LARGEST = 2_000_000
"""Bytes that a page should stay below."""
_DEEPEST = 4
"""Folders within folders that are looked into."""
_LINES = 4
"""Outcomes of a part that its row of the first table has."""
_SUMMARY = {3: "summary", 4: "summary with-paper"}
"""The look of the first table, by its columns."""
_VERDICTS = (PASS, FAIL, OPEN, UNFINISHED)
_KNOWN = "a figure, sweep, horizon, check, recipe, run or store"


@dataclass(kw_only=True)
class Gathered:
    """What was found, in the order of the page."""

    parts: list[Part] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def all_parts(self) -> list[Part]:
        """Every part: figures first, in the paper's order, the rest as it came; runs are one."""
        order = list(dict.fromkeys(["headline", *FIGURES]))
        figures = [part for part in self.parts if part.title in order]
        rest = [part for part in self.parts if part.title not in order]
        figures.sort(key=lambda part: order.index(part.title))
        return [*figures, *rest, *([runs_part(self.runs)] if self.runs else [])]


def gather(paths: Sequence[str]) -> list[Part]:
    """The parts that the paths hold; one that holds nothing known is an error."""
    if not paths:
        raise CompletedpError(f"what is to be reported? Name one or more paths, each {_KNOWN}")
    found = Gathered()
    for text in paths:
        if "://" in text:  # a store's URL, whose password is nobody's to read
            found.parts += _store_parts(text, without_password(text))
            continue
        path = user_path(text)
        if not path.exists():
            raise CompletedpError(f"there is nothing at {text!r}")
        before = len(found.seen)
        known = _take_folder(found, path) if path.is_dir() else _take_file(found, path, named=True)
        if not known and len(found.seen) == before:
            raise CompletedpError(f"{text!r} is not, and does not hold, {_KNOWN}")
    return found.all_parts()


def write_report(paths: Sequence[str], out: Path, title: str) -> dict[str, Any]:
    """Gather, write the page, and say what is on it."""
    out = user_path(out)
    parts = gather(paths)
    page = page_of(parts, title)
    html = page.html()
    page.write(out)
    return {
        "out": str(out),
        "bytes": len(html.encode(errors="replace")),
        "sentence": sentence(parts),
        "parts": [
            {"title": part.title, "verdict": part.verdict, "found": part.found} for part in parts
        ],
    }


def page_of(parts: Sequence[Part], title: str) -> Report:
    """The page: a sentence and a table first, then every part."""
    report = Report(title)
    for part in parts:
        if part.lead:
            report.paragraph(part.lead, "lead")
    if not any(part.lead for part in parts) or _judged(parts):
        report.paragraph(sentence(parts), "lead")
    anchors = [f"part-{i}" for i in range(len(parts))]
    summary = [_summary(anchor, part) for anchor, part in zip(anchors, parts, strict=True)]
    header = ["", "what is claimed, and the command", "the paper", "here"]
    if not any(part.paper for part in parts):
        summary = [[*row[:2], row[3]] for row in summary]
        header.remove("the paper")
    report.table(header, summary, stacked=True, kind=_SUMMARY[len(header)])
    for anchor, part in zip(anchors, parts, strict=True):
        report.heading(part.title, anchor=anchor)
        report.paragraph(part.says + (f" In the paper: {part.source}." if part.source else ""))
        if part.outcomes:
            report.table(
                ["verdict", "claim", "measured"],
                [[chip(o.verdict), o.claim, o.measured] for o in part.outcomes],
                stacked=True,
            )
        with read_as(part.title, "what is shown"):
            part.body(report)
        if part.command is not None:
            report.command(part.command)
    made = datetime.now().astimezone()
    report.paragraph(f"completedp {completedp.__version__}, {made:%Y-%m-%d %H:%M %Z}.", "quiet")
    return report


def _summary(anchor: str, part: Part) -> list[object]:
    """A part's row of the first table."""
    says = part.says + (f" ({part.source})" if part.source else "")
    command = "" if part.command is None else f"<br>{code(part.command)}"
    return [
        Markup(f"{link(anchor, part.title)}<br>{chip(part.verdict)}"),
        Markup(f"{escape(says)}{command}"),
        part.paper,
        judged_lines(_short(part.outcomes)) if len(part.outcomes) > 1 else part.found,
    ]


def _short(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Each outcome's verdict, and its number after the name that its claim begins with."""
    names = [outcome.claim.partition(": ")[0] for outcome in outcomes]
    lines = [
        (o.verdict, f"{name if names.count(name) == 1 else o.claim}: {o.measured}")
        for name, o in zip(names, outcomes, strict=True)
    ]
    more = len(lines) - _LINES
    return lines if more < 2 else [*lines[:_LINES], ("", f"and {more} more")]


def _judged(parts: Sequence[Part]) -> list[str]:
    """The verdicts on claims, and on what is not finished."""
    words = [outcome.verdict for part in parts for outcome in part.outcomes]
    return [word for word in words if word in _VERDICTS]


def sentence(parts: Sequence[Part]) -> str:
    """What all of it says."""
    words = _judged(parts)
    count = {word: words.count(word) for word in _VERDICTS}
    judged = count[PASS] + count[FAIL] + count[OPEN]
    if not words:
        return f"{len(parts)} part{'s' * (len(parts) > 1)}, measured, with no claim to judge."
    said = []
    if judged:
        said.append(f"Of {judged} claim{'s' * (judged > 1)} {count[PASS]} hold")
    if count[PASS] == judged > 1:
        said = [f"All {judged} claims hold"]
    if count[FAIL]:
        said.append(f"{count[FAIL]} do{'es' * (count[FAIL] == 1)} not")
    if count[OPEN]:
        said.append(f"{count[OPEN]} {'is' if count[OPEN] == 1 else 'are'} not settled")
    text = ", ".join(said)
    if count[UNFINISHED]:
        unfinished = f"{count[UNFINISHED]} {'is' if count[UNFINISHED] == 1 else 'are'} not finished"
        text = f"{text}; {unfinished}" if text else unfinished
    return f"{text}."


def _take_folder(found: Gathered, folder: Path, depth: int = 0) -> bool:
    """Take what a folder holds; whether there was anything."""
    if folder.resolve() in found.seen:
        return True
    if (folder / "config.json").exists() and (folder / "metrics.jsonl").exists():
        found.seen.add(folder.resolve())
        with read_as("run", folder):
            found.runs.append(read_run(folder))
        return True
    known = False
    for path in sorted(folder.iterdir()):
        if path.is_dir() and _is_figures_own(path):
            continue
        if path.is_dir() and depth < _DEEPEST:
            known |= _take_folder(found, path, depth + 1)
        elif path.is_file() and path.suffix in (".json", ".db", ".sqlite", ".sqlite3"):
            known |= _take_file(found, path)
    return known


def _take_file(found: Gathered, path: Path, *, named: bool = False) -> bool:
    """Take a file; whether it was anything known."""
    if path.resolve() in found.seen:
        return True
    parts = _parts_of(path, named)
    if parts is None:
        return False
    found.seen.add(path.resolve())
    found.parts += parts
    return True


def _parts_of(path: Path, named: bool) -> list[Part] | None:
    """What a file holds; None where that is nothing known."""
    if is_sqlite(path):
        if STUDIES.name not in tables_in(path):
            return None
        return _store_parts(str(path), str(path)) if named else _stored(path)
    try:
        data = read_json(path, "result")
    except CompletedpError:
        return None
    for keys, kind, make in _KINDS:
        if keys <= data.keys():
            with read_as(kind, path):
                return [make(path, data)]
    return None


def _recipe(path: Path, _: Mapping[str, Any]) -> Part:
    return recipe_part(path, Recipe.load(path))


_KINDS: list[tuple[set[str], str, Callable[[Path, Mapping[str, Any]], Part]]] = [
    ({"figure", "findings", "claim"}, "figure's verdict", figure_part),
    ({"check", "rows", "passed"}, "check", check_part),
    ({"grid", "lines"}, "sweep's verdict", sweep_part),
    ({"grid", "fits"}, "horizon's verdict", horizon_part),
    ({"schema", "base", "values"}, "recipe", _recipe),
]
"""What a JSON file must have to be one of these."""


@contextmanager
def read_as(what: str, where: Path | str) -> Iterator[None]:
    """Make one line of whatever is wrong with a file that only looks right."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        if isinstance(error, CompletedpError):
            raise
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise CompletedpError(f"{str(where)!r} is not a whole {what}: {reason[:120]}") from None


def _is_figures_own(path: Path) -> bool:
    """Whether a store or a folder, NAME-SIZE, is part of a figure that has its verdict."""
    name, _, size = path.stem.rpartition("-")
    return size in (*SIZES, TINY) and path.with_name(f"{name}.json").exists()


def _stored(path: Path) -> list[Part]:
    """A store that lies in a folder: one beside its verdict has nothing to add to it."""
    name, _, size = path.stem.rpartition("-")
    if path.with_name("verdict.json").exists() or _is_figures_own(path):
        return []
    if size in (*SIZES, TINY) and name in FIGURES:
        with Store(str(path), create=False) as store:
            studies = [store.study(each) for each in store.studies()]
            done = [f"{study.name}: {progress_of(study)}" for study in studies]
            typed = next(filter(None, map(noted_command, studies)), None)
        return [unfinished_figure(path, name, size, "; ".join(done) or "no trial yet", typed)]
    return _store_parts(str(path), str(path))


def _store_parts(url: str, shown: str) -> list[Part]:
    """Every study of a store."""
    with Store(url, create=False) as store, read_as("store", shown):
        studies = [store.study(name) for name in store.studies()]
        return [
            list_part(study, shown) if is_list(study) else search_part(study, shown)
            for study in studies
        ]
