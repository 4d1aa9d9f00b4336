"""Recipe: tuned hyperparameters, the scale they were tuned at, the rules that carry them on.

On disk it is a small JSON file that people can read and edit. Reading is strict: an unknown key,
a wrong type or an impossible value is a one-line error that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from completedp.common.checks import (
    check_is,
    check_number,
    check_one_of,
    check_whole,
    did_you_mean,
    several,
)
from completedp.common.errors import CompletedpError
from completedp.common.files import (
    parse_json,
    read_json,
    user_path,
    write_json,
)
from completedp.theory.evidence import Evidence
from completedp.theory.hparams import Hyperparameters, Values
from completedp.theory.optimizers import LR
from completedp.theory.overrides import check_overrides
from completedp.theory.reading import check_keys, check_numbers, checked, path_of
from completedp.theory.roles import MODULE_TYPES, Role
from completedp.theory.rules import Rules, Shift, check_rules
from completedp.theory.scale import Scale, check_scale
from completedp.theory.schedule import Schedule, check_schedule, kinds_with

if TYPE_CHECKING:
    from torch import nn

SCHEMA = 3
_NOT_IN = {1: ("overrides", "constants", "evidence"), 2: ("evidence",), 3: ()}
"""By schema that is read: keys that its files do not have."""
_SHIPPED = resources.files("completedp").joinpath("recipes")
"""Recipes by name: a file put there is one of them."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that is known about a base model's hyperparameters.

    >>> recipe = Recipe.default().with_values(lr=2**-8)
    >>> recipe.base.width, recipe.head_dim, recipe.values.lr
    (64, 64, 0.00390625)
    """

    base: Scale
    """The scale at which they were tuned: width in features, batch and tokens in tokens."""
    hyperparameters: Hyperparameters
    widths: Mapping[str, int]
    """For every module type of the base model, the width its rule scales with: a matrix's fan-in,
    an embedding's dimension, a vector's length. Where a type has several (experts that are shared
    and not), `type@name` holds that of each tensor, its block's number replaced by a star."""
    head_dim: int | None = None
    """Size of one attention head at base: width grows by more heads, never by larger ones."""
    rules: Rules = field(default_factory=Rules)
    schedule: Schedule = field(default_factory=Schedule)
    no_decay: tuple[str, ...] = ()
    """Roles whose weight decay is 0, whatever the value says. The paper decays every tensor; many
    recipes leave vectors (norms and biases) out."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions on tensors' names -> module types, with which the base model was told;
    plans use them too."""
    constants: Mapping[str, float] | None = None
    """What the base model's own forward pass multiplies by (`config.logit_scale`), by name, so that
    a plan can say which of them moved. None where nobody looked."""
    provenance: Mapping[str, str | float | int | bool] = field(default_factory=dict)
    """Where the values came from, in the user's own words and numbers."""
    evidence: Evidence | None = None
    """Where these values were measured, under these rules; None where nothing was recorded."""

    def __post_init__(self) -> None:
        check_scale("base", self.base)
        check_rules(self.rules)
        check_schedule(self.schedule)
        for name in self.widths:
            check_one_of("module type of widths:", name.partition("@")[0], MODULE_TYPES)
        widths = {k: check_whole(path_of("widths.", k), size) for k, size in self.widths.items()}
        object.__setattr__(self, "widths", widths)
        object.__setattr__(self, "no_decay", several(self.no_decay))
        for role in self.no_decay:
            check_one_of("role of no_decay:", role, tuple(Role))
        check_overrides(self.overrides)
        if self.constants is not None:
            named = self.constants.items()
            numbers = {k: check_number(path_of("constants.", k), value) for k, value in named}
            object.__setattr__(self, "constants", numbers)
        for name, value in self.provenance.items():
            if isinstance(value, float):  # a JSON file has no word for others
                check_number(path_of("provenance.", name), value)
        if self.head_dim is not None:
            object.__setattr__(self, "head_dim", check_whole("head_dim", self.head_dim))
        if self.hyperparameters.depth != self.base.depth:
            raise CompletedpError(
                f"hyperparameters are for depth {self.hyperparameters.depth}, "
                f"and the base has depth {self.base.depth}"
            )
        values = self.values.for_optimizers(self.rules.optimizers)
        object.__setattr__(self, "hyperparameters", replace(self.hyperparameters, values=values))
        for name in ("overrides", "provenance"):  # the caller may change its
            object.__setattr__(self, name, dict(getattr(self, name)))

    @property
    def values(self) -> Values:
        """The global values."""
        return self.hyperparameters.values

    @property
    def types(self) -> tuple[str, ...]:
        """The module types of the base model."""
        return tuple(name for name in self.widths if "@" not in name)

    def base_width(self, module_type: str, name: str) -> int | None:
        """The width at base of the tensor that one of this type and name is a larger copy of.

        None where the base model had none, or had several widths of the type and none so named:
        one of the names may have more in front, as of a model inside another.
        """
        kinds = {
            key.partition("@")[2]: width
            for key, width in self.widths.items()
            if key.startswith(f"{module_type}@")
        }
        if not kinds:
            return self.widths.get(module_type)
        own = numberless(name)
        alike = {w for kind, w in kinds.items() if f".{own}".endswith(f".{kind}")}
        alike = alike or {w for kind, w in kinds.items() if f".{kind}".endswith(f".{own}")}
        return kinds.get(own, alike.pop() if len(alike) == 1 else None)

    def __str__(self) -> str:
        """The page that `completedp recipe show` prints."""
        from completedp.theory.recipe_page import recipe_page

        return recipe_page("recipe", self)

    def __repr__(self) -> str:
        """One line, which differs where recipes do."""
        from completedp.theory.recipe_page import recipe_line

        return f"<Recipe {recipe_line(self)}>"

    def with_values(self, **values: float) -> Recipe:
        """The same recipe with other global values: `recipe.with_values(lr=2**-7)`.

        What was measured was not measured with them: the evidence does not come along.
        """
        new = self.values.moved(**values)
        if new == self.values:
            return self
        moved = replace(self.hyperparameters, values=new)
        return replace(self, hyperparameters=moved, evidence=None)

    def with_schedule(self, **changes: Any) -> Recipe:
        """The same recipe with another schedule: `recipe.with_schedule(kind="wsd", final=0.1)`.

        Of the evidence the searches come along that found the values, and no rung: none was
        measured with this schedule. Of another kind it has none of the parts that shaped the old
        one's fall but those given.
        """
        named = [field.name for field in fields(Schedule)]
        for name in changes:
            check_one_of("schedule's part", name, named)
        old = self.schedule
        if changes.get("kind", old.kind) != old.kind:
            kept = {n: getattr(old, n) for n in ("warmup", "final")}
            has = {n: v for n, v in kept.items() if changes["kind"] in kinds_with(n)}
            old, changes = Schedule(), has | changes
        new = replace(old, **changes)
        for name in changes:
            if not new.has(name):
                raise CompletedpError(
                    f"a {new.kind} schedule has no {name}, which would change nothing: choose "
                    f"{' or '.join(kinds_with(name))} with it"
                )
        if new == self.schedule:
            return self
        known = self.evidence and self.evidence.only_where(lambda _: False)
        return replace(self, schedule=new, evidence=known)

    def with_rules(self, **choices: Any) -> Recipe:
        """The same recipe carried by other rules: `recipe.with_rules(parameterisation="sp")`.

        Of the evidence the searches come along that found the values, and what was measured where
        both rules do the same: at the base, and where the choice makes no difference. Nothing does
        with another optimizer or convention of decay, by which the values mean something else.
        """
        old, new = self.rules, self.rules.chosen(**choices)
        if new == old:
            return self

        def is_untouched(scale: Scale) -> bool:
            return new.do_as(old, scale / self.base)

        known = self.evidence if is_untouched(self.base) else None
        return replace(self, rules=new, evidence=known and known.only_where(is_untouched))

    @classmethod
    def default(cls) -> Recipe:
        """The recipe for the reference model: `Recipe.shipped("default")`."""
        return cls.shipped("default")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The recipes that ship with the package, the default first.

        >>> Recipe.names()
        ('default', 'adamw-reference', 'strong-global')
        """
        files = (Path(file.name) for file in _SHIPPED.iterdir())
        names = sorted(file.stem for file in files if file.suffix == ".json")
        return tuple(sorted(names, key=lambda name: name != "default"))

    @classmethod
    def shipped(cls, name: str) -> Recipe:
        """A recipe that ships with the package."""
        check_one_of("recipe", name, cls.names())
        return cls.from_dict(parse_json(_SHIPPED.joinpath(f"{name}.json").read_text("utf-8")))

    @classmethod
    def find(cls, name_or_path: Recipe | str | Path) -> Recipe:
        """A shipped recipe by its name, or a file, as `--recipe` takes them; a recipe is itself."""
        if isinstance(name_or_path, Recipe):
            return name_or_path
        wanted = f"a Recipe, its file, or one of the names {', '.join(cls.names())}"
        check_is("recipe", name_or_path, (str, PathLike), wanted)
        if name_or_path in cls.names():
            return cls.shipped(str(name_or_path))
        try:
            return cls.load(name_or_path)
        except CompletedpError as error:
            if user_path(name_or_path).exists():
                raise
            near = did_you_mean(str(name_or_path), cls.names())
            raise CompletedpError(
                f"{error}{near and f' ({near})'}; by name there are {', '.join(cls.names())}"
            ) from None

    @classmethod
    def for_model(cls, base_model: nn.Module, base: Scale, **options: Any) -> Recipe:
        """Global values for the user's own base-sized model, which may be on the meta device.

        Takes any of `Values`' names (lr=..., weight_decay=...), `Rules`' (alpha=...), `schedule`,
        `no_decay`, and `overrides` (as for `classify`), which the recipe keeps for its plans. The
        model's own forward constants are kept too. What the model was taken for is confirmed by
        running it, where it is small, unless `probe` is False. The one place where theory calls a
        room below it, because this name belongs on the class.
        """
        from completedp.apply.recipes import recipe_for_model

        return recipe_for_model(base_model, base, **options)

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe; every fault in the file is one line that names it."""
        path = user_path(path)
        data = read_json(path, "recipe")
        try:
            return cls.from_dict(data)
        except (CompletedpError, OverflowError) as error:
            raise CompletedpError(f"recipe {str(path)!r}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the recipe; an older file survives until the new one is complete."""
        write_json(user_path(path), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """What is written to disk."""
        return {
            "schema": SCHEMA,
            "base": self.base.to_dict(),
            "head_dim": self.head_dim,
            "values": self.values.to_dict(),
            "log2_multipliers": dict(self.hyperparameters.log2),
            "no_decay": list(self.no_decay),
            "widths": dict(self.widths),
            "overrides": dict(self.overrides),
            "constants": None if self.constants is None else dict(self.constants),
            "rules": self.rules.to_dict(),
            "schedule": self.schedule.to_dict(),
            "provenance": dict(self.provenance),
            "evidence": None if self.evidence is None else self.evidence.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Recipe:
        """The inverse of `to_dict`."""
        keys = {
            "schema": int,
            "base": dict,
            "head_dim": (int, type(None)),
            "values": dict,
            "log2_multipliers": dict,
            "no_decay": list,
            "widths": dict,
            "overrides": dict,
            "constants": (dict, type(None)),
            "rules": dict,
            "schedule": dict,
            "provenance": dict,
            "evidence": (dict, type(None)),
        }
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema is not None and schema not in tuple(_NOT_IN):
            readable = ", ".join(map(str, _NOT_IN))
            raise CompletedpError(
                f"schema {schema!r} is not one that this version reads: {readable}"
            )
        check_keys("", data, keys, required=keys.keys() - set(_NOT_IN[schema or SCHEMA]))
        evidence = data.get("evidence")
        for key, value in data["provenance"].items():
            if not isinstance(value, str | int | float | bool):
                where = path_of("provenance.", key)
                raise CompletedpError(f"{where} must be text or a number, not {value!r}")
        schedule = checked(Schedule, "schedule", data["schedule"], boundaries=list, levels=list)
        for name in ("boundaries", "levels"):
            if name in schedule:
                schedule[name] = tuple(check_numbers(f"schedule.{name}", schedule[name]))
        base = Scale(**checked(Scale, "base", data["base"]))
        rules = rules_from_dict(data["rules"])  # before the values, which its optimizers have
        numbers = dict.fromkeys(Values.names(), (int, float))
        check_keys("values", data["values"], numbers, required={LR})
        return cls(
            base=base,
            hyperparameters=Hyperparameters(
                values=Values(**data["values"]),
                depth=base.depth,
                log2=data["log2_multipliers"],
            ),
            widths=data["widths"],
            head_dim=data["head_dim"],
            rules=rules,
            schedule=Schedule(**schedule),
            no_decay=tuple(data["no_decay"]),
            overrides=data.get("overrides", {}),
            constants=data.get("constants"),
            provenance=data["provenance"],
            evidence=None if evidence is None else Evidence.from_dict(evidence),
        )


def rules_from_dict(data: Any) -> Rules:
    """The inverse of `Rules.to_dict`, checked key by key."""
    rules = checked(Rules, "rules", data, axes=list, shifts=list, optimizer=(str, dict))
    shifts = tuple(
        Shift(**checked(Shift, f"rules.shifts[{i}]", item))
        for i, item in enumerate(rules.get("shifts", []))
    )
    return Rules(**rules | {"axes": tuple(rules.get("axes", Rules.axes)), "shifts": shifts})


def numberless(name: str) -> str:
    """A tensor's name with its block's number, and its expert's, left open."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
