"""Task: the model at a scale, its loss, and its data. What every verb that trains is given.

The reference model is one `make(scale)`, a user's function another, a Hugging Face config a third;
nothing below this file asks which. A loss of the user's own takes the model and the tensors of a
batch, and gives one number; without one it is next-token cross-entropy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from completedp.apply.classify import classify
from completedp.apply.multipliers import is_for_multipliers
from completedp.apply.plan import Plan, make_plan
from completedp.apply.structure import uncompiled
from completedp.common.checks import check_whole
from completedp.common.errors import CompletedpError, short
from completedp.common.surface import option
from completedp.lm.loss import Loss
from completedp.lm.reference import ReferenceModel
from completedp.lm.shape import Shape
from completedp.lm.transformer import is_reference
from completedp.tasks.config import EVAL_EXAMPLES, Z_LOSS, Sources, TaskConfig
from completedp.tasks.data import Data, copies, make_data
from completedp.tasks.losses import ModelLoss, next_token_loss, transformer_loss
from completedp.tasks.sources import (
    check_takes_scale,
    function_from,
    maker_from,
    name_of,
    overrides_from,
)
from completedp.tasks.weights import without_weights
from completedp.theory.overrides import merged
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

MakeModel = Callable[[Scale], nn.Module]
"""The model at a scale."""
BatchLoss = Callable[..., Loss]
"""The tensors of a batch to the losses of one model."""
REFERENCE = "reference"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained: a model for every scale, a loss, and data."""

    make: MakeModel
    data: Data
    loss: ModelLoss | None = None
    """None is next-token cross-entropy of the logits."""
    z_loss: float = Z_LOSS
    """Weight of the z-loss, of the reference model alone."""
    eval_examples: int = EVAL_EXAMPLES
    """Held-out examples that a model is judged on."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Module types by regular expression, for tensors that cannot be told by structure."""

    @property
    def name(self) -> str:
        """The model's, for people and for comparing."""
        return REFERENCE if isinstance(self.make, ReferenceModel) else name_of(self.make)

    def model(self, scale: Scale, dtype: torch.dtype | None = None) -> nn.Module:
        """The model at a scale, without memory for its parameters.

        `dtype` is the type of its matrix products, where the model itself takes care of that;
        others run under autocast (`batch_loss`).
        """
        if isinstance(self.make, ReferenceModel):
            with torch.device("meta"):
                return self.make(scale, dtype)
        try:
            with _seeded():
                made = self.make(scale)
        except CompletedpError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code may fail in any way
            raise CompletedpError(f"{self.name} failed at {scale}: {short(error)}") from error
        if not isinstance(made, nn.Module):
            raise CompletedpError(
                f"{self.name} gave a {type(made).__name__} at {scale}, not a torch.nn.Module"
            )
        made = uncompiled(made)  # what compiles it is whoever trains it
        for name, buffer in made.named_buffers():
            if buffer.is_meta and not is_for_multipliers(buffer, name, scale.depth):
                raise CompletedpError(
                    f"{self.name} gave a model whose buffer {name} is on the meta device, without "
                    "values: make the model on the CPU"
                )
        if made in self._given:
            raise CompletedpError(
                f"{self.name} gave the same model twice: build a new one at every call"
            )
        self._given.add(made)
        made = without_weights(made, self.overrides)
        if any(p.dtype in (torch.bfloat16, torch.float16) for p in made.parameters()):
            made = made.float()  # weights are never kept below float32
        return made.train()

    def blank(self, scale: Scale) -> nn.Module:
        """The model at a scale, made once, for plans that are never trained in it."""
        size = scale.width, scale.depth
        if size not in self._blanks:
            self._blanks[size] = self.model(scale)
        return self._blanks[size]

    @cached_property
    def _given(self) -> WeakSet[nn.Module]:
        """Models that were made, and are now without their weights."""
        return WeakSet()

    @cached_property
    def _blanks(self) -> dict[tuple[int, int], nn.Module]:
        return {}

    def plan(
        self, recipe: Recipe, scale: Scale, model: nn.Module | None = None, *, probe: bool = True
    ) -> Plan:
        """A recipe carried to a scale, for the model there; without one, for a blank."""
        made = self.blank(scale) if model is None else model
        return make_plan(made, recipe, scale, overrides=self.overrides, probe=probe)

    def recipe(self, base: Scale, **values: Any) -> Recipe:
        """A recipe of global values for the model at a base scale."""
        return Recipe.for_model(self.blank(base), base, overrides=dict(self.overrides), **values)

    def types(self, scale: Scale) -> tuple[str, ...]:
        """The module types of the model."""
        tensors = classify(self.blank(scale), self.overrides)
        return tuple(dict.fromkeys(tensor.type for tensor in tensors))

    def batch_loss(
        self, model: nn.Module, dtype: torch.dtype = torch.float32, *, compile: bool = False
    ) -> BatchLoss:
        """The loss of one model, in matrix products of a type."""
        if self.loss is None and is_reference(model):
            whole = torch.compile(transformer_loss, dynamic=False) if compile else transformer_loss
            return partial(whole, model, z_loss=self.z_loss)
        own = self.loss or next_token_loss
        own = torch.compile(own, dynamic=False) if compile else own
        narrow = dtype in (torch.bfloat16, torch.float16)

        def loss(*batch: torch.Tensor) -> Loss:
            with (
                said_plainly(self.name),
                torch.autocast(batch[0].device.type, dtype if narrow else None, enabled=narrow),
            ):
                total = own(model, *copies(batch))
            if not isinstance(total, torch.Tensor) or total.dim() != 0:
                found = tuple(total.shape) if isinstance(total, torch.Tensor) else total
                raise CompletedpError(f"the loss must be one number, and is {found!r:.60}")
            return Loss(total, total.detach())

        return loss

    def identity(self, base: Scale) -> dict[str, Any]:
        """What a trial's outcome depends on besides its values, as plain JSON."""
        blank = self.blank(base)
        has_z_loss = self.loss is None and is_reference(blank)
        return {
            "model": self.name,
            "shape": asdict(self.make.shape) if isinstance(self.make, ReferenceModel) else None,
            "parameters": parameters_digest(blank),
            "loss": None if self.loss is None else name_of(self.loss),
            "data": self.data.digest,
            "unit": self.data.unit,
            "z_loss": self.z_loss if has_z_loss else None,
            "eval_examples": self.eval_examples,
            "overrides": dict(self.overrides),
        }


