"""Hyperparameters, module by module: value x global x type x depth, the multipliers in log2.

The tuned quantities are those of the optimizers (optimizers.py; of AdamW lr, weight_decay, eps,
one_minus_beta1, one_minus_beta2), init_std, and the residual multiplier. Each has a value, and log2
multipliers kept under readable names, its *coordinates*:

    lr/global          every tensor
    lr/type/qkv        tensors of one module type
    lr/depth/3         all blocks' tensors at base layer 3 (counted from 1)
    lr/layer/qkv/3     one module type at one base layer (only a fully uncoupled search has these)

A residual branch (attn, mlp) stands where a module type does: residual/type/attn. A point of a
search is the vector of some coordinates; conversion is exact because log2 is what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from completedp.common.checks import check_number, check_one_of
from completedp.common.errors import CompletedpError
from completedp.theory.named import NamedNumbers
from completedp.theory.optimizers import ADAMW, OPTIMIZERS, Optimizer, knobs_by_value
from completedp.theory.roles import BRANCHES, MODULE_TYPES

if TYPE_CHECKING:
    import numpy as np

_INIT_STD = 0.02


def tunables_of(optimizers: Iterable[Optimizer]) -> tuple[str, ...]:
    """What is tuned where these train a model's tensors."""
    knobs = knobs_by_value(optimizers)
    return (*(knob.tunable for knob in knobs.values()), "init_std", "residual")


TUNABLE = tunables_of([ADAMW])
"""What is tuned where AdamW trains all."""


class Values(NamedNumbers):
    """Base values before any multiplier: AdamW's, init_std, and those of other optimizers if given.

    As torch takes them: lr and eps per update, weight_decay as a multiple of lr (or per update,
    where the rules say `independent`); init_std is a standard deviation.

    >>> Values(lr=2**-8).of("one_minus_beta2") == 1 - 0.95
    True
    """

    def __init__(self, **values: float) -> None:
        for name in values:
            check_one_of("value", name, self.names())
        init_std = values.pop("init_std", _INIT_STD)
        values = _with_defaults(values, [ADAMW])
        knobs = knobs_by_value()
        for name in values:
            values[name] = knobs[name].check(values[name])
        init_std = check_number("init_std", init_std)
        if init_std <= 0:
            raise CompletedpError(f"init_std = {init_std!r} must be above 0")
        # In one order, whatever theirs was: equal values are then equal files.
        super().__init__(
            **{name: values[name] for name in knobs if name in values}, init_std=init_std
        )

    @staticmethod
    def names() -> tuple[str, ...]:
        """All there can be."""
        return (*knobs_by_value(), "init_std")

    def moved(self, **values: float) -> Values:
        """The same, but for these."""
        return Values(**(self.to_dict() | values))

    def for_optimizers(self, optimizers: Iterable[Optimizer]) -> Values:
        """With all that these need: what is missing at its default."""
        return Values(**_with_defaults(self.to_dict(), optimizers))

    def of(self, tunable: str) -> float:
        """The value of a tunable quantity; a residual multiplier starts at 1."""
        if tunable.startswith("one_minus_"):
            return 1.0 - getattr(self, tunable.removeprefix("one_minus_"))
        return 1.0 if tunable == "residual" else getattr(self, tunable)


