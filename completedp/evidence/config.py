"""What checks and sweeps are asked to do. Plain values: no torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated, Any, Literal

from completedp.common.checks import check_number, check_one_of, check_path, check_whole
from completedp.common.errors import CompletedpError
from completedp.common.flags import named, off
from completedp.lm.shape import Shape
from completedp.studies.config import BaseConfig
from completedp.tasks.config import Overrides, OwnCode
from completedp.theory.rules import AXES, PARAMETERISATIONS

BASE = "base"
"""The axis of the points at the base's own scale, which all axes share."""

CHECK_SHAPE = Shape(head_dim=16, bias=True, output_bias=True)
"""Of the reference model in checks: small heads, and biases so that every role is there."""


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Short runs over widths and depths; the first of each is the base."""

    widths: tuple[int, ...] | None = None
    """Widths, at the first depth: 64 128 256 512 if not given, with a recipe its base times 1, 2
    and 4, and so of the least width of an hf: config whose heads do not divide 64; one alone skips
    the width check."""
    depths: tuple[int, ...] | None = None
    """Depths, at the first width: 2 4 8 16 if not given, with a recipe its base times 1, 2 and 4;
    one alone skips the depth check."""
    batch: int | None = None
    """Tokens per step: 1024 if not given. Of your own data without a context, examples: 64."""
    context: int | None = None
    """Tokens per sequence: 64 for text; your own data counts examples if not given."""
    steps: int = 10
    """Steps before sizes are compared."""
    seeds: int = 3
    """Runs per size; slopes are of their geometric mean."""
    parameterisations: Annotated[tuple[str, ...] | None, named("parameterisation")] = None
    """Any of sp, mup, completep, completedp; completedp, or the recipe's, if not given."""
    alpha: float | None = None
    """Residual exponent; 1, or the recipe's, if not given."""
    output_norm_eps: str | None = None
    """The gradient check: the output norm's eps as `printed` in Table 1, or `gradient`; printed,
    or the recipe's, if not given."""
    lr: float | None = None
    """Global learning rate at base: 2^-10, or the recipe's, if not given (with near_limit 2^-10).
    Slopes are those of the limit while steps are small."""
    near_limit: bool = False
    """With a recipe: check its rules, multipliers and base widths, from a start and at a learning
    rate near which slopes are those of the limit. Then a row that fails is a wrong rule, and not a
    recipe whose own start and rate are far from the limit at small sizes."""
    text: str | None = None
    """Text whose bytes are the tokens: stdlib (if not given), a file, or a folder."""
    tolerance: float | None = None
    """How far a slope may be from the one expected: 0.15 for features, 0.2 for gradients, which are
    noisier, 0.25 for both where the embedding is tied, if not given."""
    device: str = "auto"
    """auto, cpu, cuda."""
    shape: Shape = CHECK_SHAPE
    """The reference model's shape; with a recipe, what is not given is as its base model was."""

    def __post_init__(self) -> None:
        for name in ("widths", "depths"):
            if getattr(self, name) is None:
                continue
            sizes = tuple(check_whole(name, size) for size in getattr(self, name))
            if not sizes or list(sizes) != sorted(set(sizes)):
                raise CompletedpError(f"{name} = {list(sizes)} must be one or more, increasing")
            object.__setattr__(self, name, sizes)
        if len(self.widths or (1, 2)) < 2 and len(self.depths or (1, 2)) < 2:
            raise CompletedpError("a slope needs at least two widths or two depths")
        for name in ("batch", "context", "steps", "seeds"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_whole(name, value))
        if self.text is not None:
            check_path("text", self.text)
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance, low=0, high=10)
        if self.parameterisations is not None:
            check_parameterisations(self.parameterisations)


@dataclass(frozen=True, kw_only=True)
class CheckConfig(CheckSettings, Overrides, OwnCode):
    """A check as the command line gives it: what is checked by name."""

    data: str | None = None
    """Folder of tokens, made by `completedp data`, or module:function that gives your own data, in
    place of the text, for which a model needs 257 tokens or more."""
    recipe: str | None = None
    """Recipe file, or the name of one that ships: check the values that a plan assigns from it, its
    multipliers, rules and base widths, at its base batch and tokens and at constant rates. If not
    given, values near which slopes are those of the limit."""

    def __post_init__(self) -> None:
        CheckSettings.__post_init__(self)
        OwnCode.__post_init__(self)


Axis = Literal["width", "depth", "batch", "tokens"]


