"""The house: rooms import only upwards, no files in a circle, and torch stays out of the door."""

import re
import subprocess
import sys

import pytest
from import_graph import (
    DOOR,
    PAGE,
    ROOMS,
    Graph,
    cycles,
    downward,
    graph_of,
    package_sources,
    room_of,
    with_graph,
)

import completedp

SOURCES = package_sources()
EXCEPTIONS = {
    # Recipe.for_model: a name of the contract that belongs on the class and needs a model to read.
    ("theory/recipe.py", "apply/recipes.py"),
    # str(recipe) is its page, which is made of what follows from a recipe.
    ("theory/recipe.py", "theory/recipe_page.py"),
}


def without_exceptions(graph: Graph) -> Graph:
    return {
        file: [other for other in others if (file, other) not in EXCEPTIONS]
        for file, others in graph.items()
    }


GRAPH = without_exceptions(graph_of(SOURCES))


def test_every_file_is_in_a_room() -> None:
    """But for the front door, every file of the package is in one of the rooms."""
    assert len(SOURCES) > 20
    assert [file for file in SOURCES if room_of(file) is None] == list(DOOR)
    assert {room_of(file) for file in SOURCES} == {None, *ROOMS}


def test_rooms_import_only_upwards() -> None:
    """No file imports from a room below its own, not even inside a function."""
    assert downward(GRAPH) == []


def test_no_files_import_each_other() -> None:
    """There is an order in which every file comes after those it imports."""
    assert cycles(GRAPH) == []


def test_exceptions_are_needed() -> None:
    """What is excepted is still there: an exception that nothing needs is deleted."""
    graph = graph_of(SOURCES)
    assert all(other in graph[file] for file, other in EXCEPTIONS)


HOUSE = {
    "__init__.py": "",
    "theory/x.py": "",
    "lm/__init__.py": "",
    "lm/y.py": "from completedp.theory.x import name",
    "training/z.py": "import completedp.lm.y",
}


@pytest.mark.parametrize(
    "source",
    [
        "from completedp.lm import y",
        "from completedp.lm.y import name",
        "def f():\n    import completedp.lm.y",
        "from ..lm import y",
        "from ..lm.y import name",
        "class A:\n    def f(self):\n        from completedp.lm.y import name",
    ],
)
def test_a_bad_import_is_seen(source: str) -> None:
    """A downward import that also closes a circle is found, hidden in a function or not."""
    assert (downward(graph_of(HOUSE)), cycles(graph_of(HOUSE))) == ([], [])
    graph = graph_of({**HOUSE, "theory/x.py": source})
    assert downward(graph) == [("theory/x.py", "lm/y.py")]
    assert cycles(graph) == [["lm/y.py", "theory/x.py"]]


def test_a_circle_of_three_is_seen() -> None:
    """A circle around several files of one room is found, and only its files are named."""
    graph = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"], "e": ["f"], "f": []}
    assert cycles(graph) == [["a", "b", "c"]]


def test_imports_for_types_alone_do_not_count() -> None:
    """They are never run; what stands in their `else` is."""
    guarded = "if TYPE_CHECKING:\n    from completedp.lm.y import name\n"
    assert cycles(graph_of({**HOUSE, "theory/x.py": guarded})) == []
    otherwise = f"{guarded}else:\n    from completedp.lm.y import name\n"
    assert cycles(graph_of({**HOUSE, "theory/x.py": otherwise})) != []


def test_the_page_shows_the_graph() -> None:
    """docs/architecture.md has the graph that there is: mend it with `make docs`."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_graph(page, SOURCES)
    assert page != with_graph(page, {**SOURCES, "theory/new.py": "'''New.'''"})


def test_the_page_names_files_that_are_there() -> None:
    """Its walks lead through files of the package."""
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{'|'.join(ROOMS)})/\w+\.py)`", page))
    assert len(named) > 15
    assert named <= SOURCES.keys()


def torch_imported_by(code: str) -> bool:
    """Whether running the code in a fresh interpreter imports torch."""
    probe = f"{code}\nimport sys\nprint('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().endswith("True")


HELP = """
import sys; sys.argv = {}
from completedp.cli import main
try: main()
except SystemExit: pass
"""


@pytest.mark.parametrize(
    "code",
    [
        "import completedp; completedp.factors('hidden_weight', completedp.Ratios(width=4))",
        "import completedp; completedp.Recipe.default()",
        "import completedp.cli",
        HELP.format(["completedp", "--help"]),
        HELP.format(["completedp", "train", "--help"]),
    ],
)
def test_torch_is_not_imported(code: str) -> None:
    """Importing the package, reading recipes and printing help do not import torch."""
    assert not torch_imported_by(code)


def test_the_torch_test_can_fail() -> None:
    """A name that needs torch imports it when it is first used."""
    assert torch_imported_by("import completedp; completedp.plan")


def test_every_public_name_resolves() -> None:
    """What `dir` shows can be had."""
    for name in dir(completedp):
        assert getattr(completedp, name) is not None or name.startswith("__")
