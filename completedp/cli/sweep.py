"""The verb `sweep`: does a best value stay put as a model grows?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from completedp.cli.costs import NOWHERE, Out, PatientOptions, begins, smaller_bases
from completedp.cli.shared import Verb, as_config, name_next, print_json, register
from completedp.evidence.config import SweepConfig, SweepGrid
from completedp.studies.config import WorkerConfig

if TYPE_CHECKING:
    from completedp.cli.costs import Work
    from completedp.cli.shared import Flags


@register("sweep")
@dataclass(frozen=True, kw_only=True)
class SweepVerb(SweepConfig, WorkerConfig, PatientOptions, Verb):
    """Does a hyperparameter's best value stay put as the model or its training grows?"""

    resumes: ClassVar[bool] = True
    out: Out = NOWHERE
    json: bool = False
    """Print the verdict as JSON."""

    def __post_init__(self) -> None:
        SweepConfig.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Sweep, or go on, and print the verdict."""
        from completedp.evidence.plots import require_matplotlib
        from completedp.evidence.sweep import STUDY, run_sweep, store_of, sweep_trials
        from completedp.studies.objective import runner_of
        from completedp.studies.outlook import outlook
        from completedp.studies.run import start_from

        config, options = as_config(self, SweepConfig), as_config(self, WorkerConfig)
        grid, out = as_config(self, SweepGrid), Path(self.out)
        task, recipe = start_from(config)
        require_matplotlib()
        ahead = outlook(sweep_trials(grid, task, recipe), store_of(out, self.store), STUDY)

        def smaller(flags: Flags) -> Work:
            other = replace(config, **flags)
            task, recipe = start_from(other)
            grid = as_config(other, SweepGrid)
            return runner_of(task, options), recipe, sweep_trials(grid, task, recipe)

        if not begins(
            self,
            runner_of(task, options),
            recipe,
            ahead,
            smaller,
            as_json=self.json,
            ways=smaller_bases({"factors": (1, 2)}, {"factors": (1, 2), "seeds": 1}),
        ):
            return 0
        result = run_sweep(grid, task, recipe, out, options, store=self.store)
        if self.json:
            print_json(result.to_dict())
        else:
            print(f"{result}\n{self.out}/sweep.svg")
            name_next(f"completedp report {shlex.quote(self.out)}")
        return 0 if any(line.optimum.loss is not None for line in result.lines) else 1
