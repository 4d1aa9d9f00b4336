"""A recipe for people: its values, rules and evidence as text, and what differs between two."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from completedp.common.checks import is_finite, printable
from completedp.common.files import json_text, plain
from completedp.theory.evidence import Evidence, Rung
from completedp.theory.horizon import CRITICAL_BATCH, critical_batch, critical_batch_words
from completedp.theory.hparams import tunables_of
from completedp.theory.recipe import Recipe
from completedp.theory.roles import BRANCHES, MODULE_TYPES
from completedp.theory.rules import Rules
from completedp.theory.schedule import Schedule
from completedp.theory.timescale import base_timescales, matrix_range
from completedp.theory.trust import shown_ranges

WIDTH = 80
"""Columns that a page keeps to."""
_NOWHERE = "nowhere"
_FEW = 12
"""Multipliers of two recipes that are told one by one where they differ."""
_RULES = ("parameterisation", "alpha", "axes", "token_exponent", "beta_rule")
"""Those of a recipe's rules that are always told."""
_COLUMNS = {
    "lr": "lr",
    "weight_decay": "decay",
    "eps": "eps",
    "one_minus_beta1": "1-beta1",
    "one_minus_beta2": "1-beta2",
    "init_std": "init",
    "residual": "residual",
}
_PLACES = ("every tensor", *MODULE_TYPES, *BRANCHES)


def recipe_page(name: str, recipe: Recipe) -> str:
    """Everything of a recipe that a person asks for."""
    base = recipe.base
    head_dim = "" if recipe.head_dim is None else f", heads of {recipe.head_dim}"
    lines = [name, *_item("base", f"{base}: {base.steps:,} steps{head_dim}")]
    values = (f"{name} {value:.6g}" for name, value in vars(recipe.values).items())
    lines += _item("values", ", ".join(values))
    lines += _item("tau", f"{_tau(matrix_range(base_timescales(recipe)))} at base")
    lines += _item("rules", _settings(recipe.rules, Rules(), _RULES))
    lines += _item("schedule", _settings(recipe.schedule, Schedule(), _has(recipe.schedule)))
    if recipe.no_decay:
        lines += _item("no decay", ", ".join(recipe.no_decay))
    if (batch := critical_batch(recipe)) is not None:
        error = recipe.provenance.get(f"{CRITICAL_BATCH}_error")
        known = float(error) if is_finite(error) else None
        lines += _item("noise", critical_batch_words(batch, known))
    for key, text in recipe.provenance.items():
        if not key.startswith(CRITICAL_BATCH):
            lines += _item("from", f"{key}: {text}")
    lines += ["", *_multipliers(recipe), "", *_evidence(recipe)]
    return printable("\n".join(lines))  # words of a file, on somebody's terminal


def recipe_line(recipe: Recipe) -> str:
    """A recipe in one line: a digest of all that its file has, then what tells most of it."""
    contents = json_text(recipe.to_dict()).encode()
    digest = hashlib.blake2b(contents, digest_size=4).hexdigest()
    return (
        f"{digest}: {recipe.base}; lr {recipe.values.lr:.6g}, {_tuned(recipe)} multipliers; "
        f"checked {_checked(recipe)}"
    )


def compare_page(names: Sequence[str], recipes: Sequence[Recipe]) -> str:
    """What differs between two recipes: a row for each thing, but many multipliers are a table of
    how many times the first's the second's are. Words on where they are from do not count. How far
    both were checked is told where it is the same, too: it is what a reader looks for."""
    (one, two), rows, multipliers = recipes, [], {}
    for key, (a, b) in differences(one, two).items():
        section, _, rest = key.partition(".")
        if section == "log2_multipliers":
            multipliers[rest] = a, b
        elif section == "widths" and a and b and a * two.base.width == b * one.base.width:
            continue  # a base of another width
        elif section not in ("schema", "provenance", "evidence"):
            rows.append((rest or key, _short(a), _short(b)))
    known = [_facts(recipe) for recipe in recipes]
    rows += [(key, text, known[1][key]) for key, text in known[0].items() if text != known[1][key]]
    table, same = [], []
    if known[0]["checked"] == known[1]["checked"] != _NOWHERE:
        same = textwrap.wrap(
            f"both were checked {known[0]['checked']}", WIDTH, subsequent_indent="  "
        )
    if len(multipliers) <= _FEW:
        rows = [(key, *(f"x{2.0**x:.4g}" for x in ab)) for key, ab in multipliers.items()] + rows
    else:
        table = [f"multipliers of {names[1]}, in those of {names[0]}:"]
        table += _grid({key: b - a for key, (a, b) in multipliers.items()}, recipes)
    if not rows and not table:
        return "\n".join([f"{names[0]} and {names[1]} do not differ", *same])
    head = [*(_three_columns(("", *names), rows) if rows else []), *same]
    return "\n".join([*head, *([""] if head and table else []), *table])


