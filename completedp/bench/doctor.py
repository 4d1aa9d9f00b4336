"""What this machine has, for bug reports and for those who wonder why something is slow."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

import completedp
from completedp.common.extras import EXTRAS, IMPORTED_AS


def examine() -> dict[str, str]:
    """Findings by name, in words."""
    found = {
        "completedp": completedp.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "disk free here": f"{shutil.disk_usage(Path.cwd()).free / 2**30:.0f} GiB",
    }
    for package in ("torch", "numpy", "tyro", "rich", "safetensors", "sqlalchemy"):
        found[package] = version(package)
    found |= _devices()
    found["torch.compile"] = _compiles()
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if not find_spec(IMPORTED_AS.get(name) or name)]
        found[f"extra {extra}"] = (
            f'missing {", ".join(missing)}: pip install "completedp[{extra}]"'
            if missing
            else ", ".join(f"{name} {_version(name)}" for name in packages)
        )
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _devices() -> dict[str, str]:
    if not torch.cuda.is_available():
        return {"gpu": "none: runs use the CPU, in float32"}
    found = {}
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        bf16 = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        found[f"gpu {index}"] = f"{name}, {memory:.0f} GiB, {bf16}"
    return found


def _compiles() -> str:
    """Try it: a missing compiler is the usual fault, and its message is pages long."""
    try:
        torch.compile(lambda x: x * 2 + 1, dynamic=False)(torch.ones(4))
    except Exception as error:
        return f"does not work ({type(error).__name__}): train without --compile"
    return "works"
