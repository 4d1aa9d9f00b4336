"""Estimate: what training will take on this machine, or on another by its peak, before it begins.

A few examples of the model are trained for a moment: that counts the FLOP, the memory that an
example keeps for the backward pass, and on a CPU the time. A GPU's time goes by its peak, because a
moment there is all host; small models reach a part of it that is known by their width.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from completedp.apply.classify import classify
from completedp.apply.updates import UPDATES
from completedp.common.errors import CompletedpError
from completedp.common.progress import duration
from completedp.tasks.task import REFERENCE, Task
from completedp.tasks.weights import give_memory
from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role
from completedp.theory.scale import Scale
from completedp.training.config import TrainConfig
from completedp.training.cost import COMPILING, Cost, Speed, cost_of, flop_a_token, gpu_speed
from completedp.training.devices import choose_device, choose_dtype, device_name
from completedp.training.distributed import is_follower, world_size
from completedp.training.feeds import sample_batch
from completedp.training.folder import steps_done, was_begun
from completedp.training.memory import free_memory, is_out_of_memory, kept_for_backward, slots_for
from completedp.training.runner import Runner

FEW = 2
"""Examples of the smaller step that is tried; what a larger one takes more is an example's."""
_WORTH_A_TRY = 2e9
"""FLOP of the larger one."""
_LONG_ENOUGH = 0.2
"""Seconds after which a step is not tried again."""
_MOST_FLOP = 5e11
"""More than these take too long to try on a CPU."""
_MOST_STATE = 8e9
"""Bytes: a model of more would take longer to draw, a second time, than its estimate is worth."""
_CPU_PART = 0.25
"""Of the speed of its matrix products, where nothing could be tried."""
_GPU_PRODUCTS = 0.8
"""The part of a GPU's peak in print that large matrix products reach."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a model takes to train, by the example."""

    flop: float
    state: int
    """Bytes of weights, gradients and optimizer state, whatever the batch."""
    kept: int | None = None
    """Bytes that an example keeps for the backward pass; None where it was not tried."""
    seconds: float | None = None
    """An example's part of a step."""
    fixed: float = 0.0
    """Seconds of a step that are no example's."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What some training will take. Prints as two lines."""

    cost: Cost
    seconds: float
    compiling: float
    device: str
    known: str
    """How the time is known."""
    memory: int
    """Bytes of all that trains at once."""
    memory_whole: bool = True
    """Whether what is kept for the backward pass is in it, too."""
    at_once: int = 1
    """Trials at once; 1 of a device that is not here."""
    counted: str = "tokens"
    """What the data have so many of: tokens, or examples."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **self.cost.to_dict(),
            "seconds": float(f"{self.seconds:.3g}"),
            "seconds_compiling": float(f"{self.compiling:.3g}"),
            "device": self.device,
            "known": self.known,
            "memory_bytes": self.memory,
            "memory_whole": self.memory_whole,
            "trials_at_once": self.at_once,
        }

    @property
    def short_time(self) -> str:
        """The time alone, for people."""
        return f"about {duration(self.seconds)}"

    def __str__(self) -> str:
        if not self.cost.trials:
            return "cost: nothing is left to train"
        parts = [
            f"{self.at_once} at once" if self.at_once > 1 else "",
            f"{duration(self.compiling)} compiling" if self.compiling else "",
        ]
        with_these = "".join(f"; {part}" for part in parts if part)
        least = "" if self.memory_whole else "more than "
        each = " a trial" if self.cost.trials > 1 and self.at_once == 1 else ""
        return (
            f"cost: {self.cost.line(self.counted)}, {least}{self.memory / 1e9:.2g} GB{each}\n"
            f"time: {self.short_time} on {self.device}, {self.known}{with_these}"
        )


def say_estimate(found: Estimate) -> None:
    """What is said at the start, if there is anything to do."""
    if found.cost.steps:
        with suppress(OSError, ValueError):  # nobody reads it
            print(found, file=sys.stderr, flush=True)


def say_before_training(estimate: Callable[[], Estimate]) -> Estimate | None:
    """Say what a run takes. A mistake that is met here ends it before it has written anything; of
    many ranks all have to hear of it, so there it is left to the run."""
    if not is_follower():
        with suppress(CompletedpError) if world_size() > 1 else nullcontext():
            found = estimate()
            say_estimate(found)
            return found
    return None


def begins_on_cpu(config: TrainConfig) -> bool:
    """Whether a run is new and a CPU's. Who began one, or started ranks, knows what it takes."""
    is_cpu = choose_device(config.device).type == "cpu"
    return is_cpu and world_size() == 1 and not was_begun(config)


