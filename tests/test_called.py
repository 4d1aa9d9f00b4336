"""Models are called with other tensors than their own, and keep their own."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch
from models import scale
from studies import write_tokens
from torch import nn

import completedp as cdp
from completedp.apply.called import call_with

DEPTH = 3
BASE = scale(depth=DEPTH)
QUICK: dict[str, Any] = {"slots": 2, "device": "cpu", "compile": False, "quiet": True}


def inside_blocks(model: Any) -> None:
    for block in model.h:
        block.feed_forward = nn.Sequential(block.mlp.c_fc, nn.GELU(), block.mlp.c_proj)


def norms_in_a_list(model: Any) -> None:
    for block in model.h:
        block.norms = nn.ModuleList([block.ln_1, block.ln_2])


def head_twice(model: Any) -> None:
    model.output = model.lm_head


def table_twice(model: Any) -> None:
    model.tok = model.wte


def block_twice(model: Any) -> None:
    model.first = model.h[0]


@pytest.mark.parametrize(
    "alias", [inside_blocks, norms_in_a_list, head_twice, table_twice, block_twice]
)
def test_modules_with_two_names_are_planned_and_kept(alias: Callable[[Any], None]) -> None:
    """A model whose modules have a second name is planned as it is without, and has its own tensors
    afterwards."""
    plain, model = own.NanoGPT(64, DEPTH), own.NanoGPT(64, DEPTH)
    alias(model)
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", cdp.ModelWarning)
        plans = [cdp.plan(m, cdp.Recipe.for_model(m, BASE), BASE) for m in (plain, model)]
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    for name, (parameter, value) in before.items():
        assert after[name] is parameter
        assert torch.equal(parameter, value)
    values = [[(t.info.type, t.info.layer, t.lr) for t in plan.tensors] for plan in plans]
    assert sorted(map(str, values[0])) == sorted(map(str, values[1]))
    plans[1].initialise()
    assert plans[1].check(plans[1].adamw()).passed


def test_modules_with_two_names_train_in_slots(tmp_path: Path) -> None:
    """Their losses are those of the model without second names, in slots and in a check."""
    losses, slopes = [], []
    tokens = write_tokens(tmp_path)
    for alias in (lambda model: None, inside_blocks):
        store = str(tmp_path / f"{len(losses)}.db")

        def make(at: cdp.Scale, alias: Callable[[Any], None] = alias) -> nn.Module:
            model = own.nano(at)
            alias(model)
            return model

        with cdp.search(make, BASE, tokens, trials=4, context=16, store=store, **QUICK) as study:
            losses.append({row.number: row.loss for row in study.trials()})
        check = cdp.coordcheck(make, widths=(32, 64), depths=(2,), seeds=1, quiet=True)
        slopes.append({(row.quantity, row.what): row.slope for row in check.rows})
    assert losses[0] == losses[1]
    assert slopes[0] == slopes[1]


def test_weights_that_are_shared_are_both_replaced() -> None:
    """Two modules with one weight, and one of them with two names, compute with what is given."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight
            self.again = self.two

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.two(self.one(x)))

    model, x = Shared(), torch.randn(3, 4)
    weight = model.one.weight
    for name in ("one.weight", "two.weight", "again.weight"):
        assert torch.equal(call_with(model, {name: 2 * torch.eye(4)}, (x,)), 8 * x)
        assert all(module.weight is weight for module in (model.one, model.two))
