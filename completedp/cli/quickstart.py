"""The verb `quickstart`: the whole way on a CPU in minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from completedp.cli.shared import Verb, register, show


@register("quickstart")
@dataclass(frozen=True, kw_only=True)
class QuickstartVerb(Verb):
    """Search a tiny model's values, carry them to a larger one, train it, report. On a CPU."""

    resumes: ClassVar[bool] = True
    out: str = "runs/quickstart"
    """Folder for everything."""
    json: bool = False
    """Print what was found as JSON."""

    def run(self) -> int:
        """Do it all on a CPU in a few minutes."""
        from completedp.evidence.quickstart import quickstart

        found = quickstart(Path(self.out))
        return show(found, f"{found['sentence']}\nreport: {found['report']}", self.json)
