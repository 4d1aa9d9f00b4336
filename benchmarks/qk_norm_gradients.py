"""How the gradient of a gain that heads share scales with depth and width: docs/results/checks.md.

    python benchmarks/qk_norm_gradients.py run            # about 5 minutes on one core
    python benchmarks/qk_norm_gradients.py table

A QK norm's gain j is shared by the heads, so its gradient is a sum over them, G_j = sum_i g_ij, and
its square is that of the heads one by one and of what they have in common:

    G_j^2 = sum_i g_ij^2 + sum_{i != k} g_ij g_kj

Both are measured here on the reference model in float64, layer by layer, over the later half of ten
steps: for alpha = 1/2 trained as the check trains and with weights that stay where they start, and
for alpha = 1.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from measured import FOLDER, read, write
from torch import Tensor, nn

import completedp as cdp
from completedp.evidence.windows import VOCAB, byte_windows
from completedp.tasks.data import training_batches
from completedp.theory.rules import Rules
from completedp.theory.scale import Scale

DATA = FOLDER / "qk-norm-gradients.json.xz"
BASE = Scale(width=64, depth=4, batch=512, tokens=10 * 512)
CONTEXT, STEPS, SEEDS = 64, 10, 4
SIZES = [(64, 4), (64, 8), (64, 16), (64, 32), (256, 4), (256, 8)]
CASES = {
    "alpha 1/2": (0.5, BASE.width**-0.5, 2.0**-10),
    "alpha 1/2, weights held at their start": (0.5, BASE.width**-0.5, 2.0**-40),
    "alpha 1": (1.0, 0.02, 2.0**-10),
}
"""alpha, the hidden weights' start and the learning rate: those of `completedp gradcheck`."""
NORMS = ("q_norm", "k_norm")
ALONG = [
    ("depth 4 to 32, 4 heads", "depth", 64),
    ("depth 4 to 8, 16 heads", "depth", 256),
    ("width 64 to 256, depth 4", "width", 4),
    ("width 64 to 256, depth 8", "width", 8),
]


def recipe_of(alpha: float, start: float, lr: float) -> cdp.Recipe:
    """Global values: an embedding of 1, logits near 0, and the hidden weights' start."""
    log2 = {"init_std/type/embedding": -np.log2(start)}
    log2["init_std/type/unembedding"] = np.log2(0.02 / start)
    recipe = cdp.Recipe.for_model(
        model_at(BASE), BASE, lr=lr, init_std=start, rules=Rules(alpha=alpha)
    )
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2))


def model_at(scale: Scale) -> cdp.Transformer:
    """The reference model in float64."""
    shape = {"width": scale.width, "depth": scale.depth, "head_dim": 16}
    return cdp.Transformer(cdp.ModelConfig(vocab=VOCAB, **shape)).double()


@contextmanager
def watched(model: nn.Module, found: dict[str, list[Tensor]]) -> Iterator[None]:
    """Every QK norm's gradient by head, [heads, head_dim], one entry a layer and backward pass."""

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        unit = (output / module.get_parameter("weight")).detach()
        name = names[module]
        output.register_hook(lambda grad: found[name].append((grad * unit).sum((0, 1))))

    names = {m: name.rpartition(".")[2] for name, m in model.named_modules()}
    norms = [m for m, name in names.items() if name in NORMS]
    handles = [m.register_forward_hook(keep) for m in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measured(case: str, scale: Scale, seed: int) -> dict[str, list[float]]:
    """Mean squares over gains and steps, by layer, of the gradient and of heads one by one."""
    model = model_at(scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a recipe that nobody trains with
        plan = cdp.plan(model, recipe_of(*CASES[case]), scale)
    plan.initialise(seed)
    optimizer, data = plan.adamw(), byte_windows("stdlib", CONTEXT)
    batches = training_batches(data, scale.batch // CONTEXT, seed, torch.device("cpu"))
    found: dict[str, list[Tensor]] = {name: [] for name in NORMS}
    for step in range(STEPS):
        inputs, targets = next(batches)
        kept = found if 2 * step >= STEPS else {name: [] for name in found}
        with watched(model, kept):
            logits = model(inputs).flatten(0, 1)
            nn.functional.cross_entropy(logits, targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    sizes = {}
    for name, each in found.items():
        last_first = torch.stack(each).unflatten(0, (-1, scale.depth))  # [steps, layers, heads, j]
        by_head = last_first.flip(1)
        squares = {"whole": by_head.sum(2).square(), "heads": by_head.square().sum(2)}
        for part, values in squares.items():
            means = values.mean((0, 2)).tolist()
            sizes[f"{name} {part}"] = [float(f"{mean:.5g}") for mean in means]
    return sizes


def run() -> None:
    """Measure what is not measured yet, and write it down after each size."""
    rows: list[dict[str, Any]] = read(DATA).get("rows", [])
    known = {(row["width"], row["depth"], row["case"]) for row in rows}
    for width, depth in SIZES:
        for case in CASES:
            if (width, depth, case) in known:
                continue
            print(f"width {width} depth {depth} {case}", flush=True)
            scale = replace(BASE, width=width, depth=depth)
            for seed in range(SEEDS):
                row = {"width": width, "depth": depth, "case": case, "seed": seed}
                rows.append(row | measured(case, scale, seed))
            write(DATA, {"rows": rows})


def table(data: dict[str, Any]) -> str:
    """Markdown: with which power of depth and width the gradient goes, and its two parts."""
    lines = ["| | along | gradient | heads one by one | what they have in common |"]
    lines.append("| --- " * 5 + "|")
    for case in CASES:
        for along, axis, fixed in ALONG:
            other = "width" if axis == "depth" else "depth"
            mine = [r for r in data["rows"] if r["case"] == case and r[other] == fixed]
            sizes = sorted({row[axis] for row in mine})
            if len(sizes) < 2:
                continue
            parts = np.array([_parts([r for r in mine if r[axis] == size]) for size in sizes])
            slopes = [_slope(sizes, parts[:, i]) for i in range(3)]
            lines.append(f"| {case} | {along} | {' | '.join(slopes)} |")
    return "\n".join(lines)


def _parts(rows: list[dict[str, Any]]) -> np.ndarray:
    """Mean squares over layers, and queries and keys: all, by head, in common; [3, seeds]."""
    whole, heads = (
        np.array([np.mean([row[f"{name} {part}"] for name in NORMS]) for row in rows])
        for part in ("whole", "heads")
    )
    return np.array([whole, heads, whole - heads])


def _slope(sizes: list[int], squares: np.ndarray) -> str:
    """The power by which the root of the mean over seeds goes, with its error by the jackknife.

    Of squares, [sizes, seeds]; none where a mean is less than two standard errors from zero.
    """
    seeds = squares.shape[1]
    if (squares.mean(1) < 2 * squares.std(1, ddof=1) / np.sqrt(seeds)).any():
        return "none"

    def fit(kept: np.ndarray) -> float:
        return float(np.polyfit(np.log2(sizes), 0.5 * np.log2(kept.mean(1)), 1)[0])

    without = np.array([fit(np.delete(squares, seed, axis=1)) for seed in range(seeds)])
    error = np.sqrt((seeds - 1) / seeds * ((without - without.mean()) ** 2).sum())
    return f"{fit(squares):+.2f} +- {error:.2f}"


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("run", "table"))
    if parser.parse_args().what == "run":
        run()
    else:
        print(table(read(DATA)))


if __name__ == "__main__":
    main()
