"""What searches came to: tables of the ladders that their recipes keep.

python benchmarks/ladders.py
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from recipes_compared import paired

from completedp.studies.candidates import FIRST_STAGE, RECOMMENDED
from completedp.studies.ladder import START
from completedp.theory.evidence import Evidence, Standing
from completedp.theory.recipe import Recipe

DATA = Path(__file__).parent / "data"
_AGAIN = "the same, another seed"
HEADLINE = {
    "uniform": "one value for every module, the initial scale among them",
    "uniform-1": _AGAIN,
    "global": "the same, from an embedding that starts eight times larger",
    "global-1": _AGAIN,
    "module": "128 trials of those, then 384 by module type",
    "module-1": _AGAIN,
}
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
    the engine recommended, which was not chosen for its loss there. Losses with standard errors,
    the gain with an interval of 95 %, seed by seed."""
    lines = [
        "| searched | chosen | base | x2, tokens x4 | gain there over its start | recommended |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, words in searches.items():
        evidence = _evidence(folder, name)
        base = _known(evidence.rungs[0].of(evidence.chosen or ""))
        mean, low, high = gain(folder, name)
        larger, said = chosen(folder, name), recommended(folder, name)
        cells = [_shown(base), _shown(larger), f"{mean:.3f} [{low:.3f}, {high:.3f}]", _shown(said)]
        lines.append(f"| {words} | {evidence.chosen} | {' | '.join(cells)} |")
    return "\n".join(lines)


def chosen(folder: str, name: str) -> Standing:
    """What a search's ladder chose, on its last rung."""
    evidence = _evidence(folder, name)
    return _known(evidence.rungs[-1].of(evidence.chosen or ""))


def recommended(folder: str, name: str) -> Standing:
    """What its engine recommended, there."""
    last = _evidence(folder, name).rungs[-1]
    return _known(last.of(RECOMMENDED) or last.of(FIRST_STAGE))


def gain(folder: str, name: str) -> tuple[float, float, float]:
    """What its choice is worth over its start there, with an interval."""
    start = _known(_evidence(folder, name).rungs[-1].of(START))
    return paired(start.losses, chosen(folder, name).losses)


def _evidence(folder: str, name: str) -> Evidence:
    evidence = Recipe.load(DATA / folder / f"{name}.json").evidence
    assert evidence is not None
    return evidence


def _known(standing: Standing | None) -> Standing:
    assert standing is not None
    return standing


def _shown(standing: Standing) -> str:
    return f"{standing.mean:.3f} +- {standing.error:.3f}"


if __name__ == "__main__":
    print(headline_table(), ways_table(), candidates_table(), sep="\n\n")
