"""Bases of the figures at each size. What a figure varies is its own; where it starts is here.

`cpu` reads bytes of the standard library; `gpu` is meant for a BPE of 1,024 tokens, which leaves
most of a small model's weights in its blocks; `paper` has the paper's base of 50M weights (width
512, depth 4, 33 tokens a weight). Its batch, context and vocabulary are not in the paper: those are
ours, and make it 64M.
"""

from __future__ import annotations

from completedp.evidence.figures.figure import Setting
from completedp.theory.scale import Scale


def setting(
    kind: str,
    *,
    width: int,
    depth: int,
    sequences: int,
    steps: int,
    changed: dict[str, float] | None = None,
) -> Setting:
    """A base of so many sequences a step, on the text of a size; some values may be changed."""
    context = CONTEXTS[kind]
    batch = sequences * context
    values = {"lr": RATES[kind], "weight_decay": 0.05, "eps": 1e-10, "init_std": 0.1}
    return Setting(
        base=Scale(width=width, depth=depth, batch=batch, tokens=batch * steps),
        context=context,
        head_dim=HEADS[kind],
        vocab=VOCABULARIES[kind],
        eval_examples=EVALUATION[kind],
        values=values | (changed or {}),
    )


CONTEXTS = {"tiny": 16, "cpu": 64, "gpu": 256, "paper": 1024}
HEADS = {"tiny": 8, "cpu": 16, "gpu": 32, "paper": 64}
VOCABULARIES = {"tiny": 257, "cpu": 257, "gpu": 1024, "paper": 50_304}
RATES = {"tiny": 2.0**-5, "cpu": 2.0**-5, "gpu": 2.0**-7, "paper": 2.0**-7}
"""Learning rates that sweeps are centred on: near the best of each size's base."""
EVALUATION = {"tiny": 8, "cpu": 128, "gpu": 256, "paper": 1024}
PAPER = setting("paper", width=512, depth=4, sequences=128, steps=12_512)
"""The paper's base of 50M weights, for 1.64B tokens."""
