"""Check: what is checked, settled. A task, its sizes, the rules, and whose values.

Functions of the user's own come from Python, their names from the command line; both end here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from completedp.common.errors import CompletedpError
from completedp.evidence.config import CHECK_SHAPE, CheckConfig, CheckSettings
from completedp.evidence.windows import VOCAB, byte_windows
from completedp.lm.reference import ReferenceModel
from completedp.lm.shape import Shape
from completedp.tasks.losses import ModelLoss, next_token_loss
from completedp.tasks.sources import HuggingFace, maker_from, name_of, overrides_from
from completedp.tasks.task import MakeModel, Task, make_task
from completedp.theory.recipe import Recipe
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale

WIDTHS, DEPTHS = (64, 128, 256, 512), (2, 4, 8, 16)
FACTORS = (1, 2, 4)
"""Of a recipe's base, and of the least width of a config with large heads."""
CONTEXT = 64
LR = 2.0**-10


@dataclass(frozen=True, kw_only=True)
class Check:
    """Short runs of a task over widths and depths, by one or more parameterisations."""

    task: Task
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    rules: tuple[Rules, ...]
    """One for each parameterisation."""
    base: Scale
    """What the rules' ratios are taken to, and the batch and tokens that are planned for."""
    batch: int
    """What a step trains on, in the units of the data."""
    steps: int
    seeds: int
    lr: float
    tolerance: float | None
    """If none, each check's own."""
    device: str
    recipe: Recipe | None = None
    """Whose values are checked; if none, values near which slopes are those of the limit."""
    near_limit: bool = False
    """Whether the recipe's weights start near its limit, and not where it says."""
    vocab: int | None = None
    """Tokens that the model must know, of the check's own text."""

    def __post_init__(self) -> None:
        self.task.data.examples(self.batch)  # raises where that is no whole number

    @property
    def axes(self) -> list[str]:
        """The axes along which there is something to compare."""
        return [axis for axis in ("width", "depth") if len(self.sizes(axis)) > 1]

    @property
    def parameterisations(self) -> list[str]:
        """By name, in the order asked for."""
        return [rules.parameterisation for rules in self.rules]

    def sizes(self, axis: str) -> tuple[int, ...]:
        """The widths or the depths."""
        return self.widths if axis == "width" else self.depths

    def scale(self, axis: str, size: int) -> Scale:
        """The scale at a size along an axis, the other axis at its first value."""
        first = {"width": self.widths[0], "depth": self.depths[0]}
        return replace(self.base, **(first | {axis: size}))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        task, make = self.task, self.task.make
        return {
            "model": task.name,
            "shape": asdict(make.shape) if isinstance(make, ReferenceModel) else None,
            "data": task.data.name,
            "loss": None if task.loss in (None, next_token_loss) else name_of(task.loss),
            "overrides": dict(task.overrides),
            "widths": list(self.widths),
            "depths": list(self.depths),
            "batch": self.batch,
            "context": task.data.unit,
            "steps": self.steps,
            "seeds": self.seeds,
            "rules": [rules.to_dict() for rules in self.rules],
            "lr": self.lr,
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "near_limit": self.near_limit,
            "tolerance": self.tolerance,
            "device": self.device,
        }


def make_check(
    make: MakeModel | str | None = None,
    *,
    data: Any = None,
    loss: ModelLoss | str | None = None,
    overrides: Mapping[str, str] | None = None,
    recipe: Recipe | str | Path | None = None,
    settings: CheckSettings | None = None,
    usual: tuple[tuple[int, ...], tuple[int, ...]] = (WIDTHS, DEPTHS),
) -> Check:
    """A check from what a user gives: functions, or their names on the command line.

    `usual` are the widths and depths where neither sizes nor a recipe are given.
    """
    settings = settings or CheckSettings()
    if make is None:
        for pattern, kind in (overrides or {}).items():
            raise CompletedpError(
                f"override {f'{pattern}={kind}'!r} is for a model of your own: give the model too"
            )
    recipe = _recipe(recipe, settings)
    task = _task(make, data, loss, overrides, recipe, settings)
    batch = settings.batch or (1024 if task.data.unit > 1 else 64)
    widths, depths = (
        (_that_fit(usual[0], task), usual[1])
        if recipe is None
        else (_times(recipe.base.width), _times(recipe.base.depth))
    )
    widths, depths = settings.widths or widths, settings.depths or depths
    own = Scale(width=widths[0], depth=depths[0], batch=batch, tokens=batch * settings.steps)
    return Check(
        task=task,
        widths=widths,
        depths=depths,
        rules=_rules(recipe, settings),
        base=own if recipe is None else recipe.base,
        batch=batch,
        steps=settings.steps,
        seeds=settings.seeds,
        lr=_lr(recipe, settings),
        tolerance=settings.tolerance,
        device=settings.device,
        recipe=recipe,
        near_limit=settings.near_limit,
        vocab=VOCAB if data is None else None,
    )


