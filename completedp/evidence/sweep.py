"""Sweep: do the best values of a hyperparameter stay put as a model or its training grows?

A grid of octaves x scales x seeds x parameterisations, trained in slots, one stack for each shape.
Trials that are the same in every number (parameterisations agree at the base, for one) are trained
once. Every trial is a line of trials.jsonl as soon as it ends, so the same command goes on where it
stopped. The verdict: the optimum at each scale, its drift from the base's in octaves, and the loss
that using the base's optimum costs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from completedp.apply.plan import Plan, plan
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, write_text_atomically
from completedp.common.process import only_process
from completedp.common.progress import Reporter
from completedp.evidence.config import SweepConfig
from completedp.evidence.optimum import Optimum, find_optimum, loss_at
from completedp.evidence.plots import require_matplotlib, sweep_svg
from completedp.lm.batches import TokenDataset
from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.build import choose_device, meta_model, model_config, stack_model
from completedp.training.slots import Slots, Trial

TRIALS = "trials.jsonl"
BASE = "base"
"""The axis of the points at the base's own scale, which all axes share."""


@dataclass(frozen=True, order=True)
class Point:
    """One trial of a sweep."""

    axis: str
    factor: int
    parameterisation: str
    octaves: tuple[float, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """The verdict on one curve: one parameterisation at one scale."""

    parameterisation: str
    axis: str
    factor: int
    optimum: Optimum
    drift: tuple[float, ...] | None
    """Octaves from the base's optimum; None where either is not bracketed."""
    cost: float | None
    """Loss lost by using the base's optimum here."""
    losses: list[Any]
    """By octaves and seed; None where a trial diverged."""


def sweep(config: SweepConfig, *, quiet: bool = False) -> list[Line]:
    """Run what is not yet run, judge, and write verdict.json and sweep.svg."""
    require_matplotlib()
    recipe = Recipe.default() if config.recipe == "default" else Recipe.load(config.recipe)
    manifest = Manifest.load(config.data)
    grid = _grid(config)
    trials = _trials(config, recipe, manifest, grid)
    folder = Path(config.out).expanduser()
    with only_process(folder):
        _claim(folder, config, manifest, recipe)
        done = read_trials(folder)
        twins: dict[Any, list[Point]] = defaultdict(list)
        for point in grid:
            twins[_identity(trials[point])].append(point)
        waiting = []
        for points in twins.values():
            found = next((done[point] for point in points if point in done), None)
            if found is None:
                waiting.append(points[0])
            else:
                done |= dict.fromkeys(points, found)
        total = sum(trials[points[0]].steps for points in twins.values())
        trained = total - sum(trials[point].steps for point in waiting)
        with (
            (folder / TRIALS).open("a", encoding="utf-8") as file,
            Reporter("sweep: trial-steps", total, trained, quiet=quiet) as reporter,
        ):

            def progress(steps: int) -> None:
                nonlocal trained
                trained = min(total, trained + steps)
                reporter.update(trained, lambda: f"{len(done)}/{len(grid)} points")

            for trial, loss in _train(config, [trials[point] for point in waiting], progress):
                for point in twins[_identity(trial)]:
                    done[point] = loss
                    row = asdict(point) | {"loss": loss if math.isfinite(loss) else None}
                    file.write(json.dumps(row) + "\n")
                file.flush()
        lines = judge(config, done)
        verdict = {"config": config.to_dict(), "lines": [asdict(line) for line in lines]}
        write_text_atomically(folder / "verdict.json", json.dumps(verdict, indent=2) + "\n")
        write_text_atomically(folder / "sweep.svg", sweep_svg(config, lines))
    return lines


def judge(config: SweepConfig, done: dict[Point, float]) -> list[Line]:
    """The optimum of every curve, against that of the same parameterisation's base."""
    grid = [np.array(octaves) for octaves in config.grid]
    shape = [len(octaves) for octaves in grid]
    lines = []
    for name in config.parameterisations:
        base: Optimum | None = None
        for axis, factor in _scales(config):
            losses = np.array(
                [
                    [done[Point(axis, factor, name, octaves, s)] for s in range(config.seeds)]
                    for octaves in itertools.product(*config.grid)
                ]
            ).reshape(*shape, config.seeds)
            found = find_optimum(grid, losses)
            base = base or found
            drift = cost = None
            if base.octaves and found.octaves and found.loss is not None:
                drift = tuple(a - b for a, b in zip(found.octaves, base.octaves, strict=True))
                there = loss_at(grid, losses, base.octaves)
                cost = max(0.0, there - found.loss) if math.isfinite(there) else None
            lines.append(
                Line(
                    parameterisation=name,
                    axis=axis,
                    factor=factor,
                    optimum=found,
                    drift=drift,
                    cost=cost,
                    losses=_without_infinities(losses.tolist()),
                )
            )
    return lines


def sweep_text(config: SweepConfig, lines: list[Line]) -> str:
    """The verdict as a table."""
    wide = 16 * len(config.hyperparameters)
    out = [
        f"{' and '.join(config.hyperparameters)}, octaves from the recipe's value",
        f"{'':<11} {'scale':>10} {'optimum':>{wide}} {'drift':>{wide // 2}} "
        f"{'best loss':>10} {'cost':>8}",
    ]
    for line in lines:
        best = line.optimum
        place = "not bracketed"
        if best.octaves is not None:
            errors = best.errors or (None,) * len(best.octaves)
            place = ", ".join(
                f"{octave:+.2f}" + ("" if error is None else f" +- {error:.2f}")
                for octave, error in zip(best.octaves, errors, strict=True)
            )
        drift = "" if line.drift is None else ", ".join(f"{x:+.2f}" for x in line.drift)
        loss = "diverged" if best.loss is None else f"{best.loss:.4f}"
        cost = "" if line.cost is None else f"{line.cost:.4f}"
        scale = BASE if line.axis == BASE else f"{line.axis} x{line.factor}"
        out.append(
            f"{line.parameterisation:<11} {scale:>10} {place:>{wide}} {drift:>{wide // 2}} "
            f"{loss:>10} {cost:>8}"
        )
    return "\n".join(out)


def read_trials(folder: Path) -> dict[Point, float]:
    """The trials of a sweep so far; a line cut off by a crash is left out, and run again."""
    path = folder / TRIALS
    found: dict[Point, float] = {}
    if not path.exists():
        return found
    whole = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(text)
            loss = row.pop("loss")
            point = Point(**row | {"octaves": tuple(row["octaves"])})
            found[point] = math.inf if loss is None else float(loss)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        whole.append(text)
    write_text_atomically(path, "".join(text + "\n" for text in whole))
    return found


def _scales(config: SweepConfig) -> list[tuple[str, int]]:
    """Every scale once: the base, then each axis by its factors."""
    return [(BASE, 1), *itertools.product(config.axes, config.factors[1:])]


def _grid(config: SweepConfig) -> list[Point]:
    return [
        Point(axis, factor, name, octaves, seed)
        for axis, factor in _scales(config)
        for seed in range(config.seeds)
        for name in config.parameterisations
        for octaves in itertools.product(*config.grid)
    ]


def _trials(
    config: SweepConfig, recipe: Recipe, manifest: Manifest, grid: list[Point]
) -> dict[Point, Trial]:
    """Every point's trial, so that what cannot be trained is said before anything is."""
    blanks: dict[Scale, Transformer] = {}
    trials = {}
    for point in grid:
        scale = _scale(recipe.base, config, point)
        if scale not in blanks:
            made = model_config(Shape(), manifest.vocab, scale, recipe.head_dim)
            blanks[scale] = meta_model(made)
        values = {
            name: getattr(recipe.values, name) * 2.0**octave
            for name, octave in zip(config.hyperparameters, point.octaves, strict=True)
        }
        moved = recipe.with_values(**values).with_rules(parameterisation=point.parameterisation)
        planned = plan(blanks[scale], moved, scale)
        trials[point] = Trial(plan=planned, seed=point.seed, steps=scale.steps)
    return trials


def _scale(base: Scale, config: SweepConfig, point: Point) -> Scale:
    scale = base
    if point.axis != BASE:
        scale = replace(base, **{point.axis: getattr(base, point.axis) * point.factor})
    if scale.batch % config.context:
        raise CompletedpError(
            f"batch of {scale.batch} tokens is not a whole number of sequences of "
            f"{config.context} tokens (context)"
        )
    return scale


def _identity(trial: Trial) -> Any:
    """All that a trial's outcome depends on: equal for trials that are the same training."""
    planned: Plan = trial.plan
    tensors = tuple(
        (t.init_std, t.lr, t.weight_decay, t.eps, t.beta1, t.beta2) for t in planned.tensors
    )
    multipliers = (*planned.residual_multipliers, planned.output_multiplier)
    return planned.target, trial.seed, multipliers, tensors


def _claim(folder: Path, config: SweepConfig, manifest: Manifest, recipe: Recipe) -> None:
    """Write what a trial here is, or see that the folder holds trials of the same kind.

    The grid itself may grow: more octaves, scales, seeds or parameterisations add to what is there.
    """
    trained_by = ("hyperparameters", "context", "z_loss", "eval_sequences")
    mine = {name: getattr(config, name) for name in trained_by}
    mine |= {"data_digest": manifest.digest(), "recipe_content": recipe.to_dict()}
    mine = json.loads(json.dumps(mine))
    path = folder / "sweep.json"
    if not path.exists():
        write_text_atomically(path, json.dumps(mine, indent=2) + "\n")
        return
    theirs = read_json(path, "sweep")
    for key, value in mine.items():
        if theirs.get(key) != value:
            raise CompletedpError(
                f"{str(folder)!r} holds another sweep: its {key} differs; choose another --out"
            )


def _train(
    config: SweepConfig, trials: list[Trial], progress: Callable[[int], None]
) -> Iterator[tuple[Trial, float]]:
    """Every trial, one stack for each shape; a trial that diverges has an infinite loss."""
    device = choose_device(config.device)
    stacks: dict[tuple[ModelConfig, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        stacks[trial.plan.model.config, trial.plan.target.batch].append(trial)  # pyright: ignore[reportArgumentType]
    for (shape, batch), together in stacks.items():
        slots = Slots(
            stack_model(shape, device),
            None if config.slots is None else min(config.slots, len(together)),
            TokenDataset(config.data, "train", config.context),
            TokenDataset(config.data, "valid", config.context),
            sequences=batch // config.context,
            max_steps=max(trial.steps for trial in together),
            device=device,
            z_loss=config.z_loss,
            eval_sequences=config.eval_sequences,
            compile=config.compile,
            trials=len(together),
        )
        together.sort(key=lambda trial: -trial.steps)  # the long ones last would run alone
        for outcome in slots.run(together, progress=progress):
            loss = math.inf if outcome.valid_loss is None else outcome.valid_loss
            yield outcome.trial, loss if math.isfinite(loss) else math.inf


def _without_infinities(losses: Any) -> Any:
    if isinstance(losses, list):
        return [_without_infinities(part) for part in losses]
    return losses if math.isfinite(losses) else None
