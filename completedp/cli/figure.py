"""The verb `figure`: a claim of the paper as an experiment, with a verdict in numbers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from completedp.cli.costs import PatientOptions
from completedp.cli.shared import Verb, as_config, name_next, print_json, register, show
from completedp.common.checks import check_path
from completedp.common.errors import CompletedpError
from completedp.studies.config import WorkerConfig
from completedp.tasks.config import Overrides, OwnCode

if TYPE_CHECKING:
    from completedp.evidence.figures.figure import Figure


@register("figure")
@dataclass(frozen=True, kw_only=True)
class FigureVerb(WorkerConfig, Overrides, OwnCode, PatientOptions, Verb):
    """Run one claim of the paper as an experiment: raw results, a drawing, a verdict in numbers."""

    resumes: ClassVar[bool] = True
    name: Annotated[str | None, tyro.conf.Positional] = None
    """Which: `completedp figure --list` says what there is."""
    size: Literal["cpu", "gpu", "paper"] = "cpu"
    """cpu: minutes on two cores, headline 46; gpu: about 10 minutes of one H200, headline 50;
    paper: the paper's own."""
    data: str | None = None
    """Folder of tokens, made by `completedp data`; the standard library's sources at cpu size if
    not given."""
    out: str = "runs/figures"
    """Folder for NAME.json (the verdict), NAME.svg and NAME.json.xz (every measurement); the same
    command goes on where it stopped."""
    store: str | None = None
    """A store of trials that several machines reach: give each the same command (annealing has to
    stay on one); OUT/NAME-SIZE.db if not given."""
    list: bool = False
    """List the figures, what each claims, and what it costs."""
    json: bool = False
    """Print the verdict, or the list, as JSON."""

    def __post_init__(self) -> None:
        WorkerConfig.__post_init__(self)
        OwnCode.__post_init__(self)
        PatientOptions.__post_init__(self)
        check_path("out", self.out)
        for name in ("data", "model", "store"):
            if getattr(self, name) is not None:
                check_path(name, getattr(self, name))

    def run(self) -> int:
        """Run it, or go on, and print the verdict."""
        from completedp.evidence.figures.registry import FIGURES, figure_named

        if self.list:
            return _listed(self.json)
        if self.name is None:
            raise CompletedpError(f"which figure? Choose from {', '.join(FIGURES)}")
        figure = figure_named(self.name)
        if self.dry_run:
            return self._priced(figure)
        from completedp.evidence.figures.run import run_figure, text_of

        if not self.anyway:
            self._refuse_if_long(figure)
        found, written = run_figure(
            self.name,
            self.size,
            out=Path(self.out),
            data=self.data,
            model=self.model,
            loss=self.loss,
            override=self.override,
            store=self.store,
            options=as_config(self, WorkerConfig),
        )
        text = f"{text_of(figure, found)}\n{self.out}/{self.name}.svg"
        show(written, text, self.json)
        if not self.json:
            name_next(f"completedp report {shlex.quote(self.out)}")
        return 0

    def _refuse_if_long(self, figure: Figure) -> None:
        """Raise where a CPU would be at work for longer than people expect."""
        from completedp.evidence.figures.figure import SPEEDS
        from completedp.evidence.figures.run import begun
        from completedp.training.cost import LONG_ON_CPU
        from completedp.training.devices import choose_device

        cost, speed = figure.cost(self.size), SPEEDS["cpu"]
        for_gpu = cost.trials > 0 and self.size != "cpu"
        is_long = for_gpu or cost.seconds(speed) > LONG_ON_CPU
        if not is_long or choose_device(self.device).type != "cpu":
            return
        if for_gpu:
            raise CompletedpError(
                f"--size {self.size} is for a GPU, and would take this CPU days: take --size cpu, "
                "or --anyway to begin all the same"
            )
        # What was begun goes on: who began it knows.
        if not begun(Path(self.out), figure.name, self.size, self.store):
            raise CompletedpError(
                f"{figure.name} would take {speed.text(cost)}: take --size gpu on a GPU, or "
                "--anyway to begin all the same"
            )

    def _priced(self, figure: Figure) -> int:
        """What it takes where its size is meant to run, or on a GPU of some peak."""
        from completedp.evidence.figures.figure import SPEEDS, cost_text, speed_by_peak
        from completedp.training.cost import too_small_for

        cost, speed = figure.cost(self.size), SPEEDS[self.size]
        if self.peak is not None:
            speed = speed_by_peak(self.size, self.peak)
        seconds = {"seconds": round(cost.seconds(speed), 1), "device": speed.device}
        data = {**cost.to_dict(), **seconds, "seconds_compiling": cost.compiling(speed)}
        text = f"{figure.name}, {self.size}: {cost_text(figure, self.size, speed)}"
        if cost.trials:
            on_cpu = self.size == "cpu" and self.peak is None
            memory = cost.memory_bytes * (2 if on_cpu else 1)  # its products are in float32
            small = [] if on_cpu else too_small_for(memory)
            data |= {"memory_bytes": memory, "too_small": small}
            gigabytes = memory / 1e9
            shown = f"{gigabytes:,.0f}" if gigabytes >= 10 else f"{gigabytes:.2g}"
            text += f"\nmemory: about {shown} GB for the largest trial"
            text += f", which does not fit {', '.join(small)}" if small else ""
        return show(data, text, self.json)


def _listed(as_json: bool) -> int:
    from completedp.evidence.figures.figure import SIZES, SPEEDS, cost_text
    from completedp.evidence.figures.registry import FIGURES

    if as_json:
        print_json(
            {
                name: {
                    "claim": figure.claim,
                    "paper": figure.paper,
                    "seconds": {
                        size: round(figure.cost(size).seconds(SPEEDS[size])) for size in SIZES
                    },
                }
                for name, figure in FIGURES.items()
            }
        )
        return 0
    for name, figure in FIGURES.items():
        print(f"{name}: {figure.claim} ({figure.paper}).")
        for size in SIZES:
            print(f"    {size:<6} {cost_text(figure, size)}")
    return 0
