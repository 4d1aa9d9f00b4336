"""The verbs `coordcheck` and `gradcheck`: is a model scaled right?"""

from __future__ import annotations

from dataclasses import dataclass

from tyro.conf import Suppress

from completedp.cli.shared import Verb, as_config, register, show
from completedp.evidence.config import CheckConfig


@register("coordcheck")
@dataclass(frozen=True, kw_only=True)
class CoordcheckVerb(CheckConfig, Verb):
    """Does every feature move by the same amount at every width and depth? Pass or fail."""

    out: str | None = None
    """Folder for the numbers (JSON) and the plot (SVG; needs matplotlib)."""
    all_rows: bool = False
    """List the rows that pass too."""
    json: bool = False
    """Print JSON."""
    check: Suppress[str] = "coordcheck"

    def run(self) -> int:
        """Run the check, print the verdict."""
        from completedp.evidence.check import check_from
        from completedp.evidence.run import run_check

        result = run_check(self.check, check_from(as_config(self, CheckConfig)), self.out)
        show(result.to_dict(), result.text(all_rows=self.all_rows), self.json)
        return 0 if result.passed else 1


@register("gradcheck")
@dataclass(frozen=True, kw_only=True)
class GradcheckVerb(CoordcheckVerb):
    """Does eps keep its size relative to the gradients, and do the invariants hold?"""

    check: Suppress[str] = "gradcheck"
