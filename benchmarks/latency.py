"""How long a person waits: `completedp --help`, and a plan of a 70B-shaped model on meta tensors.

python benchmarks/latency.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import completedp as cdp
from completedp.training.build import meta_model


def main() -> None:
    """Print medians of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "completedp", "--help"], capture_output=True)
        times.append(time.perf_counter() - start)
    print(f"completedp --help: {statistics.median(times):.2f} s")
    model = meta_model(cdp.ModelConfig(vocab=128_256, width=8192, depth=80))
    target = cdp.Scale(width=8192, depth=80, batch=4_000_000, tokens=2 * 10**12)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        plan = cdp.plan(model, cdp.Recipe.default(), target)
        plan.param_groups()
        times.append(time.perf_counter() - start)
    count = sum(p.numel() for p in model.parameters())
    print(
        f"plan of {count / 1e9:.0f}B parameters, groups included: {statistics.median(times):.3f} s"
    )


if __name__ == "__main__":
    main()
