"""Draw what slots do: a real run of mixed trials, slot by slot and step by step.

    python benchmarks/slots_timeline.py docs/slots.svg

Trials of different lengths, some planted to diverge, some stopped early, through six slots of a
tiny model on a CPU. Each bar is a trial in its slot; what is blank was idle.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from completedp.lm.prepare import prepare_source
from completedp.lm.shape import Shape
from completedp.tasks.task import make_task
from completedp.theory.scale import Scale
from completedp.training.slots import Slots
from completedp.training.trials import Trial

CONTEXT, SEQUENCES, COUNT = 32, 4, 6
COLOURS = {"ok": "#4c78a8", "diverged": "#e45756", "stopped": "#f2b134"}


class Watched(Slots):
    """Slots that remember when each trial was put where."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.starts: dict[Any, tuple[int, int]] = {}

    def fill(self, slot: int, trial: Trial[int]) -> None:
        """Note the slot and the step, and fill it."""
        self.starts[trial.key] = (slot, self.slot_steps // self.count)
        super().fill(slot, trial)


def main(out: str) -> None:
    """Train the mixed trials and draw them."""
    scale = Scale(width=32, depth=2, batch=CONTEXT * SEQUENCES, tokens=CONTEXT * SEQUENCES * 200)
    with tempfile.TemporaryDirectory() as folder:
        prepare_source("stdlib", folder, valid_fraction=0.01)
        task = make_task(None, folder, context=CONTEXT, shape=Shape(head_dim=16))
        recipe, blank = task.recipe(scale, lr=2.0**-7), task.model(scale)
        tame, wild = (task.plan(recipe.with_values(lr=lr), scale, blank) for lr in (2.0**-7, 1e4))
        trials = [
            Trial(plan=wild if n % 7 == 3 else tame, seed=n, steps=60 + 35 * (n * 5 % 6), key=n)
            for n in range(30)
        ]
        sizes = {"examples": SEQUENCES, "max_steps": 300, "count": COUNT, "eval_examples": 0}
        slots = Watched(blank, task.data, **sizes)
        ended = list(slots.run(trials, stop=lambda running: [t.key % 8 == 6 for t, _ in running]))
    figure, panel = plt.subplots(figsize=(8.5, 2.6), layout="constrained")
    for outcome in ended:
        slot, start = slots.starts[outcome.key]
        later = [s for where, s in slots.starts.values() if where == slot and s > start]
        end = min(later, default=slots.slot_steps // COUNT)
        if outcome.status == "ok":
            end = min(end, start + outcome.trial.steps)
        panel.barh(slot, end - start, left=start, color=COLOURS[outcome.status], edgecolor="white")
        panel.text((start + end) / 2, slot, str(outcome.key), ha="center", va="center")
    for status, colour in COLOURS.items():
        panel.bar(0, 0, color=colour, label=status)
    panel.set_xlabel("step of the stack")
    panel.set_ylabel("slot")
    panel.invert_yaxis()
    panel.legend(ncols=3, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    busy = slots.busy_steps / slots.slot_steps
    panel.set_title(f"{len(trials)} trials, {busy:.0%} of slot-steps busy", loc="left", fontsize=10)
    plt.rcParams["svg.hashsalt"] = "completedp"  # the same picture is the same file
    figure.savefig(out, metadata={"Date": None})
    print(f"{len(ended)} trials, {busy:.1%} busy: {Path(out)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", default="docs/slots.svg")
    main(parser.parse_args().out)
