"""What the tests of many ranks run on each of them: `torchrun tests/ranks.py JOB FILE [FOLDER]`.

The first rank writes what was found to FILE; test_distributed.py compares it with one process.
"""

import gc
import hashlib
import json
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from completedp.apply.classify import canonical_name
from completedp.apply.plan import Plan, plan
from completedp.common.errors import CompletedpError, ScaleWarning
from completedp.lm.reference import ReferenceModel, meta_model
from completedp.lm.shape import Shape
from completedp.lm.transformer import Transformer
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.config import TrainConfig
from completedp.training.loop import train

# Heads of 2, so that on four ranks some have no part of a QK norm's gain.
SHAPE = Shape(head_dim=2, bias=True, output_bias=True)
BASE = Scale(width=16, depth=2, batch=128, tokens=128 * 20)
TARGET = Scale(width=20, depth=3, batch=128, tokens=128 * 30)
VOCAB, SEED = 257, 3
MAKE = ReferenceModel(vocab=VOCAB, shape=SHAPE)
CONFIG = MAKE.config(TARGET)
TOKENS = torch.randint(VOCAB, (4, 8, 17), generator=torch.Generator().manual_seed(0))


def recipe() -> Recipe:
    return Recipe.for_model(meta_model(MAKE.config(BASE)), BASE, lr=2.0**-6)


def made(device: str = "cpu") -> Transformer:
    with torch.device(device):
        return Transformer(CONFIG).double()


def planned(model: nn.Module, **options: Any) -> Plan:
    return plan(model, recipe(), TARGET, **options)


def trained(model: nn.Module, planned: Plan) -> dict[str, Any]:
    """A plan's groups, a digest of every initial value, and the losses of a few steps."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if ranks > 1 else 0
    optimizer = planned.adamw()
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    digests = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        digests[canonical_name(name)] = hashlib.sha256(whole.numpy().tobytes()).hexdigest()
    losses = []
    for batch in TOKENS:
        rows = batch.tensor_split(ranks)[rank]
        logits = model(rows[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach() / ranks
        if ranks > 1:
            dist.all_reduce(loss)
        losses.append(loss.item())
    return {"groups": groups, "digests": digests, "losses": losses}


def shard(model: Transformer, mesh: DeviceMesh | None = None, **options: Any) -> Transformer:
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # pyright: ignore[reportReturnType]


def compiled(model: nn.Module) -> nn.Module:
    torch.compiler.reset()
    return torch.compile(model, backend="eager")  # pyright: ignore[reportReturnType]


def started(model: nn.Module, **options: Any) -> tuple[nn.Module, Plan]:
    """Planned and initialised as it is."""
    found = planned(model, **options)
    found.initialise(SEED)
    return model, found


def meta_plan_shard_empty() -> tuple[nn.Module, Plan]:
    model = made("meta")
    found = planned(model)
    shard(model).to_empty(device="cpu")
    found.initialise(SEED)
    return model, found


def meta_shard_empty_compile_plan() -> tuple[nn.Module, Plan]:
    return started(compiled(shard(made("meta")).to_empty(device="cpu")))


def plan_shard() -> tuple[nn.Module, Plan]:
    model, found = started(made())
    shard(model)  # pyright: ignore[reportArgumentType]
    return model, found


def compile_blocks_shard_plan() -> tuple[nn.Module, Plan]:
    model = made()
    torch.compiler.reset()
    for block in model.blocks:
        block.compile(backend="eager")
    return started(shard(model))


def shard_some_plan() -> tuple[nn.Module, Plan]:
    model = made()
    fully_shard(model.blocks[1])
    return started(fully_shard(model))


def shard_columns_plan() -> tuple[nn.Module, Plan]:
    ranks = dist.get_world_size()
    return started(
        shard(made(), shard_placement_fn=lambda p: Shard(1) if p.shape[1:] > (ranks,) else Shard(0))
    )


def hybrid_shard_plan() -> tuple[nn.Module, Plan]:
    shape = (dist.get_world_size() // 2, 2)
    return started(shard(made(), init_device_mesh("cpu", shape, mesh_dim_names=("copy", "shard"))))


def ddp_plan() -> tuple[nn.Module, Plan]:
    return started(DistributedDataParallel(made()))


def compile_ddp_plan() -> tuple[nn.Module, Plan]:
    return started(DistributedDataParallel(compiled(made())))


def plan_ddp_compile() -> tuple[nn.Module, Plan]:
    model, found = started(made())
    return compiled(DistributedDataParallel(model)), found


def shard_hooks_plan() -> tuple[nn.Module, Plan]:
    """Multipliers by hooks, which add nothing to the model's values but leave its buffers at 1."""
    return started(shard(made()), multipliers="hook")


