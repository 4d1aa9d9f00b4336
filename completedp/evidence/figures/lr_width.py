"""lr-width: with the rules the best learning rate stays put as a model grows in width.

On a GPU one line begins at twice the base's width: where it stays put and the others do not, the
base was too narrow, and not the rule wrong.
"""

from __future__ import annotations

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import COLOURS, GREEN
from completedp.evidence.figures.lines import MOVES, STAYS, Line, SweepSize
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import Sweep
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios

_EXPECTS = {"completedp": STAYS, "completep": STAYS, "mup": STAYS, "sp": MOVES}


def _lines(*names: str) -> tuple[Line, ...]:
    return tuple(
        Line(
            name=name,
            colour=COLOURS[name],
            grows=("width",),
            rules=Rules(parameterisation=name),
            expects=_EXPECTS[name],
            guess=-1.0 if name == "sp" else 0.0,
        )
        for name in names
    )


_FROM_TWICE = Line(
    name="completedp, from x2 on",
    colour=GREEN,
    grows=("width",),
    start=Ratios(width=2.0),
    expects=STAYS,
)

FIGURE = Sweep(
    name="lr-width",
    claim="The best learning rate stays put as width grows, and moves without the rules",
    paper="Figure 2",
    see=(
        "If the claim holds, the bottoms of all curves with the rules are one above the other, and "
        "move to smaller learning rates without them as the model grows wider."
    ),
    vary="lr",
    axis="width",
    limit=0.5,
    sizes={
        "tiny": SweepSize(
            setting=setting("tiny", width=16, depth=1, sequences=4, steps=20),
            over=Range(octaves=planned_octaves(-2, 2, 2), seeds=2, reach=4),
            factors=(1, 2),
            lines=_lines("completedp", "sp"),
        ),
        "cpu": SweepSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=200),
            over=Range(octaves=planned_octaves(-2, 2), seeds=3),
            factors=(1, 2, 4),
            lines=_lines("completedp", "completep", "mup", "sp"),
        ),
        "gpu": SweepSize(
            setting=setting("gpu", width=64, depth=2, sequences=6, steps=4096),
            over=Range(octaves=planned_octaves(-2, 2), seeds=8, first=2),
            factors=(1, 2, 4, 8),
            lines=(*_lines("completedp", "completep", "mup", "sp"), _FROM_TWICE),
        ),
        "paper": SweepSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            factors=(1, 2, 4, 8),
            lines=_lines("completedp", "completep", "mup", "sp"),
        ),
    },
)
