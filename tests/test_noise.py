"""The gradient's noise: right where it is known, and measured without changing the run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import CONTEXT, MODEL, make_recipe, write_tokens

from completedp.apply.plan import plan
from completedp.cli.main import _parse
from completedp.evidence.reporting.runs import _critical_batch
from completedp.lm.loss import plain_loss
from completedp.lm.shape import Shape
from completedp.lm.transformer import Transformer
from completedp.tasks.data import Order, Tokens
from completedp.tasks.task import task_from
from completedp.training import loop, noise
from completedp.training.config import TrainConfig
from completedp.training.folder import Result
from completedp.training.loop import train
from completedp.training.metrics import read_metrics
from completedp.training.noise import (
    AVERAGED,
    KEPT,
    NoiseWindow,
    gradients,
    parts_for_noise,
    squares,
)

BATCH = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("noise"))


def config(data: str, out: Path, **changes: object) -> TrainConfig:
    usual = {"context": CONTEXT, "shape": Shape(head_dim=8), "log_every": 1, "device": "cpu"}
    usual |= {"eval_sequences": 8, "dtype": "float64", "noise_every": 3}
    return TrainConfig(data=data, out=str(out), **(usual | changes))  # type: ignore[arg-type]


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(folder) if "loss" in row]


def measured(steps: int, share: float, scale: float = 1.0) -> tuple[NoiseWindow, float, float]:
    """Linear regression with noise, at weights that stay, and its two batches as they are.

    Its weights are of two tensors with rates, eps and moments of their own; the second tensor is
    held `scale` times larger, its rate and eps as AdamW's symmetry wants them.
    """
    rng = np.random.default_rng(0)
    true, here = rng.normal(size=6), rng.normal(size=6)
    inputs = rng.normal(size=(4000, 6)) * [0.3, 0.3, 0.3, 3, 1, 1]
    answers = inputs @ true + rng.normal(size=4000)
    per_example = -(answers - inputs @ here)[:, None] * inputs
    moments, rates, eps = rng.uniform(0.1, 4, size=6), (0.5, 0.01), (0.3, 1.0)
    weigh = np.concatenate([rates[i] / (np.sqrt(moments[3 * i :][:3]) + eps[i]) for i in range(2)])
    mean, covariance = per_example.mean(0), per_example.var(0)
    plain = covariance.sum() / (mean**2).sum()
    weighed = (weigh * covariance).sum() / (weigh * mean**2).sum()

    held = (torch.tensor(here[:3]), scale * torch.tensor(here[3:]))
    tensors = [torch.nn.Parameter(value) for value in held]
    factors = (1.0, scale)
    optimizer = torch.optim.AdamW(
        [
            {"params": [t], "lr": r * f, "initial_lr": r * f, "eps": e / f, "betas": (0.9, 0.5)}
            for t, r, e, f in zip(tensors, rates, eps, factors, strict=True)
        ]
    )
    for i, (tensor, factor) in enumerate(zip(tensors, factors, strict=True)):
        second = torch.tensor(moments[3 * i :][:3]) * (1 - 0.5**2) / factor**2
        optimizer.state[tensor] = {"step": torch.tensor(2.0), "exp_avg_sq": second}
    window = NoiseWindow(BATCH)
    first = round(share * BATCH)
    for _ in range(steps):
        rows, before = rng.integers(4000, size=BATCH), []
        for part in np.split(rows, [first]):
            before.append(gradients(optimizer))
            weights = torch.cat([tensors[0], tensors[1] / scale])
            error = torch.tensor(answers[part]) - torch.tensor(inputs[part]) @ weights
            (error.square().sum() / 2 / BATCH).backward()
        window.add(squares(optimizer, before[1], share).tolist())
        optimizer.zero_grad()
    return window, float(plain), float(weighed)


@pytest.mark.parametrize("share", [0.5, 1 / 3])
def test_known_noise_is_found(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a regression whose mean gradient and covariance are known both batches are right."""
    monkeypatch.setattr(noise, "AVERAGED", 2000)
    monkeypatch.setattr(noise, "KEPT", 2000)
    window, plain, weighed = measured(2000, share)
    assert plain != pytest.approx(weighed, rel=0.2)
    for found, known in ((window.noise_scale, plain), (window.critical_batch, weighed)):
        assert found is not None
        assert found.error is not None
        assert 0 < found.error < 0.1 * known
        assert abs(found.batch - known) < 3 * found.error


def test_measurements_of_any_share_are_of_one_kind() -> None:
    """A run that goes on in other micro-batches averages what it measured before with the rest."""
    halves, thirds = (np.array(measured(2000, share)[0].last) for share in (0.5, 1 / 3))
    assert thirds.mean(axis=0) == pytest.approx(halves.mean(axis=0), rel=0.1)


