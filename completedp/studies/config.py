"""What a search is asked to do. Plain values: no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from completedp.common.checks import check_number, check_path, check_whole
from completedp.common.flags import off
from completedp.tasks.config import TaskConfig
from completedp.theory.recipe import Recipe
from completedp.theory.rules import BetaRule

LONGEST_LEASE_SECONDS = 600.0
"""No trial is held longer by a worker that is not heard of, whatever the clocks say."""
LADDER = ("tokens=2", "width=2,depth=2,tokens=2")
"""The rungs where nothing is said: longer, and then larger along all that a base is narrow in. What
is chosen at the base alone may not carry."""
REACH = 4.0
"""Octaves that a coordinate may go to either side of the start."""
SpaceKind = Literal["global", "type", "staged", "paper", "kronecker", "full"]
ScheduleKind = Literal["cosine", "constant", "wsd"]
EngineName = Literal["recombine", "trust-region", "cma-es", "random", "paper-grid", "tpe", "gp"]


@dataclass(frozen=True, kw_only=True)
class BaseConfig(TaskConfig):
    """A task, and the recipe that it starts from."""

    recipe: str = "default"
    """Recipe to start from, a file or the name of one that ships; trials are at its base."""
    width: int | None = None
    """d_model of a base of your own; usual values, in place of the default recipe's, start there.
    Depth, batch and tokens, where not given, are then the default recipe's."""
    depth: int | None = None
    """Blocks of a base of your own."""
    batch: int | None = None
    """Tokens per optimizer step of a base of your own (examples, of data that are no text)."""
    tokens: int | None = None
    """Tokens in all of a base of your own."""
    token_exponent: float | None = None
    """How fast learning rates fall with the tokens, from 0 to 1; the recipe's if not given, of a
    base of your own 0.5."""
    beta_rule: BetaRule | None = None
    """What betas do as batch and tokens grow; the recipe's if not given, of a base of your own
    linear. keep: nothing."""
    schedule: ScheduleKind | None = None
    """The learning rate over a run; the recipe's if not given, of a base of your own cosine. wsd is
    warm-up, stable, decay."""
    warmup: float | None = None
    """Fraction of the steps over which the rate rises."""
    final: float | None = None
    """What the rate ends at, as a fraction of its peak; of a base of your own 0."""
    decay: float | None = None
    """Of wsd: the last fraction of the steps, over which the rate falls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_path("recipe", self.recipe)

    def with_choices(self, recipe: Recipe) -> Recipe:
        """A recipe with the rules and the schedule that are given."""
        rules = {"token_exponent": self.token_exponent, "beta_rule": self.beta_rule}
        schedule = {
            "kind": self.schedule,
            "warmup": self.warmup,
            "final": self.final,
            "decay": self.decay,
        }
        ruled = recipe.with_rules(**_given(rules))
        return ruled.with_schedule(**_given(schedule))

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of a base of the user's own."""
        return _given({name: getattr(self, name) for name in ("width", "depth", "batch", "tokens")})


def _given(choices: Mapping[str, Any]) -> dict[str, Any]:
    return {name: choice for name, choice in choices.items() if choice is not None}


@dataclass(frozen=True, kw_only=True)
class StudyConfig(BaseConfig):
    """A study: what is searched, by which engine, judged how."""

    space: SpaceKind = "staged"
    """What has values of its own: the model (global), module types (type; staged: after the global
    ones), those and layers (paper, kronecker), types in every layer (full)."""
    tunables: tuple[str, ...] | None = None
    """What is tuned: hyperparameters, warmup, final and power of the schedule, or single
    coordinates such as lr/type/qkv, residual/depth/3. All that the recipe's optimizers have,
    init_std, residual, and all of the schedule but a final of 0, if not given."""
    reach: float = REACH
    """Octaves a coordinate may go from its start."""
    target: tuple[str, ...] = ()
    """Where results are to be used, as ratios to the base (width=4,batch=4): bounds hold there."""
    sites: tuple[str, ...] = ()
    """Scales besides the base at which trials train in turn, as ratios to it (depth=2,tokens=2):
    what gains at all of them is what carries."""
    engine: EngineName = "recombine"
    """What proposes points."""
    trials: int = 300
    """How many trials; a larger number goes on with the same study, a smaller changes nothing."""
    seed: int = 0
    """Of the engine and of the trials, which all have their own."""
    stop_early: bool = False
    """End hopeless trials early, judged by their loss curves; pays with --engine trust-region."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("trials", self.trials, low=1, high=10**9)
        check_number("reach", self.reach, low=0, high=64)
        check_number("seed", self.seed, low=0, high=2**31)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """How one worker runs trials; may differ from worker to worker of a study."""

    slots: int | None = None
    """Trials at once; as many as fit the memory if not given."""
    device: str = "auto"
    """auto, cpu, cuda."""
    compile: Annotated[bool, off("Do not compile the program.")] = True
    """Compile the program."""
    lease: float = 60.0
    """Seconds after which a worker that is not heard of is taken for dead; at most 600."""

    def __post_init__(self) -> None:
        if self.slots is not None:
            object.__setattr__(self, "slots", check_whole("slots", self.slots))
        check_number("lease", self.lease, low=1, high=LONGEST_LEASE_SECONDS)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
