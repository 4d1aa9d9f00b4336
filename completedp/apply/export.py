"""A plan for those who only want its numbers: as JSON, or as Python that needs torch alone."""

from __future__ import annotations

import json
from pprint import pformat
from typing import Any, Literal

from completedp.apply.multipliers import hooked
from completedp.apply.optimise import param_groups
from completedp.apply.tensors import PlanNumbers
from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import ADAMW

ExportFormat = Literal["json", "hf", "torchtitan"]

_COMMON = '''\
"""{title}

Written by completedp {version} for {target}.
{usage}
"""

import re

import torch

# Tensors that share their values, by name.
GROUPS = {groups}

# What every tensor starts at: the standard deviation of a normal draw, or a constant.
INITIAL = {initial}

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
'''
_HF = '''

def optimizer(model):
    """AdamW on these groups."""
    return torch.optim.AdamW(param_groups(model))
'''
_TORCHTITAN = '''

def build_optimizers(model_parts, optimizer_config, parallel_dims, ft_manager=None):
    """What a TrainSpec takes as build_optimizers_fn; the config's own values are not used."""
    from torchtitan.components.optimizer import OptimizersContainer

    class PlannedOptimizers(OptimizersContainer):
        def __init__(self):
            self.model_parts = model_parts
            self.optimizers = [torch.optim.AdamW(param_groups(m)) for m in model_parts]
            self._validate_length(len(model_parts))
            every = [p for m in model_parts for p in m.parameters() if p.requires_grad]
            self._post_init(every, {"lr": optimizer_config.lr})

    return PlannedOptimizers()
'''
_USAGE = {
    "hf": "Use: initialise(model); Trainer(model, args, optimizers=(optimizer(model), None), ...)",
    "torchtitan": "Use: initialise(model), and build_optimizers in place of torchtitan's own.",
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
    if form == "json":
        numbers: dict[str, Any] = {
            "target": plan.target.to_dict(),
            "groups": groups,
            "initial": {n: {"std": std, "value": value} for n, (std, value) in initial.items()},
            # What the values above leave to the forward pass; nothing where all is folded.
            "hooks": hooked(plan),
            "buffers": _left(plan),
        }
        return json.dumps(numbers, indent=1) + "\n"
    if hooked(plan) or _left(plan):
        raise CompletedpError(
            "this plan leaves multipliers to buffers or hooks, which groups cannot carry: where "
            "branches end in linear layers plan with multipliers=fold, elsewhere export json, "
            "which lists them"
        )
    from completedp import __version__
    from completedp.apply.names import WRAPPERS

    text = _COMMON.format(
        title=f"Hyperparameters for {type(plan.model).__name__}, tensor by tensor.",
        version=__version__,
        target=plan.target,
        usage=_USAGE[form],
        groups=pformat(groups, width=100, sort_dicts=False),
        initial=pformat(initial, width=100, sort_dicts=False),
        wrappers="|".join(WRAPPERS),
    )
    return text + {"hf": _HF, "torchtitan": _TORCHTITAN}[form]


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
