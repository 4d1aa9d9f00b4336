"""Peak memory and time of the chunked loss against the plain one, forward and backward.

    python benchmarks/loss_memory.py [--json]

Side by side in one run. On a GPU memory is the allocator's peak above what was there before; on a
CPU each form runs in a process of its own and memory is the growth of its resident peak.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import sys
import time

import torch

from completedp.lm.loss import CHUNK_LOGITS, language_model_loss

CUDA = torch.cuda.is_available()
POSITIONS, WIDTH = (16_384, 1024) if CUDA else (2_048, 256)
VOCABULARIES = (4_096, 32_768, 131_072)
FORMS = {"plain": 0, "chunked": None}


def inputs(vocab: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random features, unembedding and targets."""
    device = "cuda" if CUDA else "cpu"
    dtype = torch.bfloat16 if CUDA else torch.float32
    features = torch.randn(1, POSITIONS, WIDTH, device=device, dtype=dtype, requires_grad=True)
    weight = (torch.randn(vocab, WIDTH, device=device) * WIDTH**-0.5).requires_grad_()
    return features, weight, torch.randint(vocab, (1, POSITIONS), device=device)


def once(form: str, features: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> None:
    """One forward and backward pass."""
    features.grad = weight.grad = None
    chunk = FORMS[form]
    if form == "chunked" and targets.numel() * weight.shape[0] <= CHUNK_LOGITS:
        chunk = max(1, targets.numel() // 4)
    language_model_loss(features, weight, targets, z_loss=1e-4, chunk=chunk).total.backward()
    if CUDA:
        torch.cuda.synchronize()


def run(form: str, vocab: int) -> tuple[float, float]:
    """Peak memory in MiB and median seconds."""
    tensors = inputs(vocab)
    if CUDA:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once(form, *tensors)
        memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        once(form, *tensors)
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    times = []
    for _ in range(10 if CUDA else 3):
        start = time.perf_counter()
        once(form, *tensors)
        times.append(time.perf_counter() - start)
    return memory, statistics.median(times)


def main() -> None:
    """Print a row per vocabulary."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for vocab in VOCABULARIES:
        row: dict[str, float] = {"vocab": vocab}
        for form in FORMS:
            with context.Pool(1) as pool:
                row[f"{form}_mib"], row[f"{form}_s"] = pool.apply(run, (form, vocab))
        row["memory_ratio"] = row["plain_mib"] / row["chunked_mib"]
        row["time_ratio"] = row["chunked_s"] / row["plain_s"]
        rows.append(row)
    if "--json" in sys.argv:
        print(json.dumps({"positions": POSITIONS, "width": WIDTH, "rows": rows}, indent=2))
        return
    print(
        f"{POSITIONS} positions, width {WIDTH}, {'bfloat16 on GPU' if CUDA else 'float32 on CPU'}"
    )
    print("vocab     plain MiB  chunked MiB  memory ratio  time chunked/plain")
    for row in rows:
        print(
            f"{row['vocab']:<9.0f} {row['plain_mib']:<10.0f} {row['chunked_mib']:<12.0f} "
            f"{row['memory_ratio']:<13.1f} {row['time_ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
