"""The verb `fit-horizon`: how the learning rate falls with the tokens, for one model and text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from completedp.cli.costs import NOWHERE, Out, PatientOptions, begins, smaller_bases
from completedp.cli.shared import Verb, as_config, name_next, print_json, register
from completedp.evidence.config import HorizonConfig, HorizonGrid
from completedp.studies.config import WorkerConfig

if TYPE_CHECKING:
    from completedp.cli.costs import Work
    from completedp.cli.shared import Flags


@register("fit-horizon")
@dataclass(frozen=True, kw_only=True)
class FitHorizonVerb(HorizonConfig, WorkerConfig, PatientOptions, Verb):
    """Fit how the best learning rate falls with the tokens, and grows with the batch."""

    resumes: ClassVar[bool] = True
    out: Out = NOWHERE
    json: bool = False
    """Print the fits as JSON."""

    def __post_init__(self) -> None:
        HorizonConfig.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Fit, or go on, print, and write the recipe."""
        from completedp.evidence.horizon import horizon_left, run_horizon
        from completedp.studies.objective import runner_of
        from completedp.studies.run import start_from
        from completedp.studies.session import warn_of_base

        config, options = as_config(self, HorizonConfig), as_config(self, WorkerConfig)
        grid, out = as_config(self, HorizonGrid), Path(self.out)
        task, recipe = start_from(config)
        warn_of_base(task, recipe.base)
        ahead = horizon_left(grid, task, recipe, out, self.store)

        def smaller(flags: Flags) -> Work:
            other = replace(config, **flags)
            task, recipe = start_from(other)
            grid = as_config(other, HorizonGrid)
            left = horizon_left(grid, task, recipe, out, self.store).left
            return runner_of(task, options), recipe, left

        if not begins(
            self,
            runner_of(task, options),
            recipe,
            ahead,
            smaller,
            as_json=self.json,
            ways=smaller_bases({"factors": (1, 4)}, {"factors": (1, 4), "seeds": 1}),
        ):
            return 0
        found = run_horizon(grid, task, recipe, out, options, store=self.store)
        if self.json:
            print_json(found.to_dict())
        else:
            print(f"{found}\n\n{self.out}: {found.outcome}")
            name_next(f"completedp recipe show {shlex.quote(self.out)}")
        return 0
