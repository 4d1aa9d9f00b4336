"""Probe: what a model was taken for, confirmed by what it does.

Names and shapes say where branches end and what reads the residual stream; here a small model is
run to see that it is so. Its weights are random stand-ins and its blocks are called one by one:

- *the stream goes on unchanged*: with the tensors that end a block's branches at 0, what comes out
  is what went in. A norm on the stream (post-LN), or a branch that nobody noticed, changes it;
- *branches are added*: twice the tensors that end a branch add twice as much, which is what folding
  a multiplier into them rests on. A norm after them undoes it;
- *fan-ins*: where the norm before a branch silences a feature, and where nobody listens to one, the
  gradient of a weight is 0 along the side that reads or writes the stream, and along no other.

On the way the factors are measured that the model's own forward pass has: of embeddings, branches
and logits. The model is not changed: weights are swapped for a call, flags and hooks are put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from completedp.apply.heads import (
    TOKENS,
    HeadSizes,
    call_options,
    head_dim_by_shapes,
    unchanged,
    why_not_called,
)
from completedp.apply.model_map import PROBED, ModelMap, TensorInfo
from completedp.apply.multipliers import BUFFERS, OUTPUT, MultiplyOutput, hook_places
from completedp.apply.names import canonical_name
from completedp.apply.own_scales import scale_of_table
from completedp.apply.structure import fans, is_norm, unwrapped
from completedp.common.errors import CompletedpError, short
from completedp.common.surface import override
from completedp.theory.roles import BRANCHES, Role, is_bias

MOST_PARAMETERS = 64_000_000
MOST_IN_ALL = 128_000_000
"""Of a model that is probed, in its blocks and with its vocabulary: beyond, it takes long."""
_TARGET, _KNOWN = "target", "known"
_BLOCKS = 3
"""Blocks that are looked at: the first, the last and one between."""
_SAME = 1e-3
"""Relative: rounding of float32 in a block, and no effect that is meant."""
_TOUCHES = {
    **dict.fromkeys(("qkv", "attn_gate", "attn_out"), "attn"),
    **dict.fromkeys(("mlp_in", "mlp_gate", "router", "mlp_out"), "mlp"),
}
"""Types whose weights read or write the stream, by their branch."""


@dataclass(frozen=True)
class Probe:
    """What was seen; or why nothing was."""

    skipped: str = ""
    """Why the model could not be run; empty where it was."""
    excuse: str = ""
    """Of one that was skipped: `target`, where it is too large, compiled or sharded, and the model
    that its recipe was made with may have been looked at; `known`, where it is the reference model.
    """
    faults: tuple[str, ...] = ()
    """What is not as it was taken for, in words."""
    seen: tuple[str, ...] = ()
    """What is, in words."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Factors of the model's own forward pass, where they are not 1."""
    head_dim: int | None = None
    """Size of its attention heads, where one was seen (heads.py); also of one that was skipped."""
    uncalled: frozenset[str] = frozenset()
    """Modules at the ends of branches, and the head, that its forward pass does not call."""
    early_norms: frozenset[str] = frozenset()
    """Modules taken for the norm before the logits that are called before the blocks alone."""
    unused_buffers: frozenset[str] = frozenset()
    """The branches whose multipliers are in buffers of its own that change nothing."""

    def lines(self) -> str:
        """For people."""
        if self.skipped:
            return f"not probed: {self.skipped}"
        said = [*(f"WRONG: {fault}" for fault in self.faults), *self.seen]
        said += [f"its forward pass multiplies {k} by {v:.6g}" for k, v in self.constants.items()]
        return "\n".join(f"probed: {line}" for line in said)

    def check(self) -> None:
        """Raise at the first fault."""
        if self.faults:
            raise CompletedpError(
                f"{self.faults[0]}; the rules would not hold for it: mend the model, name the "
                f"tensors' types with {override()}, or, in Python, pass probe=False if you know "
                "better"
            )

    @property
    def is_unseen(self) -> bool:
        """Whether nobody has seen it run; the reference model's tests do."""
        return bool(self.skipped) and self.excuse != _KNOWN

    def doubt(self, *, at_base: bool) -> str | None:
        """What to say of a model that nobody has seen run."""
        if not self.is_unseen or (self.excuse and not at_base):
            return None
        return (
            f"this model was not seen to run ({self.skipped}), so what it was taken for rests on "
            "names and shapes alone: measure it with coordcheck"
        )


