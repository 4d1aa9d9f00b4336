"""Muon for hidden matrices, AdamW for the rest: its step, its rules, and training with both."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import error_of
from models import make_model, make_plan, make_recipe, scale, token_batches, train
from studies import write_tokens
from torch import nn

import completedp as cdp
from completedp.apply.optimise import set_learning_rates
from completedp.apply.stepper import make_optimizer
from completedp.apply.updates import UPDATES, orthogonal
from completedp.lm.shape import Shape
from completedp.tasks.data import make_data, training_batches
from completedp.tasks.task import make_task
from completedp.theory.roles import Role
from completedp.theory.rules import Rules, Shift
from completedp.training.metrics import read_metrics
from completedp.training.slots import Slots
from completedp.training.trials import Trial

MUON = Rules(optimizer={"hidden_weight": "muon"})
COEFFICIENTS = 3.4445, -4.7750, 2.0315


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_a_step_is_that_of_singular_values(shape: tuple[int, ...]) -> None:
    """The iteration on matrices is its polynomial on their singular values, each matrix alone."""
    torch.manual_seed(0)
    given = torch.randn(*shape, dtype=torch.float64) * torch.tensor([1e-4, 1.0, 1e4])[
        : shape[0]
    ].view(-1, 1, 1)
    for before, after in zip(given, orthogonal(given), strict=True):
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        s = s / s.norm()
        a, b, c = COEFFICIENTS
        for _ in range(5):
            s = a * s + b * s**3 + c * s**5
        assert torch.allclose(after, u @ torch.diag(s) @ v, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_it_steps_as_torchs(seed: int) -> None:
    """Weights move as under torch.optim.Muon, up to the bfloat16 that it computes in."""
    torch.manual_seed(seed)
    start, gradients = torch.randn(24, 16), torch.randn(10, 24, 16)
    group = {"lr": 0.05, "weight_decay": 0.2, "momentum": 0.9}
    ended = []
    for make in (partial(make_optimizer, "muon"), torch.optim.Muon):
        weight = nn.Parameter(start.clone())
        optimizer = make([{"params": [weight], **group}])
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        ended.append(weight.detach())
    assert (ended[0] - ended[1]).norm() < 0.01 * (ended[0] - start).norm()


def test_its_rates_stay_with_width() -> None:
    """Of a hidden matrix Muon's rate and decay stay where AdamW's fall and rise; the rest of the
    model is planned as without it, and lr x decay x steps keeps its size."""
    sizes = {"width": 256, "depth": 8}
    found, plain = (make_plan(make_recipe(rules=rules), **sizes) for rules in (MUON, Rules()))
    for tensor in found.tensors:
        other = plain[tensor.name]
        if tensor.info.role is not Role.HIDDEN_WEIGHT:
            assert tensor.to_dict() == other.to_dict()
            continue
        assert (tensor.optimizer, tensor.lr, tensor.weight_decay) == ("muon", 0.02, 0.1)
        assert tensor.momentum == pytest.approx(0.95)
        assert tensor.init_std == other.init_std
    half = Rules(optimizer=MUON.optimizer, alpha=0.5)
    ratios = cdp.Ratios(width=4, depth=4, batch=4, tokens=16)
    factors = half.factors("hidden_weight", ratios)
    assert factors.lr == pytest.approx(0.5 * 0.5)  # depth's root, and that of m_B/m_D
    assert factors.lr * factors.weight_decay * ratios.steps == pytest.approx(0.5)
    assert factors.one_minus_momentum == pytest.approx(0.25)


@pytest.mark.parametrize("way", ["fold", "hook"])
def test_multipliers_fold_into_its_weights(way: str) -> None:
    """A residual multiplier in the weights trains as one in the forward pass."""
    curves = []
    for multipliers in ("buffer", way):
        model = make_model(128, 4).double()
        found = cdp.plan(  # type: ignore[arg-type]
            model, make_recipe(rules=MUON), scale(width=128, depth=4), multipliers=multipliers
        )
        found.initialise(3)
        curves.append(train(model, found.optimizer(), token_batches(6)))
    assert curves[0] == pytest.approx(curves[1], rel=1e-8)


CONTEXT, STEPS = 16, 16
SMALL = cdp.Scale(width=16, depth=2, batch=4 * CONTEXT, tokens=4 * CONTEXT * STEPS)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("text"))


def small(tokens: str, **values: float) -> tuple[Any, cdp.Recipe]:
    task = make_task(None, tokens, context=CONTEXT, shape=Shape(head_dim=8), z_loss=0.0)
    recipe = task.recipe(SMALL, lr=0.01, muon_lr=0.02, rules=MUON)
    return task, recipe.with_values(**values) if values else recipe


def test_slots_train_as_a_loop(tokens: str) -> None:
    """Trials with rates of their own share a program, and each has the losses of a plain loop."""
    task, first = small(tokens)
    recipes = [first, small(tokens, muon_lr=0.1, muon_momentum=0.5)[1]]
    plans = [cdp.plan(task.blank(SMALL), recipe, SMALL) for recipe in recipes]
    slots = Slots(
        task.blank(SMALL),
        make_data(tokens, CONTEXT),
        examples=4,
        max_steps=STEPS,
        count=2,
        weights=torch.float64,
        z_loss=0.0,
    )
    trials = [Trial(plan=plan, seed=i, steps=STEPS, key=i) for i, plan in enumerate(plans)]
    losses = {outcome.key: outcome.losses for outcome in slots.run(trials)}
    for seed, recipe in enumerate(recipes):
        assert losses[seed] == pytest.approx(looped(task, recipe, tokens, seed), rel=1e-9)
    assert losses[0][-1] < losses[0][0] - 0.5


def looped(task: Any, recipe: cdp.Recipe, tokens: str, seed: int) -> list[float]:
    model = task.make(SMALL).double()
    plan = cdp.plan(model, recipe, SMALL)
    plan.initialise(seed)
    optimizer, losses = plan.optimizer(), []
    batches = training_batches(make_data(tokens, CONTEXT), 4, seed, torch.device("cpu"))
    for step, (inputs, targets) in zip(range(STEPS), batches, strict=False):
        set_learning_rates(optimizer, recipe.schedule(step, STEPS))
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_it_is_searched_and_trained(tokens: str, tmp_path: Path) -> None:
    """A search tunes its values beside AdamW's, and what it finds trains and resumes."""
    _, recipe = small(tokens)
    options: dict[str, Any] = {"data": tokens, "context": CONTEXT, "device": "cpu", "quiet": True}
    study = cdp.search(
        None, recipe=recipe, trials=8, slots=4, compile=False, space="type",
        store=str(tmp_path / "s.db"), **options,
    )  # fmt: skip
    best = study.best((), seeds=1)
    assert {"muon_lr/type/qkv", "lr/type/embedding"} <= set(best.hyperparameters.log2)
    assert "lr/type/qkv" not in best.hyperparameters.log2
    run = tmp_path / "run"
    part = cdp.train(None, best, SMALL, out=run, stop_after=5, **options)
    assert part.status == "stopped"
    again = cdp.train(None, best, SMALL, out=run, **options)
    whole = cdp.train(None, best, SMALL, out=tmp_path / "whole", **options)
    assert again.valid_loss == whole.valid_loss
    assert math.isfinite(again.valid_loss or math.inf)


