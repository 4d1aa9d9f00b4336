"""Seeded initialisation: each tensor's draw depends on the seed and its name alone."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from completedp.apply.tensors import PlanNumbers, TensorPlan
from completedp.common.errors import CompletedpError


def draw(tensor: TensorPlan, seed: int) -> Tensor:
    """One tensor's initial values, float32 on the CPU, so that they are the same everywhere."""
    here: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever is the default
    if tensor.init_std is None:
        return torch.full(tensor.info.shape, tensor.init_value or 0.0, **here)
    key = blake2b(f"{seed}/{tensor.name}".encode(), digest_size=8).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(key, "little") >> 1)
    drawn = torch.randn(tensor.info.shape, generator=generator, **here) * tensor.init_std
    if tensor.info.padding is not None:
        drawn[tensor.info.padding] = 0.0  # no gradient ever reaches it
    return drawn


def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded: each rank keeps its part, none is sent."""
    if hasattr(tensor, "placements"):  # a DTensor, whose import costs others half a second
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = tensor.device_mesh, tensor.placements  # pyright: ignore
        whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    tensor.copy_(whole)


@torch.no_grad()
def initialise(plan: PlanNumbers, seed: int) -> None:
    """Fill the parameters of the plan's model in place."""
    plan.map.tie()
    parameters = plan.map.parameters()
    for tensor in plan.tensors:
        parameter = parameters[tensor.name]
        if parameter.is_meta:
            raise CompletedpError(
                f"{tensor.name} is on the meta device: "
                'call model.to_empty(device="cpu") (or "cuda") before plan.initialise()'
            )
        fill(parameter, draw(tensor, seed))
