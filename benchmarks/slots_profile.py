"""Where the time of a step of stacked trials goes, kernel by kernel.

    python benchmarks/slots_profile.py [--width 128] [--vocab 4096] [--sequences 16]
        [--context 256] [--slots 64] [--chunk N] [--vmap]

Prints the time of a step as `completedp bench slots` takes it, and the kernels (on a CPU the
operators) that took most of it. `--chunk 0` is the loss without the one-pass softmax.
"""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from completedp.bench.config import SlotsBenchConfig
from completedp.bench.slots import full_stack, step_seconds
from completedp.lm.transformer import ModelConfig
from completedp.training.devices import choose_device

STEPS = 3


def main() -> None:
    """Build a stack, time it, profile it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    sizes = {"width": 128, "depth": 4, "vocab": 4096, "head-dim": 64, "sequences": 16}
    for name, size in (sizes | {"context": 256, "slots": 64}).items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--vmap", action="store_true", help="as any module gets slots")
    parser.add_argument("--rows", type=int, default=25)
    args = parser.parse_args()
    device = choose_device("auto")
    shape = ModelConfig(
        vocab=args.vocab, width=args.width, depth=args.depth, head_dim=args.head_dim
    )
    bench = SlotsBenchConfig(sequences=args.sequences, context=args.context, chunk=args.chunk)
    slots = full_stack(args.slots, shape, bench, device, by_vmap=args.vmap)
    seconds = step_seconds(slots.train_step, 10, device)
    print(f"{seconds * 1e3:.2f} ms a step, {seconds / args.slots * 1e3:.4f} ms a trial-step")
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as found:
        for _ in range(STEPS):
            slots.train_step()
        if on_gpu:
            torch.cuda.synchronize()
    kind = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = sorted(found.key_averages(), key=lambda event: -getattr(event, kind))
    for event in rows[: args.rows]:
        print(f"{getattr(event, kind) / STEPS / 1e3:9.3f} ms x{event.count // STEPS} {event.key}")


if __name__ == "__main__":
    main()
