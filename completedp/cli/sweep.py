"""The verb `sweep`: does a best value stay put as a model grows?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from completedp.cli.shared import Verb, as_config, print_json, register
from completedp.evidence.config import SweepConfig
from completedp.studies.config import WorkerConfig


@register("sweep")
@dataclass(frozen=True, kw_only=True)
class SweepVerb(SweepConfig, WorkerConfig, Verb):
    """Does a hyperparameter's best value stay put as the model or its training grows?"""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print the verdict as JSON."""

    def run(self) -> int:
        """Sweep, or go on, and print the verdict."""
        from completedp.evidence.sweep import sweep_from

        found = sweep_from(as_config(self, SweepConfig), as_config(self, WorkerConfig))
        if self.json:
            print_json(found.to_dict())
        else:
            print(f"{found}\n{self.out}/sweep.svg")
        return 0
