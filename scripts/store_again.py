"""Put a sweep's kept measurements back into a store, so that the figure goes on from them.

    python scripts/store_again.py lr-batch --data TOKENS --out OUT
    completedp figure lr-batch --size gpu --data TOKENS --out OUT

After a line or more seeds are added to a figure, what docs/results has of it need not be trained
again. TOKENS must be those that it was measured on. The seconds go on, too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from completedp.common.errors import CompletedpError
from completedp.common.files import write_json
from completedp.evidence.figures.lab import Lab
from completedp.evidence.figures.lines import Curve
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.run import raw_of, stopwatch_of
from completedp.evidence.figures.sweeps import Sweep, study_of, wanted_at
from completedp.studies.cells import Wanted
from completedp.studies.config import WorkerConfig
from completedp.studies.store import Store

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def restore(figure: Sweep, written: dict[str, Any], raw: list[dict[str, Any]], lab: Lab) -> int:
    """List every measured trial and finish it with its loss; returns how many there are."""
    if written.get("digest") != lab.digest:
        raise CompletedpError(
            f"{figure.name} was measured on tokens {written.get('digest')}, these are {lab.digest}"
        )
    at = figure.sizes[written["size"]]
    lines = {line.name: line for line in at.lines}
    studies = defaultdict[Any, dict[Wanted, float]](dict)
    for row in raw:
        line = lines[row["line"]]
        curve = Curve(line, row["factor"])
        scale = line.scale(at.setting.base, row["factor"])
        loss = math.inf if row["loss"] is None else row["loss"]
        studies[line.kind][wanted_at(curve, scale, row["octaves"], row["seed"])] = loss
    of_kind = {line.kind: line for line in at.lines}
    found = 0
    for kind, losses in studies.items():
        study = study_of(lab, at.setting, of_kind[kind], figure.vary)
        found += study.take(losses)
    return found


def main() -> None:
    """Make the store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    sweeps = [name for name, figure in FIGURES.items() if isinstance(figure, Sweep)]
    parser.add_argument("name", choices=sweeps)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    written = json.loads((RESULTS / f"{args.name}.json").read_text(encoding="utf-8"))
    args.out.mkdir(parents=True, exist_ok=True)
    figure = FIGURES[args.name]
    assert isinstance(figure, Sweep)
    with Store(str(args.out / f"{args.name}-{written['size']}.db")) as store:
        lab = Lab(args.name, written["size"], store, data=args.data, options=WorkerConfig())
        print(f"{restore(figure, written, raw_of(RESULTS / f'{args.name}.json.xz'), lab)} trials")
    write_json(stopwatch_of(args.out, args.name, written["size"]), {"seconds": written["seconds"]})


if __name__ == "__main__":
    try:
        main()
    except CompletedpError as error:
        sys.exit(f"error: {error}")
