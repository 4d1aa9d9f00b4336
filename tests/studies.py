"""A study that is searched in seconds: a little text, a recipe of one block, and its settings."""

import math
from pathlib import Path
from typing import Any

import torch

from completedp.lm.prepare import prepare_source
from completedp.lm.reference import meta_model
from completedp.lm.transformer import ModelConfig
from completedp.studies.config import StudyConfig, WorkerConfig
from completedp.studies.objective import Objective
from completedp.studies.run import open_study, spec_from
from completedp.studies.store import Claim, Store, Study, TrialRow
from completedp.studies.worker import make_fold, work
from completedp.tasks.config import Sources
from completedp.tasks.task import task_from
from completedp.theory.hparams import TUNABLE
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

torch.set_num_threads(1)
CONTEXT, STEPS = 16, 20
LONG = 60.0
"""Seconds that no lease of a test runs out in."""
OPTIONS = WorkerConfig(slots=1, device="cpu", compile=False)
BASE = Scale(width=16, depth=1, batch=4 * CONTEXT, tokens=4 * CONTEXT * STEPS)
MODEL = ModelConfig(vocab=257, width=16, depth=1, head_dim=8)


def write_tokens(folder: Path, words: str = "a study of trial") -> str:
    """A folder of tokens; other words are another text."""
    for i in range(60):
        (folder / f"{i:03d}.txt").write_text(f"{words} {i} of {i * i} " * 12)
    prepare_source(str(folder), str(folder / "tokens"), valid_fraction=0.1)
    return str(folder / "tokens")


def make_recipe(steps: int = STEPS, **values: float) -> Recipe:
    """Where the searches start."""
    base = Scale(width=16, depth=1, batch=BASE.batch, tokens=BASE.batch * steps)
    return Recipe.for_model(meta_model(MODEL), base, **({"lr": 2.0**-6} | values))


def settings(data: str, **changes: Any) -> StudyConfig:
    """A small study of every kind of multiplier, with some settings changed."""
    plain: dict[str, Any] = {"trials": 4, "context": CONTEXT, "eval_sequences": 8}
    plain |= {"space": "kronecker", "tunables": TUNABLE}
    return StudyConfig(data=data, **(plain | changes))


def make_study(
    store: Store, data: str, *, name: str = "tune", recipe: Recipe | None = None, **changes: Any
) -> Study:
    """That study in a store, new or there already."""
    config = settings(data, **changes)
    start = recipe or make_recipe()
    return open_study(store, name, spec_from(config, task_from(config, start), start))


def objective_of(study: Study, data: str, **changes: Any) -> Objective:
    """Its trials, one at a time unless told otherwise."""
    options: dict[str, Any] = {"slots": 1, "device": "cpu", "compile": False}
    return Objective.of(study, Sources(data=data), WorkerConfig(**(options | changes)))


def searched(study: Study, data: str, **options: Any) -> list[TrialRow]:
    """The trials of a study after a worker has finished it."""
    work(study, objective_of(study, data, **options))
    return study.trials()


def finished_once(rows: list[TrialRow], budget: int) -> bool:
    """Whether the budget's numbers and places in the order of finishing are each there once."""
    every = list(range(budget))
    return [r.number for r in rows] == every == sorted(r.sequence or 0 for r in rows)


def planted(study: Study, data: str, losses: list[float], status: str = "ok") -> list[Claim]:
    """Finish trials at the engine's points with these losses, without training."""
    fold = make_fold(study, objective_of(study, data))
    claims = []
    for loss in losses:
        claim = study.claim("w", fold.propose, lease_seconds=LONG)
        assert claim is not None
        kind = status if math.isfinite(loss) else "diverged"
        assert study.finish(claim, loss=loss, status=kind, steps=1, curve=[loss])
        claims.append(claim)
    return claims
