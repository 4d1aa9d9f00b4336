"""The verb `sweep`: does a best value stay put as a model grows?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from completedp.cli.costs import PatientOptions, print_estimate, refuse_if_long
from completedp.cli.shared import Verb, as_config, name_next, print_json, register
from completedp.evidence.config import SweepConfig
from completedp.studies.config import WorkerConfig


@register("sweep")
@dataclass(frozen=True, kw_only=True)
class SweepVerb(SweepConfig, WorkerConfig, PatientOptions, Verb):
    """Does a hyperparameter's best value stay put as the model or its training grows?"""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print the verdict as JSON."""

    def __post_init__(self) -> None:
        SweepConfig.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Sweep, or go on, and print the verdict."""
        from completedp.evidence.plots import require_matplotlib
        from completedp.evidence.sweep import STUDY, grid_of, run_sweep, store_of, sweep_trials
        from completedp.studies.outlook import outlook
        from completedp.studies.run import start_from
        from completedp.training.estimate import Estimate, estimate_trials, say_estimate
        from completedp.training.runner import Runner

        config, options = as_config(self, SweepConfig), as_config(self, WorkerConfig)
        grid, out = grid_of(config), Path(self.out)
        task, recipe = start_from(config)
        require_matplotlib()
        every = sweep_trials(grid, task, recipe)
        ahead = outlook(every, store_of(out, self.store), STUDY)
        runner = Runner(task, slots=self.slots, device=self.device, compile=self.compile)
        found = estimate_trials(runner, recipe, ahead.left, peak=self.peak)
        if self.dry_run:
            return print_estimate(found, self.json)

        def smaller(sizes: Mapping[str, int]) -> Estimate:
            task, recipe = start_from(replace(config, **sizes))  # type: ignore[arg-type]
            runner = Runner(task, slots=self.slots, device=self.device, compile=self.compile)
            return estimate_trials(runner, recipe, sweep_trials(grid, task, recipe))

        refuse_if_long(
            found, runner.device.type, begun=ahead.begun, anyway=self.anyway, smaller=smaller
        )
        say_estimate(found)
        result = run_sweep(grid, task, recipe, out, options, store=self.store)
        if self.json:
            print_json(result.to_dict())
        else:
            print(f"{result}\n{self.out}/sweep.svg")
            name_next(f"completedp report {shlex.quote(self.out)}")
        return 0
