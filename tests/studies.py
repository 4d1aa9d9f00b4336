"""A study that is searched in seconds: a little text, a recipe of one block, and its settings."""

from pathlib import Path
from typing import Any

import torch

from completedp.lm.prepare import prepare_source
from completedp.lm.transformer import ModelConfig
from completedp.search.config import StudyConfig, WorkerConfig
from completedp.search.objective import Objective
from completedp.search.run import open_study
from completedp.search.store import Store, Study
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.build import meta_model

torch.set_num_threads(1)
CONTEXT, STEPS = 16, 20
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
    """A small study, with some settings changed."""
    plain: dict[str, Any] = {"trials": 4, "context": CONTEXT, "eval_sequences": 8}
    return StudyConfig(data=data, **(plain | changes))


def make_study(
    store: Store, data: str, *, name: str = "tune", recipe: Recipe | None = None, **changes: Any
) -> Study:
    """That study in a store, new or there already."""
    return open_study(store, name, settings(data, **changes), recipe or make_recipe())


def objective_of(study: Study, data: str, **changes: Any) -> Objective:
    """Its trials, one at a time unless told otherwise."""
    options: dict[str, Any] = {"slots": 1, "device": "cpu", "compile": False}
    return Objective(study.spec, data, WorkerConfig(**(options | changes)))
