"""Unknown tensors: the overrides that would name them, made of the model's own names.

A pattern is the shortest part of a name that matches these tensors, block by block, and no others.
Offered are the types that fit where a tensor is and what shape it has; one of them is a guess where
it is the only one, or where norms in a block are the two of a pre-norm block.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from completedp.apply import names
from completedp.apply.structure import Place, Structure, features, is_norm
from completedp.common.errors import CompletedpError
from completedp.common.surface import command
from completedp.theory.roles import BRANCHES, MODULE_TYPES, Role, is_bias

_STREAM = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "attn_out", "mlp_out")
"""Types in blocks whose gains or biases are as long as the residual stream is wide."""
_PER_HEAD = ("q_norm", "k_norm", "sink")
_ONE = ("output_norm", "output_norm_bias", "unembedding")
"""Types of which a model has one tensor."""
_PRE_NORM = ("attn_norm", "mlp_norm")
_TYPE = "TYPE"
"""What stands for a type that no guess could be made of."""
_SHOWN = 3

Fits = Callable[[Place, str], bool]
_KEY = "**"
_OPEN = {"*": r"\d+", _KEY: r"[^.]+"}
"""What stands for a number, and for the key of a block that is none."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """An override for tensors that are alike: the same one of every block."""

    pattern: str
    types: tuple[str, ...]
    """Those that fit."""
    guess: str | None
    norm_with_bias: bool

    @property
    def module_type(self) -> str:
        """The guess, or a word in its place."""
        return self.guess or _TYPE


def suggest(
    unknown: Sequence[Place], structure: Structure, fits: Fits, *, taken: Collection[str]
) -> list[Suggestion]:
    """An override for all tensors that nobody can classify; `taken` are the types of the others."""
    alike: dict[tuple[str, ...], list[Place]] = {}
    for place in unknown:
        alike.setdefault(_words(place, structure), []).append(place)
    every_name = [place.name for place, _ in structure.places()]
    found: list[Suggestion] = []
    for words, places in alike.items():
        first = next((place for place in places if not place.is_bias), places[0])
        types = tuple(_fitting(first, structure, fits, taken))
        found.append(
            Suggestion(
                pattern=_pattern(words, {p.name for p in places}, every_name),
                types=types,
                guess=_guess(first, structure, types),
                norm_with_bias=is_norm(first.owner) and any(p.is_bias for p in places),
            )
        )
    guesses = [s.guess for s in found]
    doubtful = [kind for kind in _ONE if guesses.count(kind) > 1]
    return [replace(s, guess=None) if s.guess in doubtful else s for s in found]


def check_known(
    unknown: Sequence[Place], suggestions: Sequence[Suggestion], given: Mapping[str, str]
) -> None:
    """Raise where there are tensors that nobody can classify; `given` overrides stay."""
    if not unknown:
        return
    shown = ", ".join(f"{place.name} {list(place.shape)}" for place in unknown[:_SHOWN])
    more = f" and {len(unknown) - _SHOWN} more" if unknown[_SHOWN:] else ""
    what = f"cannot tell the role of {counted(unknown)}: {shown}{more}"
    if (asked := command()) is not None:
        model = shlex.quote(asked.model or "MODEL")
        raise CompletedpError(
            f"{what}; name their types with --override (completedp inspect {model} shows all, and "
            "what to type)"
        )
    by_pattern = {s.pattern: s.module_type for s in suggestions[:_SHOWN]}
    pairs = ", ".join(f"{p!r}: {t!r}" for p, t in {**given, **by_pattern}.items())
    rest = ", ..." if suggestions[_SHOWN:] else ""
    choices = "".join(f"; {line}" for line in _choices(suggestions[:_SHOWN])[:1])
    guessed = " (guessed by their places)" if any(s.guess for s in suggestions[:_SHOWN]) else ""
    raise CompletedpError(
        f"{what}; name their types with overrides={{{pairs}{rest}}}{guessed}{choices}"
    )


def counted(unknown: Sequence[Place]) -> str:
    """How many tensors."""
    return f"{len(unknown)} tensor{'s' * (len(unknown) > 1)}"


def advice(suggestions: Sequence[Suggestion], given: Mapping[str, str]) -> str:
    """The flag to type, below a table in which tensors are marked that nobody can classify."""
    pairs = {**given, **{s.pattern: s.module_type for s in suggestions}}
    words = " ".join(shlex.quote(f"{pattern}={kind}") for pattern, kind in pairs.items())
    lines = [f"name those marked ?: --override {words}"]
    if guessed := [s.pattern for s in suggestions if s.guess]:
        lines.append(f"guessed by place and shape, for you to confirm: {', '.join(guessed)}")
    lines += _choices(suggestions)
    if any(s.norm_with_bias for s in suggestions):
        lines.append("a pattern for a norm covers its bias too")
    return "\n".join(lines)


def _choices(suggestions: Sequence[Suggestion]) -> list[str]:
    """Where there is no guess: the types to choose from, a line for all that have the same."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for suggestion in suggestions:
        if suggestion.guess is None:
            alike.setdefault(suggestion.types, []).append(suggestion.pattern)
    return [
        f"{_TYPE} of {', '.join(patterns)} is one of {', '.join(types)}"
        if types
        else f"no type seems to fit {', '.join(patterns)} (docs/models.md lists them)"
        for types, patterns in alike.items()
    ]


