"""The verbs of `completedp recipe`: show, compare, list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

from completedp.cli.shared import Verb, register, show
from completedp.theory.recipe import Recipe


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


Action = (
    Annotated[ShowVerb, subcommand("show", description=ShowVerb.__doc__)]
    | Annotated[CompareVerb, subcommand("compare", description=CompareVerb.__doc__)]
    | Annotated[ListVerb, subcommand("list", description=ListVerb.__doc__)]
)


@register("recipe")
@dataclass(frozen=True, kw_only=True)
class RecipeVerb(Verb):
    """Recipes and where they were checked: show, compare, list."""

    action: OmitSubcommandPrefixes[Action]

    def run(self) -> int:
        """Do what was chosen."""
        return self.action.run()
