"""sde: training as the discretisation of an SDE, on a quadratic where its law is known exactly.

One weight with the gradient h x + noise / sqrt(batch). While the noise dominates, AdamW divides by
its size, and what is left is linear: mean and variance of the weight after any number of steps are
exact, without sampling. So are those of the SDE which the steps discretise. Hence what is claimed
can be shown in numbers: under the batch rule the SDE is the same, and the steps come closer to it
as they get smaller; without the rule, or with decay scaled by the root alone where it is not
multiplied by the learning rate, it is another; and less noise means less loss. AdamW itself, its
moments and its eps included, is sampled beside it. The factors are those of the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from completedp.evidence.figures.drawing import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    QUIET,
    RED,
    canvas,
    factors_axis,
    finish,
)
from completedp.evidence.figures.figure import Found, judged
from completedp.theory.rules import Rules, Shift
from completedp.theory.scale import Ratios
from completedp.training.cost import Cost

ROLE = "hidden_weight"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A noisy quadratic and AdamW's values on it."""

    curvature: float = 1.0
    noise: float = 16.0
    """Standard deviation of a gradient at the base's batch."""
    start: float = 1.0
    steps: int = 4096
    lr: float = 2.0**-7
    weight_decay: float = 0.05
    """As a multiple of lr; of independent decay, by itself."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    independent: bool = False

    def at(self, ratios: Ratios, rules: Rules) -> Problem:
        """The same problem at another batch size and length, its values carried by rules."""
        factors = rules.factors(ROLE, ratios)
        return replace(
            self,
            noise=self.noise / math.sqrt(ratios.batch),
            steps=round(self.steps * ratios.steps),
            lr=self.lr * factors.lr,
            weight_decay=self.weight_decay * factors.weight_decay,
            eps=self.eps * factors.eps,
            beta1=rules.scale_beta("beta1", self.beta1, factors.one_minus_beta),
            beta2=rules.scale_beta("beta2", self.beta2, factors.one_minus_beta),
        )

    @property
    def decay(self) -> float:
        """What a step's decay multiplies the weight by, less than 1 by this."""
        return self.weight_decay * (1.0 if self.independent else self.lr)

    @property
    def pull(self) -> float:
        """The part of the weight that a step takes away, where the noise dominates."""
        return self.lr * self.curvature / self.noise + self.decay

    @property
    def drift(self) -> float:
        """The SDE over the whole run as dx = -drift x dt + diffusion dW, t from 0 to 1."""
        return self.pull * self.steps

    @property
    def diffusion(self) -> float:
        """Of the same."""
        return self.lr * math.sqrt(self.steps)


def continuous_loss(problem: Problem) -> float:
    """Expected loss h x^2 / 2 at the end of the SDE: an Ornstein-Uhlenbeck process."""
    a, b = problem.drift, problem.diffusion
    fading = math.exp(-2.0 * a)
    second = problem.start**2 * fading + b**2 * (1.0 - fading) / (2.0 * a)
    return 0.5 * problem.curvature * second


def discrete_loss(problem: Problem) -> float:
    """Expected loss after the steps themselves: mean and variance of a linear recursion."""
    kept = (1.0 - problem.pull) ** 2
    power = kept**problem.steps
    second = problem.start**2 * power + problem.lr**2 * (1.0 - power) / (1.0 - kept)
    return 0.5 * problem.curvature * second


def momentum_loss(problem: Problem) -> float:
    """The same with AdamW's first moment and its correction: a recursion in (weight, moment)."""
    beta, h = problem.beta1, problem.curvature / problem.noise
    second = np.array([[problem.start**2, 0.0], [0.0, 0.0]])
    injected = np.array([0.0, 1.0 - beta])
    for step in range(1, problem.steps + 1):
        # moment' = beta moment + (1 - beta)(h x + e); x' = (1 - decay) x - rate moment'
        rate = problem.lr / (1.0 - beta**step)
        to_moment = np.array([(1.0 - beta) * h, beta])
        matrix = np.array([[1.0 - problem.decay, 0.0] - rate * to_moment, to_moment])
        noise = np.array([-rate * injected[1], injected[1]])
        second = matrix @ second @ matrix.T + np.outer(noise, noise)
    return 0.5 * problem.curvature * float(second[0, 0])


