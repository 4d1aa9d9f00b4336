"""The verbs of `completedp search`: start, worker, ray, status, release, best, export."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import OmitSubcommandPrefixes, Positional, arg, subcommand

from completedp.cli.costs import PatientOptions, begins
from completedp.cli.shared import DATA, Verb, as_config, name_next, print_json, register, show
from completedp.common.checks import check_number, check_path, check_text
from completedp.common.errors import CompletedpError
from completedp.common.files import user_path
from completedp.common.terminal import say
from completedp.studies.config import LADDER, StudyConfig, WorkerConfig
from completedp.tasks.config import UNTIED, Sources
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale

if TYPE_CHECKING:
    from completedp.cli.costs import Work
    from completedp.cli.shared import Flags
    from completedp.studies.objective import Objective
    from completedp.studies.outlook import Outlook
    from completedp.studies.status import Status
    from completedp.studies.store import Study


@dataclass(frozen=True, kw_only=True)
class StartVerb(StudyConfig, WorkerConfig, PatientOptions):
    """Create a study and work on it here; the same command goes on where it stopped."""

    resumes: ClassVar[bool] = True
    store: str = "search.db"
    """A SQLite file, or a postgresql:// URL that several machines share."""
    study: str = "search"
    """The study's name."""
    json: bool = False
    """Print how it stands at the end as JSON."""

    def __post_init__(self) -> None:
        StudyConfig.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Search, and say what was found."""
        from completedp.studies.outlook import outlook, searched
        from completedp.studies.run import open_study
        from completedp.studies.session import warn_of_base, work_shown
        from completedp.studies.store import Store

        objective = self._objective(as_config(self, StudyConfig))
        warn_of_base(objective.task, objective.recipe.base)
        spec, runner = objective.spec, objective.runner
        ahead = outlook(searched(spec), self.store, self.study)

        def smaller(flags: Flags) -> Work:
            other = self._objective(replace(as_config(self, StudyConfig), **flags))
            return other.runner, other.recipe, searched(other.spec)

        if not begins(
            self, runner, spec.recipe, ahead, smaller, as_json=self.json, trials=self.trials
        ):
            return 0
        with Store(self.store) as store:  # after all mistakes were said: it makes a file
            study = open_study(store, self.study, spec)
            work_shown(study, objective)
            found = _print_status(study, self.json)
            _name_best(self, study, found)
        return 0 if found.has_trained else 1

    def _objective(self, config: StudyConfig) -> Objective:
        """A search's trials on this machine; mistakes are said here, before anything is made."""
        from completedp.studies.objective import Objective
        from completedp.studies.run import spec_from, start_from

        task, recipe = start_from(config)
        return Objective(spec_from(config, task, recipe), task, as_config(self, WorkerConfig))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a study is that there is already."""

    store: str = "search.db"
    """A SQLite file, or a postgresql:// URL, which several machines need."""
    study: str | None = None
    """The study's name; may be left out when there is one."""


