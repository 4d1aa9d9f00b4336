"""Sizes: how large a model's branches, attention's logits and logits are, for weights of no size.

Exact factors (factors.py) are seen at a few places. Wherever else a model multiplies by what moves
with its width or depth, what it gives is another size there. With a stream of size 1, weights of
std 1/sqrt(fan-in), gains of 1 and biases of 0, a model without such a factor gives the same sizes
at every width and depth. So recipes record those of the base, and plans compare.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from completedp.apply.attention import SeenAttention
from completedp.apply.model_map import SIZED, ModelMap, TensorInfo
from completedp.apply.multipliers import BUFFERS, is_for_multipliers, is_multiplier
from completedp.apply.own_scales import scale_of_table
from completedp.apply.settings import is_same_constant
from completedp.apply.structure import fans, is_norm
from completedp.apply.subject import SAME, CannotRunError, Subject, drawn, output_norms
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, Role, is_bias
from completedp.theory.scale import Scale

BEHIND = "the logits behind the last block"
"""Of a stream of size 1 there; `the logits` are those behind the last norm, which older recipes
have alone."""
_LOGITS = "logit|head|unembedding|tied_embedding|output_multiplier|dim_model_base"
_TABLES = {
    "embedding": "embeddings in the stream",
    "tied_embedding": "embeddings in the stream",
    "position": "positions in the stream",
}
_EXPLAINED = {
    "the attn branch": "attn|attention|qkv|key|query|residual|scale_depth",
    "the mlp branch": "mlp|expert|router|routed|ssm|residual|scale_depth",
    "attention's logits": "attn_logit|attention|qkv|key|query",
    "the logits": _LOGITS,
    BEHIND: _LOGITS,
    "embeddings in the stream": "(?<!un)emb",
    "positions in the stream": "(?<!un)emb|position",
}
"""By what is as large, what names of factors say that act on it."""
LEAST = " where it is smallest"
"""Of the blocks: noted where it is not as large as elsewhere."""
MOVED = 1.2
"""Sound models' sizes stay within 1.07 of each other over x8 in width, 1.13 where keys are queries;
and 1/sqrt(width) is seen from x1.5 on."""
DRAWS = 2
MASKED = -1e3
"""Logits below are those of what may not be seen."""
_NORMS = (Role.HIDDEN_NORM, Role.QK_NORM, Role.OUTPUT_NORM)


def sizes(model_map: ModelMap) -> dict[str, float]:
    """By what is as large, in words; nothing where the model does not run on a batch."""
    squares: dict[str, dict[int, list[float]]] = {}
    try:
        for draw in range(DRAWS):
            values = drawn(model_map, _neutral, seed=draw)
            ones = {
                name: torch.ones_like(values[name])
                for name in BUFFERS.values()
                if is_for_multipliers(values.get(name), name, model_map.depth)
            }
            with (
                torch.no_grad(),
                _without_multipliers(model_map),
                Subject(model_map, values | ones, _batch(model_map)) as subject,
            ):
                for name, layer, square in _squares(subject, DRAWS + draw):
                    squares.setdefault(name, {}).setdefault(layer, []).append(square)
    except CannotRunError:
        return {}
    found: dict[str, float] = {}
    for name, layers in squares.items():
        each = [math.sqrt(sum(squares) / len(squares)) for squares in layers.values()]
        least, most = min(each), max(each)
        if math.isfinite(most) and least > 0:
            # Blocks have the same weights here: those that are alike have the same size.
            found |= {name: most} | ({name + LEAST: least} if most > least * (1 + SAME) else {})
    return {f"{SIZED}{name}": size for name, size in found.items()}


def moved(here: Mapping[str, float], there: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The sizes that are others than at base, by what is as large: here, and at base.

    Not those that an exact factor explains, which are other constants of these.
    """
    found = {}
    for name in dict.fromkeys((*here, *there)):
        # Where no block is smaller than the others the smallest is as large as they are.
        largest = name.removesuffix(LEAST)
        one, other = (each.get(name, each.get(largest)) for each in (here, there))
        if not name.startswith(SIZED) or one is None or other is None:
            continue
        # Of two factors behind the last block, as of a norm and the head, one may undo the other.
        if largest == f"{SIZED}the logits" and all(f"{SIZED}{BEHIND}" in x for x in (here, there)):
            continue
        if not 1 / MOVED < one / other < MOVED and not _explained(largest, here, there):
            found[name.removeprefix(SIZED)] = one, other
    return found


