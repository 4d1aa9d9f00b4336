"""What searches came to: tables of the ladders that their recipes keep.

python benchmarks/ladders.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from completedp.theory.evidence import Standing
from completedp.theory.recipe import Recipe

DATA = Path(__file__).parent / "data"
HEADLINE = {
    "uniform": "one value for every module, the initial scale among them",
    "global": "the same, from an embedding that starts eight times larger",
    "module": "128 trials of those, then 384 by module type",
}
STAGES = {
    "staged-0": "`staged`",
    "staged-1": "the same, another seed",
    "kronecker-0": "`kronecker`",
    "kronecker-1": "the same, another seed",
}


def headline_table() -> str:
    """Of the headline's searches."""
    return _table("headline", HEADLINE)


def stages_table() -> str:
    """Of searches in stages, and of types and layers from the beginning."""
    return _table("stages", STAGES)


def _table(folder: str, searches: Mapping[str, str]) -> str:
    """By search: what was chosen, its losses at the base and on the last rung, and its gain."""
    lines = [
        "| searched | chosen | base | x2, tokens x4 | gain there over its start |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, words in searches.items():
        evidence = Recipe.load(DATA / folder / f"{name}.json").evidence
        assert evidence is not None
        base, larger = (rung.of(evidence.chosen or "") for rung in evidence.rungs)
        gain = _mean(evidence.rungs[-1].of("start")) - _mean(larger)
        losses = f"{_shown(base)} | {_shown(larger)}"
        lines.append(f"| {words} | {evidence.chosen} | {losses} | {gain:.3f} |")
    return "\n".join(lines)


def _mean(standing: Standing | None) -> float:
    assert standing is not None
    return standing.mean


def _shown(standing: Standing | None) -> str:
    assert standing is not None
    return f"{standing.mean:.3f} +- {standing.error:.3f}"


if __name__ == "__main__":
    print(headline_table(), stages_table(), sep="\n\n")
