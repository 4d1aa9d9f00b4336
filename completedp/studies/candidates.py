"""Candidates: the recipes of a study that may carry best, for the ladder to choose among.

Where a search ends at the base says little about which of its points is best at a larger scale.
What is overfitted to the base is known, though: learning rates, which climb to its edge of
stability; multipliers of its few layers; the last steps of a long search; the luck of one trial. So
the recommendation stands beside versions of itself without each of these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from completedp.common.errors import CompletedpError
from completedp.studies.ladder import START
from completedp.studies.objective import Objective
from completedp.studies.space import project
from completedp.studies.store import Study
from completedp.studies.worker import make_fold
from completedp.theory.recipe import Recipe

RECOMMENDED, LUCKIEST = "recommended", "best trial"
EARLIER, HALF_WAY = "recommended earlier", "half way"
FIRST_STAGE = "global values"
WITHOUT_LR, WITHOUT_DEPTH = "without lr", "without depth"
MEANINGS = {
    START: "what the search began with",
    FIRST_STAGE: "what the search's first stage, over global values, ended with",
    RECOMMENDED: "what the engine would use now",
    LUCKIEST: "the trial with the lowest loss, which is partly luck",
    EARLIER: "what the engine would have used after half of the trials",
    HALF_WAY: "between the start, or the global values, and the recommendation, in octaves",
    WITHOUT_LR: "the recommendation with the learning rates of the start, or of the global values",
    WITHOUT_DEPTH: "the recommendation with each type's mean over its layers",
}
"""Every candidate, in words."""
_SAME = 1e-9
"""Octaves that values may be apart and still be one: a mean of one point is it up to rounding."""


def candidates(study: Study, objective: Objective) -> dict[str, Recipe]:
    """Every different candidate of a study by name, the start first: see MEANINGS."""
    space, base = objective.space, objective.recipe
    fold = make_fold(study, objective)
    fold.catch_up()
    if fold.seen == 0:
        raise CompletedpError(
            f"no trial of {study.name!r} has finished yet: `completedp search start` works on it"
        )
    centre, found = fold.engine.centre, fold.engine.recommend()
    is_lr = np.array([name.startswith("lr/") for name in space.coordinates])
    points = {
        START: space.bounds.start,
        FIRST_STAGE: centre,
        RECOMMENDED: found,
        LUCKIEST: fold.engine.best_point,
        EARLIER: recommended_after(study, objective, fold.seen // 2),
        HALF_WAY: (centre + found) / 2,
        WITHOUT_LR: np.where(is_lr, centre, found),
    }
    if is_lr.all():  # nothing but the start would be left
        del points[WITHOUT_LR]
    recipes = {name: space.recipe(base, point) for name, point in points.items()}
    if any(name.split("/")[1] == "depth" for name in space.coordinates):
        types = objective.task.types(base.base)
        flat = project(recipes[RECOMMENDED].hyperparameters, types, base.rules)
        recipes[WITHOUT_DEPTH] = replace(recipes[RECOMMENDED], hyperparameters=flat)
    different: dict[str, Recipe] = {}
    for name, recipe in recipes.items():
        if not any(_same(recipe, other) for other in different.values()):
            different[name] = recipe
    return different


def recommended_after(study: Study, objective: Objective, trials: int) -> np.ndarray:
    """What the engine recommended when so many trials had finished."""
    engine = objective.engine(study)
    for trial in study.finished_since(0)[:trials]:
        trial.tell(engine)
    return engine.recommend()


def _same(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes of one study are the same up to rounding."""
    mine, theirs = one.hyperparameters.log2, other.hyperparameters.log2
    names = {*mine, *theirs}
    apart = max((abs(mine.get(n, 0.0) - theirs.get(n, 0.0)) for n in names), default=0.0)
    return apart <= _SAME and one.schedule == other.schedule
