"""Probe: what a model was taken for, confirmed by what it does.

Names and shapes say where branches end and what reads the residual stream; here a small model is
run to see that it is so. Its weights are random stand-ins and its blocks are called one by one:

- *the stream goes on unchanged*: with the tensors that end a block's branches at 0, what comes out
  is what went in. A norm on the stream (post-LN), or a branch that nobody noticed, changes it;
- *branches are added*: twice the tensors that end a branch add twice as much, which is what folding
  a multiplier into them rests on. A norm after them undoes it;
- *fan-ins*: where the norm before a branch silences a feature, and where nobody listens to one, the
  gradient of a weight is 0 along the side that reads or writes the stream, and along no other.

On the way the factors are measured that the model's own forward pass has (factors.py), how large
what it does is (sizes.py), and what happens between the blocks, which is a doubt and no fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from completedp.apply.factors import own_factors
from completedp.apply.heads import head_dim_by_shapes, why_not_called
from completedp.apply.model_map import PROBED, ModelMap, TensorInfo
from completedp.apply.multipliers import BUFFERS, OUTPUT, hook_places, is_for_multipliers
from completedp.apply.names import canonical_name
from completedp.apply.own_scales import scale_of_table
from completedp.apply.sizes import sizes
from completedp.apply.structure import fans, is_norm, unwrapped
from completedp.apply.subject import SAME, CannotRunError, Subject, output_norms, relative, running
from completedp.apply.unknown import pattern_of
from completedp.common.errors import CompletedpError
from completedp.common.surface import override
from completedp.theory.roles import BRANCHES, Role

MOST_PARAMETERS = 64_000_000
MOST_IN_ALL = 128_000_000
"""Of a model that is probed, in its blocks and with its vocabulary: beyond, it takes long."""
_TARGET, _KNOWN = "target", "known"
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
    odd: tuple[str, ...] = ()
    """What the rules may not hold for, in words."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Factors of the model's own forward pass, where they are not 1."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """How large branches and logits are (sizes.py)."""
    head_dim: int | None = None
    """Size of its attention heads, where one was seen (heads.py); also of one that was skipped."""
    uncalled: frozenset[str] = frozenset()
    """Modules at the ends of branches, and the head, that its forward pass does not call."""
    early_norms: frozenset[str] = frozenset()
    """Modules taken for the norm before the logits that are called before the blocks alone."""
    unused: tuple[TensorInfo, ...] = ()
    """Tensors outside the blocks that change nothing of what it gives."""
    unused_buffers: frozenset[str] = frozenset()
    """The branches whose multipliers are in buffers of its own that change nothing."""

    def lines(self) -> str:
        """For people."""
        if self.skipped:
            return f"not probed: {self.skipped}"
        said = [*(f"WRONG: {fault}" for fault in self.faults), *self.seen]
        said += [f"in doubt: {line}" for line in (*self.odd, *self._without_effect())]
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

    def doubts(self, *, at_base: bool) -> Iterator[str]:
        """What to say of a model that nobody has seen run, or that does what no rule speaks of."""
        if self.is_unseen and (at_base or not self.excuse):
            yield (
                f"this model was not seen to run ({self.skipped}), so what it was taken for rests "
                "on names and shapes alone: measure it with coordcheck"
            )
        for line in self.odd:
            yield f"{line}: measure the model with coordcheck along the depth"
        yield from self._without_effect()

    def _without_effect(self) -> Iterator[str]:
        """An override is the user's word: they know of it."""
        found = [tensor.as_taken for tensor in self.unused if tensor.how != "override"]
        if found:
            yield (
                f"the logits do not depend on {', '.join(found)}, whose module is not called: call "
                f"it, or take it out; if training alone uses it, name its type with {override()}"
            )


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
        model_map.sizes = found.sizes
    model_map.seen_head_dim = found.head_dim
    return found


