"""Structure: a model's embedding, blocks, norms and head, found by what its modules are.

Everything is keyed by canonical path, so wrappers anywhere in the model change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from completedp.apply import names
from completedp.apply.names import canonical_name
from completedp.apply.norms import AskedNorms, normalises
from completedp.common.errors import CompletedpError
from completedp.common.surface import override


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a parameter is."""

    path: str
    """Its module's, canonical."""
    key: str
    """Its name in that module."""
    owner: nn.Module
    shape: tuple[int, ...]
    layer: int | None
    """The block it is in, counted from 1."""
    inside: tuple[str, ...]
    """The modules on the way to it: from its block, or from the model."""
    norm_adds: bool = False
    """Whether its module is a norm that adds it."""

    @property
    def name(self) -> str:
        """Canonical."""
        return f"{self.path}.{self.key}" if self.path else self.key

    @property
    def word(self) -> str:
        """What names it: its module, or its own key where the module holds several things."""
        return self.part or (self.inside[-1] if self.inside else "")

    @property
    def part(self) -> str:
        """What of its module it is the weight or bias of; nothing where it is the module's own."""
        return "" if is_norm(self.owner) else names.split_key(self.key)[0]

    @property
    def is_bias(self) -> bool:
        """Whether it is added."""
        return self.norm_adds or names.split_key(self.key)[1] == "bias" or self.key == "beta"

    @property
    def containers(self) -> tuple[str, ...]:
        """The modules around what its word names."""
        return self.inside if self.part else self.inside[:-1]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile, DistributedDataParallel and the like, where
    its own buffers and config are."""
    while True:
        wrapped = (module._modules.get(name) for name in names.WRAPPERS)
        inner = next((m for m in wrapped if m is not None), None)
        if inner is None:
            return module
        module = inner


def inside(module: nn.Module) -> nn.Module:
    """The module inside torch's own wrappers, which only pass on what they are given.

    A class of the user's own that calls what it wraps `module` may do more: it is to be run.
    """
    while type(module).__module__.startswith(_WRAPPING) and len(module._modules) == 1:
        ((name, inner),) = module._modules.items()
        if name not in names.WRAPPERS or inner is None:
            break
        module = inner
    return module


def uncompiled(model: nn.Module) -> nn.Module:
    """A model without what `torch.compile` put around it, or around some of its modules."""
    model = inside(model)
    for module in list(model.modules()):
        if module._compiled_call_impl is not None:  # module.compile()
            module._compiled_call_impl = None
        for name, inner in module._modules.items():
            while inner is not None and type(inner).__module__.startswith("torch._dynamo."):
                module._modules[name] = inner = inner._modules["_orig_mod"]
    return model


_WRAPPING = ("torch.", "deepspeed.")
"""Where the classes of wrappers are."""


class Structure:
    """The parts of a model. Tensors named in `settled` have their types already."""

    def __init__(self, model: nn.Module, settled: Collection[str] = ()) -> None:
        self._every_module = [
            (canonical_name(f"{path}.").rstrip("."), module)
            for path, module in model.named_modules()
        ]
        # Of a wrapper and what it wraps, which share a path, the inner one comes last and stays.
        self.modules = dict(self._every_module)
        self._settled = settled
        self.norms = AskedNorms()
        self._tables = {p: m for p, m in self.modules.items() if isinstance(m, nn.Embedding)}
        self.blocks = self._find_blocks()
        self.head = self._declared("get_output_embeddings")
        self.embedding = self._declared("get_input_embeddings") or self._find_embedding()
        self.head = self.head or self._find_head()
        self.output_norm = self._find_output_norm()

    def in_block(self, path: str) -> bool:
        """Whether a path leads into a block."""
        return self.block_around(path) is not None

    def between_blocks(self, path: str) -> bool:
        """Whether a path leads into a group of blocks, beside them."""
        if self.blocks is None or path == self.blocks or self.in_block(path):
            return False
        return path.startswith(f"{self.blocks}." if self.blocks else "")

    @cached_property
    def layers(self) -> dict[str, int]:
        """The blocks' paths, with their numbers from 1: those of the list's modules, or of the
        blocks in each where these are groups of blocks."""
        if self.blocks is None:
            return {}
        of_list = self._held_by(self.blocks)
        inner = [self._lists_in(path) for path in of_list]
        if all(len(lists) == 1 for lists in inner):
            of_list = [block for (path,) in inner for block in self._held_by(path)]
        return {path: layer for layer, path in enumerate(of_list, start=1)}

    def _held_by(self, path: str) -> list[str]:
        """The paths of what a list holds, whose keys may be any words or numbers."""
        held = self.modules[path]._modules.items()
        found = {f"{path}.{key}".lstrip("."): m for key, m in held if m is not None}
        _check_not_shared(found)
        return list(found)

    def _lists_in(self, group: str) -> list[str]:
        """The lists of blocks in a module, but for those in a branch, as of experts."""
        found: list[str] = []
        for name, module in self.modules[group].named_modules():
            path = canonical_name(f"{group}.{name}.").rstrip(".")
            within = any(_is_within(path, other) for other in found)
            in_branch = names.branch_of(path.removeprefix(group).split("."))
            if not within and not in_branch and _is_block_list(module) and _are_blocks(module):
                found.append(path)
        return found

    def block_around(self, path: str) -> str | None:
        """The path of the block that a path is in."""
        words = path.split(".")
        ends = (".".join(words[:end]) for end in range(1, len(words) + 1))
        return next((end for end in ends if end in self.layers), None)

    def places(self) -> Iterator[tuple[Place, nn.Parameter]]:
        """Every parameter of the model, in the model's order, tied ones at each of their places."""
        for path, module in self._every_module:
            for key, parameter in module.named_parameters(recurse=False):
                place = self._place(path, key, module, tuple(parameter.shape))
                adds = key != "weight" and is_norm(module) and self.norms.adds(module, key)
                yield (replace(place, norm_adds=True) if adds else place), parameter

    @cached_property
    def shared(self) -> list[tuple[Place, Place]]:
        """Parameters at several places: every later place with the first, whose name they have."""
        first: dict[int, Place] = {}
        found = []
        for place, parameter in self.places():
            if first.setdefault(id(parameter), place) is not place:
                found.append((place, first[id(parameter)]))
        return found

    @cached_property
    def tied(self) -> tuple[Place, Place] | None:
        """The embedding and the head that are one tensor, each at its place; a head that is the
        embedding's own module is at the same."""
        for pair in self.shared:
            for embedding, head in (pair, pair[::-1]):
                if self._embeds(embedding) and self._makes_logits(head):
                    return embedding, head
        if self.embedding is None or self.head != self.embedding:
            return None
        module = self.modules[self.embedding]
        place = self._place(self.embedding, "weight", module, tuple(module.weight.shape))  # type: ignore[union-attr]
        return place, place

    def _embeds(self, place: Place) -> bool:
        is_table = isinstance(place.owner, nn.Embedding) or place.path == self.embedding
        return is_table and place.layer is None

    def _makes_logits(self, place: Place) -> bool:
        return (fans(place.owner) is not None or place.path == self.head) and place.layer is None

    def weight_of(self, bias: Place) -> Place | None:
        """The weight that a bias belongs to; a norm's vectors belong together."""
        if is_norm(bias.owner):
            return bias
        for key, parameter in bias.owner.named_parameters(recurse=False):
            if names.split_key(key) == (bias.part, "weight"):
                return replace(bias, key=key, shape=tuple(parameter.shape))
        return None

    @cached_property
    def width(self) -> int | None:
        """The width of the residual stream: that of the token embedding, or of the blocks' norms
        where there is none, as in a model of images."""
        if self.embedding is not None:
            first = next(self.modules[self.embedding].parameters())
            return int(first.shape[-1 if first.dim() < 3 else 0])  # of patches: [width, ...]
        found = (p for p, _ in self.places() if names.outside_blocks(p.word) == "embedding")
        named = next((_made_by(place) for place in found if place.layer is None), None)
        normed = {
            p.shape[0]
            for p, _ in self.places()
            if p.layer and is_norm(p.owner) and len(p.shape) == 1 and self.branch(p) is None
        }
        return named if named is not None or len(normed) != 1 else normed.pop()

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are: rows of the token embedding, where that is a table."""
        table = self._tables.get(self.embedding) if self.embedding is not None else None
        return None if table is None else table.num_embeddings

    @cached_property
    def _stream_norms(self) -> dict[int, list[str]]:
        """The names of every block's norms of the residual stream: not those in its branches."""
        found: dict[int, list[str]] = {}
        for path, module in self.modules.items():
            place = self._place(path, "weight", module, ())
            if place.layer and is_norm(module) and self.branch(place) is None:
                found.setdefault(place.layer, []).append(place.word)
        return found

    def norms_beside(self, place: Place) -> list[str]:
        """The names of the norms of a place's block."""
        return self._stream_norms.get(place.layer or 0, [])

    def linears_beside(self, place: Place) -> dict[str, Place]:
        """The linear layers in the module around a place, itself among them, by name."""
        parent = place.path.rpartition(".")[0]
        prefix = f"{parent}." if parent else ""
        found = {}
        for key in self.modules[parent]._modules:
            owner = self.modules.get(prefix + key)
            if owner is not None and fans(owner):
                shape = tuple(owner.get_parameter("weight").shape)
                found[key] = self._place(prefix + key, "weight", owner, shape)
        return found

    def has_attention(self, place: Place) -> bool:
        """Whether a module beside a place says that it is attention, and has linear layers."""
        beside = self.modules[place.path.rpartition(".")[0]]._modules
        return any(
            module is not None
            and not fans(module)
            and names.branch_of([word, type(module).__name__]) == "attn"
            and any(map(fans, module.modules()))
            for word, module in beside.items()
        )

    def lengths_of_qk_norms(self, place: Place) -> list[int]:
        """Of the norms of queries and keys in the module around a place."""
        parent = place.path.rpartition(".")[0]
        around = self.modules[parent]._modules
        return [
            int(next(module.parameters()).shape[-1])
            for key, module in around.items()
            if module is not None
            and is_norm(module)
            and names.norm_in_block(key, ()) in ("q_norm", "k_norm")
        ]

    def words_beside(self, place: Place) -> set[str]:
        """The names of the matrices around a place: linear layers, or parts of one module."""
        if place.part:
            return {names.split_key(key)[0] for key in place.owner._parameters}
        return set(self.linears_beside(place))

    @property
    def norms_without_gains(self) -> dict[tuple[int, str], str]:
        """Norms at the end of a branch that have no tensor to tell them by: by block and branch."""
        bare: list[Place] = []
        beside = {layer: list(words) for layer, words in self._stream_norms.items()}
        for path, module in self.modules.items():
            if _may_be_norm(module) and not is_norm(module):
                place = self._place(path, "weight", module, ())
                if place.layer and self.branch(place) is None:
                    bare.append(place)
                    beside.setdefault(place.layer, []).append(place.word)
        found: dict[tuple[int, str], str] = {}
        for place in bare:
            assert place.layer is not None
            kind = names.norm_in_block(place.word, beside[place.layer])
            if kind in ("attn_post_norm", "mlp_post_norm"):
                found[place.layer, kind.removesuffix("_post_norm")] = place.path
        return found

    def branch(self, place: Place) -> str | None:
        """The residual branch around a place, by the names and classes of its containers."""
        words = []
        path = place.path if place.part else place.path.rpartition(".")[0]
        for name in reversed(place.containers):
            words += [name, type(self.modules[path]).__name__]
            path = path.rpartition(".")[0]
        return names.branch_of(words)

    def type_of(self, place: Place) -> str | None:
        """The module type of a weight or a norm's vector, where structure alone tells it."""
        if place.path in self._tables and place.path != self.embedding and place.layer is None:
            return "position" if self.embedding is not None else None
        if self.tied and place.path in (self.tied[0].path, self.tied[1].path) and not place.part:
            return "tied_embedding"
        for path, kind in (
            (self.embedding, "embedding"),
            (self.head, "unembedding"),
            (self.output_norm, "output_norm"),
        ):
            if place.path == path and place.layer is None and not place.part:
                return kind
        if place.layer is None:
            return None
        if is_norm(place.owner) and self.norms_beside(place) == [place.word]:
            return "attn_norm"
        return "router" if len(place.shape) == 2 and self._is_router(place) else None

    def _is_router(self, place: Place) -> bool:
        """In a module called router, or with one output for each of the experts beside it."""
        path = place.path
        for name in reversed(place.inside):
            if "router" in (name + type(self.modules[path]).__name__).lower():
                return True
            path = path.rpartition(".")[0]
        around = self.modules[place.path.rpartition(".")[0]]
        counts = {_expert_count(unwrapped(m)) for m in around._modules.values() if m is not None}
        counts |= {
            int(p.shape[0]) for p in around._parameters.values() if p is not None and p.ndim == 3
        }
        return place.shape[0] in counts and place.shape[1] == self.width

    def _place(self, path: str, key: str, owner: nn.Module, shape: tuple[int, ...]) -> Place:
        block = self.block_around(path)
        inside = path if block is None else path.removeprefix(block).removeprefix(".")
        return Place(
            path=path,
            key=key,
            owner=owner,
            shape=shape,
            layer=None if block is None else self.layers[block],
            inside=tuple(inside.split(".")) if inside else (),
        )

    def _find_blocks(self) -> str | None:
        """The path of the list of like blocks that is in no other one."""
        found: list[str] = []
        for path, module in self.modules.items():
            within = any(path.startswith(f"{other}." if other else "") for other in found)
            if not within and _is_block_list(module):
                found.append(path)
        open_lists = [path for path in found if self._has_open_tensors(path)]
        if len(open_lists) > 1:
            lists = ", ".join(f"{path} ({len(self.modules[path]._modules)})" for path in open_lists)
            raise CompletedpError(
                f"the model has {len(open_lists)} lists of blocks, {lists}, and depth counts one: "
                f"freeze the others, or type their tensors with {override()}, whose patterns say "
                r"the block: 'encoder\.(?P<layer>\d+)\.attn\.proj'"
            )
        return next(iter(open_lists or found), None)

    def _has_open_tensors(self, path: str) -> bool:
        """Whether a list of blocks has trainable tensors whose types are still to be found."""
        prefix = f"{path}." if path else ""
        return any(
            p.requires_grad and canonical_name(f"{prefix}{name}") not in self._settled
            for name, p in self.modules[path].named_parameters()
        )

    def _declared(self, method: str) -> str | None:
        """The path of the module that a Hugging Face model's method gives."""
        for module in self.modules.values():
            if not callable(getattr(module, method, None)):
                continue
            try:
                found = getattr(module, method)()
            except (AttributeError, NotImplementedError):
                continue
            for path, other in self.modules.items():
                if isinstance(found, nn.Module) and other is unwrapped(found):
                    return path
        return None

    def _find_embedding(self) -> str | None:
        """The one table outside the blocks; of several, the one the logits have a place for, or
        that is called so; of those they have a place for, the one that is not of positions."""
        tables = [p for p in self._tables if not self.in_block(p)]
        kinds = {p: names.outside_blocks(p.split(".")[-1]) for p in tables}
        if len(tables) > 1:
            linears = [self.modules[p] for p in self._linears_outside()]
            matching = [p for p in tables if any(_has_rows(m, self._tables[p]) for m in linears)]
            named = [p for p in tables if kinds[p] == "embedding"]
            tables = matching if len(matching) == 1 else named or matching
        tables = [p for p in tables if kinds[p] != "position"]
        return tables[0] if len(tables) == 1 else None

    def _find_head(self) -> str | None:
        """The one linear layer outside the blocks with an output for every row of the embedding."""
        table = self._tables.get(self.embedding) if self.embedding is not None else None
        heads = [
            path
            for path in self._linears_outside()
            if table is not None and _has_rows(self.modules[path], table)
        ]
        return heads[0] if len(heads) == 1 else None

    def _find_output_norm(self) -> str | None:
        """The one norm outside the blocks, unless it may be the embedding's."""
        norms = [p for p, m in self.modules.items() if is_norm(m) and not self.in_block(p)]
        if len(norms) != 1 or self.norms_embedding(norms[0]):
            return None
        named = names.outside_blocks(norms[0].split(".")[-1]) == "output_norm"
        return norms[0] if named or not self.before_blocks(norms[0]) else None

    def norms_embedding(self, path: str) -> bool:
        """Whether a norm outside the blocks is the embedding's: called so, or in a module that has
        the embedding and no blocks."""
        words = path.split(".")
        if self.blocks is None:
            return names.says_embedding(words[-1])
        around = [".".join(words[:end]) for end in range(1, len(words) + 1)]
        around = [outer for outer in around if not _is_within(self.blocks, outer)]
        return any(
            names.says_embedding(outer.split(".")[-1])
            or (self.embedding is not None and _is_within(self.embedding, outer))
            for outer in around
        )

    def before_blocks(self, path: str) -> bool:
        """Whether a module was made before the blocks were: often in the order of their use."""
        order = list(self.modules)
        return self.blocks is not None and order.index(path) < order.index(self.blocks)

    def _linears_outside(self) -> list[str]:
        return [p for p, m in self.modules.items() if fans(m) and not self.in_block(p)]