def sampled_loss(problem: Problem, samples: int, seed: int = 0) -> tuple[float, float]:
    """Mean loss at the end of AdamW itself over many runs, and its standard error."""
    rng = np.random.default_rng(seed)
    weight = np.full(samples, problem.start)
    first, second = np.zeros(samples), np.zeros(samples)
    for step in range(1, problem.steps + 1):
        gradient = problem.curvature * weight + problem.noise * rng.standard_normal(samples)
        first += (1.0 - problem.beta1) * (gradient - first)
        second += (1.0 - problem.beta2) * (gradient**2 - second)
        correction = math.sqrt(1.0 - problem.beta2**step)
        weight *= 1.0 - problem.decay
        weight -= (
            problem.lr
            / (1.0 - problem.beta1**step)
            * first
            / (np.sqrt(second) / correction + problem.eps)
        )
    losses = 0.5 * problem.curvature * weight**2
    return float(losses.mean()), float(losses.std(ddof=1) / math.sqrt(samples))


RULE = Rules()
NO_RULE = Rules(axes=("width", "depth", "tokens"))
SQUARE = Rules(weight_decay="independent")
ROOT = Rules(
    weight_decay="independent",
    shifts=(Shift(role=ROLE, hyperparameter="weight_decay", axis="batch", by=-0.5),),
)


@dataclass(frozen=True, kw_only=True)
class SdeSize:
    """How much is computed."""

    samples: int
    steps: int
    batches: tuple[int, ...] = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Sde:
    """The figure."""

    name: str = "sde"
    claim: str = (
        "AdamW's steps follow an SDE that the batch rule leaves unchanged; without the rule it is "
        "another"
    )
    paper: str = "Sections 2.2 and 2.3, equations 1 and 2"
    see: str = (
        "If the claim holds, lines of the rule lie on each other at every batch size, and those "
        "without it do not."
    )
    sizes: Mapping[str, SdeSize]

    def cost(self, size: str) -> Cost:
        """Seconds, whatever the size."""
        at = self.sizes[size]
        return Cost(seconds_besides=3e-8 * at.samples * at.steps * len(at.batches) + 2)

    def run(self, size: str, lab: Any = None) -> Found:
        """Compute, judge, draw."""
        return found(self.claim, numbers_at(self.sizes[size]))


def numbers_at(at: SdeSize) -> dict[str, Any]:
    """Losses of every law under every rule, by batch size."""
    torch_decay = Problem(steps=at.steps)
    strong = replace(torch_decay, weight_decay=2.0, noise=64.0)
    independent = replace(strong, weight_decay=strong.decay, independent=True)

    def over(start: Problem, rules: Rules, law: Any) -> list[float]:
        return [law(start.at(Ratios(batch=float(k)), rules)) for k in at.batches]

    sampled = {
        name: [
            sampled_loss(torch_decay.at(Ratios(batch=float(k)), rules), at.samples, seed=k)
            for k in at.batches
        ]
        for name, rules in (("rule", RULE), ("no rule", NO_RULE))
    }
    shrinking = [2**i for i in range(6)]
    errors = []
    for factor in shrinking:  # the same SDE in more and smaller steps: a smaller batch
        finer = torch_decay.at(Ratios(batch=at.batches[-1] / factor), RULE)
        errors.append(abs(discrete_loss(finer) / continuous_loss(finer) - 1.0))
    noises = [2.0**i for i in range(-3, 4)]
    quieter = [
        continuous_loss(replace(torch_decay, noise=torch_decay.noise * noise)) for noise in noises
    ]
    return {
        "batches": list(at.batches),
        "continuous": {
            "rule": over(torch_decay, RULE, continuous_loss),
            "no rule": over(torch_decay, NO_RULE, continuous_loss),
            "independent, square": over(independent, SQUARE, continuous_loss),
            "independent, root": over(independent, ROOT, continuous_loss),
        },
        "discrete": {
            "rule": over(torch_decay, RULE, discrete_loss),
            "no rule": over(torch_decay, NO_RULE, discrete_loss),
            "independent, square": over(independent, SQUARE, discrete_loss),
            "independent, root": over(independent, ROOT, discrete_loss),
        },
        "momentum": {
            "rule": over(torch_decay, RULE, momentum_loss),
            "no rule": over(torch_decay, NO_RULE, momentum_loss),
        },
        "sampled": {name: [x[0] for x in pairs] for name, pairs in sampled.items()},
        "sampled_errors": {name: [x[1] for x in pairs] for name, pairs in sampled.items()},
        "shrinking": shrinking,
        "discretisation_errors": errors,
        "noises": noises,
        "losses_by_noise": quieter,
    }


