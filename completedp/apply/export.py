"""A plan for those who only want its numbers: as JSON, or as Python that needs no completedp."""

from __future__ import annotations

import json
from pprint import pformat
from typing import Any, Literal

from torch import nn

from completedp.apply.multipliers import hooked, settings
from completedp.apply.optimise import param_groups
from completedp.apply.structure import unwrapped
from completedp.apply.tensors import PlanNumbers
from completedp.common.errors import CompletedpError
from completedp.common.warn import warn
from completedp.theory.optimizers import ADAMW
from completedp.theory.schedule import Schedule

ExportFormat = Literal["json", "hf", "torchtitan"]

_COMMON = '''\
"""{title}

Written by completedp {version} for {target}.
{usage}
"""

import math
import re

import torch

# Tensors that share their values, by name.
GROUPS = {groups}

# What every tensor starts at: the standard deviation of a normal draw, or a constant.
INITIAL = {initial}
# Rows of embeddings that stand for padding: they start, and stay, at zero.
PADDING = {padding}

_WRAPPERS = re.compile(r"(?<![^.])(?:{wrappers})\\.")


def _named(model):
    """The model's parameters, by names without what wrappers add to them."""
    return {{_WRAPPERS.sub("", name): p for name, p in model.named_parameters()}}


def param_groups(model):
    """Groups for torch.optim.AdamW; of a part of the model, those of its tensors."""
    named = _named(model)
    known = {{name for group in GROUPS for name in group["names"]}}
    strange = sorted(n for n, p in named.items() if p.requires_grad and n not in known)
    if strange:
        raise ValueError(f"these numbers are of another model: it has no {{strange[0]}}")
    groups = []
    for group in GROUPS:
        names = [name for name in group["names"] if name in named]
        values = {{key: value for key, value in group.items() if key != "names"}}
        if names:
            groups.append({{"params": [named[name] for name in names], **values}})
    return groups


@torch.no_grad()
def initialise(model):
    """Draw every parameter, in place; call torch.manual_seed first."""
    for name, parameter in _named(model).items():
        if parameter.requires_grad:
            std, value = INITIAL[name]
            parameter.normal_(0.0, std) if std is not None else parameter.fill_(value)
            if name in PADDING:
                parameter[PADDING[name]] = 0.0
'''
_HF = '''

# The schedule, whose lengths are fractions of the steps.
SCHEDULE = {schedule}
STEPS = {steps}
# For TrainingArguments: as many steps as were planned, and no clipping, which would change the
# gradients that eps was planned for. TrainingArguments would clip at 1.
ARGUMENTS = {{"max_steps": STEPS, "max_grad_norm": 0.0}}


def optimizer(model):
    """AdamW on these groups."""
    return torch.optim.AdamW(param_groups(model))


def lr_multiplier(step):
    """What every planned learning rate is multiplied by in update number `step`, from 0."""
    s, step = SCHEDULE, min(step, STEPS - 1)
    warmup = round(s["warmup"] * STEPS)
    rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if s["kind"] == "cosine":
        along = max(0, step - warmup) / max(1, STEPS - warmup)
        fall = (0.5 * (1 + math.cos(math.pi * along))) ** s.get("power", 1.0)
        level = s["final"] + (1 - s["final"]) * fall
    elif s["kind"] == "wsd":
        left = 1 - (step if step >= warmup else 0) / STEPS
        fall = (left / s["decay"]) ** s.get("power", 1.0) if left < s["decay"] else 1.0
        level = s["final"] + (1 - s["final"]) * fall
    elif s["kind"] == "piecewise":
        along = (step if step >= warmup else 0) / STEPS
        level = s["levels"][sum(along >= boundary for boundary in s["boundaries"])]
    else:
        level = 1.0
    return level * rising


def scheduler(optimizer):
    """The schedule, as the Trainer takes it: it multiplies every group's own rate."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lr_multiplier)
'''
_TORCHTITAN = '''

STEPS = {steps}
# torchtitan's form of the schedule. None: it has none such, and the config's own stays.
SCHEDULE = {titan}


def pattern(names):
    """A regular expression that matches these tensors and no other, also in wrapped modules."""
    inside = r"(?:(?:{wrappers})\\.)*"
    paths = ((r"\\." + inside).join(map(re.escape, name.split("."))) for name in names)
    return f"^{{inside}}(?:{{'|'.join(paths)}})$"


def configure(config):
    """Give a torchtitan Trainer.Config this plan's groups, schedule and steps, and no clipping,
    which would change the gradients that eps was planned for.

    torchtitan raises where a pattern matches nothing: the model must be the one that was planned,
    in one part. With pipeline parallelism every part would need groups of its own.
    """
    from torchtitan.components.optimizer import (
        LRSchedulersContainer,
        OptimizersContainer,
        ParamGroupConfig,
    )

    config.optimizer = OptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(
                pattern=pattern(group["names"]),
                optimizer_name="AdamW",
                optimizer_kwargs={{key: x for key, x in group.items() if key != "names"}},
            )
            for group in GROUPS
        ],
        implementation=config.optimizer.implementation,
    )
    if SCHEDULE is not None:
        config.lr_scheduler = LRSchedulersContainer.Config(total_steps=STEPS, **SCHEDULE)
    config.training.steps = STEPS
    config.training.max_norm = math.inf
    return config
'''
_USAGE = {
    "hf": """Use: initialise(model); adamw = optimizer(model)
     Trainer(model, TrainingArguments(..., **ARGUMENTS), optimizers=(adamw, scheduler(adamw)))""",
    "torchtitan": """Use: configure(config) on your Trainer.Config (torchtitan 0.3), and
     initialise(model) after the model's own init_weights.""",
}


