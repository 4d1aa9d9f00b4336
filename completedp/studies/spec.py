"""What defines a study: the task, the recipe it starts from, where trials train, what is searched.

It is stored as JSON with the study, and holds all that a trial's outcome depends on, so that
workers on different machines measure the same thing or say why they cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.studies.engines import Bounds
from completedp.studies.space import Space
from completedp.theory.recipe import Recipe, rules_from_dict
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a trial trains: a scale, and the rules that carry a recipe there."""

    scale: Scale
    rules: Rules

    def recipe(self, recipe: Recipe) -> Recipe:
        """A recipe carried by this site's rules."""
        return replace(recipe, rules=self.rules)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"scale": self.scale.to_dict(), "rules": self.rules.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Site:
        """The inverse of `to_dict`."""
        return cls(scale=Scale(**data["scale"]), rules=rules_from_dict(data["rules"]))


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """A study, but for its trials."""

    engine: str
    """What proposes points."""
    seed: int
    stop_early: bool
    space: Space
    recipe: Recipe
    """Where the search starts; points are multipliers on its values."""
    sites: tuple[Site, ...]
    """Where trials may train; a trial has the number of one of them."""
    task: Mapping[str, Any]
    """`Task.identity`: the model, its loss and its data."""
    trials: int
    """The budget, which may grow."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        bounds = self.space.bounds
        return {
            "trials": self.trials,
            "engine": self.engine,
            "seed": self.seed,
            "stop_early": self.stop_early,
            "space": {
                "kind": self.space.kind,
                "coordinates": list(self.space.coordinates),
                **{name: getattr(bounds, name).tolist() for name in ("low", "high", "start")},
            },
            "recipe": self.recipe.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
            "task": dict(self.task),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StudySpec:
        """The inverse of `to_dict`."""
        try:
            return cls._from_dict(data)
        except CompletedpError as error:
            raise CompletedpError(f"a study's spec is damaged: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise CompletedpError(
                f"a study's spec is damaged ({type(error).__name__}: {error!s:.60}): restore the "
                "store from a copy, or start the study in a new one"
            ) from None

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> StudySpec:
        of_space = data["space"]
        bounds = Bounds(**{name: np.array(of_space[name]) for name in ("low", "high", "start")})
        names = of_space["coordinates"]
        if len(names) != bounds.dimensions or not all("/" in name for name in names):
            raise CompletedpError(
                f"{len(names)} coordinates with bounds for {bounds.dimensions} must be as many "
                "names, such as lr/global"
            )
        return cls(
            trials=data["trials"],
            engine=data["engine"],
            seed=data["seed"],
            stop_early=data["stop_early"],
            space=Space(kind=of_space["kind"], coordinates=tuple(names), bounds=bounds),
            recipe=Recipe.from_dict(data["recipe"]),
            sites=tuple(Site.from_dict(site) for site in data["sites"]),
            task=data["task"],
        )
