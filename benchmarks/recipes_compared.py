"""Recipes against each other, also on text and a model that none of them was tuned on.

    completedp data stdlib --out stdlib --tokenizer BPE.json
    python benchmarks/recipes_compared.py OUT.json --texts stdlib=stdlib english=TOKENS \
        --recipes default adamw-reference benchmarks/data/first-release.json

Every recipe (a file or the name of one that ships) is carried to one scale, for the reference
model and for a Qwen3 (SwiGLU, grouped queries), and trained there on several seeds: on every text
that is given, a folder of `completedp data`. The losses are comparable, each recipe's own: its
schedule and the size of its heads go with it. Recipes with heads of one size train side by side.
The table in docs/recipes.md is made of data/recipes-compared.json by `make docs`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measured import FOLDER

from completedp.evidence.figures.figure import student
from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.tasks.sources import HuggingFace
from completedp.tasks.task import Task, make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.runner import Runner

DATA = FOLDER / "recipes-compared.json"
CONTEXT = 256
TARGET = Scale(width=256, depth=8, batch=32 * CONTEXT, tokens=32 * CONTEXT * 2048)
FIRST_SEED = 7_000_000


def qwen3(vocab: int, head_dim: int) -> HuggingFace:
    """A Qwen3 whose feed-forward layers are three times its width; two queries share a key."""
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=256 // head_dim,
        num_key_value_heads=128 // head_dim,
        head_dim=head_dim,
        vocab_size=vocab,
        tie_word_embeddings=False,
    )
    return HuggingFace("hf:qwen3", config, vocab)


def task_of(model: str, head_dim: int, text: str) -> Task:
    """What is trained."""
    options: dict[str, Any] = {"context": CONTEXT}
    if model == "reference":
        return make_task(None, text, shape=Shape(head_dim=head_dim), **options)
    return make_task(qwen3(Manifest.load(Path(text)).vocab, head_dim), text, **options)


def losses_of(
    task: Task, recipes: Mapping[str, Recipe], scale: Scale, seeds: int, device: str
) -> dict[str, list[float]]:
    """Of every recipe on fresh seeds; infinite where a run diverged."""
    runner = Runner(task, device=device, compile=device != "cpu")
    trials = [
        runner.trial(recipe, scale, FIRST_SEED + i, (name, i))
        for name, recipe in recipes.items()
        for i in range(seeds)
    ]
    found = {name: [math.inf] * seeds for name in recipes}
    for outcome in runner.run(trials, scale, count=len(trials)):
        name, i = outcome.key
        found[name][i] = outcome.loss
    return found


def _said(losses: Sequence[float]) -> str:
    """Their mean with its standard error."""
    error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
    return f"{statistics.fmean(losses):.4f} +- {error:.4f}"


def gains(over: str, recipe: str = "default") -> dict[tuple[str, str], tuple[float, float, float]]:
    """By how many nats a recipe ends below another, by text and model: seed by seed, as measured,
    with an interval of 95 %."""
    losses = {
        (run["text"], run["model"], run["recipe"]): run["losses"]
        for run in json.loads(DATA.read_text())["runs"]
    }
    places = dict.fromkeys((text, model) for text, model, _ in losses)
    return {place: paired(losses[*place, over], losses[*place, recipe]) for place in places}


def paired(others: Sequence[float], own: Sequence[float]) -> tuple[float, float, float]:
    """The mean of what pairs differ by, and an interval of 95 % from what the pairs differ by."""
    gained = [other - mine for other, mine in zip(others, own, strict=True)]
    mean = statistics.fmean(gained)
    half = student(len(gained) - 1) * statistics.stdev(gained) / math.sqrt(len(gained))
    return mean, mean - half, mean + half


def table() -> str:
    """Markdown: what was measured, a row for each text and model."""
    found = json.loads(DATA.read_text())["runs"]
    said = {(run["text"], run["model"], run["recipe"]): _said(run["losses"]) for run in found}
    names = list(dict.fromkeys(run["recipe"] for run in found))
    lines = [f"| text | model | {' | '.join(f'`{name}`' for name in names)} |"]
    lines.append("| --- " * (2 + len(names)) + "|")
    for text, model in dict.fromkeys((run["text"], run["model"]) for run in found):
        cells = [said[text, model, name] for name in names]
        lines.append(f"| {text} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train all of them; a table, and every loss in a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipes", nargs="+", required=True)
    parser.add_argument("--texts", nargs="+", required=True, metavar="NAME=TOKENS")
    parser.add_argument("--models", nargs="+", default=["reference", "qwen3"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--scale",
        nargs=4,
        type=int,
        default=(TARGET.width, TARGET.depth, TARGET.batch, TARGET.tokens),
        metavar=("WIDTH", "DEPTH", "BATCH", "TOKENS"),
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # cautions, and types that a recipe does not know
    scale = Scale(**dict(zip(("width", "depth", "batch", "tokens"), args.scale, strict=True)))
    by_heads: dict[int, dict[str, Recipe]] = {}
    for named in args.recipes:
        recipe = Recipe.find(named)
        by_heads.setdefault(recipe.head_dim or 64, {})[Path(named).stem] = recipe
    rows = []
    about = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "torch": torch.__version__,
        "scale": scale.to_dict(),
        "context": CONTEXT,
    }
    print(f"at {scale}, {args.seeds} seeds")
    texts = [pair.split("=", 1) for pair in args.texts]
    for (name, text), model, (heads, recipes) in product(texts, args.models, by_heads.items()):
        task = task_of(model, heads, text)
        found = losses_of(task, recipes, scale, args.seeds, args.device)
        for named, losses in found.items():
            print(f"  {name:<10} {model:<10} {named:<24} {_said(losses)}", flush=True)
            rows.append({"text": name, "model": model, "recipe": named, "losses": losses})
        about[name] = {"vocab": Manifest.load(Path(text)).vocab, "digest": task.data.digest}
        args.out.write_text(json.dumps(about | {"runs": rows}, indent=1))


if __name__ == "__main__":
    main()
