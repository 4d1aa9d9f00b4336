"""The verb `plan`: every tensor's values at a target scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from completedp.cli.shared import DATA, Verb, name_next, print_json, register, typed_with
from completedp.common.errors import CompletedpError, ScaleWarning
from completedp.common.terminal import columns, fitted, say
from completedp.common.warn import warn
from completedp.lm.shape import Shape
from completedp.tasks.config import untied
from completedp.theory.recipe import Recipe
from completedp.theory.rules import AXES
from completedp.theory.scale import Size


@register("plan")
@dataclass(frozen=True, kw_only=True)
class PlanVerb(Verb):
    """Every tensor's values at a target scale, for the reference model or your own."""

    recipe: str = "default"
    """Recipe file, or the name of one that ships (`completedp recipe list`)."""
    width: Size | None = None
    """d_model: a number, or a factor of the recipe's base, such as 4x; the base's if not given, as
    for the next three."""
    depth: Size | None = None
    """Blocks."""
    batch: Size | None = None
    """Tokens per optimizer step."""
    tokens: Size | None = None
    """Tokens in all."""
    vocab: int = 4096
    """Vocabulary."""
    model: str | None = None
    """hf:OWNER/NAME, hf:FOLDER (as configured, unless a width or depth is given), or
    module:function of a scale, or of nothing, instead of the reference model."""
    untie: bool = False
    """Give an hf: model whose embedding makes the logits too an output layer of its own."""
    override: tuple[str, ...] = ()
    """REGEX=TYPE: tensors whose names match are of that module type; the first match wins."""
    multipliers: Literal["auto", "buffer", "fold", "hook"] = "auto"
    """How residual multipliers are carried: docs/models.md."""
    explain: tuple[str, ...] = ()
    """Say why a tensor or the tensors of a module, such as blocks.0.attn.qkv, have their values; of
    one value alone with its name behind: blocks.0.attn.qkv lr."""
    export: Literal["json", "hf", "torchtitan"] | None = None
    """Print the numbers alone, as JSON (groups, initial values, schedule, steps, and multipliers of
    the forward pass, which are not in the groups unless --multipliers fold puts them there), or as
    Python that needs torch alone."""
    json: bool = False
    """Print JSON."""
    shape: Shape = field(default_factory=Shape)

    def run(self) -> int:
        """Print the plan."""
        from completedp.apply.export import export, left_to_forward
        from completedp.apply.plan import make_plan
        from completedp.lm.reference import ReferenceModel
        from completedp.tasks.sources import model_from, overrides_from

        if len(self.explain) > 2:
            raise CompletedpError(
                f"--explain {' '.join(self.explain)}: give one name, and perhaps one value's, such "
                "as lr"
            )
        recipe = Recipe.find(self.recipe)
        overrides = overrides_from(self.override)
        target = recipe.base.resized(**{axis: getattr(self, axis) for axis in AXES})
        given = target.to_dict() | {axis: None for axis in AXES if getattr(self, axis) is None}
        sizes = {axis: given[axis] for axis in ("width", "depth")}
        source = untied(self.model, self.untie)
        if source is None:
            make = ReferenceModel(vocab=self.vocab, shape=self.shape, head_dim=recipe.head_dim)
        else:
            make = source
        model, width, depth = model_from(
            make, target, sizes, overrides=overrides, inherited=recipe.overrides
        )
        target = replace(target, width=width, depth=depth)
        planned = make_plan(
            model, recipe, target, overrides=overrides, multipliers=self.multipliers
        )
        told = planned.explain(*self.explain) if self.explain else ""  # or an error, alone
        if self.explain or self.export:  # the table and the JSON have them
            for line in planned.cautions:
                warn(line, ScaleWarning)
        if self.explain:
            print(fitted(told, columns()))
        elif self.export:
            print(export(planned, self.export), end="")
            if left := left_to_forward(planned):
                say(
                    f"the forward pass has to multiply by what {' and '.join(left)} say, or the "
                    "depth rule is lost; --multipliers fold puts it into the weights, where it can"
                )
        elif self.json:
            print_json(planned.to_dict())
        else:
            print(planned)
            own = {} if source is None else {"width": width, "depth": depth}
            others = {"vocab": None, "multipliers": None, "data": DATA, "out": "runs/target"}
            name_next(typed_with({**own, **others}, "train"))
        return 0
