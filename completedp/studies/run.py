"""How a study begins and ends: opened from what was asked, its best recipe taken, with evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from completedp.common.checks import check_each_once
from completedp.common.errors import CompletedpError
from completedp.common.warn import warn
from completedp.studies.candidates import candidates
from completedp.studies.cells import NAME as CELLS
from completedp.studies.config import LADDER, BaseConfig, StudyConfig
from completedp.studies.ladder import START, Kept, climb, trials_to_climb
from completedp.studies.objective import Objective, search_spec
from completedp.studies.outlook import Outlook
from completedp.studies.relative import Where, scales_of
from completedp.studies.spec import StudySpec
from completedp.studies.spent import device_seconds, ladder_time
from completedp.studies.store import Store, Study
from completedp.studies.typed import note_command
from completedp.studies.unchanged import check_unchanged
from completedp.tasks.sources import overrides_from
from completedp.tasks.task import MakeModel, Task, make_task
from completedp.theory.evidence import Evidence, Rung, SearchRecord, shown_loss
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale, check_scale
from completedp.theory.timescale import base_timescales, matrix_range
from completedp.training.devices import device_name


def open_study(store: Store, name: str, spec: StudySpec) -> Study:
    """A new study, or the one of that name to go on with; a larger budget is granted."""
    study = store.create_study(name, spec.to_dict())
    study.set_budget(spec.trials)
    note_command(study)
    return study


def spec_from(config: StudyConfig, task: Task, recipe: Recipe) -> StudySpec:
    """What a config says of a search, for its task and recipe."""
    return search_spec(
        task,
        recipe,
        trials=config.trials,
        space=config.space,
        tunables=config.tunables,
        reach=config.reach,
        targets=config.target,
        engine=config.engine,
        seed=config.seed,
        stop_early=config.stop_early,
        sites=config.sites,
    )


def start(
    model: MakeModel | str | None,
    data: Any,
    *,
    base: Scale | None,
    recipe: Recipe | str | Path | None,
    **of_task: Any,
) -> tuple[Task, Recipe]:
    """A task and the recipe that trials start from.

    That is the recipe given; or usual values at the base given, since a model of the user's own has
    no tuned ones; or the default recipe, of the reference model. `of_task` goes to `make_task`.
    """
    recipe = None if recipe is None else Recipe.find(recipe)
    if base is not None:
        check_scale("base", base)
    if recipe is not None and base not in (None, recipe.base):
        raise CompletedpError(
            f"the recipe's base is {recipe.base}, and the one given is {base}: give one of them"
        )
    default = Recipe.default()
    if recipe is None and base is None and model is None:
        recipe = default
    elif recipe is None and base is None:
        warn(
            f"no base was given: trials are at {default.base}; say yours (in Python "
            "base=Scale(...), or --width, --depth, --batch and --tokens)",
        )
    task = make_task(model, data, recipe=recipe, **of_task)
    return task, recipe or task.recipe(base or default.base)


def start_from(config: BaseConfig) -> tuple[Task, Recipe]:
    """The task and the recipe that a config names."""
    sizes = config.sizes
    task, recipe = start(
        config.model,
        config.data,
        base=replace(Recipe.default().base, **sizes) if sizes else None,
        recipe=None if config.recipe == "default" else Recipe.find(config.recipe),
        loss=config.loss,
        context=config.context,
        shape=config.shape,
        z_loss=config.z_loss,
        eval_examples=config.eval_sequences,
        overrides=overrides_from(config.override),
    )
    return task, config.with_choices(recipe)


@dataclass(frozen=True, kw_only=True)
class Best:
    """What a study recommends, measured again on fresh seeds."""

    recipe: Recipe
    chosen: str
    rungs: list[Rung]
    counted: str = "tokens"
    """What the data have so many of: tokens, or examples."""

    def lines(self) -> str:
        """For people."""
        out = []
        for rung in self.rungs:
            seeds = len(rung.standings[0].losses)
            out.append(f"{rung.scale.line(self.counted)}, {seeds} fresh seed{'s' * (seeds > 1)}:")
            out += [f"    {s.candidate:<19} {s}" for s in rung.standings]
        out.append(gain_over_start(self.rungs[-1], self.chosen))
        if len(self.rungs) == 1:
            out.append(
                "measured at the base alone, whose best may not carry: with the rungs "
                f"{' '.join(LADDER)}, which are the default, what carries is chosen"
            )
        return "\n".join(out)


def gain_over_start(rung: Rung, chosen: str) -> str:
    """What the chosen candidate of a ladder's last rung is worth, in words."""
    start, best = rung.of(START), rung.of(chosen)
    if chosen == START or start is None or best is None:
        return "nothing found beats the start there: its values are kept"
    gain = start.mean - best.mean
    if gain == math.inf:
        return f"{chosen} trains there, where the start diverges"
    spread = math.hypot(start.error, best.error)
    sure = ", which is within the noise" if gain <= 2 * spread < math.inf else ""
    sure = sure if math.isfinite(spread) else ", on one seed alone"
    return f"{chosen} beats the start by {shown_loss(gain, spread)}{sure}"


def _check_is_search(study: Study, objective: Objective) -> None:
    if objective.spec.engine == CELLS:
        raise CompletedpError(
            f"the study {study.name!r} is a list of trials at several scales, not a search: its "
            "verdict is what the command that listed them prints"
        )