def estimate_trials(
    runner: Runner, recipe: Recipe, trials: Mapping[Scale, float], *, peak: float | None = None
) -> Estimate:
    """Of so many trials at each scale, in slots where the model allows them.

    `peak` is that of another device, in TFLOP/s.
    """
    parts, memory, most, whole = [], 0, 1, True
    for scale, count in trials.items():
        found = sample(runner.task, recipe, scale, runner.device)  # a model that fails ends here
        slots = runner.in_slots(scale)
        each = found.state + (found.kept or 0) * runner.task.data.examples(scale.batch)
        at_once = 1
        if slots and peak is None:
            at_once = runner.slots or slots_for(runner.device, each, round(count))
            at_once = max(1, min(at_once, round(count)))
        speed = speed_at(
            found,
            scale,
            runner.device,
            at_once=at_once,
            slots=slots,
            compile=slots and runner.compiles,
            peak=peak,
        )
        parts.append((_cost(runner.task, found, scale, count), speed))
        memory, most = max(memory, at_once * each), max(most, at_once)
        whole = whole and found.kept is not None
    return replace(_together(runner.task, parts, memory, most), memory_whole=whole)


def estimate_config(
    config: TrainConfig, task: Task, recipe: Recipe, *, peak: float | None = None
) -> Estimate:
    """Of what is left of the run that a config asks for."""
    target, ranks = config.target(recipe), world_size()
    config.examples(task.data.examples(target.batch), ranks)
    last = min(target.steps, config.stop_after or target.steps)
    return estimate_run(
        task,
        recipe,
        target,
        choose_device(config.device),
        steps=max(0, last - steps_done(config)),
        micro_batch=config.micro_batch,
        compile=config.compile,
        ranks=ranks,
        peak=peak,
    )


def estimate_run(
    task: Task,
    recipe: Recipe,
    scale: Scale,
    device: torch.device,
    *,
    steps: int,
    micro_batch: int | None = None,
    compile: bool = False,
    ranks: int = 1,
    peak: float | None = None,
) -> Estimate:
    """Of the steps that are left of one run, alone or on some ranks of one kind."""
    if not steps:
        return _together(task, [], 0, 1)
    found = sample(task, recipe, scale, device)
    speed = speed_at(
        found, scale, device, at_once=1, slots=False, compile=compile, peak=peak, ranks=ranks
    )
    whole = _cost(task, found, scale, 1)
    part = steps / max(1, scale.steps)
    left = replace(
        whole,
        steps=steps,
        tokens=steps * scale.batch,
        flop=whole.flop * part,
        at_peak=whole.at_peak * part,
        shapes=int(compile),
    )
    own = task.data.examples(scale.batch) // ranks
    memory = found.state + (found.kept or 0) * min(own, micro_batch or own)
    estimate = _together(task, [(left, speed)], memory, 1)
    return replace(estimate, memory_whole=found.kept is not None)


def sample(task: Task, recipe: Recipe, scale: Scale, device: torch.device) -> Sample:
    """A few examples trained for a moment; of what is too large for that, by arithmetic."""
    model = task.blank(scale)
    state = _state_bytes(sum(p.numel() for p in model.parameters()))
    unit = task.data.unit
    flop = flop_a_token(_weights(task, scale), scale, unit) * unit
    known = Sample(flop=flop, state=state)
    too_slow = device.type == "cpu" and 4 * FEW * flop > _MOST_FLOP
    if state > min(_MOST_STATE, free_memory(device) / 2) or too_slow:
        return known
    try:
        with warnings.catch_warnings(action="ignore"):  # they are given when it trains
            return _tried(task, recipe, scale, device, known)
    except CompletedpError:  # of the user's model or loss: training would fail in the same way
        raise
    except Exception as error:
        # An estimate is no reason to stop: what else fails, training says.
        if task.name == REFERENCE and not is_out_of_memory(error):
            raise
        return known


