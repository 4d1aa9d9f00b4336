"""Plain torch optimizers from a plan: merged named groups, AdamW, schedules that keep ratios,
and checkpoints that bring back moments and never planned values."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from completedp.apply.stepper import Together, make_optimizer
from completedp.apply.tensors import PlanNumbers
from completedp.common.checks import check_whole
from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import ADAMW, DEFAULT, LR
from completedp.theory.schedule import Schedule, check_schedule

if TYPE_CHECKING:
    from completedp.apply.adamw import Implementation

_ATTACHED: WeakKeyDictionary[Optimizer, ref[PlannedLR]] = WeakKeyDictionary()
"""The last schedule of each optimizer, for as long as there is one."""


def param_groups(plan: PlanNumbers, optimizer: str | None = None) -> list[dict[str, Any]]:
    """Tensors with equal values share a group, in the order in which the values first appear.

    Those of one optimizer, which may be left out where it trains all; other groups than AdamW's say
    whose they are.
    """
    if optimizer is None and len(plan.optimizers) > 1:
        names = " and ".join(plan.optimizers)
        raise CompletedpError(
            f"{names} train parts of this model: take the groups of one at a time, "
            f"plan.param_groups({plan.optimizers[0]!r})"
        )
    parameters = plan.map.parameters()
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for tensor in plan.tensors:
        if optimizer not in (None, tensor.optimizer):
            continue
        values = tensor.torch_values
        group = groups.setdefault(
            (tensor.optimizer, *values.values()),
            {"params": [], "param_names": [], LR: tensor.lr, "initial_lr": tensor.lr, **values}
            | ({} if tensor.optimizer == DEFAULT else {"optimizer": tensor.optimizer}),
        )
        group["params"].append(parameters[tensor.name])
        group["param_names"].append(tensor.name)
    if optimizer is not None and not groups:
        raise CompletedpError(
            f"{optimizer!r} trains no tensor of this plan: {', '.join(plan.optimizers)} does"
        )
    return list(groups.values())


def adamw(
    plan: PlanNumbers, implementation: Implementation = "auto", **options: Any
) -> torch.optim.AdamW:
    """AdamW on the plan's groups: `completedp.AdamW` where that is as good as torch's, or better.

    Options that only torch's has are answered with torch's. Either loads the other's state.
    """
    for tensor in plan.tensors:
        if tensor.optimizer != ADAMW.name:
            raise CompletedpError(
                f"{tensor.name} is trained by {tensor.optimizer}, not AdamW: use plan.optimizer(), "
                f"or plan.param_groups({tensor.optimizer!r}) for an optimizer of your own"
            )
    for knob in ADAMW.knobs:
        if knob.key in options:
            raise CompletedpError(f"{knob.key} comes from the plan: set it in the recipe instead")
    _refuse_meta(plan, "adamw")
    from completedp.apply.adamw import make_adamw  # which imports Triton

    return make_adamw(param_groups(plan), implementation, **options)


def optimizer(plan: PlanNumbers) -> Optimizer:
    """What trains the plan's tensors: AdamW, or all their optimizers as one."""
    _refuse_meta(plan, "optimizer")
    parts = [make_optimizer(name, param_groups(plan, name)) for name in plan.optimizers]
    return parts[0] if len(parts) == 1 else Together(parts)


def _refuse_meta(plan: PlanNumbers, before: str) -> None:
    if any(p.is_meta for p in plan.map.parameters().values()):
        raise CompletedpError(
            "the model is on the meta device, and to_empty makes new parameters: call it, and "
            f"plan.initialise, before plan.{before}"
        )


