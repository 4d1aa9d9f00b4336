"""Trust: what to doubt of a recipe at a target, each doubt a line that quotes its numbers.

A recipe is as good as its base was large and long, and known as far as it was measured. The
thresholds are here, each with its reason; they say when to look twice, not when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from completedp.common.surface import with_rule
from completedp.theory.horizon import BATCH_HOLDS_TO, fitted_to, recorded
from completedp.theory.recipe import Recipe
from completedp.theory.rules import AXES
from completedp.theory.scale import Ratios, Scale

LEAST_WIDTH = 64
"""Tensor Programs V (2203.03466) advises a base of width 256. From 128 the best rate stayed put
over x8; from 64 it fell by half an octave, which cost 0.01 to 0.02 nats (docs/results.md,
lr-width), and values kept their gain at x4. Of narrower ones the rate alone was tried (base-size).
"""
LEAST_DEPTH = 4
"""Tensor Programs V advises 4 blocks; values tuned per block on so few already fit those few."""
LEAST_STEPS = 1000
"""Tensor Programs V advises 5,000. Of values tuned over 200 steps, a fifteenth of the gain was left
at x4 the tokens: they make the first 200 steps fast."""
LEAST_TOKENS_PER_PARAMETER = 10
"""20 is the usual compute-optimal number (2203.15556). Values tuned at 25 kept their gain at x4 the
tokens; those tuned at fewer than 1 lost it."""
LONGEST_TAU = 10
"""Run lengths (timescale.py). Over a run, decay then takes less than a tenth of a weight. The best
tau is around (tokens a parameter)^-0.53, below 1 (Power Lines, 2505.13738)."""
MOST_BATCH_FOR_TOKENS = 2
"""How much more the batch may grow than the tokens do. By the rule, and at the base's best learning
rate, x4 cost 0.6 nats from a base of 1,024 steps (docs/transfer.md); from one of 8,192 steps it
cost nothing, and x8 0.1, which are the betas' doing (docs/results.md, lr-batch)."""
LEAST_MEMORY = 10
"""Steps that second moments average over, 1/(1 - beta2). The batch rule is that of a limit in which
these are many. Of one base 5 cost nothing and 2.5 cost 0.1 nats over kept betas; with longer
memories at that base 12.5 gained 0.04 over the 100 that were kept (docs/results.md, lr-batch); of
the default recipe 5 cost 0.04 (docs/results/betas.md). So this is no edge, only where to look."""
MOST_BATCH_TRIED = 8
"""How much more the batch grew than the tokens where its betas were kept. With 1,024 steps left it
cost 0.00 +- 0.07 nats (docs/results.md, lr-batch), with 256 left a nat (docs/results/betas.md); 4
cost the recipes that ship 0.05 to 0.08."""
MOST_R = 2
"""The r up to which batch and tokens may grow. Of the default recipe 4 cost 0.06 nats and 5.7
0.08, over a quarter of the batch for as many tokens, and at 1.4 its own rates were as good as any
(docs/results/betas.md, docs/recipes.md)."""
MOST_LENGTHENED = 8
"""How many times longer memories may become. 4 and 8 gained the default recipe 0.01 nats or
nothing, and 8 cost another base 0.1 (docs/results/betas.md)."""
FAR_TOKENS = 100
"""How much further than they were checked tokens may grow before their exponent is most of what
is not known: a factor of 3 in every learning rate."""
EXPONENTS_SEEN = (0.25, 0.5)
"""Of the horizon: the recipes that ship have the one, the paper the other (docs/results.md,
tokens-exponent)."""
LARGER = Ratios(width=2, depth=2, batch=2, tokens=2)
"""What every base is for."""
MOST_SHRUNK = 8
"""Nobody takes so much smaller a batch on purpose; who counts sequences of 256 tokens or more does.
"""
_SAME = 1.01
"""Ratios that differ by less are one: sizes are whole numbers."""


def doubts(
    recipe: Recipe,
    target: Scale,
    *,
    taus: Iterable[float] = (),
    memories: Iterable[tuple[float, float]] = (),
    tokens_per_parameter: float | None = None,
) -> Iterator[str]:
    """What to know of a recipe before training by it at a target.

    `taus` are those of the matrices there, `memories` every tensor's steps of second moments at
    base and there; `tokens_per_parameter` is the base's, where the recipe's evidence does not say
    it.
    """
    ratios = target / recipe.base
    recorded = recipe.evidence and recipe.evidence.tokens_per_parameter
    yield from small_base(recipe.base, ratios, recorded or tokens_per_parameter)
    yield from unchecked(recipe, ratios)
    yield from far_horizon(recipe, ratios)
    yield from few_tokens(target, ratios)
    yield from few_steps(target, ratios, betas_kept=recipe.rules.beta_rule == "keep")
    yield from beyond_measured_batch(recipe, ratios)
    yield from risen_rates(recipe, ratios)
    yield from short_memory(memories, ratios, recipe.rules.memory_factor(ratios))
    yield from long_memory(recipe.rules.memory_factor(ratios))
    yield from idle_decay(taus)