def _probe(model_map: ModelMap) -> Probe:
    try:
        _check_can_run(model_map)
        with torch.device("cpu"):
            with Subject(model_map) as subject:
                found = _look(subject)
            return found if found.faults else replace(found, sizes=sizes(model_map))
    except CannotRunError as error:
        tells = model_map.head_dim is not None or not model_map.has_attention
        head_dim = None if tells else head_dim_by_shapes(model_map)
        return Probe(skipped=str(error), excuse=error.excuse, head_dim=head_dim)


def _check_can_run(model_map: ModelMap) -> None:
    model = model_map.model
    if type(unwrapped(model)).__module__.startswith("completedp."):
        raise CannotRunError("it is the reference model, whose tests do this", _KNOWN)
    blocks = sum(p.numel() for block in model_map.blocks for p in block.parameters())
    if blocks > MOST_PARAMETERS or sum(p.numel() for p in model.parameters()) > MOST_IN_ALL:
        raise CannotRunError(
            f"it has more than {MOST_PARAMETERS:,} parameters in its blocks, or {MOST_IN_ALL:,} in "
            "all; smaller ones are run where their recipes are made",
            _TARGET,
        )
    if not model_map.blocks:
        raise CannotRunError("it has no list of blocks")
    if model_map.structure.embedding is None:
        raise CannotRunError("it has no table of tokens to be run on")
    for place, parameter in model_map.structure.places():
        matters = is_norm(place.owner) or fans(place.owner) is not None or parameter.ndim > 1
        if place.layer is not None and not parameter.requires_grad and matters:
            raise CannotRunError(f"{place.name} is frozen, and has no type")
    if why_not := why_not_called(model):
        raise CannotRunError(why_not, _TARGET)


def _look(subject: Subject) -> Probe:
    early_norms = frozenset(_early_norms(subject))
    faults = [*_norm_faults(subject, early_norms), *_table_faults(subject)]
    faults += [*_input_faults(subject), *_tied_faults(subject), *_weight_faults(subject)]
    depth = len(subject.map.blocks)
    for layer in range(1, depth + 1):
        fault = _stream_fault(subject, layer) or _branch_fault(subject, layer)
        faults += [fault] if fault else _fan_faults(subject, layer)
    blocks = "block 1" if depth == 1 else f"blocks 1 to {depth}"
    seen = (
        f"{blocks}: the stream goes on unchanged with its branches at 0",
        f"{blocks}: each branch is added in proportion to the tensors that end it",
        f"{blocks}: weights read and write the stream along the sides of their fan-ins",
    )
    return Probe(
        faults=tuple(faults),
        seen=() if faults else seen,
        odd=(*_between(subject), *_elsewhere(subject)),
        constants=own_factors(subject),
        head_dim=subject.heads.size,
        uncalled=frozenset(_uncalled(subject)),
        early_norms=early_norms,
        unused=tuple(_unused(subject)),
        unused_buffers=frozenset(_unused_buffers(subject)),
    )


def _between(subject: Subject) -> Iterator[str]:
    """Between the blocks the stream must go through as it is."""
    for layer in range(1, len(subject.map.blocks)):
        gave, comes = subject.given.get(layer), subject.stream(layer + 1)
        if gave is None or gave.shape != comes.shape:
            continue
        if (change := relative(comes - gave, gave)) > SAME:
            yield (
                f"what comes into block {layer + 1} is not what block {layer} gave (they differ by "
                f"{change:.0%}), and the rules for depth are those of a stream that only blocks "
                "add to"
            )
            return


def _elsewhere(subject: Subject) -> Iterator[str]:
    """Blocks of another list, which overrides alone tell."""
    prefix = f"{subject.map.structure.blocks}."
    other = [t for t in subject.map if t.layer is not None and not t.name.startswith(prefix)]
    if other and prefix != ".":
        yield (
            f"{len(other)} tensors of blocks outside {prefix[:-1]} (such as {other[0].name}) were "
            "not looked at, and what they were taken for rests on overrides alone"
        )


def _early_norms(subject: Subject) -> Iterator[str]:
    """A norm that only the embedding goes through is not the one before the logits."""
    for path in output_norms(subject.map):
        if subject.last_calls.get(path) is False:
            yield path


