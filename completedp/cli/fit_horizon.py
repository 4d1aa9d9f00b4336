"""The verb `fit-horizon`: how the learning rate falls with the tokens, for one model and text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from completedp.cli.shared import Verb, as_config, name_next, print_json, register
from completedp.evidence.config import HorizonConfig
from completedp.studies.config import WorkerConfig


@register("fit-horizon")
@dataclass(frozen=True, kw_only=True)
class FitHorizonVerb(HorizonConfig, WorkerConfig, Verb):
    """Fit how the best learning rate falls with the tokens, and grows with the batch."""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print the fits as JSON."""

    def run(self) -> int:
        """Fit, or go on, print, and write the recipe."""
        from completedp.evidence.horizon import fit_horizon_from

        found = fit_horizon_from(as_config(self, HorizonConfig), as_config(self, WorkerConfig))
        if self.json:
            print_json(found.to_dict())
        else:
            print(f"{found}\n\n{self.out}: token_exponent {found.recipe.rules.token_exponent:g}")
            name_next(f"completedp recipe show {shlex.quote(self.out)}")
        return 0
