"""Fit the horizon: the token exponent of the learning-rate rule for one model and its data.

Learning rates are swept at several numbers of tokens, and of tokens a step, in one study of listed
trials; exponents.py fits the slopes. The base comes first. At a longer horizon a learning rate is
reached by the exponent that takes the base's best rate there, so that betas, eps and weight decay
are what a plan with that exponent would have; only where no exponent from 0 to 1 does, the rate
alone goes further.

Of the batch rule the exponent is reported and not put into the recipe. In the rule's derivation
runs of different batches are steps of different length along one path, and for that to be so the
exponent is 1/2: another one says that the batch is near its critical size, where no power holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from completedp.common.checks import several
from completedp.common.errors import CompletedpError
from completedp.common.files import user_path, write_json, write_text_atomically
from completedp.common.process import only_process
from completedp.common.surface import option
from completedp.evidence.config import HorizonGrid
from completedp.evidence.exponents import (
    CANDIDATES,
    MIDDLE,
    Fit,
    Size,
    fit_exponent,
    reached,
)
from completedp.evidence.horizon_result import BATCH, BOTH, TOKENS, TOLERANCE, HorizonResult
from completedp.evidence.plots import horizon_svg
from completedp.studies.cells import Wanted
from completedp.studies.config import WorkerConfig
from completedp.studies.listed import listed_losses, listed_spec, made_of, plan_of, trials_by_scale
from completedp.studies.objective import runner_of
from completedp.studies.outlook import Outlook, outlook
from completedp.studies.run import open_study, start
from completedp.studies.session import say_outlook, warn_of_base
from completedp.studies.spec import Site, StudySpec
from completedp.studies.store import Store, Study
from completedp.studies.typed import call_of
from completedp.tasks.config import EVAL_EXAMPLES
from completedp.tasks.losses import ModelLoss
from completedp.tasks.task import REFERENCE, MakeModel, Task
from completedp.theory.horizon import BATCH_HOLDS_TO, CRITICAL_BATCH, FITTED, TOKENS_TO, as_rule
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training import loop
from completedp.training.config import TrainConfig
from completedp.training.folder import Result, steps_done

STUDY = "horizon"
VERDICT = "verdict.json"
COORDINATES = ("lr/global",)
_BASE_BEST = "base's best rate"
_MEASUREMENTS = 1024
"""Of the gradient's noise, in the run for it."""


class Point(NamedTuple):
    """One trial of a fit: what grows, and how far; its learning rate, in octaves; its seed."""

    what: str
    factor: float
    octave: float
    seed: int


def fit_horizon(
    make: MakeModel | str | None,
    recipe: Recipe | str | Path | None = None,
    data: Any = None,
    *,
    base: Scale | None = None,
    factors: Sequence[int] = HorizonGrid.factors,
    batch_factors: Sequence[int] = HorizonGrid.batch_factors,
    batch_growth: float | None = None,
    octaves: Sequence[float] = HorizonGrid.octaves,
    seeds: int = HorizonGrid.seeds,
    noise: bool = True,
    out: str | Path = "fitted.json",
    store: str | None = None,
    loss: ModelLoss | str | None = None,
    overrides: Mapping[str, str] | None = None,
    context: int | None = None,
    eval_examples: int = EVAL_EXAMPLES,
    slots: int | None = None,
    device: str = "auto",
    compile: bool = True,
    quiet: bool = False,
) -> HorizonResult:
    """The token exponent of a recipe's learning-rate rule, for this model and these data.

    Model, data and loss are as for `search`. Trains at `factors` times the tokens of the recipe's
    base, and at `batch_factors` times its batch. The recipe with the fitted exponent is written to
    `out`, NAME.json, and all else to the folder NAME; the same call resumes.

    `octaves` are log2 of what the rate is multiplied by; exponents have no unit.

    >>> import completedp as cdp
    >>> base = cdp.Scale(width=64, depth=1, batch=256, tokens=1_024)
    >>> found = cdp.fit_horizon(None, base=base, data="tokens", context=64, factors=(1, 2, 4),
    ...                         batch_factors=(1,), octaves=(-1, 0, 1), seeds=1, noise=False,
    ...                         eval_examples=4, slots=1, compile=False, quiet=True)
    >>> 0 <= found.recipe.rules.token_exponent <= 1
    True
    """
    call = call_of(fit_horizon, locals())
    grid = HorizonGrid(
        factors=several(factors),
        batch_factors=several(batch_factors),
        batch_growth=batch_growth,
        octaves=several(octaves),
        seeds=seeds,
        noise=noise,
    )
    task, begin = start(
        make,
        data,
        base=base,
        recipe=recipe,
        loss=loss,
        context=context,
        eval_examples=eval_examples,
        overrides=overrides,
    )
    options = WorkerConfig(slots=slots, device=device, compile=compile)
    warn_of_base(task, begin.base)
    ahead = horizon_left(grid, task, begin, Path(out), store)
    say_outlook(runner_of(task, options), begin, ahead, less="fewer factors or seeds", quiet=quiet)
    return run_horizon(grid, task, begin, Path(out), options, store=store, quiet=quiet, call=call)


