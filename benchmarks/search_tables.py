"""What searches came to, on real training and on landscapes: tables of what their scripts left.

python benchmarks/search_tables.py
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"
_ENGINES = {"trust-region": "paper's", "recombine": "recombine"}
_LOOKS = (100, 300, 1000)
_SHARED = {
    "global-multi-0": "`global`, every other round at depth x2, tokens x2",
    "kronecker-0": "`kronecker`",
    "type-0": "`type`",
    "groups-0": "five groups of types",
    "type-multi-0": "`type`, every other round at depth x2, tokens x2",
    "type-multi-1": "the same, another seed",
}
_STEADY = {"start": "start", "type-multi-0": "`type`, two scales"}
_GENTLER = ((0.02, 1.0), (0.1, 1.0), (0.3, 1.0), (0.02, 0.5))
"""Warm-up and learning rate of the rows that are shown."""


def real_table() -> str:
    """What each search of search_real.py would recommend after so many trials, on fresh seeds."""
    fresh = _read("search-real.json")["fresh"]
    lines = _head("search", "seed", *(f"{n} trials" if n == _LOOKS[0] else str(n) for n in _LOOKS))
    lines.append(f"| start: {fresh['start']['mean']:.3f} | | | | |")
    for engine, name in _ENGINES.items():
        for seed in _seeds(fresh, engine):
            found = (fresh.get(f"{engine}, seed {seed}, {n}") for n in _LOOKS)
            cells = " | ".join(f"{each['mean']:.3f}" if each else "" for each in found)
            lines.append(f"| {name} | {seed} | {cells} |".replace("|  |", "| |"))
    return "\n".join(lines)


def stopped_table() -> str:
    """The same searches, and those of global values, with trials that end early."""
    lines = _head("search", "trials", "seed", "whole", "with stopping", "steps saved")
    for file, told in (("search-real.json", ""), ("search-global.json", ", global values")):
        found = _read(file)
        for engine, name in _ENGINES.items():
            for seed in _seeds(found["fresh"], engine):
                stopped = f"{engine}, stop early, seed {seed}"
                whole, trials = f"{engine}, seed {seed}", _last(found["fresh"], engine, seed)
                losses = (found["fresh"][f"{run}, {trials}"]["mean"] for run in (whole, stopped))
                saved = 1 - found["steps"][stopped] / found["steps"][whole]
                cells = " | ".join(f"{loss:.3f}" for loss in losses)
                lines.append(f"| {name}{told} | {trials} | {seed} | {cells} | {saved:.0%} |")
    return "\n".join(lines)


def landscapes_table() -> str:
    """Gaps that remain on synthetic landscapes, by search_engines.py."""
    return _gaps("landscapes", ("landscape", "in flight"), _kind_of)


def surrogate_table() -> str:
    """The same on the surrogate of real training."""
    return _gaps("surrogate", ("in flight",), lambda row, first: [f"{row['in_flight']}"])


def samplers_table() -> str:
    """Gaps that remain with Optuna's samplers, by the same script."""
    lines = _head("sampler", "dimensions", "gap that remains")
    for row in _read("landscapes.json")["optuna"]["table"]:
        left = ", ".join(f"{gap:.0f} after {trials}" for trials, gap in row["left"].items())
        lines.append(f"| {row['engine']} | {row['dimensions']} | {left} |")
    return "\n".join(lines)


def forecast_table() -> str:
    """What stopping saves and costs on the surrogate, by stop_early.py."""
    rows = _read("stop-early.json")
    lines = _head("search", "trials", "whole", "with stopping", "steps saved")
    pairs = zip(rows[::2], rows[1::2], strict=True)
    for whole, stopping in pairs:
        losses = (f"{each['loss']:.3f} +- {each['error']:.3f}" for each in (whole, stopping))
        cells = (_ENGINES[whole["engine"]], str(whole["trials"]), *losses)
        lines.append(f"| {' | '.join(cells)} | {1 - stopping['steps']:.0%} |")
    return "\n".join(lines)


def _kind_of(row: Mapping[str, Any], first: bool) -> list[str]:
    dimensions = f"{row['dimensions']} dimensions" if first else str(row["dimensions"])
    return [f"{row['kind']}, {dimensions}", str(row["in_flight"])]


def _gaps(
    name: str, titles: Sequence[str], told: Callable[[Mapping[str, Any], bool], list[str]]
) -> str:
    lines = _head(*titles, "paper's", "cma-es", "recombine", "needed")
    rows = _read("landscapes.json")[name]["table"]
    for i in range(0, len(rows), 3):
        alike = rows[i : i + 3]
        left = ("/".join(f"{x:.0f}" for x in row["left"].values()) for row in alike)
        cells = [*told(alike[0], not i), *left, f"{alike[-1]['needed']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def carried_table() -> str:
    """What transfer_search.py's searches recommend, at the base and at a scale that none saw."""
    judged = _read("transfer-search/judged.json")
    lines = _head("search", "trials", "base", "x2, tokens x4", "there without its learning rates")
    rows = {"start": ("start: global values", "")} | {
        name: (told, str(len(np.load(DATA / "transfer-search" / f"{name}.npz")["losses"])))
        for name, told in _SHARED.items()
    }
    lowest = min(rows, key=lambda name: statistics.fmean(judged["x2"][name].values()))
    for name, (told, trials) in rows.items():
        at_base, there = (_shown(judged[where][name]) for where in ("base", "x2"))
        without = judged["x2"].get(f"{name}, no lr")
        there = f"**{there}**" if name == lowest else there
        cells = (told, trials, at_base, there, _shown(without) if without else "")
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def steady_table() -> str:
    """Whether gentler training makes seeds agree more: steadiness.py's runs at twice the size."""
    found = _read("transfer-search/steadiness.json")
    at = {(r["recipe"], r["warmup"], r["lr"]): r["losses"] for r in found if r["where"] == "x2"}
    lines = _head("at x2, tokens x4", "warm-up", "learning rate", "loss", "between seeds")
    for recipe, told in _STEADY.items():
        for i, (warmup, lr) in enumerate(_GENTLER):
            losses = at[recipe, warmup, lr]
            rate = "x1" if lr == 1 else f"x1/{1 / lr:.0f}"
            loss, spread = statistics.fmean(losses), statistics.stdev(losses)
            lines.append(
                f"| {told if not i else ''} | {warmup:.0%} | {rate} | {loss:.3f} | {spread:.3f} |"
            )
    return "\n".join(lines).replace("|  |", "| |")


def _read(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def _seeds(fresh: Mapping[str, Any], engine: str) -> list[int]:
    named = (name.split(", seed ") for name in fresh if name.startswith(f"{engine}, seed "))
    return sorted({int(rest.split(",")[0]) for _, rest in named})


def _last(fresh: Mapping[str, Any], engine: str, seed: int) -> int:
    """After how many trials a search was looked at last."""
    begins = f"{engine}, seed {seed}, "
    return max(int(name.removeprefix(begins)) for name in fresh if name.startswith(begins))


def _shown(losses: Mapping[str, float]) -> str:
    error = statistics.stdev(losses.values()) / math.sqrt(len(losses))
    return f"{statistics.fmean(losses.values()):.3f} +- {error:.3f}".replace("+- 0.", "+- .")


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]


def tables() -> Sequence[str]:
    """All of them."""
    return [
        landscapes_table(),
        samplers_table(),
        real_table(),
        carried_table(),
        steady_table(),
        surrogate_table(),
        stopped_table(),
        forecast_table(),
    ]


if __name__ == "__main__":
    print("\n\n".join(tables()))
