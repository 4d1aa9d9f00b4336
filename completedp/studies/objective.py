"""Objective: from a study's spec and a folder of tokens to trials that slots can run.

The spec holds all that a trial's outcome depends on, the text's digest included, so that workers
on different machines measure the same thing or say why they cannot.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from completedp.apply.classify import classify
from completedp.apply.plan import plan
from completedp.common.errors import CompletedpError
from completedp.lm.batches import TokenDataset
from completedp.lm.tokens import Manifest
from completedp.studies.config import StudyConfig, WorkerConfig
from completedp.studies.engines import PAPER_GRID, Bounds, Engine, paper_levels
from completedp.studies.registry import make_engine
from completedp.studies.space import Space, make_space
from completedp.studies.study import Claim
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.build import choose_device, meta_model, model_config, stack_model
from completedp.lm.shape import Shape
from completedp.training.slots import Slots, Trial


def study_spec(config: StudyConfig, recipe: Recipe | None = None) -> dict[str, Any]:
    """What defines a study, as plain JSON; `recipe` stands in for the config's file.

    What cannot be trained or searched is said here, before a study of it is stored.
    """
    if recipe is None:
        recipe = Recipe.default() if config.recipe == "default" else Recipe.load(config.recipe)
    manifest = Manifest.load(config.data)
    scales = [scaled(recipe.base, Ratios.parse(text)) for text in config.target]
    model = meta_model(model_config(config.shape, manifest.vocab, recipe.base, recipe.head_dim))
    tunables, reach = config.tunables, config.reach
    if config.engine == "paper-grid":  # as far as the paper's values are
        tunables = tuple(PAPER_GRID) if tunables == TUNABLE else tunables
        named = [f"{tunable}/{config.space}" for tunable in tunables]
        levels = paper_levels(named, recipe.values)
        reach = max(reach, *(abs(level) for each in levels for level in each))
    space = make_space(
        recipe,
        config.space,
        types=tuple(dict.fromkeys(tensor.type for tensor in classify(model))),
        tunables=tunables,
        reach=reach,
        scales=scales,
    )
    spec = {
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
    Objective(spec, config.data, WorkerConfig(device="cpu"))
    return spec


def engine_of(spec: dict[str, Any]) -> Engine:
    """A study's engine, told nothing yet; it takes no tokens to make one."""
    name, space, seed = spec["engine"], _space_of(spec), spec["seed"]
    if name == "paper-grid":
        levels = paper_levels(space.coordinates, Recipe.from_dict(spec["recipe"]).values)
        return make_engine("grid", space.bounds, seed, levels=levels)
    return make_engine(name, space.bounds, seed)


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
        self.space = _space_of(spec)
        manifest = Manifest.load(data)
        if (manifest.vocab, manifest.digest()) != (spec["vocab"], spec["text"]):
            raise CompletedpError(
                f"the tokens in {data!r} are not the study's: prepare them from the same text "
                "with the same tokenizer"
            )
        self.device = choose_device(options.device)
        self._train = TokenDataset(data, "train", spec["context"])
        self._valid = TokenDataset(data, "valid", spec["context"])
        self._blank = meta_model(self._config(self.recipe.base))
        plan(self._blank, self.recipe, self.recipe.base)  # raises where it is another model's
        self.engine()

    def engine(self) -> Engine:
        """The study's engine, told nothing yet."""
        return engine_of(self.spec)

    def trial(self, claim: Claim) -> Trial:
        """A claim as something to train; a CompletedpError where no training is possible."""
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
        count = self.options.slots
        return Slots(
            stack_model(self._config(scale), torch.device(self.device)),
            count if count is None or trials is None else min(count, trials),
            self._train,
            self._valid,
            sequences=scale.batch // spec["context"],
            max_steps=scale.steps,
            device=self.device,
            z_loss=spec["z_loss"],
            eval_sequences=spec["eval_sequences"],
            compile=self.options.compile,
            trials=trials,
        )

    def _config(self, scale: Scale) -> Any:
        context = self.spec["context"]
        if scale.batch % context:
            raise CompletedpError(
                f"batch of {scale.batch} tokens is not a whole number of sequences of "
                f"{context} tokens (context)"
            )
        shape = Shape(**self.spec["shape"])
        return model_config(shape, self.spec["vocab"], scale, self.recipe.head_dim)


def _space_of(spec: dict[str, Any]) -> Space:
    of_space = spec["space"]
    bounds = Bounds(**{name: of_space[name] for name in ("low", "high", "start")})
    return Space(kind=of_space["kind"], coordinates=tuple(of_space["coordinates"]), bounds=bounds)
