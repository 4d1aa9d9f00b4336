"""Columns: the parts of an example that have names go to a loss by them, never by their place.

Without a loss of the user's own it is next-token cross-entropy, of `inputs` and `targets`. Hugging
Face's `labels` are no targets: they are the inputs again, which its models shift.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from completedp.common.errors import CompletedpError
from completedp.tasks.losses import next_token_loss

Columns = tuple[Any, ...] | None
"""The keys of examples that are mappings, in the order in which a loss takes them."""


def columns_of(example: Any) -> Columns:
    """The keys of an example or a batch; None where it is no mapping."""
    return tuple(example) if isinstance(example, Mapping) else None


def columns_for(loss: Callable[..., Any] | None, found: Columns) -> Columns:
    """The columns in the order of the loss's arguments of the same names.

    As they are found where there is no such order: without names, and for a loss of any number.
    """
    if loss is None or found is None or (arguments := _arguments(loss)) is None:
        return found
    taken, rest = arguments[: len(found)], arguments[len(found) :]
    if {a.name for a in taken} != set(found) or any(a.default is a.empty for a in rest):
        takes, give = "the loss takes {}", "tuples in that order, or its arguments those names"
        if loss is next_token_loss:
            takes = "next-token loss takes {}, one token on"
            give = "(inputs, targets), or loss= with arguments of those names"
        listed = takes.format(_listed(a.name for a in arguments))
        raise CompletedpError(
            f"the examples have the columns {_listed(found)}, and {listed}: give {give}"
        )
    return tuple(argument.name for argument in taken)


def in_order(parts: tuple[Any, ...], split: str, found: Columns, columns: Columns) -> Any:
    """The parts in the order of the columns that are trained on, by their names.

    Raise where there are others: a loss would take one for another.
    """
    if found == columns:
        return parts
    if found is None or columns is None or set(found) != set(columns):
        shown, wanted = (
            "no names" if names is None else f"the names {_listed(names)}"
            for names in (found, columns)
        )
        raise CompletedpError(
            f"the columns of the data for {split!r} have {shown}, and those of 'train' have "
            f"{wanted}: give both the same"
        )
    return tuple(parts[found.index(column)] for column in columns)


def check_next_token(parts: tuple[Tensor, ...], split: str) -> None:
    """Raise on what next-token cross-entropy cannot be of."""
    if len(parts) != 2:
        raise CompletedpError(
            f"the data for {split!r} have {len(parts)} part{'s' * (len(parts) != 1)} an example, "
            "and next-token loss takes two: give (inputs, targets), or loss="
        )
    inputs, targets = parts
    # Equal though shifted are only rows of one token.
    if torch.equal(inputs, targets) and (inputs != inputs[..., :1]).any():
        raise CompletedpError(
            f"the data for {split!r} have the inputs as targets, and next-token loss shifts "
            "nothing, so a model would learn to copy: give (tokens[:-1], tokens[1:]) of each "
            "example, or loss="
        )
    if (targets < 0).any():
        raise CompletedpError(
            f"the data for {split!r} have targets of {int(targets.min())}, and next-token loss "
            "leaves none out: give tokens, or a loss= that does, as F.cross_entropy does -100"
        )


def _arguments(loss: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Those after the model; None of a loss that takes any number, or does not say."""
    try:
        arguments = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(a.kind is a.VAR_POSITIONAL for a in arguments):
        return None
    return [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)][1:]


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
