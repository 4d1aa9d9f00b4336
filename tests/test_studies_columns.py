"""Examples that are mappings: columns go by name, in the order of those that are trained on."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from helpers import error_of
from torch import Tensor

from completedp.tasks.data import Data, Tensors, as_batch, held_out_batches, make_data, on_device
from completedp.tasks.task import make_task

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


def take(order: tuple[str, ...], loss: Any) -> list[Any]:
    task = make_task(lambda scale: None, {"train": rows(order), "valid": rows(order)}, loss=loss)  # type: ignore[arg-type, return-value]
    return [part.tolist() for part in on_device(cast(Tensors, task.data.train), CPU)]


@pytest.mark.parametrize("order", [INPUTS, LABELS])
def test_columns_go_to_the_losss_arguments_of_their_names(order: tuple[str, ...]) -> None:
    """A loss is given each column as the argument that is called so, wherever either stands."""
    inputs, labels = TOKENS[:, :-1].tolist(), TOKENS[:, 1:].tolist()
    assert take(order, lambda model, labels, input_ids, weight=1: 0) == [labels, inputs]
    assert take(order, lambda model, input_ids, labels: 0) == [inputs, labels]
    found = {"input_ids": inputs, "labels": labels}
    assert take(order, lambda model, *batch: 0) == [found[name] for name in order]


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, x, y: 0,
        lambda model, input_ids: 0,
        lambda model, input_ids, mask, labels: 0,
        lambda model, input_ids, mask=None, labels=None: 0,
        lambda model, input_ids, *, labels: 0,
    ],
)
def test_a_loss_without_the_columns_names_is_refused(loss: Any) -> None:
    """Columns that the loss's arguments are not called after would be taken for one another."""
    message = error_of(take, INPUTS, loss)
    assert "have the columns 'input_ids', 'labels', and the loss takes 'input_ids'" in message or (
        "the loss takes 'x', 'y'" in message
    )


def test_next_token_loss_takes_inputs_and_targets_by_name() -> None:
    """Hugging Face's labels are the inputs again: without a loss they are refused."""
    for order in (INPUTS, LABELS):
        message = error_of(take, order, None)
        assert "next-token loss takes 'inputs', 'targets', one token on" in message
        assert "give (inputs, targets), or loss=" in message
    named = [{"targets": row[1:], "inputs": row[:-1]} for row in TOKENS]
    task = make_task(cast(Any, len), {"train": named, "valid": named})
    assert first_held_out(task.data) == [TOKENS[:, :-1].tolist(), TOKENS[:, 1:].tolist()]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (TOKENS, "have 1 part an example"),
        ((TOKENS, TOKENS, TOKENS), "have 3 parts an example"),
        ((TOKENS, TOKENS.clone()), "have the inputs as targets"),
        ((TOKENS, TOKENS.clone().index_fill_(1, torch.tensor([2]), -100)), "targets of -100"),
    ],
)
def test_what_next_token_loss_cannot_be_of_is_said(parts: Any, words: str, is_stream: bool) -> None:
    """Inputs alone or as targets, a third part, and targets to be left out are one line each."""
    data: Any = {"train": parts, "valid": parts}
    if is_stream:
        data = lambda split, examples, seed: iter([parts])  # noqa: E731
    message = error_of(make_task, len, data)
    assert words in message
    assert "loss=" in message
    make_task(cast(Any, len), data, loss=lambda model, *batch: batch[0])


def test_a_row_of_one_token_is_its_own_target() -> None:
    """Shifted rightly, what repeats one token is equal to its inputs, and is no error."""
    same = torch.full((3, 5), 7)
    make_task(cast(Any, len), {"train": (same[:, :-1], same[:, 1:]), "valid": (TOKENS, TOKENS + 1)})


def test_arrays_are_tensors() -> None:
    """A tuple of numpy arrays is a tuple of tensors, and not a dataset of as many rows."""
    arrays = tuple(part.numpy() for part in (TOKENS[:, :-1], TOKENS[:, 1:]))
    data = make_data({"train": arrays, "valid": arrays})
    assert len(cast(Tensors, data.train)) == len(TOKENS)
