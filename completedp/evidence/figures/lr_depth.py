"""lr-depth: the best learning rate stays put as a model grows deeper, with and without QK norms.

On a GPU one line begins at twice the base's depth: where it stays put and the others do not, the
base was too shallow, and not the rule wrong.
"""

from __future__ import annotations

from dataclasses import replace

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import AMBER, COLOURS, GREEN
from completedp.evidence.figures.lines import STAYS, Line, SweepSize
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import Sweep
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios

_FULL = Line(
    name="completedp, alpha 1",
    colour=COLOURS["completedp"],
    grows=("depth",),
    rules=Rules(),
    expects=STAYS,
)
_HALF = Line(
    name="completedp, alpha 1/2",
    colour=GREEN,
    grows=("depth",),
    rules=Rules(alpha=0.5),
    expects=STAYS,
)
_OTHERS = tuple(
    Line(name=name, colour=COLOURS[name], grows=("depth",), rules=Rules(parameterisation=name))
    for name in ("completep", "mup", "sp")
)


def _without_norms(line: Line) -> Line:
    return replace(line, name=f"{line.name}, no QK norms", shape=(("qk_norm", False),))


_FROM_TWICE = replace(
    _FULL, name="completedp, alpha 1, from x2 on", colour=AMBER, start=Ratios(depth=2.0)
)
_LINES = (_FULL, _HALF, *_OTHERS, _without_norms(_FULL), _without_norms(_HALF))

FIGURE = Sweep(
    name="lr-depth",
    claim="The best learning rate stays put as depth grows, for both exponents of the residual "
    "branches, with QK norms and without",
    paper="Figures 2 and 13",
    see=(
        "If the claim holds, the bottoms of all curves with the rules are one above the other, for "
        "both exponents, with QK norms and without."
    ),
    vary="lr",
    axis="depth",
    limit=0.5,
    sizes={
        "tiny": SweepSize(
            setting=setting("tiny", width=16, depth=1, sequences=4, steps=20),
            over=Range(octaves=planned_octaves(-2, 2, 2), seeds=2, reach=2),
            factors=(1, 2),
            lines=(_FULL, _without_norms(_HALF)),
        ),
        "cpu": SweepSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=200),
            over=Range(octaves=planned_octaves(-2, 2), seeds=3),
            factors=(1, 2, 4),
            lines=(_FULL, _HALF, *_OTHERS, _without_norms(_FULL)),
        ),
        "gpu": SweepSize(
            setting=setting("gpu", width=128, depth=2, sequences=6, steps=4096),
            over=Range(octaves=planned_octaves(-2, 2), seeds=5, first=2),
            factors=(1, 2, 4, 8),
            lines=(*_LINES, _FROM_TWICE),
        ),
        "paper": SweepSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            factors=(1, 2, 4, 8),
            lines=_LINES,
        ),
    },
)