def _norm_faults(subject: Subject, early: frozenset[str]) -> Iterator[str]:
    """An override is the user's word, and says nothing of where it is called."""
    for path, tensor in output_norms(subject.map).items():
        if path in early and tensor.how != "override":
            yield (
                f"{path} was taken for the norm before the logits, and is called before the blocks"
            )


def _table_faults(subject: Subject) -> Iterator[str]:
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
    if given.shape[1:] == looked_up.shape and relative(given - scale * looked_up, given) > SAME:
        yield (
            f"{path}.embed_scale is {scale:g}, and what it looks up is multiplied by {seen:.3g}: "
            "it has another factor, or more than one"
        )


def _input_faults(subject: Subject) -> Iterator[str]:
    """What is added to the tokens comes into the first block; a table that is read elsewhere, such
    as one of values or of logits, is no input's embedding. An override is the user's word."""
    before = subject.outputs.get("logits")
    for tensor in subject.map:
        if tensor.role is not Role.INPUT_EMBEDDING or tensor.how == "override":
            continue
        found = None if tensor.embeds_tokens else subject.doubled(tensor.name)
        if found is None or bool(found[0].any()) or before is None or found[1] is None:
            continue
        if not torch.equal(before, found[1]):
            yield (
                f"{tensor.as_taken} was taken for an input's embedding, and the logits depend on "
                "it where what comes into the first block does not"
            )


def _tied_faults(subject: Subject) -> Iterator[str]:
    """Rows of tokens that are not read change nothing, unless the logits are made of them, too: by
    a product that no module shows. An override is the user's word."""
    before, read = subject.outputs.get("logits"), int(subject.tokens().max()) + 1
    for tensor in subject.map:
        name = subject.named.get(tensor.name)
        if tensor.type != "embedding" or tensor.how == "override" or name is None or before is None:
            continue
        rows = subject.values[name].detach()
        after = subject.logits({**subject.values, name: torch.cat([rows[:read], -rows[read:]])})
        if after is None or torch.equal(before, after):
            continue
        again = subject.logits(subject.values)
        if again is not None and torch.equal(before, again):  # it draws no numbers of its own
            pattern = pattern_of(tensor.name, subject.named)
            yield (
                f"the logits depend on the rows of {tensor.as_taken} for tokens that are not read, "
                "so that they are made of it, too: it is tied, "
                f"{override(pattern, 'tied_embedding')}"
            )


def _weight_faults(subject: Subject) -> Iterator[str]:
    """A weight whose size does nothing is made anew in every call, as `weight_norm` does it. Not
    one whose product is normed: that does not grow with what is multiplied, either."""
    kinds = {tensor.name: tensor.as_taken for tensor in subject.map}
    for path, (given, _) in subject.inside.items():
        name, module = subject.named.get(f"{path}.weight"), subject.map.structure.modules[path]
        taken = kinds.get(f"{path}.weight")
        if name is None or taken is None or not given.is_floating_point() or module._modules:
            continue
        weight = subject.values[name].detach()
        zeros = {k: torch.zeros(p.shape) for k, p in module.named_parameters(recurse=False)}
        once, double, more = (
            subject.answer(module, zeros | {"weight": w}, x)
            for w, x in ((weight, given), (2 * weight, given), (weight, 2 * given))
        )
        if once is None or double is None or more is None or not bool(once.any()):
            continue
        if relative(double - once, once) < SAME and relative(more - 2 * once, once) < SAME:
            yield (
                f"what {path} gives is the same with twice its weight, {taken}, which is made "
                "anew in every call (a normalised weight), so that what the rules say of a weight "
                "is not true of it"
            )


def _uncalled(subject: Subject) -> Iterator[str]:
    """Of a branch's experts some may have no token, but not all."""
    places = hook_places(subject.map)
    reached = {places[path] for path in subject.last_calls if path in places}
    return (path for path, place in places.items() if place not in reached)


