"""The verbs of `completedp bench`: slots, search, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, subcommand

from completedp.cli.shared import Verb, as_config, print_json, register
from completedp.evidence.config import BenchConfig, OptimizerBenchConfig, SearchBenchConfig


@dataclass(frozen=True, kw_only=True)
class BenchSlotsVerb(BenchConfig):
    """Time many trials in slots against one at a time, side by side in one run."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Time and print."""
        from completedp.evidence.bench import bench_slots, bench_text

        with _counted("ways") as progress:
            found = bench_slots(as_config(self, BenchConfig), progress)
        if self.json:
            print_json(found)
        else:
            print(bench_text(found))
        return 0


@dataclass(frozen=True, kw_only=True)
class BenchSearchVerb(SearchBenchConfig):
    """Compare search engines on landscapes whose truth is known."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Search and print."""
        from completedp.evidence.bench_search import bench_search, bench_search_text

        with _counted("searches") as progress:
            found = bench_search(as_config(self, SearchBenchConfig), progress)
        if self.json:
            print_json(found)
        else:
            print(bench_search_text(found))
        return 0


@dataclass(frozen=True, kw_only=True)
class BenchOptimizerVerb(OptimizerBenchConfig):
    """Time AdamW steps with values per module: torch's own against completedp.AdamW."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Time and print."""
        from completedp.evidence.bench_optimizer import bench_optimizer, bench_optimizer_text

        with _counted("ways") as progress:
            found = bench_optimizer(as_config(self, OptimizerBenchConfig), progress)
        if self.json:
            print_json(found)
        else:
            print(bench_optimizer_text(found))
        return 0


BenchAction = (
    Annotated[BenchSlotsVerb, subcommand("slots", description=BenchSlotsVerb.__doc__)]
    | Annotated[BenchSearchVerb, subcommand("search", description=BenchSearchVerb.__doc__)]
    | Annotated[BenchOptimizerVerb, subcommand("optimizer", description=BenchOptimizerVerb.__doc__)]
)


@register("bench")
@dataclass(frozen=True, kw_only=True)
class BenchVerb(Verb):
    """Measure: slots against one trial at a time; search engines against the paper's; AdamW."""

    action: OmitSubcommandPrefixes[BenchAction]

    def run(self) -> int:
        """Do what was chosen."""
        return self.action.run()


@contextmanager
def _counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress line of so many done, of how many the first call tells."""
    from completedp.common.progress import Reporter

    with ExitStack() as shown:
        reporters: list[Reporter] = []

        def progress(done: int, total: int) -> None:
            if not reporters:
                reporters.append(shown.enter_context(Reporter(what, total)))
            reporters[0].update(done, lambda: "")

        yield progress
