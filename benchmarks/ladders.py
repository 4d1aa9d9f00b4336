"""What searches came to: tables of the ladders that their recipes keep.

python benchmarks/ladders.py
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from completedp.studies.candidates import FIRST_STAGE, RECOMMENDED
from completedp.theory.evidence import Evidence, Standing
from completedp.theory.recipe import Recipe

DATA = Path(__file__).parent / "data"
HEADLINE = {
    "uniform": "one value for every module, the initial scale among them",
    "global": "the same, from an embedding that starts eight times larger",
    "module": "128 trials of those, then 384 by module type",
}
_AGAIN = "the same, another seed"
WAYS = {
    "staged-0": "`staged`",
    "staged-1": _AGAIN,
    "type-0": "`type`",
    "type-1": _AGAIN,
    "kronecker-0": "`kronecker`",
    "kronecker-1": _AGAIN,
    "global-0": "`global`",
    "global-1": _AGAIN,
    "sites-0": "`global`, every other round at depth x2, tokens x2, 128 trials",
    "sites-1": _AGAIN,
}


def headline_table() -> str:
    """Of the headline's searches."""
    return _table("headline", HEADLINE)


def ways_table() -> str:
    """Of two searches of each kind, that cost the same."""
    return _table("ways", WAYS)


def candidates_table() -> str:
    """What each kind of candidate came to on the first rung of every ladder, against what the
    search recommended."""
    rungs = [
        _evidence(folder, path.stem).rungs[1]
        for folder in ("headline", "ways")
        for path in sorted((DATA / folder).glob("*.json"))
    ]
    apart: dict[str, list[float]] = {}
    won: Counter[str] = Counter()
    for rung in rungs:
        means = {standing.candidate: standing.mean for standing in rung.standings}
        if RECOMMENDED not in means:  # a search in stages that ended within its first
            means[RECOMMENDED] = means.pop(FIRST_STAGE)
        won[min(means, key=means.__getitem__)] += 1
        for name, mean in means.items():
            apart.setdefault(name, []).append(mean - means[RECOMMENDED])
    lines = [
        "| candidate | ladders | lowest in | above what is recommended, median | least to most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, each in sorted(apart.items(), key=lambda item: statistics.median(item[1])):
        middle = f"{statistics.median(each):+.3f}".replace("-0.000", "+0.000")
        ends = f"{min(each):+.3f} to {max(each):+.3f}"
        told = f"{middle} | {ends}" if name != RECOMMENDED else " | "
        lines.append(f"| {name} | {len(each)} | {won[name]} | {told} |")
    return "\n".join(lines)


def _table(folder: str, searches: Mapping[str, str]) -> str:
    """By search: what was chosen, its losses at the base and on the last rung, its gain, and what
    the engine recommended, which was not chosen for its loss there."""
    lines = [
        "| searched | chosen | base | x2, tokens x4 | gain there over its start | recommended |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, words in searches.items():
        evidence = _evidence(folder, name)
        base, larger = (rung.of(evidence.chosen or "") for rung in evidence.rungs)
        gain = _mean(evidence.rungs[-1].of("start")) - _mean(larger)
        said = evidence.rungs[-1].of(RECOMMENDED) or evidence.rungs[-1].of(FIRST_STAGE)
        losses = f"{_shown(base)} | {_shown(larger)} | {gain:.3f} | {_shown(said)}"
        lines.append(f"| {words} | {evidence.chosen} | {losses} |")
    return "\n".join(lines)


def _evidence(folder: str, name: str) -> Evidence:
    evidence = Recipe.load(DATA / folder / f"{name}.json").evidence
    assert evidence is not None
    return evidence


def _mean(standing: Standing | None) -> float:
    assert standing is not None
    return standing.mean


def _shown(standing: Standing | None) -> str:
    assert standing is not None
    return f"{standing.mean:.3f} +- {standing.error:.3f}"


if __name__ == "__main__":
    print(headline_table(), ways_table(), candidates_table(), sep="\n\n")
