"""Where a model trains, and in which type its matrix products are."""

from __future__ import annotations

import torch

from completedp.common.errors import CompletedpError, first_line


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # which meta tensors cannot
    except Exception as error:  # each backend fails in its own way when it is not there
        raise CompletedpError(f"device {name!r} cannot be used: {first_line(error)}") from None
    return device


def device_name(device: torch.device) -> str:
    """What a device is called: a GPU's model, or CPU and how many threads it trains with."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type.upper()} ({threads} thread{'s' * (threads > 1)})"


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, name)
