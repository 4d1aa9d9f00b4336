"""The verb `rules`: the factors of every role at given ratios, or the page of all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from tyro.conf import Suppress
from tyro.constructors import PrimitiveConstructorSpec

from completedp.cli.shared import Verb, as_config, register, show
from completedp.common.errors import CompletedpError
from completedp.common.flags import named
from completedp.common.surface import command, option
from completedp.theory.optimizers import DEFAULT
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, Rules, Shift
from completedp.theory.scale import Ratios

BETWEEN_COMMAS: PrimitiveConstructorSpec[tuple[str, ...]] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="STR",
    instance_from_str=lambda words: tuple(axis for axis in words[0].split(",") if axis),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda axes: [",".join(axes)],
)
"""Names as one word: width,depth."""
BY_ROLE: PrimitiveConstructorSpec[str | Mapping[str, str]] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="STR",
    instance_from_str=lambda words: _by_role(words[0]),
    is_instance=lambda value: isinstance(value, str | Mapping),
    str_from_instance=lambda given: [
        given if isinstance(given, str) else ",".join(f"{r}={o}" for r, o in given.items())
    ],
)
"""A name, or names by role as one word: hidden_weight=muon."""


def _by_role(word: str) -> str | dict[str, str]:
    if "=" not in word:
        return word
    pairs = (pair.partition("=") for pair in word.split(","))
    return {role: optimizer for role, _, optimizer in pairs}


@register("rules")
@dataclass(frozen=True, kw_only=True)
class RulesVerb(Rules, Verb):
    """What each base value is multiplied by at the target, role by role."""

    # The choices of Rules are flags of the same names; here are those that are spelt otherwise.
    ratios: str = "width=1,depth=1,batch=1,tokens=1"
    """Target over base: width=4,depth=4,batch=4,tokens=16; those left out are 1."""
    axes: Annotated[tuple[str, ...], BETWEEN_COMMAS] = AXES
    """The axes whose rules are on."""
    optimizer: Annotated[str | Mapping[str, str], BY_ROLE] = DEFAULT
    """What trains the model, adamw; or by role, hidden_weight=NAME, the others by adamw."""
    weight_decay: Annotated[str, named("decay-rule")] = "torch"
    """Whether the decay is multiplied by the learning rate: torch, or independent of it."""
    shifts: Suppress[tuple[Shift, ...]] = ()
    recipe: str | None = None
    """The rules of a recipe, a file or the name of one that ships, in place of these flags'."""
    json: bool = False
    """Print JSON."""
    markdown: bool = False
    """Print the page of all rules instead (docs/rules.md)."""

    def run(self) -> int:
        """Print the factors."""
        from completedp.theory.rules_page import factors_table, rules_page

        if self.markdown:
            print(rules_page(), end="")
            return 0
        rules = self._rules()
        ratios = Ratios.parse(self.ratios)
        data = {
            "parameterisation": rules.parameterisation,
            "alpha": rules.alpha,
            "ratios": ratios.to_dict(),
            "roles": {str(role): rules.factors(role, ratios).to_dict() for role in Role},
            "residual_multiplier": rules.residual_multiplier(ratios),
            "steps": ratios.steps,
            "r": rules.r(ratios),
        }
        return show(data, factors_table(rules, ratios), self.json)

    def _rules(self) -> Rules:
        """Those of the flags, or of the recipe, whose rules no flag may change."""
        if self.recipe is None:
            return as_config(self, Rules)
        if flags := self._flags_of_rules():
            raise CompletedpError(
                f"--recipe {self.recipe} has rules of its own: leave it out, or {', '.join(flags)}"
            )
        from completedp.theory.recipe import Recipe

        return Recipe.find(self.recipe).rules

    def _flags_of_rules(self) -> list[str]:
        """The flags of rules that were typed, those of usual values among them."""
        typed = running.typed if (running := command()) else ()
        known = {option(field.name) for field in fields(Rules)} | {"--decay-rule"}
        return [word for word in (each.partition("=")[0] for each in typed) if word in known]
