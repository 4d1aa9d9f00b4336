"""Multipliers in the forward pass: of the residual branches and the logits, in anyone's model.

There are four ways to carry one, and all train the same function:

- `buffer`: the model multiplies by a buffer of its own, as the reference model does;
- `setting`: the model's config has a scale of its logits (Cohere, Granite), which is set;
- `fold`: into what is last in the branch. With W' = c W and Adam's symmetry, initial values
  times c, lr times c, eps / c and weight decay / c train c W without a multiplier; what another
  optimizer has changes by the power of c that its description says. A norm at the end of a branch
  would undo a factor of the weights before it: there the norm's own gain and bias are W. So are
  the output norm's for tied embeddings, whose logits have a factor that the input does not have.
  Nothing of the model changes, so it saves, loads and serves as it always did;
- `hook`: a forward hook on the module that ends the branch. For what cannot be folded: a norm
  without a gain, or one that stores gain - 1 and decays, since decay takes c W to 0 and the stored
  c (1 + w) - 1 to the gain 1. Hooks are not saved with a model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard, get_args

import torch
from torch import Tensor, nn

from completedp.apply.model_map import ModelMap
from completedp.apply.norms import gives_in_proportion
from completedp.apply.settings import config_of, logit_scale, set_everywhere, setting
from completedp.apply.structure import has_vectors_alone, unwrapped
from completedp.apply.tensors import PlanNumbers, TensorPlan, Way
from completedp.common.errors import CompletedpError, ModelWarning
from completedp.common.warn import warn
from completedp.theory.optimizers import LR, OPTIMIZERS, WEIGHT_DECAY
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, Role, is_bias
from completedp.theory.value import Value

Wanted = Literal["auto", "buffer", "fold", "hook"]
OUTPUT = "output"
FOLDED = "folded multiplier"
"""What a value's trace calls it."""
BUFFERS = {
    "attn": "residual_multipliers",
    "mlp": "residual_multipliers",
    OUTPUT: "output_multiplier",
}
"""Of a model's own, by the branch whose multiplier they are."""


def shape_of(name: str, depth: int) -> tuple[int, ...]:
    """The shape of a buffer that a model may have for multipliers."""
    return () if name == BUFFERS[OUTPUT] else (depth, 2)


def is_for_multipliers(buffer: object, name: str, depth: int) -> TypeGuard[Tensor]:
    """Whether a buffer of that name is for multipliers: one of another shape, or of whole numbers,
    is the model's own, as a parameter is."""
    if not isinstance(buffer, Tensor) or isinstance(buffer, nn.Parameter):
        return False
    is_one = name in BUFFERS.values() and buffer.is_floating_point()
    return is_one and buffer.shape == shape_of(name, depth)


def choose_ways(
    model_map: ModelMap, tensors: Sequence[TensorPlan], recipe: Recipe, wanted: str
) -> dict[str, Way]:
    """How each branch's multiplier is carried: as wanted, or as fits the model."""
    if wanted not in get_args(Wanted):
        raise CompletedpError(
            f"multipliers = {wanted!r}: choose from {', '.join(get_args(Wanted))}"
        )
    inner, depth = unwrapped(model_map.model), model_map.depth
    ways: dict[str, Way] = {}
    for branch, name in BUFFERS.items():
        buffer = getattr(inner, name, None)
        has_buffer = is_for_multipliers(buffer, name, depth)
        if branch == OUTPUT and has_buffer:
            _say_overwritten(inner, name, buffer)
        if wanted == "buffer" and not has_buffer and depth:
            raise CompletedpError(
                f"{type(inner).__name__} has no buffer {name} of shape "
                f"{list(shape_of(name, depth))} that its forward pass multiplies by: "
                'use multipliers="auto"'
            )
        why_not = why_not_folded(branch, model_map, tensors)
        if wanted == "fold" and why_not:
            raise CompletedpError(f'{why_not}: use multipliers="hook"')
        if wanted != "auto":
            ways[branch] = wanted  # type: ignore[assignment]
        elif has_buffer:
            ways[branch] = "buffer"
        elif branch == OUTPUT and _own_logit_scale(model_map, recipe):
            ways[branch] = "setting"
        else:
            ways[branch] = "hook" if why_not else "fold"
    tied = any(tensor.info.role is Role.TIED_EMBEDDING for tensor in tensors)
    if ways[OUTPUT] == "hook" and tied and model_map.head is None:
        # A hook could not tell the embedding's use for the input from that for the output.
        why_not = why_not_folded(OUTPUT, model_map, tensors)
        if model_map.structure.tied or why_not:
            fold = "" if why_not else 'use multipliers="fold", or '
            raise CompletedpError(
                "the logits are made by the embedding's own module, whose use for the input a hook "
                f"cannot tell from that for the output: {fold}give the head a module of its own"
            )
        ways[OUTPUT] = "fold"
    _check_apart(model_map, ways)
    return ways