class PlannedLR(LambdaLR):
    """Every group's `initial_lr` times one multiplier. Its state is the step alone: torch's keeps
    the rates that it began with, and would bring them back over those of another plan."""

    def get_lr(self) -> list[Any]:
        """The rates at this step, of the groups as they are now."""
        multiplier = self.lr_lambdas[0](self.last_epoch)
        return [group["initial_lr"] * multiplier for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """How many steps were taken."""
        return {"last_epoch": self.last_epoch, "_step_count": self._step_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a saved step, of any LambdaLR, and set the planned rates there."""
        for key in self.state_dict():
            if key not in state_dict:
                raise CompletedpError(f"this is no scheduler's state: it lacks {key}")
            setattr(self, key, state_dict[key])
        rates = self.get_lr()
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            _set_rate(group, lr)
        self._last_lr = rates


def attach_schedule(optimizer: Optimizer, schedule: Schedule, steps: int) -> LambdaLR:
    """Multiply every group's planned lr by the schedule: the ratios between groups stay.

    Call the result's `step()` after each optimizer step. Its state is the step alone: one that is
    loaded goes on with the rates that are planned now. Schedulers that assign rates, such as
    CosineAnnealingLR with an eta_min or OneCycleLR, would erase the plan's ratios. `steps` counts
    optimizer steps.

    >>> import completedp as cdp
    >>> optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> scheduler = attach_schedule(optimizer, cdp.Schedule(warmup=0.5), steps=4)
    >>> optimizer.param_groups[0]["lr"]  # half way up in the first of two steps of warm-up
    0.25
    """
    check_schedule(schedule)
    steps = check_whole("steps", steps)
    for group in optimizer.param_groups:
        _set_rate(group, group.setdefault("initial_lr", float(group["lr"])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch cannot tell a fresh start
        scheduler = PlannedLR(optimizer, lambda step: schedule(min(step, steps - 1), steps))
    _ATTACHED[optimizer] = ref(scheduler)
    return scheduler


def attached_schedule(optimizer: Optimizer) -> PlannedLR | None:
    """The schedule that was attached to an optimizer, while somebody has it."""
    found = _ATTACHED.get(optimizer)
    return None if found is None else found()


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Like `optimizer.load_state_dict`, but the groups keep their planned values.

    torch's own would overwrite lr, betas, eps and weight decay with the checkpoint's. Here moments
    come back, and how far a schedule had taken the rates from their planned ones. Tensors are
    matched by name where the state has names, so the groups may have been cut differently.

    >>> old = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> new = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> load_optimizer_state(new, old.state_dict())
    >>> new.param_groups[0]["lr"]
    0.1
    """
    if not {"state", "param_groups"} <= state.keys():
        raise CompletedpError("this is no optimizer's state: it lacks state and param_groups")
    planned = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    _match_groups(optimizer, state)
    optimizer.load_state_dict(_regroup(optimizer, state))
    for group, values in zip(optimizer.param_groups, planned, strict=True):
        group.update(values)
    _go_on_with_schedule(optimizer, state["param_groups"])


def _go_on_with_schedule(optimizer: Optimizer, saved: list[dict[str, Any]]) -> None:
    """Rates as far from the planned ones as the saved were, where all were equally far."""
    rates = {g["initial_lr"]: float(g["lr"]) for g in saved if g.get("initial_lr")}
    along = [lr / planned for planned, lr in rates.items()]
    if not along or max(along) - min(along) > 1e-6 * max(along):
        return
    for group in optimizer.param_groups:
        if (planned := group.get("initial_lr")) is not None:
            same = rates.get(planned)  # to the bit
            _set_rate(group, planned * along[0] if same is None else same)


def _names(groups: list[dict[str, Any]]) -> list[str] | None:
    if not all("param_names" in group for group in groups):
        return None
    return [name for group in groups for name in group["param_names"]]


def _match_groups(optimizer: Optimizer, state: dict[str, Any]) -> None:
    ours, theirs = _names(optimizer.param_groups), _names(state["param_groups"])
    if ours is None or theirs is None:
        counts = [len(g["params"]) for g in optimizer.param_groups]
        if counts != [len(g["params"]) for g in state["param_groups"]]:
            raise CompletedpError("the optimizer state has other groups and no tensor names")
    elif set(ours) != set(theirs):
        odd = sorted(set(ours) ^ set(theirs))[0]
        raise CompletedpError(f"the optimizer state is of another model: {odd} is in one only")


def _regroup(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state with its tensors numbered in this optimizer's order and groups."""
    ours, theirs = _names(optimizer.param_groups), _names(state["param_groups"])
    if ours is None or theirs is None:
        return state
    old_ids = [i for group in state["param_groups"] for i in group["params"]]
    by_name = dict(zip(theirs, old_ids, strict=True))
    groups, moments, new_id = [], {}, 0
    for group in optimizer.param_groups:
        numbered = []
        for name in group["param_names"]:
            if by_name[name] in state["state"]:
                moments[new_id] = state["state"][by_name[name]]
            numbered.append(new_id)
            new_id += 1
        groups.append({**group, "params": numbered})
    _check_shapes(optimizer, moments)
    return {"state": moments, "param_groups": groups}


def _check_shapes(optimizer: Optimizer, moments: dict[int, dict[str, Any]]) -> None:
    flat = [
        (name, parameter)
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    ]
    for index, (name, parameter) in enumerate(flat):
        for key, value in moments.get(index, {}).items():
            if key != "step" and isinstance(value, torch.Tensor) and value.shape != parameter.shape:
                raise CompletedpError(
                    f"the optimizer state is of another model: {name} has shape "
                    f"{list(value.shape)} there and {list(parameter.shape)} here"
                )


def set_learning_rates(optimizer: Optimizer, multiplier: float) -> None:
    """One step of a schedule by hand: every group's lr is its planned lr times the multiplier."""
    for group in optimizer.param_groups:
        _set_rate(group, group["initial_lr"] * multiplier)


def _set_rate(group: dict[str, Any], lr: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