def found(claim: str, numbers: dict[str, Any]) -> Found:
    """The verdict on the numbers."""
    last = numbers["batches"][-1]
    findings = []

    def change(law: str, name: str) -> float:
        """Octaves by which the loss changes over the whole range of batch sizes."""
        losses = numbers[law][name]
        return math.log2(losses[-1] / losses[0])

    def exactly(text: str, value: float, **limits: float) -> None:
        size = abs(value)
        findings.append(judged(text, size, (size, size), unit="octaves of loss", **limits))

    over = f"over x{last} in batch"
    exactly(
        f"the rule leaves the SDE's loss as it is {over}",
        change("continuous", "rule"),
        at_most=1e-9,
    )
    exactly(f"without the rule it changes {over}", change("continuous", "no rule"), at_least=0.5)
    exactly(
        f"independent decay: its square leaves it as it is {over}",
        change("continuous", "independent, square"),
        at_most=1e-9,
    )
    exactly(
        f"independent decay: the root alone changes it {over}",
        change("continuous", "independent, root"),
        at_least=0.1,
    )
    exactly(f"the steps themselves, with the rule {over}", change("discrete", "rule"), at_most=0.1)
    exactly(f"with AdamW's momentum, with the rule {over}", change("momentum", "rule"), at_most=0.1)
    exactly(f"with momentum, without it {over}", change("momentum", "no rule"), at_least=0.5)
    for name, limits in (("rule", {"at_most": 0.25}), ("no rule", {"at_least": 0.5})):
        losses, errors = numbers["sampled"][name], numbers["sampled_errors"][name]
        value = math.log2(losses[-1] / losses[0])
        relative = math.hypot(errors[0] / losses[0], errors[-1] / losses[-1])
        half = 1.96 * relative / math.log(2)
        low = max(0.0, abs(value) - half)
        text = f"AdamW itself, sampled, {'with' if name == 'rule' else 'without'} the rule {over}"
        findings.append(
            judged(text, abs(value), (low, abs(value) + half), unit="octaves of loss", **limits)
        )
    errors = numbers["discretisation_errors"]
    order = math.log2(errors[0] / errors[-1]) / math.log2(
        numbers["shrinking"][-1] / numbers["shrinking"][0]
    )
    findings.append(
        judged(
            "the steps' error falls as their size: order of the discretisation",
            order,
            (order, order),
            at_least=0.9,
            at_most=1.1,
        )
    )
    by_noise = numbers["losses_by_noise"]
    least = min(math.log2(b / a) for a, b in pairwise(by_noise))
    findings.append(
        judged(
            "twice the noise raises the loss everywhere: least rise",
            least,
            (least, least),
            unit="octaves of loss",
            at_least=0.0,
        )
    )
    return Found(
        findings=findings,
        numbers=numbers,
        raw=numbers,
        text=_table(numbers),
        svg=_draw(claim, numbers),
    )


