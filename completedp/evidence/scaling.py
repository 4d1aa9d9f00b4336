"""How measured sizes grow with width and depth: runs over sizes and seeds, and fitted slopes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from completedp.apply.classify import classify, size_of
from completedp.apply.plan import Plan, plan
from completedp.apply.sources import call, overrides_from
from completedp.common.errors import CompletedpError
from completedp.evidence.config import CheckConfig
from completedp.evidence.measure import Sizes, byte_text, measure
from completedp.lm.shape import Shape
from completedp.lm.tokenizer import ByteTokenizer
from completedp.theory.recipe import Recipe
from completedp.theory.roles import MODULE_TYPES, Role
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale
from completedp.training.build import choose_device, meta_model, model_config, planned_model


@dataclass(frozen=True)
class Measurement:
    """One axis of one parameterisation: for each quantity, values by size and seed."""

    axis: str
    rules: Rules
    sizes: tuple[int, ...]
    values: dict[tuple[str, str], np.ndarray]
    """(quantity, module type) -> log2 of the root mean square, [sizes, seeds]."""

    def slope(self, key: tuple[str, str]) -> tuple[float, float | None]:
        """Slope of log size against log width or depth, and its standard error over seeds."""
        x = np.log2(np.array(self.sizes, dtype=float))
        slopes = np.polyfit(x, self.values[key], 1)[0]
        if len(slopes) == 1:
            return float(slopes[0]), None
        return float(slopes.mean()), float(slopes.std(ddof=1) / np.sqrt(len(slopes)))

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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a check."""

    parameterisation: str
    axis: str
    quantity: str
    what: str
    """Module type, or role for invariants."""
    expected: float
    slope: float
    error: float | None
    verdict: str
    """pass, fail, or known: a fault of the printed table itself, which has a switch."""
    values: tuple[float, ...] = ()
    """Root mean squares by size."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What a check found."""

    check: str
    config: CheckConfig
    rows: list[Row]

    def passed(self, parameterisation: str, axis: str | None = None) -> bool:
        """Whether nothing failed."""
        return not self.failures(parameterisation, axis)

    def failures(self, parameterisation: str, axis: str | None = None) -> list[Row]:
        """The rows that failed."""
        return [
            row
            for row in self.rows
            if row.parameterisation == parameterisation
            and axis in (None, row.axis)
            and row.verdict == "fail"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "check": self.check,
            "config": self.config.to_dict(),
            "passed": {p: self.passed(p) for p in self.config.parameterisations},
            "rows": [row.to_dict() for row in self.rows],
        }


def axes_of(config: CheckConfig) -> list[str]:
    """The axes along which there is something to compare."""
    sizes = {"width": config.widths, "depth": config.depths}
    return [axis for axis, values in sizes.items() if len(values) > 1]


def sweep(
    config: CheckConfig,
    rules: Rules,
    axis: str,
    progress: Callable[[int, str], None] | None = None,
) -> Measurement:
    """Measure at every size along one axis, the other held at its first value."""
    text = byte_text(config.text)
    base = _scale(config, config.widths[0], config.depths[0])
    recipe = check_recipe(config, rules, base)
    sizes = config.widths if axis == "width" else config.depths
    found: dict[tuple[str, str], list[list[float]]] = {}
    for done, size in enumerate(sizes):
        target = replace(base, **{axis: size})
        per_seed: list[Sizes] = []
        for seed in range(config.seeds):
            if progress:
                progress(done * config.seeds + seed, f"{rules.parameterisation} {axis} {size}")
            model, planned = _planned(config, recipe, target, seed)
            try:
                sizes_now = measure(
                    model, planned, text, context=config.context, steps=config.steps, seed=seed
                )
            except Exception as error:
                if config.model is None or isinstance(error, CompletedpError):
                    raise
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                raise CompletedpError(
                    f"model {config.model!r} cannot be checked: called with tokens it raised "
                    f"{reason}"
                ) from error
            per_seed.append(sizes_now)
        for key in per_seed[0]:  # of what is routed, some may have seen nothing
            if all(key in sizes for sizes in per_seed):
                found.setdefault(key, []).append([sizes[key] for sizes in per_seed])
    tiny = np.finfo(float).tiny
    values = {
        key: np.log2(np.maximum(np.array(each), tiny))
        for key, each in found.items()
        if len(each) == len(sizes)
    }
    return Measurement(axis, rules, sizes, values)


