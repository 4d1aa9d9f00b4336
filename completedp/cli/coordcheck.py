"""The verbs `coordcheck` and `gradcheck`: is a model scaled right?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tyro.conf import Suppress

from completedp.cli.shared import DATA, Verb, as_config, name_next, register, show
from completedp.evidence.config import CheckConfig
from completedp.tasks.config import UNTIED

if TYPE_CHECKING:
    from completedp.evidence.result import CheckResult


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
        if not self.json:
            self._name_next(result)
        return 0 if result.passed else 1

    def _name_next(self, result: CheckResult) -> None:
        """Of sound rules what they are for; of others, where the fault may be."""
        from completedp.evidence.reporting.part import command
        from completedp.evidence.rows import FACTOR

        own = {name: getattr(self, name) for name in ("model", "untie", "override")}
        if own["model"] and self.untie:
            own["model"] = "hf:" + own["model"].removeprefix(UNTIED)
        if result.passed and self.recipe is not None:
            name_next(command("plan", recipe=self.recipe, **own))
        elif result.passed:
            given = {"data": self.data or DATA, "loss": self.loss}
            name_next(command("search", "start", **given, **own, dry_run=True))
        elif all(row.quantity == FACTOR for row in result.failures()):
            name_next("take the model's factors that move with its size out of its forward pass")
        elif self.model is not None:
            inspected = command("inspect", own.pop("model"), **own)
            name_next(f"is each tensor taken for what it is? {inspected}")
        else:
            name_next("docs/checks.md says what rows that fail may mean")


@register("gradcheck")
@dataclass(frozen=True, kw_only=True)
class GradcheckVerb(CoordcheckVerb):
    """Does eps keep its size relative to the gradients, and do the invariants hold?"""

    check: Suppress[str] = "gradcheck"