def small_base(
    base: Scale, ratios: Ratios, tokens_per_parameter: float | None = None
) -> Iterator[str]:
    """Where the base is too small, or its run too short, for a target that is larger."""
    grows = any(getattr(ratios, axis) > _SAME for axis in AXES)
    found = []
    if ratios.width > _SAME and base.width < LEAST_WIDTH:
        found.append(f"width {base.width} (better {LEAST_WIDTH} or more)")
    if ratios.depth > _SAME and base.depth < LEAST_DEPTH:
        found.append(f"depth {base.depth} (better {LEAST_DEPTH} or more)")
    if grows and base.steps < LEAST_STEPS:
        found.append(f"{base.steps:,} steps (better {LEAST_STEPS:,} or more)")
    if grows and (tokens_per_parameter or math.inf) < LEAST_TOKENS_PER_PARAMETER:
        found.append(
            f"{tokens_per_parameter:.2g} tokens a parameter "
            f"(better {LEAST_TOKENS_PER_PARAMETER} or more)"
        )
    if found:
        yield f"the base is small or short: {', '.join(found)}; what is best there may not last"


def unchecked(recipe: Recipe, ratios: Ratios) -> Iterator[str]:
    """Where an axis goes beyond the scales at which the recipe's values were measured."""
    ranges = recipe.evidence.ranges(recipe.base) if recipe.evidence else {}
    asked = {axis: getattr(ratios, axis) for axis in AXES}

    def is_known(axis: str) -> bool:
        low, high = ranges.get(axis, (1.0, 1.0))  # at its base a recipe is not asked for anything
        return low / _SAME < asked[axis] < high * _SAME

    if all(map(is_known, AXES)):
        return
    wanted = ", ".join(f"{axis} {_times(ratio)}" for axis, ratio in asked.items())
    if not ranges:
        yield f"the recipe records no run that checked it; asked for: {wanted}"
    elif all(low == high == 1.0 for low, high in ranges.values()):
        yield f"the recipe was checked at its base alone; asked for: {wanted}"
    else:
        numbers = ", ".join(map(_times, asked.values()))
        yield f"the recipe was checked to {shown_ranges(ranges)}; asked for: {numbers}"


def far_horizon(recipe: Recipe, ratios: Ratios) -> Iterator[str]:
    """Where tokens grow so far beyond what was checked that the horizon's exponent decides."""
    ranges = recipe.evidence.ranges(recipe.base) if recipe.evidence else {}
    fitted = (fitted_to(recipe) or 0.0) / recipe.base.tokens
    beyond = ratios.tokens / max(fitted, ranges.get("tokens", (1.0, 1.0))[1])
    if beyond >= FAR_TOKENS and "tokens" in recipe.rules.axes:
        low, high = EXPONENTS_SEEN
        yield (
            f"the tokens grow {_times(ratios.tokens)}, {_times(beyond)} of what was measured: from "
            f"there on exponents of {low:g} and {high:g} give learning rates that differ "
            f"{_times(beyond ** (high - low))}, and this recipe has "
            f"{recipe.rules.token_exponent:g}; measure it as far out as you can (fit-horizon)"
        )


def few_tokens(target: Scale, ratios: Ratios) -> Iterator[str]:
    """Where a batch is so much smaller than the base's that sequences may have been counted."""
    if ratios.batch <= 1 / MOST_SHRUNK:
        yield (
            f"a batch of {target.batch:,} tokens is {1 / ratios.batch:,.0f} times less than the "
            "base's: batch counts tokens, not sequences"
        )


def few_steps(target: Scale, ratios: Ratios, *, betas_kept: bool = False) -> Iterator[str]:
    """Where the batch grows by so much more than the tokens that its rule breaks."""
    growth = ratios.batch / ratios.tokens
    most = MOST_BATCH_TRIED if betas_kept else MOST_BATCH_FOR_TOKENS
    grows = f"the batch grows x{ratios.batch:.3g} and the tokens x{ratios.tokens:.3g}"
    advice = "grow both, or tune at a larger batch"
    if ratios.batch <= _SAME or growth <= _SAME:
        return
    if growth > most * _SAME and betas_kept:
        yield (
            f"{grows}: beyond x{most} of the tokens' growth kept betas held only from a base far "
            f"below its critical batch; {advice}"
        )
    elif growth > most * _SAME:
        yield (
            f"{grows}: beyond x{most} of the tokens' growth the batch rule broke at the base's "
            "best learning rate (x4 cost 0.6 nats from 1,024 steps, x8 0.1 from 8,192 and, with "
            f'beta_rule="keep", nothing there); {advice}'
        )
    elif growth > MOST_BATCH_FOR_TOKENS * _SAME and target.steps < LEAST_STEPS:
        yield (
            f"{grows}, which leaves {target.steps:,} steps: with 256 a recipe ended a nat higher "
            f"than with 4,096, whatever its betas; {advice}"
        )


