"""Whether a live optimizer still holds what was planned.

Schedulers that assign rates, loaded checkpoints and hand-made groups are how plans get lost. Hooks
that nobody attached again are another way, which it tells beside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from completedp.apply.multipliers import not_attached
from completedp.apply.optimise import attached_schedule
from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.common.checks import check_is
from completedp.theory.optimizers import ADAMW, LR, OPTIMIZERS

_TOLERANCE = 1e-6
"""Rates may be kept in float32."""
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class OptimizerCheck:
    """What was found; prints as text."""

    tensors: int
    differences: tuple[str, ...]
    cautions: tuple[str, ...] = ()
    """Of the model beside it: multipliers that are not attached, as before `plan.initialise()`, and
    tensors that were frozen."""

    @property
    def passed(self) -> bool:
        """Whether every tensor is there once, with its planned values."""
        return not self.differences

    def __str__(self) -> str:
        lines = [f"the optimizer holds the planned values of all {self.tensors} tensors"]
        if not self.passed:
            lines = [f"the optimizer differs from the plan {len(self.differences)} times:"]
            lines += _cut(self.differences)
        if self.cautions:
            lines += ["and the model beside it:", *_cut(self.cautions)]
        return "\n".join(lines)


def _cut(found: Sequence[str]) -> list[str]:
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return [f"  {line}" for line in (*found[:_SHOWN], *more)]


def check_optimizer(plan: PlanNumbers, *optimizers: Optimizer) -> OptimizerCheck:
    """Compare rates (those before a schedule) and all other values, tensor by tensor.

    A schedule may have taken the rates from their planned ones, but all by the same factor; one of
    `attach_schedule` by its own at its step.
    """
    for optimizer in optimizers:
        check_is("optimizer", optimizer, Optimizer, "a torch optimizer, such as plan.optimizer()")
    parameters = plan.map.parameters()
    frozen = (t.name for t in plan.tensors if not parameters[t.name].requires_grad)
    return OptimizerCheck(
        tensors=len(plan.tensors),
        differences=tuple(_differences(plan, optimizers)),
        cautions=(
            *not_attached(plan),
            *(f"{name} is frozen, and was planned to be trained" for name in frozen),
        ),
    )


def _differences(plan: PlanNumbers, optimizers: Sequence[Optimizer]) -> Iterator[str]:
    planned = {tensor.name: tensor for tensor in plan.tensors}
    names = {id(p): name for name, p in plan.map.parameters().items() if name in planned}
    seen: Counter[str] = Counter()
    rates: dict[str, tuple[float, float]] = {}
    own = ((each, group) for each in optimizers for group in each.param_groups)
    for number, (optimizer, group) in enumerate(own):
        kinds = {planned[n].optimizer for p in group["params"] if (n := names.get(id(p)))}
        yield from _of_kind(optimizer, group, number, kinds)
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name is not None:
                seen[name] += 1
                rates[name] = float(group["lr"]), float(group.get("initial_lr", group["lr"]))
                yield from _of_tensor(planned[name], group)
            elif parameter.requires_grad:
                yield f"group {number} has a tensor {list(parameter.shape)} that is not planned"
    for name in planned:
        if seen[name] != 1:
            yield f"{name} is in {seen[name] or 'no'} groups"
    yield from _of_schedule(rates)
    for optimizer in optimizers:
        yield from _of_attached(optimizer)


def _of_attached(optimizer: Optimizer) -> Iterator[str]:
    """The first group whose rate is not what the attached schedule makes of its planned one."""
    if (scheduler := attached_schedule(optimizer)) is None:
        return
    for number, (group, lr) in enumerate(
        zip(optimizer.param_groups, map(float, scheduler.get_lr()), strict=True)
    ):
        if not math.isclose(now := float(group["lr"]), lr, rel_tol=_TOLERANCE):
            yield (
                f"group {number} has lr {now:.6g} now, and the schedule attached to it gives "
                f"{lr:.6g} at its step {scheduler.last_epoch}: load the states of both, and assign "
                "no rates beside it"
            )
            return


def _of_schedule(rates: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Rates now, beside those before a schedule: it multiplies all alike, by at most its peak 1."""
    along: dict[str, float] = {}
    for name, (now, initial) in rates.items():
        if not math.isfinite(now) or now < 0:
            yield f"{name}: lr is {now:.6g} now, which no schedule makes of a planned one"
        elif now > initial * (1 + _TOLERANCE):
            yield (
                f"{name}: lr is {now:.6g} now, above its planned {initial:.6g}: a schedule only "
                "lowers it (cdp.attach_schedule)"
            )
        if initial and math.isfinite(now / initial):
            along[name] = now / initial
    if not along:
        return
    low, high = min(along, key=lambda n: along[n]), max(along, key=lambda n: along[n])
    if not math.isclose(along[low], along[high], rel_tol=_TOLERANCE):
        yield (
            f"the schedule has taken {low} to {along[low]:.6g} of its planned lr and {high} "
            f"to {along[high]:.6g}: it should multiply all alike (cdp.attach_schedule)"
        )


def _of_kind(
    optimizer: Optimizer, group: dict[str, Any], number: int, planned: set[str]
) -> Iterator[str]:
    """What another optimizer does with the same values; of one that torch has not nobody knows."""
    while isinstance(inner := getattr(optimizer, "optim", None), Optimizer):  # one in another
        optimizer = inner
    kind = type(optimizer)
    decoupled = group.get("decoupled_weight_decay") or not group.get("weight_decay")
    is_adam = isinstance(optimizer, torch.optim.Adam)
    is_adamw = isinstance(optimizer, torch.optim.AdamW) or (is_adam and decoupled)
    is_known = kind.__module__.startswith("torch.optim") or is_adam
    if planned == {ADAMW.name} and is_known and not is_adamw:
        yield f"group {number} is stepped by {kind.__name__}, and was planned for AdamW"
    for option in ("maximize", "amsgrad"):
        if group.get(option):
            yield f"group {number} has {option}=True, which was not planned for"


def _of_tensor(tensor: TensorPlan, group: dict[str, Any]) -> Iterator[str]:
    optimizer = OPTIMIZERS[tensor.optimizer]
    found = optimizer.read({**_padded(group, tensor), LR: group.get("initial_lr", group[LR])})
    expected = optimizer.read(tensor.torch_values)
    for name, value in found.items():
        if value is None:
            yield f"{tensor.name}: the optimizer has no {name}, planned {expected[name]:.6g}"
        elif not math.isclose(float(value), expected[name], rel_tol=_TOLERANCE):
            yield f"{tensor.name}: {name} is {float(value):.6g}, planned {expected[name]:.6g}"


def _padded(group: dict[str, Any], tensor: TensorPlan) -> dict[str, Any]:
    """The group, with None for each of several values under one key that it lacks."""
    padded = dict(group)
    for key, planned in tensor.torch_values.items():
        if isinstance(planned, tuple):
            given = group.get(key)
            own = tuple(given) if isinstance(given, Sequence) else ()
            padded[key] = own + (None,) * (len(planned) - len(own))
    return padded
