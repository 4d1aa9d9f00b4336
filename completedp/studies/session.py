"""A search in Python: `cdp.search` runs one, and what it gives back has the best recipe."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from completedp.common.errors import DataWarning, ScaleWarning
from completedp.common.progress import Reporter
from completedp.common.terminal import say
from completedp.common.warn import warn
from completedp.studies.cells import work_of
from completedp.studies.config import LADDER, REACH, WorkerConfig
from completedp.studies.objective import Objective, search_spec
from completedp.studies.outlook import Outlook, left_of, outlook, searched
from completedp.studies.registry import DEFAULT_ENGINE
from completedp.studies.relative import Where
from completedp.studies.run import Best, best, ladder_outlook, open_study, start
from completedp.studies.staged import first_trials, has_stages
from completedp.studies.status import Status, status
from completedp.studies.store import Store, Study, TrialRow
from completedp.studies.typed import call_of, note_call
from completedp.studies.worker import Fold, Progress, work
from completedp.tasks.config import EVAL_EXAMPLES
from completedp.tasks.losses import ModelLoss
from completedp.tasks.task import MakeModel, Task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.theory.trust import LARGER, small_base
from completedp.training.cost import LONG_ON_CPU
from completedp.training.estimate import estimate_trials, say_estimate
from completedp.training.runner import Runner

DEFAULT_SPACE = "staged"


def search(
    make: MakeModel | str | None,
    base: Scale | None = None,
    data: Any = None,
    trials: int = 300,
    store: str = "search.db",
    context: int | None = None,
    *,
    loss: ModelLoss | str | None = None,
    recipe: Recipe | str | Path | None = None,
    overrides: Mapping[str, str] | None = None,
    study: str = "search",
    space: str = DEFAULT_SPACE,
    tunables: Sequence[str] | None = None,
    reach: float = REACH,
    targets: Where | Sequence[Where] = (),
    sites: Where | Sequence[Where] = (),
    engine: str = DEFAULT_ENGINE,
    seed: int = 0,
    stop_early: bool = False,
    eval_examples: int = EVAL_EXAMPLES,
    slots: int | None = None,
    device: str = "auto",
    compile: bool = True,
    quiet: bool = False,
) -> Search:
    """Search the hyperparameters of a model at a base scale; the same call resumes.

    `make(scale)` gives the model at a scale (or its name: "module:function", "hf:OWNER/NAME"; None
    is the reference model). `data` is a folder of tokens, or data of your own: a function of the
    split ("train", "valid") that gives a torch Dataset or tensors, or a function of split, number
    of examples and seed that gives an iterable of batches. `loss(model, *batch)` gives one number;
    next-token cross-entropy if not given. With a `recipe` the search starts there, at its base;
    else from usual values at `base`. With `sites`, trials train at these scales in turn with the
    base, and what gains at all of them is found; `targets` are where results are to be used, and
    bounds hold there. Each is a Scale, or relative to the base: Ratios, or "depth=2,tokens=2".

    `trials` counts training runs; `reach` is in octaves; `context` in tokens a sequence; a scale's
    batch and tokens are in tokens, or in examples where data are no text.

    >>> import completedp as cdp
    >>> base = cdp.Scale(width=64, depth=1, batch=256, tokens=1_024)
    >>> study = cdp.search(None, base, data="tokens", trials=2, context=64, space="global",
    ...                    slots=1, eval_examples=4, compile=False, quiet=True)
    >>> [trial.status for trial in study.trials()]
    ['ok', 'ok']
    >>> recipe = study.best(rungs=["tokens=2"], seeds=1, quiet=True)
    >>> study.close()
    """
    call = call_of(search, locals())
    task, begin = start(
        make,
        data,
        base=base,
        recipe=recipe,
        loss=loss,
        context=context,
        eval_examples=eval_examples,
        overrides=overrides,
    )
    spec = search_spec(
        task,
        begin,
        trials=trials,
        space=space,
        tunables=tunables,
        reach=reach,
        targets=targets,
        engine=engine,
        seed=seed,
        stop_early=stop_early,
        sites=sites,
    )
    options = WorkerConfig(slots=slots, device=device, compile=compile)
    objective = Objective(spec, task, options)
    warn_of_base(task, begin.base)
    runner = objective.runner
    runner.in_slots(begin.base)  # a loss that cannot be is said before there is a study
    say_outlook(runner, begin, outlook(searched(spec), store, study), quiet=quiet)
    opened = Store(store)
    try:
        found = Search(opened, open_study(opened, study, spec), objective)
        note_call(found.study, call)
        found.run(quiet=quiet)
    except BaseException:
        opened.close()
        raise
    return found


class Search:
    """A study with its task. Prints as how it stands."""

    def __init__(self, store: Store, study: Study, objective: Objective) -> None:
        self.store, self.study, self.objective = store, study, objective

    def run(self, trials: int | None = None, *, quiet: bool = False) -> None:
        """Work on what is left of the budget, or of a larger one."""
        if trials is not None:
            self.study.set_budget(trials)
        try:
            work_shown(self.study, self.objective, quiet=quiet)
        except KeyboardInterrupt:
            raise _interrupted() from None

    def best(
        self, rungs: Where | Sequence[Where] = LADDER, *, seeds: int = 4, quiet: bool = False
    ) -> Recipe:
        """The recipe that is best on the last rung, measured on fresh seeds against the start.

        A rung is a Scale, or relative to the base: Ratios, or a text such as "depth=2,tokens=2". If
        none is named, the last has twice the width, depth and tokens. `()` is the base alone, whose
        best may not carry.
        The ladder, every rung's losses, is in its `evidence`, with what the search was and cost.
        """
        return self.ladder(rungs, seeds=seeds, quiet=quiet).recipe

    def ladder(
        self, rungs: Where | Sequence[Where] = LADDER, *, seeds: int = 4, quiet: bool = False
    ) -> Best:
        """The same, with every candidate's losses on every rung."""
        try:
            runner, recipe = self.objective.runner, self.objective.recipe
            if not quiet or runner.device.type == "cpu":
                ahead = ladder_outlook(self.study, self.objective, rungs=rungs, seeds=seeds)
                say_outlook(runner, recipe, ahead, less="lower rungs, fewer seeds", quiet=quiet)
            with shown_rungs(quiet=quiet) as progress:
                found = best(
                    self.study, self.objective, rungs=rungs, seeds=seeds, progress=progress
                )
        except KeyboardInterrupt:
            raise _interrupted() from None
        if not quiet:
            print(found.lines(), file=sys.stderr, flush=True)
        return found

    @property
    def status(self) -> Status:
        """How it stands."""
        return status(self.study)

    def trials(self) -> list[TrialRow]:
        """Every trial: point, seed, loss, curve."""
        return self.study.trials()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self.status.lines()

    __repr__ = __str__


