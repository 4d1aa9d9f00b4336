"""Scale: how large a training run is. Ratios: how much larger one run is than another.

A factor is written `4x`, and `0.5x`; where only factors are asked for, as in ratios, 4 will do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction

from completedp.common.checks import check_is, check_number, check_whole
from completedp.common.errors import CompletedpError

_LEAST, _MOST = 1e-12, 1e12
"""Ratios that anything is done with."""


@dataclass(frozen=True)
class Factor:
    """So many times the base's size, exactly.

    >>> Factor.parse("0.3x").of("depth", 10)
    3
    """

    digits: str
    """As it was written: a binary number would round 0.3."""

    @classmethod
    def parse(cls, text: str) -> Factor:
        """`4x`, or 4."""
        found = cls(text[:-1] if text[-1:] in ("x", "X") else text)
        try:
            float(found)
        except ValueError:
            raise CompletedpError(f"{text!r:.40} is not a factor such as 4x or 0.5x") from None
        return found

    def __float__(self) -> float:
        return float(self.digits)

    def of(self, axis: str, base: int) -> int:
        """The size: a whole number, or an error that names the base."""
        if not _LEAST <= float(self) <= _MOST:
            raise CompletedpError(f"{axis} = {self} must be above 0 and finite (1e-12x to 1e12x)")
        size = Fraction(self.digits) * base
        if size.denominator != 1:
            raise CompletedpError(
                f"{axis} = {self} of the base's {base:,} is {float(size):,.10g}: give a factor "
                "that makes a whole number, or the number itself"
            )
        return int(size)

    def __str__(self) -> str:
        return f"{self.digits:.40}x"


Size = int | Factor
"""A size as it is asked for: a number, or so many times the base's."""


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """The four ratios of a target to a base: m_N, m_L, m_B and m_D in the paper's letters.

    Ratios have no unit.

    >>> Ratios(width=4, batch=4, tokens=16).r
    0.25
    """

    width: float = 1.0
    """m_N: width over base width."""
    depth: float = 1.0
    """m_L: blocks over base blocks."""
    batch: float = 1.0
    """m_B: tokens per optimizer step over those at base."""
    tokens: float = 1.0
    """m_D: training tokens over those at base."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = check_number(f"ratio {field.name}", value, low=_LEAST, high=_MOST)
            object.__setattr__(self, field.name, number)

    @classmethod
    def parse(cls, text: str) -> Ratios:
        """`width=4,depth=4`, or `width=4x,depth=4x`; those left out are 1."""
        names = [field.name for field in fields(cls)]
        found: dict[str, float] = {}
        for part in filter(None, text.replace(" ", "").split(",")):
            name, equals, value = part.partition("=")
            if not equals or name not in names or name in found:
                raise CompletedpError(
                    f"ratios {text!r}: {part!r} must be AXIS=NUMBER, each of "
                    f"{', '.join(names)} at most once"
                )
            try:
                found[name] = float(Factor.parse(value))
            except CompletedpError:
                raise CompletedpError(f"ratios {text!r}: {value!r} is not a number") from None
        if not found:
            raise CompletedpError(f"ratios {text!r} name no axis: give some, such as width=4")
        return cls(**found)

    @property
    def r(self) -> float:
        """m_B / m_D: by the paper's token exponent of 1/2 what 1 - beta is multiplied by. `Rules.r`
        has it for any exponent."""
        return self.batch / self.tokens

    @property
    def steps(self) -> float:
        """How many times more optimizer steps the target takes."""
        return self.tokens / self.batch

    def __mul__(self, other: Ratios) -> Ratios:
        """From a to b, then from b to c, is from a to c."""
        return Ratios(
            width=self.width * other.width,
            depth=self.depth * other.depth,
            batch=self.batch * other.batch,
            tokens=self.tokens * other.tokens,
        )

    def to_dict(self) -> dict[str, float]:
        """Plain numbers, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of one training run; `target / base` gives the `Ratios` between two.

    >>> base = Scale(width=256, depth=4, batch=16_384, tokens=16_000_000)
    >>> target = Scale(width=1024, depth=8, batch=65_536, tokens=64_000_000)
    >>> (target / base).width, (target / base).r, target.steps
    (4.0, 1.0, 976)
    """

    width: int
    """d_model."""
    depth: int
    """Number of transformer blocks."""
    batch: int
    """Tokens per optimizer step."""
    tokens: int
    """Tokens seen in the whole run."""

    def __post_init__(self) -> None:
        for field in fields(self):
            size = check_whole(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, size)
        if self.depth > 10_000:  # what goes through all blocks would seem to hang
            raise CompletedpError(f"depth = {self.depth} must be at most 10,000 blocks")
        if self.tokens < self.batch:
            raise CompletedpError(
                f"tokens = {self.tokens} is fewer than one batch of {self.batch} tokens: "
                "train on more tokens or take a smaller batch"
            )

    @property
    def steps(self) -> int:
        """Whole optimizer steps in the run; a last partial batch is not trained on."""
        return self.tokens // self.batch

    def __truediv__(self, base: Scale) -> Ratios:
        check_scale("divisor", base)
        return Ratios(
            width=self.width / base.width,
            depth=self.depth / base.depth,
            batch=self.batch / base.batch,
            tokens=self.tokens / base.tokens,
        )

    def times(self, ratios: Ratios) -> Scale:
        """The scale that is so many times this one; sizes are rounded to whole numbers."""
        check_ratios(ratios)
        return Scale(
            **{axis: round(size * getattr(ratios, axis)) for axis, size in self.to_dict().items()}
        )

    def resized(self, **sizes: Size | str | None) -> Scale:
        """The scale with the sizes that are given; "4x" is four times this one's.

        >>> Scale(width=64, depth=4, batch=4_096, tokens=8_388_608).resized(width="4x", depth=6)
        Scale(width=256, depth=6, batch=4096, tokens=8388608)
        """
        given = {
            axis: Factor.parse(size) if isinstance(size, str) else size
            for axis, size in sizes.items()
            if size is not None
        }
        return replace(
            self,
            **{
                axis: size.of(axis, getattr(self, axis)) if isinstance(size, Factor) else size
                for axis, size in given.items()
            },
        )

    def to_dict(self) -> dict[str, int]:
        """Plain numbers, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return self.line()

    def line(self, counted: str = "tokens") -> str:
        """For people; `counted` is what the data have so many of."""
        return (
            f"width {self.width}, depth {self.depth}, "
            f"batch {self.batch:,} {counted}, {self.tokens:,} {counted}"
        )


def check_scale(name: str, value: object) -> None:
    """Raise where something else was given than a scale."""
    check_is(name, value, Scale, "a Scale(width=..., depth=..., batch=..., tokens=...)")


def check_ratios(value: object) -> None:
    """Raise where something else was given than ratios; a scale has the same names."""
    check_is("ratios", value, Ratios, "Ratios: target / base, or Ratios(width=4)")
