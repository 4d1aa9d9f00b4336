"""Objective: from a study's spec and a folder of tokens to trials that slots can run.

The spec holds all that a trial's outcome depends on, the text's digest included, so that workers
on different machines measure the same thing or say why they cannot.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from completedp.apply.plan import plan
from completedp.lm.batches import TokenDataset
from completedp.lm.tokens import Manifest
from completedp.search.config import StudyConfig, WorkerConfig
from completedp.search.engines import Bounds, Engine, make_engine, paper_levels
from completedp.search.space import Space, make_space
from completedp.search.study import Claim
from completedp.theory.errors import CompletedpError
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.build import choose_device, meta_model, model_config, stack_model
from completedp.training.config import Shape
from completedp.training.slots import Slots, Trial


def study_spec(config: StudyConfig, recipe: Recipe | None = None) -> dict[str, Any]:
    """What defines a study, as plain JSON; `recipe` stands in for the config's file."""
    if recipe is None:
        recipe = Recipe.default() if config.recipe == "default" else Recipe.load(config.recipe)
    manifest = Manifest.load(config.data)
    _check_batch(recipe.base, config.context)
    scales = [scaled(recipe.base, Ratios.parse(text)) for text in config.target]
    space = make_space(
        recipe, config.space, tunables=config.tunables, reach=config.reach, scales=scales
    )
    return {
        "trials": config.trials,
        "engine": config.engine,
        "seed": config.seed,
        "stop_early": config.stop_early,
        "space": {
            "kind": space.kind,
            "coordinates": list(space.coordinates),
            "low": space.bounds.low.tolist(),
            "high": space.bounds.high.tolist(),
            "start": space.bounds.start.tolist(),
        },
        "recipe": recipe.to_dict(),
        "shape": asdict(config.shape),
        "vocab": manifest.vocab,
        "text": manifest.digest(),
        "context": config.context,
        "z_loss": config.z_loss,
        "eval_sequences": config.eval_sequences,
    }


def scaled(base: Scale, ratios: Ratios) -> Scale:
    """The scale that is so many times the base; sizes are rounded to whole numbers."""
    return Scale(
        **{axis: round(size * getattr(ratios, axis)) for axis, size in base.to_dict().items()}
    )


class Objective:
    """A study's trials on this machine."""

    def __init__(self, spec: dict[str, Any], data: str, options: WorkerConfig) -> None:
        self.spec, self.data, self.options = spec, data, options
        self.recipe = Recipe.from_dict(spec["recipe"])
        of_space = spec["space"]
        bounds = Bounds(**{name: of_space[name] for name in ("low", "high", "start")})
        self.space = Space(
            kind=of_space["kind"], coordinates=tuple(of_space["coordinates"]), bounds=bounds
        )
        manifest = Manifest.load(data)
        if (manifest.vocab, manifest.digest()) != (spec["vocab"], spec["text"]):
            raise CompletedpError(
                f"the tokens in {data!r} are not the study's: prepare them from the same text "
                "with the same tokenizer"
            )
        self.device = choose_device(options.device)
        self._blank = meta_model(self._config(self.recipe.base))

    def engine(self) -> Engine:
        """The study's engine, told nothing yet."""
        name, bounds, seed = self.spec["engine"], self.space.bounds, self.spec["seed"]
        if name == "paper-grid":
            levels = paper_levels(self.space.coordinates, self.recipe.values)
            return make_engine("grid", bounds, seed, levels=levels)
        return make_engine(name, bounds, seed)

    def trial(self, claim: Claim) -> Trial:
        """A claim as something to train."""
        base = self.recipe.base
        moved = self.space.recipe(self.recipe, claim.point)
        return Trial(
            plan=plan(self._blank, moved, base), seed=claim.seed, steps=base.steps, label=claim
        )

    def trial_at(self, recipe: Recipe, scale: Scale, seed: int, label: Any = None) -> Trial:
        """A recipe carried to any scale, as something to train."""
        blank = meta_model(self._config(scale))
        return Trial(plan=plan(blank, recipe, scale), seed=seed, steps=scale.steps, label=label)

    def slots(self, scale: Scale | None = None, trials: int | None = None) -> Slots:
        """A stack for trials at a scale, the base's if none is given."""
        scale, spec = scale or self.recipe.base, self.spec
        _check_batch(scale, spec["context"])
        count = self.options.slots
        return Slots(
            stack_model(self._config(scale), torch.device(self.device)),
            count if count is None or trials is None else min(count, trials),
            TokenDataset(self.data, "train", spec["context"]),
            TokenDataset(self.data, "valid", spec["context"]),
            sequences=scale.batch // spec["context"],
            max_steps=scale.steps,
            device=self.device,
            z_loss=spec["z_loss"],
            eval_sequences=spec["eval_sequences"],
            compile=self.options.compile,
            trials=trials,
        )

    def _config(self, scale: Scale) -> Any:
        shape = Shape(**self.spec["shape"])
        return model_config(shape, self.spec["vocab"], scale, self.recipe.head_dim)


def _check_batch(scale: Scale, context: int) -> None:
    if scale.batch % context:
        raise CompletedpError(
            f"batch of {scale.batch} tokens is not a whole number of sequences of "
            f"{context} tokens (context)"
        )
