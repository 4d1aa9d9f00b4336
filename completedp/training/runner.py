"""Runner: the one way in which trials are trained, whatever asks for them.

Searches, sweeps, ladders, figures and the quickstart hand it trials of a task at a scale. It trains
them in slots, or one at a time where the model allows no slots, and keeps the stacks of the last
few scales, since compiling one takes longer than many a trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from completedp.common.checks import check_whole
from completedp.common.warn import warn
from completedp.lm.reference import ReferenceModel
from completedp.tasks.task import Task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.devices import choose_device, choose_dtype
from completedp.training.memory import slots_with_room
from completedp.training.sequential import OneAtATime
from completedp.training.slots import Slots
from completedp.training.stacked import CannotStackError, probe
from completedp.training.trials import Key, Outcome, Progress, Stack, Stop, Trial

_FEW = 2
"""Examples on which a model is tried in slots first."""
_KEPT = 3
"""Stacks of scales that may come back."""


class Runner:
    """A task's trials on this machine."""

    def __init__(
        self, task: Task, *, slots: int | None = None, device: str = "auto", compile: bool = True
    ) -> None:
        if slots is not None:
            slots = check_whole("slots", slots)
        self.task, self.slots, self.compiles = task, slots, compile
        self.device = choose_device(device)
        self._dtype = choose_dtype("auto", self.device)
        self._stacks: dict[Scale, tuple[Stack, int | None]] = {}
        """By scale: a stack, and for how many trials it was made."""
        self._large: set[Scale] = set()
        """Scales that have few slots even alone: for these nobody else is to go."""
        self._why_not: str | None = None
        """What keeps the model out of slots; empty where nothing does."""

    def trial(self, recipe: Recipe, scale: Scale, seed: int, key: Key) -> Trial[Key]:
        """A recipe carried to a scale, as something to train."""
        self.task.data.examples(scale.batch)
        planned = self.task.plan(recipe, scale)
        return Trial(plan=planned, seed=seed, steps=scale.steps, key=key)

    def run(
        self,
        trials: Iterable[Trial[Key]],
        scale: Scale,
        *,
        count: int | None = None,
        stop: Stop[Key] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome[Key]]:
        """Train trials of one scale; outcomes come as they end. `count` is how many are known."""
        return self.stack(scale, count).run(trials, stop=stop, progress=progress)

    def stack(self, scale: Scale, trials: int | None = None) -> Stack:
        """Where trials of a scale train: slots, with room for `trials` if so many are known.

        A stack that is there is used again unless most of it would be idle, or too little of it.
        """
        there = self._stacks.pop(scale, None)
        if there is None or not _suits(*there, trials):
            while len(self._stacks) >= _KEPT:
                del self._stacks[next(iter(self._stacks))]
            there = None  # its memory is needed for the new one
            count = self.slots if trials is None else min(self.slots or trials, trials)
            made = self._make(scale, None if self.slots is None else count, trials)
            may_grow = self._stacks and self.slots is None and scale not in self._large
            if may_grow and self._is_short(made, trials):
                had = made.count
                del made
                self._stacks.clear()  # which hold the memory that it may lack
                made = self._make(scale, None, trials)
                if made.count <= had:
                    self._large.add(scale)
            there = made, trials
        self._stacks[scale] = there  # the last one asked for is the last to go
        return there[0]

    def _is_short(self, stack: Stack, trials: int | None) -> bool:
        """Whether it has at most half of the slots that a device with more memory would give it:
        for less it is not worth compiling the others again."""
        return isinstance(stack, Slots) and 2 * stack.count <= slots_with_room(self.device, trials)

    def in_slots(self, scale: Scale) -> bool:
        """Whether the model trains in slots; what keeps it out of them is said once."""
        if self._why_not is None:
            self._why_not = self._probe(scale)
            if self._why_not:
                warn(f"{self.task.name} trains one trial at a time: {self._why_not}")
        return not self._why_not

    def _make(self, scale: Scale, count: int | None, trials: int | None) -> Stack:
        if not self.in_slots(scale):
            return OneAtATime(self.task, scale, device=self.device, dtype=self._dtype)
        task, narrow = self.task, None if self._dtype == torch.float32 else self._dtype
        return Slots(
            task.model(scale, narrow),
            task.data,
            examples=task.data.examples(scale.batch),
            max_steps=scale.steps,
            count=count,
            device=self.device,
            loss=task.loss,
            autocast=narrow,
            z_loss=task.z_loss,
            eval_examples=task.eval_examples,
            compile=self.compiles,
            trials=trials,
        )

    def _probe(self, scale: Scale) -> str:
        """Why the model cannot train in slots; empty where it can."""
        if isinstance(self.task.make, ReferenceModel) and self.task.loss is None:
            return ""
        model = self.task.blank(scale)
        if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
            return f"{frozen[0]} is frozen, and a slot draws every tensor"
        planned = self.task.plan(self.task.recipe(scale), scale)
        for branch, way in planned.ways.items():
            if way in ("hook", "setting"):
                what = "logits" if branch == "output" else "residual branches"
                return (
                    f"the multipliers of its {what} are carried by "
                    f"{'hooks' if way == 'hook' else 'its config'}, which all slots would share"
                )
        try:
            examples = self.task.data.examples(scale.batch)
            few = min(_FEW, examples)  # a whole batch of a large vocabulary takes a minute
            try:
                probe(model, self.task.loss, self.task.data, self.device, few)
            except CannotStackError:
                if few == examples:
                    raise
                probe(model, self.task.loss, self.task.data, self.device, examples)
        except CannotStackError as error:
            return str(error)
        return ""


def _suits(stack: Stack, made_for: int | None, trials: int | None) -> bool:
    """Whether a stack serves for so many trials about as well as a new one would."""
    if trials is None or made_for is None or stack.count < made_for:
        return trials is None or stack.count <= 2 * trials  # as many slots as there can be
    return trials <= made_for and stack.count <= 2 * trials