def beyond_measured_batch(recipe: Recipe, ratios: Ratios) -> Iterator[str]:
    """Where the batch grows by more than the recipe's own fit found its rule to hold for."""
    holds, base = recorded(recipe, BATCH_HOLDS_TO), recipe.base.batch
    if holds is None or ratios.batch <= _SAME:
        return
    if ratios.batch / ratios.tokens > max(1.0, holds / base) * _SAME:
        yield (
            f"the batch grows x{ratios.batch:.3g} and the tokens x{ratios.tokens:.3g}: for as many "
            f"tokens the recipe's fit found the batch rule to hold to {holds:,.0f} tokens a step, "
            f"from {base:,}; take a smaller batch, or more tokens"
        )


def risen_rates(recipe: Recipe, ratios: Ratios) -> Iterator[str]:
    """Where a batch that grows with the tokens raises rates further than has been seen to hold."""
    r, rules = recipe.rules.r(ratios), recipe.rules
    seen_by_steps = ratios.batch / ratios.tokens > MOST_BATCH_FOR_TOKENS * _SAME
    if seen_by_steps or r <= MOST_R * _SAME or ratios.batch <= _SAME:
        return
    most = MOST_R * recipe.base.batch * ratios.batch / r
    yield (
        f"r is {r:.3g}: the batch {_times(ratios.batch)} and, by a token exponent of "
        f"{rules.token_exponent:g}, the tokens {_times(ratios.tokens)} raise learning rates "
        f"{_times(math.sqrt(r))}; at r 4 to 5.7 the default recipe ended 0.06 to 0.08 nats above "
        "a quarter of the batch for as many tokens; take at most "
        f"{most:,.0f} tokens a step, or tune at a larger batch"
    )


def short_memory(
    memories: Iterable[tuple[float, float]], ratios: Ratios, r: float
) -> Iterator[str]:
    """Where the batch grows so far that second moments forget within a few steps."""
    shortened = [there for base, there in memories if there < LEAST_MEMORY <= base]
    if shortened:
        yield (
            f"beta2 falls to {1 - 1 / min(shortened):.3g}: with the batch x{ratios.batch:.3g} and "
            f"the tokens x{ratios.tokens:.3g} this recipe's rules shorten the optimizer's memory "
            f"{r:.3g} times, and second moments average over {min(shortened):.2g} step(s), where "
            "the batch rule is that of many; of the default recipe kept betas ended 0.04 nats "
            f"lower at 4 times and 0.5 at 16: {with_rule('beta_rule', 'keep')}"
        )


def long_memory(r: float) -> Iterator[str]:
    """Where the tokens grow so far that moments remember for much longer than at the base."""
    if 1 / r * _SAME >= MOST_LENGTHENED:
        yield (
            f"this recipe's rules make the optimizer's memory {1 / r:.3g} times longer: "
            f"{MOST_LENGTHENED} times cost one base 0.1 nats and gained another 0.01 or nothing; "
            f"to try both: {with_rule('beta_rule', 'keep')}"
        )


def idle_decay(taus: Iterable[float]) -> Iterator[str]:
    """Where no matrix has a decay that does something, though there is one."""
    shortest = min(taus, default=math.inf)
    if LONGEST_TAU < shortest < math.inf:
        yield (
            f"the weight decay does nothing: tau = 1/(lr x weight decay x steps) is {shortest:.3g} "
            f"run lengths or more for every matrix, and does something below about {LONGEST_TAU}"
        )


def _times(ratio: float) -> str:
    """A ratio for people: x35,763, and not x3.576e+04."""
    return f"x{ratio:,.0f}" if ratio >= 10_000 else f"x{ratio:.4g}"


def shown_ranges(ranges: dict[str, tuple[float, float]]) -> str:
    """How far each axis was measured, in words."""
    return ", ".join(
        f"{axis} x{high:.4g}" if low > 1 / _SAME else f"{axis} x{low:.4g} to x{high:.4g}"
        for axis, (low, high) in ranges.items()
    )