def _explained(name: str, here: Mapping[str, float], there: Mapping[str, float]) -> bool:
    """Whether a factor moved that is known by its number, and acts on what is as large."""
    said = re.compile(_EXPLAINED[name.removeprefix(SIZED)])
    others = {k for k in (*here, *there) if not k.startswith(SIZED) and said.search(k)}
    return any(not is_same_constant(here.get(k, 1.0), there.get(k, 1.0)) for k in others)


def size_caution(model_map: ModelMap, recipe: Recipe, target: Scale) -> str | None:
    """What to say of a model whose sizes moved."""
    base = recipe.base
    changed = moved({**model_map.constants, **model_map.sizes}, recipe.constants or {})
    if not changed:
        return None
    what = ", ".join(
        f"{name} x{here / there:.3g} ({here:.3g}, at base {there:.3g})"
        for name, (here, there) in changed.items()
    )
    axes = {"width": (base.width, target.width), "depth": (base.depth, target.depth)}
    grew = " and ".join(f"{axis} {a} to {b}" for axis, (a, b) in axes.items() if a != b)
    return (
        f"with weights that keep sizes as they are, these moved{grew and f' from {grew}'}: {what}: "
        "the model's forward pass has a factor that is not the base's, on top of the plan, which "
        "does not undo it; set it to the base model's value"
    )