def horizon_left(
    grid: HorizonGrid, task: Task, recipe: Recipe, out: Path, store: str | None
) -> Outlook:
    """What a fit has still to train, with the run for the gradient's noise."""
    _check(recipe, out)
    spec, folder = listed_spec(task, recipe, COORDINATES), _folder(out)
    wanted = _wanted(grid, spec, task, _curves(grid, recipe, task.data.unit))
    ahead = outlook(trials_by_scale(spec, task, wanted.values()), _store(folder, store), STUDY)
    noise = _noise_config(task, recipe, folder) if grid.noise else None
    if noise is None or steps_done(noise) == recipe.base.steps:
        return ahead
    left = Counter(ahead.left) + Counter([recipe.base])
    return replace(ahead, left=dict(left))


def run_horizon(
    grid: HorizonGrid,
    task: Task,
    recipe: Recipe,
    out: Path,
    options: WorkerConfig,
    *,
    store: str | None = None,
    quiet: bool = False,
    call: str | None = None,
) -> HorizonResult:
    """Run what is not yet run, fit, and write the recipe, verdict.json and horizon.svg."""
    _check(recipe, out)
    folder = _folder(out)
    spec = listed_spec(task, recipe, COORDINATES)
    # What cannot be trained is said before anything is.
    wanted = _wanted(grid, spec, task, _curves(grid, recipe, task.data.unit))
    with only_process(folder):
        with Store(_store(folder, store)) as opened:
            study = open_study(opened, STUDY, spec)
            first = {point: each for point, each in wanted.items() if point.factor == 1}
            done = listed_losses(study, spec, task, first, options, quiet=quiet)
            if not any(map(math.isfinite, done.values())):
                raise CompletedpError(
                    f"every trial at the base diverged: there is no learning rate to "
                    f"fit. Take lower {option('octaves')}, or look at the model, its loss and data"
                )
            best = _base_best(study, grid, done)
            wanted = _wanted(grid, spec, task, _curves(grid, recipe, task.data.unit), best)
            done = listed_losses(study, spec, task, wanted, options, quiet=quiet)
        noise = _noise_run(task, recipe, folder, options, quiet) if grid.noise else None
        result = judge_horizon(grid, recipe, done, folder=folder, noise=noise)
        write_json(folder / VERDICT, result.to_dict() | made_of(spec, call))
        if find_spec("matplotlib") is not None:
            write_text_atomically(folder / "horizon.svg", horizon_svg(result))
        result.recipe.save(user_path(out))
    return result


def judge_horizon(
    grid: HorizonGrid,
    recipe: Recipe,
    done: Mapping[Point, float],
    *,
    folder: Path,
    noise: Result | None = None,
) -> HorizonResult:
    """The exponents that the losses of all points have, and the recipe that follows."""
    fits: dict[str, Fit] = {}
    candidates = tuple(dict.fromkeys((*CANDIDATES, recipe.rules.token_exponent)))
    for what in (TOKENS, BOTH, BATCH):
        scales = _scales(grid, recipe, what)
        if len(scales) > 1:
            sizes = [_size(grid, done, what, factor) for factor in scales]
            own = candidates if what != BATCH else CANDIDATES
            fits[what] = fit_exponent(what, sizes, own)
    batch = fits.get(BATCH)
    holds = None if batch is None else _holds_to(batch)
    result = HorizonResult(
        grid=grid,
        recipe=recipe,
        before=recipe,
        tokens=fits[TOKENS],
        both=fits.get(BOTH),
        batch=batch,
        batch_holds_to=None if holds is None else round(holds * recipe.base.batch),
        critical_batch=None if noise is None else noise.critical_batch,
        critical_batch_error=None if noise is None else noise.critical_batch_error,
        folder=folder,
    )
    return replace(result, recipe=_fitted_recipe(result))


