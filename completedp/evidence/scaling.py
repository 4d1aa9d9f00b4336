"""How measured sizes grow with width and depth: runs over sizes and seeds, and fitted slopes."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from completedp.apply.cautions import (
    HEADS_NOT_VISIBLE,
    check_heads,
    head_size_caution,
    set_by_plans,
)
from completedp.apply.classify import classify, size_of
from completedp.apply.model_map import PROBED, SIZED, ModelMap
from completedp.apply.multipliers import BUFFERS, is_for_multipliers
from completedp.apply.plan import Plan, make_plan
from completedp.apply.settings import is_same_constant
from completedp.apply.sizes import LEAST, moved
from completedp.common.errors import CompletedpError, short
from completedp.common.warn import warn
from completedp.evidence.check import Check
from completedp.evidence.measure import Sizes, measure
from completedp.evidence.rows import FACTOR, TIED_TOLERANCE, Row, verdict
from completedp.tasks.losses import next_token_loss
from completedp.tasks.task import REFERENCE
from completedp.tasks.weights import give_memory
from completedp.theory.recipe import Recipe
from completedp.theory.roles import MODULE_TYPES, Role
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale
from completedp.training.devices import choose_device


@dataclass(frozen=True)
class Measurement:
    """One axis of one parameterisation: for each quantity, values by size and seed."""

    axis: str
    rules: Rules
    sizes: tuple[int, ...]
    values: dict[tuple[str, str], np.ndarray]
    """(quantity, module type) -> log2 of the root mean square, [sizes, seeds]."""
    factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Of the model's own forward pass, by size: those that move along the axis."""

    def slope(self, key: tuple[str, str]) -> tuple[float, float | None]:
        """Slope of log size against log width or depth, and its standard error over seeds."""
        x = np.log2(np.array(self.sizes, dtype=float))
        slopes = np.polyfit(x, self.values[key], 1)[0]
        if len(slopes) == 1:
            return float(slopes[0]), None
        return float(slopes.mean()), float(slopes.std(ddof=1) / np.sqrt(len(slopes)))

    def tolerance(self, usual: float) -> float:
        """How far slopes may be from those expected, where nothing else is said."""
        is_tied = any(MODULE_TYPES.get(kind) is Role.TIED_EMBEDDING for _, kind in self.values)
        return max(usual, TIED_TOLERANCE) if is_tied else usual

    def row(self, key: tuple[str, str], expected: float, tolerance: float) -> Row:
        """The line of a check that compares this slope with theory."""
        slope, error = self.slope(key)
        return Row(
            parameterisation=self.rules.parameterisation,
            axis=self.axis,
            quantity=key[0],
            what=key[1],
            expected=expected,
            slope=slope,
            error=error,
            verdict=verdict(slope, expected, tolerance),
            values=tuple(float(v) for v in 2.0 ** self.values[key].mean(axis=1)),
        )

    def factor_rows(self) -> list[Row]:
        """Lines for the model's own factors, which act on top of every rule: none may move."""
        x = np.log2(np.array(self.sizes, dtype=float))
        return [
            Row(
                parameterisation=self.rules.parameterisation,
                axis=self.axis,
                quantity=FACTOR,
                what=name.removeprefix(PROBED).replace(SIZED, "size of "),
                expected=0.0,
                slope=float(np.polyfit(x, np.log2(np.abs(values)), 1)[0]),
                error=None,
                verdict="fail",
                values=values,
            )
            for name, values in self.factors.items()
        ]


def sweep(
    check: Check,
    rules: Rules,
    axis: str,
    progress: Callable[[int, str], None] | None = None,
) -> Measurement:
    """Measure at every size along one axis, the other held at its first value."""
    recipe = _recipe(check, rules)
    sizes = check.sizes(axis)
    found: dict[tuple[str, str], list[list[float]]] = {}
    factors: list[dict[str, float]] = []
    first = axis == "width" and rules is check.rules[0]
    for done, size in enumerate(sizes):
        per_seed: list[Sizes] = []
        for seed in range(check.seeds):
            if progress:
                progress(done * check.seeds + seed, f"{rules.parameterisation} {axis} {size}")
            model, planned = _planned(check, recipe, check.scale(axis, size), seed)
            if not seed and planned.map.probed is not None:
                factors.append(_factors(planned))
            with _named_after(check):
                per_seed.append(
                    measure(
                        check.task,
                        model,
                        planned,
                        examples=check.task.data.examples(check.batch),
                        steps=check.steps,
                        seed=seed,
                    )
                )
            recipe = _with_heads(recipe, planned.map)
            if first and (caution := head_size_caution(planned.map)):
                warn(caution)
            first = False
        for key in per_seed[0]:  # of what is routed, some may have seen nothing
            if all(key in sizes for sizes in per_seed):
                found.setdefault(key, []).append([sizes[key] for sizes in per_seed])
    tiny = np.finfo(float).tiny
    values = {
        key: np.log2(np.maximum(np.array(each), tiny))
        for key, each in found.items()
        if len(each) == len(sizes)
    }
    moved = _moved(factors) if len(factors) == len(sizes) else {}
    return Measurement(axis, rules, sizes, values, moved)


def _factors(planned: Plan) -> dict[str, float]:
    """A model's own, but for those that its plan sets right."""
    kept_right = set_by_plans(planned.map, planned.recipe)
    every = {**planned.map.constants, **planned.map.sizes}.items()
    return {name: value for name, value in every if name not in kept_right}


