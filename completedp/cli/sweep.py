"""The verb `sweep`: does a best value stay put as a model grows?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from completedp.cli.shared import Verb, as_config, print_json, register
from completedp.evidence.config import SweepConfig


@register("sweep")
@dataclass(frozen=True, kw_only=True)
class SweepVerb(SweepConfig, Verb):
    """Does a hyperparameter's best value stay put as the model or its training grows?"""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print the verdict as JSON."""

    def run(self) -> int:
        """Sweep, or go on, and print the verdict."""
        from completedp.evidence.sweep import sweep, sweep_text

        config = as_config(self, SweepConfig)
        lines = sweep(config)
        if self.json:
            print_json([asdict(line) for line in lines])
        else:
            print(f"{sweep_text(config, lines)}\n{self.out}/sweep.svg")
        return 0
