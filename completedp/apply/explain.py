"""Why a tensor has the values it has, in words and factors."""

from __future__ import annotations

import math
from typing import Any

from completedp.apply.multipliers import FOLDED
from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.theory.optimizers import DEFAULT
from completedp.theory.rules import AXES

_DECIDED = {
    "override": "by an override",
    "structure": "by the model's structure",
    "shape": "by its shape",
    "name": "by its name",
}
_CARRIED = {
    "buffer": "by the model's buffer",
    "setting": "by the model's own scale of its logits",
    "fold": "folded into its start, lr, decay and eps",
    "hook": "by a forward hook",
}


def explain(plan: PlanNumbers, name: str, hyperparameter: str | None = None) -> str:
    """What a tensor is and where each of its values comes from; or one of them, in a line.

    The name of a module stands for all tensors in it.
    """
    return "\n".join(_explained(plan, tensor, hyperparameter) for tensor in plan.within(name))


def _explained(plan: PlanNumbers, tensor: TensorPlan, hyperparameter: str | None) -> str:
    if hyperparameter == "tau":
        return f"{tensor.name}: {_tau(tensor)}"
    if hyperparameter is not None:
        return _line(plan, tensor, hyperparameter)
    lines = [_line(plan, tensor, each).removeprefix(tensor.name + ": ") for each in tensor.values]
    lines.append(_tau(tensor))
    return "\n".join([_what(plan, tensor), _answer(tensor), *(f"  {line}" for line in lines)])


def _answer(tensor: TensorPlan) -> str:
    """Its values in a sentence, and why they are not the base's."""
    found = [f"{name} {_number(value)}" for name, value in tensor.torch_values.items()]
    start = f"init_std {tensor.init_std:.3g}" if tensor.init_std is not None else ""
    moved = [_moved(name, tensor) for name in ("lr", "weight_decay", "eps", "init_std")]
    why = ", ".join(filter(None, moved))
    return (
        f"  use {', '.join(filter(None, [*found, start]))}\n"
        f"  {f'against the base {why}' if why else 'all as at the base'}"
    )


def _moved(name: str, tensor: TensorPlan) -> str:
    """By how much a value is another than at the base, and why: axes, and what is folded in."""
    if name not in tensor.values:
        return ""
    value = tensor.values[name]
    terms = [term for term, _ in value.trace]
    why = [axis for axis in AXES if any(term.split()[0] == axis for term in terms)]
    why += [FOLDED] * (FOLDED in terms)
    if value.target == value.base or not value.base:
        return ""
    by = f" (for {', '.join(why)})" if why else ""
    return f"{name} x{value.target / value.base:.3g}{by}"


def _number(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_number, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _what(plan: PlanNumbers, tensor: TensorPlan) -> str:
    info = tensor.info
    where = "" if info.layer is None else f", in block {info.layer} of {plan.target.depth}"
    start = "" if tensor.init_value is None else f"; starts at {tensor.init_value:g}"
    known = " (the recipe knows its role alone)" if tensor.borrowed else ""
    by = "" if tensor.optimizer == DEFAULT else f"; trained by {tensor.optimizer}"
    role = f"{'an' if info.role[0] in 'aeiou' else 'a'} {info.role}"
    return (
        f"{tensor.name} is {info.type}, {role}{known}, {_DECIDED[info.how]}{where}; "
        f"width x{tensor.width_ratio:g}{start}{by}"
    )


def _tau(tensor: TensorPlan) -> str:
    """The timescale of its decay, which is no value of its own."""
    if tensor.tau == math.inf:
        return "tau = infinite: no decay"
    lr = "" if tensor.independent_decay else f"{tensor.lr:.6g} (lr) x "
    return (
        f"tau = 1 / ({lr}{tensor.weight_decay:.6g} (weight_decay) x {tensor.steps:,} (steps)) = "
        f"{tensor.tau:.4g} run lengths"
    )


def _line(plan: PlanNumbers, tensor: TensorPlan, hyperparameter: str) -> str:
    line = tensor.explain(hyperparameter)
    if hyperparameter != "multiplier":
        return line
    branch = plan.map.ends(tensor.info)
    return f"{line}, {'for it ends no branch' if branch is None else _CARRIED[plan.ways[branch]]}"