@contextmanager
def _seeded() -> Iterator[None]:
    """What the user's function draws, such as weights that stay frozen, is the same every time."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield


def make_task(
    model: MakeModel | str | None,
    data: Any,
    *,
    loss: ModelLoss | str | None = None,
    context: int | None = None,
    shape: Shape | None = None,
    recipe: Recipe | None = None,
    z_loss: float = Z_LOSS,
    eval_examples: int = EVAL_EXAMPLES,
    overrides: Mapping[str, str] | None = None,
) -> Task:
    """A task from what a user gives: functions, or their names on the command line.

    Without a model it is the reference model, of the shape given, for a folder of tokens. A
    `recipe` that is to be trained by brings the size of its heads, and its overrides.
    """
    eval_examples = check_whole("eval_examples", eval_examples)
    head_dim = None if recipe is None else recipe.head_dim
    inherited = {} if recipe is None else recipe.overrides
    if isinstance(data, str) and ":" in data:
        data = function_from(data, "data")
    if isinstance(loss, str):
        loss = function_from(loss, "loss")
    made = make_data(data, context, loss or next_token_loss)
    if model is None:
        if made.vocab is None:
            raise CompletedpError(
                f"the reference model reads a folder of tokens, and the data is {made.name}: give "
                "a model of your own"
            )
        if inherited:
            raise CompletedpError(
                f"the recipe was tuned on a model of the user's own, whose tensors it names "
                f"({next(iter(inherited))!r}): {option('model')} is that one"
            )
        maker: Any = ReferenceModel(vocab=made.vocab, shape=shape or Shape(), head_dim=head_dim)
    else:
        maker = maker_from(model, made.vocab) if isinstance(model, str) else model
        if not callable(model) and not isinstance(model, str):
            raise CompletedpError(
                f"the model is a {type(model).__name__}: give a function of a scale"
            )
        check_takes_scale(maker, name_of(maker))
    return Task(
        make=maker,
        data=made,
        loss=loss,
        z_loss=z_loss,
        eval_examples=eval_examples,
        overrides=merged(overrides or {}, inherited),
    )


def task_from(config: TaskConfig, recipe: Recipe | None = None) -> Task:
    """The task that a config names, to be trained by a recipe."""
    return make_task(
        config.model,
        config.data,
        loss=config.loss,
        context=config.context,
        shape=config.shape,
        recipe=recipe,
        z_loss=config.z_loss,
        eval_examples=config.eval_sequences,
        overrides=overrides_from(config.override),
    )


def same_task(sources: Sources, identity: Mapping[str, Any], recipe: Recipe) -> Task:
    """The task of a study, from what a worker was given and what the study says of the rest."""
    shape = identity["shape"]
    return make_task(
        sources.model,
        sources.data,
        loss=sources.loss,
        context=identity["unit"],
        shape=None if shape is None else Shape(**shape),
        recipe=recipe,
        z_loss=identity["z_loss"] or 0.0,
        eval_examples=identity["eval_examples"],
        overrides=identity["overrides"],
    )


def parameters_digest(model: nn.Module) -> str:
    """Equal for models with parameters of the same names and shapes."""
    shapes = repr([(name, tuple(p.shape)) for name, p in model.named_parameters()])
    return hashlib.blake2b(shapes.encode(), digest_size=16).hexdigest()


TABLES_NEED = (
    "it needs an embedding for every token of the vocabulary, and for every position of the context"
)
"""What a model that looks up an entry which it does not have is told."""


@contextmanager
def said_plainly(name: str) -> Iterator[None]:
    """A fault of the user's model or loss in one line; running out of memory is none."""
    try:
        yield
    except (CompletedpError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if name == REFERENCE or "can't allocate memory" in str(error):
            raise
        hint = f": {TABLES_NEED}" if isinstance(error, IndexError) else ""
        raise CompletedpError(f"{name} fails on a batch: {short(error)}{hint}") from error