def fold(
    tensors: Sequence[TensorPlan], model_map: ModelMap, ways: Mapping[str, Way]
) -> list[TensorPlan]:
    """Tensors' plans with the multipliers taken into their values, where that is the way."""
    tied = next((t for t in tensors if t.info.role is Role.TIED_EMBEDDING), None)
    if tied is not None and ways[OUTPUT] == "fold":
        last = {tensor.name for tensor in of_last_norm(tensors, model_map)}
        return [
            _moved(tied, "the output norm")
            if tensor is tied
            else _fold(_with_multiplier(tensor, tied))
            if tensor.name in last
            else _fold_branch(tensor, model_map, ways)
            for tensor in tensors
        ]
    return [_fold_branch(tensor, model_map, ways) for tensor in tensors]


def _fold_branch(tensor: TensorPlan, model_map: ModelMap, ways: Mapping[str, Way]) -> TensorPlan:
    branch = model_map.ends(tensor.info)
    return _fold(tensor) if branch is not None and ways[branch] == "fold" else tensor


def _fold(tensor: TensorPlan) -> TensorPlan:
    if tensor.multiplier == 1.0:
        return tensor
    return replace(tensor, values=folded(tensor), gain=tensor.gain * tensor.multiplier)


def _with_multiplier(tensor: TensorPlan, other: TensorPlan) -> TensorPlan:
    return replace(tensor, values={**tensor.values, "multiplier": other.values["multiplier"]})


def _moved(tensor: TensorPlan, where: str) -> TensorPlan:
    """A tensor whose multiplier another one carries."""
    if tensor.multiplier == 1.0:
        return tensor
    done = Value(base=1.0, target=1.0, trace=((f"folded into {where}", 1.0),))
    return replace(tensor, values={**tensor.values, "multiplier": done})


def why_not_folded(branch: str, model_map: ModelMap, tensors: Sequence[TensorPlan]) -> str | None:
    """What keeps a branch's multiplier from being folded; None where nothing does."""
    if branch == OUTPUT:
        if not any(tensor.info.role is Role.TIED_EMBEDDING for tensor in tensors):
            return None
        last = of_last_norm(tensors, model_map)
        what, norms = "the logits of tied embeddings", {_owner(tensor) for tensor in last}
        other = next((t for t in tensors if t.info.role is Role.OUTPUT_WEIGHT), None)
        if other is not None:
            return (
                f"{what} cannot be multiplied at the norm before them, which {other.name} may read "
                "too"
            )
        modules = model_map.structure.modules
        trained = [name for path in norms for name in modules[path]._parameters]
        if len(norms) != 1 or len(trained) != len(last) or all(is_bias(t.info.type) for t in last):
            return (
                f"{what} have no norm before them, of one gain that is trained, to be folded into"
            )
    else:
        last = [tensor for tensor in tensors if model_map.ends(tensor.info) == branch]
        what, gains = f"the {branch} branch", {_owner(t) for t in last if not is_bias(t.info.type)}
        for (_, other), norm in model_map.last_norms.items():
            if other == branch and norm.path not in gains:
                return (
                    f"{what} ends in a norm ({norm.path}) without a gain, which undoes a factor "
                    "of the weights before it"
                )
    for path in dict.fromkeys(map(_owner, last)):
        module = model_map.structure.modules[path]
        offsets = {_key(t): t.info.offset for t in last if _owner(t) == path}
        if has_vectors_alone(module) and not gives_in_proportion(module, offsets):
            return (
                f"{what} ends in {path} ({type(module).__name__}), whose output is not in "
                "proportion to what it has to be folded into"
            )
    for tensor in last:
        if tensor.info.offset and tensor.knobs.get(WEIGHT_DECAY):
            return (
                f"{what} has {tensor.name} at its end, which stores gain - 1, and weight decay "
                "takes that to 0 whatever is folded into it (a recipe's no_decay can leave out "
                f"{tensor.info.role})"
            )
    return None


