"""The verb `figure`: a claim of the paper as an experiment, with a verdict in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from completedp.cli.shared import Verb, as_config, print_json, register
from completedp.common.checks import check_path
from completedp.common.errors import CompletedpError
from completedp.studies.config import WorkerConfig


@register("figure")
@dataclass(frozen=True, kw_only=True)
class FigureVerb(WorkerConfig, Verb):
    """Run one claim of the paper as an experiment: raw results, a drawing, a verdict in numbers."""

    resumes: ClassVar[bool] = True
    name: Annotated[str | None, tyro.conf.Positional] = None
    """Which: `completedp figure --list` says what there is."""
    size: Literal["cpu", "gpu", "paper"] = "cpu"
    """cpu: minutes on two cores; gpu: about 10 minutes of one H200; paper: the paper's own."""
    data: str | None = None
    """Folder of tokens, made by `completedp data`; the standard library's sources at cpu size if
    not given."""
    model: str | None = None
    """module:function of your own that makes the model at a scale, or hf:OWNER/NAME, hf:FOLDER;
    the reference model if not given."""
    out: str = "runs/figures"
    """Folder for NAME.json (the verdict), NAME.svg and NAME.json.xz (every measurement); the same
    command goes on where it stopped."""
    store: str | None = None
    """A store of trials that other machines join with `search worker`; OUT/NAME-SIZE.db if not
    given."""
    list: bool = False
    """List the figures, what each claims, and what it costs."""
    json: bool = False
    """Print the verdict, or the list, as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        from completedp.evidence.figures.run import run_figure, text_of

        found, written = run_figure(
            self.name,
            self.size,
            out=Path(self.out),
            data=self.data,
            model=self.model,
            store=self.store,
            options=as_config(self, WorkerConfig),
        )
        if self.json:
            print_json(written)
        else:
            print(f"{text_of(figure, found)}\n{self.out}/{self.name}.svg")
        return 0


def _listed(as_json: bool) -> int:
    from completedp.evidence.figures.figure import SIZES
    from completedp.evidence.figures.registry import FIGURES

    if as_json:
        print_json(
            {
                name: {
                    "claim": figure.claim,
                    "paper": figure.paper,
                    "seconds": {size: round(figure.cost(size).seconds(size)) for size in SIZES},
                }
                for name, figure in FIGURES.items()
            }
        )
        return 0
    for name, figure in FIGURES.items():
        print(f"{name}: {figure.claim} ({figure.paper}).")
        for size in SIZES:
            print(f"    {size:<6} {figure.cost(size).text(size)}")
    return 0
