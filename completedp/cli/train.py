"""The verb `train`: one run of a model with a recipe."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from completedp.cli.costs import (
    NOWHERE,
    Out,
    PatientOptions,
    print_estimate,
    refuse_if_long,
)
from completedp.cli.shared import Verb, as_config, name_next, print_json, register
from completedp.common.errors import DataWarning
from completedp.common.warn import warn
from completedp.theory.horizon import critical_batch_words
from completedp.training.config import TrainConfig

if TYPE_CHECKING:
    from completedp.training.estimate import Estimate


@register("train")
@dataclass(frozen=True, kw_only=True)
class TrainVerb(TrainConfig, PatientOptions, Verb):
    """Train a model, the reference model or your own, at any scale; the same command resumes."""

    resumes: ClassVar[bool] = True
    out: Out = NOWHERE
    json: bool = False
    """Print the result as JSON."""

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Train."""
        from completedp.common.process import Interrupted
        from completedp.training.distributed import AgreedError, is_follower
        from completedp.training.estimate import say_before_training
        from completedp.training.folder import TRAINING, steps_done, where_diverged
        from completedp.training.loop import train

        config = as_config(self, TrainConfig).resolved()
        before = steps_done(config)
        if self.dry_run:
            return 0 if is_follower() else print_estimate(self._estimate(config), self.json)
        said = say_before_training(lambda: self._affordable(config))
        try:
            result = train(config)
        except (AgreedError, Interrupted) as stop:
            if is_follower():  # the first rank says it for all
                sys.exit(2 if isinstance(stop, AgreedError) else 130)
            raise
        if is_follower():
            return 0
        failed = int(result.status == "diverged")  # a script must not take it for a model
        if self.json:
            print_json(result.to_dict())
            return failed
        counted = "tokens" if said is None else said.counted
        line = f"{result.status} after {result.steps:,} steps and {result.tokens:,} {counted}"
        where = where_diverged(result.to_dict())
        if where not in (None, TRAINING):
            line += f", in its {where}"
        if before >= result.steps:
            ended = "stopped there" if result.status == "stopped" else "finished"
            line += f" ({ended} before, and not trained again)"
        elif before:
            line += f" (resumed at step {before:,})"
        if result.valid_loss is not None:
            line += f": validation loss {result.valid_loss:.4f}"
            if result.valid_bits_per_byte is not None:
                line += f" nats per token, {result.valid_bits_per_byte:.4f} bits per byte"
        elif result.last_finite_loss is not None:
            line += f": last training loss {result.last_finite_loss:.4f}"
        if result.critical_batch is not None:
            words = critical_batch_words(result.critical_batch, result.critical_batch_error)
            line += f"\n{words} (docs/horizon.md)"
        print(f"{line}\n{self.out}")
        self._name_next(result.status, where)
        return failed

    def _name_next(self, status: str, diverged_in: str | None) -> None:
        from completedp.training.folder import FIRST_LOSS, VALIDATION

        out = shlex.quote(self.out)
        if status == "stopped":
            name_next("the same command, with a later --stop-after or none, goes on")
        elif diverged_in == FIRST_LOSS:
            name_next(
                "look at the loss, the data and the model: the first loss, before any update, is "
                "no number, whatever the learning rate"
            )
        elif diverged_in is not None:
            lr = self.lr or self.load_recipe().values.to_dict()["lr"]
            halved = f"the same with --lr {lr / 2:.3g} --out {out}-lower, half the learning rate"
            if diverged_in == VALIDATION:
                halved = (
                    "look at the held-out data, and at loss and model in evaluation: training was "
                    f"sound to its last loss; if its last update broke it, {halved}"
                )
            name_next(halved)
        else:
            name_next(f"completedp report {out}")

    def _affordable(self, config: TrainConfig) -> Estimate:
        """The estimate; a run of a CPU's hours does not begin."""
        from completedp.training.estimate import begins_on_cpu

        found = self._estimate(config)
        if begins_on_cpu(config) and not self.anyway:
            refuse_if_long(
                found,
                lambda sizes: self._estimate(replace(config, **sizes)),  # type: ignore[arg-type]
                what="the run",
                hint="take a smaller --width, --depth or --tokens (--dry-run says what they take) "
                "or a GPU",
            )
        return found

    def _estimate(self, config: TrainConfig) -> Estimate:
        from completedp.tasks.task import task_from
        from completedp.training.estimate import estimate_config

        recipe = config.load_recipe()
        task = task_from(config, recipe)
        if self.dry_run:  # the run itself says these, too
            for line in task.data.cautions(config.target(recipe)):
                warn(line, DataWarning)
        return estimate_config(config, task, recipe, peak=self.peak)
