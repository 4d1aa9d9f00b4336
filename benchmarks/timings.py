"""The timings of docs/benchmarks.md: measured, kept, and made into its tables.

    python benchmarks/timings.py [NAMES...]

Runs the page's benchmarks one after the other, on a GPU or, where there is none, on the CPU, and
keeps what each prints as JSON in benchmarks/data/timings-cuda.json.xz (or -cpu), in place of what
was there under its name. `make docs` then makes the tables. Nothing else should be at work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import measured
import torch

ROOT = Path(__file__).parent.parent
_SLOTS = "-m completedp bench slots --json --depth 4 --head-dim 64"
_LARGE = f"{_SLOTS} --vocab 8192 --sequences 32 --context 512"
COMMANDS = {
    "cuda": {
        "slots-128": f"{_SLOTS} --width 128 --vocab 4096 --sequences 16 --context 256 "
        "--slots 4 16 64 128 --vmap",
        "slots-256": f"{_LARGE} --width 256 --slots 1 4 16",
        "slots-512": f"{_LARGE} --width 512 --slots 1 4 8",
        "optimizer": "-m completedp bench optimizer --json",
        "loss": "benchmarks/loss_memory.py --json",
        "first-step": "benchmarks/first_step.py --json",
    },
    "cpu": {
        "slots": "-m completedp bench slots --json --width 64 --depth 2 --slots 2 4 8 16",
        "optimizer": "-m completedp bench optimizer --json",
        "loss": "benchmarks/loss_memory.py --json",
        "waiting": "benchmarks/latency.py --json",
    },
}
"""What Python runs, by the kind of device and a name."""
WAYS = {
    "compile": "torch.compile",
    "cuda graphs": "CUDA graphs around the compiled step",
    "slots by vmap": "slots of any module, by vmap",
    "torch fused, one group": "torch fused",
}
"""What a way is called on the page, where its name is short."""


def data_of(kind: str) -> Path:
    """Where the timings of a kind of device are."""
    return measured.FOLDER / f"timings-{kind}.json.xz"


def found(kind: str, name: str) -> dict[str, Any]:
    """What a benchmark printed."""
    return measured.read(data_of(kind))[name]["found"]


def slots_table(one: dict[str, Any]) -> str:
    """Every way of one model."""
    rows = []
    for row in one["rows"]:
        memory, theory = row["memory_mib_per_slot"], row["memory_over_theory"]
        rows.append(
            [
                _way(row["way"]),
                row["slots"],
                f"{row['ms_per_trial_step']:.3g}",
                f"{row['tflops']:.3g}",
                "" if memory is None else f"{memory:.0f}",
                "" if theory is None else f"{theory:.2f}",
            ]
        )
    titles = ("way", "slots", "ms per trial-step", "TFLOP/s", "MiB a slot", "over theory")
    told = len(titles) if any(row[-1] for row in rows) else -2  # of memory a CPU does not say
    table = _table(titles[:told], [row[:told] for row in rows])
    return f"{table}\n\n{_ratios(one)}"


def _ratios(one: dict[str, Any]) -> str:
    """How many times as fast as each way of training one at a time the fastest slots are."""
    ratios = {
        name: one[f"slots_over_{name}"]
        for name in ("eager", "compile", "cuda_graphs")
        if f"slots_over_{name}" in one
    }
    words = {"eager": "eager training", "compile": "`torch.compile`", "cuda_graphs": "CUDA graphs"}
    said = ", ".join(f"{ratio:.3g} times {words[name]}" for name, ratio in ratios.items())
    return f"The fastest slots are {said}."


def optimizer_table(one: dict[str, Any]) -> str:
    """Every shape and way."""
    rows = [
        [
            row["shape"],
            _way(row["way"]),
            row["groups"],
            f"{row['ms']:.3g}",
            f"{row['gb_per_second']:.0f}",
        ]
        for row in one["rows"]
    ]
    return _table(("model", "way", "groups", "ms", "GB/s"), rows)


def loss_table(one: dict[str, Any]) -> str:
    """Every vocabulary."""
    rows = [
        [
            f"{row['vocab']:,}",
            f"{row['plain_mib']:,.0f} MiB",
            f"{row['chunked_mib']:,.0f} MiB",
            f"{row['memory_ratio']:.1f}",
            f"{row['time_ratio']:.2f}",
        ]
        for row in one["rows"]
    ]
    return _table(("vocabulary", "plain", "chunked", "memory ratio", "time, chunked / plain"), rows)


def first_step_table(one: dict[str, Any]) -> str:
    """Every shape, with empty caches and again."""
    again = {row["shape"]: row["seconds"] for row in one["again"]}
    rows = [
        [row["shape"].replace("x", " x "), f"{row['seconds']:.1f}", f"{again[row['shape']]:.1f}"]
        for row in one["empty"]
    ]
    return _table(("width x depth", "empty caches", "seen before"), rows)


def waiting_table(one: dict[str, Any]) -> str:
    """What a person waits for."""
    return _table(("what", "seconds"), [[what, f"{s:.2g}"] for what, s in one["seconds"].items()])


def _way(name: str) -> str:
    return WAYS.get(name, name)


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    """Measure, and keep each as soon as it is there."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(COMMANDS[kind])}; all if none")
    parser.add_argument("--out", type=Path, default=data_of(kind))
    args = parser.parse_args()
    if unknown := set(args.names) - COMMANDS[kind].keys():
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    device = torch.cuda.get_device_name() if kind == "cuda" else f"{os.cpu_count()} CPU cores"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    for name in args.names or COMMANDS[kind]:
        command = COMMANDS[kind][name]
        print(f"{name}: python {command}", flush=True)
        done = subprocess.run(
            [sys.executable, *shlex.split(command)], cwd=ROOT, env=env, stdout=subprocess.PIPE
        )
        if done.returncode:
            print(f"{name}: failed with {done.returncode}", flush=True)
            continue
        about = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
        one = about | {"command": command, "found": json.loads(done.stdout)}
        measured.write(args.out, measured.read(args.out) | {name: one})


if __name__ == "__main__":
    main()
