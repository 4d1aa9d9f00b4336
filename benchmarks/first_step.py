"""Where the time to the first step of a stack goes, on a GPU.

    python benchmarks/first_step.py [--shapes 64x4 128x8 64x8] [--slots 16]

Each line is a stack of another shape in the same process, then the same in fresh processes: with
empty caches, with those of the shapes before, and with its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any


def child(shapes: list[str], slots: int) -> None:
    """Make a stack of each shape, take a step, and print where the time went."""
    began = time.perf_counter()
    import torch

    from completedp.bench.config import SlotsBenchConfig
    from completedp.bench.slots import full_stack
    from completedp.lm.transformer import ModelConfig

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.zeros(1, device=device)
    imports = time.perf_counter() - began
    for shape in shapes:
        width, depth = map(int, shape.split("x"))
        torch._dynamo.utils.compilation_time_metrics.clear()
        start = time.perf_counter()
        config = ModelConfig(vocab=1024, width=width, depth=depth, head_dim=32)
        bench = SlotsBenchConfig(
            width=width, depth=depth, vocab=1024, head_dim=32, sequences=16, slots=(slots,)
        )
        stack = full_stack(slots, config, bench, device, by_vmap=False)
        stack.train_step().tolist()
        total = time.perf_counter() - start
        parts: dict[str, float] = {
            name.rpartition(".")[2]: round(sum(values), 1)
            for name, values in torch._dynamo.utils.compilation_time_metrics.items()
            if sum(values) > 0.3
        }
        row: dict[str, Any] = {"shape": shape, "seconds": round(total, 1), "imports": imports}
        print(json.dumps(row | {"parts": parts}), flush=True)
        imports = 0.0
        del stack
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    """Run children with caches of their own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["64x4", "128x8", "64x8"])
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        child(args.shapes, args.slots)
        return
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }
        runs = {
            "empty caches, one process": args.shapes,
            "again": args.shapes,
        }
        for title, shapes in runs.items():
            print(f"{title}:", flush=True)
            command = [sys.executable, __file__, "--child", "--slots", str(args.slots)]
            subprocess.run([*command, "--shapes", *shapes], env=env, check=True)


if __name__ == "__main__":
    main()
