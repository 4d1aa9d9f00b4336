"""A user's model that fails in a slot is said in one line."""

import own_models as own
import pytest
import torch
from helpers import error_of
from studies import write_tokens
from torch import Tensor, nn

from completedp.tasks.data import make_data
from completedp.tasks.task import TABLES_NEED, Task, make_task
from completedp.theory.scale import Scale
from completedp.training.slots import Slots
from completedp.training.trials import Trial

CONTEXT = 16
BASE = Scale(width=16, depth=1, batch=4 * CONTEXT, tokens=4 * CONTEXT * 2)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("slots"))


def run(task: Task) -> None:
    """Two trials, in slots."""
    recipe = task.recipe(BASE)
    slots = Slots(
        task.model(BASE),
        task.data,
        examples=task.data.examples(BASE.batch),
        max_steps=BASE.steps,
        count=2,
        loss=task.loss,
        eval_examples=8,
    )
    trials = [
        Trial(key=seed, plan=task.plan(recipe, BASE), seed=seed, steps=BASE.steps)
        for seed in range(2)
    ]
    list(slots.run(trials))


class Short(own.NanoGPT):
    """It has no embedding for the last token, which ends a document."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.wte = nn.Embedding(own.VOCAB - 1, width)


def short(scale: Scale) -> nn.Module:
    return Short(scale.width, scale.depth)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_token_without_an_embedding_is_said_with_what_is_needed(split: str) -> None:
    """Met in training or only in what is held out, it is a line and no traceback."""
    good = torch.randint(0, own.VOCAB - 1, (16, CONTEXT + 1))
    bad = torch.full_like(good, own.VOCAB - 1)
    rows = {name: bad if name == split else good for name in ("train", "valid")}
    data = make_data({name: (each[:, :-1], each[:, 1:]) for name, each in rows.items()}, CONTEXT)
    message = error_of(run, make_task(short, data))
    assert message.startswith("Short fails on a batch: IndexError: ")
    assert TABLES_NEED in message


def failing(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    raise KeyError("labels")


def test_a_loss_that_fails_in_a_slot_is_one_line(tokens: str) -> None:
    """Whatever the user's code raises is quoted."""
    task = make_task(own.nano, tokens, context=CONTEXT, loss=failing)
    assert error_of(run, task) == "NanoGPT fails on a batch: KeyError: 'labels'"
