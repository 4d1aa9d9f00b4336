"""Step time of AdamW with values per module: torch's, fused or not, against `completedp.AdamW`.

Weights and gradients of a reference model's shapes, without the model: every tensor has a learning
rate, decay, eps and betas of its own, as a search over types and layers gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from completedp.apply.adamw import AdamW
from completedp.apply.classify import classify
from completedp.bench.config import OptimizerBenchConfig
from completedp.bench.slots import step_seconds
from completedp.common.errors import CompletedpError
from completedp.lm.reference import meta_model
from completedp.lm.transformer import ModelConfig
from completedp.training.devices import choose_device

SHAPES = {
    "tiny": ModelConfig(vocab=257, width=64, depth=4, head_dim=16),
    "124m": ModelConfig(vocab=50_304, width=768, depth=12),
    "1b": ModelConfig(vocab=50_304, width=1792, depth=24),
    "7b": ModelConfig(vocab=50_304, width=4096, depth=32),
}
WAYS: dict[str, Callable[[list[dict[str, Any]]], Optimizer]] = {
    "torch fused, one group": lambda groups: torch.optim.AdamW(
        [parameter for group in groups for parameter in group["params"]], fused=True
    ),
    "torch fused": lambda groups: torch.optim.AdamW(groups, fused=True),
    "torch foreach": lambda groups: torch.optim.AdamW(groups, foreach=True),
    "completedp": AdamW,
}


def bench_optimizer(
    config: OptimizerBenchConfig, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Times of every way at every shape, and what they are to each other.

    `progress` is told how many are timed, of how many.
    """
    device = choose_device(config.device)
    on_gpu = device.type == "cuda"
    shapes = config.shapes or (("124m", "1b", "7b") if on_gpu else ("tiny",))
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "torch": torch.__version__,
        "config": config.to_dict(),
        "rows": [],
        "ratios": {},
    }
    for shape in shapes:
        groups = _groups(shape, device)
        size = sum(p.numel() for group in groups for p in group["params"])
        dtype = groups[0]["params"][0].dtype
        times = {}
        for way, make in WAYS.items():
            optimizer = make([dict(group) for group in groups])  # torch would fill in its defaults
            times[way] = step_seconds(optimizer.step, config.steps, device)
            row = {"shape": shape, "parameters": size, "dtype": str(dtype).removeprefix("torch.")}
            row |= {"way": way, "groups": len(optimizer.param_groups), "ms": times[way] * 1e3}
            moved = 7 * dtype.itemsize * size  # four are read and three written
            found["rows"].append(row | {"gb_per_second": moved / times[way] / 1e9})
            del optimizer
            if progress is not None:
                progress(len(found["rows"]), len(shapes) * len(WAYS))
            if on_gpu:
                torch.cuda.empty_cache()
        ours = times["completedp"]
        found["ratios"][shape] = {
            "torch_fused_over_completedp": times["torch fused"] / ours,
            "torch_foreach_over_completedp": times["torch foreach"] / ours,
            "completedp_over_one_group": ours / times["torch fused, one group"],
        }
        del groups
    return found


def _groups(shape: str, device: torch.device) -> list[dict[str, Any]]:
    """A group for every type and layer; 7b in bfloat16, which is what fits one GPU."""
    dtype = torch.bfloat16 if shape == "7b" else torch.float32
    tensors = classify(meta_model(SHAPES[shape]))
    needed = 4 * dtype.itemsize * sum(int(np.prod(tensor.shape)) for tensor in tensors)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    if free is not None and needed > free:
        raise CompletedpError(
            f"shape {shape!r} needs {needed / 2**30:.0f} GiB of the GPU's memory, "
            f"of which {free / 2**30:.0f} GiB are free"
        )
    random, groups = np.random.default_rng(0), {}
    torch.manual_seed(0)
    for tensor in tensors:
        octaves = random.normal(size=5)
        key = (tensor.type, tensor.layer)
        group = groups.setdefault(
            key,
            {
                "params": [],
                "lr": 2.0 ** (octaves[0] - 10),
                "weight_decay": 0.1 * 2.0 ** octaves[1],
                "eps": 1e-8 * 2.0 ** octaves[2],
                "betas": (1 - 0.1 * 2.0 ** -abs(octaves[3]), 1 - 0.05 * 2.0 ** -abs(octaves[4])),
            },
        )
        weights = torch.empty(tensor.shape, device=device, dtype=dtype).normal_(std=0.02)
        parameter = nn.Parameter(weights)
        parameter.grad = torch.empty_like(weights).normal_(std=1e-3)
        group["params"].append(parameter)
    return list(groups.values())


def bench_optimizer_text(found: dict[str, Any]) -> str:
    """The rows as a table, the ratios below."""
    lines = [f"{found['device']}, torch {found['torch']}"]
    lines.append(f"{'shape':<6} {'way':<23} {'groups':>6} {'ms/step':>9} {'GB/s':>7}")
    for row in found["rows"]:
        lines.append(
            f"{row['shape']:<6} {row['way']:<23} {row['groups']:>6} {row['ms']:>9.3f} "
            f"{row['gb_per_second']:>7.0f}"
        )
    for shape, ratios in found["ratios"].items():
        lines.append(
            f"{shape}: {ratios['torch_fused_over_completedp']:.1f} times as fast as torch's fused "
            f"with the same groups, {ratios['torch_foreach_over_completedp']:.1f} as its foreach; "
            f"{ratios['completedp_over_one_group']:.2f} of the time of fused with one group"
        )
    return "\n".join(lines)
