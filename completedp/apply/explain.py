"""Why a tensor has the values it has, in words and factors."""

from __future__ import annotations

from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.common.errors import CompletedpError
from completedp.theory.value import Value

_DECIDED = {
    "override": "by an override",
    "structure": "by the model's structure",
    "shape": "by its shape",
    "name": "by its name",
}


def explain(plan: PlanNumbers, name: str, hyperparameter: str | None = None) -> str:
    """What a tensor is and where each of its values comes from; or one of them, in a line."""
    tensor = plan[name]
    if hyperparameter is None:
        lines = [_value_line(plan, tensor, each) for each in tensor.values]
        return "\n".join([_what(plan, tensor), *lines])
    wanted = hyperparameter.removeprefix("one_minus_")
    if wanted not in tensor.values:
        raise CompletedpError(
            f"{tensor.name} has no {hyperparameter!r} to explain: "
            f"choose from {', '.join(tensor.values)}"
        )
    return f"{tensor.name}: {_value_line(plan, tensor, wanted).strip()}"


def _what(plan: PlanNumbers, tensor: TensorPlan) -> str:
    info = tensor.info
    where = "" if info.layer is None else f", in block {info.layer} of {plan.target.depth}"
    start = "" if tensor.init_value is None else f"; starts at {tensor.init_value:g}"
    known = " (the recipe knows its role alone)" if tensor.borrowed else ""
    return (
        f"{tensor.name} is {info.type}, a {info.role}{known}, {_DECIDED[info.how]}{where}; "
        f"width x{tensor.width_ratio:g}{start}"
    )


def _value_line(plan: PlanNumbers, tensor: TensorPlan, name: str) -> str:
    value = tensor.values[name]
    if name == "multiplier":
        return f"  {_multiplier(plan, tensor, value)}"
    what = f"1 - {name}" if name.startswith("beta") else name
    target = 1.0 - value.target if name.startswith("beta") else value.target
    beta = f", so {name} = {value.target:.6g}" if name.startswith("beta") else ""
    left_out = ", its role being left out" if ("no_decay", 0.0) in value.trace else ""
    at_base = f"{value.base:.6g} at base{left_out}"
    return f"  {what} = {value.explain()} = {target:.6g}{beta} ({at_base})"


def _multiplier(plan: PlanNumbers, tensor: TensorPlan, value: Value) -> str:
    branch = tensor.info.ends
    if branch is None:
        return "multiplier = 1: it ends no branch"
    carried = {
        "buffer": "by the model's buffer",
        "fold": "folded into the values above",
        "hook": "by a forward hook",
    }[plan.ways[branch]]
    if plan.ways[branch] == "fold":
        return f"multiplier = 1, {carried}"
    return f"multiplier = {value.explain() or '1'} = {value.target:.6g}, {carried}"
