"""Space: which coordinates a search moves, where it starts, and how far it may go.

Depth is handled in one of these ways:

    global      one value for the whole model
    type        one for each module type
    staged      one for the whole model, then one for each module type around it
    paper       as `type`, with residual multipliers over type and depth: what the paper searched
    kronecker   type x depth: one for each module type and one for each base layer, multiplied
    full        one for each module type in each layer

Coordinates are log2 multipliers on a recipe's values (`lr/type/qkv`), so every space is a subset of
one set of names, a wider space starts from a narrower one's best recipe as it is, and `project`
goes back.

What is tuned is what the recipe's optimizers have, of the types that each trains, and how the
learning rate rises and falls.

Bounds hold at the base and at every scale the user names: 1 - beta must stay below 1 after scaling,
because a coordinate that runs into that limit cannot be carried on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from completedp.common.checks import check_one_of
from completedp.common.errors import CompletedpError
from completedp.common.surface import command
from completedp.studies.config import REACH, SpaceKind
from completedp.studies.engines import Bounds
from completedp.theory.hparams import Hyperparameters, check_coordinate, tunables_of
from completedp.theory.optimizers import Knob, knobs_by_value
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, MODULE_TYPES, Role
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale
from completedp.theory.schedule import POWERS, Schedule, kinds_with
from completedp.theory.value import product

KINDS: tuple[str, ...] = get_args(SpaceKind)
STAGED = "staged"
"""Searched in two stages: staged.py."""
_LARGEST_ONE_MINUS_BETA = 0.999
_SCHEDULE = "schedule/"
SCHEDULED = ("warmup", "final", "decay", "power")
"""Parts of the schedule that can be tuned, multiplied like any value; fractions are at most 1."""


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
            name.removeprefix(_SCHEDULE): _moved(recipe, name, octaves)
            for name, octaves in values.items()
            if name.startswith(_SCHEDULE)
        }
        tuned = {name: x for name, x in values.items() if not name.startswith(_SCHEDULE)}
        moved = recipe.hyperparameters.with_vector(tuple(tuned), tuned.values())
        return replace(recipe, hyperparameters=moved, schedule=replace(recipe.schedule, **schedule))


def make_space(
    recipe: Recipe,
    kind: str,
    *,
    types: Sequence[str] | None = None,
    tunables: Sequence[str] | None = None,
    reach: float = REACH,
    scales: Sequence[Scale] = (),
) -> Space:
    """The space of that kind around a recipe.

    A tunable may also be a coordinate (`lr/type/qkv`), which is then searched as it is; where none
    are named, all that the recipe's optimizers have, and but for `paper` the schedule's warm-up and
    power. `types` are the model's own module types, of which a recipe may know more. `scales` are
    where results are to be used.
    """
    check_one_of("space", kind, KINDS)
    known = tunables_of(recipe.rules.optimizers)
    if tunables is None:
        tunables = known if kind == "paper" else (*known, *_parts(recipe.schedule))
    for tunable in tunables:
        if "/" in tunable:
            check_coordinates(recipe, [tunable])
        elif tunable not in (*known, *SCHEDULED):
            raise CompletedpError(
                f"unknown hyperparameter {tunable!r}: choose from "
                f"{', '.join((*known, *SCHEDULED))}, or name a coordinate such as lr/type/qkv"
            )
    if not tunables or len(set(tunables)) < len(tunables):
        raise CompletedpError(f"tunables = {list(tunables)} must name one or more, each once")
    if not reach > 0:
        raise CompletedpError(f"reach = {reach!r} must be above 0 octaves")
    # No multiplier changes what is 0, as weight decay may be.
    tunables = [t for t in tunables if t not in known or recipe.values.of(t) != 0]
    types, depth = tuple(types or recipe.types), recipe.base.depth
    every = (
        name
        for tunable in tunables
        for name in _coordinates(tunable, kind, _tuned_types(tunable, types, recipe.rules), depth)
    )
    names = tuple(dict.fromkeys(every))  # what is named twice is one coordinate
    for name in names:
        if name.startswith(_SCHEDULE):
            _scheduled(recipe, name)
    start = recipe.hyperparameters.vector(names)
    low, high = start - reach, start + reach
    for knob in knobs_by_value(recipe.rules.optimizers).values():
        mine = [i for i, name in enumerate(names) if name.startswith(f"{knob.tunable}/")]
        if knob.is_complement and mine:
            limits = _beta_limits(recipe, knob, names, mine, types, scales)
            high[mine] = np.minimum(high[mine], limits)
    high = np.minimum(high, _schedule_limits(recipe.schedule, names))
    return Space(kind=kind, coordinates=names, bounds=Bounds(low=low, high=high, start=start))


def project(
    hyperparameters: Hyperparameters, types: Iterable[str], rules: Rules
) -> Hyperparameters:
    """The same hyperparameters without depth: each type's mean over the layers, in log2."""
    log2: dict[str, float] = {}
    for tunable in tunables_of(rules.optimizers):
        for module_type in _tuned_types(tunable, tuple(types), rules):
            total = [
                math.log2(math.prod(found.values()))
                for layer in _layers(module_type, hyperparameters.depth)
                for found in [hyperparameters.multipliers(tunable, module_type, layer)]
            ]
            mean = sum(total) / len(total)
            if mean:
                log2[f"{tunable}/type/{module_type}"] = mean
    return replace(hyperparameters, log2=log2)


