"""lr-tokens: the best learning rate falls with the root of the training's length, unless the batch
grows with it.

On a GPU one line has the exponent 1/4, which is nearer to what is fitted there (tokens-exponent).
"""

from __future__ import annotations

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import AMBER, BLUE, GREEN, GREY
from completedp.evidence.figures.lines import MOVES, STAYS, Line, SweepSize, all_axes_but
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import Sweep
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios


def _lines(start: Ratios, model: str) -> tuple[Line, ...]:
    """None, the square-root rule, and tokens through the batch size, from one model."""
    return (
        Line(
            name=f"no rule for tokens{model}",
            colour=GREY,
            grows=("tokens",),
            rules=Rules(axes=all_axes_but("tokens")),
            expects=MOVES,
            guess=-0.5,
            start=start,
        ),
        Line(
            name=f"square-root rule{model}",
            colour=BLUE,
            grows=("tokens",),
            rules=Rules(),
            expects=STAYS,
            start=start,
        ),
        Line(
            name=f"tokens by batch{model}",
            colour=GREEN,
            grows=("batch", "tokens"),
            rules=Rules(),
            expects=STAYS,
            start=start,
        ),
    )


_BASE = _lines(Ratios(), "")
_QUARTER = Line(
    name="fourth-root rule",
    colour=AMBER,
    grows=("tokens",),
    rules=Rules(token_exponent=0.25),
    expects=STAYS,
)
_WIDER = _lines(Ratios(width=2.0), ", width x2")

FIGURE = Sweep(
    name="lr-tokens",
    claim="The best learning rate falls as one over the root of the number of steps; under that "
    "rule, or when tokens grow by the batch, it stays put",
    paper="Figures 5, 14 and 15",
    see=(
        "If the claim holds, the bottoms move to the left without a rule as training grows longer, "
        "and stay with it, or where the batch grows along."
    ),
    vary="lr",
    axis="tokens",
    limit=0.5,
    sizes={
        "tiny": SweepSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=20),
            over=Range(octaves=planned_octaves(-2, 2, 2), seeds=2, reach=4),
            factors=(1, 2),
            lines=(_BASE[0], _WIDER[2]),
        ),
        "cpu": SweepSize(
            setting=setting("cpu", width=32, depth=2, sequences=8, steps=200),
            over=Range(octaves=planned_octaves(-2, 2), seeds=3),
            factors=(1, 2, 4, 8),
            lines=_BASE,
        ),
        "gpu": SweepSize(
            setting=setting("gpu", width=64, depth=4, sequences=16, steps=1024),
            over=Range(octaves=planned_octaves(-2, 2), seeds=4, first=2),
            factors=(1, 2, 4, 8),
            lines=(*_BASE, _QUARTER, *_WIDER[:2]),
        ),
        "paper": SweepSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            factors=(1, 2, 4, 8),
            lines=(*_BASE, *_WIDER),
        ),
    },
)