@dataclass(frozen=True, kw_only=True)
class WorkerVerb(Place, WorkerConfig, Sources):
    """Join a study from any machine that has its data and reaches its store."""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print how it stands at the end as JSON."""

    def run(self) -> int:
        """Work until the budget is finished."""
        from completedp.studies.objective import Objective
        from completedp.studies.session import work_shown
        from completedp.studies.store import Store

        sources, options = as_config(self, Sources), as_config(self, WorkerConfig)
        with Store(self.store, create=False) as store:
            study = store.study(self.study)
            work_shown(study, Objective.of(study, sources, options))
            found = _print_status(study, self.json)
            _name_best(self, study, found)
        return 0 if found.has_trained else 1


@dataclass(frozen=True, kw_only=True)
class RayVerb(Place, WorkerConfig, Sources):
    """Join a study with workers on a Ray cluster, one to a GPU; dead ones are started again."""

    resumes: ClassVar[bool] = True
    workers: int
    """How many; each takes a GPU if the cluster has any, else a CPU. Data and modules must be under
    the same paths on every node."""
    address: str | None = None
    """auto (this machine's cluster) or HOST:PORT; else RAY_ADDRESS, or this machine alone."""
    json: bool = False
    """Print how it stands at the end as JSON."""

    def run(self) -> int:
        """Have it worked on until the budget is finished."""
        from completedp.common.progress import Reporter
        from completedp.studies.ray_workers import run_on_ray
        from completedp.studies.store import Store

        sources, options = as_config(self, Sources), as_config(self, WorkerConfig)
        with Store(self.store, create=False) as store:
            study = store.study(self.study)
            counts = study.counts()
            with Reporter("search: trials", counts["budget"], counts["finished"]) as reporter:

                def report(counts: dict[str, int], faults: list[Exception]) -> None:
                    def note() -> str:
                        text = f"{counts['running']} running, {counts['diverged']} diverged"
                        if faults:
                            last = str(faults[-1]).strip().splitlines()[-1]
                            text += f", {len(faults)} workers given up ({last})"
                        return text

                    reporter.update(counts["finished"], note)

                with redirect_stdout(sys.stderr):  # Ray tells of dead workers there
                    run_on_ray(
                        self.store,
                        study.name,
                        sources,
                        options,
                        self.workers,
                        self.address,
                        report,
                    )
            found = _print_status(study, self.json)
            _name_best(self, study, found)
        return 0 if found.has_trained else 1


@dataclass(frozen=True, kw_only=True)
class StatusVerb(Place):
    """How a study stands: trials, rate, best, radius, diverged, who is at work."""

    resumes: ClassVar[bool] = False
    watch: bool = False
    """Look again every two seconds, until it is finished."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Look and say."""
        from completedp.studies.store import Store

        with Store(self.store, create=False) as store:
            study = store.study(self.study)
            while True:
                found = _print_status(study, self.json)
                is_done = found.counts["finished"] >= found.counts["budget"]
                if is_done and not self.json:
                    self._name_next(study, found)
                if is_done or not self.watch:
                    return 0
                time.sleep(2.0)
                print()

    def _name_next(self, study: Study, found: Status) -> None:
        """With what the study was begun with; nothing of one that no search's command began."""
        from completedp.studies.typed import noted_command

        typed = noted_command(study) or ""
        if typed.startswith("completedp search "):
            words = []
            for word in shlex.split(typed):
                words += word.split("=", 1) if word.startswith("--") else [word]
            names = {"model": None, "loss": None, "data": DATA}
            given = {
                name: words[words.index(f"--{name}") + 1] if f"--{name}" in words else usual
                for name, usual in names.items()
            }
            was = SimpleNamespace(store=self.store, json=False, untie="--untie" in words, **given)
            _name_best(was, study, found)


@dataclass(frozen=True, kw_only=True)
class ReleaseVerb(Place):
    """Take trials from a worker that is dead or stuck, so that others run them at once."""

    resumes: ClassVar[bool] = False
    worker: str | None = None
    """Whose, by the name that `search status` shows. Without this they come back when its leases
    run out. Should it live after all, what it finishes first counts, and no more."""
    trials: tuple[int, ...] = ()
    """Which, by their numbers."""
    everyone: bool = False
    """All that are running."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Give them back and say which."""
        from completedp.studies.store import Store

        if (self.worker is not None) + bool(self.trials) + self.everyone > 1:
            raise CompletedpError("give one of --worker, --trials and --everyone")
        for number in self.trials:
            check_number("trials", number, low=0, high=2**31)
        if self.worker is not None:
            check_text("worker", self.worker)
        with Store(self.store, create=False) as store:
            study = store.study(self.study)
            if self.worker is None and not self.trials and not self.everyone:
                raise CompletedpError(f"whose trials? {_choice(study.workers())}")
            numbers = list(self.trials) or None
            released = study.take_back(worker=self.worker, numbers=numbers)
            if not released and not self.everyone:
                whose = f"{self.worker!r}" if self.worker else f"trials {numbers}"
                raise CompletedpError(f"nothing of {whose} is running: {_choice(study.workers())}")
        text = f"given back: {', '.join(map(str, released)) or 'none, as none is running'}"
        return show({"released": released}, text, self.json)


_LADDERS = (LADDER, ("tokens=2", "depth=2,tokens=2"), ("depth=2,tokens=2",), ("tokens=2",))
_SMALLER_LADDERS = [{"rungs": rungs, "seeds": seeds} for seeds in (4, 2) for rungs in _LADDERS]
"""To propose where a larger one would take too long."""


@dataclass(frozen=True, kw_only=True)
class BestVerb(Place, WorkerConfig, Sources, PatientOptions):
    """Measure what a study recommends on fresh seeds, against its start, and write the recipe."""

    resumes: ClassVar[bool] = True
    out: str = "recipe.json"
    """Recipe file to write; an earlier one of the same study is replaced, and nothing else."""
    rungs: tuple[str, ...] = LADDER
    """Scales to climb, as ratios to the base: tokens=4 width=2,depth=2,tokens=8. `base` measures at
    the base alone, whose best may not carry."""
    seeds: int = 4
    """Fresh seeds on each."""
    json: bool = False
    """Print JSON."""

    def __post_init__(self) -> None:
        Sources.__post_init__(self)
        PatientOptions.__post_init__(self)

    def run(self) -> int:
        """Measure, choose and write."""
        from completedp.studies.objective import Objective
        from completedp.studies.run import best, ladder_outlook
        from completedp.studies.session import shown_rungs
        from completedp.studies.store import Store
        from completedp.tasks.data import DEFAULT_CONTEXT

        if self.seeds < 1:
            raise CompletedpError(f"seeds = {self.seeds} must be at least 1")
        sources, options = as_config(self, Sources), as_config(self, WorkerConfig)
        out = _writable(self.out)
        with Store(self.store, create=False) as store, shown_rungs() as progress:
            study = store.study(self.study)
            _is_of(out, study.name)
            objective = Objective.of(study, sources, options)
            asked = {"rungs": self.rungs, "seeds": self.seeds}

            def ahead(flags: Flags) -> Outlook:
                return ladder_outlook(study, objective, **{**asked, **flags})

            runner, recipe = objective.runner, objective.recipe
            if not begins(
                self,
                runner,
                recipe,
                ahead({}),
                lambda flags: (runner, recipe, ahead(flags).left),
                as_json=self.json,
                ways=_SMALLER_LADDERS,
                hint="take lower --rungs, fewer --seeds or a GPU",
            ):
                return 0
            found = best(study, objective, rungs=self.rungs, seeds=self.seeds, progress=progress)
        found.recipe.save(out)
        if self.json:
            climbed = [rung.to_dict() for rung in found.rungs]
            print_json({"chosen": found.chosen, "rungs": climbed, "recipe": self.out})
        else:
            print(f"{found.lines()}\n{self.out}")
            unit = objective.task.data.unit
            context = {} if unit in (1, DEFAULT_CONTEXT) else {"context": str(unit)}
            flags = _flags(self, recipe=self.out, data=self.data, **context)
            times = " ".join(f"--{name} {2 * size}" for name, size in _sizes(found.recipe.base))
            name_next(f"completedp train {flags} {times} --out runs/target --dry-run")
        return 0


@dataclass(frozen=True, kw_only=True)
class ExportVerb(Place):
    """All trials as CSV, or as an Optuna study for its dashboard."""

    resumes: ClassVar[bool] = False
    place: Annotated[Positional[str], arg(help_behavior_hint="")] = ""
    """The same as --out."""
    out: Annotated[str, arg(help_behavior_hint="(required)")] = ""
    """trials.csv, or an Optuna storage such as sqlite:///optuna.db."""

    def __post_init__(self) -> None:
        if bool(self.place) == bool(self.out):
            raise CompletedpError("where to? Give --out trials.csv, or a storage of Optuna's")
        object.__setattr__(self, "out", self.out or self.place)

    def run(self) -> int:
        """Write them."""
        from completedp.studies.export import export_csv, export_optuna
        from completedp.studies.store import Store

        with Store(self.store, create=False) as store:
            study = store.study(self.study)
            if "://" in self.out:
                count = export_optuna(study, self.out)
                print(f"{count} trials in the Optuna study {study.name!r}")
            else:
                count = export_csv(study, _writable(self.out))
                print(f"{count} trials in {self.out}")
        return 0


Action = (
    Annotated[StartVerb, subcommand("start", description=StartVerb.__doc__)]
    | Annotated[WorkerVerb, subcommand("worker", description=WorkerVerb.__doc__)]
    | Annotated[RayVerb, subcommand("ray", description=RayVerb.__doc__)]
    | Annotated[StatusVerb, subcommand("status", description=StatusVerb.__doc__)]
    | Annotated[ReleaseVerb, subcommand("release", description=ReleaseVerb.__doc__)]
    | Annotated[BestVerb, subcommand("best", description=BestVerb.__doc__)]
    | Annotated[ExportVerb, subcommand("export", description=ExportVerb.__doc__)]
)


@register("search")
@dataclass(frozen=True, kw_only=True)
class SearchVerb(Verb):
    """Find per-module hyperparameters: start, worker, ray, status, release, best, export."""

    resumes: ClassVar[bool] = True
    action: OmitSubcommandPrefixes[Action]

    def goes_on(self) -> bool:
        """Whether the part that was chosen does."""
        return self.action.resumes

    def run(self) -> int:
        """Do what was chosen."""
        return self.action.run()


def _name_best(verb: Any, study: Study, found: Status) -> None:
    """What comes next; not of a list of trials, which the command that listed them ends."""
    from completedp.studies.cells import NAME as CELLS
    from completedp.studies.database import without_password

    if verb.json or study.spec.get("engine") == CELLS:
        return
    if found.has_trained:
        flags = _flags(verb, store=without_password(verb.store), study=study.name, data=verb.data)
        name_next(f"completedp search best {flags} --out recipe.json")
    elif found.counts["diverged"]:
        say(f"all trials diverged{_why_all_diverged(study)}")


def _why_all_diverged(study: Study) -> str:
    """Where, if that is the same of all, and what to do about it."""
    from completedp.studies.spec import StudySpec

    sites = StudySpec.from_dict(study.spec).sites
    rows = [row for row in study.trials() if row.status == "diverged"]
    look = "look at the loss, the data and the model"
    if all(row.curve is not None and not len(row.curve) for row in rows):
        return f" in their first loss, before any update: {look}"
    if all(row.steps == sites[row.site].scale.steps for row in rows):
        return f" in validation alone: {look} in evaluation"
    return f": {look}, or search from a recipe with a lower lr (values in its file)"


def _flags(verb: Any, **given: str) -> str:
    """Flags of another verb that go on with this one's task."""
    own = {name: getattr(verb, name) for name in ("model", "loss") if getattr(verb, name)}
    if own.get("model", "").startswith(UNTIED):
        own["model"] = "hf:" + own["model"].removeprefix(UNTIED)
    words = [word for name, value in (given | own).items() for word in (f"--{name}", value)]
    return shlex.join(words) + " --untie" * verb.untie


def _sizes(base: Scale) -> list[tuple[str, int]]:
    return [(name, size) for name, size in base.to_dict().items() if name != "batch"]


def _choice(workers: dict[str, int]) -> str:
    """What `release` may be given."""
    if not workers:
        return "nobody has trials in hand"
    named = ", ".join(f"{name} ({count})" for name, count in workers.items())
    return f"give --worker, of {named}; or --trials, or --everyone"


def _writable(out: str) -> Path:
    """A file that may be written, made sure of before any work; a store is not written over."""
    from completedp.studies.database import check_no_half_url, is_sqlite

    check_no_half_url(out)
    check_path("out", out)
    path = user_path(out)
    if path.is_dir():
        raise CompletedpError(f"{out!r} is a folder: name a file in it")
    there = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(there, os.W_OK) or (there != path and not there.is_dir()):
        raise CompletedpError(f"{out!r} cannot be written: name a file in a folder of yours")
    if path.exists() and is_sqlite(path):
        raise CompletedpError(f"{out!r} is a database, not to be lost: name another file")
    return path


def _is_of(path: Path, study: str) -> None:
    """What is there, if anything, is an earlier recipe of the study: nothing else is replaced."""
    if not path.exists():
        return
    try:
        evidence = Recipe.load(path).evidence
    except CompletedpError:
        raise CompletedpError(f"{str(path)!r} is no recipe: name another file for --out") from None
    searches = evidence.searches if evidence else ()
    if not searches or searches[-1].study != study:
        whose = f"the study {searches[-1].study!r}" if searches else "no search"
        raise CompletedpError(
            f"{str(path)!r} is a recipe of {whose}, and this is {study!r}: name another file for "
            "--out, or move that one away"
        )


def _print_status(study: Any, as_json: bool) -> Status:
    from completedp.studies.status import status

    found = status(study)
    show(asdict(found), found.lines(), as_json)
    sys.stdout.flush()  # of `--watch`, before it waits
    return found
