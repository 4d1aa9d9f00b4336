"""Write docs/api.md from the package's public names and their docstrings.

python scripts/api_page.py
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

import completedp

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
TOPICS = {
    "Plan": ("plan", "Plan", "classify", "attach_schedule", "load_optimizer_state", "AdamW"),
    "Scales and recipes": ("Scale", "Ratios", "Recipe", "Evidence", "Hyperparameters", "Values"),
    "Rules": ("factors", "Factors", "Rules", "Shift", "Role", "Transfer", "Value", "Schedule"),
    "Search, train, check": (
        *("search", "train", "load_weights", "sweep", "fit_horizon", "coordcheck", "gradcheck"),
    ),
    "The reference model": ("ModelConfig", "Transformer"),
    "Errors and warnings": ("CompletedpError", "ScaleWarning", "DataWarning", "ModelWarning"),
}
NOT_MADE_BY_USERS = ("Plan",)
HEAD = """# API

The public names of `completedp`, from their docstrings (`make docs` writes this page). Import the
package as `import completedp as cdp`: that takes no torch, which is imported with the first name
that needs it. A class that only a function gives back is listed after the function.

Every example runs in the tests, in a folder that has tokens: `completedp data stdlib --out tokens`.
"""


def as_markdown() -> str:
    """The page."""
    parts = [HEAD]
    shown = {getattr(completedp, name) for names in TOPICS.values() for name in names}
    for topic, names in TOPICS.items():
        parts.append(f"## {topic}\n")
        for name in names:
            thing = getattr(completedp, name)
            parts.append(entry(name, thing))
            if (made := returned(thing)) is not None and made not in shown:
                shown.add(made)
                parts.append(entry(made.__name__, made))
    return "\n".join(parts).rstrip() + "\n"


def returned(thing: Any) -> type | None:
    """The class of the package that a function gives back, which users do not make themselves."""
    if not inspect.isfunction(thing):
        return None
    name = str(thing.__annotations__.get("return"))
    made = inspect.unwrap(thing).__globals__.get(name)
    return made if inspect.isclass(made) and made.__module__.startswith("completedp") else None


def entry(name: str, thing: Any) -> str:
    """One name: how it is called, what it says of itself, and what it has."""
    if not inspect.isclass(thing):
        return f"### `{name}()`\n\n{_signature(name, thing)}\n\n{_prose(thing)}\n"
    lines = [f"### class `{name}`\n"]
    if (
        hasattr(completedp, name)
        and name not in NOT_MADE_BY_USERS
        and not issubclass(thing, Enum | Exception)
    ):
        lines.append(f"{_signature(name, thing)}\n")
    lines.append(f"{_prose(thing)}\n")
    if members := _fields(thing) + _members(thing):
        lines += ["| | |", "| --- | --- |", *members, ""]
    return "\n".join(lines)


def _signature(name: str, thing: Any) -> str:
    """The call as code, a line for each argument where one line is too short."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return ""
    arguments = [_argument(each) for each in found.parameters.values()]
    names = list(found.parameters.values())
    for place, each in enumerate(names):
        if each.kind is each.KEYWORD_ONLY and (
            place == 0 or names[place - 1].kind is not each.KEYWORD_ONLY
        ):
            arguments.insert(place, "*")
            break
    returns = found.return_annotation
    end = (
        ")"
        if returns in (found.empty, None, "None") or inspect.isclass(thing)
        else (f") -> {_type(returns)}")
    )
    line = f"{name}({', '.join(arguments)}{end}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + end
    return f"```python\n{line}\n```"


def _argument(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    text = f"{stars}{each.name}"
    if each.annotation is not each.empty:
        text += f": {_type(each.annotation)}"
    if each.default is each.empty:
        return text
    default = (
        "..."
        if "object at 0x" in repr(each.default) or "factory" in repr(each.default)
        else repr(each.default)
    )
    return f"{text} = {default}" if ": " in text else f"{text}={default}"


def _type(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation.strip("'\"")
    return getattr(annotation, "__name__", None) or str(annotation)


def _prose(thing: Any) -> str:
    """A docstring as Markdown: examples become blocks of code."""
    lines: list[str] = []
    inside = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def _fields(thing: type) -> list[str]:
    """Rows of a class's fields with the strings below them, its parents' first."""
    rows: dict[str, str] = {}
    if issubclass(thing, Enum):
        values = (f"`{member.value}`" for member in thing)
        return [f"| values | {', '.join(values)} |"]
    for parent in reversed(thing.__mro__):
        if parent.__module__.startswith("completedp"):
            rows |= _class_fields(parent)
    return [f"| `{name}` | {text} |" for name, text in rows.items()]


def _class_fields(thing: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = _cell(str(following.value.value))
        if text and not statement.target.id.startswith("_"):
            found[statement.target.id] = text
    return found


def _members(thing: type) -> list[str]:
    """Rows of the public methods and properties that have something to say."""
    rows: list[str] = []
    for name, member in _own(thing).items():
        if name.startswith("_"):
            continue
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        call = name
        if not isinstance(member, property):
            arguments = [
                _argument(each.replace(annotation=each.empty))
                for each in inspect.signature(function).parameters.values()
                if each.name not in ("self", "cls")
            ]
            call = f"{name}({', '.join(arguments)})"
        first = (inspect.getdoc(function) or "").split("\n\n")[0]
        rows.append(f"| `{call}` | {_cell(first)} |")
    return rows


def _own(thing: type) -> dict[str, Any]:
    """What a class and its parents in the package define."""
    found: dict[str, Any] = {}
    for parent in reversed(thing.__mro__):
        if parent.__module__.startswith("completedp"):
            found |= vars(parent)
    return found


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(as_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
