"""Space: which coordinates a search moves, where it starts, and how far it may go.

Depth is handled in one of these ways:

    global      one value for the whole model
    type        one for each module type
    paper       as `type`, with residual multipliers over type and depth: what the paper searched
    kronecker   type x depth: one for each module type and one for each base layer, multiplied
    full        one for each module type in each layer

Coordinates are log2 multipliers on a recipe's values (`lr/type/qkv`), so every space is a subset of
one set of names, a wider space starts from a narrower one's best recipe as it is, and `project`
goes back.

Bounds hold at the base and at every scale the user names: 1 - beta must stay below 1 after scaling,
because a coordinate that runs into that limit cannot be carried on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.studies.config import REACH, SpaceKind
from completedp.studies.engines import Bounds
from completedp.theory.hparams import TUNABLE, Hyperparameters, check_coordinate
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, MODULE_TYPES, Role
from completedp.theory.scale import Scale

KINDS: tuple[str, ...] = get_args(SpaceKind)
_LARGEST_ONE_MINUS_BETA = 0.999
_SCHEDULE = "schedule/"
SCHEDULED = ("warmup", "final", "decay")
"""Parts of the schedule that can be tuned: as fractions, multiplied like any value, at most 1."""
_HAVE = {"final": ("cosine", "wsd"), "decay": ("wsd",)}
"""The kinds of schedule that these parts change."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Coordinates and their bounds, for one recipe."""

    kind: str
    coordinates: tuple[str, ...]
    bounds: Bounds

    def recipe(self, recipe: Recipe, point: Iterable[float]) -> Recipe:
        """The recipe at a point."""
        values = dict(zip(self.coordinates, (float(x) for x in point), strict=True))
        schedule = {
            name.removeprefix(_SCHEDULE): min(1.0, _scheduled(recipe, name) * 2.0**octaves)
            for name, octaves in values.items()
            if name.startswith(_SCHEDULE)
        }
        tuned = {name: x for name, x in values.items() if not name.startswith(_SCHEDULE)}
        moved = recipe.hyperparameters.with_vector(tuple(tuned), tuned.values())
        return replace(recipe, hyperparameters=moved, schedule=replace(recipe.schedule, **schedule))

    def describe(self) -> str:
        """How the number of coordinates comes about, in a line."""
        counts: dict[str, dict[str, int]] = {}
        for name in self.coordinates:
            tunable, kind = name.split("/")[:2]
            of_tunable = counts.setdefault(tunable, {})
            of_tunable[kind] = of_tunable.get(kind, 0) + 1
        parts = [
            f"{tunable} {' + '.join(f'{n} {kind}' for kind, n in kinds.items())}"
            for tunable, kinds in counts.items()
        ]
        return f"{self.kind}: {len(self.coordinates)} = {'; '.join(parts)}"


def make_space(
    recipe: Recipe,
    kind: str,
    *,
    types: Sequence[str] | None = None,
    tunables: Sequence[str] = TUNABLE,
    reach: float = REACH,
    scales: Sequence[Scale] = (),
) -> Space:
    """The space of that kind around a recipe.

    A tunable may also be a coordinate (`lr/type/qkv`), which is then searched as it is.
    `types` are the model's own module types, of which a recipe may know more. `scales` are where
    results are to be used.
    """
    if kind not in KINDS:
        raise CompletedpError(f"unknown space {kind!r}: choose from {', '.join(KINDS)}")
    for tunable in tunables:
        if "/" in tunable:
            check_coordinates(recipe, [tunable])
        elif tunable not in (*TUNABLE, *SCHEDULED):
            raise CompletedpError(
                f"unknown hyperparameter {tunable!r}: choose from "
                f"{', '.join((*TUNABLE, *SCHEDULED))}, or name a coordinate such as lr/type/qkv"
            )
    if not tunables or len(set(tunables)) < len(tunables):
        raise CompletedpError(f"tunables = {list(tunables)} must name one or more, each once")
    if not reach > 0:
        raise CompletedpError(f"reach = {reach!r} must be above 0 octaves")
    if recipe.values.weight_decay == 0:  # no multiplier changes it
        tunables = [tunable for tunable in tunables if tunable != "weight_decay"]
    types, depth = tuple(types or recipe.types), recipe.base.depth
    every = (name for t in tunables for name in _coordinates(t, kind, types, depth))
    names = tuple(dict.fromkeys(every))  # what is named twice is one coordinate
    for name in names:
        if name.startswith(_SCHEDULE):
            _scheduled(recipe, name)
    start = recipe.hyperparameters.vector(names)
    low, high = start - reach, start + reach
    for tunable in ("one_minus_beta1", "one_minus_beta2"):
        mine = [i for i, name in enumerate(names) if name.startswith(f"{tunable}/")]
        if mine:
            high[mine] = np.minimum(high[mine], _beta_limits(recipe, tunable, names, mine, scales))
    return Space(kind=kind, coordinates=names, bounds=Bounds(low=low, high=high, start=start))


def project(hyperparameters: Hyperparameters, types: Iterable[str]) -> Hyperparameters:
    """The same hyperparameters without depth: each type's mean over the layers, in log2."""
    log2: dict[str, float] = {}
    for tunable in TUNABLE:
        for module_type in _tuned_types(tunable, tuple(types)):
            total = [
                math.log2(math.prod(found.values()))
                for layer in _layers(module_type, hyperparameters.depth)
                for found in [hyperparameters.multipliers(tunable, module_type, layer)]
            ]
            mean = sum(total) / len(total)
            if mean:
                log2[f"{tunable}/type/{module_type}"] = mean
    return replace(hyperparameters, log2=log2)


