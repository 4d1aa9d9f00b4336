"""A plan as a table for people: equal layers folded into one row, base -> target values."""

from __future__ import annotations

import io
import re
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.theory.roles import BRANCHES


def render(plan: PlanNumbers, width: int = 180) -> str:
    """The plan as text, with lines no longer than `width`."""
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    rules = plan.recipe.rules
    console.print(f"{rules.parameterisation}, alpha {rules.alpha:g}", highlight=False)
    console.print(f"  base    {plan.recipe.base}", highlight=False)
    console.print(f"  target  {plan.target}: {plan.target.steps:,} steps", highlight=False)
    ratios = plan.ratios
    console.print(
        f"  ratios  width x{ratios.width:g}, depth x{ratios.depth:g}, batch x{ratios.batch:g}, "
        f"tokens x{ratios.tokens:g}, r {ratios.r:g}; residual branches {_residual(plan)}",
        highlight=False,
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("tensor", "role", "shape"):
        table.add_column(name, no_wrap=True)
    for name in ("init std", "lr", "weight decay", "eps", "betas", "multiplier"):
        table.add_column(name, justify="right", no_wrap=True)
    for rows in _folded(plan.tensors):
        table.add_row(*_row(rows))
    console.print(table, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _folded(tensors: list[TensorPlan]) -> list[list[TensorPlan]]:
    """Runs of layers whose tensors of one type have equal values, in the order of the model."""
    order: dict[str, int] = {}
    for tensor in tensors:
        order.setdefault(tensor.info.type, len(order))
    placed = sorted(tensors, key=lambda t: (order[t.info.type], t.info.layer or 0))
    return [list(run) for _, run in groupby(placed, key=lambda t: (t.info.type, _values(t)))]


def _values(tensor: TensorPlan) -> tuple[object, ...]:
    return (
        tensor.info.shape,
        tensor.init_std,
        tensor.lr,
        tensor.weight_decay,
        tensor.eps,
        tensor.betas,
        tensor.multiplier,
    )


def _row(rows: list[TensorPlan]) -> list[str]:
    tensor = rows[0]
    name = tensor.name
    if len(rows) > 1:
        layers = [re.search(r"\.(\d+)\.", t.name) for t in rows]
        first, last = layers[0], layers[-1]
        if first and last:
            name = name.replace(f".{first[1]}.", f".{first[1]}-{last[1]}.", 1)
    std = _change(tensor.base.get("init_std"), tensor.init_std)
    return [
        name,
        f"{tensor.info.role}{' ~' if tensor.borrowed else ''}",
        "x".join(map(str, tensor.info.shape)),
        f"= {tensor.init_value:g}" if tensor.init_std is None else std,
        _change(tensor.base["lr"], tensor.lr),
        _change(tensor.base["weight_decay"], tensor.weight_decay),
        _change(tensor.base["eps"], tensor.eps),
        f"{tensor.beta1:.4g} {tensor.beta2:.4g}",
        f"{tensor.multiplier:.4g}",
    ]


def _change(base: float | None, target: float | None) -> str:
    """base -> target, or the one value where they are equal."""
    if base is None or target is None:
        return ""
    return f"{target:.3g}" if base == target else f"{base:.3g} -> {target:.3g}"


def _residual(plan: PlanNumbers) -> str:
    values = {value for pair in plan.residual_multipliers for value in pair}
    if not values:
        return "x1"
    low, high = min(values), max(values)
    text = f"x{low:.4g}" if low == high else f"x{low:.4g} to x{high:.4g}"
    carried = {
        "buffer": "",
        "fold": ", folded into the weights that end them",
        "hook": ", by forward hooks",
    }
    ways = dict.fromkeys(plan.ways[branch] for branch in BRANCHES)
    return text + "".join(carried[way] for way in ways)
