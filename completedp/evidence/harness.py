"""lm-evaluation-harness: a trained model of ours as its LM, and a task from any held-out text.

The harness asks for the log-likelihood of a continuation after a context, and that is all that is
answered here: multiple choice and perplexity; a model that writes is not what is judged. Its usual
tasks need the network. `continuations` does not: which of several passages of the held-out text
goes on from this one?
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from completedp.common.errors import CompletedpError
from completedp.common.extras import import_extra
from completedp.common.files import user_path
from completedp.lm.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer
from completedp.lm.tokens import TOKENIZER, Manifest
from completedp.tasks.data import Data, Stream
from completedp.tasks.losses import logits_of
from completedp.tasks.task import Task
from completedp.tasks.weights import give_memory
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.checkpoint import load_weights

CONTINUATIONS = "continuations"
_PURPOSE = "judging a model on downstream tasks"
_ROWS = 32
"""Sequences that are scored together."""


class Scorer:
    """A model and its tokenizer: log-likelihoods of texts."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, context: int) -> None:
        self._model, self._tokenizer, self._context = model.eval(), tokenizer, context
        self._device = next(model.parameters()).device

    def after(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """By context and continuation: the log-likelihood, and whether it is the greedy one."""
        found = []
        for start in range(0, len(pairs), _ROWS):
            rows = [self._ids(*pair) for pair in pairs[start : start + _ROWS]]
            found += self._scored(rows)
        return found

    def whole(self, text: str) -> float:
        """The log-likelihood of a text from its beginning, in windows of the model's context."""
        ids = [self._tokenizer.eot, *self._tokenizer.encode(text).tolist()]
        windows = []
        for first in range(1, len(ids), self._context):
            last = min(first + self._context, len(ids))
            windows.append((ids[max(0, last - self._context - 1) : last], last - first))
        total = 0.0
        for start in range(0, len(windows), _ROWS):
            total += sum(loss for loss, _ in self._scored(windows[start : start + _ROWS]))
        return total

    def _ids(self, context: str, continuation: str) -> tuple[list[int], int]:
        """Ids of both together, and how many are the continuation's; the oldest are cut off.

        Spaces at the end of a context belong to what follows, as tokens begin with them.
        """
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        before = self._tokenizer.encode(bare).tolist()
        ids = self._tokenizer.encode(bare + continuation).tolist()
        own = len(ids) - len(before)
        if own < 1:  # the tokenizer joined it all: it is scored by itself
            after = self._tokenizer.encode(continuation).tolist()
            ids, own = before + after, len(after)
        own = min(own, self._context)
        return [self._tokenizer.eot, *ids][-(self._context + 1) :], own

    @torch.no_grad()
    def _scored(self, rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """The last so many ids of each row; what pads a shorter row comes after all it reads."""
        longest = max(len(ids) for ids, _ in rows) - 1
        inputs = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, (ids, _) in zip(inputs, rows, strict=True):
            row[: len(ids) - 1] = torch.tensor(ids[:-1])
        logits: Tensor = logits_of(self._model(inputs.to(self._device))).float()
        found = []
        for row, (ids, own) in zip(logits.log_softmax(-1), rows, strict=True):
            targets = torch.tensor(ids[-own:], device=self._device)
            mine = row[len(ids) - 1 - own : len(ids) - 1]
            likelihood = float(mine.gather(1, targets[:, None]).sum())
            found.append((likelihood, bool((mine.argmax(-1) == targets).all())))
        return found


def harness_model(scorer: Scorer) -> Any:
    """A scorer as an LM of the harness."""
    base = import_extra("lm_eval.api.model", _PURPOSE).LM

    class OurModel(base):  # type: ignore[misc,valid-type]
        """Answers what the harness asks of a model."""

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            return scorer.after([(str(r.args[0]), str(r.args[1])) for r in requests])

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            return [scorer.whole(str(r.args[0])) for r in requests]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            raise CompletedpError(
                "this task has the model write a text, which a small model is not judged by: take "
                "tasks of multiple choice or perplexity"
            )

    return OurModel()


def judge_model(
    scorer: Scorer, tasks: Sequence[str], items: Sequence[Mapping[str, Any]] = ()
) -> dict[str, float]:
    """The share of right answers by task; `items` are those of `continuations`."""
    evaluator = import_extra("lm_eval.evaluator", _PURPOSE)
    said = logging.getLogger("lm_eval").level
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        named = [name for name in tasks if name != CONTINUATIONS]
        wanted = _named_tasks(named) if named else {}
        if CONTINUATIONS in tasks:
            wanted[CONTINUATIONS] = _task(items)
        found = evaluator.evaluate(
            lm=harness_model(scorer), task_dict=wanted, bootstrap_iters=0, log_samples=False
        )
    finally:
        logging.getLogger("lm_eval").setLevel(said)
    return {name: _accuracy(name, found["results"][name]) for name in tasks}


def _named_tasks(names: Sequence[str]) -> dict[str, Any]:
    """Tasks of the harness. To know them it reads 14,000 files: not for a task of our own."""
    tasks = import_extra("lm_eval.tasks", _PURPOSE)
    return dict(tasks.get_task_dict(list(names), tasks.TaskManager()))


def _task(items: Sequence[Mapping[str, Any]]) -> Any:
    """Items of multiple choice as a task of the harness, with no file and no network."""
    made = import_extra("lm_eval.api.task", _PURPOSE).ConfigurableTask
    # With a fingerprint of its own: finding one fails with some versions of its dependencies.
    table = import_extra("pyarrow", _PURPOSE).Table.from_pylist([dict(item) for item in items])
    docs = import_extra("datasets", _PURPOSE).Dataset(table, fingerprint=CONTINUATIONS)
    return made(
        config={
            "task": CONTINUATIONS,
            "custom_dataset": lambda **_: {"test": docs},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": lambda doc: doc["context"],
            "doc_to_choice": lambda doc: doc["choices"],
            "doc_to_target": lambda doc: doc["label"],
            "target_delimiter": "",
            "num_fewshot": 0,
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
    )


def _accuracy(name: str, found: Mapping[str, Any]) -> float:
    for key in ("acc_norm,none", "acc,none"):
        if key in found:
            return float(found[key])
    raise CompletedpError(f"the task {name!r} has no accuracy: take one of multiple choice")


def continuation_items(
    data: Data, tokenizer: Tokenizer, count: int, choices: int = 4, seed: int = 0
) -> list[dict[str, Any]]:
    """Passages of the held-out text with their continuation among those of other passages."""
    if isinstance(data.valid, Stream) or data.manifest is None:
        raise CompletedpError("continuations are made of a folder of tokens: give --data")
    rng = np.random.default_rng(seed)
    half = data.unit // 2
    passages: list[tuple[str, str]] = []
    for index in rng.permutation(len(data.valid)).tolist():
        row = data.valid.take(np.array([index]))[0][0]
        ids = np.asarray(row)[: data.unit]
        if data.manifest.eot in ids:
            continue
        texts = tokenizer.decode(ids[:half]), tokenizer.decode(ids[half : half + half // 2])
        if all(text.strip() and "\ufffd" not in text for text in texts):
            passages.append(texts)
        if len(passages) == count:
            break
    if len(passages) < choices:
        raise CompletedpError(
            f"the held-out text has {len(passages)} passages of {data.unit} tokens, and "
            f"{choices} choices need as many: give more text"
        )
    items = []
    for i, (context, right) in enumerate(passages):
        others = [j for j in range(len(passages)) if j != i]
        wrong = [passages[j][1] for j in rng.choice(others, choices - 1, replace=False)]
        label = int(rng.integers(choices))
        answers = [*wrong[:label], right, *wrong[label:]]
        items.append({"context": context, "choices": answers, "label": label})
    return items


def tokenizer_of(folder: str | Path) -> Tokenizer:
    """The tokenizer that a folder of tokens was made with."""
    manifest = Manifest.load(folder)
    if manifest.tokenizer == ByteTokenizer.name:
        return ByteTokenizer()
    return BPETokenizer.load(user_path(folder) / TOKENIZER)


def trained_model(task: Task, recipe: Recipe, scale: Scale, folder: Path, device: str) -> nn.Module:
    """The model of a run's folder, with the weights of its last checkpoint."""
    model = give_memory(task.model(scale), device)
    task.plan(recipe, scale, model).initialise()  # which has attached its multipliers
    load_weights(model, folder)
    return model
