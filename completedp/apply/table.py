"""A plan as a table for people: equal layers folded into one row, base -> target values."""

from __future__ import annotations

import io
import re
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.theory.optimizers import OPTIMIZERS
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
    keys = _keys(plan)
    for name in ("init std", *(key.replace("_", " ") for key in keys), "multiplier"):
        table.add_column(name, justify="right", no_wrap=True)
    for rows in _folded(plan.tensors):
        table.add_row(*_row(rows, keys))
    console.print(table, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _keys(plan: PlanNumbers) -> list[str]:
    """The columns of all optimizers' values, as torch groups have them: betas are one."""
    knobs = (knob for name in plan.optimizers for knob in OPTIMIZERS[name].knobs)
    return list(dict.fromkeys(knob.key for knob in knobs))


def _folded(tensors: list[TensorPlan]) -> list[list[TensorPlan]]:
    """Runs of layers whose tensors of one type have equal values, in the order of the model."""
    order: dict[str, int] = {}
    for tensor in tensors:
        order.setdefault(tensor.info.type, len(order))
    placed = sorted(tensors, key=lambda t: (order[t.info.type], t.info.layer or 0))
    return [list(run) for _, run in groupby(placed, key=lambda t: (t.info.type, _values(t)))]


def _values(tensor: TensorPlan) -> tuple[object, ...]:
    targets = (tensor.values[knob.name].target for knob in OPTIMIZERS[tensor.optimizer].knobs)
    return (tensor.info.shape, tensor.init_std, *targets, tensor.multiplier)


def _row(rows: list[TensorPlan], keys: list[str]) -> list[str]:
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
        *(_of_key(tensor, key) for key in keys),
        f"{tensor.multiplier:.4g}",
    ]


def _of_key(tensor: TensorPlan, key: str) -> str:
    """What a tensor's optimizer has of that name; nothing, where it has none."""
    knobs = [knob for knob in OPTIMIZERS[tensor.optimizer].knobs if knob.key == key]
    values = [(tensor.values[knob.name], knob.is_complement) for knob in knobs]
    return " ".join(
        f"{value.target:.4g}" if is_complement else _change(value.base, value.target)
        for value, is_complement in values
    )


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