def _evidence(
    study: str,
    objective: Objective,
    recipe: Recipe,
    rungs: Sequence[Rung],
    trials: int,
    seconds: Mapping[str, float],
) -> Evidence:
    """What is now known of a recipe; searches that its start came from stay on record."""
    spec, task, before = objective.spec, objective.task, objective.recipe.evidence or Evidence()
    search = SearchRecord(
        study=study,
        engine=spec.engine,
        space=spec.space.kind,
        trials=trials,
        seed=spec.seed,
        sites=tuple(site.scale for site in spec.sites),
        digest=task.data.digest,
    )
    parameters = sum(p.numel() for p in task.blank(recipe.base).parameters())
    ratio = recipe.base.tokens / parameters if task.data.counted == "tokens" else None
    spent = Counter(before.seconds) + Counter(seconds)
    return Evidence(
        rungs=tuple(rungs),
        chosen=rungs[-1].standings[0].candidate,
        searches=(*before.searches, search),
        model=task.name,
        text=Path(task.data.name).name,  # of a folder, not where it is
        digest=task.data.digest,
        tokens_per_parameter=None if ratio is None else float(f"{ratio:.4g}"),
        tau=matrix_range(base_timescales(recipe)),
        z_loss=spec.task["z_loss"],
        seconds={device: round(each, 1) for device, each in spent.items()},
    )


def _was_evidence(key: str) -> bool:
    """Whether a recipe of schema 2 kept there what is evidence now."""
    return key.startswith("rung_") or key in ("study", "engine", "space", "trials", "chosen")


def ladder_outlook(
    study: Study,
    objective: Objective,
    *,
    rungs: Where | Sequence[Where] = LADDER,
    seeds: int = 4,
) -> Outlook:
    """How many trials `best` is still to train at each scale, at most."""
    _check_is_search(study, objective)
    scales = _rungs(rungs, objective)
    base, found = objective.recipe.base, candidates(study, objective)

    kept = Kept(study)
    left = Counter(trials_to_climb(found, scales or [base], seeds=seeds, kept=kept))
    if scales:  # then the winner and the start at the base
        left += Counter(trials_to_climb(found, [base], seeds=seeds, kept=kept, of_them=2))
    return Outlook(left=+left, begun=study.get_note(_ASKED) == _asked(scales, seeds))


_ASKED = "ladder asked for"
"""The note that has which ladder was begun last."""


def _asked(scales: Sequence[Scale], seeds: int) -> dict[str, Any]:
    return {"rungs": [scale.to_dict() for scale in scales], "seeds": seeds}


def _rungs(given: Where | Sequence[Where], objective: Objective) -> list[Scale]:
    """A ladder's scales, each once; none for the base alone, which is measured anyway."""
    base = objective.recipe.base
    scales = scales_of("rungs", given, base)
    check_each_once("rung", scales)
    return [] if scales == [base] else scales


def best(
    study: Study,
    objective: Objective,
    *,
    rungs: Where | Sequence[Where] = LADDER,
    seeds: int = 4,
    progress: Callable[[str, int, int], None] | None = None,
) -> Best:
    """What of a study carries best: its candidates, measured on fresh seeds on each rung.

    What wins on the last rung is the recipe, the start included: a search that found nothing says
    so. Nobody is left out for a loss at the base, where only the winner and the start are measured.
    Without rungs all are measured there, and nowhere else.
    """
    _check_is_search(study, objective)
    scales = _rungs(rungs, objective)
    check_unchanged(study, objective)
    base, found, kept = objective.recipe, candidates(study, objective), Kept(study)
    counted = objective.task.data.counted

    def told(scale: Scale, done: int, total: int) -> None:
        if progress is not None:
            progress(scale.line(counted), done, total)

    def climbed_by(candidates: dict[str, Recipe], scales: Sequence[Scale]) -> list[Rung]:
        return climb(objective.runner, candidates, scales, seeds=seeds, progress=told, kept=kept)

    def climbed_all() -> list[Rung]:
        climbed = climbed_by(found, scales or [base.base])
        if not math.isfinite(climbed[-1].standings[0].mean):
            raise CompletedpError(
                f"all candidates diverge on {climbed[-1].scale.line(counted)}, the start among "
                "them: search from a recipe that trains there, such as one with a smaller lr"
            )
        if scales:
            names = (START, climbed[-1].standings[0].candidate)
            two = {name: recipe for name, recipe in found.items() if name in names}
            climbed = [*climbed_by(two, [base.base]), *climbed]
        return climbed

    with suppress(CompletedpError):  # without it somebody is asked once more, and no worse
        study.set_note(_ASKED, _asked(scales, seeds))
    # Asked before anything is measured, which must not be lost with the store.
    trials, seconds = study.counts()["finished"], device_seconds(study)
    with ladder_time(study, device_name(objective.runner.device), seconds):
        climbed = climbed_all()
    chosen = climbed[-1].standings[0].candidate
    recipe = replace(
        found[chosen],
        provenance={k: v for k, v in base.provenance.items() if not _was_evidence(k)},
    )
    evidence = _evidence(study.name, objective, recipe, climbed, trials, seconds)
    result = Best(
        recipe=replace(recipe, evidence=evidence),
        chosen=chosen,
        rungs=climbed,
        counted=counted,
    )
    note = {
        "chosen": result.chosen,
        "rungs": [rung.to_dict() for rung in climbed],
        "trials": trials,
    }
    try:
        study.set_note("best", note)
    except CompletedpError as error:  # what was measured is not to be lost for that
        warn(f"the ladder is not noted in the study: {error}")
    return result
