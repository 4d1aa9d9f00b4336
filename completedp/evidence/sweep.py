"""Sweep: does the best value of a hyperparameter stay put as a model or its training grows?

A grid of octaves x scales x seeds x parameterisations, trained in slots, one stack for each shape.
Every trial is a line of trials.jsonl as soon as it ends, so the same command goes on where it
stopped. The verdict: the optimum at each scale, its drift from the base's in octaves, and the loss
that using the base's optimum costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from completedp.apply.plan import plan
from completedp.evidence.config import SweepConfig
from completedp.evidence.optimum import Optimum, find_optimum, loss_at
from completedp.evidence.plots import require_matplotlib, sweep_svg
from completedp.lm.batches import TokenDataset
from completedp.lm.tokens import Manifest
from completedp.lm.transformer import Transformer
from completedp.theory.errors import CompletedpError
from completedp.theory.files import read_json, write_text_atomically
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.build import choose_device, choose_dtype, meta_model, model_config
from completedp.training.config import Shape
from completedp.training.process import only_process
from completedp.training.progress import Reporter
from completedp.training.slots import Slots, Trial

TRIALS = "trials.jsonl"


@dataclass(frozen=True, order=True)
class Point:
    """One trial of a sweep."""

    factor: int
    parameterisation: str
    octave: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """The verdict on one curve: one parameterisation at one scale."""

    parameterisation: str
    factor: int
    optimum: Optimum
    drift: float | None
    """Octaves from the base's optimum; None where either is not bracketed."""
    cost: float | None
    """Loss lost by using the base's optimum here."""
    losses: list[list[float | None]]
    """By octave and seed; None where a trial diverged."""


def sweep(config: SweepConfig, *, quiet: bool = False) -> list[Line]:
    """Run what is not yet run, judge, and write verdict.json and sweep.svg."""
    require_matplotlib()
    recipe = Recipe.default() if config.recipe == "default" else Recipe.load(config.recipe)
    manifest = Manifest.load(config.data)
    scales = {factor: _scale(recipe.base, config, factor) for factor in config.factors}
    for factor, scale in scales.items():  # what no trial can be is said before any is trained
        blank = _blank(recipe, manifest, scale)
        for name in config.parameterisations:
            _trial(config, recipe, blank, scale, Point(factor, name, config.octaves[0], 0))
    folder = Path(config.out).expanduser()
    with only_process(folder):
        _claim(folder, config, manifest, recipe)
        done = read_trials(folder)
        grid = _grid(config)
        points = [point for point in grid if point not in done]
        total = sum(scales[point.factor].steps for point in grid)
        trained = total - sum(scales[point.factor].steps for point in points)
        with (
            (folder / TRIALS).open("a", encoding="utf-8") as file,
            Reporter("sweep: trial-steps", total, trained, quiet=quiet) as reporter,
        ):
            for factor, scale in scales.items():
                mine = [point for point in points if point.factor == factor]

                def progress(steps: int, factor: int = factor) -> None:
                    nonlocal trained
                    trained = min(total, trained + steps)
                    reporter.update(
                        trained,
                        lambda: f"{config.axis} x{factor}, {len(done)}/{len(grid)} trials",
                    )

                for point, loss in _train(config, recipe, manifest, scale, mine, progress):
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
    octaves = np.array(config.octaves)
    lines = []
    for name in config.parameterisations:
        base: Optimum | None = None
        for factor in config.factors:
            losses = np.array(
                [
                    [done[Point(factor, name, octave, seed)] for seed in range(config.seeds)]
                    for octave in config.octaves
                ]
            )
            found = find_optimum(octaves, losses)
            base = base or found
            drift = cost = None
            if base.octave is not None:
                there = loss_at(octaves, losses, base.octave)
                if found.octave is not None and found.loss is not None:
                    drift = found.octave - base.octave
                    cost = max(0.0, there - found.loss) if math.isfinite(there) else None
            lines.append(
                Line(
                    parameterisation=name,
                    factor=factor,
                    optimum=found,
                    drift=drift,
                    cost=cost,
                    losses=[[x if math.isfinite(x) else None for x in row] for row in losses],
                )
            )
    return lines


