"""Plan: the numbers for a model at a target scale, with all that can be done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from completedp.apply import explain, initialise, multipliers, optimise
from completedp.apply.cautions import scale_cautions
from completedp.apply.optimizer_check import OptimizerCheck, check_optimizer
from completedp.apply.table import render
from completedp.apply.tensors import PlanNumbers
from completedp.common.checks import check_whole

if TYPE_CHECKING:
    from completedp.apply.adamw import Implementation


class Plan(PlanNumbers):
    """What to do with a model at a target scale. Prints as a table.

    Values are torch's: lr and eps per step, weight decay as a multiple of lr (or by itself, where
    the rules say `independent`; `param_groups` has torch's).

    >>> import completedp as cdp
    >>> recipe = cdp.Recipe.shipped("adamw-reference").with_values(lr=0.004)
    >>> model = cdp.Transformer(cdp.ModelConfig(vocab=256, width=512, depth=4))
    >>> found = cdp.plan(model, recipe, recipe.base.times(cdp.Ratios(width=2)))
    >>> found.initialise(seed=0)
    >>> optimizer = found.adamw()
    >>> found.check(optimizer).passed
    True
    >>> print(found.explain("blocks.0.mlp.up.weight", "lr"))
    blocks.0.mlp.up.weight: lr = 0.004 (value) x 0.5 (width 2^-1) = 0.002 (0.004 at base)
    """

    def initialise(self, seed: int = 0) -> None:
        """Draw every parameter and attach the multipliers, in place.

        The draw depends on the seed and the tensor's name alone: not on the device, the order of
        the parameters, or who else is there.
        """
        initialise.initialise(self, check_whole("seed", seed, low=0))
        self.attach()

    def attach(self) -> None:
        """Set the model's multipliers: its buffers, and hooks where branches end in norms.

        `initialise` does it too. A model that is loaded instead needs it where its multipliers are
        carried by hooks, which no checkpoint holds.
        """
        multipliers.attach(self)

    def param_groups(self, optimizer: str | None = None) -> list[dict[str, Any]]:
        """Groups for `torch.optim.AdamW`: tensors with equal values share one.

        Where the recipe's rules give roles to several optimizers, those of the one that is named.
        """
        return optimise.param_groups(self, optimizer)

    def optimizer(self) -> Optimizer:
        """What trains the tensors: `adamw()`, or where there are several optimizers, all as one."""
        return optimise.optimizer(self)

    def adamw(self, implementation: Implementation = "auto", **options: Any) -> torch.optim.AdamW:
        """AdamW with these groups; options go to its constructor.

        `completedp.AdamW`, which takes one launch however many groups there are, wherever it is as
        good as torch's. `implementation="torch"`, or an option that only torch's has (fused,
        foreach, capturable, differentiable, amsgrad), gives `torch.optim.AdamW`. Either loads the
        other's state.
        """
        return optimise.adamw(self, implementation, **options)

    def explain(self, name: str, hyperparameter: str | None = None) -> str:
        """Why a tensor has its values, in words and factors: `plan.explain("layers.3.mlp.up")`.

        The name is a tensor's, or that of a module for all tensors in it.
        """
        return explain.explain(self, name, hyperparameter)

    def check(self, *optimizers: Optimizer) -> OptimizerCheck:
        """Whether an optimizer still holds what was planned: `.passed`; prints each difference.

        Where several train parts of the model, all of them together.
        """
        return check_optimizer(self, *optimizers)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What there is to doubt of the recipe at this target; printed first."""
        return tuple(scale_cautions(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        return {"cautions": list(self.cautions), **super().to_dict()}

    def __str__(self) -> str:
        return render(self, self.cautions)

    __repr__ = __str__
