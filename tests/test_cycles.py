"""Files of the theory and of plans import one another in one direction only."""

import ast
from pathlib import Path

import completedp

PACKAGE = Path(completedp.__file__).parent
ROOMS = ("theory", "apply")
# Recipe.for_model: a name of the contract that belongs on the class and needs a model to read.
# And str(recipe), which is its page: that is made of what follows from a recipe.
EXCEPTIONS = {
    ("completedp.theory.recipe", "completedp.apply.recipes"),
    ("completedp.theory.recipe", "completedp.theory.recipe_page"),
}


def imported(source: str, files: set[str]) -> set[str]:
    """The files that a source imports, for typing only and inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & files


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Files that import one another in a circle; nothing where there is none."""
    left = dict(graph)
    while leaves := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in leaves:
            del left[name]
    return sorted(left)


def test_no_cycles_between_files() -> None:
    """No file needs a file that needs it, not even for typing."""
    paths = {
        f"completedp.{room}.{path.stem}": path
        for room in ROOMS
        for path in (PACKAGE / room).glob("*.py")
    }
    graph = {
        name: {
            other
            for other in imported(path.read_text(), set(paths))
            if (name, other) not in EXCEPTIONS
        }
        for name, path in paths.items()
    }
    assert len(graph) > 25
    assert cycle_in(graph) == []


def test_the_cycle_test_can_fail() -> None:
    """A circle is seen, hidden behind TYPE_CHECKING or in a function."""
    files = {"completedp.apply.a", "completedp.apply.b"}
    typing_only = "if TYPE_CHECKING:\n    from completedp.apply.b import B"
    in_function = "def f():\n    from completedp.apply import a"
    graph = {
        "completedp.apply.a": imported(typing_only, files),
        "completedp.apply.b": imported(in_function, files),
    }
    assert cycle_in(graph) == sorted(files)