def check_recipe(config: CheckConfig, rules: Rules, base: Scale) -> Recipe:
    """The recipe of the short runs: one that is close to its limit at small sizes.

    At alpha = 1 the limit neglects what the hidden weights' random start does to the stream, of
    order L^-1/2 of the rest, so they start small. At alpha = 1/2 it keeps that and neglects
    products of changes, so activations start at about 1. Between the two, between the two.
    Embeddings start at 1 and logits near 0, as limits have them.
    """
    overrides = overrides_from(config.override)
    if config.model is None:
        model = meta_model(model_config(_shape(config), ByteTokenizer().vocab, base))
    else:
        model = _of_the_user(config.model, base, overrides)
    small, whole = 0.02, base.width**-0.5
    hidden = small * (whole / small) ** (2.0 - 2.0 * rules.alpha)
    recipe = Recipe.for_model(
        model, base, lr=config.lr, init_std=hidden, rules=rules, overrides=overrides
    )
    multipliers = {
        f"init_std/type/{kind}": math.log2(1.0 / hidden)
        for kind in recipe.types
        if MODULE_TYPES[kind] is Role.INPUT_EMBEDDING
    }
    multipliers["init_std/type/unembedding"] = math.log2(small / hidden)
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=multipliers))


def _planned(
    config: CheckConfig, recipe: Recipe, target: Scale, seed: int
) -> tuple[nn.Module, Plan]:
    """A model of that size, initialised. Multipliers are never folded: sizes are without them."""
    device = choose_device(config.device)
    if config.model is None:
        model = model_config(_shape(config), ByteTokenizer().vocab, target)
        return planned_model(model, recipe, target, seed=seed, device=device)
    overrides = overrides_from(config.override)
    made = _of_the_user(config.model, target, overrides).to(device)
    has_buffer = isinstance(getattr(made, "residual_multipliers", None), torch.Tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # how the model was drawn is replaced below
        way = "buffer" if has_buffer else "hook"
        planned = plan(made, recipe, target, overrides=overrides, multipliers=way)
    planned.initialise(seed)
    return made, planned


def _of_the_user(source: str, scale: Scale, overrides: dict[str, str]) -> nn.Module:
    """The model that the user's function makes of a width and a depth, in float32."""
    model = call(source, scale.width, scale.depth)
    if (found := size_of(model, overrides)) != (scale.width, scale.depth):
        raise CompletedpError(
            f"model {source!r} gave width {found[0]} and depth {found[1]} when asked for "
            f"{scale.width} and {scale.depth}"
        )
    vocab = next(t.shape[0] for t in classify(model, overrides) if t.type == "embedding")
    if vocab < ByteTokenizer().vocab:
        raise CompletedpError(
            f"model {source!r} has {vocab} tokens, and the check's text {ByteTokenizer().vocab}"
        )
    return model.float()


def verdict(slope: float, expected: float, tolerance: float) -> str:
    """Pass when the slope is where it should be; NaN never passes."""
    return "pass" if abs(slope - expected) <= tolerance else "fail"


def _shape(config: CheckConfig) -> Shape:
    return Shape(
        head_dim=config.head_dim,
        mlp=config.mlp,
        qk_norm=config.qk_norm,
        bias=config.bias,
        output_bias=config.bias,
    )


def _scale(config: CheckConfig, width: int, depth: int) -> Scale:
    return Scale(width=width, depth=depth, batch=config.batch, tokens=config.batch * config.steps)
