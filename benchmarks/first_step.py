"""Where the time to the first step of a stack goes, on a GPU.

    python benchmarks/first_step.py [--shapes 64x4 128x8 64x8] [--slots 16] [--json]

Each line is a stack of another shape, in one process with empty caches and then in another with
theirs: seconds to the first step, those of them in the compiler by its own count, and milliseconds
of a step then. `--no-autotune` compiles one variant of every kernel and times none.
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


def child(shapes: list[str], slots: int, autotune: bool) -> None:
    """Make a stack of each shape, take a step, and print where the time went."""
    began = time.perf_counter()
    import torch
    import torch._inductor.config

    from completedp.bench.config import SlotsBenchConfig
    from completedp.bench.slots import full_stack, step_seconds
    from completedp.lm.transformer import ModelConfig

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.zeros(1, device=device)
    torch._inductor.config.triton.autotune_pointwise = autotune
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
        row: dict[str, Any] = {"shape": shape, "seconds": round(total, 1)}
        row["ms_per_step"] = round(1e3 * step_seconds(stack.train_step, 30, device), 3)
        print(json.dumps(row | {"imports": round(imports, 1), "parts": parts}), flush=True)
        imports = 0.0
        del stack
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    """Run children with caches of their own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["64x4", "128x8", "64x8"])
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--no-autotune", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.shapes, args.slots, not args.no_autotune)
        return
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }
        command = [sys.executable, __file__, "--child", "--slots", str(args.slots)]
        command += ["--no-autotune"] * args.no_autotune + ["--shapes", *args.shapes]
        found = {}
        for title in ("empty", "again"):
            said = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
            found[title] = [json.loads(line) for line in said.stdout.splitlines()]
            if not args.json:
                print(f"{title}:\n{said.stdout}", end="", flush=True)
        if args.json:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
