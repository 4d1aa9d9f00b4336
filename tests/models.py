"""Small reference models with recipes and plans, and a few steps of training, for several tests."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from helpers import BASE
from torch import Tensor, nn
from torch.optim import Optimizer

from completedp.apply.plan import Plan, plan
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

torch.set_num_threads(1)  # models this small lose more to waiting threads than they gain
VOCAB = 96
BASE_SCALE = Scale(**BASE)


def scale(**changes: int) -> Scale:
    """The base scale with some sizes changed."""
    return Scale(**(BASE | changes))


def make_model(width: int = 64, depth: int = 2, device: str = "cpu", **options: Any) -> Transformer:
    """A reference model of heads of 16; on the meta device it takes no memory."""
    options = {"head_dim": 16, "vocab": VOCAB} | options
    with torch.device(device):
        return Transformer(ModelConfig(width=width, depth=depth, **options))


def make_recipe(
    log2: Mapping[str, float] | None = None, model: dict[str, Any] | None = None, **options: Any
) -> Recipe:
    """A recipe for the base model, `model` its options, with these log2 multipliers."""
    base = make_model(device="meta", **(model or {}))
    recipe = Recipe.for_model(base, BASE_SCALE, **({"lr": 2**-7} | options))
    return replace(recipe, hyperparameters=replace(recipe.hyperparameters, log2=log2 or {}))


def make_plan(
    recipe: Recipe | None = None,
    width: int = 128,
    depth: int = 4,
    batch: int = BASE["batch"],
    tokens: int = BASE["tokens"],
    device: str = "meta",
    **options: Any,
) -> Plan:
    """A plan for a reference model of that size; both it and its base have the model `options`."""
    model = make_model(width, depth, device, **options)
    recipe = recipe or make_recipe(model=options)
    return plan(model, recipe, scale(width=width, depth=depth, batch=batch, tokens=tokens))


def token_batches(steps: int, seed: int = 0, length: int = 17) -> list[Tensor]:
    """The same random tokens for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (2, length), generator=generator) for _ in range(steps)]


def train(model: nn.Module, optimizer: Optimizer, batches: Iterable[Tensor]) -> list[float]:
    """One optimizer step a batch; the losses."""
    losses = []
    for tokens in batches:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def of_scale(scale: Scale) -> nn.Module:
    """The reference model as the checks make it, for checks of a model of the user's own."""
    return make_model(scale.width, scale.depth, vocab=257, bias=True, output_bias=True)
