"""What a search gains at its own base: its recommendation against its start, on fresh seeds.

    xz -dk benchmarks/data/stores/base-long.db.xz
    python benchmarks/base_gain.py OUT.json --store benchmarks/data/stores/base-long.db \
        --data TOKENS --seeds 4

`completedp search best` measures all of a study's candidates, up a ladder. Here are two of them at
the base alone, so that a CPU can: of the search that docs/results/headline.md speaks of, eight
runs are half an hour of two cores.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

from recipes_compared import paired

from completedp.studies.candidates import RECOMMENDED, candidates
from completedp.studies.config import WorkerConfig
from completedp.studies.ladder import START
from completedp.studies.objective import Objective
from completedp.studies.store import Store
from completedp.tasks.config import Sources

FIRST_SEED = 8_500_000


def main() -> None:
    """Train both side by side, and print what the one gains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--store", required=True)
    parser.add_argument("--study")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--slots", type=int, default=8)
    args = parser.parse_args()
    with Store(args.store, create=False) as store:
        study = store.study(args.study)
        options = WorkerConfig(slots=args.slots)
        objective = Objective.of(study, Sources(data=args.data), options)
        recipes = candidates(study, objective)
        finished = study.counts()["finished"]
    scale, runner = objective.recipe.base, objective.runner
    losses = {name: [float("inf")] * args.seeds for name in (START, RECOMMENDED)}
    trials = [
        runner.trial(recipes[name], scale, FIRST_SEED + i, (name, i))
        for name, i in product(losses, range(args.seeds))
    ]
    for outcome in runner.run(trials, scale, count=len(trials)):
        name, i = outcome.key
        losses[name][i] = outcome.loss
        print(name, i, f"{outcome.loss:.4f}", flush=True)
    kept = {"study": study.name, "trials": finished, "scale": scale.to_dict()}
    args.out.write_text(json.dumps(kept | {"first_seed": FIRST_SEED, "losses": losses}, indent=1))
    mean, low, high = paired(losses[START], losses[RECOMMENDED])
    print(f"{finished} trials gain {mean:.4f} nats [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
