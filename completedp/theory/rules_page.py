"""The rules for people: a table of factors for given ratios, and the page of all exponents."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from completedp.theory.optimizers import DEFAULT
from completedp.theory.roles import MODULE_TYPES, Role
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios
from completedp.theory.tables import TABLES, Exponents, hyperparameters_of, roles_of

_TITLES = {
    "sp": "Standard parameterisation (`sp`)",
    "mup": "muP, Table 3 of Tensor Programs V (`mup`)",
    "completep": "CompleteP (`completep`)",
    "completedp": "Complete(d)P (`completedp`)",
}


def factors_table(rules: Rules, ratios: Ratios) -> str:
    """What each base value is multiplied by, as aligned text."""
    found = {role: rules.factors(role, ratios).to_dict() for role in Role}
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    rows = [["role", *names]]
    for role, values in found.items():  # a role's optimizer may not have what another's has
        rows.append([str(role), *(f"{values[n]:.6g}" if n in values else "" for n in names)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in cells)
        for cells in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]
    shown = ", ".join(f"{axis} x{value:g}" for axis, value in ratios.to_dict().items())
    return "\n".join(
        [
            f"{', '.join(_choices(rules))}: {shown}",
            *lines,
            f"residual branches x{rules.residual_multiplier(ratios):.6g}, steps x{ratios.steps:g}, "
            f"r {rules.r(ratios):.4g}",
        ]
    )


def _choices(rules: Rules) -> list[str]:
    """The parameterisation, alpha, and what else of the rules is not the usual."""
    usual = Rules().to_dict()
    others = {
        name: value
        for name, value in rules.to_dict().items()
        if name not in ("parameterisation", "alpha") and value != usual[name]
    }
    told = [f"{name} {_shown(value)}" for name, value in others.items()]
    return [rules.parameterisation, f"alpha {rules.alpha:g}", *told]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(each)}" for key, each in value.items())
    return " ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def rules_page() -> str:
    """docs/rules.md: every exponent of every parameterisation, from the table itself."""
    parts = [
        "# The rules",
        "This page is made by `completedp rules --markdown` from the table in "
        "`completedp/theory/tables.py`; a test keeps the two equal.",
        "A base value is multiplied by the entry. `m_N`, `m_L`, `m_B`, `m_D` are the ratios of "
        "target to base in width (tensor by tensor: its own fan-in over that of the same type at "
        "base), depth, batch and tokens; `a` is alpha, from 1/2 to 1; `h` is the token-horizon "
        "exponent, 1/2 in the paper. Init is given as a standard deviation, the paper's table "
        "as a variance.",
    ]
    for table in TABLES.values():
        parts.append(f"## {_TITLES[table.name]}")
        for optimizer in table.optimizers:
            names = hyperparameters_of(optimizer)
            header = ["role", *names]
            rows = [
                [str(role), *(_cell(table.cell(optimizer, name, role)) for name in names)]
                for role in roles_of(optimizer)
            ]
            if optimizer != DEFAULT:
                parts.append(f"Trained by {optimizer}:")
            rule = ["---"] * len(header)
            parts.append("\n".join(_markdown_row(row) for row in [header, rule, *rows]))
        parts.append(f"Residual branches are multiplied by {_cell(table.residual)}.")
    parts.append("## Module types")
    parts.append(
        "What an `overrides` entry or `--override` may name, by role. Queries, keys and values are "
        "`qkv`, in one matrix or in three; what ends in `_bias` is added, and starts at 0."
    )
    by_role = {
        role: [f"`{name}`" for name, own in MODULE_TYPES.items() if own is role] for role in Role
    }
    rows = [[str(role), ", ".join(names)] for role, names in by_role.items()]
    header = ["role", "module types"]
    parts.append("\n".join(_markdown_row(row) for row in [header, ["---"] * 2, *rows]))
    return "\n\n".join(parts) + "\n"


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(e: Exponents) -> str:
    factors = [
        _power("m_N", _number(e.width)),
        _power("m_L", _sum(e.depth, e.depth_alpha, "a")),
        _power("m_B", _number(e.batch)),
        _power("m_D", _sum(e.tokens, e.tokens_h, "h")),
    ]
    return " ".join(filter(None, factors)) or "1"


def _power(name: str, exponent: str) -> str:
    if exponent == "0":
        return ""
    return name if exponent == "1" else f"{name}^{exponent}"


def _sum(constant: float, coefficient: float, symbol: str) -> str:
    if not coefficient:
        return _number(constant)
    size = "" if abs(coefficient) == 1 else _number(abs(coefficient))
    sign = "-" if coefficient < 0 else ""
    if not constant:
        return f"{sign}{size}{symbol}" if not sign else f"(-{size}{symbol})"
    return f"({sign}{size}{symbol}{'+' if constant > 0 else '-'}{_number(abs(constant))})"


def _number(value: float) -> str:
    text = str(Fraction(value).limit_denominator(64))
    return f"({text})" if "/" in text else text
