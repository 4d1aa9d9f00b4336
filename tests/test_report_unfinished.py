"""Reports of figures that have no verdict yet: what is done of how much, what goes on with it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from studies import make_study, planted, write_tokens
from test_report import Page, figure, run, write

from completedp.evidence.figures import tree
from completedp.evidence.figures.lab import Lab
from completedp.evidence.figures.paper import found_in_paper
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.figures.run import run_figure
from completedp.evidence.reporting.gather import gather, page_of, sentence
from completedp.evidence.reporting.part import Part
from completedp.studies import worker
from completedp.studies.config import WorkerConfig
from completedp.studies.store import Store

FOUR = WorkerConfig(slots=4, device="cpu", compile=False)
ENDED = 5
"""Trials after which a figure is interrupted."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("unfinished"))


def trained(tokens: str, out: Path, store: str | None = None) -> None:
    run_figure("lr-batch", "tiny", out=out, data=tokens, store=store, options=FOUR, quiet=True)


@pytest.fixture
def begun(tokens: str, tmp_path: Path) -> tuple[Path, str]:
    """The folder of a figure that was interrupted, and its store, which is elsewhere."""
    out, store = tmp_path / "out", str(tmp_path / "trials.db")
    finish, ended = worker._finish, []

    def interrupted(*arguments: Any) -> None:
        if len(ended) == ENDED:
            raise KeyboardInterrupt
        ended.append(finish(*arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(tokens, out, store)
    return out, store


def test_a_begun_figure_says_how_much_is_left(tokens: str, tmp_path: Path) -> None:
    """A store beside which there is no verdict is of so many trials of about as many as the figure
    takes; what it claims and what the paper found are there, and the command that goes on."""
    with Store(str(tmp_path / "lr-width-cpu.db")) as store:
        planted(make_study(store, tokens, name="sweep"), tokens, [3.0])
    (part,) = gather([str(tmp_path)])
    of = FIGURES["lr-width"]
    assert (part.title, part.verdict) == ("lr-width", "not finished")
    assert part.found == f"1 of about {of.cost('cpu').trials} trials"
    assert part.says.startswith(f"{of.claim}.")
    assert (part.source, part.paper) == (of.paper, found_in_paper("lr-width"))
    assert part.command == f"completedp figure lr-width --size cpu --out {tmp_path}"
    assert sentence([part]) == f"lr-width is not finished: {part.found}. To go on: {part.command}"
    assert f"{of.cost('cpu').trials} trials, " in Page(page_of([part], "x").html()).text
    figure(tmp_path, "pass")
    assert [part.verdict for part in gather([str(tmp_path)])] == ["pass"]


def test_a_tree_of_schedules_counts_its_intervals(tokens: str, tmp_path: Path) -> None:
    """Annealing, which has no trials in its study, says how many nodes of its tree are noted."""

    def found() -> str:
        (part,) = gather([str(tmp_path)])
        assert (part.title, part.verdict) == ("annealing", "not finished")
        return part.found

    with Store(str(tmp_path / "annealing-tiny.db")) as store:
        lab = Lab("annealing", "tiny", store, data=tokens, options=FOUR, quiet=True)
        grown = tree.Tree(lab, FIGURES["annealing"].sizes["tiny"])
        assert found() == "0 of 14 intervals"
        grown.grown()
    assert found() == "14 of 14 intervals"


def test_a_verdict_is_of_its_size_alone(tokens: str, tmp_path: Path) -> None:
    """A store of another size than the verdict beside it is not taken for the verdict's own, and
    it is said that going on writes over that."""
    path = figure(tmp_path, "pass", name="base-size")
    write(path, json.loads(path.read_text()) | {"size": "gpu"})
    with Store(str(tmp_path / "base-size-cpu.db")) as store:
        planted(make_study(store, tokens, name="sweep"), tokens, [3.0])
    judged, begun = gather([str(tmp_path)])
    assert [judged.verdict, begun.verdict] == ["pass", "not finished"]
    assert "at size cpu" in begun.says
    assert "base-size.json beside it is of another size" in begun.says
    (tmp_path / "base-size-cpu.db").rename(tmp_path / "base-size-gpu.db")
    assert [part.verdict for part in gather([str(tmp_path)])] == ["pass"]


def test_a_store_elsewhere_says_what_it_is_of(begun: tuple[Path, str], tokens: str) -> None:
    """The store and the folder of a figure each say which figure, and together they are one part;
    when it has its verdict the store is nothing more to finish."""
    out, store = begun

    def of(*paths: Any) -> list[Part]:
        return gather(list(map(str, paths)))

    (part,) = of(store)
    assert (part.title, part.verdict) == ("lr-batch", "not finished")
    assert re.fullmatch(rf"{ENDED} of about \d\d trials", part.found)
    assert f"--store {store}" in str(part.command)
    (folder,) = of(out)
    assert (folder.title, folder.verdict) == ("lr-batch", "not finished")
    assert "in a store elsewhere" in folder.says
    assert folder.command == f"completedp figure lr-batch --size tiny --store STORE --out {out}"
    for both in (of(out, store), of(store, out)):
        assert [each.found for each in both] == [part.found]
    trained(tokens, out, store)
    (whole,) = of(store)
    assert (whole.title, whole.verdict) == ("lr-batch", "measured")
    (verdict,) = of(store, out)
    assert verdict.outcomes


def test_several_that_are_not_finished_are_named(begun: tuple[Path, str], tmp_path: Path) -> None:
    """Where nothing is judged the page begins with how far each is that was begun."""
    said = sentence(gather([begun[1], str(run(tmp_path / "a", status=None))]))
    assert said.startswith(f"2 are not finished: lr-batch ({ENDED} of about ")
    assert said.endswith(" trials), training run a (step 19 of 20).")
