"""The SDE of AdamW on a noisy quadratic: its laws agree, and the rules keep them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completedp.evidence.figures.sde import (
    FIGURE,
    NO_RULE,
    ROLE,
    ROOT,
    RULE,
    SQUARE,
    Problem,
    continuous_loss,
    discrete_loss,
    found,
    momentum_loss,
    numbers_at,
    sampled_loss,
)
from completedp.theory.roles import Role
from completedp.theory.rules import Rules, Shift
from completedp.theory.scale import Ratios

BASE = Problem()
INDEPENDENT = replace(BASE, weight_decay=BASE.decay, independent=True)
BATCHES = st.floats(0.1, 9.0)


@given(batch=BATCHES)
def test_the_batch_rule_keeps_the_sde(batch: float) -> None:
    """At any batch size the rules give the same drift and diffusion, and independent decay too."""
    for start, rules in ((BASE, RULE), (INDEPENDENT, SQUARE)):
        steps = start.steps / batch  # not rounded, as the law is of real numbers
        moved = start.at(Ratios(batch=batch), rules)
        assert moved.pull * steps == pytest.approx(start.drift, rel=1e-12)
        assert moved.lr**2 * steps == pytest.approx(start.diffusion**2, rel=1e-12)
        assert (1 - moved.beta1) * steps == pytest.approx((1 - start.beta1) * start.steps)


@given(batch=BATCHES, role=st.sampled_from(list(Role)))
def test_every_role_keeps_it(batch: float, role: Role) -> None:
    """lr^2 x steps, lr x decay x steps, eps over the noise and memory over steps do not change."""
    ratios = Ratios(batch=batch)
    for convention in ("torch", "independent"):
        factors = Rules(weight_decay=convention).factors(role, ratios)
        decay = factors.weight_decay * (factors.lr if convention == "torch" else 1.0)
        assert factors.lr**2 * ratios.steps == pytest.approx(1.0)
        assert decay * ratios.steps == pytest.approx(1.0)
        assert factors.one_minus_beta * ratios.steps == pytest.approx(1.0)
        assert factors.eps * math.sqrt(batch) == pytest.approx(1.0)


@pytest.mark.parametrize("rules", [NO_RULE, ROOT])
def test_other_rules_do_not(rules: Rules) -> None:
    """Without the batch rule, or with independent decay by the root alone, it is another SDE."""
    start = INDEPENDENT if rules.weight_decay == "independent" else BASE
    moved = start.at(Ratios(batch=4.0), rules)
    assert moved.drift != pytest.approx(start.drift, rel=0.01)


@pytest.mark.parametrize("hyperparameter", ["lr", "weight_decay"])
@pytest.mark.parametrize("by", [-0.25, 0.25])
def test_a_wrong_exponent_is_seen(hyperparameter: str, by: float) -> None:
    """An exponent that is off by a quarter changes the loss at the end."""
    shift = Shift(role=ROLE, hyperparameter=hyperparameter, axis="batch", by=by)
    wrong = BASE.at(Ratios(batch=8.0), Rules(shifts=(shift,)))
    assert continuous_loss(wrong) != pytest.approx(continuous_loss(BASE), rel=1e-3)


def test_the_steps_law_is_that_of_the_steps() -> None:
    """The closed form of the linear recursion is what adding up its steps gives."""
    problem = replace(BASE, steps=50)
    second = problem.start**2
    for _ in range(problem.steps):
        second = (1 - problem.pull) ** 2 * second + problem.lr**2
    assert discrete_loss(problem) == pytest.approx(0.5 * second, rel=1e-12)


def test_momentum_of_no_memory_is_none() -> None:
    """With beta1 = 0 the recursion with a moment is the one without."""
    problem = replace(BASE, steps=200, beta1=0.0)
    assert momentum_loss(problem) == pytest.approx(discrete_loss(problem), rel=1e-9)


def test_smaller_steps_are_closer_to_the_sde() -> None:
    """The error of the steps falls by half when they do."""
    problems = [BASE.at(Ratios(batch=batch), RULE) for batch in (4.0, 2.0, 1.0)]
    errors = [abs(discrete_loss(p) / continuous_loss(p) - 1) for p in problems]
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(2.0, rel=0.05)


def test_adamw_itself_is_near_its_law() -> None:
    """Sampled AdamW ends where the law says, to the error of sampling and of its second moment."""
    problem = replace(BASE, steps=512, beta2=0.999, lr=2.0**-6)
    mean, error = sampled_loss(problem, samples=4000)
    assert error < 0.03 * mean
    assert mean == pytest.approx(momentum_loss(problem), rel=0.1)


def test_less_noise_is_less_loss() -> None:
    """At the same horizon of the SDE the loss falls with the noise."""
    losses = [continuous_loss(replace(BASE, noise=noise)) for noise in np.geomspace(2, 64, 12)]
    assert losses == sorted(losses)


def test_the_verdict_can_fail() -> None:
    """All that is claimed holds; with the rule's numbers replaced by those without, it does not."""
    numbers = numbers_at(FIGURE.sizes["tiny"])
    assert {finding.verdict for finding in found("x", numbers).findings} == {"pass"}
    swapped = {
        law: {**values, "rule": values["no rule"], "no rule": values["rule"]}
        for law, values in numbers.items()
        if law in ("continuous", "discrete", "momentum", "sampled")
    }
    verdicts = [finding.verdict for finding in found("x", numbers | swapped).findings]
    assert verdicts.count("fail") == 7
