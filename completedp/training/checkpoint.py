"""Checkpoints: one safetensors file with weights, moments and the step. Never pickle.

A checkpoint is written beside the old one and renamed over it, so a kill or a full disk at any
moment leaves the previous one whole. Loading brings back weights, moments and position, and never
a learning rate, decay, eps or beta: those belong to the plan.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from completedp.apply.classify import canonical_name
from completedp.apply.optimise import load_optimizer_state
from completedp.theory.errors import CompletedpError

FILE = "checkpoint.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what torch's AdamW keeps


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer, step: int, extra: dict[str, Any]
) -> None:
    """Write the state after `step` updates; `extra` is small and goes along as JSON."""
    tensors = {f"model/{canonical_name(k)}": v for k, v in model.state_dict().items()}
    for name, moments in _moments(optimizer).items():
        tensors |= {f"optimizer/{key}/{name}": value for key, value in moments.items()}
    path, temporary = folder / FILE, folder / f".{FILE}.{os.getpid()}.part"
    metadata = {"step": str(step), "extra": json.dumps(extra)}
    try:
        save_file({k: v.detach().contiguous() for k, v in tensors.items()}, temporary, metadata)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        kept = f"the one of step {read_step(folder)} is kept" if path.exists() else "there is none"
        raise CompletedpError(
            f"could not write the checkpoint of step {step} to {str(path)!r} ({error}); {kept}: "
            "make room and run the same command again"
        ) from None


def read_step(folder: Path) -> int | None:
    """The step of the checkpoint in a run folder, or None where there is none."""
    if not (folder / FILE).exists():
        return None
    return _metadata(folder / FILE)[0]


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer
) -> tuple[int, dict[str, Any]]:
    """Bring a run back to its last checkpoint; returns its step and what went along."""
    path = folder / FILE
    metadata = _metadata(path)
    with safe_open(path, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    weights = {k.removeprefix("model/"): v for k, v in found.items() if k.startswith("model/")}
    own = {canonical_name(k): v for k, v in model.state_dict().items()}
    if weights.keys() != own.keys():
        odd = sorted(weights.keys() ^ own.keys())[0]
        raise CompletedpError(f"{str(path)!r} is of another model: {odd} is in one only")
    for name, value in weights.items():
        if value.shape != own[name].shape or value.dtype != own[name].dtype:
            raise CompletedpError(
                f"{str(path)!r} is of another model: {name} is {value.dtype} {list(value.shape)} "
                f"there and {own[name].dtype} {list(own[name].shape)} here"
            )
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for index, name in enumerate(names):
        keys = {moment: f"optimizer/{moment}/{name}" for moment in _MOMENTS}
        if not found.keys() >= set(keys.values()):
            raise CompletedpError(f"{str(path)!r} lacks the optimizer's state of {name}")
        moments[index] = {moment: found[key] for moment, key in keys.items()}
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
    groups = [{"params": list(range(len(names))), "param_names": names}]
    load_optimizer_state(optimizer, {"state": moments, "param_groups": groups})
    return metadata


def _moments(optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    return {
        name: optimizer.state[parameter]
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        if parameter in optimizer.state
    }


def _metadata(path: Path) -> tuple[int, dict[str, Any]]:
    """The step, and what went along."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
    except (OSError, SafetensorError) as error:
        raise CompletedpError(
            f"{str(path)!r} is not a readable checkpoint ({error}): remove it to start over"
        ) from None
    try:
        step, extra = int(metadata["step"]), json.loads(metadata["extra"])
        if isinstance(extra, dict):
            return step, extra
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise CompletedpError(
        f"{str(path)!r} is not a checkpoint of this program: remove it to start over"
    )
