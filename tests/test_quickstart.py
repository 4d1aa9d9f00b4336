"""The quickstart's words, whichever way the runs went, and the whole of it in small."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from completedp.evidence import quickstart as module
from completedp.evidence.figures.headline import FIGURE, GLOBAL, MODULE, UNTUNED
from completedp.evidence.quickstart import STORY, quickstart, sentence
from completedp.studies.config import WorkerConfig


def numbers(
    modules: float | None,
    tuned: float | None = 2.0,
    value: Any = 1.2,
    low: Any = 1.1,
    high: Any = 1.3,
) -> dict[str, Any]:
    """What a story found."""
    over = {"speedup": value, "low": low, "high": high}
    means = {MODULE: modules, GLOBAL: tuned, UNTUNED: 2.5}
    return {"scales": [{"means": means, "speedup_over_global": over, "speedup_over_untuned": over}]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (numbers(1.9), "global ones 1.20 (1.10 to 1.30) times; brackets have what"),
        (numbers(1.9), "untuned ones would need 1.20 (1.10 to 1.30) times the tokens"),
        (numbers(1.9, high=None), "1.20 (1.10 or more) times"),
        (numbers(1.9, low=None, high=None), "global ones 1.20 times"),
        (numbers(1.9, value=None), "no speed-up can be told"),
        (numbers(2.1, value=0.9), "per-module values do not beat global ones"),
        (numbers(None), "diverged with per-module values"),
        (numbers(1.9, None), "diverged with global values"),
    ],
)
def test_it_says_what_happened(found: dict[str, Any], said: str) -> None:
    """Gains, losses and divergence are each said as what they are."""
    assert said in sentence(found)


def test_all_four_axes_grow() -> None:
    """The target is larger than the base in width, depth, batch and tokens."""
    ratios = STORY.scales[-1]
    assert min(ratios.width, ratios.depth, ratios.batch, ratios.tokens) > 1


def test_the_whole_way_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It searches, climbs, carries on, trains and reports; again, it trains nothing."""
    tiny = replace(FIGURE.sizes["tiny"], arms=STORY.arms, around=(), shared=4, trials=4)
    monkeypatch.setattr(module, "STORY", tiny)
    monkeypatch.setattr(module, "OPTIONS", WorkerConfig(device="cpu", compile=False))
    found = quickstart(tmp_path)
    assert "t the target" in found["sentence"]
    assert (tmp_path / "report.html").read_text().count("<svg") > 2
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert quickstart(tmp_path) == found
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == before
