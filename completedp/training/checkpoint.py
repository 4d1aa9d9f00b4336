"""Checkpoints: weights, optimizer state and the step in safetensors. Never pickle.

One process writes one file. Many write a folder by `torch.distributed.checkpoint`, each rank its
own shards. Either is read by any number of ranks. A checkpoint is written beside the old one and
renamed when it is whole, so a kill or a full disk at any moment leaves the previous one. It has a
checksum of all that is in it, and says which run it is of. Loading brings back weights, optimizer
state and position, and never a learning rate or another value of the optimizer's: those belong to
the plan.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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
from completedp.apply.settings import declared_head_dim
from completedp.apply.updates import UPDATES
from completedp.common.digests import digests
from completedp.common.errors import CompletedpError, ModelWarning
from completedp.common.files import (
    json_text,
    parse_json,
    read_json,
    temporary_beside,
    user_path,
    write_text_atomically,
)
from completedp.common.warn import warn
from completedp.theory.optimizers import DEFAULT
from completedp.theory.recipe import Recipe
from completedp.training.distributed import ALONE, AgreedError, Ranks

FILE = "checkpoint.safetensors"
ABOUT = "checkpoint.json"
"""In a folder of shards, what a file has in its metadata: the step, and what went along."""
CHECKSUM = "sha256"
_MODEL = "model/"
"""How names of weights begin; others are the optimizer's."""
_FOLDER = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, kw_only=True)
class About:
    """What a checkpoint says of itself."""

    step: int
    extra: dict[str, Any]
    """What went along."""
    run: dict[str, Any] | None
    """What makes its run the one it is; None where an older version wrote it."""
    checksum: Any
    """Of a file, of its contents; of a folder, of each of its files."""


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    step: int,
    extra: dict[str, Any],
    ranks: Ranks = ALONE,
    *,
    run: Mapping[str, Any],
) -> None:
    """Write the state after `step` updates; `extra` is small and goes along as JSON, and so does
    `run`: what makes the run the one it is."""
    tensors = _weights(model)
    for name, (parameter, _) in _parameters(optimizer).items():
        moments = optimizer.state.get(parameter, {})
        tensors |= {f"optimizer/{key}/{name}": value for key, value in moments.items()}
    tensors = {name: value.detach() for name, value in tensors.items()}
    about = {"step": step, "extra": extra, "run": dict(run)}
    if ranks.alone:
        _save_file(folder, tensors, about)
    else:
        _save_folder(folder, tensors, about, ranks)


def read_step(folder: Path) -> int | None:
    """The step of the checkpoint in a run folder, or None where there is none."""
    path = find_checkpoint(folder)
    return None if path is None else read_about(path).step


