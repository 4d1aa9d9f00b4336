"""Parameterisations that must train the same function, in float64, and what breaks it.

The paper's appendix: a forward multiplier m on a weight is the same as none with the weight, its
learning rate, and 1 / eps and 1 / weight decay multiplied by m.
"""

import copy
from typing import Any

import pytest
import torch
from models import make_plan, make_recipe, token_batches, train
from torch import nn
from torch.optim import AdamW

from completedp.apply.plan import Plan
from completedp.theory.rules import Rules, Shift

STEPS = 20
# Large enough for eps and weight decay to matter in twenty steps.
VALUES = {"lr": 2**-5, "eps": 1e-3, "weight_decay": 1.0, "init_std": 0.1}


def shift(role: str, hyperparameter: str, by: float) -> Shift:
    return Shift(role=role, hyperparameter=hyperparameter, axis="width", by=by)


# CompleteP's cells, mapped to those with which it trains the function that Complete(d)P trains.
MAPPED = {
    "output eps": shift("output_weight", "eps", -1),
    "output weight decay": shift("output_weight", "weight_decay", -1),
    "embedding eps": shift("input_embedding", "eps", -1),
    "QK norm eps": shift("qk_norm", "eps", 1),
}


def losses_at_width_four(rules: Rules) -> tuple[list[float], Plan]:
    """Losses of a model at width ratio 4 and depth ratio 2, trained in float64."""
    found = make_plan(make_recipe(rules=rules, **VALUES), width=256, depth=4, device="cpu")
    found.model.double()
    found.initialise(1)
    return train(found.model, found.adamw(foreach=False), token_batches(STEPS)), found


@pytest.fixture(scope="module")
def completedp_run() -> tuple[list[float], Plan]:
    return losses_at_width_four(Rules())


def test_completep_is_a_reparameterisation(completedp_run: tuple[list[float], Plan]) -> None:
    """With eps and weight decay mapped, CompleteP's output multiplier trains the same function."""
    losses, ours = completedp_run
    mapped = Rules(parameterisation="completep", shifts=tuple(MAPPED.values()))
    found, theirs = losses_at_width_four(mapped)
    assert theirs.output_multiplier == 0.25
    assert found == pytest.approx(losses, rel=1e-9)
    assert losses[0] - losses[-1] > 0.01
    weights, other = ours.model.state_dict(), theirs.model.state_dict()
    torch.testing.assert_close(
        other["unembedding.weight"], 4 * weights["unembedding.weight"], rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("left_out", MAPPED)
def test_each_mapping_is_needed(completedp_run: tuple[list[float], Plan], left_out: str) -> None:
    """Without any one of the mappings CompleteP, as printed in gray, trains another function."""
    rest = tuple(change for name, change in MAPPED.items() if name != left_out)
    found, _ = losses_at_width_four(Rules(parameterisation="completep", shifts=rest))
    assert found[0] == pytest.approx(completedp_run[0][0], rel=1e-9)
    assert max(abs(a - b) for a, b in zip(found, completedp_run[0], strict=True)) > 1e-6


def with_scaled_branch_ends(model: nn.Module, c: float) -> nn.Module:
    """The same function, with the branches' last matrices c times larger."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.out.weight *= c
            block.mlp.down.weight *= c
        model.residual_multipliers /= c
    return model


def adamw_with(model: nn.Module, c: float, **exponents: float) -> AdamW:
    """AdamW in which the branch ends' values are multiplied by c to these exponents."""
    groups = []
    for name, parameter in model.named_parameters():
        scaled = name.endswith(("attn.out.weight", "mlp.down.weight"))
        values = {k: VALUES[k] * (c ** exponents[k] if scaled else 1) for k in exponents}
        groups.append({"params": [parameter], **values})
    return AdamW(groups, foreach=False)


SYMMETRY = {"lr": 1, "eps": -1, "weight_decay": -1}


@pytest.fixture(scope="module")
def base_model() -> nn.Module:
    found = make_plan(make_recipe(**VALUES), width=64, depth=2, device="cpu")
    found.model.double()
    found.initialise(2)
    return found.model


def branch_losses(model: nn.Module, c: float, exponents: dict[str, float]) -> list[float]:
    scaled = with_scaled_branch_ends(model, c)
    return train(scaled, adamw_with(scaled, c, **exponents), token_batches(STEPS))


@pytest.mark.parametrize("c", [1 / 3, 4.0, 10.0])
def test_adam_symmetry(base_model: nn.Module, c: float) -> None:
    """W' = cW behind a multiplier 1/c trains the same with lr x c, eps / c and weight decay / c."""
    plain = branch_losses(base_model, 1.0, SYMMETRY)
    assert branch_losses(base_model, c, SYMMETRY) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("left_out", SYMMETRY)
def test_adam_symmetry_needs_every_change(base_model: nn.Module, left_out: str) -> None:
    """Leaving out any one of the changes trains another function."""
    plain = branch_losses(base_model, 1.0, SYMMETRY)
    broken = branch_losses(base_model, 4.0, SYMMETRY | {left_out: 0})
    assert max(abs(a - b) for a, b in zip(broken, plain, strict=True)) > 1e-5


@pytest.mark.parametrize("options", [{}, {"fused": False, "foreach": False}], ids=["fused", "loop"])
def test_ratio_one_is_plain_adamw(options: dict[str, Any]) -> None:
    """At the base's own scale the plan trains, bit for bit, as one group of global values."""
    found = make_plan(make_recipe(**VALUES), width=64, depth=2, device="cpu")
    found.initialise()
    plain = copy.deepcopy(found.model)
    one_group = AdamW(
        plain.parameters(),
        lr=VALUES["lr"],
        eps=VALUES["eps"],
        weight_decay=VALUES["weight_decay"],
        betas=(0.9, 0.95),
        **(options or {"fused": True}),
    )
    batches = token_batches(STEPS)
    optimizer = found.adamw(**options)
    assert train(found.model, optimizer, batches) == train(plain, one_group, batches)
    for ours, theirs in zip(found.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
