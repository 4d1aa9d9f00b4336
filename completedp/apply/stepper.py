"""An update as a torch optimizer, and several torch optimizers as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from completedp.apply.updates import UPDATES, Update
from completedp.common.errors import CompletedpError
from completedp.theory import optimizers
from completedp.theory.optimizers import OPTIMIZERS


def make_optimizer(name: str, groups: list[dict[str, Any]]) -> Optimizer:
    """The torch optimizer of that name on groups: one that torch or this package has, or what its
    update makes."""
    update = UPDATES.get(name)
    if update is None:
        raise CompletedpError(
            f"{name} has rules and no update: write one in apply/updates.py, or take "
            f"plan.param_groups({name!r}) for an optimizer of your own"
        )
    if update.torch is not None:
        return update.torch(groups)
    return Stepper(OPTIMIZERS[name], update, groups)


class Stepper(Optimizer):
    """A torch optimizer that does what an update says, one tensor at a time."""

    def __init__(
        self, optimizer: optimizers.Optimizer, update: Update, groups: list[dict[str, Any]]
    ) -> None:
        self._optimizer, self._update = optimizer, update
        super().__init__(groups, {})

    def __getstate__(self) -> dict[str, Any]:
        """With what torch's own leaves out: copies and pickles need it."""
        return {**super().__getstate__(), "_optimizer": self._optimizer, "_update": self._update}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            values = {name: float(x) for name, x in self._optimizer.read(group).items()}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, values)
        return loss

    def _step(self, parameter: Tensor, gradient: Tensor, values: dict[str, float]) -> None:
        if hasattr(parameter, "placements"):
            raise CompletedpError(
                f"{self._optimizer.name} updates whole tensors, and these are shards: train with "
                "parallel=ddp"
            )
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state |= {name: torch.zeros_like(parameter) for name in self._update.state}
        state["step"] += 1
        like = {"device": parameter.device, "dtype": parameter.dtype}
        columns = self._update.factors(
            {name: torch.full((1, 1), value, **like) for name, value in values.items()},
            torch.ones(1, **like),  # the schedule is in the group's rate
            torch.full((1,), int(state["step"]), device=parameter.device),
        )
        kept = (state[name][None] for name in self._update.state)
        factors = torch.stack([*columns], dim=1)[0]
        self._update.apply(parameter[None], gradient[None], *kept, factors)


class Together(Optimizer):
    """Several optimizers as one: their groups in one list, their state in one place."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """A step of each."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """With the parts, which torch's own leaves out: copies and pickles need them."""
        return {**super().__getstate__(), "parts": self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for part, groups in zip(self.parts, self._groups(), strict=True):
            own = [p for group in groups for p in group["params"] if p in self.state]
            mine = defaultdict(dict, {p: self.state[p] for p in own})
            part.__setstate__({"state": mine, "param_groups": groups})
            self.state.update(part.state)
        self._share()

    def _groups(self) -> list[list[dict[str, Any]]]:
        """This one's groups, part by part."""
        rest = iter(self.param_groups)
        return [[next(rest) for _ in part.param_groups] for part in self.parts]

    def _share(self) -> None:
        for part, groups in zip(self.parts, self._groups(), strict=True):
            part.param_groups, part.state = groups, self.state
