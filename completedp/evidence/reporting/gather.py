"""Gather: paths to one page. What a path is, is told by what is in it.

    folder of a run     config.json and metrics.jsonl
    figure              NAME.json with findings, NAME.svg beside it
    one without it      NAME-SIZE.db, a store that says so, or NAME-SIZE.seconds
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
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.report import Markup, Report, chip, code, judged_lines, link
from completedp.evidence.reporting.checks import check_part
from completedp.evidence.reporting.figures import figure_part
from completedp.evidence.reporting.part import FAIL, LEFT_OUT, OPEN, PASS, UNFINISHED, Outcome, Part
from completedp.evidence.reporting.recipes import recipe_part
from completedp.evidence.reporting.runs import Run, read_run, runs_part
from completedp.evidence.reporting.searches import is_list, list_part, search_part
from completedp.evidence.reporting.sweeps import horizon_part, sweep_part
from completedp.evidence.reporting.unfinished import (
    Begun,
    Name,
    begun_elsewhere,
    begun_figure,
    figure_of,
    named_after,
)
from completedp.studies.database import is_sqlite, tables_in, without_password
from completedp.studies.schema import STUDIES
from completedp.studies.store import Store, Study
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
_SUFFIXES = (".json", ".db", ".sqlite", ".sqlite3", ".seconds")
"""Of files in a folder that are looked into."""
_OURS = (*FIGURES, "verdict", "coordcheck", "gradcheck")
"""How JSON files are named that should be read; another that cannot be may be anybody's."""
_KNOWN = "a figure, sweep, horizon, check, recipe, run or store"


@dataclass(kw_only=True)
class Gathered:
    """What was found, in the order of the page."""

    parts: list[Part] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    """Figures without their verdicts, from their trials."""
    elsewhere: list[Part] = field(default_factory=list)
    """The same from folders that do not have their trials."""
    left_out: list[Part] = field(default_factory=list)
    """What cannot be read."""
    runs: list[Run] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def all_parts(self) -> list[Part]:
        """Every part: figures first, in the paper's order, the rest as it came; runs are one."""
        order = list(dict.fromkeys(["headline", *FIGURES]))
        judged = {(part.title, part.size) for part in self.parts if part.size}
        stored = {(each.part.title, each.part.size) for each in self.begun}
        begun = [
            each.part
            for each in self.begun
            if not (each.is_whole and (each.part.title, each.part.size) in judged)
        ]
        elsewhere = [part for part in self.elsewhere if (part.title, part.size) not in stored]
        parts = [*self.parts, *begun, *elsewhere]
        figures = [part for part in parts if part.title in order]
        rest = [part for part in parts if part.title not in order]
        figures.sort(key=lambda part: order.index(part.title))
        runs = [runs_part(self.runs)] if self.runs else []
        return [*figures, *rest, *runs, *self.left_out]


def gather(paths: Sequence[str]) -> list[Part]:
    """The parts that the paths hold; one that holds nothing known is an error.

    What is known and cannot be read is left out, and said, where there is anything besides.
    """
    if not paths:
        raise CompletedpError(f"what is to be reported? Name one or more paths, each {_KNOWN}")
    found = Gathered()
    for text in paths:
        if "://" in text:  # a store's URL, whose password is nobody's to read
            _take_store(found, text, without_password(text))
            continue
        path = user_path(text)
        if not path.exists():
            raise CompletedpError(f"there is nothing at {text!r}")
        before = len(found.seen)
        known = _take_folder(found, path) if path.is_dir() else _take_file(found, path, named=True)
        if not known and len(found.seen) == before:
            raise CompletedpError(f"{text!r} is not, and does not hold, {_KNOWN}")
    parts = found.all_parts()
    if parts and all(part.verdict == LEFT_OUT for part in parts):
        raise CompletedpError(parts[0].found)
    return parts


def write_report(paths: Sequence[str], out: Path, title: str) -> dict[str, Any]:
    """Gather, write the page, and say what is on it."""
    out = user_path(out)
    parts = gather(paths)
    page, not_shown = _page(parts, title)
    html = page.html()
    page.write(out)
    return {
        "out": str(out),
        "bytes": len(html.encode(errors="replace")),
        "sentence": sentence(parts),
        "left_out": [*(part.found for part in parts if part.verdict == LEFT_OUT), *not_shown],
        "parts": [
            {"title": part.title, "verdict": part.verdict, "found": part.found} for part in parts
        ],
    }


