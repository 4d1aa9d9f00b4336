"""The rule table: Table 1 of the paper as data, every cell of it written down.

Everything that states a rule elsewhere (`factors`, `completedp rules`, docs/rules.md, plans, the
checks) is derived from this table. It has four coordinates: parameterisation, optimizer,
hyperparameter and role. A cell holds the powers of a factor

    m_N^width  x  m_L^(depth + alpha * depth_alpha)  x  m_B^batch  x  m_D^(tokens + h * tokens_h)

with alpha the residual exponent and h the token-horizon exponent (1/2 in the paper). Quotes at the
lines are rows of Table 1 (tab:param_comparison); sections, equations and appendices go by their
labels in the paper's source. Init is a standard deviation here and a variance in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from completedp.common.checks import check_one_of
from completedp.common.errors import CompletedpError
from completedp.theory.optimizers import (
    ADAMW,
    DEFAULT,
    MUON,
    OPTIMIZERS,
    Optimizer,
    knobs_by_value,
)
from completedp.theory.roles import Role

AXES = ("width", "depth", "batch", "tokens")
ParameterisationName = Literal["sp", "mup", "completep", "completedp"]
PARAMETERISATIONS: tuple[str, ...] = get_args(ParameterisationName)


@dataclass(frozen=True)
class Exponents:
    """One cell of the table: the power of each ratio."""

    width: float = 0.0
    depth: float = 0.0
    depth_alpha: float = 0.0
    batch: float = 0.0
    tokens: float = 0.0
    tokens_h: float = 0.0

    def __mul__(self, other: Exponents) -> Exponents:
        """The exponents of a product of two factors."""
        return Exponents(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __pow__(self, power: float) -> Exponents:
        """The exponents of a factor to a power."""
        return Exponents(*(getattr(self, f.name) * power + 0.0 for f in fields(self)))


ONE = Exponents()
_N = Exponents(width=1)
_L = Exponents(depth=1)
_La = Exponents(depth_alpha=1)
"""m_L^alpha."""
_B = Exponents(batch=1)
_D = Exponents(tokens=1)
_Dh = Exponents(tokens_h=1)
"""m_D^h."""

Columns = tuple[Exponents, Exponents, Exponents, Exponents]
"""A cell for each of sp, mup, completep, completedp."""

# The columns: sp is what a user does who draws weights with std 1/sqrt(fan-in) and tunes nothing
# else; mup is Table 1's "muP (Table 3)", of Tensor Programs V; completep is Complete(d)P with the
# gray entries of Table 1 in its place. Cells are width and depth alone: batch and tokens follow.
#
# A tied embedding W is input and output in one, and Table 1 has no row for it. With the forward
# factor 1/m_N on the logits the output's weight is V = W/m_N. By Adam's symmetry W = m_N V has V's
# init and lr times m_N and its eps and weight decay over m_N: init m_N^-1 m_N = 1, lr
# m_N^-1 m_N = 1, eps 1/m_N, decay m_N/m_N = 1. That is the input's row, so one row holds for both.
# fmt: off
_START: dict[str, dict[Role, Columns]] = {
    "init_std": {  # "Init. Variances"
        #                      sp         mup        completep   completedp
        Role.INPUT_EMBEDDING: (ONE,       ONE,       ONE,        ONE),        # "Input Emb."
        # As the input; of sp as the output, which 1/sqrt(fan-in) is for: it has no factor
        Role.TIED_EMBEDDING:  (_N**-0.5,  ONE,       ONE,        ONE),
        Role.HIDDEN_WEIGHT:   (_N**-0.5,  _N**-0.5,  _N**-0.5,   _N**-0.5),   # "Hidden weights"
        # "Hidden biases/norms", which start at constants; QK norms have no row, and are norms
        Role.HIDDEN_BIAS:     (ONE,       ONE,       ONE,        ONE),
        Role.HIDDEN_NORM:     (ONE,       ONE,       ONE,        ONE),
        Role.QK_NORM:         (ONE,       ONE,       ONE,        ONE),
        Role.OUTPUT_NORM:     (ONE,       ONE,       ONE,        ONE),        # "Unemb. LN"
        Role.OUTPUT_WEIGHT:   (_N**-0.5,  _N**-1,    ONE,        _N**-1),     # "Unemb. Weights"
        Role.OUTPUT_BIAS:     (ONE,       ONE,       ONE,        ONE),        # no row: starts at 0
    },
    "multiplier": {  # "Multipliers"; those of the residual branches are _RESIDUAL
        Role.INPUT_EMBEDDING: (ONE,       ONE,       ONE,        ONE),        # none in print
        # What makes one row of two (above); completep has it in print for the output
        Role.TIED_EMBEDDING:  (ONE,       _N**-1,    _N**-1,     _N**-1),
        Role.HIDDEN_WEIGHT:   (ONE,       ONE,       ONE,        ONE),        # none in print
        Role.HIDDEN_BIAS:     (ONE,       ONE,       ONE,        ONE),        # none in print
        Role.HIDDEN_NORM:     (ONE,       ONE,       ONE,        ONE),        # none in print
        Role.QK_NORM:         (ONE,       ONE,       ONE,        ONE),        # none in print
        Role.OUTPUT_NORM:     (ONE,       ONE,       ONE,        ONE),        # none in print
        # "Unemb. Fwd"; why Complete(d)P has none: appendix sec:completedp-adjustments,
        # "Changes to the unembedding weight"
        Role.OUTPUT_WEIGHT:   (ONE,       ONE,       _N**-1,     ONE),
        Role.OUTPUT_BIAS:     (ONE,       ONE,       ONE,        ONE),        # none in print
    },
}
# "MHA Residual" and "MLP Residual": m_L^-alpha, also the display in sec:hp-transfer-model-scale.
_RESIDUAL: Columns =          (ONE,       ONE,       _La**-1,    _La**-1)

_DEPTH_LR = _La * _L**-1
"""m_L^(alpha-1)."""
_HIDDEN_EPS = _N**-1 * _La**-1
_ADAMW: dict[str, dict[Role, Columns]] = {
    "lr": {  # "Learning Rates"
        #                      sp         mup        completep            completedp
        Role.INPUT_EMBEDDING: (ONE,       ONE,       ONE,                 ONE),  # "Input Emb."
        Role.TIED_EMBEDDING:  (ONE,       ONE,       ONE,                 ONE),  # as the input
        # "Hidden weights"
        Role.HIDDEN_WEIGHT:   (ONE,       _N**-1,    _N**-1 * _DEPTH_LR,  _N**-1 * _DEPTH_LR),
        # "Hidden biases/norm"; QK norms have no row, and are norms
        Role.HIDDEN_BIAS:     (ONE,       ONE,       _DEPTH_LR,           _DEPTH_LR),
        Role.HIDDEN_NORM:     (ONE,       ONE,       _DEPTH_LR,           _DEPTH_LR),
        Role.QK_NORM:         (ONE,       ONE,       _DEPTH_LR,           _DEPTH_LR),
        Role.OUTPUT_NORM:     (ONE,       ONE,       ONE,                 ONE),  # "Unemb. LN"
        # "Unemb. weights"; appendix "Changes to the unembedding weight", (2)
        Role.OUTPUT_WEIGHT:   (ONE,       _N**-1,    ONE,                 _N**-1),
        Role.OUTPUT_BIAS:     (ONE,       ONE,       ONE,                 ONE),  # no row: as the LN
    },
    "eps": {  # "AdamW eps"
        # "Input Emb."; appendix sec:completedp-embedding-epsilon-adjustment
        Role.INPUT_EMBEDDING: (ONE,       _N**-1,    ONE,                 _N**-1),
        # As the input; in print completep has x1 for both
        Role.TIED_EMBEDDING:  (ONE,       _N**-1,    ONE,                 _N**-1),
        # "Hidden weights/biases/norms"
        Role.HIDDEN_WEIGHT:   (ONE,       _N**-1,    _HIDDEN_EPS,         _HIDDEN_EPS),
        Role.HIDDEN_BIAS:     (ONE,       _N**-1,    _HIDDEN_EPS,         _HIDDEN_EPS),
        Role.HIDDEN_NORM:     (ONE,       _N**-1,    _HIDDEN_EPS,         _HIDDEN_EPS),
        # "QK norms"; appendix "QK norm multiplier weights". NA in print for the others, where
        # it is an ordinary hidden norm
        Role.QK_NORM:         (ONE,       _N**-1,    _HIDDEN_EPS,         _La**-1),
        # "Output weights/biases/norms"; appendix "Changes to the unembedding weight"
        Role.OUTPUT_NORM:     (ONE,       ONE,       ONE,                 ONE),
        Role.OUTPUT_WEIGHT:   (ONE,       ONE,       ONE,                 ONE),
        Role.OUTPUT_BIAS:     (ONE,       ONE,       ONE,                 ONE),
    },
    "weight_decay": {  # "Weight decay"
        Role.INPUT_EMBEDDING: (ONE,       ONE,       ONE,                 ONE),  # "Rest"
        # As the input. completep's m_N for the output, without 1/m_N in lr, is x1 if it is to train
        # as Complete(d)P does (docs/choices.md)
        Role.TIED_EMBEDDING:  (ONE,       ONE,       ONE,                 ONE),
        Role.HIDDEN_WEIGHT:   (ONE,       _N,        _N,                  _N),   # "Hidden weights"
        Role.HIDDEN_BIAS:     (ONE,       ONE,       ONE,                 ONE),  # "Rest"
        Role.HIDDEN_NORM:     (ONE,       ONE,       ONE,                 ONE),  # "Rest"
        Role.QK_NORM:         (ONE,       ONE,       ONE,                 ONE),  # "Rest"
        Role.OUTPUT_NORM:     (ONE,       ONE,       ONE,                 ONE),  # "Rest"
        Role.OUTPUT_WEIGHT:   (ONE,       _N,        _N,                  _N),   # "Unemb. weights"
        Role.OUTPUT_BIAS:     (ONE,       ONE,       ONE,                 ONE),  # "Rest"
    },
    "one_minus_beta": {  # "AdamW (1-beta1)", "AdamW (1-beta2)": nothing of width and depth
        Role.INPUT_EMBEDDING: (ONE,       ONE,       ONE,                 ONE),
        Role.TIED_EMBEDDING:  (ONE,       ONE,       ONE,                 ONE),
        Role.HIDDEN_WEIGHT:   (ONE,       ONE,       ONE,                 ONE),
        Role.HIDDEN_BIAS:     (ONE,       ONE,       ONE,                 ONE),
        Role.HIDDEN_NORM:     (ONE,       ONE,       ONE,                 ONE),
        Role.QK_NORM:         (ONE,       ONE,       ONE,                 ONE),
        Role.OUTPUT_NORM:     (ONE,       ONE,       ONE,                 ONE),
        Role.OUTPUT_WEIGHT:   (ONE,       ONE,       ONE,                 ONE),
        Role.OUTPUT_BIAS:     (ONE,       ONE,       ONE,                 ONE),
    },
}
# Batch and tokens, the same for every role: the last column of Table 1, of Complete(d)P alone. The
# powers of m_B are the square-root rule, eq:multipliers_bs; those of m_D, the iso-horizon rule of
# sec:hp-transfer-tokens. With h = 1/2 they are Table 1's powers of m_B / m_D. For another h the
# learning rate's share is m_D^-h, and the rest follows as for a batch size that asked for the same
# change, with lr x weight_decay x steps held fixed.
_ADAMW_TIME: dict[str, Columns] = {
    "lr":             (ONE, ONE, ONE, _B**0.5 * _Dh**-1),            # sqrt(m_B/m_D)
    "eps":            (ONE, ONE, ONE, _B**-0.5 * _Dh),               # sqrt(m_D/m_B)
    "weight_decay":   (ONE, ONE, ONE, _B**0.5 * _D**-1 * _Dh),       # sqrt(m_B/m_D)
    "one_minus_beta": (ONE, ONE, ONE, _B * _Dh**-2),                 # m_B/m_D
}


# Muon is not in the paper. Its step is an orthogonal matrix times sqrt(max(1, out/in)), so its
# operator norm does not change with width, and that is what a stream of any width asks of it: lr
# and decay stay (charliezchen/scaling-matrix-preconditioning trains so). Over depth the branches
# add up as under AdamW: m_L^(alpha-1). For batch and tokens no rule is in print; the step's size
# does not depend on the gradient's, as AdamW's does not, so its rows are taken.
_MUON: dict[str, dict[Role, Columns]] = {
    #                                            sp    mup   completep   completedp
    "lr":                 {Role.HIDDEN_WEIGHT: (ONE,  ONE,  _DEPTH_LR,  _DEPTH_LR)},
    "weight_decay":       {Role.HIDDEN_WEIGHT: (ONE,  ONE,  ONE,        ONE)},
    "one_minus_momentum": {Role.HIDDEN_WEIGHT: (ONE,  ONE,  ONE,        ONE)},
}
_MUON_TIME: dict[str, Columns] = {
    "lr":                 _ADAMW_TIME["lr"],
    "weight_decay":       _ADAMW_TIME["weight_decay"],
    "one_minus_momentum": _ADAMW_TIME["one_minus_beta"],
}
# fmt: on

Table = Mapping[str, Mapping[Role, Exponents]]
"""hyperparameter -> role -> cell."""


@dataclass(frozen=True, kw_only=True)
class Parameterisation:
    """One column of the table."""

    name: str
    start: Table
    """init_std, and multiplier in the forward pass: the same for every optimizer."""
    residual: Exponents
    """What both residual branches are multiplied by."""
    optimizers: dict[str, Table]
    """The hyperparameters of each optimizer."""

    def cell(self, optimizer: str, hyperparameter: str, role: Role) -> Exponents:
        """The exponents of one factor."""
        check_one_of("hyperparameter", hyperparameter, hyperparameters_of(optimizer))
        table = self.start if hyperparameter in self.start else self.optimizers[optimizer]
        return table[hyperparameter][role]


def hyperparameters_of(optimizer: str) -> tuple[str, ...]:
    """The rows of the table for tensors that this optimizer trains, in the order of printing."""
    return ("init_std", *OPTIMIZERS[optimizer].rules, "multiplier")


HYPERPARAMETERS = hyperparameters_of(ADAMW.name)


def _column(number: int, name: str) -> Parameterisation:
    start = {h: {role: row[number] for role, row in rows.items()} for h, rows in _START.items()}
    return Parameterisation(name=name, start=start, residual=_RESIDUAL[number], optimizers={})


TABLES: dict[str, Parameterisation] = {
    name: _column(number, name) for number, name in enumerate(PARAMETERISATIONS)
}


def register(
    optimizer: Optimizer, size: Mapping[str, Mapping[Role, Columns]], time: Mapping[str, Columns]
) -> None:
    """Add an optimizer with its rows: `size` has the powers of width and depth for every role that
    it can train, `time` those of batch and tokens, which are the same for all roles."""
    known = knobs_by_value(o for o in OPTIMIZERS.values() if o.name != optimizer.name)
    for knob in optimizer.knobs:
        other = known.get(knob.value, knob)
        if (other.is_complement, other.may_be_zero) != (knob.is_complement, knob.may_be_zero):
            raise CompletedpError(
                f"{optimizer.name}: {knob.value} has other limits than the value of that name that "
                "other optimizers have: call it by another name"
            )
    OPTIMIZERS[optimizer.name] = optimizer
    for number, table in enumerate(TABLES.values()):
        table.optimizers[optimizer.name] = {
            h: {role: row[number] * time[h][number] for role, row in rows.items()}
            for h, rows in size.items()
            if h in time
        }
        check_complete(table)


def roles_of(optimizer: str) -> tuple[Role, ...]:
    """The roles that an optimizer has rules for."""
    return _roles(next(iter(TABLES.values())), optimizer)


def _roles(parameterisation: Parameterisation, optimizer: str) -> tuple[Role, ...]:
    """Those with any cell; what trains tensors by default has to have all."""
    rows = parameterisation.optimizers[optimizer].values()
    return tuple(role for role in Role if optimizer == DEFAULT or any(role in row for row in rows))


def check_complete(parameterisation: Parameterisation) -> None:
    """Raise where a cell is not written down: nothing is x1 because somebody forgot it."""
    for optimizer in parameterisation.optimizers:
        for hyperparameter in hyperparameters_of(optimizer):
            for role in _roles(parameterisation, optimizer):
                try:
                    parameterisation.cell(optimizer, hyperparameter, role)
                except KeyError:
                    raise CompletedpError(
                        f"the table of {parameterisation.name} has no cell for {hyperparameter} "
                        f"of {role} with {optimizer}: write it down in theory/tables.py"
                    ) from None


register(ADAMW, _ADAMW, _ADAMW_TIME)
register(MUON, _MUON, _MUON_TIME)
