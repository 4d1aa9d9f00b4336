"""A plan as a table for people: equal layers folded into one row, base -> target values.

As much of it as the terminal is wide: narrow ones see the values at the target alone. No number is
ever cut off.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.common.terminal import columns
from completedp.theory.optimizers import OPTIMIZERS
from completedp.theory.roles import BRANCHES
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios


@dataclass(frozen=True)
class _Layout:
    """Which columns a table has after the tensors' names."""

    columns: tuple[str, ...]
    changes: bool = False
    """Whether values are shown as base -> target."""
    is_narrow: bool = False
    """Whether it is the last resort, in which names go on in the next line."""


_TENSOR = "tensor"
BORROWED = "~"
"""What marks tensors of a type that the recipe does not know, which get values of others."""
NARROWEST = 16
"""Columns that names have at least."""
_SHORT = {"weight_decay": "decay"}
"""Titles where there is little room."""


def _layouts(plan: PlanNumbers) -> list[_Layout]:
    """From wide to narrow: in the last one what is a complement, as betas are, goes above it."""
    keys, complements = _keys(plan), _complements(plan)
    values = ("init std", *keys, "multiplier", "tau")
    narrow = ("init std", *(key for key in keys if key not in complements), "tau")
    return [
        _Layout(("role", "shape", *values), changes=True),
        _Layout(("role", *values)),
        _Layout(values),
        _Layout(narrow, is_narrow=True),
    ]


def _keys(plan: PlanNumbers) -> list[str]:
    """The columns of all optimizers' values, as torch groups have them: betas are one."""
    knobs = (knob for name in plan.optimizers for knob in OPTIMIZERS[name].knobs)
    return list(dict.fromkeys(knob.key for knob in knobs))


def _complements(plan: PlanNumbers) -> dict[str, list[str]]:
    """Values that are near 1, by the column that they share: beta1 and beta2."""
    found: dict[str, list[str]] = {}
    for name in plan.optimizers:
        for knob in OPTIMIZERS[name].knobs:
            if knob.is_complement and knob.name not in found.setdefault(knob.key, []):
                found[knob.key].append(knob.name)
    return found


def render(plan: PlanNumbers, cautions: Sequence[str] = (), width: int | None = None) -> str:
    """The plan as text of so many columns: what to doubt of it, its scales, its table.

    Without a `width`, those of the terminal.
    """
    width = width or columns()
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    layout, table = _fitting(plan, console)
    for caution in cautions:
        text.write(textwrap.fill(f"caution: {caution}", width, subsequent_indent="  ") + "\n")
    for line in _head(plan, layout):
        text.write(textwrap.fill(line, width, subsequent_indent=" " * 10) + "\n")
    console.print(table, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _memory(rules: Rules, ratios: Ratios) -> str:
    """r, and whether the betas follow it."""
    kept = rules.memory_factor(ratios) == 1.0 != rules.r(ratios)
    return f"r {rules.r(ratios):.4g}{' (betas kept)' if kept else ''}"


def _head(plan: PlanNumbers, layout: _Layout) -> list[str]:
    """The rules and the scales, and what the table has no room for."""
    rules, ratios = plan.recipe.rules, plan.ratios
    lines = [
        f"{rules.parameterisation}, alpha {rules.alpha:g}",
        f"  base    {plan.recipe.base}",
        f"  target  {plan.target}: {plan.target.steps:,} steps",
        f"  model   {sum(math.prod(t.info.shape) for t in plan.tensors):,} parameters in "
        f"{len(plan.tensors)} tensors",
        f"  ratios  width x{ratios.width:g}, depth x{ratios.depth:g}, batch x{ratios.batch:g}, "
        f"tokens x{ratios.tokens:g}, {_memory(rules, ratios)}; "
        f"residual branches {_residual(plan)}",
    ]
    for key, names in _complements(plan).items():
        if key not in layout.columns:
            spans = (
                _span((t.values[name].target for t in plan.tensors if name in t.values), "")
                for name in names
            )
            lines.append(f"  {key:<7} {', '.join(spans)}")
    if rules.weight_decay == "independent":
        lines.append("  decay   is not multiplied by lr, as that in param_groups() is")
    if any(tensor.borrowed for tensor in plan.tensors):
        lines.append(f"  {BORROWED}       of a type that the recipe does not know")
    if not layout.changes:
        lines.append("  values at the target; a wider terminal shows more")
    return lines


def _fitting(plan: PlanNumbers, console: Console) -> tuple[_Layout, Table]:
    """The widest layout that fits; in the last one names go on in the next line."""
    rows = _folded(plan.tensors)
    layouts = _layouts(plan)
    for layout in layouts:
        table = _table(plan, layout, rows, _name)
        if console.measure(table).maximum < console.width:
            return layout, table
    layout = layouts[-1]
    others = console.measure(_table(plan, layout, rows, lambda run: "")).maximum
    room = max(NARROWEST, console.width - others + len(_TENSOR) - 1)
    return layout, _table(plan, layout, rows, lambda run: broken(_name(run), room))


def _table(
    plan: PlanNumbers,
    layout: _Layout,
    rows: Sequence[Sequence[TensorPlan]],
    name_of: Callable[[Sequence[TensorPlan]], str],
) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=layout.is_narrow)
    table.add_column(_TENSOR, no_wrap=not layout.is_narrow, overflow="fold")
    for name in layout.columns:
        title = name.replace("_", " ") if layout.changes else _SHORT.get(name, name)
        justify = "left" if name in ("role", "shape") else "right"
        table.add_column(title, justify=justify, no_wrap=True)
    for run in rows:
        cells = _cells(run[0], _keys(plan), changes=layout.changes)
        table.add_row(name_of(run), *(cells[name] for name in layout.columns))
    return table


