"""Slots: many trials of one model shape in one program, refilled as they end.

A small model leaves a GPU almost idle. Here parameters, optimizer state and values of S trials
are stacked along a leading dimension and trained by the same kernels; each slot has its own values,
seed, data order, schedule and step counter. When a trial ends, diverges or is stopped, its slot
takes the next one while the others go on, and nothing is compiled again: no shape has changed.

Slots do not meet: every product is batched over them and every sum stays within one, so what
happens in a slot, NaN included, cannot reach another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from completedp.apply.initialise import draw
from completedp.apply.multipliers import hooked, is_for_multipliers
from completedp.apply.names import canonical_name
from completedp.apply.planned import Plan
from completedp.apply.updates import UPDATES
from completedp.common.errors import CompletedpError
from completedp.common.warn import warn
from completedp.lm.transformer import is_reference
from completedp.tasks.config import Z_LOSS
from completedp.tasks.data import Batch, Data, held_out_batches
from completedp.tasks.losses import ModelLoss
from completedp.tasks.task import REFERENCE, said_plainly
from completedp.theory.optimizers import DEFAULT, OPTIMIZERS
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


class _Family:
    """The tensors of a stack that one optimizer trains: their values and state."""

    def __init__(
        self, optimizer: str, members: Sequence[int], parameters: Sequence[Tensor], compile: bool
    ) -> None:
        self._members, first = members, parameters[0]
        self._parameters = [parameters[i] for i in members]
        self._update = UPDATES[optimizer]
        self._state = [
            [torch.zeros_like(p, requires_grad=False) for p in self._parameters]
            for _ in self._update.state
        ]
        self._values = {
            knob.name: torch.ones(len(members), len(first), device=first.device, dtype=first.dtype)
            for knob in OPTIMIZERS[optimizer].knobs
        }
        # One program for tensors of every size, or it would be compiled for each.
        apply = self._update.apply
        self._apply = compiled(apply, dynamic=True) if compile else apply

    def fill(self, slot: int, plan: Plan, begun: Sequence[Sequence[Tensor]] | None = None) -> None:
        """A trial's values, and its state where it was begun elsewhere."""
        of_trial = [plan.tensors[i].knobs for i in self._members]
        for name, values in self._values.items():
            column = [knobs[name] for knobs in of_trial]
            values[:, slot] = torch.tensor(column, dtype=torch.float64)
        for kind, kept in enumerate(self._state, start=1):  # after the weights
            for member, tensor in zip(self._members, kept, strict=True):
                tensor[slot].zero_() if begun is None else tensor[slot].copy_(begun[member][kind])

    def state(self, slot: int) -> dict[int, tuple[Tensor, ...]]:
        """Copies of a slot's weights and state, by the tensor's place in the plan."""
        stacked = zip(self._members, self._parameters, *self._state, strict=True)
        return {
            member: tuple(part[slot].detach().clone() for part in parts)
            for member, *parts in stacked
        }

    def step(self, grads: Sequence[Tensor], schedule: Tensor, step: Tensor) -> None:
        """An update of every tensor in every slot: schedule and step are [slots]."""
        columns = self._update.factors(self._values, schedule, step)
        factors = torch.stack([*columns], dim=1)  # [tensors, factors, slots]
        own = [grads[i] for i in self._members]
        for tensors in zip(self._parameters, own, *self._state, factors, strict=True):
            self._apply(*tensors)


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
        z_loss: float = Z_LOSS,
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
        self._is_reference = loss is None and is_reference(model)
        self._name = REFERENCE if self._is_reference else type(model).__name__
        if loss is None and is_reference(model):
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

    def _stack(self, count: int, optimizers: Sequence[str] | None = None) -> None:
        """Memory for `count` slots, and the program that trains them: the default optimizer's,
        until a trial comes that has others."""
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
        self._families: list[_Family] = []
        self._optimizers: list[str] = []
        self._schedule = stacked((self.max_steps,))
        self._step = stacked((), torch.int64)
        self._slots = torch.arange(count, device=self.device)
        self._feed.stack(count)
        self._loss = self._make_loss(compile=self._compile)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_losses = self._step
        self._train_by(optimizers or [DEFAULT] * len(named))

    def _train_by(self, optimizers: Sequence[str]) -> None:
        """What trains each tensor, in all slots; their state is new, and so is the program."""
        if optimizers == self._optimizers:
            return
        members: dict[str, list[int]] = {}
        for index, name in enumerate(optimizers):
            members.setdefault(name, []).append(index)
        parameters = list(self._parameters.values())
        self._families, self._graph = [], None  # their memory is needed for the new ones
        self._families = [
            _Family(name, some, parameters, self._compile) for name, some in members.items()
        ]
        self._optimizers = list(optimizers)

    def _optimizers_of(self, plan: Plan) -> list[str]:
        """What a plan trains each of the stack's tensors by."""
        if [tensor.name for tensor in plan.tensors] != list(map(canonical_name, self._names)):
            raise CompletedpError("a trial's plan is of another model than the stack's")
        return [tensor.optimizer for tensor in plan.tensors]

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
        again: deque[Trial[Key]] = deque(islice(waiting, 1))
        """Trials to start first: at the beginning one, for what trains its tensors; later those
        that a smaller stack has to start again."""
        running: dict[int, Trial[Key]] = {}
        curves: dict[int, list[float]] = {}
        while True:
            turn = None
            try:
                if again and not running:
                    self._train_by(self._optimizers_of(again[0].plan))
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
        if self._optimizers_of(plan) != self._optimizers:
            raise CompletedpError(
                "trials that share slots have to be trained by the same optimizers: "
                f"{' and '.join(plan.optimizers)} came to "
                f"{' and '.join(dict.fromkeys(self._optimizers))}"
            )
        if hooked(plan) or "setting" in plan.ways.values():
            raise CompletedpError(
                "slots cannot have multipliers by hooks or a config, which would be the same in "
                'every slot: plan with multipliers="fold", or give the model a '
                "residual_multipliers buffer that its branches are multiplied by"
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
        begun = None if trial.begin is None else trial.begin.tensors
        for index, tensor in enumerate(plan.tensors):
            drawn = draw(tensor, trial.seed) if begun is None else begun[index][0]
            self._parameters[self._names[index]][slot].copy_(drawn)
        for family in self._families:
            family.fill(slot, plan, begun)
        for name, value in plan.buffers.items():
            own = self._buffers.get(name)
            if own is not None and is_for_multipliers(own[slot], name, plan.map.depth):
                self._buffers[name][slot] = torch.tensor(value, dtype=torch.float64)
        steps = range(trial.first, trial.last)
        schedule = [plan.recipe.schedule(step, trial.steps) for step in steps]
        self._schedule[slot, steps.start : steps.stop] = torch.tensor(schedule, dtype=torch.float64)
        self._feed.fill(slot, trial.seed, steps)
        self._step[slot] = trial.first

    def _state(self, slot: int, step: int) -> State:
        """A copy of where a slot is."""
        found: dict[int, tuple[Tensor, ...]] = {}
        for family in self._families:
            found |= family.state(slot)
        tensors = tuple(found[index] for index in range(len(found)))
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
        batch = self._feed.batch(step)
        with said_plainly(self._name):
            loss = self._loss(self._parameters, self._buffers, *batch)
            grads = torch.autograd.grad(loss.total.sum(), list(self._parameters.values()))
        with torch.no_grad():
            for family in self._families:
                family.step(grads, self._schedule[self._slots, step], step + 1)
        self._step += 1
        return loss.cross_entropy

    def _shrink(self) -> None:
        """Half the slots, after the device ran out of memory."""
        count = self.count // 2
        warn(
            f"{self.count} slots do not fit the memory of {self.device}: going on with {count}; "
            "trials that had not finished start again",
        )
        optimizers = self._optimizers
        self._parameters, self._buffers, self._families, self._graph = {}, {}, [], None
        self._schedule = self._graph_losses = self._step
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._stack(count, optimizers)

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
                with said_plainly(self._name):
                    loss = self._evaluation_loss(parameters, buffers, *stacked)
                total += loss.cross_entropy * size
        finally:  # out of memory, the others go on training
            self._model.train()
        count = sum(len(rows[0]) for rows in self._held_out)
        return dict(zip(slots, (total / count).tolist(), strict=True))
