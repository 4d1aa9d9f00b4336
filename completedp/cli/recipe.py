"""The verbs of `completedp recipe`: show, compare, list, change."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

from completedp.cli.shared import Verb, name_next, register, show
from completedp.common.errors import CompletedpError
from completedp.common.files import user_path
from completedp.studies.config import ScheduleKind
from completedp.theory.recipe import Recipe
from completedp.theory.rules import BetaRule, ParameterisationName


@dataclass(frozen=True, kw_only=True)
class ShowVerb:
    """A recipe's base, values, multipliers and rules, and where they were checked."""

    recipe: Positional[str]
    """Recipe file, or the name of one that ships."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print it."""
        from completedp.theory.recipe_page import recipe_page, recipe_to_dict

        recipe = Recipe.find(self.recipe)
        return show(recipe_to_dict(recipe), recipe_page(self.recipe, recipe), self.json)


@dataclass(frozen=True, kw_only=True)
class CompareVerb:
    """What differs between two recipes."""

    one: Positional[str]
    """Recipe file, or the name of one that ships."""
    other: Positional[str]
    """Another."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print what differs."""
        from completedp.theory.recipe_page import compare_page, differences

        recipes = Recipe.find(self.one), Recipe.find(self.other)
        names = self.one, self.other
        found = {key: list(both) for key, both in differences(*recipes).items()}
        data = {"recipes": list(names), "differences": found}
        return show(data, compare_page(names, recipes), self.json)


@dataclass(frozen=True, kw_only=True)
class ListVerb:
    """The recipes that ship with the package, by name."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print them."""
        from completedp.theory.recipe_page import list_page, summary

        recipes = {name: Recipe.shipped(name) for name in Recipe.names()}
        data = [summary(name, recipe) for name, recipe in recipes.items()]
        return show(data, list_page(recipes), self.json)


@dataclass(frozen=True, kw_only=True)
class ChangeVerb:
    """The same recipe carried by other rules, or with another schedule, as a file."""

    recipe: Positional[str]
    """Recipe file, or the name of one that ships."""
    out: str
    """The new recipe, NAME.json."""
    parameterisation: ParameterisationName | None = None
    """Whose rules carry the values: Table 1's, or one of those that it is compared with."""
    alpha: float | None = None
    """Residual exponent, from 0.5 to 1."""
    token_exponent: float | None = None
    """The power of the tokens that learning rates fall by."""
    beta_rule: BetaRule | None = None
    """Betas at the target: by the rule (linear, power), or the base's (keep)."""
    schedule: ScheduleKind | None = None
    """The shape of the learning rate over a run; wsd is warm-up, stable, decay."""
    warmup: float | None = None
    """Fraction of the steps over which the rate rises."""
    final: float | None = None
    """What the rate ends at, as a fraction of its peak."""
    decay: float | None = None
    """Of wsd: the last fraction of the steps, over which the rate falls."""
    power: float | None = None
    """Above 1 the rate falls earlier, below 1 later."""

    def run(self) -> int:
        """Write it."""
        rules = {
            "parameterisation": self.parameterisation,
            "alpha": self.alpha,
            "token_exponent": self.token_exponent,
            "beta_rule": self.beta_rule,
        }
        schedule = {
            "kind": self.schedule,
            "warmup": self.warmup,
            "final": self.final,
            "decay": self.decay,
            "power": self.power,
        }
        rules, schedule = (
            {name: choice for name, choice in choices.items() if choice is not None}
            for choices in (rules, schedule)
        )
        if not rules and not schedule:
            raise CompletedpError(
                "nothing to change: give --parameterisation, --alpha, --token-exponent, "
                "--beta-rule, --schedule, --warmup, --final, --decay or --power"
            )
        if not self.out.endswith(".json"):
            raise CompletedpError(f"--out {self.out} must end in .json")
        made = Recipe.find(self.recipe).with_rules(**rules).with_schedule(**schedule)
        _check_not_lost(self.out, made)
        made.save(self.out)
        print(self.out)
        name_next(f"completedp recipe compare {shlex.quote(self.recipe)} {shlex.quote(self.out)}")
        return 0


def _check_not_lost(out: str, made: Recipe) -> None:
    """What is there is this recipe, or nothing."""
    if not (path := user_path(out)).exists():
        return
    with suppress(CompletedpError):
        if Recipe.load(path) == made:
            return
    raise CompletedpError(f"{out!r} is there, and is another: name another file for --out")


Action = (
    Annotated[ShowVerb, subcommand("show", description=ShowVerb.__doc__)]
    | Annotated[CompareVerb, subcommand("compare", description=CompareVerb.__doc__)]
    | Annotated[ListVerb, subcommand("list", description=ListVerb.__doc__)]
    | Annotated[ChangeVerb, subcommand("change", description=ChangeVerb.__doc__)]
)


@register("recipe")
@dataclass(frozen=True, kw_only=True)
class RecipeVerb(Verb):
    """Recipes and where they were checked: show, compare, list, change."""

    action: OmitSubcommandPrefixes[Action]

    def run(self) -> int:
        """Do what was chosen."""
        return self.action.run()
