"""What a task is made of, as the command line gives it. Plain values: no torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from completedp.common.checks import check_number, check_path
from completedp.common.errors import CompletedpError
from completedp.lm.shape import Shape

Z_LOSS = 1e-4
"""The reference model's, where nothing else is said."""
EVAL_EXAMPLES = 256
"""Held-out examples that a model is judged on, where nothing else is said."""
UNTIED = "hf-untied:"
"""Before a Hugging Face config's name, in the place of `hf:`: its head has a tensor of its own."""


def untied(model: str | None, untie: bool) -> str | None:
    """A model's name with the flag --untie in it, so that whatever knows the name knows of it."""
    if not untie or (model or "").startswith(UNTIED):
        return model
    if model is None or not model.startswith("hf:"):
        raise CompletedpError(
            f"--untie is for hf: models, and the model is {model or 'the reference model'}: "
            "only a config says whether embeddings are tied"
        )
    return UNTIED + model.removeprefix("hf:")


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """The parts of a task that may be a user's own code: model and loss."""

    model: str | None = None
    """module:function of your own that makes the model at a scale, or hf:OWNER/NAME, hf:FOLDER;
    the reference model if not given."""
    untie: bool = False
    """Give an hf: model whose embedding makes the logits too an output layer of its own."""
    loss: str | None = None
    """module:function of a model and a batch; next-token cross-entropy if not given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", untied(self.model, self.untie))


@dataclass(frozen=True, kw_only=True)
class Sources(OwnCode):
    """The parts of a task that are a user's own: data, model, loss."""

    data: str
    """Folder of tokens, made by `completedp data`; or module:function that gives your own data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_path("data", self.data)


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What is said of tensors that cannot be told by structure."""

    override: tuple[str, ...] = ()
    """REGEX=TYPE: tensors of your model whose names match are of that module type."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Overrides, Sources):
    """A task: what is trained, on what, judged how."""

    context: int | None = None
    """Tokens per sequence: 256 for text; 1 for your own data, whose batch is then in examples."""
    z_loss: float = Z_LOSS
    """Weight of the reference model's z-loss."""
    eval_sequences: int = EVAL_EXAMPLES
    """Validation sequences, or examples, the same ones every time."""
    shape: Shape = field(default_factory=Shape)
    """The reference model's shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context is not None:
            check_number("context", self.context, low=1)
        check_number("eval_sequences", self.eval_sequences, low=1)
        check_number("z_loss", self.z_loss, low=0)
