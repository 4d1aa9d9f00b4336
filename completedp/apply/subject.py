"""Subject: a small model as it is run to be looked at (probe.py, factors.py, sizes.py).

Its weights are random stand-ins, the same in every block, and its blocks are called one by one. The
model is not changed: weights are swapped for a call, flags and hooks are put back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from completedp.apply.called import call_with
from completedp.apply.heads import TOKENS, HeadSizes, call_options, unchanged
from completedp.apply.model_map import LastNorm, ModelMap, TensorInfo
from completedp.apply.multipliers import MultiplyOutput, hook_places
from completedp.apply.names import canonical_name
from completedp.apply.structure import inside, is_norm
from completedp.common.errors import short
from completedp.theory.roles import Role, is_bias

SAME = 1e-3
"""Relative: rounding of float32 in a block, and no effect that is meant."""


class CannotRunError(Exception):
    """Why a model cannot be probed, and perhaps an excuse."""

    def __init__(self, why: str, excuse: str = "") -> None:
        super().__init__(why)
        self.excuse = excuse


@contextmanager
def running() -> Iterator[None]:
    """The user's model may fail in any way."""
    try:
        yield
    except Exception as error:
        what = short(error, 120)
        raise CannotRunError(f"it does not run on {TOKENS} tokens ({what})") from None


