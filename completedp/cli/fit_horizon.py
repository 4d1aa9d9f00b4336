"""The verb `fit-horizon`: how the learning rate falls with the tokens, for one model and text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from completedp.cli.costs import PatientOptions, print_estimate, refuse_if_long
from completedp.cli.shared import Verb, as_config, name_next, print_json, register
from completedp.evidence.config import HorizonConfig
from completedp.studies.config import WorkerConfig


@register("fit-horizon")
@dataclass(frozen=True, kw_only=True)
class FitHorizonVerb(HorizonConfig, WorkerConfig, PatientOptions, Verb):
    """Fit how the best learning rate falls with the tokens, and grows with the batch."""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print the fits as JSON."""

    def __post_init__(self) -> None:
        HorizonConfig.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Fit, or go on, print, and write the recipe."""
        from completedp.evidence.horizon import grid_of, horizon_left, run_horizon
        from completedp.studies.run import start_from
        from completedp.training.estimate import Estimate, estimate_trials, say_estimate
        from completedp.training.runner import Runner

        config, options = as_config(self, HorizonConfig), as_config(self, WorkerConfig)
        grid, out = grid_of(config), Path(self.out)
        task, recipe = start_from(config)
        ahead = horizon_left(grid, task, recipe, out, self.store)
        runner = Runner(task, slots=self.slots, device=self.device, compile=self.compile)
        estimated = estimate_trials(runner, recipe, ahead.left, peak=self.peak)
        if self.dry_run:
            return print_estimate(estimated, self.json)

        def smaller(sizes: Mapping[str, int]) -> Estimate:
            task, recipe = start_from(replace(config, **sizes))  # type: ignore[arg-type]
            runner = Runner(task, slots=self.slots, device=self.device, compile=self.compile)
            left = horizon_left(grid, task, recipe, out, self.store).left
            return estimate_trials(runner, recipe, left)

        refuse_if_long(
            estimated, runner.device.type, begun=ahead.begun, anyway=self.anyway, smaller=smaller
        )
        say_estimate(estimated)
        found = run_horizon(grid, task, recipe, out, options, store=self.store)
        if self.json:
            print_json(found.to_dict())
        else:
            print(f"{found}\n\n{self.out}: token_exponent {found.recipe.rules.token_exponent:g}")
            name_next(f"completedp recipe show {shlex.quote(self.out)}")
        return 0
