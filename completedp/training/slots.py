"""Slots: many trials of one model shape in one program, refilled as they end.

A small model leaves a GPU almost idle. Here parameters, moments and hyperparameters of S trials
are stacked along a leading dimension and trained by the same kernels; each slot has its own values,
seed, data order, schedule and step counter. When a trial ends, diverges or is stopped, its slot
takes the next one while the others go on, and nothing is compiled again: no shape has changed.

Slots do not meet: every product is batched over them and every sum stays within one, so what
happens in a slot, NaN included, cannot reach another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from completedp.apply.initialise import draw
from completedp.apply.plan import Plan
from completedp.lm.batches import Batches, TokenDataset
from completedp.lm.loss import Loss, language_model_loss
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.theory.errors import CompletedpError
from completedp.training.build import meta_model
from completedp.training.loop import (
    CHECK_EVERY,
    DIVERGED_ABOVE,
    EVALUATION_TOKENS,
    evaluation_windows,
)

_HYPERPARAMETERS = ("lr", "weight_decay", "eps", "beta1", "beta2")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run to be done in a slot: a plan for the stack's model, a seed, a length."""

    plan: Plan
    seed: int
    steps: int
    label: Any = None
    """The caller's own; it comes back with the outcome."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended."""

    trial: Trial
    status: str
    """ok, diverged or stopped."""
    losses: list[float]
    """Cross-entropy of every step, to the last finite one where it diverged."""
    valid_loss: float | None

    @property
    def last_finite_loss(self) -> float | None:
        """The last loss that was a number."""
        return self.losses[-1] if self.losses else None


