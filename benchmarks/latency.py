"""How long a person waits: `completedp --help`, and plans of 70B-shaped models on meta tensors.

    python benchmarks/latency.py

Hugging Face's Llama is planned too where transformers is there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from importlib.util import find_spec

import torch
from torch import nn

import completedp as cdp
from completedp.lm.reference import meta_model


def main() -> None:
    """Print medians of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "completedp", "--help"], capture_output=True)
        times.append(time.perf_counter() - start)
    print(f"completedp --help: {statistics.median(times):.2f} s")
    target = cdp.Scale(width=8192, depth=80, batch=4_000_000, tokens=2 * 10**12)
    model = meta_model(cdp.ModelConfig(vocab=128_256, width=8192, depth=80))
    time_plan("reference model", model, cdp.Recipe.default(), target)
    if find_spec("transformers"):
        base = cdp.Scale(width=512, depth=4, batch=65_536, tokens=10**8)
        recipe = cdp.Recipe.for_model(llama(512, 4), base)
        time_plan("Hugging Face Llama", llama(8192, 80), recipe, target)


def time_plan(name: str, model: nn.Module, recipe: cdp.Recipe, target: cdp.Scale) -> None:
    """The median of five plans, parameter groups included."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        cdp.plan(model, recipe, target).param_groups()
        times.append(time.perf_counter() - start)
    count = sum(p.numel() for p in model.parameters()) / 1e9
    print(f"plan of {name}, {count:.0f}B parameters: {statistics.median(times):.3f} s")


def llama(width: int, depth: int) -> nn.Module:
    """Llama 3's shape, with heads of 128."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 128,
        num_key_value_heads=max(1, width // 1024),
        head_dim=128,
        intermediate_size=width * 7 // 2,
        vocab_size=128_256,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


if __name__ == "__main__":
    main()
