"""Speed of slots against one trial at a time, side by side in one run.

Trial-steps per second of K slots, of eager training, of `torch.compile`, and (on a GPU) of CUDA
graphs around the compiled step, all of the same model, batch and AdamW.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from completedp.apply.plan import make_plan
from completedp.bench.config import SlotsBenchConfig
from completedp.lm.reference import meta_model
from completedp.lm.transformer import ModelConfig
from completedp.tasks.data import Data, Tokens
from completedp.tasks.losses import next_token_loss, transformer_loss
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.cost import flop_a_token, kept_a_block
from completedp.training.devices import choose_device, choose_dtype
from completedp.training.slots import Slots
from completedp.training.trials import Trial


class RandomTokens:
    """Stands where a token folder does: timing needs no text."""

    def __init__(self, vocab: int, windows: int, context: int) -> None:
        self.windows, self.context = windows, context
        self._rows = np.random.default_rng(0).integers(0, vocab, (windows, context + 1))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self._rows[indices]


def random_tokens(vocab: int, context: int, windows: int = 4096) -> Data:
    """Data of tokens that mean nothing."""
    tokens = Tokens(RandomTokens(vocab, windows, context))
    return Data(train=tokens, valid=tokens, unit=context, digest="", name="random tokens")


def bench_slots(
    config: SlotsBenchConfig, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Times, rates, memory and ratios; `progress` is told how many ways are timed, of how many."""
    device = choose_device(config.device)
    dtype = choose_dtype("auto", device)
    model = ModelConfig(
        vocab=config.vocab, width=config.width, depth=config.depth, head_dim=config.head_dim
    )
    batch = config.sequences * config.context
    recipe, scale = _recipe(model, config)
    flops = flop_a_token(matrix_weights(model), scale, config.context) * batch
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "config": config.to_dict(),
        "rows": [],
    }

    theory = slot_bytes(model, batch, dtype.itemsize)

    def add(
        name: str,
        slots: int,
        seconds: float,
        memory: float | None = None,
        to_first_step: float | None = None,
    ) -> None:
        each = seconds / slots
        row = {"way": name, "slots": slots, "ms_per_trial_step": each * 1e3}
        row |= {"trial_steps_per_second": 1 / each, "tflops": flops / each / 1e12}
        row["memory_mib_per_slot"] = None if memory is None else memory / slots / 2**20
        row["memory_over_theory"] = None if memory is None else memory / slots / theory
        row["seconds_to_first_step"] = to_first_step
        found["rows"].append(row)
        if progress is not None:
            progress(len(found["rows"]), len(alone) + len(stacks) * len(config.slots))

    alone = ("eager", "compile", *(["cuda graphs"] if device.type == "cuda" else []))
    alone = alone if config.one_at_a_time else ()
    stacks = ("slots", *(["slots by vmap"] if config.vmap else []))
    for name in alone:
        add(name, 1, _one_at_a_time(name, model, recipe, scale, config, device, dtype))
    for way in stacks:
        for count in config.slots:
            add(way, count, *_stack(way, count, model, config, device))
    best = max(r["trial_steps_per_second"] for r in found["rows"] if r["way"] == "slots")
    for row in found["rows"]:
        if row["slots"] == 1 and not row["way"].startswith("slots"):
            found[f"slots_over_{row['way'].replace(' ', '_')}"] = (
                best / row["trial_steps_per_second"]
            )
    return found


def slot_bytes(config: ModelConfig, tokens: int, compute_bytes: int) -> int:
    """Memory of a slot by theory: weights and two moments, and what the backward pass reads.

    At the end of the blocks that is the last stream, the features, the logits and their gradient.
    """
    d, hidden = config.width, config.hidden * (1.5 if config.mlp == "swiglu" else 1)
    block = kept_a_block(d, hidden, compute_bytes=compute_bytes)
    end = 4 * d + compute_bytes * (d + 2 * config.vocab)
    parameters = sum(p.numel() for p in meta_model(config).parameters())
    return round(12 * parameters + tokens * (config.depth * block + end))


