"""One run in Python: `cdp.train` takes a model, a recipe and a target; the same call resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from completedp.common.checks import check_one_of
from completedp.tasks.config import EVAL_EXAMPLES, Z_LOSS
from completedp.tasks.losses import ModelLoss
from completedp.tasks.sources import name_of
from completedp.tasks.task import MakeModel, make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale, check_scale
from completedp.training import loop
from completedp.training.config import TrainConfig
from completedp.training.estimate import estimate_config, say_before_training
from completedp.training.folder import Result

RUN_OPTIONS = (
    *("seed", "clip", "micro_batch", "eval_every", "checkpoint_every", "log_every", "stop_after"),
    *("device", "dtype", "compile", "parallel", "noise_every", "tensorboard", "wandb"),
)
"""What says how a run goes, and not what it trains."""


def train(
    make: MakeModel | str | None,
    recipe: Recipe | str | Path,
    target: Scale,
    data: Any,
    out: str | Path,
    *,
    loss: ModelLoss | str | None = None,
    overrides: Mapping[str, str] | None = None,
    context: int | None = None,
    eval_examples: int = EVAL_EXAMPLES,
    z_loss: float = Z_LOSS,
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Train a model at a scale with a recipe, into a folder; the same call resumes.

    Model, data and loss are as for `search`. The other options are those of a run: seed, clip,
    micro_batch, eval_every, checkpoint_every, log_every, stop_after, device, dtype, compile,
    parallel, noise_every, tensorboard, wandb. Values come from the recipe:
    `recipe.with_values(lr=...)`.

    `target` has width in features, depth in blocks, batch and tokens in tokens.

    >>> import completedp as cdp
    >>> target = cdp.Scale(width=64, depth=1, batch=256, tokens=1_024)
    >>> recipe = cdp.Recipe.default().with_rules(axes=("width", "depth"))
    >>> result = cdp.train(None, recipe, target, data="tokens", out="runs/a", context=64,
    ...                    eval_examples=4, quiet=True)
    >>> result.status, result.steps
    ('ok', 4)
    """
    for name in options:
        check_one_of("option", name, RUN_OPTIONS)
    recipe = Recipe.find(recipe)
    check_scale("target", target)
    task = make_task(
        make,
        data,
        loss=loss,
        context=context,
        recipe=recipe,
        z_loss=z_loss,
        eval_examples=eval_examples,
        overrides=overrides,
    )
    config = TrainConfig(
        data=task.data.name,
        out=str(out),
        model=None if make is None else task.name,
        loss=None if loss is None else name_of(task.loss),
        context=task.data.unit,
        eval_sequences=eval_examples,
        z_loss=z_loss,
        override=tuple(f"{pattern}={kind}" for pattern, kind in (overrides or {}).items()),
        **target.to_dict(),
        **options,
    )
    if not quiet:
        say_before_training(lambda: estimate_config(config, task, recipe))
    return loop.train(config, task=task, recipe=recipe, quiet=quiet)
