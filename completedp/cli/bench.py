"""The verb `bench`: slots against one trial at a time, AdamW against torch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, subcommand

from completedp.bench.config import OptimizerBenchConfig, SlotsBenchConfig
from completedp.cli.shared import Verb, as_config, counted, register, show


@dataclass(frozen=True, kw_only=True)
class BenchSlotsVerb(SlotsBenchConfig):
    """Time many trials in slots against one at a time, side by side in one run."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Time and print."""
        from completedp.bench.slots import bench_slots, bench_slots_text

        with counted("ways") as progress:
            found = bench_slots(as_config(self, SlotsBenchConfig), progress)
        return show(found, bench_slots_text(found), self.json)


@dataclass(frozen=True, kw_only=True)
class BenchOptimizerVerb(OptimizerBenchConfig):
    """Time AdamW steps with values per module: torch's own against completedp.AdamW."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Time and print."""
        from completedp.bench.optimizer import bench_optimizer, bench_optimizer_text

        with counted("ways") as progress:
            found = bench_optimizer(as_config(self, OptimizerBenchConfig), progress)
        return show(found, bench_optimizer_text(found), self.json)


BenchAction = (
    Annotated[BenchSlotsVerb, subcommand("slots", description=BenchSlotsVerb.__doc__)]
    | Annotated[BenchOptimizerVerb, subcommand("optimizer", description=BenchOptimizerVerb.__doc__)]
)


@register("bench")
@dataclass(frozen=True, kw_only=True)
class BenchVerb(Verb):
    """Measure: slots against one trial at a time; AdamW with values per module."""

    action: OmitSubcommandPrefixes[BenchAction]

    def run(self) -> int:
        """Do what was chosen."""
        return self.action.run()
