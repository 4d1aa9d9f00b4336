"""A search in a report: its trials, what held on fresh seeds, and which coordinates mattered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from completedp.common.progress import duration
from completedp.evidence.charts import DOTS, TOLD, Mark, Series, chart, sample
from completedp.evidence.report import Report, bar
from completedp.evidence.reporting.part import (
    DATA,
    UNFINISHED,
    Outcome,
    Part,
    command,
    ladder,
    number,
    unless,
)
from completedp.studies.candidates import EARLIER, FIRST_STAGE, RECOMMENDED
from completedp.studies.cells import NAME as CELLS
from completedp.studies.ladder import START
from completedp.studies.run import gain_over_start
from completedp.studies.spec import StudySpec
from completedp.studies.spent import device_seconds
from completedp.studies.staged import first_trials, has_stages
from completedp.studies.store import Study, TrialRow
from completedp.studies.typed import noted_command
from completedp.theory.evidence import Rung, Standing, shown_loss
from completedp.theory.trust import LARGER, small_base

SHOWN, _SLICES = 12, 4
"""Coordinates that are listed, and of which losses are drawn."""
_AT_THE_EDGE = 0.01
"""Octaves from a bound at which a value is as good as there."""
_LEAST = 4
"""Trials that say nothing of what explains them."""
_SHUFFLES, _FALSE = 200, 0.05
"""How often losses are shuffled to see what luck explains, and in which part of reports on noise a
coordinate may be named all the same."""


def is_list(study: Study) -> bool:
    """Whether a study is a list of trials, as a sweep's, and no search."""
    return study.spec.get("engine") == CELLS


def progress_of(study: Study) -> str:
    """How many of its trials are finished."""
    counts = study.counts()
    return f"{counts['finished']:,} of {counts['budget']:,} trials"


def list_part(study: Study, store: str) -> Part:
    """A list of trials that no verdict is there for yet."""
    done = progress_of(study)
    counts = study.counts()
    return Part(
        title=f"list of trials {study.name!r}",
        says=f"Trials of a sweep or a figure, in {store}: the command that listed them goes on "
        "where it stopped, and has their verdict.",
        outcomes=[Outcome(claim="trials are trained", measured=done, verdict=UNFINISHED)]
        if counts["finished"] < counts["budget"]
        else [],
        found=done,
        command=noted_command(study),
        body=lambda report: None,
    )


def search_part(study: Study, store: str) -> Part:
    """A search, from its store."""
    rows = sorted(
        (row for row in study.trials(curves=False) if row.sequence is not None),
        key=lambda row: row.sequence or 0,
    )
    note, counts, spec = study.get_note("best"), study.counts(), study.spec
    names = [str(name) for name in spec["space"]["coordinates"]]
    outcomes, done = [], progress_of(study)
    if counts["finished"] < counts["budget"]:
        outcomes.append(Outcome(claim="the budget is used", measured=done, verdict=UNFINISHED))

    spent = device_seconds(study)

    def body(report: Report) -> None:
        time = ", ".join(f"{duration(each)} of {device}" for device, each in spent.items())
        report.paragraph(
            f"{spec['engine']} over {len(names)} coordinates ({spec['space']['kind']}), "
            f"{done}, {counts['diverged']} diverged; {time or 'no time spent yet'}."
        )
        parsed = StudySpec.from_dict(spec)
        for line in small_base(parsed.recipe.base, LARGER):
            report.paragraph(f"Caution: {line}.")
        places = _places(note, counts["finished"], len(spec["sites"]))
        for site, where in enumerate(spec["sites"]):
            _history(report, [row for row in rows if row.site == site], where, note, places)
        _ladder(report, note)
        _coordinates(report, parsed, [row for row in rows if row.site == 0])

    return Part(
        title=f"search {study.name!r}",
        says=f"Which values are best for a small model: a search of {store}.",
        lead=_lead(note, counts["finished"], spent),
        outcomes=outcomes,
        found=_gain(note) or _best_trial(rows),
        command=noted_command(study)
        or command(
            "search",
            "start",
            data=DATA,
            model=unless(spec["task"].get("model"), "reference"),
            study=study.name,
            store=store,
            space=spec["space"]["kind"],
            engine=spec["engine"],
            trials=counts["budget"],
            seed=spec["seed"] or None,
        ),
        body=body,
    )