def of_last_norm(tensors: Sequence[TensorPlan], model_map: ModelMap) -> list[TensorPlan]:
    """Those of the norm before the logits; an override may call the embedding's an output norm."""
    norms = [tensor for tensor in tensors if tensor.info.role is Role.OUTPUT_NORM]
    return [each for each in norms if not model_map.structure.norms_embedding(_owner(each))]


def _owner(tensor: TensorPlan) -> str:
    return tensor.name.rpartition(".")[0]


def _key(tensor: TensorPlan) -> str:
    return tensor.name.rpartition(".")[2]


def _own_logit_scale(model_map: ModelMap, recipe: Recipe) -> bool:
    """Whether tied logits can be multiplied by a setting, whose value at base is known."""
    own = logit_scale(model_map.model) if model_map.structure.tied else None
    return own is not None and f"config.{own[0]}" in (recipe.constants or {})


def folded(tensor: TensorPlan) -> dict[str, Value]:
    """The values of c W, for those of W with a multiplier c."""
    multiplier = tensor.values["multiplier"]
    new = rescaled(tensor, multiplier.target, FOLDED)
    done = (("folded into its values", 1.0),)
    new["multiplier"] = Value(base=multiplier.base, target=1.0, trace=done)
    return new


def rescaled(tensor: TensorPlan, factor: float, label: str) -> dict[str, Value]:
    """The values of c W, for those of W: what trains the same function where W was multiplied by
    c. Decay is a multiple of lr; where it is independent it is a part of the weight each step,
    whatever the weight's size."""
    new = dict(tensor.values)
    for knob in OPTIMIZERS[tensor.optimizer].knobs:
        value = tensor.values[knob.name]
        if knob.power > 0:
            new[knob.name] = value.times(label, factor**knob.power)
        elif knob.power < 0:
            new[knob.name] = value.over(label, factor**-knob.power)
        if knob.name == LR and not tensor.independent_decay and WEIGHT_DECAY in tensor.values:
            decay = tensor.values[WEIGHT_DECAY]  # the product of the two stays
            new[WEIGHT_DECAY] = decay.times(label, 1.0 / factor**knob.power)
    if "init_std" in tensor.values:
        new["init_std"] = tensor.values["init_std"].times(label, factor)
    return new


def _say_overwritten(model: nn.Module, name: str, buffer: Tensor) -> None:
    """A lone number may be a factor of the model's own, of the same name."""
    if buffer.is_meta or type(model).__module__.startswith("completedp.") or buffer.item() == 1:
        return
    warn(
        f"the buffer {name} holds {buffer.item():g}, and the plan's multiplier takes its place: if "
        "it is a factor of the model's own, give it another name",
        ModelWarning,
    )


@torch.no_grad()
def attach(plan: PlanNumbers) -> None:
    """Set the buffers and hooks of the plan's model."""
    model = unwrapped(plan.model)
    for name, value in plan.buffers.items():
        buffer = getattr(model, name, None)
        if is_for_multipliers(buffer, name, plan.map.depth):
            buffer.copy_(torch.tensor(value, dtype=torch.float64))
    for name, value in settings(plan).items():
        set_everywhere(model, name, value)
    modules = plan.map.structure.modules
    changed = False
    for module in modules.values():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [k for k, hook in hooks.items() if isinstance(hook, _Multiply)]:
                del hooks[key]  # of an earlier plan
                changed = True
    for path, factor in hooked(plan).items():
        if path == plan.map.head:
            # What it reads, and not what it gives: a bias on the logits is not multiplied.
            modules[path].register_forward_pre_hook(_MultiplyInput(factor))
        else:
            modules[path].register_forward_hook(MultiplyOutput(factor))
        changed = True
    if changed and "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # a program compiled before would go on without these hooks


def not_attached(plan: PlanNumbers) -> Iterator[str]:
    """Which multipliers the forward pass does not have as planned, in words."""
    model, call = unwrapped(plan.model), "call plan.attach()"
    for path, factor in hooked(plan).items():
        module = plan.map.structure.modules[path]
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if [hook.factor for hook in hooks if isinstance(hook, _Multiply)] != [factor]:
            yield f"{path} has no hook that multiplies by {factor:.6g}: {call}"
    for name, value in plan.buffers.items():
        buffer, planned = getattr(model, name, None), torch.tensor(value, dtype=torch.float64)
        if is_for_multipliers(buffer, name, plan.map.depth) and not buffer.is_meta:
            held = buffer.detach().cpu().double()
            if not torch.allclose(held, planned, rtol=1e-6):
                yield f"the buffer {name} does not hold the planned multipliers: {call}"
    for name, value in settings(plan).items():
        if not math.isclose(found := setting(config_of(model), name, math.nan), value):
            yield f"config.{name} is {found:g}, planned {value:g}: {call}"


