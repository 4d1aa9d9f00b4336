"""Models named on the command line: a Hugging Face config, or a function of the user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from completedp.theory.errors import CompletedpError


def model_from(source: str) -> nn.Module:
    """The model, on the meta device: its weights are neither loaded nor drawn.

    `hf:OWNER/NAME` or `hf:FOLDER` takes a model's config.json, and never code that comes with it;
    `module:function` calls a function without arguments, modules being looked for here first.
    """
    if source.startswith("hf:"):
        return _from_hugging_face(source.removeprefix("hf:"))
    make = function_from(source)
    with torch.device("meta"):
        model = make()
    if not isinstance(model, nn.Module):
        raise CompletedpError(
            f"model {source!r} gave a {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def function_from(source: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    name, colon, function = source.partition(":")
    if not (name and colon and function):
        raise CompletedpError(
            f"model {source!r} must be hf:OWNER/NAME, hf:FOLDER or module:function"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CompletedpError(f"model {source!r}: {error}") from None
    finally:
        sys.path.pop(0)
    found = getattr(module, function, None)
    if not callable(found):
        raise CompletedpError(f"model {source!r}: {name} has no function {function!r}")
    return found


def _from_hugging_face(name: str) -> nn.Module:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise CompletedpError('hf: needs transformers: pip install "completedp[hf]"') from None
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise CompletedpError(f"no model hf:{name}: {reason:.300}") from None
