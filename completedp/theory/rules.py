"""The rules: Table 1 of the paper as one table of exponents, and the factors that follow from it.

Everything that states a rule elsewhere (`factors`, `completedp rules`, docs/rules.md, the checks)
is derived from `TABLE` below. A factor is

    m_N^width  x  m_L^(depth + alpha * depth_alpha)  x  m_B^batch  x  m_D^(tokens + h * tokens_h)

with alpha the residual exponent and h the token-horizon exponent (1/2 in the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from completedp.common.checks import check_number
from completedp.common.errors import CompletedpError
from completedp.theory.roles import Role
from completedp.theory.scale import Ratios

HYPERPARAMETERS = ("init_std", "lr", "eps", "weight_decay", "one_minus_beta", "multiplier")
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

    def __add__(self, other: Exponents) -> Exponents:
        """The exponents of a product of two factors."""
        return Exponents(*(getattr(self, n) + getattr(other, n) for n in self.__dataclass_fields__))


ONE = Exponents()
_WIDTH_INVERSE = Exponents(width=-1)
_HALF_INVERSE_WIDTH = Exponents(width=-0.5)
_HIDDEN_EPS = Exponents(width=-1, depth_alpha=-1)
_DEPTH_LR = Exponents(depth=-1, depth_alpha=1)

Cells = dict[Role, Exponents]
Table = dict[str, Cells]


def _every_role(exponents: Exponents) -> Cells:
    return dict.fromkeys(Role, exponents)


def _with_batch_and_tokens(table: Table) -> Table:
    """Add the paper's AdamW SDE rule for batch size and duration to every role.

    With h = 1/2 these are the powers of m_B / m_D in Table 1's last column. For another h the
    horizon's share of the learning rate is m_D^-h, and the rest follows as for a batch size that
    asked for the same change, with lr x weight_decay x steps held fixed.
    """
    shared = {
        "lr": Exponents(batch=0.5, tokens_h=-1),
        "eps": Exponents(batch=-0.5, tokens_h=1),
        "weight_decay": Exponents(batch=0.5, tokens=-1, tokens_h=1),
        "one_minus_beta": Exponents(batch=1, tokens_h=-2),
    }
    return {
        hyperparameter: {
            role: cells.get(role, ONE) + shared.get(hyperparameter, ONE) for role in Role
        }
        for hyperparameter in HYPERPARAMETERS
        for cells in [table.get(hyperparameter, {})]
    }


# Cells that are not listed are x1. Rows are Table 1's; init variances there are squared stds here.
_SP: Table = {
    "init_std": {
        Role.HIDDEN_WEIGHT: _HALF_INVERSE_WIDTH,
        Role.OUTPUT_WEIGHT: _HALF_INVERSE_WIDTH,
    },
}
_MUP: Table = {
    "init_std": {Role.HIDDEN_WEIGHT: _HALF_INVERSE_WIDTH, Role.OUTPUT_WEIGHT: _WIDTH_INVERSE},
    "lr": {Role.HIDDEN_WEIGHT: _WIDTH_INVERSE, Role.OUTPUT_WEIGHT: _WIDTH_INVERSE},
    "eps": {
        Role.INPUT_EMBEDDING: _WIDTH_INVERSE,
        Role.HIDDEN_WEIGHT: _WIDTH_INVERSE,
        Role.HIDDEN_BIAS: _WIDTH_INVERSE,
        Role.HIDDEN_NORM: _WIDTH_INVERSE,
        Role.QK_NORM: _WIDTH_INVERSE,  # NA in print: what a user of that table would do
    },
    "weight_decay": {
        Role.HIDDEN_WEIGHT: Exponents(width=1),
        Role.OUTPUT_WEIGHT: Exponents(width=1),
    },
}
_COMPLETEDP_SIZE: Table = {
    "init_std": _MUP["init_std"],
    "lr": {
        Role.HIDDEN_WEIGHT: _WIDTH_INVERSE + _DEPTH_LR,
        Role.HIDDEN_BIAS: _DEPTH_LR,
        Role.HIDDEN_NORM: _DEPTH_LR,
        Role.QK_NORM: _DEPTH_LR,  # no row of its own: that of hidden norms
        Role.OUTPUT_WEIGHT: _WIDTH_INVERSE,
    },
    "eps": {
        Role.INPUT_EMBEDDING: _WIDTH_INVERSE,
        Role.HIDDEN_WEIGHT: _HIDDEN_EPS,
        Role.HIDDEN_BIAS: _HIDDEN_EPS,
        Role.HIDDEN_NORM: _HIDDEN_EPS,
        Role.QK_NORM: Exponents(depth_alpha=-1),
    },
    "weight_decay": _MUP["weight_decay"],
}
# CompleteP: the gray entries of Table 1, which replace Complete(d)P's.
_COMPLETEP: Table = {
    "init_std": {**_COMPLETEDP_SIZE["init_std"], Role.OUTPUT_WEIGHT: ONE},
    "lr": {**_COMPLETEDP_SIZE["lr"], Role.OUTPUT_WEIGHT: ONE},
    "eps": {
        **_COMPLETEDP_SIZE["eps"],
        Role.INPUT_EMBEDDING: ONE,
        Role.QK_NORM: _HIDDEN_EPS,  # NA in print: an ordinary hidden norm
    },
    "weight_decay": _COMPLETEDP_SIZE["weight_decay"],
    "multiplier": {Role.OUTPUT_WEIGHT: _WIDTH_INVERSE},
}


def _filled(table: Table) -> Table:
    return {name: _every_role(ONE) | table.get(name, {}) for name in HYPERPARAMETERS}


TABLE: dict[str, Table] = {
    "sp": _filled(_SP),
    "mup": _filled(_MUP),
    "completep": _filled(_COMPLETEP),
    "completedp": _with_batch_and_tokens(_COMPLETEDP_SIZE),
}

_RESIDUAL = Exponents(depth_alpha=-1)
RESIDUAL: dict[str, Exponents] = {
    "sp": ONE,
    "mup": ONE,
    "completep": _RESIDUAL,
    "completedp": _RESIDUAL,
}


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What a base value is multiplied by at the target, for one role."""

    init_std: float
    lr: float
    eps: float
    weight_decay: float
    one_minus_beta: float
    """1 - beta1 and 1 - beta2 are multiplied by it (or beta raised to it: `beta_rule="power"`)."""
    multiplier: float
    """Multiplies the tensor's output in the forward pass; 1 but for CompleteP's output weight."""

    def to_dict(self) -> dict[str, float]:
        """Plain numbers, for JSON."""
        return {name: getattr(self, name) for name in HYPERPARAMETERS}


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A change to one exponent of the table: an ablation, or a planted error in a test."""

    role: str
    """A role, or `residual` for the residual multiplier."""
    hyperparameter: str
    axis: str
    by: float

    def __post_init__(self) -> None:
        roles = ("residual", *(str(role) for role in Role))
        _one_of("shift role", self.role, roles)
        _one_of("shift hyperparameter", self.hyperparameter, HYPERPARAMETERS)
        _one_of("shift axis", self.axis, AXES)
        check_number("shift by", self.by, low=-8, high=8)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A parameterisation with every choice made; recipes record one."""

    parameterisation: str = "completedp"
    """sp, mup, completep or completedp."""
    alpha: float = 1.0
    """Residual branches are multiplied by m_L^-alpha; from 1/2 to 1."""
    axes: tuple[str, ...] = AXES
    """The axes along which values are changed; leave one out to switch its rule off."""
    token_exponent: float = 0.5
    """h: the learning rate falls as m_D^-h. The paper takes 1/2; others found 0 to 0.7."""
    output_norm_eps: str = "printed"
    """`printed`: x1 as in Table 1; `gradient`: m_N^-1, as its measured gradient falls."""
    beta_rule: str = "linear"
    """`linear`: 1 - beta is multiplied by m_B/m_D; `power`: beta is raised to it."""
    weight_decay: str = "torch"
    """`torch`: decay is multiplied by lr, as torch's AdamW does; `independent`: it is not."""
    shifts: tuple[Shift, ...] = field(default=())
    """Changes to single exponents, for ablations."""

    def __post_init__(self) -> None:
        _one_of("parameterisation", self.parameterisation, PARAMETERISATIONS)
        _one_of("output_norm_eps", self.output_norm_eps, ("printed", "gradient"))
        _one_of("beta_rule", self.beta_rule, ("linear", "power"))
        _one_of("weight_decay convention", self.weight_decay, ("torch", "independent"))
        check_number("alpha", self.alpha, low=0.5, high=1.0)
        check_number("token_exponent", self.token_exponent, low=0.0, high=1.0)
        for axis in self.axes:
            _one_of("axis", axis, AXES)

    def exponents(self, role: str, hyperparameter: str) -> dict[str, float]:
        """The power of each of the four ratios in a factor, every choice applied."""
        return self._resolve(self._cell(as_role(role), hyperparameter), role, hyperparameter)

    def residual_exponents(self) -> dict[str, float]:
        """The power of each ratio in the multiplier of both residual branches."""
        return self._resolve(RESIDUAL[self.parameterisation], "residual", "multiplier")

    def factors(self, role: str, ratios: Ratios) -> Factors:
        """What each base value of a tensor of this role is multiplied by."""
        return Factors(
            **{name: power(self.exponents(role, name), ratios) for name in HYPERPARAMETERS}
        )

    def residual_multiplier(self, ratios: Ratios) -> float:
        """What the output of each residual branch is multiplied by before it is added."""
        return power(self.residual_exponents(), ratios)

    def scale_beta(self, name: str, beta: float, factor: float) -> float:
        """The target's beta. `factor` is `Factors.one_minus_beta`; `name` is for the error."""
        if factor == 1.0:
            return beta
        if self.beta_rule == "power":
            return beta**factor
        one_minus = (1.0 - beta) * factor
        if one_minus > 1.0 - 1e-9:  # the limit itself is 0: no memory at all, and no way to grow
            raise CompletedpError(
                f"{name} = {beta:g} leaves (0, 1) when 1 - {name} is multiplied by "
                f"{factor:g} (r = m_B/m_D): the largest r it can take is under "
                f"{1.0 / (1.0 - beta):g}; take a smaller batch or more tokens, "
                'or set beta_rule="power"'
            )
        return 1.0 - one_minus

    def _cell(self, role: Role, hyperparameter: str) -> Exponents:
        table = TABLE[self.parameterisation]
        if hyperparameter not in table:
            _one_of("hyperparameter", hyperparameter, HYPERPARAMETERS)
        cell = table[hyperparameter][role]
        if hyperparameter == "weight_decay" and self.weight_decay == "independent":
            cell = cell + self._cell(role, "lr")
        if (
            self.output_norm_eps == "gradient"
            and (role, hyperparameter) == (Role.OUTPUT_NORM, "eps")
            and self.parameterisation != "sp"
        ):
            cell = replace(cell, width=-1.0)
        return cell

    def _resolve(self, cell: Exponents, role: str, hyperparameter: str) -> dict[str, float]:
        resolved = {
            "width": cell.width,
            "depth": cell.depth + self.alpha * cell.depth_alpha,
            "batch": cell.batch,
            "tokens": cell.tokens + self.token_exponent * cell.tokens_h,
        }
        for shift in self.shifts:
            if (shift.role, shift.hyperparameter) == (role, hyperparameter):
                resolved[shift.axis] += shift.by
        return {axis: resolved[axis] if axis in self.axes else 0.0 for axis in AXES}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "parameterisation": self.parameterisation,
            "alpha": self.alpha,
            "axes": list(self.axes),
            "token_exponent": self.token_exponent,
            "output_norm_eps": self.output_norm_eps,
            "beta_rule": self.beta_rule,
            "weight_decay": self.weight_decay,
            "shifts": [dict(vars(shift)) for shift in self.shifts],
        }


def power(exponents: dict[str, float], ratios: Ratios) -> float:
    """The product of the ratios, each to its exponent."""
    return math.prod(getattr(ratios, axis) ** exponent for axis, exponent in exponents.items())


def factors(
    role: str,
    ratios: Ratios,
    *,
    parameterisation: str = "completedp",
    alpha: float = 1.0,
    **choices: Any,
) -> Factors:
    """The factors of one role; `choices` are the other fields of `Rules`."""
    rules = Rules(parameterisation=parameterisation, alpha=alpha, **choices)
    return rules.factors(role, ratios)


def as_role(name: str) -> Role:
    """The role of that name, or an error that lists the roles."""
    _one_of("role", name, tuple(str(role) for role in Role))
    return Role(name)


def _one_of(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CompletedpError(f"unknown {what} {value!r}: choose from {', '.join(allowed)}")