def check_from(config: CheckConfig) -> Check:
    """The check that a config names."""
    return make_check(
        config.model,
        data=config.data,
        loss=config.loss,
        overrides=overrides_from(config.override),
        recipe=config.recipe,
        settings=config,
    )


def _recipe(recipe: Recipe | str | Path | None, settings: CheckSettings) -> Recipe | None:
    if recipe is None:
        if settings.near_limit:
            raise CompletedpError("near_limit is of a recipe: give one, or leave it out")
        return None
    recipe = Recipe.find(recipe)
    lr = LR if settings.lr is None and settings.near_limit else settings.lr
    return recipe if lr is None else recipe.with_values(lr=lr)


def _task(
    make: MakeModel | str | None,
    data: Any,
    loss: ModelLoss | str | None,
    overrides: Mapping[str, str] | None,
    recipe: Recipe | None,
    settings: CheckSettings,
) -> Task:
    """The task, on bytes of text unless there is data of the user's own.

    The loss is never left to the reference model, whose own one does without the module of its
    logits: what is not called cannot be measured.
    """
    context, vocab = settings.context, None
    if data is None:
        data, vocab = byte_windows(settings.text or "stdlib", context or CONTEXT), VOCAB
    elif settings.text is not None:
        raise CompletedpError(f"text {settings.text!r} and data are both given: give one of them")
    elif isinstance(data, str | Path) and ":" not in str(data):  # a folder of tokens
        context = context or CONTEXT
    shape = settings.shape if recipe is None else _shape(settings.shape, recipe)
    if make is None and vocab is not None:
        make = ReferenceModel(vocab=vocab, shape=shape)
    elif isinstance(make, str) and vocab is not None:
        make = maker_from(make, vocab)
    return make_task(
        make,
        data,
        loss=loss or next_token_loss,
        context=context,
        shape=shape,
        overrides=overrides,
    )


def _shape(given: Shape, recipe: Recipe) -> Shape:
    """What is given of the reference model's shape; the rest as the recipe's base model was."""
    kinds, mlp_width = recipe.types, recipe.widths.get("mlp_out")
    was = Shape(
        head_dim=recipe.head_dim,
        mlp="swiglu" if "mlp_gate" in kinds else "gelu",
        mlp_ratio=mlp_width / recipe.base.width if mlp_width else CHECK_SHAPE.mlp_ratio,
        qk_norm="q_norm" in kinds,
        bias="qkv_bias" in kinds,
        output_bias="output_bias" in kinds,
    )
    not_given = [n for n, value in asdict(given).items() if value == getattr(CHECK_SHAPE, n)]
    return replace(given, **{name: getattr(was, name) for name in not_given})


def _lr(recipe: Recipe | None, settings: CheckSettings) -> float:
    if recipe is not None:
        return recipe.values.lr  # which is the one that was asked for, if any
    return LR if settings.lr is None else settings.lr


def _times(base: int) -> tuple[int, ...]:
    return tuple(base * factor for factor in FACTORS)


def _that_fit(widths: tuple[int, ...], task: Task) -> tuple[int, ...]:
    """The usual widths, or larger ones that the heads of a Hugging Face config divide."""
    unit = task.make.unit if isinstance(task.make, HuggingFace) else 1
    least = unit * math.ceil(widths[0] / unit)
    return widths if least == widths[0] else _times(least)


def _rules(recipe: Recipe | None, settings: CheckSettings) -> tuple[Rules, ...]:
    """The recipe's rules, or the default ones, with what the user asks for instead."""
    rules = Rules() if recipe is None else recipe.rules
    asked = {"alpha": settings.alpha, "output_norm_eps": settings.output_norm_eps}
    rules = replace(rules, **{name: value for name, value in asked.items() if value is not None})
    names = settings.parameterisations or (rules.parameterisation,)
    return tuple(replace(rules, parameterisation=name) for name in names)
