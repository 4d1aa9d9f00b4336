"""The verb `inspect`: what each tensor of a model is to the theory, and why."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from tyro.conf import Positional

from completedp.cli.shared import Verb, name_next, print_json, register
from completedp.common.errors import CompletedpError
from completedp.tasks.config import untied


@register("inspect")
@dataclass(frozen=True, kw_only=True)
class InspectVerb(Verb):
    """A model's tensors: role, type, layer, width, what decided each, and what running it shows."""

    model: Positional[str]
    """hf:OWNER/NAME, hf:FOLDER (its config.json alone is read), or module:function of a scale."""
    width: int | None = None
    """d_model to make it with; a Hugging Face model is as configured if not given."""
    depth: int | None = None
    """Blocks to make it with."""
    untie: bool = False
    """Give an hf: model whose embedding makes the logits too an output layer of its own."""
    override: tuple[str, ...] = ()
    """REGEX=TYPE: tensors whose names match are of that module type; the first match wins."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the table."""
        from completedp.apply.classify import read
        from completedp.apply.inspect import inspection, probed, tensor_rows
        from completedp.apply.unknown import counted
        from completedp.tasks.sources import check_sizes, made_from, overrides_from, small_copy
        from completedp.theory.recipe import Recipe

        overrides, sizes = overrides_from(self.override), {"width": self.width, "depth": self.depth}
        scale = Recipe.default().base.resized(**sizes)
        source = untied(self.model, self.untie) or self.model
        model = made_from(source, scale, sizes)
        reading = read(model, overrides)
        if not reading.unknown:
            check_sizes(source, model, sizes, overrides=overrides)
        seen = None if reading.unknown else probed(reading, partial(small_copy, source))
        if self.json:
            print_json(tensor_rows(reading))
        else:
            print(inspection(reading, seen))
        sys.stdout.flush()  # what an error speaks of comes first
        if seen is not None:
            seen.found.check()
        if reading.unknown:
            raise CompletedpError(
                f"cannot tell the role of {counted(reading.unknown)}: name a type for each with "
                "--override"
            )
        if not self.json:
            from completedp.evidence.reporting.part import command

            asked = {name: getattr(self, name) for name in ("model", *sizes, "untie", "override")}
            name_next(command("plan", **asked))
        return 0