def mattered(points: np.ndarray, losses: np.ndarray, in_first: np.ndarray) -> np.ndarray:
    """What a coordinate explains of either stage, the larger, and 0 where luck may explain as much.

    From one stage to the next all that the second moves has changed, and the losses have fallen,
    which no single coordinate explains. Luck is what the luckiest coordinate explains of shuffled
    losses, but for a few shuffles.
    """
    found = np.zeros(points.shape[1])
    stages = [stage for stage in (in_first, ~in_first) if stage.sum() > _LEAST]
    for stage in stages:
        ranks, rng = _ranks(losses[stage]), np.random.default_rng(0)
        shuffled = np.stack([rng.permutation(ranks) for _ in range(_SHUFFLES)], axis=1)
        shares, *lucky = _explained(points[stage], np.hstack([ranks[:, None], shuffled])).T
        luck = np.quantile(np.max(lucky, axis=1), 1 - _FALSE / len(stages))
        found = np.maximum(found, np.where(shares > luck, shares, 0.0))
    return found


def _explained(points: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """By coordinate, the part of each column of `ranks` that a parabola in its own order explains.

    Orders, as losses near divergence are of any size. Parabolas follow anything a little: what they
    would explain of noise is taken off.
    """
    count, columns = ranks.shape
    found = np.zeros((points.shape[1], columns))
    total = (ranks**2).sum(0)
    if count <= _LEAST or not total.all():
        return found
    for i, column in enumerate(points.T):
        if np.ptp(column) == 0:
            continue
        x = _ranks(column) / count
        span, _ = np.linalg.qr(np.stack([np.ones_like(x), x, x**2], axis=1))
        share = ((span.T @ ranks) ** 2).sum(0) / total
        found[i] = np.maximum(0.0, 1 - (1 - share) * (count - 1) / (count - 3))
    return found


def _ranks(values: np.ndarray) -> np.ndarray:
    """Places in order, from their middle; equal values share theirs."""
    if not len(values):
        return values
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts + 1) / 2)[which]
    return ranks - ranks.mean()


Places = Mapping[str, tuple[int, str]]


