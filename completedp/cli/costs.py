"""What a verb will take, said before it begins: `--dry-run`, `--peak`, and a CPU's half hour."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from completedp.cli.shared import Flags, show, typed_with
from completedp.cli.values import NOT_GIVEN, parse_real
from completedp.common.checks import check_number
from completedp.common.errors import CompletedpError
from completedp.theory.scale import Scale

if TYPE_CHECKING:
    from completedp.studies.outlook import Outlook
    from completedp.theory.recipe import Recipe
    from completedp.training.estimate import Estimate
    from completedp.training.runner import Runner

    Work = tuple[Runner, Recipe, Mapping[Scale, int]]
    """What trains, the recipe it starts from, and how many trials at each scale."""

SMALLER = (
    Scale(width=128, depth=4, batch=8192, tokens=4_000_000),
    Scale(width=64, depth=4, batch=4096, tokens=2_000_000),
    Scale(width=64, depth=2, batch=2048, tokens=500_000),
)
"""Bases to propose where a larger one would take too long."""
_WORTH_IT = 20
"""Trials below which a search finds nothing."""
NOWHERE = f"{os.devnull}/nowhere.json"
"""What `--out` is where it is not given: in a file no other can be found."""
Out = Annotated[str, arg(help_behavior_hint="(required without --dry-run)")]
"""Where a verb writes, which a dry run does not."""


def parse_peak(word: str) -> float | None:
    """TFLOP/s, or those of a GPU by name."""
    from completedp.training.cost import PEAKS

    if word == NOT_GIVEN:
        return None
    peaks = {name.lower(): peak for name, peak in PEAKS.items()}
    if found := peaks.get(word.lower()):
        return float(found)
    try:
        return parse_real(word)
    except ValueError:
        raise ValueError(
            f"{word!r:.40} is neither TFLOP/s (989) nor one of {', '.join(PEAKS)}"
        ) from None


PEAK: PrimitiveConstructorSpec[float | None] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="GPU|FLOAT",
    instance_from_str=lambda words: parse_peak(words[0]),
    is_instance=lambda value: value is None or isinstance(value, int | float),
    str_from_instance=lambda value: [str(value)],
)
"""A GPU's peak as it may be typed."""


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """How a verb that trains says what that takes."""

    dry_run: bool = False
    """Only say what it will take: trials, steps, tokens, FLOP, memory, time."""
    peak: Annotated[float | None, PEAK] = None
    """With --dry-run: the time on another GPU, by name (A100, H100, ...) or by its TFLOP/s in
    bfloat16, such as 989."""

    def __post_init__(self) -> None:
        if not self.dry_run and getattr(self, "out", None) == NOWHERE:
            raise CompletedpError("--out is missing: say where the results go")
        if self.peak is not None:
            check_number("peak", self.peak, low=1e-3, high=1e6)
            if not self.dry_run:
                raise CompletedpError(
                    f"--peak {self.peak:g} is of another device: give --dry-run with it"
                )


@dataclass(frozen=True, kw_only=True)
class PatientOptions(CostOptions):
    """The same, of verbs that a CPU could take days for."""

    anyway: bool = False
    """Begin on a CPU even if it takes more than half an hour."""


def print_estimate(found: Estimate, as_json: bool) -> int:
    """What `--dry-run` prints; the exit code."""
    return show(found.to_dict(), found, as_json)


def begins(
    verb: PatientOptions,
    runner: Runner,
    recipe: Recipe,
    ahead: Outlook,
    smaller: Callable[[Flags], Work],
    *,
    as_json: bool,
    trials: int | None = None,
    ways: Sequence[Flags] | None = None,
    hint: str = "take fewer trials, a smaller base (--width, --depth, --batch, --tokens) or a GPU",
) -> bool:
    """Say what trials take; whether to begin, which `--dry-run` does not.

    `smaller` has what the same command would train with other flags, of which `ways` are tried;
    `trials` are those of a search, which may be fewer.
    """
    from completedp.studies.session import warn_of_data
    from completedp.training.estimate import estimate_trials, say_estimate

    warn_of_data(runner.task, ahead.left)
    found = estimate_trials(runner, recipe, ahead.left, peak=verb.peak)
    if verb.dry_run:
        print_estimate(found, as_json)
        return False
    # What was begun goes on: who began it knows.
    if runner.device.type == "cpu" and not (ahead.begun or verb.anyway):
        refuse_if_long(
            found,
            lambda flags: estimate_trials(*smaller(flags)),
            what=f"{found.cost.trials:,} trials",
            hint=hint,
            trials=trials,
            ways=ways,
        )
    say_estimate(found)
    return True


def smaller_bases(*fewer: Flags) -> list[Flags]:
    """Flags to propose: those of smaller bases, and at the smallest of them these besides."""
    bases: list[Flags] = [base.to_dict() for base in SMALLER]
    return [*bases, *({**bases[-1], **flags} for flags in fewer)]


def refuse_if_long(
    found: Estimate,
    smaller: Callable[[Flags], Estimate],
    *,
    what: str,
    hint: str,
    trials: int | None = None,
    ways: Sequence[Flags] | None = None,
) -> None:
    """Raise where a CPU would be at work for longer than people expect.

    The line has the same command with the first flags that fit, or the hint where none of them do.
    """
    from completedp.training.cost import LONG_ON_CPU

    if found.seconds <= LONG_ON_CPU:
        return
    ways = smaller_bases() if ways is None else ways
    for flags in ways:
        try:
            fits = smaller(flags)
        except CompletedpError:  # such as a recipe of another base, or heads that do not divide
            continue
        if fits.seconds > LONG_ON_CPU and trials is not None and flags is ways[-1]:
            part = 0.9 * LONG_ON_CPU / fits.seconds
            flags = {**flags, "trials": int(part * trials) // 10 * 10}
            fits = replace(fits, seconds=part * fits.seconds)
        if fits.seconds <= LONG_ON_CPU and flags.get("trials", _WORTH_IT) >= _WORTH_IT:
            hint = f"`{typed_with(flags)}` takes {fits.short_time}"
            break
    raise CompletedpError(
        f"{what} would take {found.short_time} on {found.device}: {hint}; --anyway begins all the "
        "same"
    )
