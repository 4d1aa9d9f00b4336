"""What one training run is asked to do. Plain values: no torch here, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from completedp.common.checks import check_number, check_one_of, check_path
from completedp.common.errors import CompletedpError
from completedp.common.surface import option
from completedp.tasks.config import TaskConfig
from completedp.theory.recipe import Recipe
from completedp.theory.rules import AXES
from completedp.theory.scale import Factor, Scale, Size

Parallel = Literal["fsdp", "ddp"]
MOST_BETWEEN_CHECKPOINTS = 500
"""Steps, where nothing else is said."""
NOISE_EVERY = 50
"""Steps between measurements of the gradient's noise, where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(TaskConfig):
    """One run. Sizes that are not given are the recipe's base."""

    out: str
    """Run folder. The same command resumes what it finds there."""
    recipe: str = "default"
    """Recipe file, or the name of one that ships (`completedp recipe list`)."""
    width: Size | None = None
    """d_model; a number, or a factor of the recipe's base, such as 4x, as for the next three."""
    depth: Size | None = None
    """Blocks."""
    batch: Size | None = None
    """Tokens per optimizer step."""
    tokens: Size | None = None
    """Tokens in all."""
    seed: int = 0
    """Initialisation and order of the data."""
    lr: float | None = None
    """Global learning rate at base, in place of the recipe's."""
    weight_decay: float | None = None
    """Global weight decay at base, in place of the recipe's."""
    clip: float = 0.0
    """Clip the gradient's norm; 0 is off. Clipping rescales what eps is compared with."""
    micro_batch: int | None = None
    """Sequences per forward pass, on each rank; gradients accumulate to the batch. All at once if
    not given."""
    eval_every: int = 0
    """Steps between evaluations; 0 evaluates at the end alone."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; 0 keeps none. A tenth of the run if not given, 500 at most."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    stop_after: int | None = None
    """Stop after this step, to go on later with the same command."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    dtype: str = "auto"
    """Type of the matrix products: auto (bfloat16 on a GPU), float32, bfloat16, float64."""
    compile: bool = False
    """Compile the forward and backward pass."""
    parallel: Parallel = "fsdp"
    """Under torchrun: fsdp shards weights, gradients and moments; ddp keeps a copy on each rank."""
    noise_every: int | None = None
    """Steps between measurements of the gradient's noise, which the critical batch comes from: that
    step's gradient is made in two parts. 50 if not given; with a loss of your own 0, which is off,
    as it may not be a mean over examples."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("out", "recipe"):
            check_path(name, getattr(self, name))
        check_number("log_every", self.log_every, low=1)
        for name in ("eval_every", "clip"):
            check_number(name, getattr(self, name), low=0)
        for name, low in (("checkpoint_every", 0), ("noise_every", 0), ("stop_after", 1)):
            if (given := getattr(self, name)) is not None:
                check_number(name, given, low=low)
        check_one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float64"))
        check_one_of("parallel", self.parallel, get_args(Parallel))

    def target(self, recipe: Recipe) -> Scale:
        """The scale to train at."""
        return recipe.base.resized(**{axis: getattr(self, axis) for axis in AXES})

    def resolved(self) -> TrainConfig:
        """The same with numbers in the place of factors, as a run's folder keeps them."""
        given = {axis: size for axis in AXES if (size := getattr(self, axis)) is not None}
        if not any(isinstance(size, Factor) for size in given.values()):
            return self
        target = self.target(self.load_recipe()).to_dict()
        return replace(self, **{axis: target[axis] for axis in given})

    def save_every(self, steps: int) -> int:
        """Steps between checkpoints of a run of so many; 0 where none are kept."""
        if self.checkpoint_every is not None:
            return self.checkpoint_every
        return min(MOST_BETWEEN_CHECKPOINTS, max(1, steps // 10))

    @property
    def measure_noise_every(self) -> int:
        """Steps between measurements of the gradient's noise; 0 where there are none."""
        if self.noise_every is not None:
            return self.noise_every
        return NOISE_EVERY if self.loss is None else 0

    def load_recipe(self) -> Recipe:
        """The recipe, with the global values this run gives in its place."""
        recipe = Recipe.find(self.recipe)
        given = {"lr": self.lr, "weight_decay": self.weight_decay}
        return recipe.with_values(**{k: v for k, v in given.items() if v is not None})

    def examples(self, count: int, ranks: int = 1) -> int:
        """Examples per optimizer step of all ranks, which they and micro-batches must divide."""
        if count % ranks:
            raise CompletedpError(
                f"the batch's {count} sequences do not divide among {ranks} ranks: start another "
                f"number of processes, or change {option('batch')} or {option('context')}"
            )
        own, of_each = count // ranks, "" if ranks == 1 else f" on each of {ranks} ranks"
        if self.micro_batch is not None and (self.micro_batch < 1 or own % self.micro_batch):
            raise CompletedpError(
                f"micro_batch {self.micro_batch} does not divide the batch's {own} sequences"
                f"{of_each}"
            )
        return count

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


# What may differ between a run and its resumption without changing the result but for rounding.
INCIDENTAL = frozenset(
    {"out", "stop_after", "device", "compile", "tensorboard", "wandb", "log_every"}
    | {"checkpoint_every", "eval_every", "micro_batch", "parallel", "noise_every"}
    | {"recipe", "data"}  # what is in them is compared instead
    | {"untie"}  # the model's name says it
)


def same_run(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The name of the first setting in which two configs ask for different results, if any."""
    names = [f.name for f in fields(TrainConfig) if f.name not in INCIDENTAL]
    return next((name for name in names if old.get(name) != new.get(name)), None)


def run_settings(config: TrainConfig) -> dict[str, Any]:
    """Of a config, what a run's result depends on."""
    return {name: value for name, value in config.to_dict().items() if name not in INCIDENTAL}
