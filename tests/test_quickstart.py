"""The quickstart's arithmetic and its words, whichever way the runs went."""

import math
from typing import Any

import pytest

from completedp.evidence.quickstart import LONGER, TARGET, sentence, speedup

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
