"""lr-batch: with the square-root rule the best learning rate stays put as the batch grows.

The rule shortens the optimizer's memory, too, so that it spans as many tokens as before: at beta2
0.95 that is 2.5 steps for eight times the batch. Lines of their own tell what that does from what
the rate does: with the betas kept, with longer memories from the base on, and with both.
"""

from __future__ import annotations

from dataclasses import replace

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import AMBER, COLOURS, GREEN, GREY, VIOLET
from completedp.evidence.figures.lines import MOVES, STAYS, Line, SweepSize, all_axes_but
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import Sweep
from completedp.theory.rules import Rules

_RULE = Line(
    name="square-root rule",
    colour=COLOURS["completedp"],
    grows=("batch",),
    rules=Rules(),
    expects=STAYS,
)
_NONE = Line(
    name="no rule for the batch",
    colour=GREY,
    grows=("batch",),
    rules=Rules(axes=all_axes_but("batch")),
    expects=MOVES,
    guess=0.5,
)
_BETAS_KEPT = Line(
    name="square-root rule, betas kept",
    colour=GREEN,
    grows=("batch",),
    rules=Rules(beta_rule="keep"),
)
_LONGER = Line(
    name="square-root rule, longer memory",
    colour=AMBER,
    grows=("batch",),
    expects=STAYS,
    values=(("beta1", 0.95), ("beta2", 0.99)),
)
_LONGER_KEPT = replace(
    _LONGER,
    name="square-root rule, longer memory, betas kept",
    colour=VIOLET,
    expects=None,
    rules=Rules(beta_rule="keep"),
)

FIGURE = Sweep(
    name="lr-batch",
    claim="The best learning rate stays put under the square-root rule as the batch grows at the "
    "same number of tokens",
    paper="Figure 3",
    see=(
        "If the claim holds, the bottoms stay in place with the square-root rule as the batch "
        "grows, and move to the right without it."
    ),
    vary="lr",
    axis="batch",
    limit=0.5,
    sizes={
        "tiny": SweepSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=40),
            over=Range(octaves=planned_octaves(-2, 2, 2), seeds=2, reach=4),
            factors=(1, 2),
            lines=(_RULE, _NONE, _LONGER),
        ),
        "cpu": SweepSize(
            setting=setting("cpu", width=64, depth=2, sequences=4, steps=800),
            over=Range(octaves=planned_octaves(-2, 2), seeds=3),
            factors=(1, 2, 4),
            lines=(_RULE, _NONE),
        ),
        "gpu": SweepSize(
            setting=setting("gpu", width=128, depth=4, sequences=8, steps=8192),
            over=Range(octaves=planned_octaves(-2, 2), seeds=5, first=2),
            factors=(1, 2, 4, 8),
            lines=(_RULE, _NONE, _BETAS_KEPT, _LONGER, _LONGER_KEPT),
        ),
        "paper": SweepSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-4, 3), seeds=3),
            factors=(1, 2, 4, 8),
            lines=(_RULE, _NONE),
        ),
    },
)