def _check(recipe: Recipe, out: Path) -> None:
    if out.suffix != ".json":
        raise CompletedpError(
            f"out = {str(out)!r} must end in .json: it is the recipe that is written, and trials "
            "go to the folder of that name without the ending"
        )
    if user_path(out).exists() and not (_folder(out) / VERDICT).exists():
        raise CompletedpError(
            f"out = {str(out)!r} is there, and no fit of that name was ended: name another file, "
            "or move that one away"
        )
    rules = recipe.rules
    if rules.parameterisation != "completedp" or not {TOKENS, BATCH} <= set(rules.axes):
        raise CompletedpError(
            f"the recipe's rules are {rules.parameterisation} along {', '.join(rules.axes)}, which "
            "leaves tokens or batch out: there is no exponent to fit but of completedp's rules "
            "along both"
        )


def _folder(out: Path) -> Path:
    """Where all goes but the recipe."""
    return user_path(out).with_suffix("")


def _store(folder: Path, store: str | None) -> str:
    return store or str(folder / "horizon.db")


def _curves(grid: HorizonGrid, recipe: Recipe, unit: int) -> dict[str, dict[float, Scale]]:
    """What is trained along every line of growth."""
    return {what: _scales(grid, recipe, what, unit) for what in (TOKENS, BOTH, BATCH)}


def _scales(grid: HorizonGrid, recipe: Recipe, what: str, unit: int = 1) -> dict[float, Scale]:
    """What is trained along one line of growth, by its factor, the base first; batches are whole
    numbers of examples, of `unit` tokens each."""
    base = recipe.base
    if what == BATCH:
        return {f: replace(base, batch=base.batch * f) for f in grid.batch_factors}
    if what == BOTH and grid.batch_growth is None:
        return {}
    scales = {}
    for factor in grid.factors:
        more = factor ** (grid.batch_growth or 0.0) if what == BOTH else 1.0
        batch = unit * round(base.batch * more / unit)
        scales[factor] = replace(base, batch=batch, tokens=base.tokens * factor)
    return scales


def _tried(grid: HorizonGrid, what: str, factor: float) -> list[float]:
    """The learning rates at a size, in octaves from the base's.

    Along with the tokens those are without the share that the batch rule has in them.
    """
    middle = (0.5 if what == BATCH else -MIDDLE) * math.log2(factor)
    return [middle + octave for octave in grid.octaves]


def _base_best(study: Study, grid: HorizonGrid, done: Mapping[Point, float]) -> float:
    """The base's best rate, in octaves from the recipe's; the lowest where it is not bracketed.

    Noted when it is first found: with more seeds, or octaves, it may be a little another, and what
    was trained from it is not to be trained again.
    """
    note = study.get_note(_BASE_BEST)
    if note is None:
        optimum = _size(grid, done, TOKENS, 1).optimum
        found = optimum.octaves or optimum.lowest or (0.0,)
        note = {"octaves": round(found[0], 3)}
        study.set_note(_BASE_BEST, note)
    best = note.get("octaves")
    if not isinstance(best, int | float):
        raise study.damaged(f"its note {_BASE_BEST!r}")
    return float(best)


def _wanted(
    grid: HorizonGrid,
    spec: StudySpec,
    task: Task,
    curves: Mapping[str, Mapping[float, Scale]],
    best: float = 0.0,
) -> dict[Point, Wanted]:
    """Every point as a trial, from the base's best rate; what cannot be trained is said here.

    Its octaves are what is left for the learning rate alone, after the rules.
    """
    found = {}
    for what, scales in curves.items():
        for factor, scale in scales.items():
            task.data.examples(scale.batch)
            for octave in _tried(grid, what, factor):
                exponent, left = _reached(what, factor, octave, best)
                rules = replace(spec.recipe.rules, token_exponent=exponent)
                site = Site(scale=scale, rules=rules)
                plan_of(spec, task, Wanted(site=site, octaves=(left,), seed=0))
                for seed in range(grid.seeds):
                    point = Point(what, factor, octave, seed)
                    found[point] = Wanted(site=site, octaves=(left,), seed=seed)
    return found


