"""Inspect: a model's tensors as a table, with what each was taken for and what decided it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

from completedp.apply.cautions import head_size_caution
from completedp.apply.classify import classify
from completedp.apply.model_map import ModelMap
from completedp.apply.probe import probe

_COLUMNS = ("name", "shape", "role", "type", "layer", "width", "how")
_NUMBERS = ("layer", "width")


def inspect_model(
    model: nn.Module,
    overrides: Mapping[str, str] | None = None,
    *,
    small: Callable[[], nn.Module | None] | None = None,
) -> str:
    """One row for every trainable tensor, in the model's order, and what was seen by running it.

    The model may be on meta. Where it is too large to be run, `small` makes a small copy of it.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        justify = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=True)
    model_map = classify(model, overrides)
    for tensor in model_map:
        table.add_row(
            tensor.name,
            "x".join(map(str, tensor.shape)),
            str(tensor.role),
            tensor.type,
            "" if tensor.layer is None else str(tensor.layer),
            str(tensor.width),
            tensor.how,
        )
    text = io.StringIO()
    # As wide as the names ask for: a name that is cut off is of no use to an override.
    Console(file=text, width=10_000, color_system=None).print(table, highlight=False)
    table_text = "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
    return f"{table_text}\n\n{_probed(model_map, overrides, small)}"


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