def sweep_text(config: SweepConfig, lines: list[Line]) -> str:
    """The verdict as a table."""
    out = [
        f"{config.hyperparameter} over {config.axis}, octaves from the recipe's value",
        f"{'':<11} {config.axis:>7} {'optimum':>16} {'drift':>7} {'best loss':>10} {'cost':>8}",
    ]
    for line in lines:
        best = line.optimum
        place = "not bracketed" if best.octave is None else f"{best.octave:+.2f}"
        if best.octave is not None and best.error is not None:
            place += f" +- {best.error:.2f}"
        drift = "" if line.drift is None else f"{line.drift:+.2f}"
        loss = "diverged" if best.loss is None else f"{best.loss:.4f}"
        cost = "" if line.cost is None else f"{line.cost:.4f}"
        out.append(
            f"{line.parameterisation:<11} {'x' + str(line.factor):>7} {place:>16} {drift:>7} "
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
            point = Point(row["factor"], row["parameterisation"], row["octave"], row["seed"])
            found[point] = math.inf if row["loss"] is None else float(row["loss"])
        except (ValueError, KeyError, TypeError):
            continue
        whole.append(text)
    write_text_atomically(path, "".join(text + "\n" for text in whole))
    return found


def _grid(config: SweepConfig) -> list[Point]:
    return [
        Point(factor, name, octave, seed)
        for factor in config.factors
        for seed in range(config.seeds)
        for name in config.parameterisations
        for octave in config.octaves
    ]


def _scale(base: Scale, config: SweepConfig, factor: int) -> Scale:
    scale = replace(base, **{config.axis: getattr(base, config.axis) * factor})
    if scale.batch % config.context:
        raise CompletedpError(
            f"batch of {scale.batch} tokens is not a whole number of sequences of "
            f"{config.context} tokens (context)"
        )
    return scale


def _claim(folder: Path, config: SweepConfig, manifest: Manifest, recipe: Recipe) -> None:
    """Write what the sweep is, or see that the folder holds the same one."""
    fixed = {"slots", "device", "compile", "out", "data", "recipe"}
    mine = {k: v for k, v in config.to_dict().items() if k not in fixed}
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


def _blank(recipe: Recipe, manifest: Manifest, scale: Scale) -> Transformer:
    return meta_model(model_config(Shape(), manifest.vocab, scale, recipe.head_dim))


def _trial(
    config: SweepConfig, recipe: Recipe, blank: Transformer, scale: Scale, point: Point
) -> Trial:
    value = getattr(recipe.values, config.hyperparameter) * 2.0**point.octave
    moved = recipe.with_values(**{config.hyperparameter: value})
    moved = moved.with_rules(parameterisation=point.parameterisation)
    return Trial(plan=plan(blank, moved, scale), seed=point.seed, steps=scale.steps, label=point)


def _train(
    config: SweepConfig,
    recipe: Recipe,
    manifest: Manifest,
    scale: Scale,
    points: list[Point],
    progress: Callable[[int], None],
) -> Iterator[tuple[Point, float]]:
    """Every point of one shape, in slots; a trial that diverges has an infinite loss."""
    if not points:
        return
    device = choose_device(config.device)
    blank = _blank(recipe, manifest, scale)
    dtype = choose_dtype("auto", device)
    slots = Slots(
        meta_model(blank.config, dtype if dtype != torch.float32 else None),
        min(config.slots, len(points)),
        TokenDataset(config.data, "train", config.context),
        TokenDataset(config.data, "valid", config.context),
        sequences=scale.batch // config.context,
        max_steps=scale.steps,
        device=device,
        z_loss=config.z_loss,
        eval_sequences=config.eval_sequences,
        compile=config.compile,
    )
    trials = (_trial(config, recipe, blank, scale, point) for point in points)
    for outcome in slots.run(trials, progress=progress):
        loss: Any = outcome.valid_loss
        yield outcome.trial.label, math.inf if loss is None or not math.isfinite(loss) else loss
