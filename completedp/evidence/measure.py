"""One short training run of a model, and the size of everything that moves in it.

For every module type, the root mean square (over the elements, and over the layers) of:

    initial    its output at initialisation, on a fixed batch
    change     how far that output has moved after some steps
    own        the part of it that its own parameters' change makes: (W_t - W_0) x_t for a matrix
    gradient   its parameters' gradient, over the later half of the steps; of a table that has a
               factor of its own, without what that grew by (apply/own_scales.py)

Of a tensor that a multiplier is folded into, as that of tied logits without a module is into the
norm before them, `own` and `gradient` are those of the tensor without it, which the rules speak of.

`own` tells tensors apart: a learning rate that is wrong for one role shows in that role's row,
while `change` mixes in what reaches a module from the modules before it. A tied embedding has two
rows: as what it gives the stream, and, called logits, as what makes those. What the model returns
has a change of its own where that is not just what its head gives.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from completedp.apply.heads import HeadSizes
from completedp.apply.model_map import TensorInfo
from completedp.apply.plan import Plan
from completedp.apply.structure import fans, is_norm
from completedp.common.warn import warn
from completedp.tasks.data import Batch, training_batches
from completedp.tasks.losses import logits_of
from completedp.tasks.task import BatchLoss, Task
from completedp.theory.roles import Role, is_bias

Sizes = dict[tuple[str, str], float]
"""(quantity, module type) -> root mean square."""
Seen = dict[nn.Module, tuple[Any, Tensor]]
"""Input and output of modules in one forward pass."""

STREAM = "stream"
"""The residual stream after the last block, in the place of a module type. (The mean over all
blocks falls with depth by itself: after l of L blocks a part of l/L has been added, and the mean of
its square is (1 + 1/L)(2 + 1/L)/6.)"""
BLOCKS = "blocks"
"""What all blocks together add to the stream, in the place of a module type."""
LOGITS = "logits"
"""What a tied embedding makes of the stream, in the place of a module type."""
OUTPUT = "output"
"""What the model returns, in the place of a module type: logits, classes, or a loss of its own.
Whatever it is, training has to move it by the same amount at every size. Its size at the start is
not looked at: log-probabilities, say, do not shrink with the width as logits do, and a factor that
is wrong shows in the change as well."""


def measure(
    task: Task, model: nn.Module, planned: Plan, *, examples: int, steps: int, seed: int
) -> Sizes:
    """Train for `steps` at constant rates in the model's precision, and measure.

    The size of its heads, where nothing told it before, is seen on the way (`planned.map`).
    """
    tensors, blocks = planned.map.tensors, planned.map.blocks
    optimizer = planned.optimizer()
    loss = task.batch_loss(model)
    batches = training_batches(task.data, examples, seed, next(model.parameters()).device)
    probe = next(batches)
    parameters = planned.map.parameters()
    at_start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with HeadSizes() as heads:
        before, returned = _capture(model, loss, probe, blocks, seed)
    planned.map.seen_head_dim = planned.map.seen_head_dim or heads.size
    squares: dict[str, list[Tensor]] = defaultdict(list)
    folded = {tensor.name: tensor.gain for tensor in planned.tensors}
    growth = {tensor.name: tensor.own_growth / tensor.gain for tensor in planned.tensors}
    with _seeded(seed, probe):
        for step in range(steps):
            loss(*next(batches)).total.backward()
            if 2 * step >= steps:
                for tensor in tensors:
                    if (grad := parameters[tensor.name].grad) is not None:
                        squares[tensor.type].append(_mean_square(grad / growth[tensor.name]))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    after, returns = _capture(model, loss, probe, blocks, seed)
    sizes: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for kind, values in squares.items():
        sizes["gradient", kind] = values
    for tensor, kind, owner in _uses(planned):
        start = at_start[tensor.name]
        delta = parameters[tensor.name].detach() - start
        delta /= folded[tensor.name]
        if _is_added(tensor, owner):
            sizes["own", kind].append(_mean_square(delta))
            sizes["initial", kind].append(_mean_square(start))
            continue
        if owner not in before or owner not in after:  # its parent uses its tensors itself
            continue
        if before[owner][1].shape != after[owner][1].shape:  # routed elsewhere
            continue
        if fans(owner) or is_norm(owner) or isinstance(owner, nn.Embedding):  # others may be curved
            moved = _own(owner, tensor, after[owner][0], delta)
            sizes["own", kind].append(_mean_square(moved))
        if not is_bias(tensor.type):
            sizes["initial", kind].append(_mean_square(before[owner][1]))
            change = after[owner][1] - before[owner][1]
            sizes["change", kind].append(_mean_square(change))
    for kind, start, end in (
        (STREAM, _stream(blocks, before), _stream(blocks, after)),
        (BLOCKS, _added(blocks, before), _added(blocks, after)),
        (OUTPUT, _beyond_head(planned, before, returned), _beyond_head(planned, after, returns)),
    ):
        if start is not None and end is not None and start.shape == end.shape:
            sizes["change", kind].append(_mean_square(end - start))
    return {key: math.sqrt(float(torch.stack(v).mean())) for key, v in sizes.items()}


def _uses(planned: Plan) -> Iterator[tuple[TensorInfo, str, nn.Module]]:
    """Every tensor with the module that uses it, and as what; a tied one with both."""
    found, modules = planned.map, planned.map.structure.modules
    for tensor in found:
        if tensor.role is Role.TIED_EMBEDDING and found.structure.tied:
            embedding, head = found.structure.tied
            yield tensor, tensor.type, modules[embedding.path]
            if head.path != embedding.path:
                yield tensor, LOGITS, modules[head.path]
        else:
            yield tensor, tensor.type, modules[tensor.name.rpartition(".")[0]]


def _stream(blocks: list[nn.Module], seen: Seen) -> Tensor | None:
    """After the last block, unless its parent calls its parts itself."""
    return seen[blocks[-1]][1] if blocks and blocks[-1] in seen else None


def _added(blocks: list[nn.Module], seen: Seen) -> Tensor | None:
    """What the blocks add to the stream, unless one does not read and write it."""
    parts = [seen[block] for block in blocks if block in seen]
    same = {x.shape if isinstance(x, Tensor) else None for part in parts for x in part}
    if len(parts) < len(blocks) or len(same) != 1 or None in same:
        return None
    return torch.stack([output - x for x, output in parts]).sum(0)


def _beyond_head(planned: Plan, seen: Seen, returned: Tensor | None) -> Tensor | None:
    """What the model returned, unless that is what its head gave, or a part of it."""
    head = planned.map.head
    owner = None if head is None else planned.map.structure.modules[head]
    if returned is None or owner not in seen:
        return returned
    same = returned.untyped_storage().data_ptr() == seen[owner][1].untyped_storage().data_ptr()
    return None if same else returned


@torch.no_grad()
def _capture(
    model: nn.Module, loss: BatchLoss, probe: Batch, blocks: list[nn.Module], seed: int
) -> tuple[Seen, Tensor | None]:
    """Input and output of every module that owns parameters, and of every block; and what the
    model returns.

    The model is called as its loss calls it. What it draws at random, such as dropout's masks, is
    the same each time.
    """
    seen: Seen = {}
    outputs: list[Any] = []
    with _hooks(model, blocks, seen), _seeded(seed, probe):
        # After all other hooks: what is measured is what the loss is given.
        handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        try:
            loss(*probe)
        finally:
            handle.remove()
    return seen, _readable(outputs)


def _readable(outputs: list[Any]) -> Tensor | None:
    """What a model returned last, as losses read it; a word where nobody can."""
    try:
        found = logits_of(outputs[-1])
        if found.is_floating_point():
            return found.detach()
    except (AttributeError, LookupError):
        pass
    why = f"it returns a {type(outputs[-1]).__name__}" if outputs else "its loss calls parts of it"
    warn(
        f"what the model does behind its head is not measured: {why}, in which nobody can find "
        "logits; let it return a tensor, a tuple that begins with one, or something with .logits",
    )
    return None


@contextmanager
def _seeded(seed: int, batch: Batch) -> Iterator[None]:
    """What is drawn inside depends on the seed, and nothing outside on what is drawn inside."""
    device = batch[0].device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _hooks(model: nn.Module, blocks: list[nn.Module], seen: Seen) -> Iterator[None]:
    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output := _first(output), Tensor):
            seen[module] = (inputs[0] if inputs else None, output.detach())

    watched = [m for m in model.modules() if list(m.parameters(recurse=False))]
    # Before the plan's own hooks, if any: sizes are those without multipliers.
    handles = [m.register_forward_hook(keep, prepend=True) for m in (*watched, *blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _own(owner: nn.Module, tensor: TensorInfo, x: Tensor, delta: Tensor) -> Tensor:
    """What a parameter's change adds to its module's output, which is linear in its parameters."""
    if is_bias(tensor.type):
        return delta
    key = tensor.name.rpartition(".")[2]
    nothing = {name: torch.zeros_like(p) for name, p in owner.named_parameters(recurse=False)}
    bare = copy.copy(owner)
    bare._forward_hooks = OrderedDict()  # multipliers
    bare._forward_pre_hooks = OrderedDict()
    changed = functional_call(bare, nothing | {key: delta}, (x,))
    return _first(changed) - _first(functional_call(bare, nothing, (x,)))


def _is_added(tensor: TensorInfo, owner: nn.Module) -> bool:
    """Whether its owner adds it to the stream as it is: learnt positions, a class token."""
    is_module = isinstance(owner, nn.Embedding) or fans(owner) is not None
    return tensor.role is Role.INPUT_EMBEDDING and not is_module


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _mean_square(x: Tensor) -> Tensor:
    return x.detach().double().square().mean()