def _table(numbers: Mapping[str, Any]) -> str:
    batches = numbers["batches"]
    head = f"{'expected loss at the end':<34}" + "".join(f"{f'batch x{k}':>12}" for k in batches)
    out = [head]
    for law in ("continuous", "discrete", "momentum", "sampled"):
        for name, losses in numbers[law].items():
            row = "".join(f"{loss:>12.5g}" for loss in losses)
            out.append(f"{law + ', ' + name:<34}{row}")
    return "\n".join(out)


def _draw(claim: str, numbers: Mapping[str, Any]) -> str:
    base = Problem()
    setting = (
        f"One weight, gradient h x + noise; AdamW with lr 2^{math.log2(base.lr):g}, decay "
        f"{base.weight_decay:g}, betas {base.beta1:g} and {base.beta2:g}. Lines are exact laws; "
        "dots are AdamW itself, sampled, with bars of two standard errors."
    )
    with canvas(1, 4, claim, setting, panel=(3.3, 3.0)) as (figure, grid):
        one, two, three, four = grid[0]
        _laws(one, numbers)
        _decays(two, numbers)
        sizes = [1 / factor for factor in numbers["shrinking"]]
        _power_law(three, sizes, numbers["discretisation_errors"], BLUE)
        three.set_title("the steps come closer to the SDE", loc="left")
        three.set_xlabel("size of a step, in the largest")
        three.set_ylabel("relative error of the loss")
        _power_law(four, numbers["noises"], numbers["losses_by_noise"], GREEN)
        four.set_title("less noise, less loss", loc="left")
        four.set_xlabel("noise of the gradient, in the base's")
        four.set_ylabel("loss at the same horizon")
        return finish(figure)


def _power_law(panel: Any, x: Sequence[float], y: Sequence[float], colour: str) -> None:
    panel.plot(x, y, "-o", color=colour, markersize=4)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)


def _laws(panel: Any, numbers: Mapping[str, Any]) -> None:
    batches = numbers["batches"]
    for name, colour, label in (("rule", BLUE, "the rule"), ("no rule", GREY, "no rule")):
        exact, steps = numbers["continuous"][name], numbers["momentum"][name]
        panel.plot(batches, exact, "-", color=colour, linewidth=1.6, label=label)
        panel.plot(batches, steps, ":", color=colour, linewidth=1.8)
        panel.errorbar(
            batches,
            numbers["sampled"][name],
            yerr=[2 * error for error in numbers["sampled_errors"][name]],
            fmt="o",
            color=colour,
            markersize=4.5,
            capsize=2,
            markeredgecolor=INK,
            markeredgewidth=0.6,
        )
    panel.plot([], [], ":", color=QUIET, label="steps with momentum")
    panel.plot([], [], "o", color=QUIET, markersize=4.5, label="AdamW, sampled")
    factors_axis(panel, batches)
    panel.set_yscale("log", base=2)
    panel.set_title("the batch rule", loc="left")
    panel.set_xlabel("batch, at the same tokens")
    panel.set_ylabel("expected loss at the end")
    panel.legend(fontsize=7, loc="upper left")


def _decays(panel: Any, numbers: Mapping[str, Any]) -> None:
    batches = numbers["batches"]
    for name, colour, label in (
        ("independent, square", AMBER, "decay x factor (the rule)"),
        ("independent, root", RED, "decay x root of the factor"),
    ):
        panel.plot(
            batches, numbers["continuous"][name], "-", color=colour, linewidth=1.6, label=label
        )
        panel.plot(batches, numbers["discrete"][name], ":", color=colour, linewidth=1.8)
    panel.plot([], [], ":", color=QUIET, label="the steps themselves")
    factors_axis(panel, batches)
    panel.set_title("independent decay", loc="left")
    panel.set_xlabel("batch, at the same tokens")
    panel.legend(fontsize=7)


FIGURE = Sde(
    sizes={
        "tiny": SdeSize(samples=2000, steps=1024),
        "cpu": SdeSize(samples=20_000, steps=4096),
        "gpu": SdeSize(samples=100_000, steps=4096),
        "paper": SdeSize(samples=400_000, steps=16_384),
    }
)