def _fitting(
    place: Place, structure: Structure, fits: Fits, taken: Collection[str]
) -> Iterator[str]:
    """The types that a tensor may have, by place and shape."""
    branch = structure.branch(place)
    reads, gives = (side == structure.width for side in features(place.owner) or (None, None))
    for module_type, role in MODULE_TYPES.items():
        elsewhere = role.in_blocks != (place.layer is not None)
        if structure.between_blocks(place.path):
            elsewhere = False
        if module_type == "mlp_in" and reads and (gives or "unembedding" in taken):
            elsewhere = False  # a hidden layer before the blocks, or after
        if (elsewhere and structure.blocks is not None) or not fits(place, module_type):
            continue
        if module_type in _ONE and module_type in taken and (gives or not reads):
            continue  # but for a second head
        if role is Role.OUTPUT_NORM and structure.norms_embedding(place.path):
            continue
        if len(place.shape) > 1 and not place.is_bias and not role.is_matrix:
            continue
        if role.in_blocks and branch not in _branches(module_type):
            continue
        if len(place.shape) == 1 and not _fits_vector(place, module_type, structure, branch):
            continue
        yield module_type


def _fits_vector(place: Place, module_type: str, structure: Structure, branch: str | None) -> bool:
    """A norm has gains; the output's bias is as long as the vocabulary; and a vector as long as the
    stream is wide is of what reads or writes it, unless it is inside a branch."""
    if is_bias(module_type) != place.is_bias and (place.is_bias or is_norm(place.owner)):
        return False
    stem, (length,) = module_type.removesuffix("_bias"), place.shape
    if module_type == "output_bias":
        return structure.vocabulary in (None, length)
    if module_type == "embedding_bias":
        return structure.width in (None, length)
    if structure.width is None:
        return True
    if length != structure.width:
        return stem not in (*_STREAM, "output_norm")
    if stem == "output_norm":
        return True
    return stem in _STREAM or (branch is not None and stem not in _PER_HEAD)


def _branches(module_type: str) -> tuple[str | None, ...]:
    """Where tensors of a type may be: in a branch, or where no name says which it is."""
    if module_type.startswith("latent_norm"):
        return BRANCHES
    if module_type.startswith("latent"):
        return ("attn",)
    return (None, "mlp" if module_type.startswith(("mlp", "router")) else "attn")


def _guess(place: Place, structure: Structure, types: Sequence[str]) -> str | None:
    """The one type that fits; of a block's two norms that of the branch which it comes before."""
    if len(types) == 1:
        may_come_first = types[0] == "output_norm" and structure.before_blocks(place.path)
        return None if may_come_first else types[0]
    beside = structure.norms_beside(place)
    on_stream = place.layer and is_norm(place.owner) and structure.branch(place) is None
    if not on_stream or len(beside) != 2 or not set(_PRE_NORM) <= set(types):
        return None
    if beside[0] == beside[1]:  # as the first of two rows of layers: no word tells them apart
        return None
    own = beside.index(place.word)
    other = names.norm_in_block(beside[1 - own], beside)
    if other is None:
        return _PRE_NORM[own]
    return next((t for t in _PRE_NORM if t != other), None) if other in _PRE_NORM else None


def _words(place: Place, structure: Structure) -> tuple[str, ...]:
    """What names a tensor, from the model on; its block's key and its expert's number left open.
    The last one is its own, as in a row of different layers."""
    path = f"{place.path}.{place.part}".strip(".").split(".")
    words = [*("*" if word.isdigit() else word for word in path[:-1]), path[-1]]
    block = (structure.block_around(place.path) or "").count(".")
    if block and words[block] != "*":
        words[block] = _KEY
    return tuple(words)


def pattern_of(name: str, every_name: Collection[str]) -> str:
    """The shortest pattern that matches a tensor outside the blocks, and no other."""
    return _pattern(name.split("."), {name}, list(every_name))


def _pattern(words: Sequence[str], wanted: Collection[str], every_name: Sequence[str]) -> str:
    """The shortest end of the words that matches the tensors which they name, and no others. Where
    there is none, their whole names with the numbers left open, which deeper models have, too."""
    parts = [_OPEN.get(word) or re.escape(word) for word in words]
    for start in reversed(range(len(parts))):
        if words[start] in _OPEN or words[start].isdigit():  # a number says nothing by itself
            continue
        end = r"\.".join(parts[start:])
        for pattern in (end, rf"\b{end}\b", rf"(^|\.){end}(\.|$)"):
            if {name for name in every_name if re.search(pattern, name)} == set(wanted):
                return pattern
    last = len(words) - 1
    names_of_all = {
        r"\.".join(
            r"\d+" if word.isdigit() and place < last else re.escape(word)
            for place, word in enumerate(name.split("."))
        )
        for name in wanted
    }
    return "|".join(f"^{name}$" for name in sorted(names_of_all))