def _with_defaults(
    values: Mapping[str, float], optimizers: Iterable[Optimizer]
) -> dict[str, float]:
    """The values, and for those that are missing of these optimizers' the defaults."""
    full = dict(values)
    for optimizer in optimizers:
        for knob in optimizer.knobs:
            if knob.value in full:
                continue
            if knob.default is None:
                raise CompletedpError(
                    f"{optimizer.name} needs a value {knob.value}: give it, {knob.value}=..."
                )
            full[knob.value] = knob.default
    return full


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Values and log2 multipliers tuned on a model of `depth` blocks.

    >>> tuned = Hyperparameters(values=Values(lr=0.01), depth=2, log2={"lr/type/qkv": 1.0})
    >>> tuned.multipliers("lr", "qkv", layer=1)
    {'global': 1.0, 'type': 2.0, 'depth': 1.0}
    """

    values: Values
    depth: int
    log2: Mapping[str, float] = field(default_factory=dict)
    """Log2 multipliers by coordinate; an absent one is 0."""

    def __post_init__(self) -> None:
        log2 = {}  # the caller may change theirs
        for name, value in self.log2.items():
            check_coordinate(name, self.depth)
            log2[name] = check_number(f"log2 multiplier {name}", value, low=-1000, high=1000)
        object.__setattr__(self, "log2", log2)

    def vector(self, coordinates: Sequence[str]) -> np.ndarray:
        """The point these hyperparameters are at, in a search over `coordinates`."""
        import numpy as np  # here and not above: a help would wait for it

        return np.array([self.log2.get(name, 0.0) for name in coordinates], dtype=np.float64)

    def with_vector(self, coordinates: Sequence[str], vector: Iterable[float]) -> Hyperparameters:
        """The same hyperparameters moved to another point of a search over `coordinates`."""
        point = dict(zip(coordinates, (float(x) for x in vector), strict=True))
        return replace(self, log2={**self.log2, **point})

    def multipliers(
        self, tunable: str, module_type: str, layer: int | None = None, depth: int | None = None
    ) -> dict[str, float]:
        """The multipliers of one tensor, by where each comes from; they are to be multiplied.

        `layer` counts from 1 in a model of `depth` blocks, which need not be the base's depth.
        """
        found = {
            "global": 2.0 ** self.log2.get(f"{tunable}/global", 0.0),
            "type": 2.0 ** self.log2.get(f"{tunable}/type/{module_type}", 0.0),
        }
        if layer is not None:
            profile = self._profiles.get(f"{tunable}/depth")
            own = self._profiles.get(f"{tunable}/layer/{module_type}")
            profiles = (p for p in (profile, own) if p is not None)
            at_layer = (interpolate(p, layer, depth or self.depth) for p in profiles)
            found["depth"] = math.prod(at_layer, start=1.0)
        return found

    @property
    def varies_with_depth(self) -> bool:
        """Whether layers have multipliers of their own."""
        return bool(self._profiles)

    @cached_property
    def _profiles(self) -> dict[str, list[float]]:
        """Multipliers over the base's layers, for each thing that varies with depth."""
        profiles: dict[str, list[float]] = {}
        for name, value in self.log2.items():
            prefix, _, last = name.rpartition("/")
            if prefix.count("/") >= 1 and prefix.split("/")[1] in ("depth", "layer"):
                profile = profiles.setdefault(prefix, [1.0] * self.depth)
                profile[int(last) - 1] = 2.0**value
        return profiles


def interpolate(profile: Sequence[float], layer: int, depth: int) -> float:
    """A multiplier known at base layers 1..L, at layer `layer` of `depth`: linear in layer/depth.

    The multiplier itself is interpolated, not its logarithm, as the paper says. Below the first
    base layer (l/L < 1/L_base) it is held constant.
    """
    import numpy as np

    base = np.arange(1, len(profile) + 1) / len(profile)
    return float(np.interp(layer / depth, base, profile))


def check_coordinate(name: str, depth: int) -> None:
    """Raise a one-line error when `name` is no coordinate of a base of that depth."""
    parts = name.split("/") if isinstance(name, str) else [""]
    tunables = tunables_of(OPTIMIZERS.values())
    if parts[0] not in tunables:
        raise CompletedpError(
            f"log2 multiplier {name!r} must start with one of {', '.join(tunables)}"
        )
    known: Iterable[str] = BRANCHES if parts[0] == "residual" else MODULE_TYPES
    if parts[0] == "init_std":
        known = [name for name, role in MODULE_TYPES.items() if role.is_matrix]
    last = parts[-1]
    is_layer = last.isascii() and last.isdecimal() and last[0] != "0"
    is_layer = is_layer and len(last) <= len(str(depth)) and int(last) <= depth
    good = (
        parts[1:] == ["global"]
        or (len(parts) == 3 and parts[1] == "type" and parts[2] in known)
        or (len(parts) == 3 and parts[1] == "depth" and is_layer)
        or (len(parts) == 4 and parts[1] == "layer" and parts[2] in known and is_layer)
    )
    if not good:
        raise CompletedpError(
            f"log2 multiplier {name!r} must be {parts[0]}/global, {parts[0]}/type/TYPE, "
            f"{parts[0]}/depth/LAYER or {parts[0]}/layer/TYPE/LAYER, with a known type and a "
            f"base layer from 1 to {depth}"
        )
