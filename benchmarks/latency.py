"""How long is waited for: `completedp --help`, plans of 70B-shaped models, an engine's next trial,
and the checksums of a gigabyte of tokens beside reading it.

    python benchmarks/latency.py [--json]

Models are on the meta device; Hugging Face's Llama is planned too where transformers is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

import completedp as cdp
from completedp.lm.reference import meta_model
from completedp.lm.verified import verify
from completedp.studies.engines import Bounds
from completedp.studies.registry import make_engine

TRIALS, COORDINATES = 5_000, 79


def main() -> None:
    """Print medians of five, in seconds."""
    warnings.simplefilter("ignore")  # cautions about targets that nobody trains
    found = {}
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "completedp", "--help"], capture_output=True)
        times.append(time.perf_counter() - start)
    found["completedp --help"] = statistics.median(times)
    target = cdp.Scale(width=8192, depth=80, batch=4_000_000, tokens=2 * 10**12)
    model = meta_model(cdp.ModelConfig(vocab=128_256, width=8192, depth=80))
    found |= time_plan("reference model", model, cdp.Recipe.default(), target)
    if find_spec("transformers"):
        base = cdp.Scale(width=512, depth=4, batch=65_536, tokens=10**8)
        recipe = cdp.Recipe.for_model(llama(512, 4), base)
        found |= time_plan("Hugging Face Llama", llama(8192, 80), recipe, target)
    for engine in ("recombine", "trust-region"):
        found |= time_engine(engine)
    found |= time_tokens()
    if "--json" in sys.argv:
        print(json.dumps({"seconds": found}))
        return
    for what, seconds in found.items():
        print(f"{what}: {seconds:.3f} s")


def time_plan(
    name: str, model: nn.Module, recipe: cdp.Recipe, target: cdp.Scale
) -> dict[str, float]:
    """The median of five plans, parameter groups included."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        cdp.plan(model, recipe, target).param_groups()
        times.append(time.perf_counter() - start)
    count = sum(p.numel() for p in model.parameters()) / 1e9
    return {f"plan of the {name}, {count:.0f}B parameters": statistics.median(times)}


def time_engine(name: str) -> dict[str, float]:
    """What one trial's ask and tell take, of the hundred after many trials."""
    edge = np.full(COORDINATES, 4.0)
    engine = make_engine(name, Bounds(low=-edge, high=edge, start=0 * edge), 0)
    rng = np.random.default_rng(0)
    for number in range(TRIALS):
        point = rng.uniform(-1, 1, COORDINATES)
        engine.tell(number, point, float(point @ point))
    start = time.perf_counter()
    for number in range(TRIALS, TRIALS + 100):
        point = engine.ask(number)
        engine.tell(number, point, float(point @ point))
    took = (time.perf_counter() - start) / 100
    return {f"`{name}`: one more of {TRIALS:,} trials of {COORDINATES} values": took}


def time_tokens() -> dict[str, float]:
    """What a gigabyte of tokens takes to be read from the disk, and to be found unchanged: at
    first, and by what is kept of that."""
    part = np.random.default_rng(0).integers(0, 2**16, 2**24, dtype=np.uint16).tobytes()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "train-00000.bin")
        with path.open("wb") as file:
            for _ in range(2**30 // len(part)):
                file.write(part)
            os.fsync(file.fileno())
        wanted = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
        steps = {"read": path.read_bytes, "checked": partial(verify, path.parent, wanted)}
        steps["checked again"] = steps["checked"]
        found = {}
        for what, step in steps.items():
            with path.open("rb") as file:  # so that it comes from the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            step()
            found[f"a gigabyte of tokens, {what}"] = time.perf_counter() - start
    return found


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
