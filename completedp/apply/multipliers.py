"""Multipliers in the forward pass: of the residual branches and the logits, in anyone's model.

There are three ways to carry one, and all train the same function:

- `buffer`: the model multiplies by a buffer of its own, as the reference model does;
- `fold`: into the weights that end the branch. With W' = c W and Adam's symmetry, initial values
  times c, lr times c, eps / c and weight decay / c train c W without a multiplier; what another
  optimizer has changes by the power of c that its description says. Nothing of the model changes,
  so it saves, loads and serves as it always did;
- `hook`: a forward hook on the module that ends the branch. For branches that end in a norm, which
  would undo a factor of the weights before it. Hooks are not saved with a model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from completedp.apply.model_map import ModelMap
from completedp.apply.structure import unwrapped
from completedp.apply.tensors import PlanNumbers, TensorPlan, Way
from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import LR, OPTIMIZERS, WEIGHT_DECAY, Optimizer
from completedp.theory.roles import BRANCHES
from completedp.theory.value import Value

Wanted = Literal["auto", "buffer", "fold", "hook"]
OUTPUT = "output"
_BUFFERS = {
    "attn": "residual_multipliers",
    "mlp": "residual_multipliers",
    OUTPUT: "output_multiplier",
}


def choose_ways(model_map: ModelMap, wanted: str) -> dict[str, Way]:
    """How each branch's multiplier is carried: as wanted, or as fits the model."""
    if wanted not in get_args(Wanted):
        raise CompletedpError(
            f"multipliers = {wanted!r}: choose from {', '.join(get_args(Wanted))}"
        )
    inner, depth = unwrapped(model_map.model), model_map.depth
    norms = {branch: path for (_, branch), path in model_map.last_norms.items()}
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


def fold(tensor: TensorPlan, ways: Mapping[str, Way]) -> TensorPlan:
    """A tensor's plan with its multiplier taken into its values, where that is the way."""
    if ways.get(tensor.info.ends or "") != "fold" or tensor.multiplier == 1.0:
        return tensor
    optimizer, decay_follows = OPTIMIZERS[tensor.optimizer], not tensor.independent_decay
    return replace(tensor, values=folded(tensor.values, optimizer, decay_follows=decay_follows))


def folded(
    values: Mapping[str, Value], optimizer: Optimizer, *, decay_follows: bool
) -> dict[str, Value]:
    """The values of c W, for those of W with a multiplier c.

    `decay_follows` where decay is a multiple of lr; elsewhere it is a part of the weight each step,
    whatever the weight's size.
    """
    factor, label = values["multiplier"].target, "folded multiplier"
    new = dict(values)
    for knob in optimizer.knobs:
        value = values[knob.name]
        if knob.power > 0:
            new[knob.name] = value.times(label, factor**knob.power)
        elif knob.power < 0:
            new[knob.name] = value.over(label, factor**-knob.power)
        if knob.name == LR and decay_follows and WEIGHT_DECAY in values:  # their product stays
            decay = values[WEIGHT_DECAY]
            new[WEIGHT_DECAY] = decay.times(label, 1.0 / factor**knob.power)
    if "init_std" in values:
        new["init_std"] = values["init_std"].times(label, factor)
    done = (("folded into its values", 1.0),)
    new["multiplier"] = Value(base=values["multiplier"].base, target=1.0, trace=done)
    return new


@torch.no_grad()
def attach(plan: PlanNumbers) -> None:
    """Set the buffers and hooks of the plan's model."""
    model = unwrapped(plan.model)
    for name, value in plan.buffers.items():
        buffer = getattr(model, name, None)
        if isinstance(buffer, Tensor):
            buffer.copy_(torch.tensor(value, dtype=torch.float64))
    modules = plan.map.structure.modules
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


def hooked(plan: PlanNumbers) -> dict[str, float]:
    """Modules whose outputs hooks multiply: a branch's last norm, where it has none, linear."""
    if "hook" not in plan.ways.values():
        return {}
    modules, last_norms = plan.map.structure.modules, plan.map.last_norms
    found = {
        path: plan.residual_multipliers[layer - 1][BRANCHES.index(branch)]
        for (layer, branch), path in last_norms.items()
        if plan.ways[branch] == "hook"
    }
    for tensor in plan.tensors:
        info, path = tensor.info, tensor.name.rpartition(".")[0]
        branch = info.ends
        if branch is None or plan.ways[branch] != "hook" or (info.layer, branch) in last_norms:
            continue
        if isinstance(modules[path.rpartition(".")[0]], nn.MultiheadAttention):
            path = path.rpartition(".")[0]  # which uses its last layer's weight without calling it
        if branch == OUTPUT:
            found[path] = plan.output_multiplier
        elif info.layer is not None:
            found[path] = plan.residual_multipliers[info.layer - 1][BRANCHES.index(branch)]
    return {path: factor for path, factor in found.items() if factor != 1.0}


def _head_path(plan: PlanNumbers) -> str | None:
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