def _batch(model_map: ModelMap) -> int:
    """Sequences, an even number: narrow models vary more from one to another."""
    return 2 * min(16, max(2, 1024 // (model_map.structure.width or 1)))


def _neutral(
    parameter: nn.Parameter, owner: nn.Module, info: TensorInfo | None, noise: Tensor
) -> Tensor:
    """Weights that give numbers of size 1; vectors that change nothing."""
    is_vector = parameter.ndim < 2 or parameter.numel() == 1
    if parameter.numel() == 1 and fans(owner) is None:  # it multiplies, whatever it is called
        return torch.ones_like(noise)
    if info is None:
        is_vector |= is_norm(owner)
        fan_in = min(parameter.shape[-2:], default=1)
        return torch.ones_like(noise) if is_vector else noise / math.sqrt(max(1, fan_in))
    if is_bias(info.type):
        return torch.zeros_like(noise)
    if is_vector or info.role in _NORMS:
        return torch.full_like(noise, 1.0 - info.offset)
    return noise if info.role is Role.INPUT_EMBEDDING else noise / math.sqrt(info.width)


def _squares(subject: Subject, draw: int) -> Iterator[tuple[str, int, float]]:
    """Of what is as large: its name, its block, and its mean square."""
    if not subject.map.lists:  # another one may be between the tables and the first block
        yield from _embedded(subject, draw)
    for layer in range(1, len(subject.map.blocks) + 1):
        was = subject.stream(layer)
        generator = torch.Generator().manual_seed(draw)  # the same for every block
        subject.give(layer, torch.randn(was.shape, generator=generator).to(was.dtype))
        for branch in BRANCHES:
            if not subject.ends(layer, branch):
                continue
            alone = subject.scaled(layer, dict.fromkeys(BRANCHES, 0.0) | {branch: 1.0})
            with _AttentionLogits() as logits:
                added = subject.block(layer, **alone) - subject.stream(layer)
            yield f"the {branch} branch", layer, _mean_square(added)
            if branch == "attn" and logits.squares:
                yield "attention's logits", layer, sum(logits.squares) / len(logits.squares)
    yield from _logits(subject, draw)


def _embedded(subject: Subject, draw: int) -> Iterator[tuple[str, int, float]]:
    """What comes into the first block of tables whose rows have size 1: half of what differs there
    where they are their opposites, so that what is added to them is no part of it."""
    for what in dict.fromkeys(_TABLES.values()):
        tables = [t for t in subject.map if _TABLES.get(t.type) == what and t.name in subject.named]
        if not tables:
            continue
        generator = torch.Generator().manual_seed(draw)
        rows = {
            subject.named[table.name]: torch.randn(table.shape, generator=generator).sign()
            / _own(subject, table)
            for table in tables
        }
        one = subject.entering({**subject.values, **rows})
        other = subject.entering({**subject.values, **{name: -x for name, x in rows.items()}})
        yield what, 0, _mean_square(one - other) / 4


def _own(subject: Subject, table: TensorInfo) -> float:
    """What a table multiplies its rows by, which plans set right; of stand-ins for it nothing."""
    module = subject.map.structure.modules[table.name.rpartition(".")[0]]
    is_known = not any(buffer.is_meta for buffer in module.buffers(recurse=False))
    return (scale_of_table(module) if is_known else None) or 1.0


def _logits(subject: Subject, draw: int) -> Iterator[tuple[str, int, float]]:
    """The logits, of a stream of size 1 behind the last norm and behind the last block; not of a
    model whose output weight nobody knows."""
    if not any(t.role in (Role.OUTPUT_WEIGHT, Role.TIED_EMBEDDING) for t in subject.map):
        return
    norms = [path for path in output_norms(subject.map) if subject.last_calls.get(path)]
    modules = [subject.map.structure.modules[path] for path in norms]
    last = [] if subject.map.lists else subject.map.blocks[-1:]
    for name, places in (("the logits", modules), (BEHIND, last)):
        logits = _given_noise(subject, places, draw)
        if logits is not None and logits.ndim > 1:  # log-probabilities differ by a number for each
            yield name, 0, _mean_square(logits - logits.mean(-1, keepdim=True))


def _given_noise(subject: Subject, modules: list[nn.Module], draw: int) -> Tensor | None:
    """The logits where some modules give a stream of size 1."""

    def noise(module: nn.Module, args: Any, output: Any) -> Any:
        first, *rest = output if isinstance(output, tuple | list) else (output,)
        generator = torch.Generator().manual_seed(draw)
        first = torch.randn(first.shape, generator=generator).to(first.dtype)
        return (first, *rest) if isinstance(output, tuple | list) else first

    handles = [module.register_forward_hook(noise) for module in modules]
    try:
        return subject.logits(subject.values) if handles else None
    finally:
        for handle in handles:
            handle.remove()


class _AttentionLogits(SeenAttention):
    """Mean squares of what attention takes the softmax of, as far as it depends on the stream.

    Biases of positions do not, and are not of size 1: two halves of a batch have the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.squares: list[float] = []

    def fused(self, query: Tensor, key: Tensor, factor: float) -> None:
        if query.ndim > 3 and key.shape[-3] != query.shape[-3]:  # shared by several heads
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        self.written_out(query @ key.transpose(-2, -1) * factor)

    def written_out(self, logits: Tensor) -> None:
        half = len(logits) // 2
        one, other = logits[:half].float(), logits[half : 2 * half].float()
        kept = (one > MASKED) & (other > MASKED)
        if bool(kept.any()):
            self.squares.append(_mean_square((one - other)[kept]) / 2)


@contextmanager
def _without_multipliers(model_map: ModelMap) -> Iterator[None]:
    """Hooks of an earlier plan are no factors of the model's own."""
    kept = []
    for module in model_map.structure.modules.values():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            if any(is_multiplier(hook) for hook in hooks.values()):
                kept.append((hooks, dict(hooks)))
                for key in [key for key, hook in hooks.items() if is_multiplier(hook)]:
                    del hooks[key]
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)


def _mean_square(x: Tensor) -> float:
    return float(x.detach().double().square().mean())
