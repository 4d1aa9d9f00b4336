"""The house: rooms import only from rooms above them, and torch stays out of the front door."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import completedp

PACKAGE = Path(completedp.__file__).parent
ROOMS = ("common", "theory", "apply", "lm", "training", "studies", "evidence", "cli")
# Recipe.for_model: a name of the contract that belongs on the class and needs a model to read.
EXCEPTIONS = {("theory/recipe.py", "completedp.apply.recipes")}


def room_of(module: str) -> str | None:
    """The room of `completedp.lm.loss` is `lm`; the package itself has none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else None


def imports(source: str) -> list[str]:
    """Every module a file imports, at its top or inside a function; typing-only ones left out."""
    tree = ast.parse(source)
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def violations(file: str, source: str) -> list[str]:
    """The imports of a file that go down the list of rooms."""
    room = file.split("/")[0].removesuffix(".py")
    if room not in ROOMS:
        return []
    return [
        module
        for module in imports(source)
        if (other := room_of(module)) is not None
        and ROOMS.index(other) > ROOMS.index(room)
        and (file, module.rpartition(".")[0]) not in EXCEPTIONS
        and (file, module) not in EXCEPTIONS
    ]


def test_rooms_import_only_upwards() -> None:
    """No file imports from a room below its own, not even inside a function."""
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        file = path.relative_to(PACKAGE).as_posix()
        assert violations(file, path.read_text()) == [], file


def test_the_rooms_test_can_fail() -> None:
    """A downward import is seen, hidden in a function or not."""
    assert violations("theory/x.py", "from completedp.lm import loss") != []
    assert violations("lm/x.py", "def f():\n    import completedp.training.loop") != []
    assert violations("training/x.py", "from completedp.lm.loss import Loss") == []


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
