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

from completedp.apply.plan import plan
from completedp.evidence.bench import RandomTokens, step_seconds
from completedp.lm.transformer import ModelConfig
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.build import choose_device, meta_model, stack_model
from completedp.training.slots import Slots, Trial
from completedp.training.stacked import next_token_loss

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
    batch = args.sequences * args.context
    scale = Scale(width=args.width, depth=args.depth, batch=batch, tokens=batch * 1000)
    blank = meta_model(shape)
    planned = plan(blank, Recipe.for_model(blank, scale, lr=2.0**-10), scale)
    slots = Slots(
        stack_model(shape, device),
        args.slots,
        RandomTokens(args.vocab, 4096, args.context),
        None,
        sequences=args.sequences,
        max_steps=1000,
        device=device,
        z_loss=1e-4,
        chunk=args.chunk,
        compile=True,
        loss=next_token_loss if args.vmap else None,
    )
    slots.prepare()
    for slot in range(args.slots):
        slots.fill(slot, Trial(plan=planned, seed=slot, steps=1000))
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
