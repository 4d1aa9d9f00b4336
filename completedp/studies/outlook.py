"""Outlook: what of a study is left to train, by scale, before it is opened or made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from completedp.common.errors import CompletedpError
from completedp.studies.cells import NAME as CELLS
from completedp.studies.cells import read_cells, read_sites
from completedp.studies.sites import trials_by_site
from completedp.studies.spec import StudySpec
from completedp.studies.store import Store, Study
from completedp.theory.scale import Scale


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Trials that are still to be trained."""

    left: Mapping[Scale, int]
    begun: bool
    """Whether any was begun: who did knows what it takes."""


def searched(spec: StudySpec) -> dict[Scale, int]:
    """The trials of a search by scale."""
    counts = trials_by_site(spec.trials, len(spec.sites))
    return {site.scale: count for site, count in zip(spec.sites, counts, strict=True) if count}


def listed(study: Study) -> dict[Scale, int]:
    """The trials of a study of listed ones, by scale."""
    sites = read_sites(study)
    return dict(Counter(sites[cell.site].scale for cell in read_cells(study)))


def left_of(study: Study) -> dict[Scale, int]:
    """What a study has not finished yet, by scale."""
    spec = StudySpec.from_dict(study.spec)
    every = listed(study) if spec.engine == CELLS else searched(spec)
    return _left(every, study, spec)


def outlook(wanted: Mapping[Scale, int], store: str, name: str) -> Outlook:
    """Of so many trials by scale, what a store's study has not finished yet."""
    with suppress(CompletedpError), Store(store, create=False) as opened:  # if there is one yet
        study = opened.study(name)
        spec = StudySpec.from_dict(study.spec)
        if spec.engine != CELLS:  # a budget that was raised is not lowered
            granted = searched(spec)
            wanted = {scale: max(n, granted.get(scale, 0)) for scale, n in wanted.items()}
        left = _left(wanted, study, spec)
        return Outlook(left=left, begun=bool(study.trials(curves=False)))
    return Outlook(left=wanted, begun=False)


def _left(wanted: Mapping[Scale, int], study: Study, spec: StudySpec) -> dict[Scale, int]:
    sites = read_sites(study) if spec.engine == CELLS else spec.sites
    rows = study.trials(curves=False)
    done = Counter(sites[row.site].scale for row in rows if row.state == "finished")
    left = {scale: count - done[scale] for scale, count in wanted.items()}
    return {scale: count for scale, count in left.items() if count > 0}