def page_of(parts: Sequence[Part], title: str) -> Report:
    """The page: a sentence and a table first, then every part."""
    return _page(parts, title)[0]


def _page(parts: Sequence[Part], title: str) -> tuple[Report, list[str]]:
    """The page, and why something of it is not shown."""
    report, not_shown = Report(title), list[str]()
    for part in parts:
        if part.lead:
            report.paragraph(part.lead, "lead")
    missing = any(part.verdict == LEFT_OUT for part in parts)
    if missing or not any(part.lead for part in parts) or _judged(parts):
        command = _going_on(parts)
        said = Markup(f"To go on: {code(command)}") if command else Markup()
        report.paragraph(Markup(f"{escape(_sentence(parts))} {said}"), "lead")
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
        try:
            with read_as("result", part.title):
                report.wholly(part.body)
        except CompletedpError as error:
            if len(parts) == 1:
                raise
            report.paragraph(f"More of it cannot be shown: {error}.")
            not_shown.append(str(error))
        if part.command is not None:
            report.command(part.command)
    made = datetime.now().astimezone()
    report.paragraph(f"completedp {completedp.__version__}, {made:%Y-%m-%d %H:%M %Z}.", "quiet")
    return report, not_shown


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
    # What did not pass is never among those that are only counted.
    kept = [line for n, line in enumerate(lines) if n < _LINES or line[0] != PASS]
    more = len(lines) - len(kept)
    return lines if more < 2 else [*kept, ("", f"and {more} more that pass")]


def _judged(parts: Sequence[Part]) -> list[str]:
    """The verdicts on claims, and on what is not finished."""
    words = [outcome.verdict for part in parts for outcome in part.outcomes]
    return [word for word in words if word in _VERDICTS]


def sentence(parts: Sequence[Part]) -> str:
    """What all of it says, and what goes on with it where one part is all that is to be said."""
    command = _going_on(parts)
    return _sentence(parts) + (f" To go on: {command}" if command else "")


def _sentence(parts: Sequence[Part]) -> str:
    missing = [part.title for part in parts if part.verdict == LEFT_OUT]
    parts = [part for part in parts if part.verdict != LEFT_OUT]
    return _of_readable(parts) + (f" Left out: {', '.join(missing)}." if missing else "")


def _of_readable(parts: Sequence[Part]) -> str:
    """What all that could be read says."""
    words = _judged(parts)
    count = {word: words.count(word) for word in _VERDICTS}
    judged = count[PASS] + count[FAIL] + count[OPEN]
    if not words and len(parts) == 1 and parts[0].found:
        return f"{parts[0].title}: {parts[0].found}."
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
    if count[UNFINISHED] and not judged:
        return _unfinished(parts)
    if count[UNFINISHED]:
        text += f"; {count[UNFINISHED]} {'is' if count[UNFINISHED] == 1 else 'are'} not finished"
    return f"{text}."


def _begun(parts: Sequence[Part]) -> list[tuple[Part, str]]:
    """What is not finished, and how far it is."""
    return [(part, o.measured) for part in parts for o in part.outcomes if o.verdict == UNFINISHED]


def _going_on(parts: Sequence[Part]) -> str | None:
    """The command of what was begun, where it is one and nothing is judged."""
    begun = _begun(parts)
    if len(begun) != 1 or {*_judged(parts)} != {UNFINISHED}:
        return None
    return begun[0][0].command


def _unfinished(parts: Sequence[Part]) -> str:
    """How far each is that was begun."""
    named = [(part.title, done) for part, done in _begun(parts)]
    if len(named) == 1:
        return f"{named[0][0]} is not finished: {named[0][1]}."
    said = [f"{title} ({done})" for title, done in named[:_LINES]]
    said += [f"{len(named) - _LINES} more"] if len(named) > _LINES else []
    return f"{len(named)} are not finished: {', '.join(said)}."


