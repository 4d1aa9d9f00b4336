"""Multipliers in the forward pass: of the residual branches and the logits, in anyone's model.

There are three ways to carry one, and all train the same function:

- `buffer`: the model multiplies by a buffer of its own, as the reference model does;
- `fold`: into the weights that end the branch. With W' = c W and Adam's symmetry, initial values
  times c, lr times c, eps / c and weight decay / c train c W without a multiplier. Nothing of the
  model changes, so it saves, loads and serves as it always did;
- `hook`: a forward hook on the module that ends the branch. For branches that end in a norm, which
  would undo a factor of the weights before it. Hooks are not saved with a model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from completedp.apply.classify import TensorInfo, depth_of
from completedp.apply.structure import Structure, fans, is_norm, unwrapped
from completedp.common.errors import CompletedpError
from completedp.theory.roles import BRANCHES

if TYPE_CHECKING:
    from completedp.apply.plan import Plan, TensorPlan

Way = Literal["buffer", "fold", "hook"]
Wanted = Literal["auto", "buffer", "fold", "hook"]
OUTPUT = "output"
_BUFFERS = {
    "attn": "residual_multipliers",
    "mlp": "residual_multipliers",
    OUTPUT: "output_multiplier",
}


def ends(info: TensorInfo) -> str | None:
    """The branch that a tensor is the last linear map of; `output` for the logits."""
    if info.type in ("unembedding", "output_bias"):
        return OUTPUT
    kind = info.type.removesuffix("_bias")
    return kind.removesuffix("_out") if kind in ("attn_out", "mlp_out") else None


def choose_ways(model: nn.Module, tensors: Sequence[TensorInfo], wanted: str) -> dict[str, Way]:
    """How each branch's multiplier is carried: as wanted, or as fits the model."""
    if wanted not in get_args(Wanted):
        raise CompletedpError(
            f"multipliers = {wanted!r}: choose from {', '.join(get_args(Wanted))}"
        )
    inner = unwrapped(model)
    depth = depth_of(list(tensors))
    norms = {branch: path for (_, branch), path in _last_norms(model, tensors).items()}
    ways: dict[str, Way] = {}
    for branch, name in _BUFFERS.items():
        buffer, shape = getattr(inner, name, None), () if branch == OUTPUT else (depth, 2)
        has_buffer = isinstance(buffer, Tensor) and buffer.shape == shape
        if wanted == "buffer" and not has_buffer and depth:
            raise CompletedpError(
                f"{type(inner).__name__} has no buffer {name} of shape {list(shape)} that its "
                'forward pass multiplies by: use multipliers="auto"'
            )
        if wanted == "fold" and branch in norms:
            raise CompletedpError(
                f"the {branch} branch ends in a norm ({norms[branch]}), which undoes a factor of "
                'the weights before it: use multipliers="hook"'
            )
        fitting: Way = "buffer" if has_buffer else "hook" if branch in norms else "fold"
        ways[branch] = fitting if wanted == "auto" else wanted  # type: ignore[assignment]
    return ways


def _structure(model: nn.Module, tensors: Sequence[TensorInfo]) -> Structure:
    return Structure(model, {t.name for t in tensors if t.how == "override"})


def _last_norms(model: nn.Module, tensors: Sequence[TensorInfo]) -> dict[tuple[int, str], str]:
    """The norm that ends a branch, by block and branch, also one without a gain."""
    found = _structure(model, tensors).norms_without_gains
    for tensor in tensors:
        if tensor.layer and tensor.type.endswith("_post_norm"):
            branch = tensor.type.removesuffix("_post_norm")
            found[tensor.layer, branch] = tensor.name.rpartition(".")[0]
    return found


def check_not_frozen(
    model: nn.Module,
    tensors: Sequence[TensorInfo],
    multipliers: Sequence[tuple[float, float]],
) -> None:
    """Frozen tensors have no plan, so a multiplier of theirs would be lost.

    A vector of neither a norm nor a linear layer, such as experts' balancing bias, ends no branch.
    """
    if all(value == 1.0 for pair in multipliers for value in pair):
        return
    for place, parameter in _structure(model, tensors).places():
        may_end = min(parameter.shape, default=0) > 1 and parameter.ndim > 1
        may_end |= is_norm(place.owner) or fans(place.owner) is not None
        if place.layer is not None and not parameter.requires_grad and may_end:
            raise CompletedpError(
                f"{place.name} is frozen, and its block's residual multipliers could not be "
                "carried by it: train every tensor of the blocks, or give the model a "
                "residual_multipliers buffer"
            )


