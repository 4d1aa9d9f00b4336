"""What checks and sweeps are asked to do. Plain values: no torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

from completedp.common.checks import check_number, check_path
from completedp.common.errors import CompletedpError
from completedp.studies.config import BaseConfig
from completedp.theory.rules import PARAMETERISATIONS

BASE = "base"
"""The axis of the points at the base's own scale, which all axes share."""


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """Short runs of the reference model over widths and depths; the first of each is the base."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Widths, at the first depth; one alone skips the width check."""
    depths: tuple[int, ...] = (2, 4, 8, 16)
    """Depths, at the first width; one alone skips the depth check."""
    batch: int = 1024
    """Tokens per step."""
    context: int = 64
    """Tokens per sequence."""
    steps: int = 10
    """Steps before sizes are compared."""
    seeds: int = 3
    """Runs per size; slopes are of their geometric mean."""
    parameterisations: tuple[str, ...] = ("completedp",)
    """Any of sp, mup, completep, completedp."""
    alpha: float = 1.0
    """Residual exponent."""
    output_norm_eps: str = "printed"
    """The gradient check: the output norm's eps as `printed` in Table 1, or `gradient`."""
    lr: float = 2.0**-10
    """Global learning rate at base. Slopes are those of the limit while steps are small."""
    model: str | None = None
    """module:function of your own that makes a model of a width and a depth, with 257 tokens or
    more, instead of the reference model; the next four are then its own business."""
    override: tuple[str, ...] = ()
    """REGEX=TYPE: tensors of your model whose names match are of that module type."""
    head_dim: int = 16
    """Size of an attention head."""
    qk_norm: bool = True
    """Normalise queries and keys."""
    mlp: str = "gelu"
    """gelu or swiglu."""
    bias: bool = True
    """Biases on all linear layers, so that every role is there to be checked."""
    text: str = "stdlib"
    """Text whose bytes are the tokens: stdlib, a file, or a folder."""
    tolerance: float = 0.2
    """How far a slope may be from the one expected."""
    device: str = "auto"
    """auto, cpu, cuda."""

    def __post_init__(self) -> None:
        for name in ("widths", "depths"):
            sizes = getattr(self, name)
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise CompletedpError(
                    f"{name} = {list(sizes)} must be whole numbers above 0, increasing"
                )
        if len(self.widths) < 2 and len(self.depths) < 2:
            raise CompletedpError("a slope needs at least two widths or two depths")
        for name in ("batch", "context", "steps", "seeds"):
            if getattr(self, name) < 1:
                raise CompletedpError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.batch % self.context:
            raise CompletedpError(
                f"batch of {self.batch} tokens is not a whole number of sequences of "
                f"{self.context} tokens (context)"
            )
        if self.override and self.model is None:
            raise CompletedpError(
                f"override {self.override[0]!r} is for a model of your own: give --model too"
            )
        check_path("text", self.text)
        check_number("tolerance", self.tolerance, low=0, high=10)
        check_parameterisations(self.parameterisations)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


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
    parameterisations: tuple[str, ...] = ("completedp",)
    """Any of sp, mup, completep, completedp."""
    seeds: int = 3
    """Trials per point."""

    def __post_init__(self) -> None:
        check_number("seeds", self.seeds, low=1)
        for name in ("vary", "axes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise CompletedpError(f"{name} = {list(values)} must name one or more, each once")
        if len(self.vary) > 2:
            raise CompletedpError(
                f"vary = {list(self.vary)} must be one or two: more are a search, not a grid"
            )
        for name in ("octaves", "second_octaves"):
            octaves = getattr(self, name)
            if len(octaves) < 3 or list(octaves) != sorted(set(octaves)):
                raise CompletedpError(f"{name} = {list(octaves)} must be three or more, increasing")
            for octave in octaves:
                check_number(name, octave, low=-64, high=64)
        if (
            not self.factors
            or self.factors[0] != 1
            or list(self.factors) != sorted(set(self.factors))
        ):
            raise CompletedpError(
                f"factors = {list(self.factors)} must start with 1, the base, and increase"
            )
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


def check_parameterisations(names: tuple[str, ...]) -> None:
    """Raise unless they are one or more, known, each once."""
    if not names or len(set(names)) < len(names):
        raise CompletedpError(f"parameterisations = {list(names)} must name one or more, each once")
    for name in names:
        if name not in PARAMETERISATIONS:
            raise CompletedpError(
                f"unknown parameterisation {name!r}: choose from {', '.join(PARAMETERISATIONS)}"
            )