class Slots:
    """A stack of `count` slots for one model shape, one batch shape and one text."""

    def __init__(
        self,
        config: ModelConfig,
        count: int,
        train_data: TokenDataset,
        valid_data: TokenDataset | None,
        *,
        sequences: int,
        max_steps: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        z_loss: float = 0.0,
        chunk: int | None = None,
        eval_sequences: int = 256,
        compile: bool = False,
    ) -> None:
        if count < 1:
            raise CompletedpError(f"slots = {count} must be at least 1")
        self.count, self.max_steps = count, max_steps
        self._z_loss, self._chunk = z_loss, chunk
        self.device = torch.device(device)
        self._data, self._sequences = train_data, sequences
        weights = torch.promote_types(dtype, torch.float32)
        self._model = meta_model(config, dtype if dtype != weights else None)
        self._stack(weights)
        self._windows = _on_device(train_data, self.device)
        self._valid = None
        if valid_data is not None:
            self._valid = evaluation_windows(valid_data, eval_sequences).to(self.device)
        self._loss: Callable[..., Loss] = _stacked_loss
        self._update: Callable[..., None] = _adamw
        if compile:
            self._loss = torch.compile(_stacked_loss, dynamic=False)
            self._update = torch.compile(_adamw, dynamic=False)
        self.busy_steps = self.slot_steps = 0
        """Slot-steps that trained a trial, and all that ran: their ratio is the occupancy."""

    def _stack(self, weights: torch.dtype) -> None:
        def stacked(shape: Iterable[int], dtype: torch.dtype = weights) -> Tensor:
            return torch.zeros(self.count, *shape, device=self.device, dtype=dtype)

        named = dict(self._model.named_parameters())
        self._names = list(named)
        self._parameters = {n: stacked(p.shape).requires_grad_() for n, p in named.items()}
        self._buffers = {n: stacked(b.shape) for n, b in self._model.named_buffers()}
        self._first = [torch.zeros_like(p, requires_grad=False) for p in self._parameters.values()]
        self._second = [torch.zeros_like(m) for m in self._first]
        self._values = {
            name: torch.ones(len(named), self.count, device=self.device, dtype=weights)
            for name in _HYPERPARAMETERS
        }
        self._schedule = stacked((self.max_steps,))
        self._order = stacked((self.max_steps, self._sequences), torch.int64)
        self._step = stacked((), torch.int64)
        self._slots = torch.arange(self.count, device=self.device)

    def run(
        self,
        trials: Iterable[Trial],
        *,
        stop: Callable[[Trial, list[float]], bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Outcome]:
        """Train every trial; outcomes come as they end, in no order.

        `stop` is shown a trial's losses so far now and then; True ends it early. `progress` is told
        how many steps of trials were done since it was last called.
        """
        waiting = iter(trials)
        running: dict[int, Trial] = {}
        curves: dict[int, list[float]] = {}
        while True:
            for slot in range(self.count):
                if slot not in running and (trial := next(waiting, None)) is not None:
                    self._fill(slot, trial)
                    running[slot], curves[slot] = trial, []
            if not running:
                return
            # To where the next trial ends, so that its slot is not idle for a step.
            left = min(trial.steps - len(curves[slot]) for slot, trial in running.items())
            advance = min(left, CHECK_EVERY)
            recent = torch.stack([self._train_step() for _ in range(advance)], dim=1).tolist()
            self.busy_steps += advance * len(running)
            self.slot_steps += advance * self.count
            if progress is not None:
                progress(advance * len(running))
            ended: dict[int, str] = {}
            for slot, trial in running.items():
                losses = curves[slot]
                losses += recent[slot]
                if _diverged(losses, advance):
                    ended[slot] = "diverged"
                elif len(losses) == trial.steps:
                    ended[slot] = "ok"
                elif stop is not None and stop(trial, losses):
                    ended[slot] = "stopped"
            finished = [slot for slot, status in ended.items() if status == "ok"]
            valid = self._evaluate(finished)
            for slot, status in ended.items():
                losses, trial = curves.pop(slot), running.pop(slot)
                if status == "diverged":
                    losses = losses[: _first_bad(losses)]
                yield Outcome(trial=trial, status=status, losses=losses, valid_loss=valid.get(slot))

    @torch.no_grad()
    def _fill(self, slot: int, trial: Trial) -> None:
        """Start a trial in a slot: its weights, zero moments, values, schedule and data order."""
        plan = trial.plan
        if [t.name for t in plan.tensors] != self._names:
            raise CompletedpError("a trial's plan is of another model than the stack's")
        if not 1 <= trial.steps <= self.max_steps:
            raise CompletedpError(
                f"a trial of {trial.steps} steps does not fit a stack of {self.max_steps}"
            )
        for index, tensor in enumerate(plan.tensors):
            self._parameters[tensor.name][slot].copy_(draw(tensor, trial.seed))
            self._first[index][slot].zero_()
            self._second[index][slot].zero_()
        independent = plan.recipe.rules.weight_decay == "independent"
        for name, values in self._values.items():
            of_trial = [getattr(tensor, name) for tensor in plan.tensors]
            if name == "weight_decay" and independent:
                of_trial = [t.weight_decay / t.lr for t in plan.tensors]
            values[:, slot] = torch.tensor(of_trial, dtype=torch.float64)
        self._buffers["residual_multipliers"][slot] = torch.tensor(
            plan.residual_multipliers, dtype=torch.float64
        )
        self._buffers["output_multiplier"][slot] = plan.output_multiplier
        schedule = [plan.recipe.schedule(step, trial.steps) for step in range(trial.steps)]
        self._schedule[slot, : trial.steps] = torch.tensor(schedule, dtype=torch.float64)
        order = Batches(self._data, self._sequences, trial.seed).order(trial.steps)
        self._order[slot, : trial.steps] = torch.from_numpy(order)
        self._step[slot] = 0

    def _train_step(self) -> Tensor:
        """One step of every slot, and its losses; nothing here waits for the device."""
        # A slot without a trial goes on with stale values: what it computes is never read.
        step = self._step.clamp(max=self.max_steps - 1)
        rows = self._windows[self._order[self._slots, step]].long()
        loss = self._loss(
            self._model,
            self._parameters,
            self._buffers,
            rows[..., :-1],
            rows[..., 1:],
            self._z_loss,
            self._chunk,
        )
        loss.total.sum().backward()
        grads = [p.grad for p in self._parameters.values()]
        self._update(
            list(self._parameters.values()),
            grads,
            self._first,
            self._second,
            *self._values.values(),
            self._schedule[self._slots, step],
            step + 1,
        )
        for parameter in self._parameters.values():
            parameter.grad = None
        self._step += 1
        return loss.cross_entropy

    @torch.no_grad()
    def _evaluate(self, slots: list[int]) -> dict[int, float]:
        """Validation loss of some slots, all on the same held-out windows."""
        if not slots or self._valid is None:
            return {}
        chosen = torch.tensor(slots, device=self.device)
        parameters = {n: p[chosen] for n, p in self._parameters.items()}
        buffers = {n: b[chosen] for n, b in self._buffers.items()}
        total = torch.zeros(len(slots), device=self.device, dtype=torch.float64)
        context = self._valid.shape[-1] - 1
        rows_at_once = max(1, EVALUATION_TOKENS // (context * len(slots)))
        for rows in self._valid.split(rows_at_once):
            stacked = rows.expand(len(slots), *rows.shape)
            inputs, targets = stacked[..., :-1], stacked[..., 1:]
            loss = _stacked_loss(self._model, parameters, buffers, inputs, targets, 0.0, None)
            total += loss.cross_entropy * len(rows)
        return dict(zip(slots, (total / len(self._valid)).tolist(), strict=True))

    def weights(self, slot: int) -> dict[str, Tensor]:
        """A slot's parameters, as they are now."""
        return {name: value[slot].detach() for name, value in self._parameters.items()}


def _stacked_loss(
    model: Transformer,
    parameters: dict[str, Tensor],
    buffers: dict[str, Tensor],
    inputs: Tensor,
    targets: Tensor,
    z_loss: float,
    chunk: int | None,
) -> Loss:
    """One loss for each slot."""
    features = functional_call(model, {**parameters, **buffers}, (inputs,), {"logits": False})
    head, bias = parameters["unembedding.weight"], parameters.get("unembedding.bias")
    return language_model_loss(features, head, targets, bias=bias, z_loss=z_loss, chunk=chunk)


@torch.no_grad()
def _adamw(
    parameters: list[Tensor],
    grads: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    lr: Tensor,
    weight_decay: Tensor,
    eps: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    schedule: Tensor,
    step: Tensor,
) -> None:
    """torch's AdamW for every slot and tensor: values are [tensors, slots], steps [slots]."""
    rate = lr * schedule
    kept = 1.0 - rate * weight_decay
    size = rate / (1.0 - beta1**step)
    correction = (1.0 - beta2**step).sqrt()
    for i, (p, g, m, v) in enumerate(zip(parameters, grads, first, second, strict=True)):
        shape = (-1, *(1,) * (p.dim() - 1))
        b1, b2 = beta1[i].view(shape), beta2[i].view(shape)
        m.mul_(b1).add_((1.0 - b1) * g)
        v.mul_(b2).add_((1.0 - b2) * g * g)
        denominator = v.sqrt() / correction[i].view(shape) + eps[i].view(shape)
        p.mul_(kept[i].view(shape)).sub_(size[i].view(shape) * m / denominator)


def _on_device(data: TokenDataset, device: torch.device) -> Tensor:
    """Every window [windows, context + 1], where the training is: reading disk costs a step."""
    windows = torch.empty(data.windows, data.context + 1, dtype=torch.int32)
    for start in range(0, data.windows, 65_536):
        indices = range(start, min(data.windows, start + 65_536))
        inputs, targets = data.take(list(indices))
        windows[start : indices.stop, :-1] = torch.from_numpy(inputs)
        windows[start : indices.stop, -1] = torch.from_numpy(targets[:, -1])
    return windows.to(device)


def _diverged(losses: list[float], new: int) -> bool:
    return _first_bad(losses[-new:], losses[0]) < new


def _first_bad(losses: list[float], first: float | None = None) -> int:
    """Index of the first loss that is divergence; the length where there is none."""
    first = losses[0] if first is None else first
    for index, loss in enumerate(losses):
        if not math.isfinite(loss) or loss > DIVERGED_ABOVE * first:
            return index
    return len(losses)