def _three_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned rows; a cell too long for its column goes on below."""
    first = max(len(row[0]) for row in rows)
    left = min(max(len(row[1]) for row in (head, *rows)), (WIDTH - first - 4) // 2)
    widths = first, left, WIDTH - first - left - 4
    lines = []
    for row in (head, *rows):
        cells = [
            textwrap.wrap(cell, max(width, 8)) for cell, width in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return lines


def _facts(recipe: Recipe) -> dict[str, str]:
    """What follows from a recipe, and what is known of it."""
    evidence = recipe.evidence or Evidence()
    ratio = evidence.tokens_per_parameter
    return {
        "tau": _tau(matrix_range(base_timescales(recipe))),
        "checked": _checked(recipe),
        "trials": f"{evidence.trials:,}",
        "tokens a parameter": "-" if ratio is None else f"{ratio:.3g}",
        "text": evidence.text or "-",
    }


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """By key of their files: what two recipes have that is not the same; absent is None.

    An absent multiplier is 0 in log2, which is the same as one that is 0.
    """
    left, right = (_flat(recipe.to_dict()) for recipe in (one, other))
    found = {}
    for key in dict.fromkeys((*left, *right)):
        absent = 0.0 if key.startswith("log2_multipliers.") else None
        both = left.get(key, absent), right.get(key, absent)
        if both[0] != both[1]:
            found[key] = both
    return found


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe's file with what follows from it: tau by module type, how far it was checked."""
    ranges = recipe.evidence.ranges(recipe.base) if recipe.evidence else {}
    return {
        **recipe.to_dict(),
        "tau": plain(base_timescales(recipe)),
        "checked": {axis: list(ends) for axis, ends in ranges.items()},
    }


def summary(name: str, recipe: Recipe) -> dict[str, Any]:
    """A line of the list of recipes."""
    evidence = recipe.evidence or Evidence()
    last = next((rung.of(evidence.chosen or "") for rung in reversed(evidence.trained)), None)
    return {
        "name": name,
        "base": recipe.base.to_dict(),
        "multipliers": _tuned(recipe),
        "trials": evidence.trials,
        "checked": {axis: list(ends) for axis, ends in evidence.ranges(recipe.base).items()},
        "loss": None if last is None else last.mean,
    }


def _tuned(recipe: Recipe) -> int:
    """How many multipliers are not 1."""
    return sum(value != 0 for value in recipe.hyperparameters.log2.values())


def list_page(recipes: dict[str, Recipe]) -> str:
    """The recipes by name, with where each was tuned and checked."""
    lines = []
    for name, recipe in recipes.items():
        found = summary(name, recipe)
        tuned = f"{found['trials']} trials" if found["trials"] else "not tuned"
        lines.append(name)
        lines += _item("base", str(recipe.base))
        lines += _item("values", f"{found['multipliers']} multipliers; {tuned}")
        lines += _item("checked", _checked(recipe))
    return "\n".join(lines)


def _item(title: str, text: str) -> list[str]:
    """A titled paragraph."""
    indent = " " * 12
    return textwrap.wrap(f"  {title:<10}{text}", WIDTH, subsequent_indent=indent)


def _multipliers(recipe: Recipe) -> list[str]:
    """A table of the multipliers that are not 1, by module type, then by block."""
    log2 = {name: value for name, value in recipe.hyperparameters.log2.items() if value != 0}
    if not log2:
        return ["multipliers: none, every module has the values above"]
    return ["multipliers of these values:", *_grid(log2, [recipe])]


def _grid(log2: Mapping[str, float], recipes: Iterable[Recipe]) -> list[str]:
    """Factors by place and tunable, in a table."""
    rows = by_place(log2)
    tunables = tunables_of(dict.fromkeys(o for recipe in recipes for o in recipe.rules.optimizers))
    columns = [tunable for tunable in tunables if any(tunable in row for row in rows.values())]
    table = [["", *(_COLUMNS.get(tunable, tunable) for tunable in columns)]]
    for place in sorted(rows, key=rank):
        row = rows[place]
        table.append([place, *(f"x{2.0 ** row[t]:.3g}" if t in row else "" for t in columns)])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for first, *cells in table:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append(f"  {first.ljust(widths[0])} {' '.join(padded)}".rstrip())
    return lines