def _tried(task: Task, recipe: Recipe, scale: Scale, device: torch.device, known: Sample) -> Sample:
    dtype = choose_dtype("auto", device)
    model = task.model(scale, None if dtype == torch.float32 else dtype)
    planned = task.plan(recipe, scale, model, probe=False)
    give_memory(model, device)
    planned.initialise()
    loss, optimizer = task.batch_loss(model, dtype), planned.optimizer()
    examples = task.data.examples(scale.batch)
    few = min(FEW, examples)
    more = min(max(2 * FEW, int(_WORTH_A_TRY / max(1.0, known.flop))), examples)

    def step(count: int) -> tuple[float, int]:
        """Seconds of a step, and bytes that were kept for its backward pass."""
        batch = tuple(part[0] for part in sample_batch(task.data, count, device))
        began = time.monotonic()
        with kept_for_backward() as kept:
            total = loss(*batch).total
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.monotonic() - began, sum(kept.values())

    with FlopCounterMode(display=False) as counter:  # the first step is slow, and so is counting
        try:
            step(few)
        except CompletedpError as error:
            with suppress(CompletedpError):  # a loss of pairs, say, that takes whole batches alone
                step(examples)
                return known
            where = f"width {scale.width}, depth {scale.depth}"
            words = f" and {task.data.unit} tokens a sequence" if task.data.unit > 1 else ""
            raise CompletedpError(f"{error} (at {where}{words})") from None
    if task.data.unit == 1:  # an example of any size: only its products tell
        known = replace(known, flop=max(1.0, counter.get_total_flops() / few))
    (first, least), (second, most) = _quickest(step, few), _quickest(step, more)
    if few == more:
        return replace(known, kept=least // few, seconds=first / few)
    each = (second - first) / (more - few)
    if each <= 0:  # lost in the noise of so small a step
        each = second / more
    fixed = max(0.0, second - more * each)
    return replace(known, kept=(most - least) // (more - few), seconds=each, fixed=fixed)


def _quickest(step: Callable[[int], tuple[float, int]], count: int) -> tuple[float, int]:
    """The least time of a few steps, if they are quick: others on the machine make some slow."""
    found = [step(count)]
    while len(found) < 5 and sum(seconds for seconds, _ in found) < _LONG_ENOUGH:
        found.append(step(count))
    return min(found)


def speed_at(
    found: Sample,
    scale: Scale,
    device: torch.device,
    *,
    at_once: int,
    slots: bool,
    compile: bool,
    peak: float | None,
    ranks: int = 1,
) -> Speed:
    """How fast a device trains what was sampled."""
    if peak is None and device.type != "cuda":
        compiling = COMPILING["cpu"] if compile else 0.0
        name, known = device_name(device), "measured"
        if found.seconds is None:
            rate, known = _CPU_PART * products_a_second(device), "by its matrix products"
            each = 0.0
        else:
            rate, each = found.flop / found.seconds, found.fixed / at_once
        speed = Speed(
            device=name, flop_a_second=rate, each_step=each, compiling=compiling, known=known
        )
    else:
        here = peak or products_a_second(device) / _GPU_PRODUCTS / 1e12
        speed = gpu_speed(here, width=scale.width, depth=scale.depth, slots=slots)
        if peak is None:
            speed = replace(speed, device=f"{device_name(device)}, {here:,.0f} TFLOP/s")
        if not compile:
            speed = replace(speed, compiling=0.0)
    if ranks > 1:
        many = f"{ranks} ranks, each on {speed.device}"
        speed = replace(speed, device=many, flop_a_second=ranks * speed.flop_a_second)
    return speed


@lru_cache
def products_a_second(device: torch.device) -> float:
    """FLOP a second of large matrix products, tried for a moment."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    quickest = float("inf")
    for _ in range(4):
        began = time.monotonic()
        torch.mm(matrix, matrix)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        quickest = min(quickest, time.monotonic() - began)
    return 2 * size**3 / quickest


def _cost(task: Task, found: Sample, scale: Scale, trials: float) -> Cost:
    """Of training, and of the evaluation at the end, which has no backward pass."""
    examples = scale.steps * task.data.examples(scale.batch) + task.eval_examples / 3
    return cost_of(scale, found.flop * examples, trials)


def _together(
    task: Task, parts: Sequence[tuple[Cost, Speed]], memory: int, at_once: int
) -> Estimate:
    cost = sum((part for part, _ in parts), Cost())
    # The longest part says how it is known: they differ in their widths.
    longest = max(parts, key=lambda part: part[0].seconds(part[1]), default=None)
    return Estimate(
        cost=cost,
        seconds=sum(part.seconds(speed) for part, speed in parts),
        compiling=sum(part.compiling(speed) for part, speed in parts),
        device="" if longest is None else longest[1].device,
        known="" if longest is None else longest[1].known,
        memory=memory,
        at_once=at_once,
        counted=task.data.counted,
    )


def _state_bytes(parameters: int) -> int:
    """Weights, gradients, and what the optimizer that keeps most keeps, in float32."""
    return 4 * parameters * (2 + max(len(update.state) for update in UPDATES.values()))


def _weights(task: Task, scale: Scale) -> int:
    """Those that a token is multiplied by: an embedding is read."""
    tensors = classify(task.blank(scale), task.overrides)
    multiplied = (t for t in tensors if t.role.is_matrix and t.role != Role.INPUT_EMBEDDING)
    return sum(math.prod(t.shape) for t in multiplied)
