"""wd-batch: which weight decay is best as the batch grows, for AdamW and for independent decay.

Without a rule the best decay grows; divided by the root of the factor it stays (the same trials on
another axis), and under the whole rule it stays as it is. Decay that is not multiplied by the
learning rate needs the square: the factor itself.
"""

from __future__ import annotations

from completedp.evidence.figures.bowl import Range, planned_octaves
from completedp.evidence.figures.drawing import AMBER, BLUE, GREEN, GREY, RED, VIOLET
from completedp.evidence.figures.lines import MOVES, STAYS, Line, SweepSize, all_axes_but
from completedp.evidence.figures.settings import PAPER, setting
from completedp.evidence.figures.sweeps import Sweep
from completedp.theory.roles import Role
from completedp.theory.rules import Rules, Shift

_GROWS = ("batch",)
_UNSCALED = Rules(axes=all_axes_but("batch"))
_ROOT_ALONE = Rules(
    weight_decay="independent",
    shifts=tuple(
        Shift(role=str(role), hyperparameter="weight_decay", axis="batch", by=-0.5) for role in Role
    ),
)
_ADAMW = (
    Line(name="no rule", colour=GREY, grows=_GROWS, rules=_UNSCALED, expects=MOVES),
    Line(
        name="no rule, decay rescaled",
        colour=GREEN,
        grows=_GROWS,
        rules=_UNSCALED,
        expects=STAYS,
        rescaled=0.5,
    ),
    Line(name="whole rule", colour=BLUE, grows=_GROWS, rules=Rules(), expects=STAYS),
)
_LONGER = Line(
    name="whole rule, longer memory",
    colour=VIOLET,
    grows=_GROWS,
    expects=STAYS,
    values=(("beta1", 0.95), ("beta2", 0.99)),
)
_INDEPENDENT = (
    Line(
        name="independent decay, its rule",
        colour=AMBER,
        grows=_GROWS,
        rules=Rules(weight_decay="independent"),
        expects=STAYS,
    ),
    Line(
        name="independent decay, root alone",
        colour=RED,
        grows=_GROWS,
        rules=_ROOT_ALONE,
        expects=MOVES,
    ),
)

FIGURE = Sweep(
    name="wd-batch",
    claim="The best weight decay stays put as the batch grows when decay, learning rate and memory "
    "follow the rule",
    paper="Figure 4",
    see=(
        "If the claim holds, the best weight decay stays in place with the full rule as the batch "
        "grows."
    ),
    vary="weight_decay",
    axis="batch",
    limit=0.75,
    sizes={
        "tiny": SweepSize(
            setting=setting("tiny", width=16, depth=1, sequences=2, steps=40),
            over=Range(octaves=planned_octaves(-2, 6, 4), seeds=2, reach=8),
            factors=(1, 2),
            lines=(*_ADAMW[:2], _INDEPENDENT[0]),
        ),
        "cpu": SweepSize(
            setting=setting("cpu", width=64, depth=2, sequences=4, steps=800),
            over=Range(octaves=planned_octaves(-2, 6, 2), seeds=4, reach=10),
            factors=(1, 4),
            lines=_ADAMW,
        ),
        "gpu": SweepSize(
            setting=setting("gpu", width=128, depth=4, sequences=8, steps=4096),
            over=Range(octaves=planned_octaves(-3, 6, 1.5), seeds=5, first=2, reach=10),
            factors=(1, 2, 4, 8),
            lines=(*_ADAMW, _LONGER, *_INDEPENDENT),
        ),
        "paper": SweepSize(
            setting=PAPER,
            over=Range(octaves=planned_octaves(-3, 6, 1.5), seeds=3, reach=10),
            factors=(1, 2, 4, 8),
            lines=(*_ADAMW, *_INDEPENDENT),
        ),
    },
)
