"""The numbers of a plan: every tensor's values at the target, and how multipliers are carried.

Numbers alone: what is done with them (initialise.py, multipliers.py, optimise.py, table.py and
others) takes them from here, and `Plan` (planned.py) puts it all together.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn

from completedp.apply.model_map import ModelMap, TensorInfo
from completedp.apply.names import canonical_name
from completedp.common.checks import check_is
from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import DEFAULT, LR, OPTIMIZERS, WEIGHT_DECAY, Optimizer
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, Role, is_bias
from completedp.theory.scale import Ratios, Scale
from completedp.theory.timescale import timescale
from completedp.theory.value import Trace, Value

Way = Literal["buffer", "setting", "fold", "hook"]
"""How a multiplier is carried: multipliers.py."""


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """One parameter: what it is, and its values at the target."""

    info: TensorInfo
    width_ratio: float
    """Its own width over that of its type at base: m_N, tensor by tensor."""
    values: Mapping[str, Value]
    """Its optimizer's (of AdamW lr, weight_decay, eps, beta1, beta2), the multiplier, and for a
    matrix init_std. Each is an attribute too (`tensor.eps`), and so is what torch calls otherwise
    (`tensor.betas`)."""
    borrowed: bool
    """Whether the recipe knows its role alone, and not its type."""
    independent_decay: bool = False
    """Whether the planned weight decay is not multiplied by lr."""
    steps: int = 1
    """Of the run that is planned."""
    optimizer: str = DEFAULT
    """What trains it."""
    gain: float = 1.0
    """What the gain of a norm starts at, in use: the multiplier that is folded into it."""
    own_growth: float = 1.0
    """By how much its table's own factor is larger than at base: its values are those of a tensor
    that is so many times smaller (own_scales.py)."""

    def __getattr__(self, name: str) -> Any:
        if "optimizer" in self.__dict__:  # a copy in the making has nothing yet
            if name in self.values:
                return self.values[name].target
            if name in (group := self.torch_values):
                return group[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.info.name

    @property
    def lr(self) -> float:
        """Peak learning rate."""
        return self.values[LR].target

    @property
    def knobs(self) -> dict[str, float]:
        """Its optimizer's values, as the update takes them: weight decay is multiplied by lr, so
        that a schedule scales both alike."""
        found = {knob.name: self.values[knob.name].target for knob in self._described.knobs}
        if self.independent_decay and WEIGHT_DECAY in found:
            found[WEIGHT_DECAY] = found[WEIGHT_DECAY] / found[LR]
        return found

    @property
    def torch_values(self) -> dict[str, Any]:
        """The same as a torch group has them: of AdamW lr, weight_decay, eps and betas."""
        return self._described.group(self.knobs)

    @property
    def tau(self) -> float:
        """The timescale of its decay in run lengths; infinite without decay (timescale.py)."""
        decay = self.knobs.get(WEIGHT_DECAY, 0.0)
        return timescale(self.lr, decay, self.steps)

    @property
    def _described(self) -> Optimizer:
        return OPTIMIZERS[self.optimizer]

    @property
    def init_std(self) -> float | None:
        """Standard deviation of the initial draw; None for vectors, which start at a constant."""
        return self.values["init_std"].target if "init_std" in self.values else None

    @property
    def init_value(self) -> float | None:
        """What a vector starts at: a bias at 0, a gain at 1, or at the multiplier folded into it,
        less what its module adds to it; where no rule says, what it starts at in the model."""
        if self.info.start is not None:  # in use, with what its module adds to it, times the fold
            used = self.info.start + self.info.offset
            return self.info.start if self.gain == 1 else self.gain * used - self.info.offset
        if self.info.role.is_matrix:
            return None
        return 0.0 if is_bias(self.info.type) else self.gain - self.info.offset

    @property
    def multiplier(self) -> float:
        """What its output is multiplied by in the forward pass; 1 where that is folded into it."""
        return self.values["multiplier"].target

    @property
    def base(self) -> dict[str, float]:
        """Values on the base model, for the same type at the same relative depth."""
        return {name: value.base for name, value in self.values.items() if name != "multiplier"}

    @property
    def trace(self) -> dict[str, Trace]:
        """For each value, the factors it came from; of a beta, those of 1 - beta."""
        return {self._traced(name): value.trace for name, value in self.values.items()}

    def explain(self, hyperparameter: str) -> str:
        """One line: the factors, those of 1 left out, and what they make."""
        name = hyperparameter.removeprefix("one_minus_")
        if name not in self.values:
            raise CompletedpError(
                f"{self.name} has no {hyperparameter!r} to explain: "
                f"choose from {', '.join(self.values)}"
            )
        value = self.values[name]
        what, made = name, f"{value.target:.6g}"
        if self._traced(name) != name:
            what, made = f"1 - {name}", f"{1.0 - value.target:.6g}, so {name} = {made}"
        factors = f"{value.explain()} = " if value.trace else ""
        left_out = ", its role being left out" if ("no_decay", 0.0) in value.trace else ""
        return f"{self.name}: {what} = {factors}{made} ({value.base:.6g} at base{left_out})"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        plain = asdict(self.info) | {"role": str(self.info.role), "shape": list(self.info.shape)}
        knobs = (knob.name for knob in self._described.knobs)
        names = ("width_ratio", "init_std", "init_value", *knobs, "multiplier")
        plain |= {name: getattr(self, name) for name in names}
        plain["tau"] = self.tau if math.isfinite(self.tau) else None
        plain |= {"borrowed": self.borrowed, "base": self.base}
        plain["trace"] = {name: [list(term) for term in t] for name, t in self.trace.items()}
        return plain

    def _traced(self, name: str) -> str:
        """What a value's factors multiply to: of a beta, 1 - beta."""
        complements = {knob.name for knob in self._described.knobs if knob.is_complement}
        return f"one_minus_{name}" if name in complements else name