def _tuned_types(tunable: str, types: Sequence[str]) -> Sequence[str]:
    """What stands for module types: branches for residual multipliers, matrices for their std."""
    if tunable == "residual":
        return BRANCHES
    if tunable == "init_std":
        return [name for name in types if MODULE_TYPES[name].is_matrix]
    return types


def _layers(module_type: str, depth: int) -> Sequence[int | None]:
    return range(1, depth + 1) if _in_blocks(module_type) else [None]


def _in_blocks(name: str) -> bool:
    """Whether there is one for every block: tensors of a type, or a residual branch."""
    return name in BRANCHES or MODULE_TYPES[name].in_blocks


def _scheduled(recipe: Recipe, coordinate: str) -> float:
    """A part of the recipe's schedule, which a multiplier can change."""
    name = coordinate.removeprefix(_SCHEDULE)
    if name not in SCHEDULED:
        raise CompletedpError(
            f"the schedule has no {name!r} to tune: choose from {', '.join(SCHEDULED)}"
        )
    kind = recipe.schedule.kind
    if kind not in _HAVE.get(name, (kind,)):
        raise CompletedpError(
            f"a {kind} schedule has no {name} to tune: start from a recipe whose schedule is "
            f"{' or '.join(_HAVE[name])}"
        )
    value = getattr(recipe.schedule, name)
    if not value > 0:
        raise CompletedpError(
            f"the schedule's {name} is 0, which no multiplier changes: start from a recipe whose "
            f"schedule has a {name} above 0"
        )
    return value


def check_coordinates(recipe: Recipe, names: Sequence[str]) -> None:
    """Raise unless every name is a coordinate that can be varied from this recipe."""
    for name in names:
        if name.startswith(_SCHEDULE):
            _scheduled(recipe, name)
        else:
            check_coordinate(name, recipe.base.depth)
            if name.startswith("weight_decay/") and recipe.values.weight_decay == 0:
                raise CompletedpError(f"weight_decay is 0, which {name!r} does not change")


def _coordinates(tunable: str, kind: str, types: Sequence[str], depth: int) -> list[str]:
    if tunable in SCHEDULED:
        return [f"{_SCHEDULE}{tunable}"]
    if "/" in tunable:
        return [tunable]
    if kind == "global":
        return [f"{tunable}/global"]
    tuned = _tuned_types(tunable, types)
    if kind == "full":
        return [
            f"{tunable}/type/{name}" if layer is None else f"{tunable}/layer/{name}/{layer}"
            for name in tuned
            for layer in _layers(name, depth)
        ]
    names = [f"{tunable}/type/{name}" for name in tuned]
    if kind == "kronecker" or (kind == "paper" and tunable == "residual"):
        names += [f"{tunable}/depth/{layer}" for layer in range(1, depth + 1)]
    return names


def _beta_limits(
    recipe: Recipe, tunable: str, names: Sequence[str], mine: list[int], scales: Sequence[Scale]
) -> np.ndarray:
    """The highest that each coordinate may be, whatever the others are.

    Multipliers of a type and of a layer are multiplied, so each may use half of the octaves that
    are left up to the limit.
    """
    rate = tunable.removeprefix("one_minus_")
    growth = 1.0
    if recipe.rules.beta_rule == "linear":
        found = (recipe.rules.factors(r, s / recipe.base) for s in scales for r in Role)
        growth = max((growth, *(factors.one_minus_beta for factors in found)))
    hyperparameters = recipe.hyperparameters
    still = hyperparameters.with_vector([names[i] for i in mine], [0.0] * len(mine))
    value = hyperparameters.values.of(tunable)

    def room(name: str) -> float:
        _, kind, *rest = name.split("/")
        depth = hyperparameters.depth
        if kind == "global":
            reached = [(t, n) for t in recipe.types for n in _layers(t, depth)]
        elif kind == "depth":
            inside = [t for t in recipe.types if _in_blocks(t)]
            reached = [(t, int(rest[0])) for t in inside]
        else:
            layers = [int(rest[1])] if kind == "layer" else _layers(rest[0], depth)
            reached = [(rest[0], n) for n in layers]
        fixed = max(math.prod(still.multipliers(tunable, t, n).values()) for t, n in reached)
        return math.log2(_LARGEST_ONE_MINUS_BETA / (value * growth * fixed))

    has_depth = any(names[i].split("/")[1] == "depth" for i in mine)
    limits = []
    for i in mine:
        last = names[i].rpartition("/")[2]
        outside = last in MODULE_TYPES and not _in_blocks(last)
        share = 0.5 if has_depth and not outside else 1.0
        limit = share * room(names[i])
        if limit < hyperparameters.log2.get(names[i], 0.0):
            raise CompletedpError(
                f"{rate} = {getattr(hyperparameters.values, rate):g} leaves no room at "
                f"{names[i]}: 1 - {rate} would pass 1 at the base or at a scale that was named "
                f"(it grows {growth:g} times); start from a larger {rate}, name smaller batches, "
                'or set beta_rule="power"'
            )
        limits.append(limit)
    return np.array(limits)