def _unused(subject: Subject) -> Iterator[TensorInfo]:
    """Outside the blocks, of modules that are not called: functions may use their tensors."""
    before = subject.outputs.get("logits")
    for tensor in subject.map:
        name, path = subject.named.get(tensor.name), tensor.name.rpartition(".")[0]
        if tensor.layer is not None or path in subject.last_calls or name is None or before is None:
            continue
        after = subject.logits({**subject.values, name: -subject.values[name].detach()})
        if after is not None and torch.equal(before, after):
            yield tensor


def _unused_buffers(subject: Subject) -> Iterator[str]:
    """Of buffers that look like the model's own multipliers, those without an effect."""
    before = subject.outputs.get("logits")
    for branch, name in BUFFERS.items():
        buffer = subject.values.get(name)
        if before is None or not is_for_multipliers(buffer, name, subject.map.depth):
            continue
        changed = buffer.clone()
        part = changed if branch == OUTPUT else changed[:, BRANCHES.index(branch)]
        part.mul_(0.5).add_(0.25)  # of whatever it was, but for a value that no branch has
        after = subject.logits({**subject.values, name: changed})
        if after is not None and torch.equal(before, after):
            yield branch


def _stream_fault(subject: Subject, layer: int) -> str | None:
    """With its branches silent a block must change nothing."""
    x = subject.stream(layer)
    silent = subject.block(layer, **subject.scaled(layer, dict.fromkeys(BRANCHES, 0.0)))
    change = relative(silent.detach() - x, x)
    if change < SAME:
        return None
    scaled = float((silent.detach().pow(2).mean() / x.pow(2).mean()).sqrt())
    return (
        f"block {layer} changes the residual stream by {change:.0%} with the tensors that end its "
        f"branches at 0, {_ends(subject, layer)} (its size becomes x{scaled:.3g}): it has a norm "
        "on the stream (post-LN), or a branch that was not recognised"
    )


def _branch_fault(subject: Subject, layer: int) -> str | None:
    """Twice the tensors that end a branch must add twice as much."""
    for branch in BRANCHES:
        if not (ends := subject.ends(layer, branch)):
            continue
        off = _off(subject, layer, branch)
        if off is not None and off > SAME and len(ends) > 1:
            # Of two branches of one kind the second reads what the first adds: one at a time.
            alone = (_off(subject, layer, branch, end) for end in ends)
            off = max((each for each in alone if each is not None), default=off)
        if off is None:
            return (
                f"the {branch} branch of block {layer} adds nothing to the residual stream: what "
                f"was taken for its end, {_ends(subject, layer, branch)}, is not"
            )
        if off > SAME:
            return (
                f"the {branch} branch of block {layer} is not added in proportion to the tensors "
                f"that end it, {_ends(subject, layer, branch)} (twice them is off by {off:.0%}): a "
                "norm or an activation comes after them, or one of them ends another branch (an "
                "override says which)"
            )
    return None


def _off(subject: Subject, layer: int, branch: str, end: str | None = None) -> float | None:
    """How far twice the end of a branch, or one of its ends, is from adding twice as much; None
    where it adds nothing, as an expert that no token is sent to."""
    x, others = subject.stream(layer), dict.fromkeys(BRANCHES, 0.0)
    added = [
        subject.block(layer, **subject.scaled(layer, others | {branch: factor}, end)).detach() - x
        for factor in (1.0, 2.0)
    ]
    if relative(added[0], x) < 1e-6:
        return None
    return relative(added[1] - 2 * added[0], 2 * added[0])


def _fan_faults(subject: Subject, layer: int) -> Iterator[str]:
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


def _gains(subject: Subject, layer: int, branch: str) -> list[tuple[str, TensorInfo]]:
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
    subject: Subject,
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
    with running():  # again, where activations are not kept but computed a second time
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


def _ends(subject: Subject, layer: int, branch: str | None = None) -> str:
    """The names of what was taken for branches' ends."""
    norms = subject.map.last_norms
    names = []
    for _, tensor in subject.tensors(layer):
        if tensor.last_map in ((branch,) if branch else BRANCHES):
            norm = norms.get((tensor.block, tensor.last_map or ""))
            names += (norm.held or [norm.path]) if norm else [tensor.name]
    return ", ".join(dict.fromkeys(names)) or "none"