def _has_rows(linear: nn.Module, table: nn.Embedding) -> bool:
    """Whether a linear layer has an output for every row of a table; one whose sides nothing else
    tells apart must read what is as wide as the table."""
    both = may_be_fans(linear)
    return any(
        fan_out == table.num_embeddings and (len(both) == 1 or fan_in == table.embedding_dim)
        for fan_in, fan_out in both
    )


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def _is_block_list(module: nn.Module) -> bool:
    """Like modules in a row, each with two matrices or more."""
    children = [unwrapped(m) for m in module._modules.values() if m is not None]
    if not isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict) or not children:
        return False
    if len(children) == 1 and (  # a container around the model, or around the list
        _is_block_list(children[0])
        or any(isinstance(m, nn.Embedding) for m in children[0].modules())
    ):
        return False
    return len({_own_class(child) for child in children}) == 1 and all(
        sum(p.ndim > 1 for p in child.parameters()) > 1 for child in children
    )


def _are_blocks(modules: nn.Module) -> bool:
    """Whether like modules in a row are blocks, which have norms: experts have none, and branches
    in a row, whose tensors differ, have one each."""
    children = [unwrapped(m) for m in modules._modules.values() if m is not None]
    norms = [sum(_may_be_norm(m) for m in child.modules()) for child in children]
    tensors = {tuple(name for name, _ in child.named_parameters()) for child in children}
    return all(norms) and (min(norms) > 1 or len(tensors) == 1)


