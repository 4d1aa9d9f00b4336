"""Models named on the command line: a Hugging Face config, or a function of the user's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from torch import nn

from completedp.common.errors import CompletedpError
from completedp.common.extras import import_extra


def model_from(source: str) -> nn.Module:
    """The model, on the meta device: its weights are neither loaded nor drawn.

    `hf:OWNER/NAME` or `hf:FOLDER` takes a model's config.json, and never code that comes with it;
    `module:function` calls a function without arguments, modules being looked for here first.
    """
    if source.startswith("hf:"):
        return _from_hugging_face(source.removeprefix("hf:"))
    with torch.device("meta"):
        return call(source)


def call(source: str, *arguments: int) -> nn.Module:
    """The model that the function gives which `module:function` names."""
    name, colon, function = source.partition(":")
    if name == "hf" or not (name and colon and function):
        forms = "module:function" if arguments else "hf:OWNER/NAME, hf:FOLDER or module:function"
        raise CompletedpError(f"model {source[:200]!r} must be {forms}")
    path = sys.path
    sys.path = [str(Path.cwd()), *path]
    try:
        make = getattr(importlib.import_module(name), function, None)
        if not callable(make):
            raise CompletedpError(f"{name} has no function {function!r}")
        model = make(*arguments)
    except CompletedpError as error:
        raise CompletedpError(f"model {source[:200]!r}: {error}") from None
    except (Exception, SystemExit) as error:  # the user's own code may fail in any way
        raise CompletedpError(f"model {source[:200]!r}: {_short(error)}") from None
    finally:
        sys.path = path
    if not isinstance(model, nn.Module):
        raise CompletedpError(
            f"model {source!r} gave a {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def _short(error: BaseException) -> str:
    """One line of an error that is not ours."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


def _from_hugging_face(name: str) -> nn.Module:
    hf = import_extra("transformers", "hf:")
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise CompletedpError(f"no folder {name[:200]!r} with a config.json")
    try:
        config = hf.AutoConfig.from_pretrained(
            str(Path(name).expanduser()), trust_remote_code=False
        )
        with torch.device("meta"):
            return hf.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # of the hub, of the file, or of what is in it
        raise CompletedpError(f"no model 'hf:{name[:200]}': {_short(error)}") from None


def overrides_from(pairs: tuple[str, ...]) -> dict[str, str]:
    """REGEX=TYPE, of which the expression may hold an equals sign itself."""
    found = {}
    for pair in pairs:
        pattern, equals, module_type = pair.rpartition("=")
        if not equals:
            raise CompletedpError(f"override {pair!r} must be REGEX=TYPE")
        found[pattern] = module_type
    return found
