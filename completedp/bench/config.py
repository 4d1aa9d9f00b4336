"""What the benches are asked to time. Plain values: no torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from completedp.common.checks import check_number
from completedp.common.errors import CompletedpError
from completedp.common.flags import off


@dataclass(frozen=True, kw_only=True)
class SlotsBenchConfig:
    """The model and batch that slots are timed on; the quickstart's by default."""

    width: int = 64
    """d_model."""
    depth: int = 2
    """Blocks."""
    vocab: int = 257
    """Vocabulary."""
    head_dim: int = 16
    """Size of an attention head."""
    sequences: int = 8
    """Sequences per step of a trial."""
    context: int = 64
    """Tokens per sequence."""
    slots: tuple[int, ...] = (16,)
    """Numbers of slots."""
    steps: int = 20
    """Steps timed at once; the median of five such times is reported."""
    chunk: int | None = None
    """Positions per chunk of the stacked loss; 0 for whole."""
    one_at_a_time: Annotated[bool, off("Time slots alone.")] = True
    """Also time the ways without slots."""
    vmap: bool = False
    """Also time slots as any module gets them, by `torch.func.vmap`."""
    device: str = "auto"
    """auto, cpu, cuda."""

    def __post_init__(self) -> None:
        for name in ("width", "depth", "vocab", "head_dim", "sequences", "context", "steps"):
            check_number(name, getattr(self, name), low=1)
        if self.chunk is not None:
            check_number("chunk", self.chunk, low=0)
        if not self.slots:
            raise CompletedpError("slots is empty: give one number or more")
        for count in self.slots:
            check_number("slots", count, low=1, high=100_000)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class OptimizerBenchConfig:
    """Which shapes of model AdamW is timed on."""

    shapes: tuple[Literal["tiny", "124m", "1b", "7b"], ...] = ()
    """Reference models; if not given 124m, 1b and 7b on a GPU, tiny on a CPU."""
    steps: int = 20
    """Steps timed at once; the median of five such times is reported."""
    device: str = "auto"
    """auto, cpu, cuda."""

    def __post_init__(self) -> None:
        check_number("steps", self.steps, low=1)
        if len(set(self.shapes)) != len(self.shapes):
            raise CompletedpError(f"shapes = {list(self.shapes)} must name each once")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
