"""A trial: one training run of one point. What is asked, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from completedp.apply.planned import Plan
from completedp.common.errors import CompletedpError

Key = TypeVar("Key")

CHECK_EVERY = 20
"""Losses are read every so many steps, as reading one waits for the device."""
EVALUATION_TOKENS = 65_536
"""An evaluation takes about this many tokens at a time."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a run is: its step, and by the plan's tensors weights and optimizer's state."""

    step: int
    tensors: tuple[tuple[torch.Tensor, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Trial(Generic[Key]):
    """A plan for a model, a seed, a length, and what the asker knows it by.

    Schedule and data are those of `steps` in all, also where only a part of them is trained: from
    another trial's `begin` on, `until` a step, where it is judged and its state is kept.
    """

    plan: Plan
    seed: int
    steps: int
    key: Key = None  # type: ignore[assignment]
    begin: State | None = None
    until: int | None = None

    @property
    def first(self) -> int:
        """The step that it begins at."""
        return 0 if self.begin is None else self.begin.step

    @property
    def last(self) -> int:
        """The step that it ends before."""
        return self.steps if self.until is None else self.until

    @property
    def length(self) -> int:
        """How many steps are trained."""
        return self.last - self.first


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Key]):
    """How a trial ended."""

    trial: Trial[Key]
    status: str
    """ok, diverged or stopped."""
    losses: list[float]
    """The loss of every step, to the last finite one where it diverged."""
    valid_loss: float | None
    """None where it did not get to its end, or diverged there: a last update may break a model
    after its loss was read."""
    state: State | None = None
    """Where it was at its end, of a trial that was asked for `until` a step."""

    def __post_init__(self) -> None:
        first = self.losses[0] if self.losses else math.inf
        if self.valid_loss is not None and is_divergence(self.valid_loss, first):
            object.__setattr__(self, "valid_loss", None)
            object.__setattr__(self, "status", "diverged")

    @property
    def key(self) -> Key:
        """What the asker knows the trial by."""
        return self.trial.key

    @property
    def loss(self) -> float:
        """The loss on held-out data; infinite where there is none."""
        found = finite(self.valid_loss)
        return math.inf if found is None else found


Stop = Callable[[list[tuple[Trial[Key], list[float]]]], Sequence[bool]]
"""Running trials with their losses so far, to which of them end early."""
Progress = Callable[[int], None]
"""Told how many steps of trials were done since it was last called."""


class Stack(Protocol):
    """A place on a device where trials of one model shape train."""

    count: int
    """Trials at once."""
    busy_steps: int
    slot_steps: int
    """Slot-steps that trained a trial, and all that ran: their ratio is the occupancy."""

    def prepare(self) -> None:
        """Compile what is to be compiled, before any trial."""
        ...

    def run(
        self,
        trials: Iterable[Trial[Key]],
        *,
        stop: Stop[Key] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome[Key]]:
        """Train every trial; outcomes come as they end, in no order."""
        ...


def is_divergence(loss: float, first: float) -> bool:
    """Whether a loss is no number, or twice the first one's; of losses near or below 0, one that
    has risen by their size, at least by 1."""
    return not math.isfinite(loss) or loss > first + max(abs(first), 1.0)


def finite(loss: float | None) -> float | None:
    """A loss, where it is a number that says anything."""
    return loss if loss is not None and math.isfinite(loss) else None


def check_has_gradient(loss: torch.Tensor) -> None:
    """Raise on a loss that no weight would move by, as one made under no_grad or detached."""
    if not loss.requires_grad:
        raise CompletedpError(
            "the loss does not depend on any weight that trains: is it detached, made under "
            "torch.no_grad, or are all weights frozen?"
        )


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed what a model draws in its forward pass: the same when resumed, another on each rank."""
    torch.manual_seed(((seed * 1_000_003 + step) * 1_009 + rank) % 2**63)


def diverged(losses: list[float]) -> bool:
    """Whether any of the latest losses, which are all that were not looked at yet, is bad."""
    return first_bad(losses[-CHECK_EVERY:], losses[0]) < min(len(losses), CHECK_EVERY)


def first_bad(losses: list[float], first: float | None = None) -> int:
    """Index of the first loss that is divergence; the length where there is none."""
    first = losses[0] if first is None else first
    for index, loss in enumerate(losses):
        if is_divergence(loss, first):
            return index
    return len(losses)
