"""What values by module gain at another base, over global values tuned with as many trials.

    python benchmarks/base_gain.py OUT --data TOKENS --width 128 --depth 4 --steps 4096

The headline's base is narrow and knows 1,024 tokens. Are one learning rate and one initial scale
good enough for all modules because of that? The arms are the headline's, and that of the paper's
appendix: five global values. All are tuned and chosen at this base alone, then trained on fresh
seeds, at the base and wherever `--carried` says (`--carried width=2,depth=2,batch=2,tokens=4
--carried-seeds 3`); `global` for longer, too, which says what a loss is worth in tokens.
`--sites`, `--rungs` and `--search-seed` are those of other searches, each in an OUT of its own.
Every trial is in OUT/base-gain.db; the same command goes on where it stopped. OUT/base-gain.json is
what was found.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from completedp.common.files import plain, write_json
from completedp.evidence.figures.headline import (
    ARMS,
    BEGINS,
    GLOBAL,
    MODULE,
    PAPERS,
    SHARED,
    UNIFORM,
    Headline,
    HeadlineSize,
)
from completedp.evidence.figures.lab import Lab
from completedp.evidence.figures.settings import setting
from completedp.lm.tokens import Manifest
from completedp.studies.config import WorkerConfig
from completedp.studies.store import Store
from completedp.theory.scale import Ratios


def headline(args: argparse.Namespace, vocab: int) -> Headline:
    """The headline at one scale, the base."""
    base = setting(
        args.size, width=args.width, depth=args.depth, sequences=args.sequences, steps=args.steps
    )
    size = HeadlineSize(
        setting=replace(base, vocab=vocab),
        token_exponent=0.25,  # never used: nothing grows
        sites=tuple(args.sites),
        shared=args.shared,
        trials=args.trials - args.shared,
        rungs=tuple(args.rungs),
        rung_seeds=args.rung_seeds,
        scales=(*[Ratios()] * bool(args.seeds), *args.carried),
        seeds=(*[args.seeds] * bool(args.seeds), *[args.carried_seeds] * len(args.carried)),
        lengths=tuple(args.lengths),
        usual_width=args.usual_width,
        arms=tuple(args.arms),
        search_seed=args.search_seed,
    )
    return Headline(sizes={args.size: size})


def main() -> None:
    """Search, choose, train, and say what each loss is worth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--size", choices=("tiny", "cpu", "gpu"), default="gpu", help="context and heads"
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=16, help="a step")
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--shared", type=int, default=96, help="trials before values by module")
    parser.add_argument("--trials", type=int, default=320, help="of each arm")
    parser.add_argument("--seeds", type=int, default=8, help="at the base; 0: not measured there")
    parser.add_argument("--lengths", type=float, nargs="+", default=[1.5, 2.0])
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=[PAPERS, UNIFORM, GLOBAL, MODULE]
    )
    parser.add_argument(
        "--carried", type=Ratios.parse, nargs="*", default=[], metavar="AXIS=RATIO,..."
    )
    parser.add_argument(
        "--usual-width", type=int, default=512, help="where `paper` begins with a std of 0.02"
    )
    parser.add_argument("--carried-seeds", type=int, default=3)
    parser.add_argument("--search-seed", type=int, default=0, help="another one is another search")
    for name, words in (("sites", "where trials train, too"), ("rungs", "where arms are chosen")):
        parser.add_argument(
            f"--{name}",
            type=Ratios.parse,
            nargs="*",
            default=[],
            metavar="AXIS=RATIO,...",
            help=f"{words}, besides the base",
        )
    parser.add_argument("--rung-seeds", type=int, default=4)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    for arm, before in {**BEGINS, **SHARED}.items():
        if arm in args.arms and before not in args.arms:
            parser.error(f"--arms: {arm!r} goes on from {before!r}, which is to be one of them")
    text = Manifest.load(Path(args.data))
    figure = headline(args, text.vocab)
    args.out.mkdir(parents=True, exist_ok=True)
    options = WorkerConfig(slots=args.slots, device=args.device, compile=args.compile)
    with Store(str(args.out / "base-gain.db")) as store:
        lab = Lab("base-gain", args.size, store, data=args.data, options=options, folder=args.out)
        found = figure.run(args.size, lab)
    at = figure.sizes[args.size]
    kept = {
        "base": at.setting.base.to_dict(),
        "vocab": text.vocab,
        "text": text.digest(),
        "shared": at.shared,
        **found.numbers,
    }
    write_json(args.out / "base-gain.json", plain(kept))
    print(found.text)
    print(json.dumps(found.summary))


if __name__ == "__main__":
    main()
