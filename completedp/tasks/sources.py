"""Models, losses and data by name: `module:function`, or a Hugging Face config."""

from __future__ import annotations

import copy
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from completedp.apply.classify import size_of
from completedp.common.errors import CompletedpError, short
from completedp.common.extras import import_extra
from completedp.common.files import user_path
from completedp.lm.reference import ReferenceModel
from completedp.tasks.config import UNTIED
from completedp.theory.scale import Scale


def maker_from(source: str, vocab: int | None = None) -> Callable[[Scale], nn.Module]:
    """`make(scale)` by name: `hf:OWNER/NAME`, `hf:FOLDER` or `module:function`.

    A Hugging Face config is scaled to the width and depth asked for, with `vocab` tokens if given;
    code that comes with it is never run. `hf-untied:` gives it a head of its own where it has none.
    """
    if source.startswith(("hf:", UNTIED)):
        config = _config(source.partition(":")[2])
        if source.startswith(UNTIED):
            for part in (config, config.get_text_config()):
                part.tie_word_embeddings = False
        return HuggingFace(source, config, vocab)
    return function_from(source, "model", "hf:OWNER/NAME, hf:FOLDER or module:function")


def model_from(
    source: str | Callable[[Scale], nn.Module],
    scale: Scale,
    sizes: Mapping[str, int | None],
    *,
    overrides: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
) -> tuple[nn.Module, int, int]:
    """A model on the meta device, its width and its depth."""
    model = made_from(source, scale, sizes)
    return model, *check_sizes(source, model, sizes, overrides=overrides, inherited=inherited)


def made_from(
    source: str | Callable[[Scale], nn.Module], scale: Scale, sizes: Mapping[str, int | None]
) -> nn.Module:
    """A model on the meta device.

    A function of nothing has one size, and a Hugging Face config is taken as it is unless `sizes`
    gives a width or a depth; all others are asked for the scale.
    """
    maker = maker_from(source) if isinstance(source, str) else source
    shown = _shown(source)
    fixed = not isinstance(maker, HuggingFace) and not inspect.signature(maker).parameters
    check_takes_scale(maker, shown)
    with torch.device("meta"):
        try:
            if isinstance(maker, HuggingFace) and not any(sizes.values()):
                model = maker.as_configured()
            else:
                model = maker() if fixed else maker(scale)  # type: ignore[call-arg]
        except CompletedpError as error:
            if isinstance(maker, ReferenceModel):
                raise
            raise CompletedpError(f"{shown}: {error}") from None
        except (Exception, SystemExit) as error:  # the user's own code may fail in any way
            raise CompletedpError(f"{shown}: {short(error)}") from None
    if not isinstance(model, nn.Module):
        raise CompletedpError(f"{shown} gave a {type(model).__name__}, not a torch.nn.Module")
    return model


def check_takes_scale(maker: Callable[..., Any], shown: str) -> None:
    """Raise where a function asks for more than it is given."""
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):  # of what is not written in Python nobody knows
        return
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise CompletedpError(
            f"{shown} asks for {', '.join(needed)}, and is given one completedp.Scale, which has "
            "width and depth: take that alone, as `def make(scale)` does"
        )


def check_sizes(
    source: str | Callable[[Scale], nn.Module],
    model: nn.Module,
    sizes: Mapping[str, int | None],
    *,
    overrides: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """A model's width and depth, which must be those of `sizes` that are given."""
    width, depth = size_of(model, overrides, inherited=inherited)
    for name, found in (("width", width), ("depth", depth)):
        if sizes.get(name) not in (None, found):
            raise CompletedpError(
                f"{_shown(source)} has {name} {found}, not the {sizes[name]} asked for"
            )
    return width, depth


def _shown(source: str | Callable[[Scale], nn.Module]) -> str:
    return f"model {source[:200]!r}" if isinstance(source, str) else name_of(source)


def small_copy(source: str) -> nn.Module | None:
    """A Hugging Face model of one head of keys and two blocks, to be run; None of other sources."""
    if not source.startswith(("hf:", UNTIED)):
        return None
    maker = maker_from(source, vocab=256)
    assert isinstance(maker, HuggingFace)
    try:
        return maker(Scale(width=maker.unit, depth=2, batch=1, tokens=1))
    except Exception:  # a family whose sizes depend on each other in other ways
        return None


def function_from(source: str, what: str, forms: str = "module:function") -> Callable[..., Any]:
    """The function that `module:function` names; modules are looked for here first."""
    name, colon, function = source.partition(":")
    if name in ("hf", UNTIED.rstrip(":")) or not (name and colon and function):
        raise CompletedpError(f"{what} {source[:200]!r} must be {forms}")
    if name.endswith(".py"):
        raise CompletedpError(
            f"{what} {source[:200]!r}: give the module, as import does: "
            f"{name[:-3].replace('/', '.')[:100]}:{function[:100]}"
        )
    here = str(Path.cwd())
    if here not in sys.path:  # and it stays there: the function may import what is beside it
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
        found = getattr(module, function, None)
    except (Exception, SystemExit) as error:  # the user's own code may fail in any way
        raise CompletedpError(f"{what} {source[:200]!r}: {short(error)}") from None
    if not callable(found):
        there = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == name
        ]
        has = f", and has {', '.join(there[:5])}" if there else ""
        raise CompletedpError(f"{what} {source[:200]!r}: {name} has no function {function!r}{has}")
    return found


