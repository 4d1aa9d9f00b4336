"""The verb `report`: results of any kind on one page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from completedp.cli.shared import Verb, print_json, register
from completedp.common.checks import check_path


@register("report")
@dataclass(frozen=True, kw_only=True)
class ReportVerb(Verb):
    """Gather figures, sweeps, searches, checks, recipes and training runs into one HTML page."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files and folders, or the URL of a store: what each is, is told by what is in it."""
    out: str = "report.html"
    """The page. It needs nothing but itself: no network, no scripts."""
    title: str = "completedp report"
    """Its title."""
    json: bool = False
    """Print what is on it as JSON."""

    def __post_init__(self) -> None:
        check_path("out", self.out)

    def run(self) -> int:
        """Write the page and say what is on it."""
        from completedp.evidence.reporting.gather import LARGEST, write_report

        found = write_report(self.paths, Path(self.out), self.title)
        for why in found["left_out"]:
            print(f"left out: {why}", file=sys.stderr)
        if self.json:
            print_json(found)
            return 0
        for part in found["parts"]:
            print(f"{part['verdict']:<12} {part['title']}: {part['found']}")
        print(f"{found['sentence']}\n{self.out}")
        if found["bytes"] > LARGEST:
            size = f"{found['bytes'] / 1e6:.1f} MB"
            print(f"{self.out} has {size}: name fewer paths for one to send", file=sys.stderr)
        return 0
