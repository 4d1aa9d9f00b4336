"""completedp: tune a small transformer's hyperparameters, module by module, and carry them on.

    import completedp as cdp
    plan = cdp.plan(model, cdp.Recipe.load("recipe.json"), cdp.Scale(width=1024, ...))
    plan.initialise()
    optimizer = plan.adamw()

Importing this does not import torch; the names that need it are resolved when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from completedp.common.errors import CompletedpError, DataWarning, ModelWarning, ScaleWarning
from completedp.theory.evidence import Evidence
from completedp.theory.hparams import Hyperparameters, Values
from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role
from completedp.theory.rules import Factors, Rules, Shift, factors
from completedp.theory.scale import Ratios, Scale
from completedp.theory.schedule import Schedule
from completedp.theory.transfer import Transfer
from completedp.theory.value import Value

if TYPE_CHECKING:
    from completedp.apply.adamw import AdamW
    from completedp.apply.classify import classify
    from completedp.apply.optimise import attach_schedule, load_optimizer_state
    from completedp.apply.plan import plan
    from completedp.apply.planned import Plan
    from completedp.evidence.horizon import fit_horizon
    from completedp.evidence.run import coordcheck, gradcheck
    from completedp.evidence.sweep import sweep
    from completedp.lm.transformer import ModelConfig, Transformer
    from completedp.studies.session import search
    from completedp.training.checkpoint import load_weights
    from completedp.training.session import train

__version__ = "0.1.0"

__all__ = [
    "AdamW",
    "CompletedpError",
    "DataWarning",
    "Evidence",
    "Factors",
    "Hyperparameters",
    "ModelConfig",
    "ModelWarning",
    "Plan",
    "Ratios",
    "Recipe",
    "Role",
    "Rules",
    "Scale",
    "ScaleWarning",
    "Schedule",
    "Shift",
    "Transfer",
    "Transformer",
    "Value",
    "Values",
    "attach_schedule",
    "classify",
    "coordcheck",
    "factors",
    "fit_horizon",
    "gradcheck",
    "load_optimizer_state",
    "load_weights",
    "plan",
    "search",
    "sweep",
    "train",
]

_NEED_TORCH = {
    "AdamW": "completedp.apply.adamw",
    "classify": "completedp.apply.classify",
    "attach_schedule": "completedp.apply.optimise",
    "load_optimizer_state": "completedp.apply.optimise",
    "Plan": "completedp.apply.planned",
    "plan": "completedp.apply.plan",
    "coordcheck": "completedp.evidence.run",
    "fit_horizon": "completedp.evidence.horizon",
    "gradcheck": "completedp.evidence.run",
    "ModelConfig": "completedp.lm.transformer",
    "Transformer": "completedp.lm.transformer",
    "search": "completedp.studies.session",
    "sweep": "completedp.evidence.sweep",
    "load_weights": "completedp.training.checkpoint",
    "train": "completedp.training.session",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'completedp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_NEED_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NEED_TORCH])
