"""Inspect: a model's tensors as a table, with what each was taken for and what decided it."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

from completedp.apply.classify import classify
from completedp.apply.probe import probe

_COLUMNS = ("name", "shape", "role", "type", "layer", "width", "how")
_NUMBERS = ("layer", "width")


def inspect_model(model: nn.Module, overrides: Mapping[str, str] | None = None) -> str:
    """One row for every trainable tensor, in the model's order, and what was seen by running it.

    The model may be on meta.
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
    return f"{table_text}\n\n{probe(model_map).lines()}"