def _moved(factors: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """The factors that differ from size to size; what was seen to be 1 is not noted."""
    sizes = {name for each in factors[1:] for name in moved(each, factors[0])}
    found = {}
    for name in sizes:
        what = SIZED + name
        found[what] = tuple(each.get(what, each[what.removesuffix(LEAST)]) for each in factors)
    for name in dict.fromkeys(name for each in factors for name in each):
        if name.startswith(SIZED):
            continue
        values = tuple(each.get(name, 1.0) for each in factors)
        if not all(is_same_constant(value, values[0]) for value in values) and all(values):
            found[name] = values
    return found


def limit_recipe(check: Check, rules: Rules) -> Recipe:
    """The recipe of the short runs: one that is close to its limit at small sizes."""
    overrides = dict(check.task.overrides)
    recipe = Recipe.for_model(
        _model(check, check.base), check.base, lr=check.lr, rules=rules, overrides=overrides
    )
    return _from_limit(recipe)


def _from_limit(recipe: Recipe) -> Recipe:
    """The recipe with weights that start near where its rules' limit is.

    At alpha = 1 the limit neglects what the hidden weights' random start does to the stream, of
    order L^-1/2 of the rest, so they start small. At alpha = 1/2 it keeps that and neglects
    products of changes, so activations start at about 1. Between the two, between the two.
    Embeddings start at 1 and logits near 0, as limits have them. A tied one, which is both, starts
    between: smaller, the blocks drown it, and larger, its start moves the logits as m_N^-1/2.
    """
    small, whole = 0.02, recipe.base.width**-0.5
    hidden = small * (whole / small) ** (2.0 - 2.0 * recipe.rules.alpha)
    starts = {
        f"init_std/type/{kind}": math.log2(1.0 / hidden)
        for kind in recipe.types
        if MODULE_TYPES[kind] is Role.INPUT_EMBEDDING
    }
    starts["init_std/type/unembedding"] = math.log2(small / hidden)
    starts["init_std/type/tied_embedding"] = math.log2(0.65 * whole / hidden)
    tuned = recipe.with_values(init_std=hidden).hyperparameters
    kept = {
        name: value
        for name, value in tuned.log2.items()
        if not name.startswith("init_std/") and name != "lr/global"
    }
    return replace(recipe, hyperparameters=replace(tuned, log2=kept | starts))


def _recipe(check: Check, rules: Rules) -> Recipe:
    if check.recipe is None:
        return limit_recipe(check, rules)
    recipe = replace(check.recipe, rules=rules)
    return _from_limit(recipe) if check.near_limit else recipe


def forewarn(check: Check) -> None:
    """Warn, once, of what plans of this model warn of: at one larger size than the first.

    Measuring plans many, at every size and seed, and would say it of each.
    """
    # The second of each, where there is one: small enough to be run.
    larger = {axis: check.sizes(axis)[:2][-1] for axis in ("width", "depth")}
    with warnings.catch_warnings():
        # Measuring sees more, with the data that the model is for, and warns itself.
        warnings.filterwarnings("ignore", HEADS_NOT_VISIBLE)
        _plan(check, _recipe(check, check.rules[0]), replace(check.base, **larger))


def _with_heads(recipe: Recipe, measured: ModelMap) -> Recipe:
    """The recipe, which then knows the size of the heads if it did not. Raises at another one."""
    check_heads(measured, recipe)
    return recipe if recipe.head_dim else replace(recipe, head_dim=measured.head_dim)


def _planned(check: Check, recipe: Recipe, target: Scale, seed: int) -> tuple[nn.Module, Plan]:
    """A model of that size, initialised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said before (`forewarn`)
        model, planned = _plan(check, recipe, target)
    give_memory(model, choose_device(check.device))
    planned.initialise(seed)
    return model, planned


def _plan(check: Check, recipe: Recipe, target: Scale) -> tuple[nn.Module, Plan]:
    """A model of that size, and its plan. Multipliers are never folded: sizes are without them."""
    model = _model(check, target)
    name = BUFFERS["attn"]
    has_buffer = is_for_multipliers(getattr(model, name, None), name, target.depth)
    way = "buffer" if has_buffer else "hook"
    return model, make_plan(model, recipe, target, overrides=check.task.overrides, multipliers=way)


def _model(check: Check, scale: Scale) -> nn.Module:
    """The model at a scale, in float32, its parameters without memory."""
    task, inherited = check.task, check.recipe.overrides if check.recipe else None
    model = task.model(scale)
    found = size_of(model, task.overrides, inherited=inherited)
    if found != (scale.width, scale.depth):
        raise CompletedpError(
            f"model {task.name!r} gave width {found[0]} and depth {found[1]} when asked for "
            f"{scale.width} and {scale.depth}"
        )
    tensors = classify(model, task.overrides, inherited=inherited)
    tokens = next(t.shape[0] for t in tensors if t.embeds_tokens)
    if check.vocab is not None and tokens < check.vocab:
        raise CompletedpError(
            f"model {task.name!r} has {tokens} tokens, and the check's text {check.vocab}"
        )
    return model.float()


@contextlib.contextmanager
def _named_after(check: Check) -> Iterator[None]:
    """What the user's own code raises, as one line that says whose it is."""
    try:
        yield
    except CompletedpError:
        raise
    except Exception as error:
        if check.task.name == REFERENCE and check.task.loss is next_token_loss:
            raise  # a fault of ours
        raise CompletedpError(
            f"model {check.task.name!r} cannot be checked: on a batch of {check.task.data.name} "
            f"it raised {short(error)}"
        ) from error
