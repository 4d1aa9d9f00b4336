"""One short training run of the reference model, and the size of everything that moves in it.

For every module type, the root mean square (over the elements, and over the layers) of:

    initial    its output at initialisation, on a fixed batch of text
    change     how far that output has moved after some steps
    own        the part of it that its own parameters' change makes: (W_t - W_0) x_t for a matrix
    gradient   its parameters' gradient, over the later half of the steps

`own` tells tensors apart: a learning rate that is wrong for one role shows in that role's row,
while `change` mixes in what reaches a module from the modules before it.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from completedp.apply.classify import TensorInfo, classify
from completedp.lm.corpora import documents
from completedp.lm.tokenizer import ByteTokenizer
from completedp.lm.transformer import ModelConfig, RMSNorm, Transformer
from completedp.theory.errors import CompletedpError
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.build import loss_of, planned_model

Sizes = dict[tuple[str, str], float]
"""(quantity, module type) -> root mean square."""

STREAM = "stream"
"""The residual stream after each block, in the place of a module type."""


def measure(
    config: ModelConfig,
    recipe: Recipe,
    target: Scale,
    text: np.ndarray,
    *,
    context: int,
    steps: int,
    seed: int,
    device: str = "cpu",
) -> Sizes:
    """Train for `steps` at constant rates in float32, and measure."""
    model, planned = planned_model(config, recipe, target, seed=seed, device=device)
    tensors = classify(model)
    owners = {t.name: model.get_submodule(t.name.rpartition(".")[0]) for t in tensors}
    optimizer = planned.adamw()
    batches = _Windows(text, context, target.batch // context, seed, device)
    probe, _ = batches.draw()
    at_start = copy.deepcopy(model)
    before = _capture(model, probe)
    squares: dict[str, list[Tensor]] = defaultdict(list)
    for step in range(steps):
        loss_of(model, *batches.draw()).total.backward()
        if 2 * step >= steps:
            for tensor in tensors:
                grad = model.get_parameter(tensor.name).grad
                squares[tensor.type].append(_mean_square(grad))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    after = _capture(model, probe)
    sizes: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for kind, values in squares.items():
        sizes["gradient", kind] = values
    for tensor in tensors:
        owner = owners[tensor.name]
        start = at_start.get_parameter(tensor.name)
        delta = model.get_parameter(tensor.name).detach() - start.detach()
        moved = _own(owner, tensor, after[owner][0], delta)
        sizes["own", tensor.type].append(_mean_square(moved))
        if not tensor.name.endswith(".bias"):
            sizes["initial", tensor.type].append(_mean_square(before[owner][1]))
            change = after[owner][1] - before[owner][1]
            sizes["change", tensor.type].append(_mean_square(change))
    for block in model.blocks:
        sizes["initial", STREAM].append(_mean_square(before[block][1]))
        sizes["change", STREAM].append(_mean_square(after[block][1] - before[block][1]))
    return {key: math.sqrt(float(torch.stack(v).mean())) for key, v in sizes.items()}


def byte_text(source: str, limit: int = 2_000_000) -> np.ndarray:
    """The bytes of some text, end-of-text between documents: no tokeniser to train, no folder."""
    tokenizer, parts, have = ByteTokenizer(), [], 0
    for document in documents(source):
        parts.append(np.append(tokenizer.encode(document), tokenizer.eot))
        have += len(parts[-1])
        if have >= limit:
            break
    return np.concatenate(parts)[:limit].astype(np.int64)


class _Windows:
    """Random windows of a text, the same for every model size with the same seed."""

    def __init__(
        self, text: np.ndarray, context: int, sequences: int, seed: int, device: str
    ) -> None:
        if sequences < 1:
            raise CompletedpError(f"the batch is shorter than one sequence of {context} tokens")
        if len(text) <= context:
            raise CompletedpError(
                f"the text has {len(text)} tokens, fewer than one sequence of {context} + 1"
            )
        self._text, self._context, self._sequences = text, context, sequences
        self._rng, self._device = np.random.default_rng(seed), device

    def draw(self) -> tuple[Tensor, Tensor]:
        starts = self._rng.integers(0, len(self._text) - self._context, self._sequences)
        rows = self._text[starts[:, None] + np.arange(self._context + 1)]
        rows = torch.from_numpy(rows).to(self._device)
        return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def _capture(model: Transformer, probe: Tensor) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Input and output of every module that owns parameters, and of every block."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    with _hooks(model, seen):
        model(probe)
    return seen


@contextmanager
def _hooks(model: Transformer, seen: dict[nn.Module, tuple[Tensor, Tensor]]) -> Iterator[None]:
    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = (inputs[0].detach(), output.detach())

    watched = [m for m in model.modules() if list(m.parameters(recurse=False))]
    handles = [m.register_forward_hook(keep) for m in (*watched, *model.blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _own(owner: nn.Module, tensor: TensorInfo, x: Tensor, delta: Tensor) -> Tensor:
    """What a parameter's change adds to its module's output."""
    if tensor.name.endswith(".bias"):
        return delta
    if isinstance(owner, nn.Embedding):
        return F.embedding(x, delta)
    if isinstance(owner, RMSNorm):
        return F.rms_norm(x, (x.shape[-1],), delta, 1e-6)
    return F.linear(x, delta)


def _mean_square(x: Tensor | None) -> Tensor:
    assert x is not None
    return x.detach().double().square().mean()