def _tuned_types(tunable: str, types: Sequence[str], rules: Rules) -> Sequence[str]:
    """What stands for module types: branches for residual multipliers, matrices for their std,
    and else those whose optimizer has such a value."""
    if tunable == "residual":
        return BRANCHES
    if tunable == "init_std":
        return [name for name in types if MODULE_TYPES[name].is_matrix]
    return [name for name in types if _has(rules, MODULE_TYPES[name], tunable)]


def _has(rules: Rules, role: Role, tunable: str) -> bool:
    return any(knob.tunable == tunable for knob in rules.optimizer_of(role).knobs)


def _layers(module_type: str, depth: int) -> Sequence[int | None]:
    return range(1, depth + 1) if _in_blocks(module_type) else [None]


def _in_blocks(name: str) -> bool:
    """Whether there is one for every block: tensors of a type, or a residual branch."""
    return name in BRANCHES or MODULE_TYPES[name].in_blocks


def _parts(schedule: Schedule) -> list[str]:
    """What is tuned of a schedule where nothing is said: all that it has, and that a multiplier
    changes, which a final rate of 0 is not."""
    return [name for name in SCHEDULED if schedule.has(name) and getattr(schedule, name) > 0]


def _scheduled(recipe: Recipe, coordinate: str) -> float:
    """A part of the recipe's schedule, which a multiplier can change."""
    name = coordinate.removeprefix(_SCHEDULE)
    if name not in SCHEDULED:
        raise CompletedpError(
            f"the schedule has no {name!r} to tune: choose from {', '.join(SCHEDULED)}"
        )
    schedule = recipe.schedule
    value = getattr(schedule, name)
    some = {} if value > 0 else {name: 0.1}
    if not schedule.has(name):
        kinds = kinds_with(name)
        raise CompletedpError(
            f"a {schedule.kind} schedule has no {name} to tune, as {' or '.join(kinds)} has: "
            f"{_beginning(kind=kinds[0], **some)}"
        )
    if some:
        raise CompletedpError(
            f"the schedule's {name} is 0, which no multiplier changes: {_beginning(**some)}"
        )
    return value


def _beginning(**parts: str | float) -> str:
    """How to begin with another schedule, where users are."""
    if command() is None:
        given = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"begin with recipe.with_schedule({given})"
    flags = (f"--{'schedule' if n == 'kind' else n} {value}" for n, value in parts.items())
    return f"give {' '.join(flags)}"


def _moved(recipe: Recipe, coordinate: str, octaves: float) -> float:
    """A part of the schedule, multiplied, as far as that goes."""
    low, high = _limits(coordinate)
    return min(max(_scheduled(recipe, coordinate) * 2.0**octaves, low), high)


def _limits(coordinate: str) -> tuple[float, float]:
    """What a part of the schedule may be."""
    return POWERS if coordinate.endswith("power") else (0.0, 1.0)


def check_reached(recipe: Recipe, names: Sequence[str], octaves: Sequence[float]) -> None:
    """Raise where a part of the schedule cannot go so far: the point would be another's."""
    for name, far in zip(names, octaves, strict=True):
        if not name.startswith(_SCHEDULE):
            continue
        asked, moved = _scheduled(recipe, name) * 2.0**far, _moved(recipe, name, far)
        if not math.isclose(asked, moved):
            low, high = _limits(name)
            raise CompletedpError(
                f"{name} would be {asked:.4g} at {far:+g} octaves, and is from {low:g} to "
                f"{high:g}: take other octaves"
            )


def _schedule_limits(schedule: Schedule, names: Sequence[str]) -> np.ndarray:
    """By coordinate: how far it may go, for warm-up and decay of wsd together are at most the run.

    What is tuned of the two grows by at most one factor, which leaves the other its part.
    """
    limits = np.full(len(names), math.inf)
    parts = {f"{_SCHEDULE}{part}": getattr(schedule, part) for part in ("warmup", "decay")}
    tuned = {name: part for name, part in parts.items() if name in names}
    if schedule.kind == "wsd" and tuned:
        left = 1.0 - sum(part for name, part in parts.items() if name not in tuned)
        most = math.log2(max(1.0, left / sum(tuned.values()) * (1 - 1e-12)))
        limits[[names.index(name) for name in tuned]] = most
    return limits


