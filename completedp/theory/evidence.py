"""Evidence: where a recipe's values were found and checked, by which search, and at what cost.

A recipe's own record, which plans read: beyond the scales of its rungs nothing is known of it.
Facts alone; what is made of them is said in trust.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from completedp.common.checks import check_number
from completedp.common.errors import CompletedpError
from completedp.common.files import plain
from completedp.theory.reading import check_keys, check_numbers, checked, path_of
from completedp.theory.rules import AXES
from completedp.theory.scale import Scale


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A candidate on a rung."""

    candidate: str
    losses: Sequence[float]
    """By seed; infinite where it diverged."""

    def __post_init__(self) -> None:
        losses = tuple(float(x) if math.isfinite(x) else math.inf for x in self.losses)
        if not losses:
            raise CompletedpError(f"{self.candidate!r} has no losses")
        object.__setattr__(self, "losses", losses)

    @property
    def mean(self) -> float:
        """The mean loss."""
        return statistics.fmean(self.losses)

    @property
    def error(self) -> float:
        """Its standard error; infinite where one seed, or a loss that diverged, gives none."""
        if len(self.losses) < 2 or not math.isfinite(self.mean):
            return math.inf
        return statistics.stdev(self.losses) / math.sqrt(len(self.losses))

    def __str__(self) -> str:
        return shown_loss(self.mean, self.error)