def find_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in a run folder; a kill may leave an older one beside it.

    Of one step, the file: it is whole, and the folder may be half removed.
    """
    file = folder / FILE
    steps = ({file: read_about(file).step} if file.exists() else {}) | _folders(folder)
    return max(steps, key=lambda path: steps[path], default=None)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, ranks: Ranks = ALONE
) -> About:
    """Bring a run back to a checkpoint, if all of it is as it was written; returns what it is."""
    wanted = {name: value.detach() for name, value in _weights(model).items()}
    parameters = _parameters(optimizer)
    moments: dict[int, dict[str, Tensor]] = {}
    with ranks.together():
        about = read_about(path)
        there = _names(path)
        for index, (name, (parameter, kept)) in enumerate(parameters.items()):
            values = {f"optimizer/{key}/{name}": _empty(key, parameter) for key in kept}
            # A tensor that had no gradient yet, as of an expert that nobody called, has none.
            if values.keys() & there:
                wanted |= values
                moments[index] = dict(zip(kept, values.values(), strict=True))
        opened = _open_folder if path.is_dir() else _open_file
        read = opened(path, wanted, about if ranks.first else None)
    read()
    names = list(parameters)
    groups = [{"params": list(range(len(names))), "param_names": names}]
    load_optimizer_state(optimizer, {"state": moments, "param_groups": groups})
    return about


def load_weights(model: nn.Module, run: str | Path) -> int:
    """Fill a model with the weights of a run's last checkpoint; gives the step they are of.

    `run` is the folder that `train` wrote to. The model is one of the same shape, on any device.
    Multipliers that the run's plan left to hooks or to the model's config are no weights: a warning
    says so, and `plan.attach()` sets them. A run that diverged is refused.

    >>> import completedp as cdp
    >>> target = cdp.Scale(width=64, depth=1, batch=256, tokens=1_024)
    >>> recipe = cdp.Recipe.default().with_rules(axes=("width", "depth"))
    >>> result = cdp.train(None, recipe, target, data="tokens", out="runs/b", context=64,
    ...                    eval_examples=4, quiet=True)
    >>> model = cdp.Transformer(cdp.ModelConfig(vocab=257, width=64, depth=1))
    >>> cdp.load_weights(model, "runs/b")
    4
    """
    path = find_checkpoint(user_path(run))
    if path is None:
        hint = ": give its folder" if user_path(run).is_file() else ": train again"
        raise CompletedpError(f"there is no checkpoint in {str(run)!r}{hint}")
    wanted = {name: value.detach() for name, value in _weights(model).items()}
    if any(value.is_meta for value in wanted.values()):
        raise CompletedpError(
            "the model is on the meta device, where there is no room for weights: make it on "
            "another, or call model.to_empty(device=...) first"
        )
    about = read_about(path)
    _check_ended_well(user_path(run))
    _check_heads(user_path(run), model)
    opened = _open_folder if path.is_dir() else _open_file
    opened(path, wanted, about, _MODEL)()
    return about.step


def _check_ended_well(run: Path) -> None:
    """Raise where a run diverged, and warn where its weights are not all of its model."""
    ended = read_json(run / "result.json", "result") if (run / "result.json").exists() else {}
    if ended.get("status") == "diverged":
        raise CompletedpError(f"the run in {str(run)!r} diverged: its weights are of no use")
    planned = read_json(run / "plan.json", "plan") if (run / "plan.json").exists() else {}
    ways = planned.get("multipliers")
    left = {"hook", "setting"} & set(ways.values() if isinstance(ways, dict) else ())
    if left:
        warn(
            f"the plan of {str(run)!r} leaves multipliers to {'hooks' if 'hook' in left else 'the'}"
            f"{'' if 'hook' in left else ' config of the model'}, which are no weights: plan the "
            "model with the run's recipe and call plan.attach(), or it is another model",
            ModelWarning,
        )


def _check_heads(run: Path, model: nn.Module) -> None:
    """Raise where a run's model had heads of another size, which no shape of its weights tells."""
    recipe = Recipe.load(run / "recipe.json") if (run / "recipe.json").exists() else None
    trained, own = recipe and recipe.head_dim, declared_head_dim(model)
    if trained is not None and own is not None and trained != own:
        raise CompletedpError(
            f"the run in {str(run)!r} has heads of {trained}, and the model has heads of {own}: "
            "make it as the run's was"
        )


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; one that is tied once, by the first of its names. What modules keep
    besides, that is no tensor, a safetensors file cannot have."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            value = torch.view_as_real(value) if value.dtype == torch.complex128 else value
            found.setdefault(id(value), (f"{_MODEL}{canonical_name(name)}", value))
    return dict(found.values())