class _CannotRunError(Exception):
    """Why a model cannot be probed, and perhaps an excuse."""

    def __init__(self, why: str, excuse: str = "") -> None:
        super().__init__(why)
        self.excuse = excuse


@contextmanager
def _running() -> Iterator[None]:
    """The user's model may fail in any way."""
    try:
        yield
    except Exception as error:
        what = short(error, 120)
        raise _CannotRunError(f"it does not run on {TOKENS} tokens ({what})") from None


_probed: WeakKeyDictionary[nn.Module, tuple[tuple[TensorInfo, ...], Probe]] = WeakKeyDictionary()
"""Plans of one model are many, as in a search."""


def probe(model_map: ModelMap) -> Probe:
    """What the model does, seen once for as long as it is taken for the same."""
    model = model_map.model
    known = _probed.get(model)
    if known is None or known[0] != model_map.tensors:
        known = model_map.tensors, _probe(model_map)
        _probed[model] = known
    return known[1]


def confirm(model_map: ModelMap) -> Probe:
    """Put into the map what is seen by running the model: its constants, the size of its heads.

    Raises where it is not what it was taken for.
    """
    found = probe(model_map)
    found.check()
    if not found.skipped:
        model_map.probed = {f"{PROBED}{name}": value for name, value in found.constants.items()}
    model_map.seen_head_dim = found.head_dim
    return found


def _probe(model_map: ModelMap) -> Probe:
    try:
        _check_can_run(model_map)
        with torch.device("cpu"), _Subject(model_map) as subject:
            return _look(subject)
    except _CannotRunError as error:
        tells = model_map.head_dim is not None or not model_map.has_attention
        head_dim = None if tells else head_dim_by_shapes(model_map)
        return Probe(skipped=str(error), excuse=error.excuse, head_dim=head_dim)


def _check_can_run(model_map: ModelMap) -> None:
    model = model_map.model
    if type(unwrapped(model)).__module__.startswith("completedp."):
        raise _CannotRunError("it is the reference model, whose tests do this", _KNOWN)
    blocks = sum(p.numel() for block in model_map.blocks for p in block.parameters())
    if blocks > MOST_PARAMETERS or sum(p.numel() for p in model.parameters()) > MOST_IN_ALL:
        raise _CannotRunError(
            f"it has more than {MOST_PARAMETERS:,} parameters in its blocks, or {MOST_IN_ALL:,} in "
            "all; smaller ones are run where their recipes are made",
            _TARGET,
        )
    if not model_map.blocks:
        raise _CannotRunError("it has no list of blocks")
    if model_map.structure.embedding is None:
        raise _CannotRunError("it has no table of tokens to be run on")
    for place, parameter in model_map.structure.places():
        matters = is_norm(place.owner) or fans(place.owner) is not None or parameter.ndim > 1
        if place.layer is not None and not parameter.requires_grad and matters:
            raise _CannotRunError(f"{place.name} is frozen, and has no type")
    if why_not := why_not_called(model):
        raise _CannotRunError(why_not, _TARGET)