class PlanNumbers:
    """Every tensor's plan, and what the forward pass multiplies by."""

    def __init__(
        self,
        recipe: Recipe,
        target: Scale,
        model_map: ModelMap,
        tensors: Sequence[TensorPlan],
        residual_multipliers: Sequence[tuple[float, float]],
        ways: Mapping[str, Way],
    ) -> None:
        self.recipe = recipe
        self.target = target
        self.map = model_map
        """What the model was found to be."""
        self.tensors = list(tensors)
        self.residual_multipliers = list(residual_multipliers)
        """Of every block: the attention branch's and the feed-forward branch's."""
        self.ways = dict(ways)
        """How the multipliers of `attn`, `mlp` and `output` are carried (multipliers.py)."""

    @property
    def model(self) -> nn.Module:
        """The planned model."""
        return self.map.model

    @property
    def ratios(self) -> Ratios:
        """The target over the recipe's base."""
        return self.target / self.recipe.base

    @property
    def optimizers(self) -> tuple[str, ...]:
        """What trains the tensors, in the order of their first."""
        return tuple(dict.fromkeys(tensor.optimizer for tensor in self.tensors))

    @property
    def output_multiplier(self) -> float:
        """Forward multiplier of the logits, unless it is folded: 1 but for CompleteP's and for
        tied embeddings."""
        heads = (Role.OUTPUT_WEIGHT, Role.TIED_EMBEDDING)
        return next((t.multiplier for t in self.tensors if t.info.role in heads), 1.0)

    @property
    def buffers(self) -> dict[str, Any]:
        """What the model's multiplier buffers, where it has them, are set to."""
        return {
            "residual_multipliers": [
                [
                    value if self.ways[branch] == "buffer" else 1.0
                    for branch, value in zip(BRANCHES, pair, strict=True)
                ]
                for pair in self.residual_multipliers
            ],
            "output_multiplier": (
                self.output_multiplier if self.ways["output"] == "buffer" else 1.0
            ),
        }

    def __iter__(self) -> Iterator[TensorPlan]:
        return iter(self.tensors)

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return any(tensor.name == canonical_name(item) for tensor in self)
        return item in self.tensors

    def __getitem__(self, name: str) -> TensorPlan:
        """The plan of one tensor, by its name."""
        wanted = _wanted(name)
        for tensor in self.tensors:
            if tensor.name == wanted:
                return tensor
        for later, first in self.map.structure.shared:
            if later.name == wanted:
                raise CompletedpError(f"{name!r} is {first.name} itself (tied): ask for that")
        raise CompletedpError(f"the plan has no tensor {name!r}{_hint(wanted, self.tensors)}")

    def within(self, name: str) -> list[TensorPlan]:
        """The tensor of that name, or those of the module of that name; also of several, as the
        table names them (`layers.0-3.attn.{q,k}`)."""
        wanted = _wanted(name)
        places = [_choices(place) for place in wanted.split(".")]
        inside = [t for t in self.tensors if t.name.startswith(f"{wanted}.")]
        if any(len(place) > 1 for place in places):
            words = ((t, t.name.split(".")) for t in self.tensors)
            inside = [
                t
                for t, own in words
                if len(own) >= len(places)
                and all(word in place for word, place in zip(own, places, strict=False))
            ]
        return inside or [self[name]]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        return {
            "base": self.recipe.base.to_dict(),
            "target": self.target.to_dict(),
            "ratios": self.ratios.to_dict(),
            "steps": self.target.steps,
            "rules": self.recipe.rules.to_dict(),
            "residual_multipliers": [list(pair) for pair in self.residual_multipliers],
            "output_multiplier": self.output_multiplier,
            "multipliers": dict(self.ways),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def _wanted(name: object) -> str:
    check_is("name", name, str, "that of a tensor or a module, as the plan prints it")
    return canonical_name(str(name))


def _choices(place: str) -> set[str]:
    """The words that one word of a merged name stands for (table.merged_name).

    >>> sorted(_choices("0-2,4")), sorted(_choices("{q,k}")), _choices("attn")
    (['0', '1', '2', '4'], ['k', 'q'], {'attn'})
    """
    if place[:1] == "{" and place[-1:] == "}":
        return set(place[1:-1].split(","))
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", place):
        return {place}
    ends = (run.split("-") for run in place.split(","))
    return {str(n) for run in ends for n in range(int(run[0]), int(run[-1]) + 1)}


def _hint(wanted: str, tensors: Sequence[TensorPlan]) -> str:
    """Names like the one that is wanted, those of its block first; or where there are any."""
    numbers = re.findall(r"\d+", wanted)[:1]
    names = [t.name for t in tensors]
    own = [name for name in names if re.findall(r"\d+", name)[:1] == numbers] or names
    near = difflib.get_close_matches(wanted, own, n=2, cutoff=0.4)
    near += [name for name in names if wanted in name and name not in near]
    if not near:
        return f": its table lists all, such as {', '.join(names[:3])}"
    return f": did you mean {' or '.join(near[:2])}?"