def by_place(log2: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Multipliers by where they hold and what they multiply."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in log2.items():
        tunable, *place = name.split("/")
        rows.setdefault(_place(place), {})[tunable] = value
    return rows


def rank(place: str) -> int:
    """Places in a table: types first, then blocks."""
    return _PLACES.index(place) if place in _PLACES else len(_PLACES)


def _place(parts: list[str]) -> str:
    """Where a multiplier holds: of coordinates' names, what follows the tunable."""
    match parts:
        case ["global"]:
            return "every tensor"
        case ["type", name]:
            return name
        case ["depth", layer]:
            return f"block {layer}"
        case ["layer", name, layer]:
            return f"{name}, block {layer}"
    raise AssertionError(parts)


def _evidence(recipe: Recipe) -> list[str]:
    evidence = recipe.evidence
    if evidence is None:
        return ["evidence: none is recorded"]
    lines = ["evidence:", *_item("checked", _checked(recipe))]
    for search in evidence.searches:
        sites = f", at {len(search.sites)} scales" if len(search.sites) > 1 else ""
        if search.digest and search.digest != evidence.digest:
            sites += f", on other data (digest {search.digest:.8})"
        lines += _item(
            "search",
            f"{search.study}: {search.trials:,} trials by {search.engine} in {search.space}, "
            f"seed {search.seed}{sites}",
        )
    data = ", ".join(filter(None, (evidence.text, evidence.digest and f"digest {evidence.digest}")))
    ratio = evidence.tokens_per_parameter
    seconds = ", ".join(f"{spent:,.0f} s on {name}" for name, spent in evidence.seconds.items())
    for title, text in (
        ("model", evidence.model),
        ("text", data),
        ("tokens", None if ratio is None else f"{ratio:.3g} a parameter at base"),
        ("tau", None if evidence.tau is None else f"{_tau(evidence.tau)} when measured"),
        ("cost", seconds),
    ):
        lines += _item(title, text) if text else []
    for rung in evidence.rungs:
        lines += _rung(rung, recipe, evidence.chosen)
    return lines


def _rung(rung: Rung, recipe: Recipe, chosen: str | None) -> list[str]:
    ratios = (rung.scale / recipe.base).to_dict()
    grown = ", ".join(f"{axis} x{ratio:.4g}" for axis, ratio in ratios.items() if ratio != 1)
    lines = _item("rung", grown or "the base")
    for standing in rung.standings:
        count = len(standing.losses)
        seeds = f", {count} seeds" if rung.seeds and count > 1 else ""
        mark = "*" if standing.candidate == chosen else " "
        lines.append(f"          {mark} {standing}  {standing.candidate}{seeds}")
    return lines


def _checked(recipe: Recipe) -> str:
    """How far a recipe was measured, in words."""
    ranges = recipe.evidence.ranges(recipe.base) if recipe.evidence else {}
    if not ranges:
        return _NOWHERE
    if all(low == high == 1 for low, high in ranges.values()):
        return "at its base alone"
    return f"to {shown_ranges(ranges)}"


def _tau(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "no matrices"
    low, high = (f"{tau:.3g}" for tau in ends)
    return f"{low if low == high else f'{low} to {high}'} run lengths"


def _settings(made: Any, usual: Any, always: Iterable[str]) -> str:
    """Settings that are always told, and those that are not the usual ones."""
    plain, default = made.to_dict(), usual.to_dict()
    told = {k: v for k, v in plain.items() if k in always or v != default.get(k)}
    return ", ".join(f"{key} {_short(value)}" for key, value in told.items())


def _has(schedule: Schedule) -> list[str]:
    """The parts that a schedule of its kind has, and a power only where it is one."""
    parts = [field.name for field in fields(Schedule)]
    return [part for part in parts if schedule.has(part) and part != "power"]


def _flat(data: Any, where: str = "") -> dict[str, Any]:
    """Leaves of nested objects by their path; a list is a leaf."""
    if not isinstance(data, dict):
        return {where: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= _flat(value, f"{where}.{key}" if where else key)
    return found


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return f"{len(value)} of them"
    if isinstance(value, list):
        return " ".join(map(_short, value)) or "none"
    return str(value)
