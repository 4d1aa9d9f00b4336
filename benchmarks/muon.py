"""Does Muon's learning rate carry over width and depth? Tiny models, on two cores: 25 minutes.

    completedp data stdlib --out TOKENS --valid-fraction 0.03
    python benchmarks/muon.py TOKENS OUT

Trials go to OUT, and what was found to OUT/verdict.json, which is kept as data/muon-sweep.json. The
table of docs/optimizers.md is made of that.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import completedp as cdp

DATA = Path(__file__).parent / "data" / "muon-sweep.json"
BASE = cdp.Scale(width=32, depth=2, batch=512, tokens=512 * 300)
HEADS, CONTEXT = 16, 64


def recipe() -> cdp.Recipe:
    """Muon for hidden matrices, AdamW for the rest, at values near the best of the base."""
    model = cdp.Transformer(
        cdp.ModelConfig(vocab=257, width=BASE.width, depth=BASE.depth, head_dim=HEADS)
    )
    rules = cdp.Rules(optimizer={"hidden_weight": "muon"})
    return cdp.Recipe.for_model(model, BASE, lr=2**-6, init_std=0.1, rules=rules, muon_lr=0.02)


def table() -> str:
    """Where the best rate is at each scale, and what the base's costs there."""
    lines = json.loads(DATA.read_text(encoding="utf-8"))["lines"]
    rows = ["| scale | best rate, octaves from the base's | loss | the base's costs |"]
    rows.append("| --- " * 4 + "|")
    for line in lines:
        where = "base" if line["axis"] == "base" else f"{line['axis']} x{line['factor']}"
        (drift,), (error,) = line["drift"], line["optimum"]["errors"]
        rows.append(
            f"| {where} | {drift:+.2f} +- {error:.2f} | {line['optimum']['loss']:.3f} | "
            f"{line['cost']:.3f} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Sweep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("out")
    args = parser.parse_args()
    found = cdp.sweep(
        None,
        vary="muon_lr",
        axis=("width", "depth"),
        factors=(1, 2, 4),
        data=args.data,
        recipe=recipe(),
        context=CONTEXT,
        out=args.out,
        slots=12,
    )
    print(found)


if __name__ == "__main__":
    main()