def _places(note: Any, finished: int, sites: int) -> Places:
    """The candidates that a search recommended on its way: after how many trials, and in words."""
    trials = int((note or {}).get("trials", finished))  # which older notes do not say
    after = {FIRST_STAGE: first_trials(sites), EARLIER: trials // 2, RECOMMENDED: trials}
    words = {name: (count, f"after {count:,} trials") for name, count in after.items()}
    return {START: (0, "the start"), **words}


def _history(
    report: Report,
    rows: Sequence[TrialRow],
    site: Mapping[str, Any],
    note: Any,
    places: Places,
) -> None:
    whole = [row for row in rows if row.status == "ok" and number(row.loss) is not None]
    if not whole:
        report.paragraph("No trial has ended well there yet.", "quiet")
        return
    losses = [float(row.loss or 0.0) for row in whole]
    numbers = [float((row.sequence or 0) + 1) for row in whole]
    titles = [f"trial {row.number}: {row.loss:.4f}" for row in whole]
    scale = site["scale"]
    report.heading("Trials at " + ", ".join(f"{k} {v:,}" for k, v in scale.items()), level=3)
    rungs = [Rung.from_dict(rung) for rung in (note or {}).get("rungs", [])]
    here = [s for rung in rungs if rung.scale.to_dict() == scale for s in rung.standings]
    fresh = _on_fresh_seeds(here, places)
    chosen = (note or {}).get("chosen")
    levels = [s for s in here if s.candidate in (START, chosen) and math.isfinite(s.mean)]
    marks = [
        Mark(
            name=f"{s.candidate}, on fresh seeds",
            y=s.mean,
            colour=5 if s.candidate == START else 3,
        )
        for s in levels
        if s.candidate == START or s.candidate not in places
    ]
    ends = [mark.y for mark in marks]
    ends += [
        y + way * e for (_, y), e in zip(fresh.points, fresh.errors, strict=True) for way in (-1, 1)
    ]
    high = max(float(np.quantile(losses, 0.9)), losses[0], *ends, min(losses))
    low = min(*losses, *ends, high)
    room = 0.05 * (high - low) or 0.05
    span = low - room, high + room
    above = sum(loss > span[1] for loss in losses)
    dots, left_out = _dots(list(zip(numbers, losses, strict=True)), titles, span)
    report.paragraph(
        "A dot is a trial, the line the best so far, which is partly luck"
        f"{_FRESH * bool(ends)}."
        f"{_elsewhere(rungs, {s.candidate for s in here}, places)}"
        f"{f' Above the chart: {above} of the trials.' * bool(above)}{left_out}",
        "quiet",
    )
    best = Series(name="best so far", points=_best_so_far(numbers, losses), colour=1)
    report.chart(
        chart(
            [dots, best, fresh],
            x="trial, as they finished",
            y="validation loss, nats",
            marks=marks,
            span_y=span,
        )
    )


_FRESH = (
    "; what was recommended by then and dotted levels are means over fresh seeds, bars their "
    "standard errors"
)


def _on_fresh_seeds(standings: Sequence[Standing], places: Places) -> Series:
    """What the search recommended on its way, where it was measured."""
    found = {s.candidate: s for s in standings if math.isfinite(s.mean)}
    known = [
        (places[name], found[name])
        for name in sorted(places, key=places.__getitem__)
        if name in found
    ]
    return Series(
        name="recommended by then, on fresh seeds",
        points=[(float(count), s.mean) for (count, _), s in known],
        titles=[f"{words}: {s}" for (_, words), s in known],
        errors=[s.error if math.isfinite(s.error) else 0.0 for _, s in known],
        colour=2,
    )


def _elsewhere(rungs: Sequence[Rung], here: set[str], places: Places) -> str:
    """What the search recommended on its way and was measured at another scale alone."""
    for rung in rungs:
        there = [s for s in rung.standings if s.candidate in places]
        if any(s.candidate not in here for s in there):
            there.sort(key=lambda s: places[s.candidate])
            named = ", ".join(f"{places[s.candidate][1]} {s}" for s in there)
            return f" On fresh seeds elsewhere, at {rung.scale}: {named}."
    return ""


def _dots(
    points: Sequence[tuple[float, float]], titles: Sequence[str], span: tuple[float, float]
) -> tuple[Series, str]:
    """A dot for each trial within the chart, as they finished, and what is not drawn of many."""
    inside = [i for i, point in enumerate(points) if span[0] <= point[1] <= span[1]]
    kept = [inside[i] for i in sample([points[i] for i in inside], DOTS)]
    many = [f" {DOTS} are drawn"] * (len(kept) < len(inside))
    many += [f" {TOLD} show their values"] * (len(kept) > TOLD)
    which = ": of the best, of the newest, and a sample of the others."
    left_out = f" Of {len(inside):,} dots{' and'.join(many)}{which}" if many else ""
    return (
        Series(
            name="trial",
            points=[points[i] for i in kept],
            dots=True,
            titles=[titles[i] for i in kept],
        ),
        left_out,
    )


def _best_so_far(places: Sequence[float], losses: Sequence[float]) -> list[tuple[float, float]]:
    """A line that goes down at each trial that is better than all before it."""
    points = [(places[0], losses[0])]
    for place, loss in zip(places, losses, strict=True):
        if loss < points[-1][1]:
            points += [(place, points[-1][1]), (place, loss)]
    return [*points, (places[-1], points[-1][1])]


def _ladder(report: Report, note: Any) -> None:
    if not note:
        report.paragraph(
            "Nothing was measured on fresh seeds yet: `completedp search best` does.", "quiet"
        )
        return
    report.heading("On fresh seeds", level=3)
    ladder(report, map(Rung.from_dict, note["rungs"]), note["chosen"])


def _coordinates(report: Report, spec: StudySpec, rows: Sequence[TrialRow]) -> None:
    kept = [row for row in rows if row.status in ("ok", "diverged") and row.loss is not None]
    if len(kept) < 8:
        return
    points = np.array([row.point for row in kept])
    losses = np.array([row.loss for row in kept], dtype=float)
    first = first_trials(len(spec.sites)) if has_stages(spec.space) else math.inf
    shares = mattered(points, losses, np.array([row.number < first for row in kept]))
    names = spec.space.coordinates
    lowest = points[int(np.argmin(losses))]
    best = lowest - spec.space.bounds.start
    bounds = spec.space.bounds
    edges = np.minimum(lowest - bounds.low, bounds.high - lowest)
    moves = bounds.high > bounds.low
    at_edge = [names[i] for i in np.flatnonzero((edges < _AT_THE_EDGE) & moves)]
    order = [i for i in np.argsort(-shares, kind="stable")[:SHOWN] if shares[i] > 0]
    report.heading("Which coordinates mattered", level=3)
    report.paragraph(
        "How much of the losses' order each coordinate explains alone. Where a search has gone "
        "together in several of them, they share what only one of them did. Left out is what luck "
        "may explain: of shuffled losses, 19 times in 20, the luckiest of them explains less.",
        "quiet",
    )
    if not order:
        report.paragraph("None explains more than that.")
        return
    most = float(shares.max()) or 1.0
    report.table(
        ["coordinate", "explains", "", "the best trial, octaves from the start"],
        [
            [
                names[i],
                f"{shares[i]:.0%}",
                bar(float(shares[i]) / most),
                f"{best[i]:+.2f}{' (at its bound)' * (names[i] in at_edge)}",
            ]
            for i in order
        ],
    )
    reach = float(np.max(bounds.high - bounds.start, initial=0.0))
    limited = [
        name for name in at_edge if bounds.high[i := names.index(name)] < bounds.start[i] + reach
    ]
    if beyond := [name for name in at_edge if name not in limited]:
        report.paragraph(
            f"Caution: the best trial is at the bound of {_some(beyond)}: better values may lie "
            "beyond. A larger --reach goes there, or a search from the recipe that this one found."
        )
    if limited:
        report.paragraph(
            f"The best trial is at the bound of {_some(limited)}, which no search goes beyond: a "
            "larger 1 - beta would reach 1, here or at a scale that the search was told of."
        )
    report.fold("losses along these coordinates")
    _slices(report, [(names[i], points[:, i] - bounds.start[i]) for i in order[:_SLICES]], kept)
    report.unfold()


def _some(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(names[:SHOWN]) + " and others" * (len(names) > SHOWN)


def _slices(
    report: Report, along: Sequence[tuple[str, np.ndarray]], rows: Sequence[TrialRow]
) -> None:
    """Every trial's loss against some of its coordinates, in octaves."""
    ended = [
        (i, row.number, float(row.loss or 0.0)) for i, row in enumerate(rows) if row.status == "ok"
    ]
    if not ended:
        return
    losses = [loss for *_, loss in ended]
    low, high = min(losses), float(np.quantile(losses, 0.9))
    room = 0.05 * (high - low) or 0.05
    span = low - room, high + room
    for at, (name, octaves) in enumerate(along):
        dots, left_out = _dots(
            [(float(octaves[i]), loss) for i, _, loss in ended],
            [f"trial {n}: {octaves[i]:+.3f} octaves, {loss:.4f}" for i, n, loss in ended],
            span,
        )
        if left_out and at == 0:  # of the others it is the same
            report.paragraph(left_out.strip(), "quiet")
        drawn = chart(
            [dots], x=f"{name}, octaves from the start", y="validation loss, nats", span_y=span
        )
        report.chart(drawn)


def _gain(note: Any) -> str:
    """What the ladder's last rung says of the chosen and the start."""
    if not note:
        return ""
    last = Rung.from_dict(note["rungs"][-1])
    chosen = note["chosen"]
    return f"{last.of(chosen) or 'diverged'} on fresh seeds; {gain_over_start(last, chosen)}"


def _lead(note: Any, trials: int, spent: Mapping[str, float]) -> str:
    """What the search is worth, where that was measured and is something."""
    if not note:
        return ""
    last = Rung.from_dict(note["rungs"][-1])
    start, chosen = last.of(START), last.of(note["chosen"])
    if start is None or chosen is None or not chosen.mean < start.mean < math.inf:
        return ""
    gain = shown_loss(start.mean - chosen.mean, math.hypot(start.error, chosen.error))
    stage = last.of(FIRST_STAGE)
    by_module = ""
    if stage is not None and chosen.mean < stage.mean < start.mean:
        by_module = f"; {stage.mean - chosen.mean:.4f} of it is that of values by module"
    seeds = len(chosen.losses)
    time = ", ".join(f"{duration(each)} of {device}" for device, each in spent.items())
    return (
        f"Tuning lowers the loss from {start.mean:.4f} to {chosen.mean:.4f} nats at {last.scale}: "
        f"by {gain} on {seeds} fresh seed{'s' * (seeds > 1)}{by_module}. It took {trials:,} trials"
        f"{f', {time}' if time else ''}."
    )


def _best_trial(rows: Sequence[TrialRow]) -> str:
    ended = (number(row.loss) for row in rows if row.status == "ok")
    losses = [loss for loss in ended if loss is not None]
    nothing = "every trial has diverged" if rows else "no trial has ended yet"
    return f"best trial {min(losses):.4f}" if losses else nothing