def test_the_error_is_that_of_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jackknife's error is the spread of estimates from separate stretches of steps."""
    monkeypatch.setattr(noise, "AVERAGED", 4000)
    monkeypatch.setattr(noise, "KEPT", 4000)
    rows = measured(4000, 0.5)[0].last
    parts = [NoiseWindow(BATCH, rows[i : i + 200]) for i in range(0, 4000, 200)]
    found = [part.critical_batch for part in parts]
    batches = [each.batch for each in found if each is not None]
    errors = [each.error for each in found if each is not None and each.error is not None]
    assert len(errors) == 20
    assert float(np.mean(errors)) == pytest.approx(float(np.std(batches, ddof=1)), rel=0.5)


@settings(max_examples=20)
@given(scale=st.floats(0.01, 100))
def test_the_weighed_batch_has_adamw_s_symmetry(scale: float) -> None:
    """A tensor held larger, with rate and eps to match, is the same training and the same batch.

    The plain noise scale is not.
    """
    same, moved = (np.array(measured(8, 0.5, held)[0].last) for held in (1.0, scale))
    assert moved[:, 2:] == pytest.approx(same[:, 2:], rel=1e-9)
    if not 0.9 < scale < 1.1:
        assert moved[:, :2] != pytest.approx(same[:, :2])


def test_tables_of_tokens_are_not_weighed() -> None:
    """A table whose second moments have vanished counts as plain gradients do, and has no part in
    what is weighed."""
    table, matrix = (torch.nn.Parameter(torch.zeros(5, 3)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [table, matrix], "initial_lr": 0.1}])
    for tensor, size in ((table, 1e-20), (matrix, 1.0)):
        tensor.grad = torch.randn(5, 3)
        optimizer.state[tensor] = {
            "step": torch.tensor(9.0),
            "exp_avg_sq": torch.full((5, 3), size),
        }
    first = [torch.randn(5, 3), torch.randn(5, 3)]
    both = squares(optimizer, first, 0.5)
    kept = squares(optimizer, first, 0.5, tables=[table])
    optimizer.param_groups[0]["params"], first = [matrix], first[1:]
    alone = squares(optimizer, first, 0.5)
    assert torch.equal(kept[:2], both[:2])
    assert torch.equal(kept[2:], alone[2:])
    assert both[2] > 1e3 * kept[2]


@given(parts=st.integers(1, 6), micro=st.integers(1, 40))
def test_a_step_is_cut_into_equal_parts(parts: int, micro: int) -> None:
    """There are at least two, all of one size, unless there is one example."""
    found = parts_for_noise(parts, parts * micro)
    assert parts * micro % found == 0
    assert found >= min(2, parts * micro)
    assert parts == 1 or found == parts


def test_nothing_but_noise_gives_no_batch() -> None:
    """Where the parts have nothing in common there is no estimate, and no step that diverged."""
    window = NoiseWindow(BATCH)
    window.add([1.0, 0.5, 1.0, 0.5])
    window.add([float("inf"), 1.0, 1.0, 1.0])
    assert len(window.last) == 1
    assert window.noise_scale is window.critical_batch is None


def test_the_later_half_of_a_run_is_averaged() -> None:
    """What the first half measured, of a model that has changed since, does not count; while there
    are few, all do."""
    early, late = [0.5, 1.0, 0.5, 1.0], [0.5, 2.0, 0.5, 2.0]  # signals of 1/2 and 3/2
    window = NoiseWindow(BATCH)
    for _ in range(AVERAGED // 2):
        window.add(early)
    for _ in range(AVERAGED // 2):
        window.add(late)
    assert window.critical_batch is not None
    assert window.critical_batch.batch == pytest.approx(BATCH / 2)  # of a signal of 1
    for _ in range(4 * AVERAGED):
        window.add(late)
    assert window.critical_batch.batch == pytest.approx(BATCH / 3)
    assert window.critical_batch.error == pytest.approx(0.0)
    for _ in range(2 * KEPT):
        window.add(early)
    assert len(window.last) == KEPT
    assert window.critical_batch.batch == pytest.approx(BATCH)


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 1}, {"batch": 3 * CONTEXT}])
def test_measuring_changes_nothing_but_rounding(
    data: str, tmp_path: Path, changes: dict[str, int]
) -> None:
    """A run with the measurement on has the losses and the end of one with it off."""
    on = train(config(data, tmp_path / "on", **changes), recipe=make_recipe(), quiet=True)
    plain = config(data, tmp_path / "off", **(changes | {"noise_every": 0}))
    off = train(plain, recipe=make_recipe(), quiet=True)
    assert losses(tmp_path / "on") == pytest.approx(losses(tmp_path / "off"), abs=1e-9)
    assert on.valid_loss == pytest.approx(off.valid_loss, abs=1e-9)
    assert on.critical_batch is not None
    assert off.critical_batch is off.noise_scale is None
    rows = [row["step"] for row in read_metrics(tmp_path / "on") if "critical_batch" in row]
    assert set(rows) <= set(range(3, on.steps + 1, 3))
    assert rows


