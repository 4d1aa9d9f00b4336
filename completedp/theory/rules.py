"""Rules: a parameterisation with every choice made, and the factors that follow from it.

The exponents are in tables.py, the powers of ratios in value.py; here the choices are applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from completedp.common.checks import check_is, check_number, check_one_of, several
from completedp.common.errors import CompletedpError
from completedp.common.surface import with_rule
from completedp.theory.named import NamedNumbers
from completedp.theory.optimizers import (
    DEFAULT,
    LR,
    OPTIMIZERS,
    WEIGHT_DECAY,
    Optimizer,
)
from completedp.theory.roles import Role
from completedp.theory.scale import Ratios
from completedp.theory.tables import AXES as AXES
from completedp.theory.tables import HYPERPARAMETERS as HYPERPARAMETERS
from completedp.theory.tables import PARAMETERISATIONS as PARAMETERISATIONS
from completedp.theory.tables import TABLES, Exponents, hyperparameters_of, roles_of
from completedp.theory.tables import ParameterisationName as ParameterisationName
from completedp.theory.value import Trace, powers, product

BetaRule = Literal["linear", "power", "keep"]
BETA_RULES: tuple[str, ...] = get_args(BetaRule)


class Factors(NamedNumbers):
    """What a base value is multiplied by at the target, for one role: a number for each row of its
    optimizer, for init_std, and for the multiplier of its output in the forward pass.

    AdamW's are lr, eps, weight_decay and one_minus_beta, which 1 - beta1 and 1 - beta2 are
    multiplied by (or beta raised to, but for `beta_rule="linear"`). Factors have no unit.

    >>> factors("output_weight", Ratios(width=4)).to_dict()["init_std"]
    0.25
    """


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A change to one exponent of the table: an ablation, or a planted error in a test.

    >>> shift = Shift(role="hidden_weight", hyperparameter="lr", axis="width", by=0.5)
    >>> Rules(shifts=(shift,)).exponents("hidden_weight", "lr")["width"]
    -0.5
    """

    role: str
    """A role, or `residual` for the residual multiplier."""
    hyperparameter: str
    axis: str
    by: float

    def __post_init__(self) -> None:
        roles = ("residual", *(str(role) for role in Role))
        check_one_of("shift role", self.role, roles)
        rows = {row: None for optimizer in OPTIMIZERS for row in hyperparameters_of(optimizer)}
        check_one_of("shift hyperparameter", self.hyperparameter, rows)
        check_one_of("shift axis", self.axis, AXES)
        object.__setattr__(self, "by", check_number("shift by", self.by, low=-8, high=8))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A parameterisation with every choice made; recipes record one.

    >>> Rules(alpha=0.5).residual_multiplier(Ratios(depth=4))
    0.5
    """

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
    """`linear`: 1 - beta is multiplied by r, m_B/m_D; `power`: beta is raised to it; `keep`: it
    stays, which trained better, in the mean, where memories would become shorter
    (docs/results/betas.md)."""
    weight_decay: str = "torch"
    """`torch`: decay is multiplied by lr, as torch's AdamW does; `independent`: it is not."""
    shifts: tuple[Shift, ...] = field(default=())
    """Changes to single exponents, for ablations."""
    optimizer: str | Mapping[str, str] = field(default=DEFAULT, hash=False)
    """What trains the model: adamw; or by role, {"hidden_weight": "muon"}, the others by adamw."""

    def __post_init__(self) -> None:
        check_one_of("parameterisation", self.parameterisation, PARAMETERISATIONS)
        object.__setattr__(self, "optimizer", _by_role(self.optimizer))
        check_one_of("output_norm_eps", self.output_norm_eps, ("printed", "gradient"))
        check_one_of("beta_rule", self.beta_rule, BETA_RULES)
        check_one_of("weight_decay convention", self.weight_decay, ("torch", "independent"))
        for name, low in (("alpha", 0.5), ("token_exponent", 0.0)):
            number = check_number(name, getattr(self, name), low=low, high=1.0)
            object.__setattr__(self, name, number)
        for name in ("axes", "shifts"):
            object.__setattr__(self, name, several(getattr(self, name)))
        for axis in self.axes:
            check_one_of("axis", axis, AXES)
        for shift in self.shifts:
            check_is("shifts", shift, Shift, "Shifts: Shift(role=..., hyperparameter=..., ...)")
            if shift.role != "residual":
                rows = hyperparameters_of(self.optimizer_of(shift.role).name)
                check_one_of(f"shift of {shift.role}", shift.hyperparameter, rows)

    def chosen(self, **choices: Any) -> Rules:
        """The same but for these choices; one that there is none of is an error that lists them."""
        for name in choices:
            check_one_of("choice of rules", name, [each.name for each in fields(self)])
        return replace(self, **choices)

    def optimizer_of(self, role: str) -> Optimizer:
        """What trains tensors of this role."""
        if isinstance(self.optimizer, str):
            return OPTIMIZERS[self.optimizer]
        return OPTIMIZERS[self.optimizer.get(role, DEFAULT)]

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All that train tensors of some role, in the order of the roles they are first for."""
        return tuple({found.name: found for found in map(self.optimizer_of, Role)}.values())

    def exponents(self, role: str, hyperparameter: str) -> dict[str, float]:
        """The power of each of the four ratios in a factor, every choice applied."""
        return self._resolve(self._cell(as_role(role), hyperparameter), role, hyperparameter)

    def residual_exponents(self) -> dict[str, float]:
        """The power of each ratio in the multiplier of both residual branches."""
        return self._resolve(TABLES[self.parameterisation].residual, "residual", "multiplier")

    def scaling(self, role: str, hyperparameter: str, ratios: Ratios) -> Trace:
        """What a base value of this role is multiplied by, factor by factor."""
        return powers(self.exponents(role, hyperparameter), ratios)

    def residual_scaling(self, ratios: Ratios) -> Trace:
        """What the output of each residual branch is multiplied by, factor by factor."""
        return powers(self.residual_exponents(), ratios)

    def factors(self, role: str, ratios: Ratios) -> Factors:
        """What each base value of a tensor of this role is multiplied by."""
        rows = hyperparameters_of(self.optimizer_of(as_role(role)).name)
        return Factors(**{name: product(self.scaling(role, name, ratios)) for name in rows})

    def residual_multiplier(self, ratios: Ratios) -> float:
        """What the output of each residual branch is multiplied by before it is added."""
        return product(self.residual_scaling(ratios))

    def memory_factor(self, ratios: Ratios) -> float:
        """What 1 - beta1 and 1 - beta2 are multiplied by, or beta is raised to: r, or 1 where they
        are kept."""
        return product(self.scaling(Role.INPUT_EMBEDDING, "one_minus_beta", ratios))

    def r(self, ratios: Ratios) -> float:
        """How much further the batch grows than the tokens, whatever the betas do: m_B / m_D by the
        paper's horizon rule; with another exponent the horizon's part is another."""
        return replace(self, beta_rule="power").memory_factor(ratios)

    def do_as(self, other: Rules, ratios: Ratios) -> bool:
        """Whether any values become the same at these ratios by other rules.

        >>> half = Rules(alpha=0.5)
        >>> half.do_as(Rules(), Ratios(width=4)), half.do_as(Rules(), Ratios(depth=4))
        (True, False)
        """
        # These say what a value means, at the base as well.
        if (self.optimizer, self.weight_decay) != (other.optimizer, other.weight_decay):
            return False
        by_power = [rules.beta_rule != "linear" for rules in (self, other)]
        if by_power[0] != by_power[1] and self.memory_factor(ratios) != 1.0:
            return False
        if self.residual_multiplier(ratios) != other.residual_multiplier(ratios):
            return False
        return all(self.factors(role, ratios) == other.factors(role, ratios) for role in Role)

    def scale_beta(self, name: str, beta: float, factor: float) -> float:
        """The target's beta. `factor` is what 1 - beta grows by; `name` is for the error."""
        if factor == 1.0:
            return beta
        if self.beta_rule != "linear":
            return beta**factor
        one_minus = (1.0 - beta) * factor
        if one_minus > 1.0 - 1e-9:  # the limit itself is 0: no memory at all, and no way to grow
            raise CompletedpError(
                f"{name} = {beta:g} leaves (0, 1) when 1 - {name} is multiplied by "
                f"{factor:g} (r, of batch and tokens): the largest r it can take is under "
                f"{1.0 / (1.0 - beta):g}; take a smaller batch or more tokens, "
                f"or keep the betas: {with_rule('beta_rule', 'keep')}"
            )
        return 1.0 - one_minus

    def _cell(self, role: Role, hyperparameter: str) -> Exponents:
        table = TABLES[self.parameterisation]
        cell = table.cell(self.optimizer_of(role).name, hyperparameter, role)
        # AdamLH, in sec:hp-transfer-batch-size: the decay's own factor is then m_eta x m_lambda.
        if hyperparameter == WEIGHT_DECAY and self.weight_decay == "independent":
            cell = cell * self._cell(role, LR)
        if (
            self.output_norm_eps == "gradient"
            and (role, hyperparameter) == (Role.OUTPUT_NORM, "eps")
            and self.parameterisation != "sp"
        ):
            cell = replace(cell, width=-1.0)
        if self.beta_rule == "keep" and _is_memory(hyperparameter):
            cell = Exponents()
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
            "optimizer": (
                self.optimizer if isinstance(self.optimizer, str) else dict(self.optimizer)
            ),
        }