def matrix_weights(config: ModelConfig) -> int:
    """Weights that a token is multiplied by."""
    d, matrices = config.width, 3 if config.mlp == "swiglu" else 2
    return config.depth * (4 * d * d + matrices * d * config.hidden) + d * config.vocab


def step_seconds(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Median seconds of one step."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    wait()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        times.append((time.perf_counter() - start) / steps)
    return statistics.median(times)


def _one_at_a_time(
    way: str,
    config: ModelConfig,
    recipe: Recipe,
    scale: Scale,
    bench: SlotsBenchConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    model = meta_model(config, None if dtype == torch.float32 else dtype)
    planned = make_plan(model, recipe, scale)
    model.to_empty(device=device)
    planned.initialise()
    graphs = way == "cuda graphs"
    optimizer = planned.adamw(fused=True, capturable=graphs)
    rows = torch.randint(config.vocab, (bench.sequences, bench.context + 1), device=device)
    inputs, targets = rows[:, :-1], rows[:, 1:]
    whole = transformer_loss
    loss = whole if way == "eager" else torch.compile(whole, dynamic=False)

    def step() -> None:
        loss(model, inputs, targets, 1e-4).total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not graphs)

    if not graphs:
        return step_seconds(step, bench.steps, device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return step_seconds(graph.replay, bench.steps, device)


def _stack(
    way: str,
    count: int,
    config: ModelConfig,
    bench: SlotsBenchConfig,
    device: torch.device,
) -> tuple[float, float | None, float]:
    """Seconds a step, bytes of memory, and seconds until the first step was done."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    began = time.perf_counter()
    slots = full_stack(count, config, bench, device, by_vmap=way == "slots by vmap")
    slots.train_step().tolist()
    to_first_step = time.perf_counter() - began
    seconds = step_seconds(slots.train_step, bench.steps, device)
    memory = torch.cuda.max_memory_allocated() - before if on_gpu else None
    return seconds, memory, to_first_step


def full_stack(
    count: int, config: ModelConfig, bench: SlotsBenchConfig, device: torch.device, *, by_vmap: bool
) -> Slots:
    """A compiled stack with a trial in every slot, on random tokens."""
    dtype = choose_dtype("auto", device)
    slots = Slots(
        meta_model(config, None if dtype == torch.float32 else dtype),
        random_tokens(config.vocab, bench.context),
        examples=bench.sequences,
        max_steps=10_000,
        count=count,
        loss=next_token_loss if by_vmap else None,
        eval_examples=0,
        device=device,
        z_loss=1e-4,
        chunk=bench.chunk,
        compile=True,
    )
    recipe, scale = _recipe(config, bench)
    planned = make_plan(meta_model(config), recipe, scale)
    slots.prepare()
    for slot in range(count):
        slots.fill(slot, Trial(plan=planned, seed=slot, steps=1000, key=slot))
    return slots


def _recipe(model: ModelConfig, bench: SlotsBenchConfig) -> tuple[Recipe, Scale]:
    """Any values: they change no timing."""
    batch = bench.sequences * bench.context
    scale = Scale(width=model.width, depth=model.depth, batch=batch, tokens=batch * 1000)
    return Recipe.for_model(meta_model(model), scale, lr=2.0**-10), scale


def bench_slots_text(found: dict[str, Any]) -> str:
    """The rows as a table, the ratios below."""
    lines = [f"{found['device']}, {found['dtype']}"]
    head = f"{'way':<13} {'slots':>5} {'ms/trial-step':>14} {'TFLOP/s':>9} {'MiB/slot':>9}"
    lines.append(f"{head} {'s to 1st step':>14}")
    for row in found["rows"]:
        memory, first = row["memory_mib_per_slot"], row["seconds_to_first_step"]
        lines.append(
            f"{row['way']:<13} {row['slots']:>5} {row['ms_per_trial_step']:>14.3f} "
            f"{row['tflops']:>9.3g} {'' if memory is None else f'{memory:.0f}':>9} "
            f"{'' if first is None else f'{first:.1f}':>14}"
        )
    for key, value in found.items():
        if key.startswith("slots_over_"):
            way = key.removeprefix("slots_over_").replace("_", " ")
            lines.append(f"slots are {value:.1f} times as fast as {way} one at a time")
    return "\n".join(lines)
