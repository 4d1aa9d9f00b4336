"""Write the import graph into docs/architecture.md, between its markers.

    python scripts/import_graph.py

A graph of the rooms with the number of imports between them, and a table of every file. The test of
the rooms reads the same graph: imports inside functions count, those for types alone do not.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "completedp"
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = (
    *("common", "theory", "apply", "lm", "tasks"),
    *("training", "studies", "evidence", "bench", "cli"),
)
"""From the top of the house to its bottom: a room imports only from itself and those above."""
DOOR = ("__init__.py", "__main__.py")
"""The files that are in no room: what `import completedp` and `python -m completedp` open."""
BEGIN, END = "<!-- graph: begin (make docs) -->", "<!-- graph: end -->"

Graph = dict[str, list[str]]
"""For every file of the package the files that it imports, as paths within the package."""


def room_of(file: str) -> str | None:
    """The room of lm/loss.py is lm; the front door has none."""
    room, _, rest = file.partition("/")
    return room if rest and room in ROOMS else None


def modules_imported(file: str, source: str) -> list[str]:
    """Dotted names that a file of the package imports; `from a import b` gives a.b.

    Those inside functions count, as they can fail as others do; those for types alone do not.
    """
    tree = ast.parse(source)
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for child in block.body
        for node in ast.walk(child)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = ["completedp", *file.split("/")[:-1]]
            above = parents[: len(parents) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def graph_of(sources: dict[str, str]) -> Graph:
    """The graph of files given by path and text."""

    def file_of(module: str) -> str | None:
        """The file that a name is in: of a.b.c that of a.b.c, else that of a.b."""
        parts = module.split(".")
        if parts[0] != "completedp":
            return None
        for inner in (parts[1:], parts[1:-1]):
            path = "/".join(inner)
            for file in (f"{path}.py", f"{path}/__init__.py".lstrip("/")):
                if file in sources:
                    return file
        return None

    return {
        file: sorted(
            {found for name in modules_imported(file, source) if (found := file_of(name))} - {file}
        )
        for file, source in sorted(sources.items())
    }


def package_sources() -> dict[str, str]:
    """Every file of the package by its path within."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of files that import each other, directly or around: Tarjan's components."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        order[file] = lowest[file] = len(order)
        waiting.append(file)
        for other in graph.get(file, []):
            if other not in order:
                visit(other)
            if other in waiting:
                lowest[file] = min(lowest[file], lowest[other])
        if lowest[file] == order[file]:
            at = waiting.index(file)
            group = sorted(waiting[at:])
            del waiting[at:]
            if len(group) > 1:
                found.append(group)

    for file in graph:
        if file not in order:
            visit(file)
    return sorted(found)


def downward(graph: Graph) -> list[tuple[str, str]]:
    """Imports from a room that is below one's own."""
    return [
        (file, other)
        for file, others in graph.items()
        for other in others
        if (room := room_of(file)) and (its := room_of(other))
        if ROOMS.index(its) > ROOMS.index(room)
    ]


def first_sentence(source: str) -> str:
    """Of the file's docstring."""
    words = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    return re.split(r"(?<=[.?])\s", words)[0].rstrip(".:")


def as_markdown(sources: dict[str, str]) -> str:
    """The rooms as a mermaid graph, and every file in a table."""
    graph = graph_of(sources)
    edges = Counter(
        (room_of(file), room_of(other)) for file, others in graph.items() for other in others
    )
    lines = ["```mermaid", "graph BT"]
    for room, other in product(ROOMS, ROOMS):
        if room != other and (count := edges[room, other]):
            lines.append(f"  {room} -->|{count}| {other}")
    lines.append("```")
    for room in (None, *ROOMS):
        lines += ["", f"### {room or 'The front door'}", ""]
        lines += ["| file | what it is | imports |", "| --- | --- | --- |"]
        for file, others in graph.items():
            if room_of(file) == room and sources[file].strip():
                name = file.removeprefix(f"{room}/")
                listed = ", ".join(
                    other.removesuffix(".py").removeprefix(f"{room}/") for other in others
                )
                sentence = first_sentence(sources[file]).replace("|", "\\|")
                lines.append(f"| `{name}` | {sentence} | {listed} |")
    return "\n".join(lines)


def with_graph(page: str, sources: dict[str, str]) -> str:
    """The page with what is between its markers made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{as_markdown(sources)}\n{END}{after}"


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_graph(page, package_sources()), encoding="utf-8")


if __name__ == "__main__":
    main()