def _save_file(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    path = folder / FILE
    here = _apart({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})
    metadata = {key: json_text(value, indent=None).strip() for key, value in about.items()}
    metadata[CHECKSUM] = _checksum(here, metadata)
    try:
        with temporary_beside(path) as temporary:
            mode = temporary.stat().st_mode
            save_file(here, temporary, metadata)  # which leaves a file that only its owner reads
            temporary.chmod(mode)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise CompletedpError(_unwritten(folder, path, about["step"], error)) from None
    for old in _folders(folder):
        shutil.rmtree(old)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own: masks may be views of one table."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return found


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
                names = [path.name for path in temporary.iterdir()]
                whole = about | {CHECKSUM: digests(temporary, sorted(names))}
                write_text_atomically(temporary / ABOUT, json_text(whole, indent=None))
                older = list(_folders(folder))
                temporary.rename(path)
                for old in older:
                    shutil.rmtree(old)
                (folder / FILE).unlink(missing_ok=True)
    except CompletedpError as error:
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise AgreedError(_unwritten(folder, path, about["step"], error)) from None


def _open_file(
    path: Path, wanted: dict[str, Tensor], about: About | None, part: str = ""
) -> Callable[[], None]:
    """Check one process's checkpoint, of it names that begin with `part`; what comes back reads
    it."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    shapes = {name: (value.shape, value.dtype) for name, value in found.items()}
    _check(path, wanted, shapes, part)
    if about is not None and _has_checksum(path, about):
        own = {key: value for key, value in metadata.items() if key != CHECKSUM}
        if _checksum(found, own) != about.checksum:
            raise _changed(path)

    @torch.no_grad()
    def read() -> None:
        for name, tensor in wanted.items():
            fill(tensor, found[name])

    return read


def _open_folder(
    path: Path, wanted: dict[str, Tensor], about: About | None, part: str = ""
) -> Callable[[], None]:
    """The same of many ranks' checkpoint; what comes back reads it, on all ranks at once."""
    from completedp.training.shards import read_shards, shapes

    try:
        found = shapes(path)
    except CompletedpError as error:
        raise _unreadable(path, error) from None
    _check(path, wanted, found, part)
    if about is not None and _has_checksum(path, about):
        names = sorted(p.name for p in path.iterdir() if p.name != ABOUT)
        if digests(path, names) != about.checksum:
            raise _changed(path)

    def read() -> None:
        try:
            read_shards(path, wanted)
        except CompletedpError as error:
            raise AgreedError(str(_unreadable(path, error))) from None

    return read


def _names(path: Path) -> Collection[str]:
    """What a checkpoint has."""
    if path.is_dir():
        from completedp.training.shards import shapes

        try:
            return shapes(path).keys()
        except CompletedpError as error:
            raise _unreadable(path, error) from None
    with safe_open(path, "pt") as file:
        return set(file.keys())


def _check(
    path: Path,
    wanted: dict[str, Tensor],
    found: dict[str, tuple[torch.Size, torch.dtype]],
    part: str,
) -> None:
    """A checkpoint is of exactly this model, or nothing is read from it."""
    found = {name: each for name, each in found.items() if name.startswith(part)}
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


def read_about(path: Path) -> About:
    """What a checkpoint says of itself."""
    if path.is_dir():
        about = read_json(path / ABOUT, "checkpoint's description")
    else:
        try:
            # "pt" opens the file twice, and between the two a run may have replaced it.
            with safe_open(path, "np") as file:
                metadata = file.metadata()
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from None
        try:
            plain = {key: text for key, text in metadata.items() if key != CHECKSUM}
            about = {key: parse_json(text) for key, text in plain.items()}
            about[CHECKSUM] = metadata.get(CHECKSUM)
        except (AttributeError, TypeError, ValueError, RecursionError):
            about = {}
    step, extra, run = (about.get(key) for key in ("step", "extra", "run"))
    if type(step) is int and isinstance(extra, dict) and isinstance(run, dict | None):
        return About(step=step, extra=extra, run=run, checksum=about.get(CHECKSUM))
    raise CompletedpError(
        f"{str(path)!r} is not a checkpoint of this program: remove it to start over"
    )


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Of tensors on the CPU, with their names, types and shapes, and of what goes along."""
    digest = hashlib.sha256(repr(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # pyright: ignore
    return digest.hexdigest()


def _has_checksum(path: Path, about: About) -> bool:
    """Those of older versions have none."""
    if about.checksum is None:
        warn(
            f"{str(path)!r} was written by an older version, without a checksum: whether it is as "
            "it was written cannot be told",
        )
    return about.checksum is not None


def _changed(path: Path) -> CompletedpError:
    return CompletedpError(
        f"{str(path)!r} is not as it was written, its checksum is another: bring it back from a "
        "copy, or remove it to start over"
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