def _interrupted() -> KeyboardInterrupt:
    """What to raise in the place of one whose traceback would go through all of torch."""
    say("interrupted: the same call goes on where it stopped")
    return KeyboardInterrupt()


def say_outlook(
    runner: Runner,
    recipe: Recipe,
    ahead: Outlook,
    *,
    less: str = "fewer trials, a smaller base",
    quiet: bool = False,
) -> None:
    """Say what trials will take; of a CPU's hours even those are warned who want it quiet."""
    warn_of_data(runner.task, ahead.left)
    # What was begun goes on: who began it knows.
    is_unknown = runner.device.type == "cpu" and not ahead.begun
    if quiet and not is_unknown:
        return
    found = estimate_trials(runner, recipe, ahead.left)
    if not quiet:
        say_estimate(found)
    if is_unknown and found.seconds > LONG_ON_CPU:
        warn(
            f"{found.cost.trials:,} trials will take {found.short_time} on {found.device}: take "
            f"{less} or a GPU; ended by Ctrl-C, the same call goes on"
        )


def warn_of_base(task: Task, base: Scale) -> None:
    """Say what is to doubt of a base before it is trained on, and not when that is paid."""
    parameters = sum(p.numel() for p in task.blank(base).parameters())
    each = base.tokens / parameters if task.data.unit > 1 else None  # examples are none
    for line in small_base(base, LARGER, each):
        warn(line, ScaleWarning)


def warn_of_data(task: Task, scales: Iterable[Scale]) -> None:
    """Say, once, what is to doubt of the text for what is trained on it."""
    lines = (line for scale in scales for line in task.data.cautions(scale))
    for line in dict.fromkeys(lines):
        warn(line, DataWarning)


def work_shown(
    study: Study, objective: Objective, *, title: str = "search", quiet: bool = False
) -> None:
    """Work on a study until its budget is finished, with a line of progress."""
    counts, spec = study.counts(), objective.spec
    left = left_of(study)
    warn_of_data(objective.task, left)
    if not quiet:
        size, stages = len(spec.space.coordinates), ""
        if has_stages(spec.space):
            first = min(first_trials(len(spec.sites)), counts["budget"])
            stages = f", {first} of them over global values first"
        print(
            f"study {study.name!r}: {size} coordinates ({spec.space.kind}), {spec.engine}, "
            f"{counts['budget']} trials{stages}",
            file=sys.stderr,
        )
    before, total = (
        counts["finished"],
        sum(count * work_of(scale) for scale, count in left.items()),
    )
    waiting = "compiling" if objective.options.compile else "the first steps"
    waiting = waiting if left else ""
    with Reporter(
        f"{title}: trials", counts["budget"], before, quiet=quiet, waiting=waiting
    ) as reporter:

        def report(fold: Fold, done: Progress) -> None:
            fold.catch_up()
            state = fold.engine.describe()
            # What other workers finish counts as much as a trial here does on the average.
            others = fold.seen - before - done.trials
            part = (done.work + others * total / max(1, counts["budget"] - before)) / max(
                1.0, total
            )

            def note() -> str:
                radius = f", radius {state['radius']:.2f}" if "radius" in state else ""
                # Losses at several scales are not to be compared, and what they gain there is.
                best = (
                    f"gain {state['gain']:.4f}"
                    if "gain" in state
                    else f"best {state['best_loss']:.4f}"
                )
                if not math.isfinite(state["best_loss"]):
                    best = f"{done.steps:,} steps"
                if done.waits_for:
                    others = ", ".join(f"{name} ({n})" for name, n in done.waits_for.items())
                    return f"waits for trials of {others}; of one that is dead: search release"
                return (
                    f"{best}{radius}, {state['diverged']:.0f} diverged, slots {done.busy:.0%} busy"
                )

            reporter.update(fold.seen, note, part)

        work(study, objective, report=report)


@contextmanager
def shown_rungs(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A line of progress for each rung of a ladder."""
    reporters: dict[str, Reporter] = {}
    with ExitStack() as shown:

        def progress(scale: str, done: int, total: int) -> None:
            if scale not in reporters:
                shown.close()  # the last one's
                reporter = Reporter(f"on {scale}: trial-steps", total, quiet=quiet)
                reporters[scale] = shown.enter_context(reporter)
            reporters[scale].update(done, lambda: "")

        yield progress