def _check_not_shared(blocks: Mapping[str, nn.Module]) -> None:
    """Raise where one block is in several places. Its branches add up over its calls, and would
    go by their number; but so do its tensors' gradients, and for that there is no rule."""
    first: dict[int, str] = {}
    for path, block in blocks.items():
        tensors = [id(p) for p in block.parameters()]
        if tensors and first.keys() >= set(tensors):
            raise CompletedpError(
                f"{first[tensors[0]]} and {path} are one block in several places, and there is no "
                "rule for tensors whose gradient is a sum over layers: give each place a block of "
                "its own, or keep the block once and call it as often as at the base"
            )
        first |= {each: path for each in tensors if each not in first}


def _may_be_norm(module: nn.Module) -> bool:
    """A norm, also one without a gain."""
    has_none = next(module.parameters(), None) is None
    return is_norm(module) or (has_none and "norm" in type(module).__name__.lower())


def _own_class(module: nn.Module) -> type:
    """A module's class before `fully_shard`, which gives what it shards one called FSDP."""
    return next(kind for kind in type(module).__mro__ if not kind.__name__.startswith("FSDP"))


def has_vectors_alone(module: nn.Module) -> bool:
    """A norm, or a gain of any kind: nothing but vectors, or numbers, of its own."""
    own = [p for p in module._parameters.values() if p is not None]
    children = any(child is not None for child in module._modules.values())
    return bool(own) and all(p.ndim <= 1 for p in own) and not children


