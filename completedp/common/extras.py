"""Optional packages: which extra brings which, and one way to import them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from completedp.common.errors import CompletedpError

EXTRAS = {
    "plots": ("matplotlib",),
    "data": ("tokenizers", "datasets", "pyarrow"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "hf": ("transformers",),
    "postgres": ("psycopg",),
    "optuna": ("optuna", "cmaes"),
    "ray": ("ray",),
    "eval": ("lm_eval",),
    "gp": ("scikit-learn",),
}
"""The packages of each extra, as pyproject.toml has them."""
IMPORTED_AS = {"scikit-learn": "sklearn"}
"""Packages whose modules have other names."""
_EXTRA_OF = {
    IMPORTED_AS.get(package, package): extra
    for extra, packages in EXTRAS.items()
    for package in packages
}


def import_extra(module: str, purpose: str) -> Any:
    """The module, or one line that says what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise CompletedpError(
            f'{purpose} needs {package}: pip install "completedp[{_EXTRA_OF[package]}]"'
        ) from error