def shown_loss(mean: float, error: float) -> str:
    """A loss with its error, which one seed does not give."""
    if not math.isfinite(mean):
        return "diverged"
    return f"{mean:.4f} +- {error:.4f}" if math.isfinite(error) else f"{mean:.4f}"


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One scale and how the candidates did there, best first."""

    scale: Scale
    standings: Sequence[Standing]
    seeds: Sequence[int] = ()
    """Of each candidate's losses, in their order; empty where they are not known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "standings", tuple(self.standings))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if not self.standings:
            raise CompletedpError(f"the rung {self.scale} has no standings")
        for standing in self.standings:
            if self.seeds and len(self.seeds) != len(standing.losses):
                raise CompletedpError(
                    f"{standing.candidate!r} has {len(standing.losses)} losses for "
                    f"{len(self.seeds)} seeds on the rung {self.scale}"
                )

    @classmethod
    def from_dict(cls, data: Any) -> Rung:
        """The inverse of `to_dict`, checked key by key."""
        return _rung("rung", data)

    def of(self, candidate: str) -> Standing | None:
        """How a candidate did; None where it did not get here."""
        return next((s for s in self.standings if s.candidate == candidate), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a diverged trial's loss is null."""
        return {
            "scale": self.scale.to_dict(),
            "seeds": list(self.seeds),
            "standings": [
                {
                    "candidate": standing.candidate,
                    "losses": plain(standing.losses),
                }
                for standing in self.standings
            ],
        }


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """A search that the values came from."""

    study: str
    engine: str
    space: str
    trials: int
    """Trials that ended, in whatever way."""
    seed: int = 0
    """Of the engine."""
    sites: tuple[Scale, ...] = ()
    """Where trials trained; the first is the base."""
    digest: str | None = None
    """Of the data that they trained on; the ladder's may be others."""

    def __post_init__(self) -> None:
        check_number("trials", self.trials, low=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return known | {"sites": [scale.to_dict() for scale in self.sites]}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a recipe's values beyond the values.

    >>> from completedp.theory.recipe import Recipe
    >>> evidence = Recipe.default().evidence
    >>> evidence.trials, evidence.ranges(Recipe.default().base)["width"]
    (704, (1.0, 4.0))
    """

    rungs: tuple[Rung, ...] = ()
    """The ladder, lowest first."""
    chosen: str | None = None
    """Which candidate of the rungs the recipe is."""
    searches: tuple[SearchRecord, ...] = ()
    """The searches that led to it, oldest first."""
    model: str | None = None
    text: str | None = None
    """What it was trained on, in words."""
    digest: str | None = None
    """The same as a digest, equal for equal data alone."""
    tokens_per_parameter: float | None = None
    """Tokens of the base's run over its model's parameters, embeddings among them."""
    tau: tuple[float, float] | None = None
    """AdamW's timescale at base (timescale.py), of the matrices: the shortest, the longest."""
    z_loss: float | None = None
    """Weight of the z-loss that the values were tuned with; None where there is none to tell."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By device: how long searches and ladder kept it."""

    def __post_init__(self) -> None:
        if self.rungs and not any(rung.of(self.chosen or "") for rung in self.rungs):
            raise CompletedpError(
                f"chosen = {self.chosen!r} stands on none of the rungs: name a candidate of theirs"
            )
        for name in ("tokens_per_parameter", "z_loss"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low=0)
        if self.tau is not None and not (
            len(self.tau) == 2 and 0 < self.tau[0] <= self.tau[1]  # of NaN none of it holds
        ):
            raise CompletedpError(
                f"tau = {list(self.tau)} must be two numbers above 0, the smaller one first"
            )
        for device, seconds in self.seconds.items():
            check_number(path_of("seconds.", device), seconds, low=0)
        object.__setattr__(self, "seconds", dict(self.seconds))  # the caller may change theirs

    @property
    def trials(self) -> int:
        """Of all searches."""
        return sum(search.trials for search in self.searches)

    def only_where(self, holds: Callable[[Scale], bool]) -> Evidence:
        """What was measured at the scales for which something holds; the searches that the values
        came from stay on record."""
        rungs = tuple(rung for rung in self.rungs if holds(rung.scale))
        rungs = rungs if any(rung.of(self.chosen or "") for rung in rungs) else ()
        chosen = self.chosen if rungs else None
        return replace(self, rungs=rungs, chosen=chosen)

    def ranges(self, base: Scale) -> dict[str, tuple[float, float]]:
        """By axis: the least and the largest ratio to the base at which these values trained.

        Empty where no rung was measured.

        >>> base = Scale(width=64, depth=4, batch=64, tokens=6400)
        >>> rungs = [
        ...     Rung(scale=scale, standings=[Standing(candidate="found", losses=[2.0])])
        ...     for scale in (base, Scale(width=128, depth=4, batch=64, tokens=25600))
        ... ]
        >>> Evidence(rungs=tuple(rungs), chosen="found").ranges(base)["tokens"]
        (1.0, 4.0)
        """
        ratios = [rung.scale / base for rung in self.trained]
        if not ratios:
            return {}
        along = {axis: [getattr(each, axis) for each in ratios] for axis in AXES}
        return {axis: (min(found), max(found)) for axis, found in along.items()}

    @property
    def trained(self) -> tuple[Rung, ...]:
        """The rungs on which these values were measured and did not diverge."""
        return tuple(
            rung
            for rung in self.rungs
            if (standing := rung.of(self.chosen or "")) and math.isfinite(standing.mean)
        )

    def to_dict(self) -> dict[str, Any]:
        """What is written to disk; an infinite tau, of no decay, is null."""
        return {
            "chosen": self.chosen,
            "rungs": [rung.to_dict() for rung in self.rungs],
            "searches": [search.to_dict() for search in self.searches],
            "model": self.model,
            "text": self.text,
            "digest": self.digest,
            "tokens_per_parameter": self.tokens_per_parameter,
            "tau": plain(self.tau),
            "z_loss": self.z_loss,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Evidence:
        """The inverse of `to_dict`, checked key by key."""
        where, words, number = "evidence", (str, type(None)), (int, float, type(None))
        keys = {
            "chosen": words,
            "rungs": list,
            "searches": list,
            "model": words,
            "text": words,
            "digest": words,
            "tokens_per_parameter": number,
            "tau": (list, type(None)),
            "z_loss": number,
            "seconds": dict,
        }
        check_keys(where, data, keys, required=())
        given = dict(data)
        if given.get("tau") is not None:
            given["tau"] = tuple(_numbers(f"{where}.tau", given["tau"]))
        for key, read in (("rungs", _rung), ("searches", _search)):
            listed = enumerate(given.get(key, []))
            given[key] = tuple(read(f"{where}.{key}[{i}]", each) for i, each in listed)
        with _said_of(where):
            return cls(**given)


def _rung(where: str, data: Any) -> Rung:
    keys = {"scale": dict, "seeds": list, "standings": list}
    check_keys(where, data, keys, required=("scale", "standings"))
    seeds = data.get("seeds", [])
    if not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise CompletedpError(f"{where}.seeds must be whole numbers, not {seeds!r:.60}")
    listed = enumerate(data["standings"])
    standings = [_standing(f"{where}.standings[{i}]", each) for i, each in listed]
    scale = _scale(f"{where}.scale", data["scale"])
    with _said_of(where):
        return Rung(scale=scale, standings=standings, seeds=seeds)


def _standing(where: str, data: Any) -> Standing:
    keys = {"candidate": str, "losses": list}
    check_keys(where, data, keys, required=keys)
    losses = _numbers(f"{where}.losses", data["losses"])
    with _said_of(where):
        return Standing(candidate=data["candidate"], losses=losses)


def _search(where: str, data: Any) -> SearchRecord:
    given = checked(SearchRecord, where, data, sites=list, digest=(str, type(None)))
    sites = [_scale(f"{where}.sites[{i}]", each) for i, each in enumerate(given.pop("sites", []))]
    with _said_of(where):
        return SearchRecord(**given, sites=tuple(sites))


def _scale(where: str, data: Any) -> Scale:
    given = checked(Scale, where, data)
    with _said_of(where):
        return Scale(**given)


def _numbers(where: str, values: list[Any]) -> list[float]:
    """Numbers, of which null is infinite."""
    return check_numbers(where, [math.inf if value is None else value for value in values])


@contextmanager
def _said_of(where: str) -> Iterator[None]:
    """An error in there says where it is."""
    try:
        yield
    except CompletedpError as error:
        raise CompletedpError(f"{where}: {error}") from None
