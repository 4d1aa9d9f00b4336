"""Inspect: a model's tensors as a table, with what each was taken for and what decided it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import nn

from completedp.apply.cautions import head_size_caution
from completedp.apply.classify import Reading, classify, read
from completedp.apply.model_map import ModelMap, TensorInfo
from completedp.apply.probe import Probe, probe
from completedp.apply.table import NARROWEST, broken, merged_name, words_of
from completedp.apply.unknown import advice
from completedp.common.terminal import columns, drawn, fitted, table_width

_LAYOUTS = (
    ("name", "shape", "role", "type", "layer", "width", "how"),
    ("name", "shape", "type", "layer", "width", "how"),
    ("name", "shape", "type", "width", "how"),
)
"""From wide to narrow: a type has one role, and a name says the layer."""
_MORE = "a wider terminal shows more"
_NUMBERS = ("layer", "width")
UNKNOWN = "?"
"""In the place of a role and a type that nobody can tell."""


def inspect_model(
    model: nn.Module,
    overrides: Mapping[str, str] | None = None,
    *,
    small: Callable[[], nn.Module | None] | None = None,
) -> str:
    """Every trainable tensor, a row for those alike in all blocks, and what was seen by running it.

    The model may be on meta. Where it is too large to be run, `small` makes a small copy of it.
    A tensor that nobody can classify is marked, with the overrides below that would name it.
    """
    reading = read(model, overrides)
    return inspection(reading, None if reading.unknown else probed(reading, small))


@dataclass(frozen=True)
class Probed:
    """What was seen by running a model, or a small copy of it."""

    found: Probe
    text: str
    """The same for people."""


def inspection(reading: Reading, seen: Probed | None) -> str:
    """What was read and seen, for people; nothing is seen of a model with unknown tensors."""
    width = columns()
    table = _table(tensor_rows(reading), width)
    if seen is None:
        flag, *notes = advice(reading.suggestions, reading.overrides).splitlines()
        below = "\n".join([flag, *(fitted(note, width) for note in notes)])  # a flag is copied
    else:
        below = fitted(seen.text, width)
    return f"{table}\n\n{below}"


def tensor_rows(reading: Reading) -> list[dict[str, Any]]:
    """What is known of every trainable tensor, in the model's order; None where nothing is."""
    known = {tensor.name: tensor for tensor in reading.known}
    unknown = {place.name: place for place in reading.unknown}
    nothing = dict.fromkeys(field.name for field in fields(TensorInfo))
    rows = []
    for place, _ in reading.known.structure.places():
        if (tensor := known.pop(place.name, None)) is not None:
            rows.append(asdict(tensor))
        elif unknown.pop(place.name, None) is not None:
            own = {"name": place.name, "shape": place.shape, "layer": place.layer}
            rows.append(nothing | own)
    return rows


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """The widest layout that fits; in the last one names go on in the next line."""
    cells = [_cells(alike) for alike in _folded(rows)]
    for layout in _LAYOUTS:
        table = _laid_out(cells, layout)
        if table_width(table) <= width:
            more = "" if layout == _LAYOUTS[0] else f"{_MORE}\n"
            return more + drawn(table, width)
    layout = _LAYOUTS[-1]
    others = table_width(_laid_out([row | {"name": ""} for row in cells], layout)) - len("name")
    room = max(NARROWEST, width - others)
    named = [row | {"name": broken(row["name"], room)} for row in cells]
    return f"{_MORE}\n{drawn(_laid_out(named, layout), width)}"


def _laid_out(rows: Sequence[Mapping[str, str]], layout: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=layout != _LAYOUTS[0])
    for column in layout:
        justify = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=column != "name", overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in layout))
    return table


def _cells(alike: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the columns say of tensors that are one row."""
    row, layers = alike[0], dict.fromkeys(str(each["layer"]) for each in alike)
    return {
        "name": merged_name([each["name"] for each in alike]),
        "shape": "x".join(map(str, row["shape"])),
        "role": row["role"] or UNKNOWN,
        "type": row["type"] or UNKNOWN,
        "layer": "" if row["layer"] is None else merged_name(list(layers)),
        "width": "" if row["width"] is None else str(row["width"]),
        "how": row["how"] or "",
    }


def _folded(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Tensors that differ in the numbers of their names alone, in the order of the first ones."""
    found: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        words = words_of(row["name"])
        what = (tuple(row["shape"]), row["role"], row["type"], row["width"], row["how"])
        found.setdefault((words, what, row["layer"] is None), []).append(row)
    return list(found.values())


def probed(reading: Reading, small: Callable[[], nn.Module | None] | None = None) -> Probed:
    """Run a model whose tensors are all known; where it is too large, the copy of `small`."""
    model_map = reading.known
    found = probe(model_map)
    model_map.seen_head_dim = found.head_dim
    heads = _heads(model_map)
    copy = small() if found.skipped and small is not None else None
    if copy is None:
        return Probed(found, f"{found.lines()}{heads}")
    of_copy = classify(copy, reading.overrides)
    copied = f"on a copy of width {of_copy.width} and depth {of_copy.depth}"
    found = probe(of_copy)
    return Probed(found, f"{copied}\n{found.lines()}{heads}")


def _heads(model_map: ModelMap) -> str:
    """A line on the size of the heads, or that it is not visible."""
    if caution := head_size_caution(model_map):
        return f"\ncaution: {caution}"
    return f"\nheads of {model_map.head_dim}" if model_map.has_attention else ""
