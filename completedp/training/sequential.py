"""One trial at a time, for models that cannot share one program with others.

What keeps a model out of slots: randomness in its forward pass, control flow that depends on
values, statistics of batches, multipliers by hooks, or an operator without a rule for vmap. Such a
model trains as its user would train it, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from completedp.apply.optimise import set_learning_rates
from completedp.common.errors import CompletedpError
from completedp.lm.loss import Loss
from completedp.tasks.data import Batch, held_out_batches, training_batches
from completedp.tasks.task import Task
from completedp.tasks.weights import give_memory
from completedp.theory.scale import Scale
from completedp.training.trials import (
    CHECK_EVERY,
    Key,
    Outcome,
    Progress,
    Stop,
    Trial,
    check_has_gradient,
    diverged,
    first_bad,
    seed_step,
)


class OneAtATime:
    """A stack of one slot: the task's model itself, trained step by step."""

    count = 1

    def __init__(
        self, task: Task, scale: Scale, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._task, self._device, self._dtype = task, device, dtype
        self._examples = task.data.examples(scale.batch)
        self._held_out = task.data.evaluation(task.eval_examples)
        self.busy_steps = self.slot_steps = 0

    def prepare(self) -> None:
        """Nothing is compiled before a trial is there."""

    def run(
        self,
        trials: Iterable[Trial[Key]],
        *,
        stop: Stop[Key] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome[Key]]:
        """Train the trials one after another."""
        for trial in trials:
            yield self._train(trial, stop, progress)

    def _train(
        self, trial: Trial[Key], stop: Stop[Key] | None, progress: Progress | None
    ) -> Outcome[Key]:
        if trial.begin is not None or trial.until is not None:
            raise CompletedpError(
                f"{self._task.name} trains one trial at a time, and parts of a run need slots"
            )
        scale = trial.plan.target
        model = self._task.model(scale, None if self._dtype == torch.float32 else self._dtype)
        # The trial's own has no memory; it was probed.
        planned = self._task.plan(trial.plan.recipe, scale, model, probe=False)
        give_memory(model, self._device)
        planned.initialise(trial.seed)
        optimizer = planned.optimizer()
        loss = self._task.batch_loss(model, self._dtype)
        losses: list[float] = []
        recent: list[Tensor] = []
        status = "ok"
        data, steps = self._task.data, range(trial.steps)
        batches = training_batches(data, self._examples, trial.seed, self._device)
        for step, batch in zip(steps, batches, strict=False):
            set_learning_rates(optimizer, planned.recipe.schedule(step, trial.steps))
            seed_step(trial.seed, step)
            recent.append(_step(loss, optimizer, batch))
            if len(recent) < CHECK_EVERY and step + 1 < trial.steps:
                continue
            losses += torch.stack(recent).tolist()
            self.busy_steps += len(recent)
            self.slot_steps += len(recent)
            if progress is not None:
                progress(len(recent))
            recent = []
            if diverged(losses):
                status = "diverged"
                losses = losses[: first_bad(losses)]
                break
            if step + 1 < trial.steps and stop is not None and stop([(trial, losses)])[0]:
                status = "stopped"
                break
        valid = self._evaluate(model, loss) if status == "ok" else None
        return Outcome(trial=trial, status=status, losses=losses, valid_loss=valid)

    @torch.no_grad()
    def _evaluate(self, model: torch.nn.Module, loss: Callable[..., Loss]) -> float:
        data, total, count = self._task.data, 0.0, 0
        model.eval()
        for batch, size in held_out_batches(data, self._held_out, self._examples, self._device):
            total += float(loss(*batch).cross_entropy) * size
            count += size
        return total / count


def _step(loss: Callable[..., Loss], optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    found = loss(*batch)
    check_has_gradient(found.total)
    found.total.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return found.cross_entropy