def _take_folder(found: Gathered, folder: Path, depth: int = 0) -> bool:
    """Take what a folder holds; whether there was anything."""
    if folder.resolve() in found.seen:
        return True
    if (folder / "config.json").exists() and (folder / "metrics.jsonl").exists():
        found.seen.add(folder.resolve())
        try:
            with read_as("run", folder):
                found.runs.append(read_run(folder))
        except CompletedpError as error:
            _leave_out(found, folder, error)
        return True
    known = False
    for path in sorted(folder.iterdir()):
        if path.is_dir() and _is_figures_own(path):
            continue
        if path.is_dir() and depth < _DEEPEST:
            known |= _take_folder(found, path, depth + 1)
        elif path.is_file() and path.suffix in _SUFFIXES:
            known |= _take_file(found, path)
    return known


def _take_file(found: Gathered, path: Path, *, named: bool = False) -> bool:
    """Take a file; whether it was anything known."""
    if path.resolve() in found.seen:
        return True
    try:
        known = _take_unseen(found, path, named)
    except CompletedpError as error:
        known = True
        _leave_out(found, path, error)
    if known:
        found.seen.add(path.resolve())
    return known


def _leave_out(found: Gathered, path: Path, why: CompletedpError) -> None:
    found.left_out.append(
        Part(
            title=path.name,
            says=f"{path} cannot be read, and was left out.",
            outcomes=[Outcome(claim="can be read", measured=str(why), verdict=LEFT_OUT)],
            found=str(why),
            body=lambda report: None,
        )
    )


def _take_unseen(found: Gathered, path: Path, named: bool) -> bool:
    if is_sqlite(path):
        if STUDIES.name not in tables_in(path):
            return False
        if named or not _has_its_verdict(path):
            _take_store(found, str(path), str(path), path=path, named=named)
        return True
    if path.suffix == ".seconds":
        return _take_seconds(found, path)
    try:
        data = read_json(path, "result")
    except CompletedpError:
        if named or path.stem in _OURS:
            raise
        return False
    for keys, kind, make in _KINDS:
        if keys <= data.keys():
            with read_as(kind, path):
                found.parts.append(make(path, data))
            return True
    return False


def _take_seconds(found: Gathered, path: Path) -> bool:
    """The note of how long a figure took so far, which tells of it where its store is elsewhere."""
    name = named_after(path)
    if name is None:
        return False
    if not _is_figures_own(path) and not path.with_suffix(".db").exists():
        with read_as("note of the seconds", path):
            found.elsewhere.append(begun_elsewhere(name, path.parent, read_json(path, "note")))
    return True


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


def _has_its_verdict(path: Path) -> bool:
    """Whether a store in a folder lies beside its verdict, to which it has nothing to add."""
    return path.with_name("verdict.json").exists() or _is_figures_own(path)


def _is_figures_own(path: Path) -> bool:
    """Whether a file or a folder, NAME-SIZE, is part of a figure that has its verdict."""
    name = named_after(path)
    verdict = path.with_name(f"{'' if name is None else name[0]}.json")
    if name is None or not verdict.exists():
        return False
    try:
        return read_json(verdict, "figure").get("size") == name[1]
    except CompletedpError:
        return False


def _take_store(
    found: Gathered, url: str, shown: str, *, path: Path | None = None, named: bool = True
) -> None:
    """What a store holds: a figure's trials as one part, and every search and list of others. A
    figure's searches have parts of their own where the store was named."""
    by_name = None if path is None else named_after(path)
    with Store(url, create=False) as store, read_as("store", shown):
        studies = [store.study(name) for name in store.studies()]
        figures: dict[Name, list[Study]] = {by_name: []} if by_name and not studies else {}
        for study in studies:
            figure = figure_of(study) or by_name
            if figure is not None:
                figures.setdefault(figure, []).append(study)
            if is_list(study) and figure is None:
                found.parts.append(list_part(study, shown))
            elif not is_list(study) and (named or figure is None):
                found.parts.append(search_part(study, shown))
        for figure, trials in figures.items():
            home = path if figure == by_name else None
            found.begun.append(
                begun_figure(
                    figure,
                    trials,
                    out=home and home.parent,
                    store=None if home else shown,
                    is_judged=home is not None and _is_figures_own(home),
                )
            )
