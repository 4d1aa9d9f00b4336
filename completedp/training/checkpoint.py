"""Checkpoints: weights, optimizer state and the step in safetensors. Never pickle.

One process writes one file. Many write a folder by `torch.distributed.checkpoint`, each rank its
own shards. Either is read by any number of ranks. A checkpoint is written beside the old one and
renamed when it is whole, so a kill or a full disk at any moment leaves the previous one. Loading
brings back weights, optimizer state and position, and never a learning rate or another value of
the optimizer's: those belong to the plan.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from completedp.apply.classify import canonical_name
from completedp.apply.initialise import fill
from completedp.apply.optimise import load_optimizer_state
from completedp.apply.updates import UPDATES
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, temporary_beside, write_text_atomically
from completedp.theory.optimizers import DEFAULT
from completedp.training.distributed import ALONE, AgreedError, Ranks

FILE = "checkpoint.safetensors"
ABOUT = "checkpoint.json"
"""In a folder of shards, what a file has in its metadata: the step, and what went along."""
_FOLDER = re.compile(r"checkpoint-(\d+)")


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    step: int,
    extra: dict[str, Any],
    ranks: Ranks = ALONE,
) -> None:
    """Write the state after `step` updates; `extra` is small and goes along as JSON."""
    tensors = {f"model/{canonical_name(k)}": v for k, v in model.state_dict().items()}
    for name, (parameter, _) in _parameters(optimizer).items():
        moments = optimizer.state.get(parameter, {})
        tensors |= {f"optimizer/{key}/{name}": value for key, value in moments.items()}
    tensors = {name: value.detach() for name, value in tensors.items()}
    about = {"step": step, "extra": extra}
    if ranks.alone:
        _save_file(folder, tensors, about)
    else:
        _save_folder(folder, tensors, about, ranks)


def read_step(folder: Path) -> int | None:
    """The step of the checkpoint in a run folder, or None where there is none."""
    path = find_checkpoint(folder)
    return None if path is None else _about(path)[0]


def find_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in a run folder; a kill may leave an older one beside it.

    Of one step, the file: it is whole, and the folder may be half removed.
    """
    file = folder / FILE
    steps = ({file: _about(file)[0]} if file.exists() else {}) | _folders(folder)
    return max(steps, key=lambda path: steps[path], default=None)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, ranks: Ranks = ALONE
) -> tuple[int, dict[str, Any]]:
    """Bring a run back to a checkpoint; returns its step and what went along."""
    wanted = {f"model/{canonical_name(k)}": v.detach() for k, v in model.state_dict().items()}
    parameters = _parameters(optimizer)
    moments: dict[int, dict[str, Tensor]] = {}
    for index, (name, (parameter, kept)) in enumerate(parameters.items()):
        values = {key: _empty(key, parameter) for key in kept}
        wanted |= {f"optimizer/{key}/{name}": value for key, value in values.items()}
        moments[index] = values
    with ranks.together():
        about = _about(path)
        read = _open_folder(path, wanted) if path.is_dir() else _open_file(path, wanted)
    read()
    names = list(parameters)
    groups = [{"params": list(range(len(names))), "param_names": names}]
    load_optimizer_state(optimizer, {"state": moments, "param_groups": groups})
    return about


def _save_file(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    path = folder / FILE
    metadata = {"step": str(about["step"]), "extra": json.dumps(about["extra"])}
    try:
        with temporary_beside(path) as temporary:
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, metadata)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise CompletedpError(_unwritten(folder, path, about["step"], error)) from None
    for old in _folders(folder):
        shutil.rmtree(old)