def _folded(tensors: list[TensorPlan]) -> list[list[TensorPlan]]:
    """Tensors of one type that have equal values, in all layers, in the order of the model."""
    by_type: dict[str, dict[tuple[object, ...], list[TensorPlan]]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.info.type, {}).setdefault(_values(tensor), []).append(tensor)
    return [run for of_type in by_type.values() for run in of_type.values()]


def _values(tensor: TensorPlan) -> tuple[object, ...]:
    targets = (tensor.values[knob.name].target for knob in OPTIMIZERS[tensor.optimizer].knobs)
    starts = tensor.init_std, tensor.init_value
    return (tensor.info.shape, *starts, *targets, tensor.multiplier)


def _name(rows: Sequence[TensorPlan]) -> str:
    """The names of all tensors of a row, marked where the recipe does not know their type."""
    return merged_name([tensor.name for tensor in rows]) + f" {BORROWED}" * rows[0].borrowed


def merged_name(names: Sequence[str]) -> str:
    """Names as one where they differ in single words or numbers, so that each can be read from it.

    >>> merged_name([f"layers.{i}.attn.{x}.weight" for i in range(4) for x in ("q", "k", "v")])
    'layers.0-3.attn.{q,k,v}.weight'
    >>> merged_name(["layers.1.up", "layers.3.up", "layers.4.up", "head"])
    'layers.1,3-4.up, head'
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        alike.setdefault(words_of(name), []).append(name)
    if len({len(words) for words in alike}) == 1 and (one := _product(names)):
        return one
    return ", ".join(_product(some) or ", ".join(some) for some in alike.values())


def words_of(name: str) -> tuple[str, ...]:
    """The words of a tensor's name, whatever its numbers: tensors of all blocks have the same."""
    return tuple("" if word.isdigit() else word for word in name.split("."))


def _product(names: Sequence[str]) -> str | None:
    """One name with choices in its places, if the names are all that the choices make."""
    parts = [name.split(".") for name in names]
    places = [list(dict.fromkeys(place)) for place in zip(*parts, strict=True)]
    if math.prod(map(len, places)) != len(set(names)):
        return None
    return ".".join(map(_choice, places))


def _choice(words: Sequence[str]) -> str:
    """One word, or ranges of numbers, or some words in braces."""
    if len(words) == 1:
        return words[0]
    if not all(word.isdigit() for word in words):
        return f"{{{','.join(words)}}}"
    runs: list[list[int]] = []
    for number in sorted(map(int, words)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def broken(name: str, room: int) -> str:
    """A name over several lines, each of whole words where they fit."""
    lines = [""]
    for word in re.findall(r"[^.,]*[.,]? ?", name):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > room:
            lines.append("  ")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _cells(tensor: TensorPlan, keys: Sequence[str], *, changes: bool) -> dict[str, str]:
    """What the columns say of a tensor."""
    std = tensor.init_std
    return {
        "role": str(tensor.info.role),
        "shape": "x".join(map(str, tensor.info.shape)),
        "init std": f"= {tensor.init_value:g}"
        if std is None
        else _change(tensor.base.get("init_std") if changes else std, std),
        **{key: _of_key(tensor, key, changes=changes) for key in keys},
        "multiplier": f"{tensor.multiplier:.4g}",
        "tau": f"{tensor.tau:.3g}",
    }


def _of_key(tensor: TensorPlan, key: str, *, changes: bool) -> str:
    """What a tensor's optimizer has of that name; nothing, where it has none."""
    shown = []
    for knob in OPTIMIZERS[tensor.optimizer].knobs:
        if knob.key == key:
            value = tensor.values[knob.name]
            base = value.base if changes else value.target
            change = _change(base, value.target)
            shown.append(f"{value.target:.4g}" if knob.is_complement else change)
    return " ".join(shown)


def _change(base: float | None, target: float | None) -> str:
    """base -> target, or the one value where they are equal."""
    if base is None or target is None:
        return ""
    return f"{target:.3g}" if base == target else f"{base:.3g} -> {target:.3g}"


def _residual(plan: PlanNumbers) -> str:
    values = {value for pair in plan.residual_multipliers for value in pair}
    if not values:
        return "x1"
    text = _span(values, "x")
    carried = {
        "buffer": "",
        "fold": ", folded into the weights that end them",
        "hook": ", by forward hooks",
    }
    ways = dict.fromkeys(plan.ways[branch] for branch in BRANCHES)
    return text + "".join(carried[way] for way in ways)


def _span(values: Iterable[float], before: str) -> str:
    """The least and the largest of some numbers, or the one that they all are."""
    found = list(values)
    low, high = (f"{before}{each:.4g}" for each in (min(found), max(found)))
    return low if low == high else f"{low} to {high}"
