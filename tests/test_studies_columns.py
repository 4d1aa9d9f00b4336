"""Examples that are mappings: columns go by name, in the order of those that are trained on."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import error_of
from torch import Tensor

from completedp.tasks.data import Data, Tensors, as_batch, held_out_batches, make_data, on_device

TOKENS = torch.arange(6 * 5).reshape(6, 5)
INPUTS, LABELS = ("input_ids", "labels"), ("labels", "input_ids")
CPU = torch.device("cpu")


def rows(order: tuple[str, ...]) -> list[dict[str, Tensor]]:
    return [{name: row[1:] if name == "labels" else row[:-1] for name in order} for row in TOKENS]


def first_held_out(data: Data) -> list[Any]:
    batch, _ = next(iter(held_out_batches(data, data.evaluation(6), 6, CPU)))
    return [part.tolist() for part in batch]


def test_columns_of_both_splits_are_in_the_order_of_the_first() -> None:
    """A held-out example whose keys are in another order is judged as the others are trained."""
    data = make_data({"train": rows(INPUTS), "valid": rows(LABELS)}, 4)
    assert isinstance(data.train, Tensors)
    assert [part.tolist() for part in on_device(data.train, CPU)] == first_held_out(data)
    assert first_held_out(data)[0] == TOKENS[:, :-1].tolist()
    same = make_data({"train": rows(INPUTS), "valid": rows(INPUTS)}, 4)
    assert data.digest == same.digest


@pytest.mark.parametrize(
    "valid",
    [
        rows(("labels", "tokens")),
        rows(("input_ids", "labels", "mask")),
        rows(("input_ids",)),
        (TOKENS[:, :-1], TOKENS[:, 1:]),
        [(row[:-1], row[1:]) for row in TOKENS],
    ],
)
def test_other_columns_are_refused(valid: Any) -> None:
    """What cannot be matched by name is said, with both splits' names."""
    message = error_of(make_data, {"train": rows(INPUTS), "valid": valid}, 4)
    assert "'train'" in message
    assert "'valid'" in message
    assert "'input_ids', 'labels'" in message


def test_batches_of_a_stream_are_in_that_order_too() -> None:
    """Every batch that is a mapping has the columns of the first one that is trained on."""

    def batches(split: str, examples: int, seed: int) -> Iterator[dict[str, Tensor]]:
        order = INPUTS if split == "train" else LABELS
        while True:
            made = {"input_ids": TOKENS[:examples, :-1], "labels": TOKENS[:examples, 1:]}
            yield {name: made[name] for name in order}
            order = order[::-1]

    data = make_data(batches, 4)
    assert first_held_out(data) == [TOKENS[:, :-1].tolist(), TOKENS[:, 1:].tolist()]
    message = error_of(as_batch, {"tokens": TOKENS}, "valid", INPUTS)
    assert "'tokens'" in message
