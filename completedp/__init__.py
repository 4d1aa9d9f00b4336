"""completedp: tune a small transformer's hyperparameters, module by module, and carry them on.

    import completedp as cdp
    plan = cdp.plan(model, cdp.Recipe.load("recipe.json"), cdp.Scale(width=1024, ...))
    plan.initialise()
    optimizer = plan.adamw()

Importing this does not import torch; the names that need it are resolved when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from completedp.common.errors import CompletedpError as CompletedpError
from completedp.common.errors import DataWarning as DataWarning
from completedp.common.errors import ScaleWarning as ScaleWarning
from completedp.theory.evidence import Evidence as Evidence
from completedp.theory.hparams import Hyperparameters as Hyperparameters
from completedp.theory.hparams import Values as Values
from completedp.theory.recipe import Recipe as Recipe
from completedp.theory.roles import Role as Role
from completedp.theory.rules import Factors as Factors
from completedp.theory.rules import Rules as Rules
from completedp.theory.rules import Shift as Shift
from completedp.theory.rules import factors as factors
from completedp.theory.scale import Ratios as Ratios
from completedp.theory.scale import Scale as Scale
from completedp.theory.schedule import Schedule as Schedule
from completedp.theory.transfer import Transfer as Transfer
from completedp.theory.value import Value as Value

if TYPE_CHECKING:
    from completedp.apply.adamw import AdamW as AdamW
    from completedp.apply.classify import classify as classify
    from completedp.apply.optimise import attach_schedule as attach_schedule
    from completedp.apply.optimise import load_optimizer_state as load_optimizer_state
    from completedp.apply.plan import plan as plan
    from completedp.apply.planned import Plan as Plan
    from completedp.evidence.horizon import fit_horizon as fit_horizon
    from completedp.evidence.run import coordcheck as coordcheck
    from completedp.evidence.run import gradcheck as gradcheck
    from completedp.evidence.sweep import sweep as sweep
    from completedp.lm.transformer import ModelConfig as ModelConfig
    from completedp.lm.transformer import Transformer as Transformer
    from completedp.studies.session import search as search
    from completedp.training.session import train as train

__version__ = "0.1.0"

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
    "train": "completedp.training.session",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'completedp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_NEED_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NEED_TORCH])
