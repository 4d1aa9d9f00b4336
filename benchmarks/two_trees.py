"""Two states of the sources, timed in turns: has anything become slower?

    git worktree add /tmp/before COMMIT
    python benchmarks/two_trees.py OUT.json optimizer slots waiting --before /tmp/before

Runs the same commands in both trees, before, now, before, now, and keeps every time of ours in
milliseconds. A ratio of medians near one, with the rounds of one tree as far apart as the trees
are, is no change. Nothing else should be at work. The table in docs/benchmarks.md is made by `make
docs` of data/two-trees.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import measured
import torch

ROOT = Path(__file__).parent.parent
FOUND = measured.FOLDER / "two-trees.json"
COMMANDS = {
    "optimizer": "-m completedp bench optimizer --json --shapes 124m 1b",
    "slots": "-m completedp bench slots --json --width 128 --depth 4 --head-dim 64 --vocab 4096 "
    "--sequences 16 --context 256 --slots 16 64",
    "waiting": "benchmarks/latency.py",
}
TREES = ("before", "now")


def times(name: str, said: str) -> dict[str, float]:
    """Our own times in what a command printed, in milliseconds, by what was timed."""
    if name == "waiting":
        pairs = re.findall(r"^(.+): ([0-9.]+) s$", said, flags=re.MULTILINE)
        return {what.replace("of the ", "of "): 1e3 * float(seconds) for what, seconds in pairs}
    rows = json.loads(said)["rows"]
    if name == "optimizer":
        ours = (row for row in rows if row["way"] == "completedp")
        return {f"AdamW, {row['shape']}": row["ms"] for row in ours}
    return {f"{row['way']}, {row['slots']}": row["ms_per_trial_step"] for row in rows}


def found() -> dict[str, Any]:
    """What was measured of the first release and the sources then, kept in the repository."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def table(of: Mapping[str, Any]) -> str:
    """A row for everything that both trees timed, in every round, and the ratio of medians."""
    lines = [
        "| what | before, ms | now, ms | now / before |",
        "| --- | --- | --- | --- |",
    ]
    for one in of.values():
        before, now = one["before"], one["now"]
        for what in (what for what in before[0] if what in now[0]):
            each = {tree: [run[what] for run in one[tree]] for tree in TREES}
            said = (" ".join(f"{ms:.3g}" for ms in each[tree]) for tree in TREES)
            ratio = statistics.median(each["now"]) / statistics.median(each["before"])
            lines.append(f"| {what} | {' | '.join(said)} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and keep each as soon as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+", choices=list(COMMANDS))
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    for name in args.names:
        one: dict[str, Any] = {"device": device, "torch": torch.__version__}
        one |= {"command": COMMANDS[name]} | {tree: [] for tree in TREES}
        for _ in range(args.rounds):
            for tree, folder in zip(TREES, (args.before, ROOT), strict=True):
                path = os.pathsep.join([str(folder.resolve()), *sys.path[1:]])
                said = subprocess.run(
                    [sys.executable, *shlex.split(COMMANDS[name])],
                    cwd=folder,
                    env=os.environ | {"PYTHONPATH": path},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                ).stdout
                one[tree].append(times(name, said))
        kept |= {name: one}
        args.out.write_text(json.dumps(kept, indent=1))
        print(table({name: one}), flush=True)


if __name__ == "__main__":
    main()