def _reached(what: str, factor: float, octave: float, best: float) -> tuple[float, float]:
    """The token exponent that gives a learning rate, and the octaves that are left."""
    if what == BATCH:
        return 0.5, octave - 0.5 * math.log2(factor)
    return reached(factor, octave, best)


def _size(grid: HorizonGrid, done: Mapping[Point, float], what: str, factor: float) -> Size:
    tried = _tried(grid, what, factor)
    losses = [[done[Point(what, factor, o, seed)] for seed in range(grid.seeds)] for o in tried]
    return Size(factor=factor, octaves=tuple(tried), losses=np.array(losses))


def _holds_to(fit: Fit) -> float | None:
    """The largest factor up to which the rule gives the base's best loss, but for `TOLERANCE`."""
    base = fit.optima[0]
    if base.octaves is None or base.loss is None:
        return None
    holds = 1.0
    for size in fit.sizes[1:]:
        loss = size.loss_at(base.octaves[0] + 0.5 * math.log2(size.factor))
        if loss is None or loss > base.loss + TOLERANCE:
            break
        holds = size.factor
    return holds


def _noise_run(
    task: Task, recipe: Recipe, folder: Path, options: WorkerConfig, quiet: bool
) -> Result | None:
    """One ordinary run of the base, with the gradient's noise measured on the way."""
    config = _noise_config(task, recipe, folder)
    if config is None:
        return None
    config = replace(config, device=options.device)
    return loop.train(config, task=task, recipe=recipe, quiet=quiet)


def _noise_config(task: Task, recipe: Recipe, folder: Path) -> TrainConfig | None:
    """That run; None for a loss of the user's own, which need not be a mean over examples."""
    if task.loss is not None:
        return None
    sizes: dict[str, Any] = recipe.base.to_dict()
    return TrainConfig(
        data=task.data.name,
        out=str(folder / "noise"),
        model=None if task.name == REFERENCE else task.name,
        context=task.data.unit,
        eval_sequences=task.eval_examples,
        z_loss=task.z_loss,
        noise_every=max(1, recipe.base.steps // _MEASUREMENTS),
        checkpoint_every=max(1, recipe.base.steps // 4),
        **sizes,
    )


def _fitted_recipe(result: HorizonResult) -> Recipe:
    """The recipe with the fitted exponent, as far as the rules allow, and the evidence for it."""
    fit, recipe = result.fitted, result.before
    fitted = fit.exponent is not None
    alone = None if fit is result.tokens else result.tokens
    close_from, close_to = fit.close or (None, None)
    known: dict[str, float | str | None] = {
        "horizon_grows": fit.what if fitted else None,
        TOKENS_TO: recipe.base.tokens * fit.largest.factor if fitted else None,
        "horizon_seeds": result.grid.seeds if fitted else None,
        FITTED: fit.exponent,
        f"{FITTED}_error": fit.error,
        f"{FITTED}_alone": alone and alone.exponent,
        f"{FITTED}_alone_error": alone and alone.error,
        "horizon_batch_exponent": None if result.batch is None else result.batch.exponent,
        "horizon_batch_exponent_error": None if result.batch is None else result.batch.error,
        BATCH_HOLDS_TO: result.batch_holds_to,
        CRITICAL_BATCH: result.critical_batch if result.is_batch_known else None,
        f"{CRITICAL_BATCH}_error": result.critical_batch_error if result.is_batch_known else None,
        "horizon_close_from": close_from,
        "horizon_close_to": close_to,
    }
    rest = {k: v for k, v in recipe.provenance.items() if k not in known}
    evidence = {k: _rounded(v) for k, v in known.items() if v is not None}
    found = replace(recipe, provenance=rest | evidence)
    if fit.exponent is None:
        return found
    return found.with_rules(token_exponent=as_rule(fit.exponent))


def _rounded(value: float | str) -> float | str:
    return float(f"{value:.4g}") if isinstance(value, float) else value