@dataclass(frozen=True, kw_only=True)
class SweepGrid:
    """What is swept: one or two coordinates over octaves, along axes of scale from one base."""

    vary: tuple[str, ...] = ("lr",)
    """One or two values to sweep: lr, weight_decay, ... for all tensors, or any coordinate, such as
    lr/type/qkv, residual/depth/3, schedule/warmup."""
    octaves: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
    """Log2 of what the recipe's value is multiplied by, increasing."""
    second_octaves: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    """The same for the second coordinate, where there is one."""
    axes: tuple[Axis, ...] = ("width",)
    """What grows, one at a time."""
    factors: tuple[int, ...] = (1, 2, 4)
    """How many times the base, increasing, the first 1."""
    parameterisations: Annotated[tuple[str, ...], named("parameterisation")] = ("completedp",)
    """Any of sp, mup, completep, completedp."""
    seeds: int = 3
    """Trials per point."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", check_whole("seeds", self.seeds))
        for name in ("vary", "axes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise CompletedpError(f"{name} = {list(values)} must name one or more, each once")
        if len(self.vary) > 2:
            raise CompletedpError(
                f"vary = {list(self.vary)} must be one or two: more are a search, not a grid"
            )
        for name in ("octaves", "second_octaves"):
            check_octaves(name, getattr(self, name))
        for axis in self.axes:
            check_one_of("axis", axis, AXES)
        check_factors("factors", self.factors)
        check_parameterisations(self.parameterisations)

    @property
    def coordinates(self) -> tuple[str, ...]:
        """What is varied, by coordinate; a value alone is that of all tensors."""
        return tuple(name if "/" in name else f"{name}/global" for name in self.vary)

    @property
    def grid(self) -> tuple[tuple[float, ...], ...]:
        """The octaves of each coordinate."""
        return (self.octaves, self.second_octaves)[: len(self.vary)]

    @property
    def scales(self) -> list[tuple[str, int]]:
        """Every scale once: the base, then each axis by its factors."""
        return [(BASE, 1), *product(self.axes, self.factors[1:])]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class SweepConfig(SweepGrid, BaseConfig):
    """A sweep: its grid, its task, and where results go."""

    out: str
    """Folder for trials, verdict and plot; the same command goes on where it stopped."""
    store: str | None = None
    """A store of trials that other machines join with `search worker`; OUT/sweep.db if not
    given."""

    def __post_init__(self) -> None:
        SweepGrid.__post_init__(self)
        BaseConfig.__post_init__(self)
        check_path("out", self.out)


@dataclass(frozen=True, kw_only=True)
class HorizonGrid:
    """What is trained to fit the exponents of tokens and batch."""

    factors: tuple[int, ...] = (1, 4, 16)
    """How many times the base's tokens, increasing, the first 1."""
    batch_factors: tuple[int, ...] = (1, 2, 4)
    """How many times the base's batch, at its tokens; 1 alone leaves the batch rule out."""
    batch_growth: float | None = None
    """Also train with the batch growing as this power of the tokens: 0.5 is their square root."""
    octaves: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
    """Learning rates, increasing: log2 of what multiplies the recipe's, carried with an exponent of
    1/4 in tokens and 1/2 in batch."""
    seeds: int = 3
    """Trials per point; the errors come from them."""
    noise: Annotated[bool, off("Do not train the base once more for the critical batch.")] = True
    """Also train the base once more for the critical batch, from the gradient's noise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", check_whole("seeds", self.seeds))
        check_octaves("octaves", self.octaves)
        check_factors("factors", self.factors)
        check_factors("batch_factors", self.batch_factors)
        if len(self.factors) < 2:
            raise CompletedpError(
                f"factors = {list(self.factors)} must have one above 1: there is no exponent "
                "without a longer run"
            )
        if self.batch_growth is not None:
            check_number("batch_growth", self.batch_growth, low=0, high=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class HorizonConfig(HorizonGrid, BaseConfig):
    """A fit of the horizon: its grid, its task, and where results go."""

    out: str
    """The recipe that is written, NAME.json; trials, verdict and plot go to the folder NAME, and
    the same command goes on where it stopped."""
    store: str | None = None
    """A store of trials that other machines join with `search worker`; NAME/horizon.db if not
    given."""

    def __post_init__(self) -> None:
        HorizonGrid.__post_init__(self)
        BaseConfig.__post_init__(self)
        check_path("out", self.out)


def check_octaves(name: str, octaves: tuple[float, ...]) -> None:
    """Raise unless an optimum can be bracketed by them."""
    for octave in octaves:
        check_number(name, octave, low=-64, high=64)
    if len(octaves) < 3 or list(octaves) != sorted(set(octaves)):
        raise CompletedpError(f"{name} = {list(octaves)} must be three or more, increasing")


def check_factors(name: str, factors: tuple[int, ...]) -> None:
    """Raise unless they go up from the base."""
    for factor in factors:
        check_whole(name, factor)
    if not factors or factors[0] != 1 or list(factors) != sorted(set(factors)):
        raise CompletedpError(f"{name} = {list(factors)} must start with 1, the base, and increase")


def check_parameterisations(names: tuple[str, ...]) -> None:
    """Raise unless they are one or more, known, each once."""
    if not names or len(set(names)) < len(names):
        raise CompletedpError(f"parameterisations = {list(names)} must name one or more, each once")
    for name in names:
        check_one_of("parameterisation", name, PARAMETERISATIONS)
