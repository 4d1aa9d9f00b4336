"""What the headline's searches came to: a table of the ladders that their recipes keep.

python benchmarks/ladders.py
"""

from __future__ import annotations

from pathlib import Path

from completedp.theory.evidence import Standing
from completedp.theory.recipe import Recipe

FOLDER = Path(__file__).parent / "data" / "headline"
ARMS = {
    "uniform": "one value for every module, the initial scale among them",
    "global": "the same, from an embedding that starts eight times larger",
    "module": "128 trials of those, then 384 by module type",
}


def table() -> str:
    """By arm: what was chosen, and its losses and the start's at the base and on the rung."""
    lines = [
        "| searched | chosen | base | x2, tokens x4 | gain there over its start |",
        "| --- | --- | --- | --- | --- |",
    ]
    for arm, words in ARMS.items():
        evidence = Recipe.load(FOLDER / f"{arm}.json").evidence
        assert evidence is not None
        at = [rung.of(evidence.chosen or "") for rung in evidence.rungs]
        starts = [rung.of("start") for rung in evidence.rungs]
        base, larger = map(_shown, at)
        gain = _mean(starts[-1]) - _mean(at[-1])
        lines.append(f"| {words} | {evidence.chosen} | {base} | {larger} | {gain:.3f} |")
    return "\n".join(lines)


def _mean(standing: Standing | None) -> float:
    assert standing is not None
    return standing.mean


def _shown(standing: Standing | None) -> str:
    assert standing is not None
    return f"{standing.mean:.3f} +- {standing.error:.3f}"


if __name__ == "__main__":
    print(table())