def name_of(function: Any) -> str:
    """`module:function`, as it would be given on the command line."""
    if isinstance(function, HuggingFace):
        return function.source
    if isinstance(function, partial):
        return f"{name_of(function.func)}({_digest((function.args, function.keywords))})"
    kind = function if hasattr(function, "__qualname__") else type(function)
    module = kind.__module__
    if module == "__main__":  # a script's is its file's, as others would import it
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else module
    name = f"{module}:{kind.__qualname__}"
    if "<" not in name:
        return name
    # A lambda, or a function within another: no name tells it from the next one.
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    closed = tuple(repr(_stable(cell.cell_contents)) for cell in cells or () if _is_plain(cell))
    return f"{name}({_digest((_code(code), closed, getattr(function, '__defaults__', None)))})"


def _code(code: Any) -> Any:
    """What a function does, without where it was written."""
    if code is None:
        return None
    constants = tuple(
        _code(c) if isinstance(c, CodeType) else repr(_stable(c)) for c in code.co_consts
    )
    return code.co_code, code.co_names, constants


def _is_plain(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, int | float | str | bool | tuple | None)
    except ValueError:  # empty
        return False


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(_stable(value)).encode(), digest_size=4).hexdigest()


class _Words(str):
    """A text that is shown as it is."""

    def __repr__(self) -> str:
        return str(self)


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _stable(value: Any) -> Any:
    """A value whose `repr` is the same in every process; of what has one it is the value's own."""
    if isinstance(value, str | bytes | int | float | None):
        return value
    if type(value) in (tuple, list):
        return type(value)(map(_stable, value))
    if type(value) is dict:
        return {key: _stable(each) for key, each in value.items()}
    if isinstance(value, set | frozenset) and value:  # in an order of each process
        each = sorted(repr(_stable(each)) for each in value)
        return _Words(f"{type(value).__name__}({{{', '.join(each)}}})")
    shown = repr(value)
    if not _ADDRESS.search(shown):
        return value
    if callable(value) and hasattr(value, "__qualname__"):
        return _Words(name_of(value))
    attributes = getattr(value, "__dict__", None)
    if attributes is None:
        return _Words(_ADDRESS.sub("", shown))
    # Its class and its attributes; what hides behind those is not followed.
    plain = {key: _ADDRESS.sub("", repr(each)) for key, each in attributes.items()}
    return _Words(f"{type(value).__module__}.{type(value).__qualname__}({plain})")


def overrides_from(pairs: tuple[str, ...]) -> dict[str, str]:
    """REGEX=TYPE, of which the expression may hold an equals sign itself."""
    found = {}
    for pair in pairs:
        pattern, equals, module_type = pair.rpartition("=")
        if not equals:
            raise CompletedpError(f"override {pair!r} must be REGEX=TYPE")
        found[pattern] = module_type
    return found


_HEADS = ("num_attention_heads", "num_key_value_heads")
_HIDDEN_SIZES = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "ffn_dim",
    "n_inner",
)
"""What configs call the widths of their feed-forward layers."""


@dataclass(frozen=True)
class HuggingFace:
    """A causal language model of transformers, at any width and depth."""

    source: str
    config: Any
    vocab: int | None = None

    def as_configured(self) -> nn.Module:
        """The model as its config says, drawn on the current device."""
        return self._model(self.config)

    def __call__(self, scale: Scale) -> nn.Module:
        return self._model(self.scaled(scale))

    def scaled(self, scale: Scale) -> Any:
        """The config with another width and depth: more heads of the same size, more blocks."""
        config = copy.deepcopy(self.config)
        old = config.get_text_config()
        sizes = {"hidden_size": scale.width, "num_hidden_layers": scale.depth}
        for name in (*_HEADS, *_HIDDEN_SIZES):
            size = getattr(old, name, None)
            if isinstance(size, int):
                sizes[name] = self._times(name, size, scale.width, old.hidden_size)
        if isinstance(getattr(old, "head_dim", None), int):
            sizes["head_dim"] = old.head_dim
        if self.vocab is not None:
            sizes["vocab_size"] = self.vocab
        layers = getattr(old, "layer_types", None)
        for name, value in sizes.items():
            setattr(old, name, value)
        if isinstance(layers, list):  # of a period that the deeper model repeats
            old.layer_types = [layers[i % len(layers)] for i in range(scale.depth)]
        if self.vocab is not None:
            for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
                token = getattr(old, name, None)
                if isinstance(token, int) and token >= self.vocab:
                    setattr(old, name, None)
        return config

    def _times(self, name: str, size: int, width: int, old: int) -> int:
        if name in _HIDDEN_SIZES:
            return max(1, round(size * width / old))
        heads, rest = divmod(size * width, old)
        if rest or not heads:
            raise CompletedpError(
                f"{self.source}: {name} = {size} times {width / old:g} is not a whole number of "
                f"heads: choose a width that is a multiple of {self.unit}"
            )
        return heads

    @property
    def unit(self) -> int:
        """The least width, of which others are multiples: a head of keys and its queries."""
        text = self.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        return text.hidden_size // heads

    def _model(self, config: Any) -> nn.Module:
        hf = import_extra("transformers", "hf:")
        try:
            return hf.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except Exception as error:  # of the config, or of what is in it
            raise CompletedpError(f"no model {self.source[:200]!r}: {short(error)}") from None


def _config(name: str) -> Any:
    hf = import_extra("transformers", "hf:")
    path = user_path(name)
    if name.startswith((".", "/", "~")) and not path.is_dir():
        raise CompletedpError(f"no folder {name[:200]!r} with a config.json")
    try:
        return hf.AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    except Exception as error:  # of the hub or of the file
        raise CompletedpError(f"no model 'hf:{name[:200]}': {short(error)}") from None
