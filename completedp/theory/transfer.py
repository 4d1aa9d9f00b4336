"""Transfer: a recipe's values carried to a target scale, for any module type, layer and width.

All arithmetic of a plan, and no model: a plan is these values for the tensors of one. What a value
is made of, in this order: the recipe's value, its multipliers, the powers of the four ratios.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from functools import cached_property

from completedp.common.checks import check_is, check_one_of
from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import WEIGHT_DECAY, Knob
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, MODULE_TYPES, Role, width_of_type
from completedp.theory.scale import Ratios, Scale, check_scale
from completedp.theory.value import Trace, Value, product, without_ones


@dataclass(frozen=True)
class Transfer:
    """A recipe at a target scale.

    >>> recipe = Recipe.shipped("adamw-reference")
    >>> target = Scale(width=1024, depth=16, batch=131_072, tokens=1_000_000_000)
    >>> lr = Transfer(recipe, target).value("lr", "qkv", layer=3)
    >>> lr.base, round(lr.target, 8)
    (0.00390625, 0.00034939)
    >>> Transfer(recipe, target).value("residual", "mlp", layer=3).explain()
    '1 (value) x 0.25 (depth 4^-1)'
    """

    recipe: Recipe
    target: Scale
    _scalings: dict[tuple[str, str, float | None], Trace] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Powers worked out before: layers share almost all of them."""
    _values: dict[tuple[str, str, int | None, float | None], Value] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Values worked out before: where nothing varies with depth, layers share all of them."""

    def __post_init__(self) -> None:
        check_is("recipe", self.recipe, Recipe, "a Recipe: Recipe.find(...) gives one by its name")
        check_scale("target", self.target)

    @cached_property
    def ratios(self) -> Ratios:
        """The target over the recipe's base."""
        return self.target / self.recipe.base

    def hyperparameters(self, module_type: str) -> tuple[str, ...]:
        """What tensors of a type have: their optimizer's values, and a matrix its init_std."""
        start = ("init_std",) if _role(module_type).is_matrix else ()
        return (*self._knobs[_role(module_type)], *start)

    def value(
        self,
        hyperparameter: str,
        module_type: str,
        layer: int | None = None,
        *,
        width_ratio: float | None = None,
    ) -> Value:
        """One hyperparameter of tensors of a type, at base and at the target, with its factors.

        The hyperparameter is one of their optimizer's (of AdamW lr, weight_decay, eps, beta1,
        beta2), `init_std`, `multiplier` (of the type's output in the forward pass), or `residual`
        with a branch, attn or mlp, in the place of a type. `layer` counts from 1 at the target.
        `width_ratio` is the type's own width over that at base, the model's where it is not given.
        """
        if layer is not None and not 1 <= layer <= self.target.depth:
            raise CompletedpError(f"layer = {layer!r} must be from 1 to {self.target.depth}")
        own = layer if self.recipe.hyperparameters.varies_with_depth else None
        place = hyperparameter, module_type, own, width_ratio
        if place not in self._values:
            self._values[place] = self._value(*place)
        return self._values[place]

    def _value(
        self, hyperparameter: str, module_type: str, layer: int | None, width_ratio: float | None
    ) -> Value:
        if hyperparameter == "residual":
            check_one_of("residual branch", module_type, BRANCHES)
            scaling = self.recipe.rules.residual_scaling(self.ratios)
            return _multiplied(hyperparameter, self._tuned("residual", module_type, layer), scaling)
        allowed = (*self.hyperparameters(module_type), "multiplier", "residual")
        check_one_of(f"hyperparameter of {module_type}", hyperparameter, allowed)
        if knob := self._knobs[_role(module_type)].get(hyperparameter):
            return self._of_optimizer(knob, module_type, layer, width_ratio)
        scaling = self._scaling(hyperparameter, module_type, width_ratio)
        if hyperparameter == "multiplier":  # tuned by branch alone
            return Value(base=1.0, target=product(scaling), trace=without_ones(scaling))
        return _multiplied(hyperparameter, self._tuned(hyperparameter, module_type, layer), scaling)

    def width_ratio(self, module_type: str, width: int, name: str = "") -> float:
        """A tensor's width over that of the same tensor at base.

        The model's own ratio where the base had no such tensor, or the role has no width.
        """
        base = self.recipe.base_width(module_type, name)
        if base is None or width_of_type(module_type).is_the_models:
            return self.ratios.width
        return width / base

    def is_borrowed(self, module_type: str) -> bool:
        """Whether the recipe does not know the type, which then gets the mean of its role's."""
        return module_type not in self._types

    @cached_property
    def _knobs(self) -> dict[Role, dict[str, Knob]]:
        optimizer_of = self.recipe.rules.optimizer_of
        return {role: {knob.name: knob for knob in optimizer_of(role).knobs} for role in Role}

    @cached_property
    def _types(self) -> dict[str, Role]:
        return {name: MODULE_TYPES[name] for name in self.recipe.types}

    def _of_optimizer(
        self, knob: Knob, module_type: str, layer: int | None, width_ratio: float | None
    ) -> Value:
        tuned = self._tuned(knob.tunable, module_type, layer)
        scaling = self._scaling(knob.rule, module_type, width_ratio)
        if knob.is_complement:
            return self._complement(knob, module_type, tuned, scaling)
        if knob.name == WEIGHT_DECAY and _role(module_type) in self.recipe.no_decay:
            tuned = (*tuned, ("no_decay", 0.0))
        return _multiplied(knob.name, tuned, scaling, may_be_zero=knob.may_be_zero)

    def _complement(self, knob: Knob, module_type: str, tuned: Trace, scaling: Trace) -> Value:
        """A beta: 1 - beta is what is tuned and scaled."""
        rules, name = self.recipe.rules, knob.name
        untouched = all(x == 1.0 for label, x in tuned if label != "value")
        # 1 - (1 - beta) would round
        base = getattr(self.recipe.values, knob.value) if untouched else 1.0 - product(tuned)
        if not 0 <= base < 1:
            raise CompletedpError(
                f"{name} = {base:g} at base, after the multipliers of {module_type}; "
                "it must be in [0, 1)"
            )
        target = rules.scale_beta(name, base, product(scaling))
        if rules.beta_rule != "linear":
            power = product(scaling)
            scaling = ((f"beta^{power:.4g}", (1 - target) / (1 - base)),)
        return Value(base=base, target=target, trace=without_ones(tuned + scaling))

    def _tuned(self, tunable: str, module_type: str, layer: int | None) -> Trace:
        """The recipe's value and its multipliers; a type that it does not know gets the geometric
        mean of those of the types of its role that it does know."""
        tuned, depth = self.recipe.hyperparameters, self.target.depth
        value = ("value", tuned.values.of(tunable))
        alike = []
        if module_type not in BRANCHES and self.is_borrowed(module_type):
            alike = [name for name, role in self._types.items() if role is _role(module_type)]
        if not alike:
            return (value, *tuned.multipliers(tunable, module_type, layer, depth).items())
        each = [tuned.multipliers(tunable, name, layer, depth) for name in alike]
        mean = {name: statistics.geometric_mean(one[name] for one in each) for name in each[0]}
        mean["role"] = mean.pop("type")
        return (value, *mean.items())

    def _scaling(self, rule: str, module_type: str, width_ratio: float | None) -> Trace:
        key = rule, module_type, width_ratio
        if key not in self._scalings:
            own = self.ratios if width_ratio is None else replace(self.ratios, width=width_ratio)
            self._scalings[key] = self.recipe.rules.scaling(_role(module_type), rule, own)
        return self._scalings[key]


def _multiplied(name: str, tuned: Trace, scaling: Trace, *, may_be_zero: bool = False) -> Value:
    value = product(tuned + scaling)
    if not (math.isfinite(value) and (value > 0 or may_be_zero)):
        raise CompletedpError(f"{name} = {value:g}, after its multipliers and rules")
    return Value(base=product(tuned), target=value, trace=without_ones(tuned + scaling))


def _role(module_type: str) -> Role:
    check_one_of("module type", module_type, MODULE_TYPES)
    return MODULE_TYPES[module_type]