class _Subject:
    """A model with random weights for as long as it is looked at, and its blocks' inputs."""

    def __init__(self, model_map: ModelMap) -> None:
        self.map = model_map
        self.model = unwrapped(model_map.model)
        self.values = _stand_ins(model_map)
        self.calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        """By block, counted from 1: what it was called with."""
        self.outputs: dict[str, Tensor] = {}
        """Of the embedding, the norm before the head and the head, where they are modules that are
        called; what the head reads; of the model."""
        self.last_calls: dict[str, bool] = {}
        """By path, of modules that were called: whether the last time was after a block."""
        self.heads = HeadSizes()
        self._stack = ExitStack()

    def __enter__(self) -> _Subject:
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
            for path in (*hook_places(self.map), *_output_norms(self.map)):
                handle = structure.modules[path].register_forward_pre_hook(self._counting(path))
                hooks.callback(handle.remove)
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
            raise _CannotRunError("its forward pass does not call its blocks one by one")

    def tokens(self) -> Tensor:
        """A sequence of the first few."""
        table = self.map.structure.modules[self.map.structure.embedding or ""]
        rows = int(next(table.parameters()).shape[0])
        return torch.arange(TOKENS, device="cpu").remainder(rows)[None]

    def logits(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """What the whole model gives for a few tokens, where that is a tensor."""
        output = self._call(self.model, values, (self.tokens(),), call_options(self.model))
        logits = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
        return logits.detach() if isinstance(logits, Tensor) else None

    def _counting(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self.last_calls[path] = bool(self.calls)

        return hook

    def _keeping(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.calls.setdefault(layer, (args, kwargs))

        return hook

    def _noting(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.outputs.setdefault(name, output.detach())

        return hook

    def _reading(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            self.outputs.setdefault("read", args[0].detach())

    def embedded(self) -> tuple[Tensor, Tensor] | None:
        """What the table of tokens gives, and what of it comes into the first block: where the
        table is doubled, what is more there, so that positions are no part of it."""
        table, before = f"{self.map.structure.embedding}.weight", self.outputs.get("embedding")
        name = next((name for name in self.values if canonical_name(name) == table), None)
        if name is None or before is None:
            return None
        kept, self.calls = self.calls, {}
        try:
            with self._kept(1):
                self.logits({**self.values, name: 2 * self.values[name].detach()})
            doubled = self.stream(1)
        finally:
            self.calls = kept
        return before, doubled - self.stream(1)

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
        with _running():
            return functional_call(module, dict(values), args, kwargs)

    def stream(self, layer: int) -> Tensor:
        """What a block is given."""
        args, kwargs = self.calls[layer]
        candidates = [*args, kwargs.get("hidden_states"), *kwargs.values()]
        width = self.map.structure.width
        for value in candidates:
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[-1] == width:
                return value.detach()
        raise _CannotRunError("its blocks are not called with the residual stream")

    def block(
        self, layer: int, changed: Mapping[str, Tensor], hooks: Mapping[str, float]
    ) -> Tensor:
        """What a block gives, with some tensors changed (by the model's names) and some modules'
        outputs multiplied (by path)."""
        args, kwargs = self.calls[layer]
        prefix = _prefix(self.model, self.map.blocks[layer - 1])
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
            raise _CannotRunError("its blocks do not give the residual stream")
        if not bool(torch.isfinite(output).all()):
            raise _CannotRunError("it gives no finite numbers with random weights")
        return output

    def tensors(self, layer: int) -> list[tuple[str, TensorInfo]]:
        """The trainable tensors of a block, with their names in the model."""
        names = {canonical_name(name): name for name in self.values}
        return [(names[t.name], t) for t in self.map if t.layer == layer and t.name in names]

    def scaled(self, layer: int, factors: Mapping[str, float]) -> dict[str, Any]:
        """Arguments of `block` for branches times factors: in what their multipliers go into."""
        changed: dict[str, Tensor] = {}
        hooks: dict[str, float] = {}
        for branch, factor in factors.items():
            if (layer, branch) in self.map.last_norms:
                hooks[self.map.last_norms[layer, branch]] = factor
                continue
            for name, tensor in self.tensors(layer):
                if tensor.last_map == branch:
                    changed[name] = (self.values[name] * factor).detach().requires_grad_()
        return {"changed": changed, "hooks": hooks}


def _look(subject: _Subject) -> Probe:
    early_norms = frozenset(_early_norms(subject))
    faults = [*_norm_faults(subject, early_norms), *_table_faults(subject)]
    constants = dict(_constants(subject))
    depth = len(subject.map.blocks)
    layers = sorted({1, (depth + 1) // 2, depth})[:_BLOCKS]
    for layer in layers:
        fault = _stream_fault(subject, layer) or _branch_fault(subject, layer)
        faults += [fault] if fault else _fan_faults(subject, layer)
    blocks = f"block{'s' * (len(layers) > 1)} {', '.join(map(str, layers))} of {depth}"
    seen = (
        f"{blocks}: the stream goes on unchanged with its branches at 0",
        f"{blocks}: each branch is added in proportion to the tensors that end it",
        f"{blocks}: weights read and write the stream along the sides of their fan-ins",
    )
    return Probe(
        faults=tuple(faults),
        seen=() if faults else seen,
        constants=constants,
        head_dim=subject.heads.size,
        uncalled=frozenset(_uncalled(subject)),
        early_norms=early_norms,
        unused_buffers=frozenset(_unused_buffers(subject)),
    )


def _output_norms(model_map: ModelMap) -> dict[str, TensorInfo]:
    """By path, what was taken for the norm before the logits."""
    norms = (t for t in model_map if t.role is Role.OUTPUT_NORM)
    return {path: t for t in norms if (path := t.name.rpartition(".")[0])}


def _early_norms(subject: _Subject) -> Iterator[str]:
    """A norm that only the embedding goes through is not the one before the logits."""
    for path in _output_norms(subject.map):
        if subject.last_calls.get(path) is False:
            yield path


def _norm_faults(subject: _Subject, early: frozenset[str]) -> Iterator[str]:
    """An override is the user's word, and says nothing of where it is called."""
    for path, tensor in _output_norms(subject.map).items():
        if path in early and tensor.how != "override":
            yield (
                f"{path} was taken for the norm before the logits, and is called before the blocks"
            )


def _table_faults(subject: _Subject) -> Iterator[str]:
    """A table's own factor is what it says, which plans take out of it."""
    path, given = subject.map.structure.embedding or "", subject.outputs.get("embedding")
    scale = scale_of_table(subject.map.structure.modules[path])
    if any(b.is_meta for b in subject.map.structure.modules[path].buffers(recurse=False)):
        return  # of which only stand-ins are here
    rows = {canonical_name(name): value for name, value in subject.values.items()}
    if scale is None or given is None or (table := rows.get(f"{path}.weight")) is None:
        return
    looked_up = table.detach()[subject.tokens()[0]]
    seen = float((given * looked_up).sum() / looked_up.pow(2).sum())
    if given.shape[1:] == looked_up.shape and _relative(given - scale * looked_up, given) > _SAME:
        yield (
            f"{path}.embed_scale is {scale:g}, and what it looks up is multiplied by {seen:.3g}: "
            "it has another factor, or more than one"
        )


def _uncalled(subject: _Subject) -> Iterator[str]:
    """Of a branch's experts some may have no token, but not all."""
    places = hook_places(subject.map)
    reached = {places[path] for path in subject.last_calls if path in places}
    return (path for path, place in places.items() if place not in reached)


def _unused_buffers(subject: _Subject) -> Iterator[str]:
    """Of buffers that look like the model's own multipliers, those without an effect."""
    before = subject.outputs.get("logits")
    for branch, name in BUFFERS.items():
        buffer, depth = subject.values.get(name), len(subject.map.blocks)
        if before is None or buffer is None:
            continue
        if buffer.shape != (() if branch == OUTPUT else (depth, 2)):
            continue
        changed = buffer.clone()
        part = changed if branch == OUTPUT else changed[:, BRANCHES.index(branch)]
        part.mul_(0.5).add_(0.25)  # of whatever it was, but for a value that no branch has
        after = subject.logits({**subject.values, name: changed})
        if after is not None and torch.equal(before, after):
            yield branch


def _stream_fault(subject: _Subject, layer: int) -> str | None:
    """With its branches silent a block must change nothing."""
    x = subject.stream(layer)
    silent = subject.block(layer, **subject.scaled(layer, dict.fromkeys(BRANCHES, 0.0)))
    change = _relative(silent.detach() - x, x)
    if change < _SAME:
        return None
    scaled = float((silent.detach().pow(2).mean() / x.pow(2).mean()).sqrt())
    return (
        f"block {layer} changes the residual stream by {change:.0%} with the tensors that end its "
        f"branches at 0, {_ends(subject, layer)} (its size becomes x{scaled:.3g}): it has a norm "
        "on the stream (post-LN), or a branch that was not recognised"
    )


def _branch_fault(subject: _Subject, layer: int) -> str | None:
    """Twice the tensors that end a branch must add twice as much."""
    x = subject.stream(layer)
    for branch in BRANCHES:
        if not any(t.last_map == branch for _, t in subject.tensors(layer)):
            continue
        others = dict.fromkeys(BRANCHES, 0.0)
        added = [
            subject.block(layer, **subject.scaled(layer, others | {branch: factor})).detach() - x
            for factor in (1.0, 2.0)
        ]
        if _relative(added[0], x) < 1e-6:
            return (
                f"the {branch} branch of block {layer} adds nothing to the residual stream: what "
                f"was taken for its end, {_ends(subject, layer, branch)}, is not"
            )
        if (off := _relative(added[1] - 2 * added[0], 2 * added[0])) > _SAME:
            return (
                f"the {branch} branch of block {layer} is not added in proportion to the tensors "
                f"that end it, {_ends(subject, layer, branch)} (twice them is off by {off:.0%}): a "
                "norm or an activation comes after them, or one of them ends another branch (an "
                "override says which)"
            )
    return None


def _fan_faults(subject: _Subject, layer: int) -> Iterator[str]:
    """The sides of the weights that read or write the stream."""
    width = subject.map.structure.width or 0
    mute = torch.arange(width) < width // 2  # features that are silenced
    for branch in BRANCHES:
        others = dict.fromkeys(BRANCHES, 0.0) | {branch: 1.0}
        arguments = subject.scaled(layer, others)
        for name, gain in _gains(subject, layer, branch):
            silenced = torch.where(mute, torch.tensor(-gain.offset), subject.values[name])
            arguments["changed"][name] = silenced
        sides = [(n, t) for n, t in subject.tensors(layer) if _TOUCHES.get(t.type) == branch]
        routed = any(t.type == "router" for _, t in subject.tensors(layer))
        gradients = _gradients(subject, layer, arguments, [n for n, _ in sides], ~mute)
        for name, tensor in sides:
            side = _silent_side(gradients.get(name), mute)
            if side is not None and tensor.width != (real := _fan_in(tensor, side, routed)):
                does = "writes" if tensor.last_map else "reads"
                yield (
                    f"{tensor.name} {list(tensor.shape)} {does} the stream along its dimension "
                    f"{side}, so its fan-in is {real} and not {tensor.width}"
                )


def _gains(subject: _Subject, layer: int, branch: str) -> list[tuple[str, TensorInfo]]:
    """The vectors of the norm before a branch; one norm may serve both."""
    width = subject.map.structure.width
    for norm in dict.fromkeys((f"{branch}_norm", "attn_norm")):
        found = [
            (name, tensor)
            for name, tensor in subject.tensors(layer)
            if tensor.type in (norm, f"{norm}_bias") and tensor.shape == (width,)
        ]
        if found:
            return found
    return []


def _fan_in(tensor: TensorInfo, side: int, routed: bool) -> int:
    """The fan-in of a weight whose `side` reads or writes the stream.

    What writes sums over all other sides, also over heads; but of a stack of experts a router
    chooses, and weighs what each of them gives.
    """
    stream = tensor.shape[side]
    if tensor.last_map is None:
        return stream
    experts = tensor.last_map == "mlp" and routed and len(tensor.shape) == 3 and side != 0
    return math.prod(tensor.shape) // stream // (tensor.shape[0] if experts else 1)


def _gradients(
    subject: _Subject,
    layer: int,
    arguments: dict[str, Any],
    names: list[str],
    listened: Tensor,
) -> dict[str, Tensor]:
    """Of what some features of the stream become, with respect to weights."""
    if not names:  # a block without this branch
        return {}
    changed = dict(arguments["changed"])
    leaves = {n: changed.get(n, subject.values[n]).detach().clone().requires_grad_() for n in names}
    output = subject.block(layer, changed | leaves, arguments["hooks"])
    weights = torch.linspace(1.0, 2.0, output.numel()).view_as(output) * listened.float()
    wanted = list(leaves.values())
    with _running():  # again, where activations are not kept but computed a second time
        found = torch.autograd.grad((output * weights).sum(), wanted, allow_unused=True)
    return {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}


def _silent_side(gradient: Tensor | None, mute: Tensor) -> int | None:
    """The dimension along which a gradient is 0 where features are mute, and only there."""
    if gradient is None or not bool(gradient.any()):
        return None
    for side, size in enumerate(gradient.shape):
        if size == len(mute):
            along = gradient.abs().transpose(0, side).flatten(1).amax(1)
            top = float(along.max())
            if float(along[mute].max()) <= 1e-5 * top and float(along[~mute].min()) > 0:
                return side
    return None


def _constants(subject: _Subject) -> Iterator[tuple[str, float]]:
    """What the model multiplies embeddings, branches and logits by, where that is one number."""
    outputs = subject.outputs
    pairs = {
        "embeddings": subject.embedded() or (None, None),
        **{f"the {branch} branch": _added(subject, branch) for branch in BRANCHES},
        "what the head reads": (outputs.get("output_norm"), outputs.get("read")),
        "logits": (outputs.get("head"), outputs.get("logits")),
    }
    for name, (before, after) in pairs.items():
        if before is None or after is None or before.shape != after.shape:
            continue
        factor = float((after * before).sum() / before.pow(2).sum())
        if abs(factor - 1) > _SAME and _relative(after - factor * before, after) < _SAME:
            yield name, factor


def _added(subject: _Subject, branch: str) -> tuple[Tensor | None, Tensor | None]:
    """What the module at the end of the first block's branch gives, and what is added of it."""
    named = (t.name for _, t in subject.tensors(1) if t.last_map == branch)
    last = {subject.map.last_norms.get((1, branch), name.rpartition(".")[0]) for name in named}
    if len(last) != 1:
        return None, None
    given: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        given.extend(o for o in [output] if isinstance(o, Tensor))

    handle = subject.map.structure.modules[last.pop()].register_forward_hook(note)
    try:
        alone = subject.scaled(1, dict.fromkeys(BRANCHES, 0.0) | {branch: 1.0})
        after = subject.block(1, **alone).detach() - subject.stream(1)
    finally:
        handle.remove()
    return (given[0].detach(), after) if len(given) == 1 else (None, None)


def _stand_ins(model_map: ModelMap) -> dict[str, Tensor]:
    """Random values for every parameter, and the buffers, by the names of the unwrapped model."""
    model = unwrapped(model_map.model)
    generator = torch.Generator().manual_seed(0)
    kinds = {t.name: t for t in model_map}
    values: dict[str, Tensor] = {}
    owners = {id(p): m for m in model.modules() for p in m._parameters.values() if p is not None}
    drawn: dict[tuple[str, torch.Size], Tensor] = {}
    starts = [(_prefix(model, block), block) for block in model_map.blocks]
    prefixes = {id(p): prefix for prefix, block in starts for p in block.parameters()}
    for name, parameter in model.named_parameters():
        # Blocks are looked at one by one, so all may have the same: memory of one is enough.
        key = name.removeprefix(prefixes.get(id(parameter), "")), parameter.shape
        if key in drawn:
            values[name] = drawn[key]
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        info = kinds.get(canonical_name(name))
        if parameter.ndim > 1:
            value = noise / math.sqrt(max(1, min(parameter.shape[-2:])))
        elif is_norm(owners[id(parameter)]) and not (info and is_bias(info.type)):
            value = 1 - (info.offset if info else 0.0) + 0.1 * noise
        else:
            value = 0.1 * noise
        values[name] = drawn[key] = value.requires_grad_()
    for name, buffer in model.named_buffers():
        if not buffer.is_meta:
            own = buffer.detach().cpu().clone()  # a forward pass may write to it
            values[name] = own.float() if own.is_floating_point() else own
        elif buffer.is_floating_point():
            values[name] = torch.ones(buffer.shape, dtype=torch.float32)
        else:  # a mask of what may be seen, or positions
            values[name] = torch.full(buffer.shape, buffer.dtype == torch.bool, dtype=buffer.dtype)
    return values


def _prefix(model: nn.Module, block: nn.Module) -> str:
    """What the names of a block's tensors begin with."""
    return next(f"{path}." for path, module in model.named_modules() if module is block)


def _relative(difference: Tensor, size: Tensor) -> float:
    return float(difference.pow(2).mean().sqrt() / size.pow(2).mean().sqrt().clamp(min=1e-12))


def _ends(subject: _Subject, layer: int, branch: str | None = None) -> str:
    """The names of what was taken for branches' ends."""
    norms = subject.map.last_norms
    names = [
        norms.get((layer, tensor.last_map or ""), tensor.name)
        for _, tensor in subject.tensors(layer)
        if tensor.last_map in ((branch,) if branch else BRANCHES)
    ]
    return ", ".join(dict.fromkeys(names)) or "none"