def hooked(plan: PlanNumbers) -> dict[str, float]:
    """Modules whose outputs hooks multiply, with the factors."""
    if "hook" not in plan.ways.values():
        return {}
    places = hook_places(plan.map)
    found = {
        path: plan.residual_multipliers[layer - 1][BRANCHES.index(branch)]
        for path, (layer, branch) in places.items()
        if layer is not None and plan.ways[branch] == "hook"
    }
    if plan.ways[OUTPUT] == "hook" and plan.map.head is not None:
        found[plan.map.head] = plan.output_multiplier
    return {path: factor for path, factor in found.items() if factor != 1.0}


def hook_places(model_map: ModelMap) -> dict[str, tuple[int | None, str]]:
    """Modules that a hook may multiply at, with block and branch: a branch's last norm, where it
    has none, linear; and the head. None that does more than to end a branch."""
    modules, no_places = model_map.structure.modules, set(_without_a_place(model_map))
    found: dict[str, tuple[int | None, str]] = {
        norm.path: (norm.layer, branch)
        for (_, branch), norm in model_map.last_norms.items()
        if norm.path not in no_places
    }
    for info in model_map:
        path, branch = info.name.rpartition(".")[0], model_map.ends(info)
        if branch not in BRANCHES or info.layer is None or path in no_places:
            continue
        if isinstance(modules[path.rpartition(".")[0]], nn.MultiheadAttention):
            path = path.rpartition(".")[0]  # which uses its last layer's weight without calling it
        found[path] = info.layer, branch
    if model_map.head is not None:
        found[model_map.head] = None, OUTPUT
    return found


def _without_a_place(model_map: ModelMap) -> dict[str, tuple[str, str]]:
    """Modules that give more than the branch which a tensor of theirs ends, with tensor and branch:
    a block, and what has other tensors beside a gain."""
    found: dict[str, tuple[str, str]] = {}
    for (_, branch), norm in model_map.last_norms.items():
        if norm.held:
            found.setdefault(norm.path, (norm.held[0], branch))
    for info in model_map:
        path, branch = info.name.rpartition(".")[0], model_map.ends(info)
        if branch in BRANCHES and path in model_map.structure.layers:
            found.setdefault(path, (info.name, branch))
    return found


def _check_apart(model_map: ModelMap, ways: Mapping[str, Way]) -> None:
    """Raise where a hook would multiply more than a branch, or what another one did."""
    for path, (tensor, branch) in _without_a_place(model_map).items():
        if ways[branch] == "hook":
            raise CompletedpError(
                f"{tensor} ends the {branch} branch and has no module of its own, and a hook on "
                f'{path} would multiply more than that: use multipliers="fold"'
            )
    places = {p: branch for p, (_, branch) in hook_places(model_map).items()}
    for path, branch in places.items():
        inner = next((p for p in places if p.startswith(f"{path}.") and places[p] == branch), None)
        if inner is not None and ways[branch] == "hook":
            raise CompletedpError(
                f"a hook on {path}, whose own tensors end its branch, would multiply what one on "
                f'{inner} inside it did: use multipliers="fold"'
            )


def settings(plan: PlanNumbers) -> dict[str, float]:
    """The model's own scale of its tied logits: that of the base, times the multiplier."""
    if not _own_logit_scale(plan.map, plan.recipe):
        return {}
    own = logit_scale(plan.model)
    assert own is not None
    name, power = own
    factor = plan.output_multiplier if plan.ways[OUTPUT] == "setting" else 1.0
    return {name: (plan.recipe.constants or {})[f"config.{name}"] * factor**power}


@dataclass(frozen=True)
class _Multiply:
    """A hook with a factor."""

    factor: float


def is_multiplier(hook: object) -> bool:
    """Whether a hook of a module is one that a plan attached."""
    return isinstance(hook, _Multiply)


class _MultiplyInput(_Multiply):
    """A forward pre-hook that multiplies what a linear map reads."""

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return (inputs[0] * self.factor, *inputs[1:])


class MultiplyOutput(_Multiply):
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
