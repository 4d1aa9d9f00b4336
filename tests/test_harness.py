"""Downstream tasks: likelihoods against an independent reading, and the way to the harness."""

import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import error_of
from studies import OPTIONS, write_tokens
from torch import Tensor, nn

from completedp.evidence import harness
from completedp.evidence.figures import downstream
from completedp.evidence.figures.run import run_figure
from completedp.evidence.harness import Scorer, continuation_items, harness_model, judge_model
from completedp.lm.tokenizer import ByteTokenizer
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.tasks.data import make_data

TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Transformer(ModelConfig(vocab=257, width=16, depth=1, head_dim=8)).eval()


@torch.no_grad()
def one_by_one(model: nn.Module, ids: Sequence[int], own: int) -> float:
    """The log-likelihood of the last ids, each from a pass of its own over what is before it."""
    total = 0.0
    for end in range(len(ids) - own, len(ids)):
        logits: Tensor = model(torch.tensor([list(ids[:end])]))[0, -1]
        total += float(logits.double().log_softmax(-1)[ids[end]])
    return total


def test_likelihoods_of_continuations(model: nn.Module) -> None:
    """Texts of different lengths in one batch score as each does alone, the oldest cut off."""
    pairs = [("a b", " c"), ("", "word"), ("long " * 9, "and on"), ("ends in a space ", "x")]
    scores = Scorer(model, TOKENIZER, 24).after(pairs)
    for (context, continuation), (score, _) in zip(pairs, scores, strict=True):
        ids = [256, *TOKENIZER.encode(context + continuation).tolist()][-25:]
        own = len(continuation) + len(context) - len(context.rstrip())
        assert score == pytest.approx(one_by_one(model, ids, own), rel=1e-4)


def test_the_greedy_answer_is_known(model: nn.Module) -> None:
    """What the model would say itself is greedy, and anything else is not."""
    with torch.no_grad():
        best = int(model(torch.tensor([[256, *b"ab"]]))[0, -1, :128].argmax())
    scorer = Scorer(_Only(model), TOKENIZER, 24)
    (_, yes), (_, no) = scorer.after([("ab", chr(best)), ("ab", chr((best + 1) % 128))])
    assert (yes, no) == (True, False)


class _Only(nn.Module):
    """A model that says nothing but ASCII."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(tokens).clone()
        logits[..., 128:] = -100.0
        return logits


def test_a_whole_text_is_scored_once(model: nn.Module) -> None:
    """Every token of a text longer than the context counts once, with as much context as fits."""
    text = "a text that is longer than the context of eight"
    ids = [256, *TOKENIZER.encode(text).tolist()]
    expected = sum(
        one_by_one(model, ids[max(0, last - 9) : last], last - first)
        for first in range(1, len(ids), 8)
        for last in [min(first + 8, len(ids))]
    )
    assert Scorer(model, TOKENIZER, 8).whole(text) == pytest.approx(expected, rel=1e-4)
    short = Scorer(model, TOKENIZER, 100).whole(text)
    assert short == pytest.approx(one_by_one(model, ids, len(ids) - 1), rel=1e-4)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("harness"))


def test_questions_of_any_text(tokens: str) -> None:
    """The right choice goes on from its context in the text; the same questions every time."""
    data = make_data(tokens, 16)
    items = continuation_items(data, TOKENIZER, 12)
    assert items == continuation_items(data, TOKENIZER, 12)
    folder = Path(tokens)
    text = bytes(
        np.fromfile(folder / "valid-00000.bin", np.uint16).clip(0, 255).astype(np.uint8)
    ).decode("latin-1")
    for item in items:
        assert len(item["choices"]) == 4
        assert item["context"] + item["choices"][item["label"]] in text
    assert len({item["label"] for item in items}) > 1
    assert "choices need as many" in error_of(continuation_items, data, TOKENIZER, 2)


def test_the_model_as_the_harness_asks(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are answered in order; a task that has the model write is refused in one line."""
    fake: Any = types.ModuleType("lm_eval.api.model")
    fake.LM = type("LM", (), {})
    for name in ("lm_eval", "lm_eval.api"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", fake)
    scorer = Scorer(model, TOKENIZER, 24)
    lm = harness_model(scorer)
    asked = [types.SimpleNamespace(args=pair) for pair in (("a", " b"), ("c", " d"))]
    assert lm.loglikelihood(asked) == scorer.after([("a", " b"), ("c", " d")])
    (rolled,) = lm.loglikelihood_rolling([types.SimpleNamespace(args=("a text",))])
    assert rolled == scorer.whole("a text")
    assert "multiple choice" in error_of(lm.generate_until, asked)


@pytest.mark.filterwarnings("ignore")
def test_the_harness_itself(model: nn.Module) -> None:
    """Its share of right answers is that of the most likely choices."""
    pytest.importorskip("lm_eval")
    items = [
        {"context": f"question {i}", "choices": [" yes", " no", " who knows"], "label": i % 3}
        for i in range(9)
    ]
    scorer = Scorer(model, TOKENIZER, 24)
    found = judge_model(scorer, ["continuations"], items)
    assert found == {"continuations": pytest.approx(answered(scorer, items))}


def answered(scorer: Scorer, items: Sequence[Any]) -> float:
    """The share of right answers, without the harness."""
    right = 0
    for item in items:
        scores = scorer.after([(item["context"], choice) for choice in item["choices"]])
        right += int(np.argmax([score for score, _ in scores])) == item["label"]
    return right / len(items)


def test_the_figure_from_end_to_end(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models are trained, read back from their checkpoints and asked; again nothing is done."""
    monkeypatch.setitem(sys.modules, "lm_eval", types.ModuleType("lm_eval"))
    asked: list[str] = []

    def judged(scorer: Scorer, tasks: Sequence[str], items: Sequence[Any]) -> dict[str, float]:
        asked.append("once")
        return {task: answered(scorer, items) for task in tasks}

    monkeypatch.setattr(harness, "judge_model", judged)
    options = replace(OPTIONS, slots=4)
    found, _ = run_figure(
        "downstream", "tiny", out=tmp_path, data=tokens, options=options, quiet=True
    )
    assert len(asked) == 4
    assert {row["values"] for row in found.numbers["tasks"]} == {"global", "module"}
    again, _ = run_figure(
        "downstream", "tiny", out=tmp_path, data=tokens, options=options, quiet=True
    )
    assert len(asked) == 4
    assert again.numbers == found.numbers


def test_more_right_answers_are_a_gain() -> None:
    """The gain is in percent, seed by seed; a run that diverged leaves nothing to judge."""
    at = downstream.FIGURE.sizes["tiny"]
    answers = {"global": {"continuations": [0.4, 0.5]}, "module": {"continuations": [0.5, 0.6]}}
    losses = {"global": [2.0, 2.0], "module": [1.9, 1.9]}
    (finding,) = downstream.FIGURE.judge(at, losses, answers).findings
    assert (finding.verdict, finding.measured) == ("pass", pytest.approx(10.0))
    answers["module"]["continuations"] = [0.5]
    (finding,) = downstream.FIGURE.judge(at, losses, answers).findings
    assert (finding.verdict, finding.measured) == ("not settled", None)


def test_it_needs_the_harness(tmp_path: Path, tokens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the figure says what to install before it trains anything."""
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    message = error_of(
        run_figure, "downstream", "tiny", out=tmp_path, data=tokens, options=OPTIONS, quiet=True
    )
    assert 'pip install "completedp[eval]"' in message