def test_the_loop_measures_the_noise_of_its_examples(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that stay, it is that of every example's own gradient."""
    monkeypatch.setattr(noise, "AVERAGED", 10**6)
    monkeypatch.setattr(noise, "KEPT", 10**6)
    # With an eps this large every weight moves by its gradient times its rate.
    recipe = make_recipe(steps=300, lr=1e-12, weight_decay=0.0, eps=1e3)
    asked = config(data, tmp_path / "run", noise_every=1, z_loss=0.0)
    found = train(asked, recipe=recipe, quiet=True)
    task = task_from(asked, recipe)
    model = Transformer(MODEL).double()
    planned = plan(model, recipe, recipe.base)
    planned.initialise(asked.seed)
    rates = {name: planned[name].lr / planned[name].eps for name, _ in model.named_parameters()}
    rates["embedding.weight"] = 0.0  # which is looked up
    weigh = torch.cat([torch.full((p.numel(),), rates[n]) for n, p in model.named_parameters()])
    train_rows = task.data.train
    assert isinstance(train_rows, Tokens)
    each = []
    for row in np.unique(Order(train_rows, 4, asked.seed).steps(0, 300)):
        inputs, targets = train_rows.batch(train_rows.take(np.array([row])))
        model.zero_grad()
        plain_loss(model(inputs)[0], targets[0], 0.0).total.backward()
        each.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    mean, spread = torch.stack(each).mean(0), torch.stack(each).var(0)
    assert found.noise_scale == pytest.approx(
        CONTEXT * float(spread.sum() / mean.square().sum()), rel=0.15
    )
    assert found.critical_batch == pytest.approx(
        CONTEXT * float((weigh * spread).sum() / (weigh * mean.square()).sum()), rel=0.15
    )


def test_a_resumed_run_keeps_what_it_measured(data: str, tmp_path: Path) -> None:
    """Stopped half-way, the run ends with the same estimate, and without one it was not asked."""
    whole = train(config(data, tmp_path / "whole"), recipe=make_recipe(), quiet=True)
    part = config(data, tmp_path / "part", stop_after=10)
    train(part, recipe=make_recipe(), quiet=True)
    again = train(replace(part, stop_after=None), recipe=make_recipe(), quiet=True)
    assert replace(again, seconds=0.0) == replace(whole, seconds=0.0)
    assert whole.critical_batch_error is not None


def test_results_of_older_runs_are_read(data: str, tmp_path: Path) -> None:
    """A result without the new numbers is still a result."""
    asked = config(data, tmp_path / "run")
    train(asked, recipe=make_recipe(), quiet=True)
    path = tmp_path / "run/result.json"
    old = {k: v for k, v in json.loads(path.read_text()).items() if "batch" not in k}
    path.write_text(json.dumps(old))
    assert train(asked, recipe=make_recipe(), quiet=True) == Result(**old)


def test_a_loss_of_one_s_own_is_not_cut(data: str) -> None:
    """By default the noise is measured with the usual loss alone."""
    usual = TrainConfig(data=data, out="x")
    assert usual.measure_noise_every == 50
    assert replace(usual, loss="mine:loss").measure_noise_every == 0
    assert replace(usual, loss="mine:loss", noise_every=7).measure_noise_every == 7


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (5_000.0, "critical batch 20,000 +- 5,000 tokens"),
        (19_000.0, "critical batch not known, at least 7,804 tokens (20,000 +- 19,000)"),
        (None, "critical batch not known: 20,000 tokens, measured too few times"),
    ],
)
def test_the_end_of_a_run_says_whether_it_is_known(
    error: float | None,
    said: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With an error of more than half of it, a critical batch is not printed as one to use; nor in
    a report."""
    losses = dict.fromkeys(("train_loss", "valid_loss", "valid_bits_per_byte", "last_finite_loss"))
    noise = {"critical_batch": 20_000.0, "critical_batch_error": error}
    numbers = {"steps": 1, "tokens": 1, "parameters": 1, "seconds": 0.0}
    ended = Result(status="ok", **numbers, **losses, **noise)  # type: ignore[arg-type]
    monkeypatch.setattr("completedp.training.loop.train", lambda config: ended)
    assert _parse(["train", "--data", data, "--out", str(tmp_path / "run")]).run() == 0
    assert f"{said} (docs" in capsys.readouterr().out
    assert ("not known" in said) == (_critical_batch(ended.to_dict()) == "not known")


def test_rows_are_logged_in_the_order_of_steps(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where losses are read many at a time: trackers drop a row that goes back."""
    read = loop._Run._read

    def seldom(run: Any, interrupted: bool = False) -> None:
        read(run, interrupted)
        run.read_at = run.step + 7

    monkeypatch.setattr(loop._Run, "_read", seldom)
    asked = config(data, tmp_path / "run", log_every=1)
    train(asked, recipe=make_recipe(), quiet=True)
    rows = [row["step"] for row in read_metrics(tmp_path / "run")]
    assert rows == sorted(rows)
    assert any("critical_batch" in row for row in read_metrics(tmp_path / "run"))