def check_coordinates(recipe: Recipe, names: Sequence[str]) -> None:
    """Raise unless every name is a coordinate that can be varied from this recipe."""
    for name in names:
        if name.startswith(_SCHEDULE):
            _scheduled(recipe, name)
        else:
            check_coordinate(name, recipe.base.depth)
            tunable = name.split("/")[0]
            if not _reached(recipe, name, recipe.types or tuple(MODULE_TYPES)):
                names = ", ".join(optimizer.name for optimizer in recipe.rules.optimizers)
                raise CompletedpError(
                    f"{name!r} changes nothing: no tensor that it is for is trained with a "
                    f"{tunable}; the recipe's optimizers: {names}"
                )
            if recipe.values.of(tunable) == 0:
                raise CompletedpError(f"{tunable} is 0, which {name!r} does not change")


def _reached(recipe: Recipe, coordinate: str, types: Sequence[str]) -> list[tuple[str, int | None]]:
    """The module types, or branches, and base layers that a coordinate multiplies a value of."""
    tunable, kind, *rest = coordinate.split("/")
    named = rest[:1] if kind in ("type", "layer") else types
    tuned = named if tunable == "residual" else _tuned_types(tunable, named, recipe.rules)
    if kind in ("global", "type"):
        return [(t, layer) for t in tuned for layer in _layers(t, recipe.base.depth)]
    return [(t, int(rest[-1])) for t in tuned if kind == "layer" or _in_blocks(t)]


def _coordinates(tunable: str, kind: str, tuned: Sequence[str], depth: int) -> list[str]:
    if tunable in SCHEDULED:
        return [f"{_SCHEDULE}{tunable}"]
    if "/" in tunable:
        return [tunable]
    if not tuned:  # no tensor of this model has such a value
        return []
    if kind == "global":
        return [f"{tunable}/global"]
    if kind == "full":
        return [
            f"{tunable}/type/{name}" if layer is None else f"{tunable}/layer/{name}/{layer}"
            for name in tuned
            for layer in _layers(name, depth)
        ]
    names = [f"{tunable}/type/{name}" for name in tuned]
    if kind == STAGED:
        return [f"{tunable}/global", *names]
    over_depth = kind == "kronecker" or (kind == "paper" and tunable == "residual")
    if over_depth and any(_in_blocks(name) for name in tuned):
        names += [f"{tunable}/depth/{layer}" for layer in range(1, depth + 1)]
    return names


def _beta_limits(
    recipe: Recipe,
    knob: Knob,
    names: Sequence[str],
    mine: list[int],
    types: Sequence[str],
    scales: Sequence[Scale],
) -> np.ndarray:
    """The highest that each coordinate may be, whatever the others are.

    Multipliers of the whole model, of a type and of a layer are multiplied, so those of one tensor
    share the octaves that the start leaves it up to the limit.
    """
    rate, tunable, rules = knob.value, knob.tunable, recipe.rules
    growth = 1.0
    if rules.beta_rule == "linear":
        found = (
            product(rules.scaling(role, other.rule, scale / recipe.base))
            for scale in scales
            for role in Role
            for other in rules.optimizer_of(role).knobs
            if other.value == knob.value
        )
        growth = max((growth, *found))
    hyperparameters = recipe.hyperparameters
    largest = hyperparameters.values.of(tunable) * growth
    reached = {i: _reached(recipe, names[i], types) for i in mine}
    together = Counter(tensor for tensors in reached.values() for tensor in tensors)
    limits = []
    for i, tensors in reached.items():
        room = {
            tensor: math.log2(_LARGEST_ONE_MINUS_BETA / (largest * math.prod(multiplied.values())))
            for tensor in tensors
            for multiplied in [hyperparameters.multipliers(tunable, *tensor)]
        }
        if min(room.values(), default=0.0) < 0:
            by_scale = ', name smaller batches, or set beta_rule="keep"' if growth > 1 else ""
            raise CompletedpError(
                f"{rate} = {getattr(hyperparameters.values, rate):g} leaves no room at "
                f"{names[i]}: 1 - {rate} would pass 1 at the base or at a scale that was named "
                f"(it grows {growth:g} times); start from a larger {rate}{by_scale}"
            )
        shares = (left / together[tensor] for tensor, left in room.items())
        share = min(shares, default=math.inf)  # what reaches no tensor needs no limit
        limits.append(hyperparameters.log2.get(names[i], 0.0) + share)
    return np.array(limits)
