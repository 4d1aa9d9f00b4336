"""Which search finds values whose gain survives growth along all axes? On a GPU.

    python benchmarks/transfer_search.py DATA OUT --searches kronecker-0 type-0 --seconds 150
    python benchmarks/transfer_search.py DATA OUT --judge

Global values are tuned first (OUT/globals.json); every search starts from them and has the same
seconds of training. A search is named WAY-SEED; the ways:

    global      one multiplier for the whole model (from the usual values, not the tuned ones)
    kronecker   type x depth multipliers, at the base
    type        one multiplier a module type, at the base
    groups      one a group of types (embedding, head, attention, feed-forward, vectors)
    *-multi     the same, every other round at a deeper and longer scale; the engine is told by how
                much a trial beats the start there
    *-jitter    every trial's learning rates moved by up to half an octave that nobody is told
    *-common    all trials of a round with one seed: the noise that they share cancels

`--begin NAME` starts them from what the search NAME recommends. `--noise` says how much of the
noise between seeds is common to all recipes.

`--judge` trains what each search recommends, and variants of it, at a scale that no search has
seen, on fresh seeds. Each search is OUT/NAME.npz (points and losses of every trial), the verdict
OUT/judged.json. DATA is a folder made by `completedp data` with a BPE of 1024 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from completedp.lm.shape import Shape
from completedp.studies.engines import Bounds
from completedp.studies.registry import make_engine
from completedp.studies.space import Space, make_space
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.runner import Runner
from completedp.training.trials import Stack

CONTEXT, HEAD_DIM = 256, 32
BASE = Scale(width=64, depth=4, batch=16 * CONTEXT, tokens=16 * CONTEXT * 2048)
DEEPER = BASE.times(Ratios(depth=2, tokens=2))
UNSEEN = {
    "x2": Ratios(width=2, depth=2, batch=2, tokens=4),
    "500x": Ratios(width=4, depth=2, batch=4, tokens=16),
}
FRESH = 2**31
GROUPS = {
    "embedding": ("embedding",),
    "head": ("unembedding", "output_norm"),
    "attention": ("qkv", "attn_out"),
    "feed-forward": ("mlp_in", "mlp_out"),
    "vectors": ("attn_norm", "mlp_norm", "q_norm", "k_norm"),
}
GLOBAL_TRIALS = 320


class Lab:
    """Recipes to losses, in stacks that are made once for each scale."""

    def __init__(self, data: str, slots: int, tiny: bool) -> None:
        shape = Shape(head_dim=HEAD_DIM)
        self.task = make_task(None, data, context=CONTEXT, shape=shape, z_loss=1e-4)
        self.runner = Runner(self.task, slots=slots, compile=not tiny)
        self.compiling: dict[str, float] = {}

    def stack(self, scale: Scale, count: int) -> Stack:
        """The stack of a scale, compiled and recorded."""
        start = time.monotonic()
        stack = self.runner.stack(scale, count)
        stack.prepare()
        seconds = time.monotonic() - start
        if seconds > 0.5:
            self.compiling[f"{scale}, {stack.count} slots"] = seconds
            print(f"  {scale}: {stack.count} slots, {seconds:.1f} s", flush=True)
        return stack

    def losses(self, wanted: list[tuple[Recipe, int]], scale: Scale, count: int) -> list[float]:
        """The validation loss of each recipe with its seed; infinite where it diverged."""
        found = [math.inf] * len(wanted)
        trials = []
        for index, (recipe, seed) in enumerate(wanted):
            try:
                trials.append(self.runner.trial(recipe, scale, seed, index))
            except ValueError as error:  # a point of no plan
                print("   ", error, flush=True)
        for outcome in self.stack(scale, min(count, len(wanted))).run(trials):
            found[outcome.key] = outcome.loss
        return found


class View:
    """A search's own coordinates: a point of them is a recipe."""

    def __init__(self, recipe: Recipe, way: str) -> None:
        self.recipe = recipe
        wide = [BASE.times(ratios) for ratios in UNSEEN.values()]
        kind = "type" if way == "groups" else way
        self.space: Space = make_space(recipe, kind, types=recipe.types, scales=wide)
        self.matrix = np.eye(len(self.space.coordinates))
        if way == "groups":
            groups = [_group(name) for name in self.space.coordinates]
            kinds = list(dict.fromkeys(groups))
            self.matrix = np.array([[float(group == kind) for kind in kinds] for group in groups])
        bounds, columns = self.space.bounds, self.matrix.T > 0
        self.bounds = Bounds(
            low=np.array([(bounds.low - bounds.start)[mine].max() for mine in columns]),
            high=np.array([(bounds.high - bounds.start)[mine].min() for mine in columns]),
            start=np.zeros(len(columns)),
        )

    def recipe_at(self, point: np.ndarray) -> Recipe:
        """The recipe at a point."""
        return self.space.recipe(self.recipe, self.space.bounds.start + self.matrix @ point)


