"""The verb `inspect`: what each tensor of a model is to the theory, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from tyro.conf import Positional

from completedp.cli.shared import Verb, print_json, register
from completedp.tasks.config import untied
from completedp.training.config import scale_like


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
        from completedp.apply.classify import classify
        from completedp.apply.inspect import inspect_model
        from completedp.tasks.sources import model_from, overrides_from, small_copy
        from completedp.theory.recipe import Recipe

        overrides, sizes = overrides_from(self.override), {"width": self.width, "depth": self.depth}
        scale = scale_like(Recipe.default().base, **sizes)
        source = untied(self.model, self.untie) or self.model
        model, *_ = model_from(source, scale, sizes, overrides=overrides)
        if self.json:
            print_json([asdict(tensor) for tensor in classify(model, overrides)])
        else:
            print(inspect_model(model, overrides, small=partial(small_copy, self.model)))
        return 0