def _save_folder(
    folder: Path, tensors: dict[str, Tensor], about: dict[str, Any], ranks: Ranks
) -> None:
    from completedp.training.shards import write_shards  # its import takes a second

    path = folder / f"checkpoint-{about['step']:08d}"
    temporary = folder / f".{path.name}.part"
    if ranks.share(path.exists()):  # stopped twice at one step, which has one state
        return
    try:
        with ranks.together():
            if ranks.first:
                for left in folder.glob(".checkpoint-*.part"):  # by a kill
                    shutil.rmtree(left)
                temporary.mkdir()
        write_shards(temporary, tensors)
        with ranks.together():
            if ranks.first:
                write_text_atomically(temporary / ABOUT, json.dumps(about))
                older = list(_folders(folder))
                temporary.rename(path)
                for old in older:
                    shutil.rmtree(old)
                (folder / FILE).unlink(missing_ok=True)
    except CompletedpError as error:
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise AgreedError(_unwritten(folder, path, about["step"], error)) from None


def _open_file(path: Path, wanted: dict[str, Tensor]) -> Callable[[], None]:
    """Check one process's checkpoint; what comes back reads it."""
    with safe_open(path, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    _check(path, wanted, {name: (value.shape, value.dtype) for name, value in found.items()})

    @torch.no_grad()
    def read() -> None:
        for name, tensor in wanted.items():
            fill(tensor, found[name])

    return read


def _open_folder(path: Path, wanted: dict[str, Tensor]) -> Callable[[], None]:
    """Check a checkpoint of many ranks; what comes back reads it, on all ranks at once."""
    from completedp.training.shards import read_shards, shapes

    try:
        found = shapes(path)
    except CompletedpError as error:
        raise _unreadable(path, error) from None
    _check(path, wanted, found)

    def read() -> None:
        try:
            read_shards(path, wanted)
        except CompletedpError as error:
            raise AgreedError(str(_unreadable(path, error))) from None

    return read


def _check(
    path: Path, wanted: dict[str, Tensor], found: dict[str, tuple[torch.Size, torch.dtype]]
) -> None:
    """A checkpoint is of exactly this model, or nothing is read from it."""
    if wanted.keys() != found.keys():
        odd = sorted(wanted.keys() ^ found.keys())[0]
        raise CompletedpError(f"{str(path)!r} is of another model: {odd} is in one only")
    for name, (shape, dtype) in found.items():
        own = wanted[name]
        if shape != own.shape or (dtype != own.dtype and not name.startswith("optimizer/step/")):
            raise CompletedpError(
                f"{str(path)!r} is of another model: {name} is {dtype} {list(shape)} there and "
                f"{own.dtype} {list(own.shape)} here"
            )


def _empty(key: str, parameter: nn.Parameter) -> Tensor:
    """Room for what an optimizer keeps of a parameter under this key."""
    return torch.zeros(()) if key == "step" else torch.zeros_like(parameter, requires_grad=False)


def _parameters(optimizer: Optimizer) -> dict[str, tuple[nn.Parameter, tuple[str, ...]]]:
    """By name, each parameter and what its optimizer keeps of it."""
    return {
        name: (parameter, UPDATES[group.get("optimizer", DEFAULT)].kept)
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


def _folders(folder: Path) -> dict[Path, int]:
    """The checkpoints of many ranks, with their steps."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return {path: int(found[1]) for path in paths if (found := _FOLDER.fullmatch(path.name))}


def _about(path: Path) -> tuple[int, dict[str, Any]]:
    """The step, and what went along."""
    if path.is_dir():
        about = read_json(path / ABOUT, "checkpoint's description")
        step, extra = about.get("step"), about.get("extra")
    else:
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from None
        try:
            step, extra = int(metadata["step"]), json.loads(metadata["extra"])
        except (KeyError, TypeError, ValueError, RecursionError):
            step = extra = None
    if isinstance(step, int) and isinstance(extra, dict):
        return step, extra
    raise CompletedpError(
        f"{str(path)!r} is not a checkpoint of this program: remove it to start over"
    )


def _unreadable(path: Path, error: Exception) -> CompletedpError:
    return CompletedpError(
        f"{str(path)!r} is not a readable checkpoint ({error}): remove it to start over"
    )


def _unwritten(folder: Path, path: Path, step: int, error: Exception) -> str:
    old = read_step(folder)
    kept = "there is none" if old is None else f"the one of step {old} is kept"
    return (
        f"could not write the checkpoint of step {step} to {str(path)!r} ({error}); "
        f"{kept}: make room and run the same command again"
    )
