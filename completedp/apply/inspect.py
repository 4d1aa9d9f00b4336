"""Inspect: a model's tensors as a table, with what each was taken for and what decided it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

from completedp.apply.cautions import head_size_caution
from completedp.apply.classify import Reading, classify, read
from completedp.apply.model_map import ModelMap, TensorInfo
from completedp.apply.probe import probe
from completedp.apply.table import merged_name, words_of
from completedp.apply.unknown import advice

_COLUMNS = ("name", "shape", "role", "type", "layer", "width", "how")
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
    table = _table(tensor_rows(reading))
    if reading.unknown:
        return f"{table}\n\n{advice(reading.suggestions, reading.overrides)}"
    return f"{table}\n\n{_probed(reading.known, overrides, small)}"


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


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        justify = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=True)
    for alike in _folded(rows):
        row, layers = alike[0], dict.fromkeys(str(each["layer"]) for each in alike)
        table.add_row(
            merged_name([each["name"] for each in alike]),
            "x".join(map(str, row["shape"])),
            row["role"] or UNKNOWN,
            row["type"] or UNKNOWN,
            "" if row["layer"] is None else merged_name(list(layers)),
            "" if row["width"] is None else str(row["width"]),
            row["how"] or "",
        )
    text = io.StringIO()
    # As wide as the names ask for: a name that is cut off is of no use to an override.
    Console(file=text, width=10_000, color_system=None).print(table, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")


def _folded(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Tensors that differ in the numbers of their names alone, in the order of the first ones."""
    found: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        words = words_of(row["name"])
        what = (tuple(row["shape"]), row["role"], row["type"], row["width"], row["how"])
        found.setdefault((words, what, row["layer"] is None), []).append(row)
    return list(found.values())


def _probed(
    model_map: ModelMap,
    overrides: Mapping[str, str] | None,
    small: Callable[[], nn.Module | None] | None,
) -> str:
    found = probe(model_map)
    model_map.seen_head_dim = found.head_dim
    heads = _heads(model_map)
    copy = small() if found.skipped and small is not None else None
    if copy is None:
        return f"{found.lines()}{heads}"
    of_copy = classify(copy, overrides)
    copied = f"on a copy of width {of_copy.width} and depth {of_copy.depth}"
    return f"{copied}\n{probe(of_copy).lines()}{heads}"


def _heads(model_map: ModelMap) -> str:
    """A line on the size of the heads, or that it is not visible."""
    if caution := head_size_caution(model_map):
        return f"\ncaution: {caution}"
    return f"\nheads of {model_map.head_dim}" if model_map.has_attention else ""