def is_norm(module: nn.Module) -> bool:
    """A module called Norm, or one that normalises, with nothing but a gain and perhaps a bias."""
    own = {name: p for name, p in module._parameters.items() if p is not None}
    if not has_vectors_alone(module) or any(p.ndim == 0 for p in own.values()):
        return False
    if "norm" in type(module).__name__.lower():
        return True
    return "weight" in own and own.keys() <= {"weight", "bias"} and normalises(module)


def fans(module: nn.Module) -> tuple[int, int] | None:
    """Fan-in and fan-out of a linear layer. Hugging Face's Conv1D keeps its weight transposed."""
    return next(iter(may_be_fans(module)), None)


def features(module: nn.Module) -> tuple[int, int] | None:
    """How many a linear layer or a convolution reads for each of its outputs, and how many it
    gives."""
    channels = getattr(module, "in_channels", None), getattr(module, "out_channels", None)
    if fans(module) is not None or not all(isinstance(each, int) for each in channels):
        return fans(module)
    return channels[0] // getattr(module, "groups", 1), channels[1]  # type: ignore[operator,return-value]


def may_be_fans(module: nn.Module) -> list[tuple[int, int]]:
    """Fan-in and fan-out of a linear layer, the likely first; either way round where no more than
    its class's name tells that it is one."""
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding):
        return []
    first, second = map(int, weight.shape)
    classes = [kind.__name__ for kind in type(module).__mro__]  # sharding makes subclasses
    if "Conv1D" in classes and hasattr(module, "nf"):
        return [(first, second)]
    if isinstance(module, nn.Linear):
        return [(second, first)]
    return [(second, first), (first, second)] if "linear" in type(module).__name__.lower() else []


def _expert_count(module: nn.Module) -> int | None:
    """How many experts a module holds: like modules in a list, or tensors of three dimensions."""
    if _is_block_list(module):
        return len(module._modules)
    stacked = (p for p in module.parameters() if p.ndim == 3)
    return next((int(p.shape[0]) for p in stacked), None)


def _made_by(embedding: Place) -> int:
    """The width that an embedding makes: a table's rows, the outputs of what reads patches."""
    both = fans(embedding.owner)
    if both is not None:
        return both[1]
    return embedding.shape[-1 if len(embedding.shape) < 3 else 0]
