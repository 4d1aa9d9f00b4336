"""Factors: what a model's own forward pass multiplies by, measured while it runs.

Of embeddings, branches, what the head reads and logits, where that is one number; of linear layers
and tables that compute in a way of their own; of attention's logits. One that moves with the size
acts on top of the rules, so recipes record those of the base (`ModelMap.constants`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from completedp.apply.own_scales import scale_of_table
from completedp.apply.subject import SAME, Subject, relative
from completedp.theory.roles import BRANCHES


def own_factors(subject: Subject) -> dict[str, float]:
    """By what is multiplied, in words; those of 1 left out."""
    found = {
        **dict(_of_forward_pass(subject)),
        **dict(_of_modules(subject)),
        **dict(_of_attention(subject)),
    }
    return {name: factor for name, factor in found.items() if abs(factor - 1) > SAME}


def _of_forward_pass(subject: Subject) -> Iterator[tuple[str, float]]:
    outputs, last = subject.outputs, len(subject.map.blocks)
    pairs = {
        "embeddings": _embedded(subject),
        **{f"the {branch} branch": _added(subject, 1, branch) for branch in BRANCHES},
        "what the head reads": (outputs.get("output_norm"), outputs.get("read")),
        "logits": (outputs.get("head"), outputs.get("logits")),
    }
    found = {name: factor_of(*pair) for name, pair in pairs.items()}
    for branch in BRANCHES:  # which may have another in every block
        first, other = found[f"the {branch} branch"], factor_of(*_added(subject, last, branch))
        if first is not None and other is not None and abs(other / first - 1) > SAME:
            found[f"the {branch} branch of the last block"] = other
    yield from ((name, factor) for name, factor in found.items() if factor is not None)
    if (times := max(subject.times.values())) > 1:
        yield "calls of a block", float(times)


def _of_modules(subject: Subject) -> Iterator[tuple[str, float]]:
    """What linear layers and tables with a forward pass of their own make of their weights; of
    several of a type the first."""
    types = {tensor.name: tensor.type for tensor in subject.map}
    for path, (given, gave) in subject.inside.items():
        kind, module = types.get(f"{path}.weight"), subject.map.structure.modules[path]
        if kind is None:
            continue
        weight = subject.values[subject.named[f"{path}.weight"]].detach()
        if isinstance(module, nn.Embedding):
            factor = None if scale_of_table(module) else _of_table(weight, given, gave)
        else:
            bias = subject.values.get(subject.named.get(f"{path}.bias", ""))
            factor = _of_linear(weight, bias, given, gave)
        if factor is not None:
            yield f"what {kind} gives", factor


def _of_table(weight: Tensor, given: Tensor, gave: Tensor) -> float | None:
    """What a table's rows are multiplied by; of one that is given something else nothing, such as
    a table of positions that makes them of a mask."""
    if given.is_floating_point() or not 0 <= int(given.min()) <= int(given.max()) < len(weight):
        return None
    return factor_of(F.embedding(given.long(), weight), gave)


def _of_linear(weight: Tensor, bias: Tensor | None, given: Tensor, gave: Tensor) -> float | None:
    """What a product is multiplied by, before its bias is added or after."""
    if given.shape[-1:] != weight.shape[1:] or gave.shape[-1:] != weight.shape[:1]:
        return None
    added = 0.0 if bias is None else bias.detach()
    product = F.linear(given.to(weight.dtype), weight)
    ways = ((product, gave - added), (product + added, gave))
    return next((f for way in ways if (f := factor_of(*way)) is not None), None)


def _of_attention(subject: Subject) -> Iterator[tuple[str, float]]:
    if len(subject.heads.factors) == 1:
        yield "attention's logits", next(iter(subject.heads.factors))


def factor_of(before: Tensor | None, after: Tensor | None) -> float | None:
    """The one number that makes one of the other; None where there is none."""
    if before is None or after is None or before.shape != after.shape:
        return None
    factor = float((after * before).sum() / before.pow(2).sum())
    return factor if factor and relative(after - factor * before, after) < SAME else None


def _embedded(subject: Subject) -> tuple[Tensor | None, Tensor | None]:
    """What the table of tokens gives, and what of it comes into the first block: where the table
    is doubled, what is more there, so that positions are no part of it."""
    found = subject.doubled(f"{subject.map.structure.embedding}.weight")
    return (subject.outputs.get("embedding"), found[0]) if found else (None, None)


def _added(subject: Subject, layer: int, branch: str) -> tuple[Tensor | None, Tensor | None]:
    """What the module at the end of a block's branch gives, and what is added of it. A gain that
    has no module of its own multiplies what the last linear map gives."""
    ends = subject.ends(layer, branch)
    gain = subject.values.get(subject.named.get(ends[0], "")) if ends else None
    if gain is not None:
        last = (t.name for _, t in subject.tensors(layer) if t.last_map == branch)
        ends = list(dict.fromkeys(name.rpartition(".")[0] for name in last))
    if len(ends) != 1:
        return None, None
    given: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        given.extend(o for o in [output] if isinstance(o, Tensor))

    handle = subject.map.structure.modules[ends[0]].register_forward_hook(note)
    try:
        alone = subject.scaled(layer, dict.fromkeys(BRANCHES, 0.0) | {branch: 1.0})
        after = subject.block(layer, **alone).detach() - subject.stream(layer)
    finally:
        handle.remove()
    if len(given) != 1:
        return None, None
    return given[0].detach() * (1.0 if gain is None else gain.detach()), after
