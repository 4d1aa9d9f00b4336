"""Every search engine by its name: a new one is a file of its own and a line here."""

from __future__ import annotations

from typing import Any

from completedp.common.errors import CompletedpError
from completedp.studies.engines import Bounds, Engine, GridSearch, RandomSearch
from completedp.studies.evolution import AsyncCMAES
from completedp.studies.optuna_engine import TPE, GaussianProcess
from completedp.studies.trust_region import Recombine, TrustRegion

ENGINES: dict[str, type[Engine]] = {
    "random": RandomSearch,
    "paper-grid": GridSearch,
    "cma-es": AsyncCMAES,
    "tpe": TPE,
    "gp": GaussianProcess,
    "trust-region": TrustRegion,
    "recombine": Recombine,
}
DEFAULT_ENGINE = "recombine"


def make_engine(name: str, bounds: Bounds, seed: int, **options: Any) -> Engine:
    """An engine by name, with options of its own."""
    if name not in ENGINES:
        raise CompletedpError(f"engine {name!r} is unknown: use one of {', '.join(ENGINES)}")
    return ENGINES[name](bounds, seed, **options)