def _group(coordinate: str) -> str:
    tunable, _, kind = coordinate.partition("/type/")
    if tunable == "eps":
        return "eps"
    if tunable == "residual":
        return coordinate
    return f"{tunable}/{next(name for name, types in GROUPS.items() if kind in types)}"


def usual(lab: Lab) -> Recipe:
    """Where the global search starts: usual values, the embedding at about 1."""
    values = {"lr": 2.0**-6.5, "init_std": 0.1, "weight_decay": 0.05}
    recipe = lab.task.recipe(BASE, **values, token_exponent=0.25)
    log2 = {"init_std/type/embedding": 3.0}
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def search(
    lab: Lab, recipe: Recipe, name: str, *, slots: int, seconds: float, trials: int | None = None
) -> dict[str, Any]:
    """One search: rounds of trials until its seconds of training are spent."""
    way, _, seed_text = name.rpartition("-")
    seed = int(seed_text)
    way, _, variant = way.partition("-")
    view = View(recipe, way)
    engine = make_engine("recombine", view.bounds, seed)
    multi = "multi" in variant
    rounds = [(BASE, slots), (DEEPER, slots // 2)] if multi else [(BASE, slots)]
    level = {}
    for scale, count in rounds:
        lab.stack(scale, count)
        if multi:
            own = [(recipe, FRESH + 999 + i) for i in range(count)]
            level[scale] = float(np.mean(lab.losses(own, scale, count)))
    rng = np.random.default_rng([seed, 7])
    rows, number, spent, turn = [], 0, 0.0, 0
    while spent < seconds and (trials is None or number < trials):
        scale, count = rounds[turn % len(rounds)]
        points = [engine.ask(number + i) for i in range(count)]
        recipes = [view.recipe_at(point) for point in points]
        if variant == "jitter":
            recipes = [r.with_values(lr=r.values.lr * 2 ** rng.uniform(-0.5, 0.5)) for r in recipes]
        shared = "common" in variant
        seeds = [1_000_000 * seed + number + (0 if shared else i) for i in range(count)]
        began = time.monotonic()
        losses = lab.losses(list(zip(recipes, seeds, strict=True)), scale, count)
        spent += time.monotonic() - began
        for i, (point, loss) in enumerate(zip(points, losses, strict=True)):
            loss -= level.get(scale, 0.0)
            engine.tell(number + i, point, loss)
            rows.append((point, loss, rounds.index((scale, count))))
        number, turn = number + count, turn + 1
        finite = [loss for loss in losses if math.isfinite(loss)]
        print(
            f"  {name}: {number} trials, {spent:.0f} s, round median {np.median(finite):.4f}, "
            f"diverged {count - len(finite)}, radius {engine.describe()['radius']:.2f}",
            flush=True,
        )
    return {
        "points": np.array([row[0] for row in rows], dtype=np.float32),
        "losses": np.array([row[1] for row in rows], dtype=np.float32),
        "rung": np.array([row[2] for row in rows], dtype=np.int8),
        "recommended": engine.recommend(),
        "seconds": np.array(spent),
        "start": np.array(json.dumps(recipe.to_dict())),
    }


def noise(lab: Lab, recipe: Recipe, slots: int, radius: float = 0.5) -> dict[str, float]:
    """The spread of losses at the base: between points, between seeds, and what is left."""
    view = View(recipe, "type")
    rng = np.random.default_rng(5)
    shape = (slots // 2, len(view.bounds.start))
    points = np.clip(rng.uniform(-radius, radius, shape), view.bounds.low, view.bounds.high)
    wanted = [(view.recipe_at(p), FRESH + 5000 + s) for p in points for s in range(4)]
    losses = np.array(lab.losses(wanted, BASE, slots)).reshape(-1, 4)
    losses = losses[np.isfinite(losses).all(axis=1)]
    rest = losses - losses.mean(0) - losses.mean(1)[:, None] + losses.mean()
    count, seeds = losses.shape
    left = (rest**2).sum() / (count - 1) / (seeds - 1)
    return {
        "points": count,
        "between points": max(0.0, losses.mean(1).var(ddof=1) - left / seeds) ** 0.5,
        "between seeds, common to all points": max(0.0, losses.mean(0).var(ddof=1) - left / count)
        ** 0.5,
        "left": left**0.5,
    }


def candidates(recipe: Recipe, name: str, found: Any) -> dict[str, Recipe]:
    """What a search recommends, and variants of it that might carry better."""
    way = name.partition("-")[0]
    view = View(recipe, way)
    point = found["recommended"]
    whole = view.recipe_at(point)
    made = {"": whole, ", half": view.recipe_at(0.5 * point)}

    def without(keep: Any) -> Recipe:
        start = recipe.hyperparameters.log2
        log2 = {
            k: v if keep(k) else start.get(k, 0.0) for k, v in whole.hyperparameters.log2.items()
        }
        return replace(whole, hyperparameters=replace(whole.hyperparameters, log2=log2))

    made[", no lr"] = without(lambda k: not k.startswith("lr/"))
    if way == "kronecker":
        made[", no depth"] = without(lambda k: "/depth/" not in k)
    return {name + suffix: r for suffix, r in made.items()}


def main() -> None:
    """Tune the globals, search, judge: whichever was asked for and is not done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--searches", nargs="*", default=[])
    parser.add_argument("--begin", help="start from what this search recommends")
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--judge", nargs="*", choices=tuple(UNSEEN), default=[])
    parser.add_argument("--only", nargs="*", default=None, help="candidates to judge")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="for trying this script on a CPU")
    args = parser.parse_args()
    if args.tiny:
        _shrink()
    args.out.mkdir(parents=True, exist_ok=True)
    lab = Lab(args.data, args.slots, args.tiny)
    start = usual(lab)
    path = args.out / "globals.json"
    if not path.exists():
        lab_found = search(
            lab, start, "global-0", slots=args.slots, seconds=math.inf, trials=GLOBAL_TRIALS
        )
        np.savez_compressed(args.out / "global-0.npz", **lab_found)
        View(start, "global").recipe_at(lab_found["recommended"]).save(path)
    tuned = Recipe.load(path)
    print(tuned.values, tuned.hyperparameters.log2, flush=True)
    if args.noise:
        print(json.dumps(noise(lab, tuned, args.slots), indent=1), flush=True)
    if args.begin:
        found = np.load(args.out / f"{args.begin}.npz")
        origin = Recipe.from_dict(json.loads(str(found["start"])))
        tuned = View(origin, args.begin.partition("-")[0]).recipe_at(found["recommended"])
    for name in args.searches:
        if (args.out / f"{name}.npz").exists():
            continue
        # Global values are searched from the usual ones, all others from the tuned.
        begin = start if name.startswith("global") else tuned
        found = search(lab, begin, name, slots=args.slots, seconds=args.seconds)
        np.savez_compressed(args.out / f"{name}.npz", **found)
    for where in args.judge:
        judge(lab, tuned, args, where)
    if lab.compiling:
        (args.out / "compiling.json").write_text(json.dumps(lab.compiling, indent=1))


def judge(lab: Lab, tuned: Recipe, args: argparse.Namespace, where: str) -> None:
    """Train what the searches recommend at a scale they have not seen, and at the base."""
    path = args.out / "judged.json"
    verdict = json.loads(path.read_text()) if path.exists() else {}
    wanted = {"start": tuned}
    for file in sorted(args.out.glob("*.npz")):
        if file.stem != "global-0":
            found = np.load(file)
            begin = Recipe.from_dict(json.loads(str(found["start"]))) if "start" in found else tuned
            wanted |= candidates(begin, file.stem, found)
    if args.only is not None:
        wanted = {name: recipe for name, recipe in wanted.items() if name in args.only}
    for label, scale in (("base", BASE), (where, BASE.times(UNSEEN[where]))):
        known = verdict.setdefault(label, {})
        todo = [(n, s) for n in wanted for s in range(args.seeds) if str(s) not in known.get(n, {})]
        began = time.monotonic()
        pairs = [(wanted[name], FRESH + seed) for name, seed in todo]
        losses = lab.losses(pairs, scale, args.slots if label == "base" else 16) if pairs else []
        for (name, seed), loss in zip(todo, losses, strict=True):
            known.setdefault(name, {})[str(seed)] = loss if math.isfinite(loss) else None
        print(f"{label}: {scale}, {len(todo)} runs in {time.monotonic() - began:.0f} s")
        for name in wanted:
            values = [math.inf if v is None else v for v in known[name].values()]
            error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            print(f"  {name:<28} {np.mean(values):.4f} +- {error:.4f}", flush=True)
        path.write_text(json.dumps(verdict, indent=1))


def _shrink() -> None:
    global BASE, DEEPER, CONTEXT, HEAD_DIM, GLOBAL_TRIALS
    CONTEXT, HEAD_DIM, GLOBAL_TRIALS = 16, 8, 8
    BASE = Scale(width=16, depth=2, batch=64, tokens=64 * 30)
    DEEPER = BASE.times(Ratios(depth=2, tokens=2))
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
