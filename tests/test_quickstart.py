"""The quickstart's arithmetic and its words, whichever way the runs went."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from completedp.evidence import quickstart as module
from completedp.evidence.quickstart import (
    LONGER,
    SMOOTHED_OVER,
    TARGET,
    quickstart,
    sentence,
    smoothed,
    speedup,
)
from completedp.studies.config import WorkerConfig
from completedp.training.trials import Outcome

RATIO = LONGER.tokens / TARGET.tokens


def runs(modules: float | None, short: float | None, long: float | None) -> dict[str, Any]:
    """Validation losses per module, global, and global for longer."""
    found = {"per module": modules, "global": short, "global, longer": long}
    return {name: {"valid": [loss, loss]} for name, loss in found.items()}


def test_the_tokens_needed() -> None:
    """No gain needs no more tokens, the longer run's gain its tokens, twice that their square."""
    assert speedup(runs(2.0, 2.0, 1.9)) == pytest.approx(1.0)
    assert speedup(runs(1.9, 2.0, 1.9)) == pytest.approx(RATIO)
    assert speedup(runs(1.8, 2.0, 1.9)) == pytest.approx(RATIO**2)
    assert speedup(runs(1.95, 2.0, 1.9)) == pytest.approx(math.sqrt(RATIO))


def test_no_number_where_there_is_none() -> None:
    """A run that diverged, or longer training that does not help, gives no speed-up."""
    assert speedup(runs(1.9, 2.0, 2.0)) is None
    assert speedup(runs(None, 2.0, 1.9)) is None
    assert speedup(runs(1.9, None, 1.9)) is None


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((1.95, 2.0, 1.9), f"would need {math.sqrt(RATIO):.2f} times the tokens"),
        ((1.5, 2.0, 1.9), f"over {RATIO**2:.1f} times the tokens"),
        ((2.1, 2.0, 1.9), "did not help"),
        ((None, 2.0, 1.9), "did not help"),
        ((1.9, None, 1.9), "the global values diverge"),
        ((1.9, 2.0, 2.1), "did not bring the global ones any nearer"),
    ],
)
def test_it_says_what_happened(losses: tuple[float | None, ...], said: str) -> None:
    """Gains, losses and divergence are each said as what they are."""
    assert said in sentence(runs(*losses))


def test_a_diverged_seed_ends_the_mean_curve() -> None:
    """Curves of different lengths are drawn as far as all go; too short ones are no curve."""
    assert smoothed([[1.0] * 30, [3.0] * 20]) == pytest.approx([2.0] * (20 - SMOOTHED_OVER + 1))
    assert smoothed([[1.0] * 30, []]) == []


@pytest.mark.parametrize("diverges", [False, True])
def test_the_whole_way_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diverges: bool
) -> None:
    """It searches, carries on, trains and reports, also where a seed diverges; again it resumes."""
    base = replace(module.BASE, width=32, depth=1, batch=128, tokens=128 * 20)
    target = replace(base, width=64, depth=2, batch=256, tokens=2 * base.tokens)
    monkeypatch.setattr(module, "BASE", base)
    monkeypatch.setattr(module, "TARGET", target)
    monkeypatch.setattr(module, "LONGER", replace(target, tokens=target.tokens * 3 // 2))
    monkeypatch.setattr(module, "TRIALS", {"global": 3, "kronecker": 3})
    monkeypatch.setattr(module, "OPTIONS", WorkerConfig(device="cpu", compile=False))

    class Runner(module.Runner):
        """The runner; when asked to, what is run for longer diverges with the first seed."""

        def run(self, *arguments: Any, **options: Any) -> Iterator[Outcome[Any]]:
            for outcome in super().run(*arguments, **options):
                wild = diverges and "longer" in outcome.key and outcome.trial.seed == 0
                short: Any = {"valid_loss": None, "losses": outcome.losses[:12]}
                yield replace(outcome, **short) if wild else outcome

    monkeypatch.setattr(module, "Runner", Runner)
    found = quickstart(tmp_path)
    assert "At the target" in found["sentence"]
    assert found["target"]["global, longer"]["valid"].count(None) == diverges
    assert (tmp_path / "report.html").read_text().count("<svg") == 2
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert quickstart(tmp_path) == found
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == before