def test_its_noise_is_measured(tokens: str, tmp_path: Path) -> None:
    """The critical batch of a run counts the matrices that Muon trains, too."""
    _, recipe = small(tokens)
    options: dict[str, Any] = {"data": tokens, "context": CONTEXT, "device": "cpu", "quiet": True}
    run = cdp.train(None, recipe, SMALL, out=tmp_path / "run", noise_every=1, **options)
    assert run.status == "ok"
    assert run.critical_batch is None or run.critical_batch > 0
    window = read_metrics(tmp_path / "run")
    assert any("critical_batch" in row or "noise_scale" in row for row in window)


def test_what_is_no_matrix_is_refused() -> None:
    """A stack of experts, or a convolution, is one line."""
    factors = torch.ones(3, 1)
    tensors = [torch.zeros(1, 4, 8, 8) for _ in range(3)]
    assert "muon trains matrices" in error_of(UPDATES["muon"].apply, *tensors, factors)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_the_checks_pass_and_see_a_wrong_exponent(alpha: float) -> None:
    """Over width and depth sizes are those of the limit by these rules; an exponent of width that
    is off by a half is seen."""
    base = cdp.Scale(width=64, depth=2, batch=1024, tokens=1024 * 300)
    model = cdp.Transformer(cdp.ModelConfig(vocab=257, width=64, depth=2, head_dim=16))
    rules = replace(MUON, alpha=alpha)
    recipe = cdp.Recipe.for_model(model, base, lr=2**-10, rules=rules)
    sizes: dict[str, Any] = {"widths": (64, 128, 256), "depths": (2, 4, 8)}
    assert cdp.coordcheck(None, recipe=recipe, near_limit=True, quiet=True, **sizes).passed
    wrong = Shift(role="hidden_weight", hyperparameter="lr", axis="width", by=-0.5)
    shifted = recipe.with_rules(shifts=(wrong,))
    sizes["depths"] = (2,)
    assert not cdp.coordcheck(None, recipe=shifted, near_limit=True, quiet=True, **sizes).passed


def test_copies_train_alike() -> None:
    """A deep copy and a pickle of several optimizers as one step as the original does."""
    planned = make_plan(make_recipe(rules=MUON), device="cpu")
    model = planned.model
    planned.initialise()
    optimizer = planned.optimizer()
    batch = token_batches(1, seed=3)[0]

    def step(model: Any, optimizer: Any) -> list[torch.Tensor]:
        optimizer.zero_grad()
        model(batch[:, :-1]).square().sum().backward()
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    step(model, optimizer)
    twins = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    wanted = step(model, optimizer)
    for twin in twins:
        found = step(*twin)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
