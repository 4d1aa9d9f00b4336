"""Many processes as one run: started by torchrun, sharded by FSDP2 or copied by DDP.

Every rank runs the same loop on its part of each batch. What decides how the loop goes on (losses,
signals, errors) is gathered first, so that all ranks decide alike and none waits for another.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from completedp.apply.plan import Plan
from completedp.common.errors import CompletedpError
from completedp.common.process import Interrupted
from completedp.lm.loss import Loss
from completedp.tasks.weights import give_memory
from completedp.training.devices import choose_device

_CPU = torch.device("cpu")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class AgreedError(CompletedpError):
    """An error that every rank raises, so that one of them need say it."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes of a run, and which of them this one is. All methods are called by all."""

    device: torch.device = _CPU
    rank: int = 0
    world: int = 1

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def gather(self, values: Tensor, more: tuple[float, ...] = ()) -> list[list[float]]:
        """Every rank's vector, `more` at its end: the same list on all."""
        if self.alone:
            return [[*values.tolist(), *more]]
        values = values.to(self.device, torch.float64)
        values = torch.cat([values, values.new_tensor(more)])
        found = [torch.empty_like(values) for _ in range(self.world)]
        dist.all_gather(found, values)
        return torch.stack(found).tolist()

    def share(self, value: Any) -> Any:
        """The first rank's value, on all."""
        values = [value]
        if not self.alone:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails on one rank fails on all. Inside, ranks send each other nothing: the others
        would wait for one that failed, and not where it waits for them."""
        if self.alone:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        said: list[str | None] = [None] * self.world
        dist.all_gather_object(said, None if error is None else str(error) or repr(error))
        failed = [rank for rank, message in enumerate(said) if message is not None]
        if not failed:
            return
        if error is not None and not isinstance(error, CompletedpError | OSError):
            raise error  # a fault, whose traceback is wanted
        where = "" if len(failed) == self.world else f"rank {failed[0]}: "
        raise AgreedError(f"{where}{said[failed[0]]}") from error

    def check_same(self, what: dict[str, str]) -> None:
        """Every rank has the first one's data and recipe."""
        for name, value in self.share(what).items():
            with self.together():
                if what[name] != value:
                    raise CompletedpError(
                        f"its {name.removesuffix('_digest')} has other contents than rank 0's"
                    )


ALONE = Ranks()


def is_follower() -> bool:
    """Whether torchrun started this process, and not as the first."""
    return _under_torchrun() and os.environ["RANK"] != "0"


def world_size() -> int:
    """How many processes torchrun started for one run."""
    return int(os.environ["WORLD_SIZE"]) if _under_torchrun() else 1


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Meet the other processes that torchrun started, if it did; leave them at the end."""
    met = dist.is_available() and dist.is_initialized()
    if not (_under_torchrun() or (met and dist.get_world_size() > 1)):
        yield Ranks(device=choose_device(device))
        return
    if met:  # by the user's own script, which leaves them too
        own = _own_device(device)
        yield Ranks(device=own, rank=dist.get_rank(), world=dist.get_world_size())
        return
    own = _own_device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group(
        dist.get_default_backend_for_device(own), device_id=own if own.type == "cuda" else None
    )
    ranks = Ranks(device=own, rank=dist.get_rank(), world=dist.get_world_size())
    try:
        yield ranks
    except (AgreedError, Interrupted):
        _leave()
        raise
    _leave()  # after any other error the rest may be waiting elsewhere: torchrun ends them


def distribute(
    model: nn.Module,
    planned: Plan,
    loss: Callable[..., Loss],
    ranks: Ranks,
    *,
    parallel: str,
    seed: int,
    compile: bool,
) -> nn.Module:
    """Give a planned model without memory its values, and return its loss as a parallel module."""
    module = _WithLoss(model, loss)
    blocks = planned.map.blocks
    if compile:
        for block in blocks:
            block.compile(dynamic=False)
    if parallel == "fsdp":
        _shard(module, blocks, ranks)
    give_memory(model, ranks.device)
    planned.initialise(seed)
    if parallel == "fsdp":
        return module
    return nn.parallel.DistributedDataParallel(
        module,
        device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


def _shard(module: _WithLoss, blocks: list[nn.Module], ranks: Ranks) -> None:
    """FSDP2 by block. No mixed precision policy: the model casts by itself, as on one device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


class _WithLoss(nn.Module):
    """A model and its loss in one: all that reads the weights is inside what gathers them."""

    def __init__(self, model: nn.Module, loss: Callable[..., Loss]) -> None:
        super().__init__()
        self.module = model
        self._loss = loss

    def forward(self, *batch: Tensor) -> Loss:
        return self._loss(*batch)


def _under_torchrun() -> bool:
    return all(name in os.environ for name in _TORCHRUN) and os.environ["WORLD_SIZE"] != "1"


def _own_device(name: str) -> torch.device:
    """`cuda` is the GPU of this rank among those of its machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda:"):
        raise CompletedpError(f"device {name!r} is one for all ranks: choose cuda, or one process")
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return choose_device(name)


def _leave() -> None:
    # Gloo's threads may still hold the last tensors sent. Were they to let go of them while Python
    # shuts down, the process would abort, so wait for each other and clear up before.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