WAYS: dict[str, Callable[[], tuple[nn.Module, Plan]]] = {
    way.__name__: way
    for way in (
        meta_plan_shard_empty,
        meta_shard_empty_compile_plan,
        plan_shard,
        compile_blocks_shard_plan,
        shard_some_plan,
        shard_columns_plan,
        hybrid_shard_plan,
        shard_hooks_plan,
        ddp_plan,
        compile_ddp_plan,
        plan_ddp_compile,
    )
}


def wrap() -> dict[str, Any]:
    """Every way to wrap and plan."""
    return {name: trained(*way()) for name, way in WAYS.items()}


def config(folder: str, name: str, **changes: Any) -> TrainConfig:
    """A run of 30 steps of 8 sequences; of 5 to evaluate on a rank may have none left."""
    settings = {"width": TARGET.width, "depth": TARGET.depth, "tokens": TARGET.tokens}
    settings |= {"context": 16, "shape": SHAPE, "log_every": 1, "eval_sequences": 5}
    settings |= {"eval_every": 10, "dtype": "float64", "device": "cpu"}
    return TrainConfig(data=f"{folder}/tokens", out=f"{folder}/{name}", **(settings | changes))


# Of runs on two ranks, what they change; the same without `parallel` are trained alone.
RUNS: dict[str, dict[str, Any]] = {
    "fsdp": {"clip": 0.5, "micro_batch": 2, "noise_every": 3},
    "ddp": {"parallel": "ddp", "clip": 0.5, "micro_batch": 2, "noise_every": 3},
    "float32": {"dtype": "float32", "noise_every": 3},
    "begun alone": {},
    "diverged": {"lr": 1e4},
}


def run_recipe(changes: dict[str, Any]) -> Recipe:
    """With the run's own learning rate, and nothing that holds back one that is too high."""
    return recipe().with_values(weight_decay=0.0, **{k: changes[k] for k in changes if k == "lr"})


def trains(folder: str) -> dict[str, Any]:
    """Runs to their ends, and runs that cannot be."""
    found: dict[str, Any] = {}
    for name, changes in RUNS.items():
        asked = config(folder, f"two/{name}", **changes)
        result = train(asked, recipe=run_recipe(changes), quiet=True)
        found[name] = {"status": result.status, "steps": result.steps}
    with refused(found, "locked"):
        train(config(folder, "two/locked"), recipe=recipe(), quiet=True)
    with refused(found, "odd batch"):
        train(config(folder, "two/odd", batch=48), recipe=recipe(), quiet=True)
    with refused(found, "micro batch"):
        train(config(folder, "two/odd", micro_batch=8), recipe=recipe(), quiet=True)
    with refused(found, "no data on one rank"):
        wrong = folder if dist.get_rank() == 0 else f"{folder}/elsewhere"
        asked = replace(config(folder, "two/odd"), data=f"{wrong}/tokens")
        train(asked, recipe=recipe(), quiet=True)
    with refused(found, "another recipe on one rank"):
        other = recipe().with_values(lr=2.0 ** -(6 + dist.get_rank()))
        train(config(folder, "two/odd"), recipe=other, quiet=True)
    full = config(folder, "two/full", stop_after=3)
    train(full, recipe=recipe(), quiet=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    with refused(found, "full disk on one rank"):
        train(replace(full, stop_after=5), recipe=recipe(), quiet=True)
    return found


LONG = {"tokens": TARGET.batch * 200, "eval_every": 0, "checkpoint_every": 0}
"""Of a run that is still going when a test interrupts it."""


def goes_on(folder: str, stop_after: str) -> dict[str, Any]:
    """A part of a run that others have begun; and some ways to wrap, on as many ranks."""
    asked = config(folder, "chain", **LONG, stop_after=int(stop_after))
    result = train(asked, recipe=recipe(), quiet=True)
    names = ("meta_plan_shard_empty", "hybrid_shard_plan", "ddp_plan")
    return {"run": [result.status, result.steps]} | {name: trained(*WAYS[name]()) for name in names}


@contextmanager
def refused(found: dict[str, Any], name: str) -> Iterator[None]:
    """Keep the message of the error that is raised."""
    try:
        yield
    except CompletedpError as error:
        found[name] = str(error)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "wrap": wrap,
    "trains": trains,
    "goes_on": goes_on,
}


def main() -> None:
    job, file, *arguments = sys.argv[1:]
    warnings.simplefilter("error")
    for torchs_own in ("`torch.jit", ".*should not be instantiated", "The .grad attribute"):
        warnings.filterwarnings("ignore", torchs_own)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    warnings.filterwarnings("ignore", "gradient clipping")
    warnings.simplefilter("ignore", ScaleWarning)  # models here are small
    dist.init_process_group("gloo")
    found = JOBS[job](*arguments)
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    gc.collect()
    dist.barrier()  # see completedp/training/distributed.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