class Subject:
    """A model with random weights for as long as it is looked at, and its blocks' inputs."""

    def __init__(
        self, model_map: ModelMap, values: dict[str, Tensor] | None = None, batch: int = 1
    ) -> None:
        self.map = model_map
        self.model = inside(model_map.model)
        self.values = stand_ins(model_map) if values is None else values
        self.batch = batch
        self.calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        """By block, counted from 1: what it was called with, the first time."""
        self.times: Counter[int] = Counter()
        """By block: how often it was called."""
        self.given: dict[int, Tensor] = {}
        """By block: what came out of it, the first time."""
        self.inside: dict[str, tuple[Tensor, Tensor]] = {}
        """By path, of linear layers and tables that compute in a way of their own: what they were
        given, and what they gave."""
        self.outputs: dict[str, Tensor] = {}
        """Of the embedding, the norm before the head and the head, where they are modules that are
        called; what the head reads; of the model."""
        self.last_calls: dict[str, bool] = {}
        """By path, of modules that were called: whether the last time was after a block."""
        self.heads = HeadSizes()
        self._stack = ExitStack()

    def __enter__(self) -> Subject:
        self._stack.enter_context(unchanged(self.model))
        self._stack.enter_context(torch.random.fork_rng(devices=[]))
        self._stack.enter_context(torch.enable_grad())
        self._stack.enter_context(torch.autocast("cpu", enabled=False))
        try:
            self.model.eval()
            self._run()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _run(self) -> None:
        """The whole model on a few tokens, to see what its blocks are given."""
        structure = self.map.structure
        with ExitStack() as hooks:
            outside = (t.name.rpartition(".")[0] for t in self.map if t.layer is None)
            for path in dict.fromkeys((*hook_places(self.map), *outside)):
                handle = structure.modules[path].register_forward_pre_hook(self._counting(path))
                hooks.callback(handle.remove)
            for path, module in structure.modules.items():
                if _computes_in_its_own_way(module):  # without the plan's own hooks, if any
                    hook = self._looking_inside(path)
                    hooks.callback(module.register_forward_hook(hook, prepend=True).remove)
            for layer, block in enumerate(self.map.blocks, start=1):
                hooks.callback(block.register_forward_hook(self._passing(layer)).remove)
            hooks.enter_context(self._kept(*range(1, len(self.map.blocks) + 1)))
            for name in ("embedding", "output_norm", "head"):
                if (path := getattr(structure, name)) is not None:
                    handle = structure.modules[path].register_forward_hook(self._noting(name))
                    hooks.callback(handle.remove)
            if structure.head is not None:  # before the plan's own hooks, if any
                head = structure.modules[structure.head]
                handle = head.register_forward_pre_hook(self._reading, prepend=True)
                hooks.callback(handle.remove)
            hooks.enter_context(self.heads)
            logits = self.logits(self.values)
        if logits is not None:
            self.outputs["logits"] = logits
        if len(self.calls) != len(self.map.blocks):
            raise CannotRunError("its forward pass does not call its blocks one by one")

    def tokens(self) -> Tensor:
        """A sequence of the first few, or a batch of them."""
        table = self.map.structure.modules[self.map.structure.embedding or ""]
        rows = int(next(table.parameters()).shape[0])
        count = torch.arange(self.batch * TOKENS, device="cpu")
        return count.remainder(rows).view(self.batch, TOKENS)

    def logits(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """What the whole model gives for a few tokens, where that is a tensor."""
        output = self._call(self.model, values, (self.tokens(),), call_options(self.model))
        if isinstance(output, Mapping):  # a plain one, too
            output = output.get("logits")
        logits = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
        return logits.detach() if isinstance(logits, Tensor) else None

    def _counting(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self.last_calls[path] = bool(self.calls)

        return hook

    def _keeping(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.calls.setdefault(layer, (args, kwargs))
            self.times[layer] += 1

        return hook

    def _passing(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(first, Tensor):
                self.given.setdefault(layer, first.detach())

        return hook

    def _looking_inside(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                self.inside.setdefault(path, (args[0].detach(), output.detach()))

        return hook

    def _noting(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.outputs.setdefault(name, output.detach())

        return hook

    def _reading(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            self.outputs.setdefault("read", args[0].detach())

    def doubled(self, tensor: str) -> tuple[Tensor, Tensor | None] | None:
        """What more comes into the first block, and the logits, where a tensor is doubled."""
        name = self.named.get(tensor)
        if name is None:
            return None
        kept, times = (self.calls, self.times), Counter(self.times)
        self.calls = {}
        try:
            with self._kept(1):
                logits = self.logits({**self.values, name: 2 * self.values[name].detach()})
            stream = self.stream(1)
        finally:
            self.calls, self.times = kept[0], times
        return stream - self.stream(1), logits

    def entering(self, values: Mapping[str, Tensor]) -> Tensor:
        """What comes into the first block with other tensors; no more is run."""
        kept, times = self.calls, Counter(self.times)
        self.calls = {}

        def enough(module: nn.Module, args: Any) -> None:
            raise CannotRunError("this is no error: the first block is reached")

        try:
            with self._kept(1), suppress(CannotRunError), ExitStack() as hooks:
                hooks.callback(self.map.blocks[0].register_forward_pre_hook(enough).remove)
                self.logits(values)
            if not self.calls:
                raise CannotRunError("its forward pass does not call its first block")
            return self.stream(1)
        finally:
            self.calls, self.times = kept, times

    @contextmanager
    def _kept(self, *layers: int) -> Iterator[None]:
        """What blocks are called with inside."""
        with ExitStack() as hooks:
            for layer in layers:
                block = self.map.blocks[layer - 1]
                keep = self._keeping(layer)
                handle = block.register_forward_pre_hook(keep, with_kwargs=True)
                hooks.callback(handle.remove)
            yield

    def _call(
        self,
        module: nn.Module,
        values: Mapping[str, Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        with running():
            return call_with(module, values, args, kwargs)

    def answer(self, module: nn.Module, values: dict[str, Tensor], x: Tensor) -> Tensor | None:
        """What a module by itself gives for one input; None where that is no tensor, or it takes
        more."""
        try:
            output = self._call(module, values, (x,), {})
        except CannotRunError:
            return None
        return output.detach() if isinstance(output, Tensor) else None

    def stream(self, layer: int) -> Tensor:
        """What a block is given."""
        return self._given_stream(layer).detach()

    def _given_stream(self, layer: int) -> Tensor:
        args, kwargs = self.calls[layer]
        candidates = [*args, kwargs.get("hidden_states"), *kwargs.values()]
        width = self.map.structure.width
        for value in candidates:
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[-1] == width:
                return value
        raise CannotRunError("its blocks are not called with the residual stream")

    def give(self, layer: int, stream: Tensor) -> None:
        """Have a block be called with another stream from here on."""
        was, (args, kwargs) = self._given_stream(layer), self.calls[layer]
        self.calls[layer] = (
            tuple(stream if value is was else value for value in args),
            {name: stream if value is was else value for name, value in kwargs.items()},
        )

    def block(
        self, layer: int, changed: Mapping[str, Tensor], hooks: Mapping[str, float]
    ) -> Tensor:
        """What a block gives, with some tensors changed (by the model's names) and some modules'
        outputs multiplied (by path)."""
        args, kwargs = self.calls[layer]
        prefix = prefix_of(self.model, self.map.blocks[layer - 1])
        values = {
            name.removeprefix(prefix): changed.get(name, value)
            for name, value in self.values.items()
            if name.startswith(prefix)
        }
        with ExitStack() as stack:
            for path, factor in hooks.items():
                module = self.map.structure.modules[path]
                handle = module.register_forward_hook(MultiplyOutput(factor))
                stack.callback(handle.remove)
            output = self._call(self.map.blocks[layer - 1], values, args, kwargs)
        output = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(output, Tensor) or output.shape != self.stream(layer).shape:
            raise CannotRunError("its blocks do not give the residual stream")
        if not bool(torch.isfinite(output).all()):
            raise CannotRunError("it gives no finite numbers with random weights")
        return output

    @cached_property
    def named(self) -> dict[str, str]:
        """The model's own names by canonical ones."""
        return {canonical_name(name): name for name in self.values}

    def tensors(self, layer: int) -> list[tuple[str, TensorInfo]]:
        """The trainable tensors of a block, with their names in the model."""
        return self._by_layer.get(layer, [])

    @cached_property
    def _by_layer(self) -> dict[int, list[tuple[str, TensorInfo]]]:
        """Blocks of another list have the same numbers, and are not looked at."""
        prefix = self.map.structure.blocks
        found: dict[int, list[tuple[str, TensorInfo]]] = {}
        for tensor in self.map:
            is_here = tensor.name.startswith(f"{prefix}." if prefix else "")
            if tensor.layer is not None and is_here and tensor.name in self.named:
                found.setdefault(tensor.layer, []).append((self.named[tensor.name], tensor))
        return found

    def ends(self, layer: int, branch: str) -> list[str]:
        """The paths of the modules at the end of a block's branch: several of experts, and of two
        branches of one kind, such as attention to another sequence."""
        found = [tensor for _, tensor in self.tensors(layer) if tensor.last_map == branch]
        return list(dict.fromkeys(self._end_of(tensor, branch) for tensor in found))

    def _end_of(self, tensor: TensorInfo, branch: str) -> str:
        """The norm that ends a branch, or its gain alone, or its last linear map."""
        norm = self.map.last_norms.get((tensor.block, branch))
        return _place_of(norm) if norm else tensor.name.rpartition(".")[0]

    def scaled(
        self, layer: int, factors: Mapping[str, float], alone: str | None = None
    ) -> dict[str, Any]:
        """Arguments of `block` for branches times factors: in what their multipliers go into.

        Where one of a branch's ends is to be `alone`, the others are at 0.
        """
        changed: dict[str, Tensor] = {}
        hooks: dict[str, float] = {}
        for name, tensor in self.tensors(layer):
            branch = tensor.last_map
            if branch is None or branch not in factors:
                continue
            end = self._end_of(tensor, branch)
            factor = factors[branch] if alone in (None, end) else 0.0
            norm = self.map.last_norms.get((tensor.block, branch))
            if norm and norm.held:
                for held in (self.named[each] for each in norm.held):
                    changed[held] = (self.values[held] * factor).detach().requires_grad_()
            elif end == tensor.name.rpartition(".")[0]:
                changed[name] = (self.values[name] * factor).detach().requires_grad_()
            else:
                hooks[end] = factor
        return {"changed": changed, "hooks": hooks}


def _place_of(norm: LastNorm) -> str:
    return norm.held[0] if norm.held else norm.path


def output_norms(model_map: ModelMap) -> dict[str, TensorInfo]:
    """By path, what was taken for the norm before the logits."""
    norms = (t for t in model_map if t.role is Role.OUTPUT_NORM)
    return {path: t for t in norms if (path := t.name.rpartition(".")[0])}


def _computes_in_its_own_way(module: nn.Module) -> bool:
    """A linear layer or a table with a forward pass of its own, or a class of one's own with no
    more than a linear layer's parameters."""
    kind = next((kind for kind in (nn.Linear, nn.Embedding) if isinstance(module, kind)), None)
    if kind is not None:
        return type(module).forward is not kind.forward
    own = {name: p.ndim for name, p in module._parameters.items() if p is not None}
    is_foreign = not type(module).__module__.startswith("torch.")
    return is_foreign and own.get("weight") == 2 and own.keys() <= {"weight", "bias"}


def stand_ins(model_map: ModelMap) -> dict[str, Tensor]:
    """Random values for every parameter, and the buffers, by its own names."""

    def value(
        parameter: nn.Parameter, owner: nn.Module, info: TensorInfo | None, noise: Tensor
    ) -> Tensor:
        if parameter.numel() == 1:  # a lone number multiplies, and one of noise is no factor
            return torch.ones_like(noise)
        if parameter.ndim > 1:
            return noise / math.sqrt(max(1, min(parameter.shape[-2:])))
        if is_norm(owner) and not (info and is_bias(info.type)):
            return 1 - (info.offset if info else 0.0) + 0.1 * noise
        return 0.1 * noise

    return drawn(model_map, value)


def drawn(
    model_map: ModelMap,
    value_of: Callable[[nn.Parameter, nn.Module, TensorInfo | None, Tensor], Tensor],
    seed: int = 0,
) -> dict[str, Tensor]:
    """A value for every parameter, made of it, its module, what it was taken for, and noise."""
    model = inside(model_map.model)
    generator = torch.Generator().manual_seed(seed)
    kinds = {t.name: t for t in model_map}
    values: dict[str, Tensor] = {}
    owners = {id(p): m for m in model.modules() for p in m._parameters.values() if p is not None}
    known: dict[tuple[str, torch.Size], Tensor] = {}
    starts = [(prefix_of(model, block), block) for block in model_map.blocks]
    prefixes = {id(p): prefix for prefix, block in starts for p in block.parameters()}
    for name, parameter in model.named_parameters():
        # Blocks are looked at one by one, so all may have the same: memory of one is enough.
        key = name.removeprefix(prefixes.get(id(parameter), "")), parameter.shape
        if key not in known:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            info = kinds.get(canonical_name(name))
            value = value_of(parameter, owners[id(parameter)], info, noise)
            known[key] = value.requires_grad_()
        values[name] = known[key]
    for name, buffer in model.named_buffers():
        if not buffer.is_meta:
            own = buffer.detach().cpu().clone()  # a forward pass may write to it
            values[name] = own.float() if own.is_floating_point() else own
        elif buffer.is_floating_point():
            values[name] = torch.ones(buffer.shape, dtype=torch.float32)
        else:  # a mask of what may be seen, or positions
            values[name] = torch.full(buffer.shape, buffer.dtype == torch.bool, dtype=buffer.dtype)
    return values


def prefix_of(model: nn.Module, block: nn.Module) -> str:
    """What the names of a block's tensors begin with."""
    return next(f"{path}." for path, module in model.named_modules() if module is block)


def relative(difference: Tensor, size: Tensor) -> float:
    """How large a difference is beside something."""
    return float(difference.pow(2).mean().sqrt() / size.pow(2).mean().sqrt().clamp(min=1e-12))