def factors(
    role: str,
    ratios: Ratios,
    *,
    parameterisation: str = "completedp",
    alpha: float = 1.0,
    **choices: Any,
) -> Factors:
    """What the base values of a role are multiplied by; `choices` are the other fields of `Rules`.

    Factors have no unit: each multiplies the base value of the same name. `multiplier` is of the
    forward pass, `one_minus_beta` of 1 - beta1 and 1 - beta2.

    >>> found = factors("hidden_weight", Ratios(width=4, depth=4, batch=4, tokens=16))
    >>> found.lr, found.weight_decay, found.init_std
    (0.125, 2.0, 0.5)
    """
    chosen = Rules().chosen(parameterisation=parameterisation, alpha=alpha, **choices)
    return chosen.factors(role, ratios)


def check_rules(value: object) -> None:
    """Raise where something else was given than rules, such as a parameterisation's name."""
    check_is("rules", value, Rules, 'Rules: Rules(parameterisation="completedp")')


def _is_memory(row: str) -> bool:
    """Whether a row of the tables is that of a beta or of momentum."""
    knobs = (knob for optimizer in OPTIMIZERS.values() for knob in optimizer.knobs)
    return any(knob.is_complement and knob.rule == row for knob in knobs)


def _by_role(given: Any) -> str | dict[str, str]:
    """In one form: a name where one optimizer trains all; else the roles that the default one does
    not train, in their order."""
    if not isinstance(given, Mapping):
        check_one_of("optimizer", given, OPTIMIZERS)
        if len(roles_of(given)) < len(Role):
            some = dict.fromkeys(map(str, roles_of(given)), given)
            raise CompletedpError(
                f"optimizer = {given!r} cannot train every role: write {some}, and the others are "
                f"trained by {DEFAULT}"
            )
        given = dict.fromkeys(Role, given)
    for role, name in given.items():
        check_one_of("role", role, tuple(Role))
        check_one_of(f"optimizer of {role}", name, OPTIMIZERS)
        if role not in roles_of(name):
            raise CompletedpError(
                f"{name} has no rules for {role}: it can train {', '.join(roles_of(name))}"
            )
    each = {str(role): given.get(role, DEFAULT) for role in Role}
    if len(set(each.values())) == 1:
        return each[Role.HIDDEN_WEIGHT]
    return {role: name for role, name in each.items() if name != DEFAULT}


def as_role(name: str) -> Role:
    """The role of that name, or an error that lists the roles."""
    check_one_of("role", name, tuple(str(role) for role in Role))
    return Role(name)
