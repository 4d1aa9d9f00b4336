"""Slots: many trials of one model shape in one program, refilled as they end.

A small model leaves a GPU almost idle. Here parameters, moments and hyperparameters of S trials
are stacked along a leading dimension and trained by the same kernels; each slot has its own values,
seed, data order, schedule and step counter. When a trial ends, diverges or is stopped, its slot
takes the next one while the others go on, and nothing is compiled again: no shape has changed.

Slots do not meet: every product is batched over them and every sum stays within one, so what
happens in a slot, NaN included, cannot reach another.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from completedp.apply.initialise import draw
from completedp.apply.multipliers import hooked
from completedp.common.errors import CompletedpError
from completedp.lm.transformer import Transformer
from completedp.tasks.data import Batch, Data, held_out_batches
from completedp.tasks.losses import ModelLoss
from completedp.training.feeds import make_feed, sample_batch
from completedp.training.memory import is_out_of_memory, slots_that_fit
from completedp.training.stacked import StackedLoss, compiled, reference_loss, vmapped_loss
from completedp.training.trials import (
    CHECK_EVERY,
    EVALUATION_TOKENS,
    Key,
    Outcome,
    Progress,
    State,
    Stop,
    Trial,
    diverged,
    first_bad,
)

_HYPERPARAMETERS = ("lr", "weight_decay", "eps", "beta1", "beta2")


class Slots:
    """A stack of slots for one model shape, one batch shape and one set of data.

    `model` needs no memory: it gives names, shapes and the program. Any module will do; `loss` is
    its loss, if not next-token cross-entropy, and `autocast` the type of its products (the
    reference model has its own `compute_dtype`, z-loss and chunks). A step takes `examples` of the
    data. Without a `count`, as many slots as pay and fit the free memory; fewer if that does for so
    many `trials`. With `eval_examples=0` nothing is evaluated.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        examples: int,
        max_steps: int,
        count: int | None = None,
        device: torch.device | str = "cpu",
        weights: torch.dtype = torch.float32,
        loss: ModelLoss | None = None,
        autocast: torch.dtype | None = None,
        z_loss: float = 0.0,
        chunk: int | None = None,
        eval_examples: int = 256,
        compile: bool = False,
        trials: int | None = None,
    ) -> None:
        if count is not None and count < 1:
            raise CompletedpError(f"slots = {count} must be at least 1")
        self.max_steps = max_steps
        self.device = torch.device(device)
        self._data, self._model, self._weights, self._compile = data, model, weights, compile
        self._make_loss: Callable[..., StackedLoss]
        self._examples = examples
        self._is_reference = isinstance(model, Transformer) and loss is None
        if isinstance(model, Transformer) and loss is None:
            self._make_loss = partial(reference_loss, model, z_loss, chunk)
            self._evaluation_loss: StackedLoss = reference_loss(model)
        else:
            self._make_loss = partial(vmapped_loss, model, loss, autocast=autocast)
            self._evaluation_loss = self._make_loss()
        self._feed = make_feed(data, examples, max_steps, self.device)
        self._held_out: list[Batch] = data.evaluation(eval_examples) if eval_examples else []
        if count is None:
            sample = sample_batch(data, examples, self.device)
            count = slots_that_fit(model, self._make_loss(), sample, weights=weights, trials=trials)
        self._stack(count)
        self.busy_steps = self.slot_steps = 0
        """Slot-steps that trained a trial, and all that ran: their ratio is the occupancy."""

    def _stack(self, count: int) -> None:
        """Memory for `count` slots, and the program that trains them."""
        self.count = count

        def stacked(shape: Iterable[int], dtype: torch.dtype = self._weights) -> Tensor:
            return torch.zeros(count, *shape, device=self.device, dtype=dtype)

        named = dict(self._model.named_parameters())
        self._names = list(named)
        self._parameters = {n: stacked(p.shape).requires_grad_() for n, p in named.items()}
        self._buffers = {}
        for name, buffer in self._model.named_buffers():
            dtype = self._weights if buffer.is_floating_point() else buffer.dtype
            self._buffers[name] = stacked(buffer.shape, dtype)
            if not buffer.is_meta:
                self._buffers[name].copy_(buffer)
        self._first = [torch.zeros_like(p, requires_grad=False) for p in self._parameters.values()]
        self._second = [torch.zeros_like(m) for m in self._first]
        self._values = {
            name: torch.ones(len(named), count, device=self.device, dtype=self._weights)
            for name in _HYPERPARAMETERS
        }
        self._schedule = stacked((self.max_steps,))
        self._step = stacked((), torch.int64)
        self._slots = torch.arange(count, device=self.device)
        self._feed.stack(count)
        self._loss = self._make_loss(compile=self._compile)
        # One program for tensors of every size, or it would be compiled for each.
        self._adamw = compiled(_adamw, dynamic=True) if self._compile else _adamw
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_losses = self._step

    def run(
        self,
        trials: Iterable[Trial[Key]],
        *,
        stop: Stop[Key] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome[Key]]:
        """Train every trial; outcomes come as they end, in no order.

        `stop` is shown the running trials with their losses so far now and then, and says of each
        whether to end it early. `progress` is told how many steps of trials were done since it was
        last called.
        """
        waiting = iter(trials)
        again: deque[Trial[Key]] = deque()
        """Trials that a smaller stack has to start again."""
        running: dict[int, Trial[Key]] = {}
        curves: dict[int, list[float]] = {}
        while True:
            turn = None
            try:
                self.prepare()
                for slot in range(self.count):
                    if slot in running:
                        continue
                    trial = again.popleft() if again else next(waiting, None)
                    if trial is not None:
                        running[slot], curves[slot] = trial, []
                        self.fill(slot, trial)
                if not running:
                    return
                turn = self._turn(running, curves)
            except Exception as error:
                if not is_out_of_memory(error) or self.count == 1:
                    raise
            if turn is None:  # only here has the error let go of the tensors it was about
                again.extend(running.values())
                running.clear()
                curves.clear()
                self._shrink()
                continue
            steps, valid = turn
            self.busy_steps += steps * len(running)
            self.slot_steps += steps * self.count
            if progress is not None:
                progress(steps * len(running))
            ended: dict[int, str] = {}
            for slot, trial in running.items():
                if diverged(curves[slot]):
                    ended[slot] = "diverged"
                elif len(curves[slot]) == trial.length:
                    ended[slot] = "ok"
            if stop is not None:
                going = [slot for slot in running if slot not in ended]
                stopped = stop([(running[slot], curves[slot]) for slot in going])
                ended |= {s: "stopped" for s, ends in zip(going, stopped, strict=True) if ends}
            for slot, status in ended.items():
                losses, trial = curves.pop(slot), running.pop(slot)
                if status == "diverged":
                    losses = losses[: first_bad(losses)]
                keeps = status == "ok" and trial.until is not None
                yield Outcome(
                    trial=trial,
                    status=status,
                    losses=losses,
                    valid_loss=valid.get(slot),
                    state=self._state(slot, trial.last) if keeps else None,
                )

    def _turn(
        self, running: dict[int, Trial[Key]], curves: dict[int, list[float]]
    ) -> tuple[int, dict[int, float]]:
        """Some steps of all, added to their curves: how many, and losses of those that are done."""
        # To where the next trial ends, so that its slot is not idle for a step.
        left = min(trial.length - len(curves[slot]) for slot, trial in running.items())
        steps = min(left, CHECK_EVERY)
        recent = torch.stack([self.train_step() for _ in range(steps)], dim=1).tolist()
        for slot, losses in curves.items():
            losses += recent[slot]
        whole = [slot for slot, trial in running.items() if len(curves[slot]) == trial.length]
        return steps, self._evaluate([slot for slot in whole if not diverged(curves[slot])])

    @torch.no_grad()
    def fill(self, slot: int, trial: Trial[Key]) -> None:
        """Start a trial in a slot: its weights, zero moments, values, schedule and data order."""
        plan = trial.plan
        if [t.name for t in plan.tensors] != self._names:
            raise CompletedpError("a trial's plan is of another model than the stack's")
        if hooked(plan):
            raise CompletedpError(
                "slots cannot have multipliers by hooks, which would be the same in every slot: "
                "the model needs a residual_multipliers buffer that its branches are multiplied by"
            )
        if not 1 <= trial.steps <= self.max_steps:
            raise CompletedpError(
                f"a trial of {trial.steps} steps does not fit a stack of {self.max_steps}"
            )
        if not 0 <= trial.first < trial.last <= trial.steps:
            raise CompletedpError(
                f"a trial of {trial.steps} steps cannot be trained from step {trial.first} until "
                f"{trial.last}"
            )
        for index, tensor in enumerate(plan.tensors):
            weights = self._parameters[tensor.name][slot]
            if trial.begin is None:
                weights.copy_(draw(tensor, trial.seed))
                self._first[index][slot].zero_()
                self._second[index][slot].zero_()
            else:
                there = (weights, self._first[index][slot], self._second[index][slot])
                for mine, begun in zip(there, trial.begin.tensors[index], strict=True):
                    mine.copy_(begun)
        for name, values in self._values.items():
            attribute = "torch_weight_decay" if name == "weight_decay" else name
            of_trial = [getattr(tensor, attribute) for tensor in plan.tensors]
            values[:, slot] = torch.tensor(of_trial, dtype=torch.float64)
        for name, value in plan.buffers.items():
            if name in self._buffers:
                self._buffers[name][slot] = torch.tensor(value, dtype=torch.float64)
        steps = range(trial.first, trial.last)
        schedule = [plan.recipe.schedule(step, trial.steps) for step in steps]
        self._schedule[slot, steps.start : steps.stop] = torch.tensor(schedule, dtype=torch.float64)
        self._feed.fill(slot, trial.seed, steps)
        self._step[slot] = trial.first

    def _state(self, slot: int, step: int) -> State:
        """A copy of where a slot is."""
        stacked = zip(self._parameters.values(), self._first, self._second, strict=True)
        tensors = tuple(
            (p[slot].detach().clone(), m[slot].clone(), v[slot].clone()) for p, m, v in stacked
        )
        return State(step=step, tensors=tensors)

    def prepare(self) -> None:
        """Compile and record the program, where that is not done yet; slots are empty after it."""
        if self._graph is not None or not self._compile or self.device.type != "cuda":
            return
        # Launching a small step's kernels takes longer than running them: they are recorded once,
        # after steps that nothing is read from.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self._advance()
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.empty_cache()  # the graph takes memory of its own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._graph_losses = self._advance()
        self._graph = graph

    def train_step(self) -> Tensor:
        """One step of every slot, and its losses; nothing here waits for the device."""
        self._feed.load()
        if self._graph is None:
            return self._advance()
        self._graph.replay()
        return self._graph_losses.clone()

    def _advance(self) -> Tensor:
        # A slot without a trial goes on with stale values: what it computes is never read.
        step = self._step.clamp(max=self.max_steps - 1)
        loss = self._loss(self._parameters, self._buffers, *self._feed.batch(step))
        parameters = list(self._parameters.values())
        grads = torch.autograd.grad(loss.total.sum(), parameters)
        self._update(parameters, grads, self._schedule[self._slots, step], step + 1)
        self._step += 1
        return loss.cross_entropy

    @torch.no_grad()
    def _update(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], schedule: Tensor, step: Tensor
    ) -> None:
        """AdamW for every slot and tensor: values are [tensors, slots], steps [slots]."""
        beta1, beta2 = self._values["beta1"], self._values["beta2"]
        rate = self._values["lr"] * schedule
        kept = 1.0 - rate * self._values["weight_decay"]
        size = rate / (1.0 - beta1**step)
        correction = (1.0 - beta2**step).sqrt()
        columns = (beta1, beta2, self._values["eps"], kept, size, correction)
        factors = torch.stack(columns, dim=1)  # [tensors, 6, slots]
        for state in zip(parameters, grads, self._first, self._second, factors, strict=True):
            self._adamw(*state)

    def _shrink(self) -> None:
        """Half the slots, after the device ran out of memory."""
        count = self.count // 2
        warnings.warn(
            f"{self.count} slots do not fit the memory of {self.device}: going on with {count}; "
            "trials that had not finished start again",
            stacklevel=3,
        )
        self._parameters, self._buffers, self._values = {}, {}, {}
        self._first, self._second, self._graph = [], [], None
        self._schedule = self._graph_losses = self._step
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._stack(count)

    @torch.no_grad()
    def _evaluate(self, slots: list[int]) -> dict[int, float]:
        """Loss of some slots on the same held-out examples."""
        if not slots or not self._held_out:
            return {}
        chosen = torch.tensor(slots, device=self.device)
        parameters = {n: p[chosen] for n, p in self._parameters.items()}
        buffers = {n: b[chosen] for n, b in self._buffers.items()}
        total = torch.zeros(len(slots), device=self.device, dtype=torch.float64)
        at_once = self._examples  # as in training: a loss of the user's own may depend on it
        if self._is_reference:
            at_once = max(1, EVALUATION_TOKENS // (self._data.unit * len(slots)))
        self._model.eval()
        try:
            for batch, size in held_out_batches(self._data, self._held_out, at_once, self.device):
                stacked = tuple(part.expand(len(slots), *part.shape) for part in batch)
                loss = self._evaluation_loss(parameters, buffers, *stacked)
                total += loss.cross_entropy * size
        finally:  # out of memory, the others go on training
            self._model.train()
        count = sum(len(rows[0]) for rows in self._held_out)
        return dict(zip(slots, (total / count).tolist(), strict=True))

    def weights(self, slot: int) -> dict[str, Tensor]:
        """A slot's parameters, as they are now."""
        return {name: value[slot].detach() for name, value in self._parameters.items()}


def _adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, factors: Tensor) -> None:
    """torch's AdamW on one tensor [slots, ...], with each slot's own factors [6, slots]."""
    shaped = factors.view(*factors.shape, *(1,) * (p.dim() - 1))
    beta1, beta2, eps, kept, size, correction = shaped.unbind(0)
    m.mul_(beta1).add_((1.0 - beta1) * g)
    v.mul_(beta2).add_((1.0 - beta2) * g * g)
    p.mul_(kept).sub_(size * m / (v.sqrt() / correction + eps))
