"""The pages: every one is in the site, every link leads somewhere, every command can be parsed."""

import re
import shlex
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import yaml
from example_files import shown, with_files
from site_hooks import home, outside_links

from completedp.cli.main import _parse
from completedp.studies.engines import Bounds
from completedp.studies.evolution import AsyncCMAES
from completedp.studies.sites import STARTS, SeveralSites
from completedp.studies.staged import Staged
from completedp.studies.trust_region import Recombine, TrustRegion
from completedp.theory.horizon import critical_batch_words

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
PLACEHOLDER = re.compile(r"\.\.\.|\bPATHS\b|\bA B\b|\"\$@\"")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """A heading's anchor, as the site and code hosts make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text).strip())


def anchors(path: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    """Every file that a page links to is there, with the heading that the link names."""
    path = ROOT / name
    for target, heading in LINK.findall(prose(path)):
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), f"{name}: {target}"
        if heading and found.suffix == ".md":
            assert heading[1:] in anchors(found), f"{name}: {target}{heading}"


def test_the_site_has_every_page() -> None:
    """The navigation of mkdocs.yml lists each page of docs/ once, and the README as its home."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            listed.append(entry)
        elif isinstance(entry, dict):
            for value in entry.values():
                walk(value)
        elif isinstance(entry, list):
            for value in entry:
                walk(value)

    walk(config["nav"])
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(["index.md", *there])


def test_the_site_has_every_example() -> None:
    """Each script of examples/ is shown on a page, as it is: mend it with `make docs`."""
    listed: list[str] = []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        assert with_files(page) == page, path
        listed += shown(page)
    there = [path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sbatch")]
    assert sorted(listed) == sorted(path.relative_to(ROOT).as_posix() for path in there)
    assert len(listed) > 5


def test_an_example_that_changed_is_seen() -> None:
    """What is between the markers is what the file has."""
    old = "<!-- file: examples/search.sbatch (make docs) -->\nold\n<!-- file: end -->"
    assert "old" not in with_files(old)
    assert (ROOT / "examples" / "search.sbatch").read_text().strip() in with_files(old)


def test_the_site_needs_no_network() -> None:
    """No font, script or style of the site comes from elsewhere."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["theme"]["font"] is False
    assert config["plugins"] == ["search"]
    assert not {"extra_javascript", "extra_css"} & set(config)


def test_links_that_leave_the_site() -> None:
    """They become links to the repository, or text where the site knows none; others stay."""
    page = "See [the loop](../examples/plain_loop.py), [any](models.md#a) and [x](https://a.b)."
    assert outside_links(page, "data.md", "https://host/r") == (
        "See [the loop](https://host/r/blob/main/examples/plain_loop.py), [any](models.md#a) "
        "and [x](https://a.b)."
    )
    assert "the loop (`examples/plain_loop.py`), [any]" in outside_links(page, "data.md")
    assert outside_links("[m](../models.md)", "results/a.md") == "[m](../models.md)"
    assert outside_links("[all](results/)", "results.md") == "all"
    assert home("![p](docs/width.svg)") == "![p](width.svg)"


def commands(path: Path) -> list[str]:
    """The `completedp` command lines of a page, continued lines joined."""
    found: list[str] = []
    for language, block in FENCE.findall(path.read_text(encoding="utf-8")):
        if language == "text":  # what was printed
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*(\$ |srun |[A-Z_]+=\S+ )*", "", line).split(" #")[0]
            if line.startswith("torchrun "):
                line = line.partition("-m ")[2]
            if line.startswith("completedp ") and not PLACEHOLDER.search(line):
                found.append(line.rstrip(" &"))
    if path.name == "cli.md":
        rows = re.findall(r"^\| `(completedp [^`]+)`", prose(path), re.MULTILINE)
        found += [row for row in rows if not PLACEHOLDER.search(row)]
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if commands(ROOT / name)])
def test_commands_can_be_parsed(name: str) -> None:
    """What a page tells the reader to type is a command with options that there are."""
    for command in commands(ROOT / name):
        try:
            _parse(shlex.split(command)[1:])
        except SystemExit as stop:
            pytest.fail(f"{name}: {command}: {stop}")


def test_a_wrong_command_is_seen() -> None:
    """An option that there is not ends the parse."""
    with pytest.raises(SystemExit):
        _parse(["plan", "--no-such-option"])


def test_pictures_are_used() -> None:
    """Every picture in docs/ is on some page."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    for picture in DOCS.rglob("*.svg"):
        assert PurePosixPath(picture.name).name in text, picture.name


def test_words_that_commands_print_are_explained() -> None:
    """What an engine says of itself, a plan's r and a run's lr are in the concepts' table."""
    page = (DOCS / "concepts.md").read_text(encoding="utf-8")
    words = page.partition("## Words that commands print")[2].partition("\n## ")[0]
    bounds = Bounds(low=np.zeros(2), high=np.ones(2), start=np.zeros(2))
    pytest.importorskip("cmaes")
    sites = SeveralSites(Recombine(bounds, 0), 1)
    for number in range(STARTS):
        sites.tell(number, bounds.start, 3.0)
    names = ("lr/global", "lr/type/qkv")
    staged = Staged(bounds, 0, coordinates=names, first=8, make=Recombine)
    for engine in (
        Recombine(bounds, 0),
        TrustRegion(bounds, 0),
        AsyncCMAES(bounds, 0),
        sites,
        staged,
    ):
        for key in engine.describe().keys() - {"best_loss", "told", "diverged"}:
            assert re.search(rf"`engine: [^`]*\b{key} ", words)
    for printed in ("`r 0.25`", "`lr ", critical_batch_words(218_460, 225_237)):
        assert printed in words