def export(plan: PlanNumbers, form: ExportFormat) -> str:
    """The text of the file."""
    if form != "json" and plan.optimizers != (ADAMW.name,):  # these files make a torch AdamW
        raise CompletedpError(
            f"{' and '.join(plan.optimizers)} train this model, and a {form} file is for AdamW "
            "alone: export json, which says whose each group is"
        )
    left_out = ("params", "param_names", "initial_lr")
    groups = [
        {"names": group["param_names"], **{k: v for k, v in group.items() if k not in left_out}}
        for name in plan.optimizers
        for group in param_groups(plan, name)
    ]
    initial = {t.name: (t.init_std, t.init_value) for t in plan.tensors}
    padding = {t.name: t.info.padding for t in plan.tensors if t.info.padding is not None}
    if form == "json":
        numbers: dict[str, Any] = {
            "target": plan.target.to_dict(),
            "steps": plan.target.steps,
            "schedule": {"power": plan.recipe.schedule.power, **plan.recipe.schedule.to_dict()},
            "groups": groups,
            "initial": {n: {"std": std, "value": value} for n, (std, value) in initial.items()},
            "padding": padding,
            # What the values above leave to the forward pass; nothing where all is folded.
            "hooks": hooked(plan),
            "buffers": _left(plan),
            "settings": settings(plan),
        }
        return json.dumps(numbers, indent=1) + "\n"
    if left_to_forward(plan):
        raise CompletedpError(
            "this plan leaves multipliers to buffers, hooks or the model's config, which groups "
            "cannot carry: plan with --multipliers fold (multipliers='fold'), or where that is "
            "refused export json, which lists them"
        )
    from completedp import __version__
    from completedp.apply.names import WRAPPERS

    if form == "torchtitan" and _is_hugging_face(plan.model):
        warn(
            f"the file has the names of {type(unwrapped(plan.model)).__name__}'s tensors, which "
            "torchtitan's own models do not have, and torchtitan raises where a pattern matches "
            "nothing: plan the model that it will train (--model module:function)",
        )
    schedule, steps = plan.recipe.schedule, plan.target.steps
    titan = _titan_schedule(schedule, steps)
    if form == "torchtitan" and titan is None:
        warn(
            f"torchtitan has no schedule {schedule.kind} with power {schedule.power:.3g}: the file "
            "leaves config.lr_scheduler as it is, so the run will differ from the plan; the "
            "formula is lr_multiplier in an hf file",
        )
    return (_COMMON + {"hf": _HF, "torchtitan": _TORCHTITAN}[form]).format(
        title=f"Hyperparameters for {type(plan.model).__name__}, tensor by tensor.",
        version=__version__,
        target=plan.target,
        usage=_USAGE[form],
        groups=pformat(groups, width=100, sort_dicts=False),
        initial=pformat(initial, width=100, sort_dicts=False),
        padding=pformat(padding, width=100, sort_dicts=False),
        wrappers="|".join(WRAPPERS),
        schedule=pformat(schedule.to_dict(), width=100, sort_dicts=False),
        steps=steps,
        titan=pformat(titan, width=100, sort_dicts=False),
    )


def left_to_forward(plan: PlanNumbers) -> list[str]:
    """The keys of an export that a forward pass has to apply, because the groups do not."""
    left = {"hooks": hooked(plan), "buffers": _left(plan)}
    names = [name for name, factors in left.items() if factors]
    return [*names, "settings"] if "setting" in plan.ways.values() else names


def _is_hugging_face(model: nn.Module) -> bool:
    classes = type(unwrapped(model)).__mro__
    return any(kind.__module__.partition(".")[0] == "transformers" for kind in classes)


def _titan_schedule(schedule: Schedule, steps: int) -> dict[str, Any] | None:
    """A schedule in torchtitan's words: steps of warm-up, and a decay at the end of the run."""
    if schedule.power != 1.0:
        return None
    warmup = {"warmup_steps": round(schedule.warmup * steps)}
    if schedule.kind == "cosine":
        return warmup | {"decay_type": "cosine", "min_lr_factor": schedule.final}
    if schedule.kind == "wsd":
        decay = {"decay_ratio": schedule.decay, "decay_type": "linear"}
        return warmup | decay | {"min_lr_factor": schedule.final}
    return warmup | {"decay_ratio": 0.0} if schedule.kind == "constant" else None


def _left(plan: PlanNumbers) -> dict[str, Any]:
    """Buffers that are not 1."""
    buffers = plan.buffers
    residual, output = buffers["residual_multipliers"], buffers["output_multiplier"]
    found = {}
    if any(x != 1.0 for pair in residual for x in pair):
        found["residual_multipliers"] = residual
    if output != 1.0:
        found["output_multiplier"] = output
    return found