def fold(tensor: TensorPlan, ways: Mapping[str, Way], independent_decay: bool) -> TensorPlan:
    """A tensor's plan with its multiplier taken into its values, where that is the way."""
    factor = tensor.multiplier
    if ways.get(ends(tensor.info) or "") != "fold" or factor == 1.0:
        return tensor
    std = None if tensor.init_std is None else tensor.init_std * factor
    # Independent decay is a part of the weight each step, whatever the weight's size.
    decay = 1.0 if independent_decay else 1.0 / factor
    terms = {"lr": factor, "eps": 1.0 / factor, "weight_decay": decay, "init_std": factor}
    trace = {
        name: (*steps, ("folded multiplier", terms[name])) if name in terms else steps
        for name, steps in tensor.trace.items()
        if name != "multiplier"
    }
    return replace(
        tensor,
        init_std=std,
        lr=tensor.lr * factor,
        eps=tensor.eps / factor,
        weight_decay=tensor.weight_decay * decay,
        multiplier=1.0,
        trace=trace | {"multiplier": (("folded into its values", 1.0),)},
    )


@torch.no_grad()
def attach(plan: Plan) -> None:
    """Set the buffers and hooks of the plan's model."""
    model = unwrapped(plan.model)
    for name, value in plan.buffers.items():
        buffer = getattr(model, name, None)
        if isinstance(buffer, Tensor):
            buffer.copy_(torch.tensor(value, dtype=torch.float64))
    modules = _structure(plan.model, [t.info for t in plan.tensors]).modules
    changed = False
    for module in modules.values():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [k for k, hook in hooks.items() if isinstance(hook, _Multiply)]:
                del hooks[key]  # of an earlier plan
                changed = True
    for path, factor in hooked(plan).items():
        if path == _head_path(plan):
            # What it reads, and not what it gives: a bias on the logits is not multiplied.
            modules[path].register_forward_pre_hook(_MultiplyInput(factor))
        else:
            modules[path].register_forward_hook(_MultiplyOutput(factor))
        changed = True
    if changed and "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # a program compiled before would go on without these hooks


def hooked(plan: Plan) -> dict[str, float]:
    """Modules whose outputs hooks multiply: a branch's last norm, where it has none, linear."""
    if "hook" not in plan.ways.values():
        return {}
    infos = [tensor.info for tensor in plan.tensors]
    modules = _structure(plan.model, infos).modules
    last_norms = _last_norms(plan.model, infos)
    found = {
        path: plan.residual_multipliers[layer - 1][BRANCHES.index(branch)]
        for (layer, branch), path in last_norms.items()
        if plan.ways[branch] == "hook"
    }
    for tensor in plan.tensors:
        info, path = tensor.info, tensor.name.rpartition(".")[0]
        branch = ends(info)
        if branch is None or plan.ways[branch] != "hook" or (info.layer, branch) in last_norms:
            continue
        if isinstance(modules[path.rpartition(".")[0]], nn.MultiheadAttention):
            path = path.rpartition(".")[0]  # which uses its last layer's weight without calling it
        if branch == OUTPUT:
            found[path] = plan.output_multiplier
        elif info.layer is not None:
            found[path] = plan.residual_multipliers[info.layer - 1][BRANCHES.index(branch)]
    return {path: factor for path, factor in found.items() if factor != 1.0}


def _head_path(plan: Plan) -> str | None:
    heads = (t.name for t in plan.tensors if t.info.type == "unembedding")
    return next((name.rpartition(".")[0] for name in heads), None)


@dataclass(frozen=True)
class _Multiply:
    """A hook with a factor."""

    factor: float


class _MultiplyInput(_Multiply):
    """A forward pre-hook that multiplies what a linear map reads."""

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return (inputs[0] * self.factor, *inputs[1:])


class _MultiplyOutput(_Multiply):
    """A forward hook that multiplies what a module gives; of a tuple, what comes first."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return output * self.factor
        if not isinstance(output, tuple) or not isinstance(output[0], Tensor):
            raise CompletedpError(
                f"{type(module).__name__} ends a residual branch and gives a "
                f"{type(output).__name__}, which a hook cannot multiply"
            )
        bias = getattr(module, "bias", None)  # Megatron's linear layers give it apart
        rest = (x * self.factor if x is bias and x is not None else x for x in output[1:])
        return (output[0] * self.factor, *rest)
