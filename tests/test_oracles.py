"""Numbers by hand for what two parts share, so that a comparison of the parts would not notice."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from studies import write_tokens
from torch import nn

from completedp.apply.plan import make_plan
from completedp.evidence.coordcheck import coordinate_rows, expected_slope
from completedp.evidence.gradcheck import gradient_rows
from completedp.evidence.rows import verdict
from completedp.evidence.scaling import Measurement
from completedp.lm.reference import ReferenceModel, meta_model
from completedp.lm.shape import Shape
from completedp.lm.tokens import Manifest
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.rules import Rules, Shift
from completedp.theory.scale import Scale
from completedp.theory.schedule import Schedule
from completedp.training.checkpoint import (
    FILE,
    find_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from completedp.training.config import TrainConfig
from completedp.training.loop import bits_per_byte, train
from completedp.training.trials import CHECK_EVERY, diverged, is_divergence

SHAPE = Shape(head_dim=8)
BASE = Scale(width=16, depth=1, batch=64, tokens=64 * 60)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("text"))


def make_recipe(**changes: Any) -> Recipe:
    model = meta_model(ReferenceModel(vocab=257, shape=SHAPE).config(BASE))
    return replace(Recipe.for_model(model, BASE, lr=2.0**-7), **changes)


def run_config(data: str, out: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {"context": 16, "shape": SHAPE, "eval_sequences": 8}
    return TrainConfig(data=data, out=str(out), **(settings | changes))


def test_evaluation_is_on_held_out_text() -> None:
    """What is evaluated is of the split `valid`, spread over it; nothing of `train` is there."""

    def split(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        first = 0.0 if name == "train" else 1000.0
        numbers = first + torch.arange(40.0)[:, None]
        return numbers, numbers

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1)

    task = make_task(lambda scale: Line(), split, loss=lambda model, x, y: (x - y).mean())
    rows = torch.cat([batch[0] for batch in task.data.evaluation(10)]).flatten()
    assert rows.tolist() == [1000.0 + 4 * i for i in range(10)]


def test_the_mlp_is_the_exact_gelu() -> None:
    """The default model's MLP is W2 gelu(W1 x) with x Phi(x), by math.erf, and not its tanh."""
    model = Transformer(ModelConfig(vocab=11, width=16, depth=1, head_dim=8)).double()
    mlp = model.blocks[0].mlp
    assert mlp.gate is None
    torch.manual_seed(0)
    for parameter in mlp.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, 16, dtype=torch.float64)
    inner = (x @ mlp.up.weight.T).tolist()
    bent = [[v * 0.5 * (1.0 + math.erf(v / math.sqrt(2.0))) for v in row] for row in inner]
    expected = torch.tensor(bent, dtype=torch.float64) @ mlp.down.weight.T
    torch.testing.assert_close(mlp(x), expected, rtol=1e-10, atol=1e-10)


def test_vectors_start_at_their_constants() -> None:
    """Gains start at 1 and biases at 0."""
    shape = Shape(head_dim=8, bias=True, output_bias=True)
    config = ReferenceModel(vocab=11, shape=shape).config(BASE)
    recipe = Recipe.for_model(meta_model(config), BASE, lr=2.0**-7)
    model = Transformer(config)
    make_plan(model, recipe, BASE).initialise(0)
    found = {name: p for name, p in model.named_parameters() if p.dim() == 1}
    assert {p.unique().item() for name, p in found.items() if name.endswith("bias")} == {0.0}
    assert {p.unique().item() for name, p in found.items() if name.endswith("weight")} == {1.0}


@pytest.mark.parametrize(
    ("quantity", "kind", "axis", "alpha", "slope"),
    [
        ("own", "qkv", "depth", 0.5, -0.5),
        ("own", "qkv", "depth", 1.0, 0.0),
        ("own", "mlp_out", "depth", 0.75, -0.25),
        ("own", "qkv", "width", 0.5, 0.0),
        ("own", "embedding", "depth", 0.5, 0.0),
        ("change", "unembedding", "depth", 0.5, 0.0),
        ("initial", "unembedding", "width", 0.5, -0.5),
        ("initial", "unembedding", "depth", 0.5, 0.0),
    ],
)
def test_what_the_coordinate_check_expects(
    quantity: str, kind: str, axis: str, alpha: float, slope: float
) -> None:
    """A hidden tensor's own contribution goes as m_L^(alpha-1), for alpha below 1 as well."""
    assert expected_slope(quantity, kind, axis, alpha) == slope


def measured(key: tuple[str, str], slope: float, axis: str, **rules: Any) -> Measurement:
    """What would be measured of a quantity that grows by this power."""
    sizes = (64, 128, 256)
    values = slope * np.log2(np.array(sizes, dtype=float))[:, None]
    return Measurement(axis, Rules(**rules), sizes, {key: values})


def test_the_check_at_alpha_one_half() -> None:
    """A tensor that keeps still in depth passes at alpha 1 and fails at alpha 1/2."""
    for alpha, slope, wanted in ((1.0, 0.0, "pass"), (0.5, 0.0, "fail"), (0.5, -0.5, "pass")):
        found = measured(("own", "qkv"), slope, "depth", alpha=alpha)
        assert [row.verdict for row in coordinate_rows(found, 0.1)] == [wanted]


@pytest.mark.parametrize(
    ("slope", "wanted"), [(-1.0, "known"), (0.0, "pass"), (1.0, "fail"), (-0.5, "fail")]
)
def test_only_the_known_slope_of_the_output_norm_is_excused(slope: float, wanted: str) -> None:
    """The printed table's x1 is excused where the gradient falls as 1/N, and nowhere else."""
    found = measured(("gradient", "output_norm"), slope, "width")
    assert [row.verdict for row in gradient_rows(found, 0.1)] == [wanted]


@pytest.mark.parametrize(
    ("axis", "alpha", "slope", "wanted"),
    [
        ("depth", 0.5, -0.5, "pass"),  # heads that are random
        ("depth", 0.5, -0.75, "known"),
        ("depth", 0.5, -1.0, "known"),  # heads that agree
        ("depth", 0.5, -1.25, "fail"),
        ("depth", 0.5, -0.25, "fail"),
        ("depth", 1.0, -1.0, "pass"),
        ("depth", 1.0, -1.25, "fail"),
        ("width", 0.5, -0.25, "known"),
        ("width", 0.5, -0.75, "fail"),
        ("width", 0.5, 0.25, "fail"),
    ],
)
def test_qk_norms_are_excused_between_their_two_slopes(
    axis: str, alpha: float, slope: float, wanted: str
) -> None:
    """A gain that heads share is m_L^-alpha m_N^-1/2 to m_L^-1; anything else is a failure."""
    found = measured(("gradient", "q_norm"), slope, axis, alpha=alpha)
    assert [row.verdict for row in gradient_rows(found, 0.1)] == [wanted]


@pytest.mark.parametrize("by", [-0.25, 0.25])
def test_a_wrong_eps_of_qk_norms_is_not_excused(by: float) -> None:
    """What is known is of the printed exponent: another one is held to what is measured."""
    wrong = Shift(role="qk_norm", hyperparameter="eps", axis="depth", by=by)
    found = measured(("gradient", "q_norm"), -0.5, "depth", alpha=0.5, shifts=(wrong,))
    assert [row.verdict for row in gradient_rows(found, 0.2)] == ["fail"]


def test_nan_never_passes() -> None:
    """A slope that is no number fails."""
    assert verdict(math.nan, 0.0, 0.1) == "fail"


@pytest.mark.parametrize(
    ("loss", "first", "bad"),
    [
        (5.9, 3.0, False),
        (6.1, 3.0, True),
        (1.4, 0.5, False),
        (1.6, 0.5, True),
        (-1.0, -2.0, False),
        (0.1, -2.0, True),
        (math.nan, 3.0, True),
        (math.inf, 3.0, True),
    ],
)
def test_divergence_is_twice_the_first_loss(loss: float, first: float, bad: bool) -> None:
    """A loss beyond twice the first one's, or of small ones by more than 1."""
    assert is_divergence(loss, first) == bad


def test_divergence_is_measured_from_the_very_first_loss() -> None:
    """A curve that creeps up is compared with its start, however long ago that was."""
    creeping = [1.0 + 0.05 * i for i in range(2 * CHECK_EVERY)]
    assert diverged(creeping)
    assert not diverged([3.0] * (2 * CHECK_EVERY))


@pytest.mark.parametrize("stop_after", [None, 20])
def test_divergence_by_size_ends_a_resumed_run(
    data: str, tmp_path: Path, stop_after: int | None
) -> None:
    """A loss that grows past twice the first ends a run, also one that went on from a checkpoint.

    The rates rise slowly and then leap: nothing overflows, so only the size can tell.
    """
    schedule = Schedule(kind="piecewise", warmup=0.0, boundaries=(0.5,), levels=(1e-4, 1.0))
    recipe = make_recipe(schedule=schedule).with_values(lr=2.0, eps=1e-2)
    config = run_config(data, tmp_path)
    if stop_after is not None:
        first = train(replace(config, stop_after=stop_after), recipe=recipe, quiet=True)
        assert first.status == "stopped"
        _, extra = read_about(tmp_path)
        assert 4.0 < extra["first_loss"] < 7.0
    found = train(config, recipe=recipe, quiet=True)
    assert found.status == "diverged"
    assert 30 < found.steps < 60


def read_about(folder: Path) -> tuple[int, dict[str, Any]]:
    with safe_open(folder / FILE, "pt") as file:
        metadata = file.metadata()
    return int(metadata["step"]), json.loads(metadata["extra"])


def test_bits_per_byte_by_hand(data: str) -> None:
    """One nat a token is 1/ln 2 bits a token, times tokens over bytes."""
    manifest = Manifest.load(data)
    split = manifest.splits["valid"]
    assert split.tokens != split.bytes
    expected = 1.0 / math.log(2.0) * split.tokens / split.bytes
    assert bits_per_byte(1.0, manifest, "valid") == pytest.approx(expected, rel=1e-12)


def test_the_newest_checkpoint_counts(tmp_path: Path) -> None:
    """Of a file and a folder of shards, the one of the later step; of one step, the file."""
    for step, folder, wanted in ((7, 9, "checkpoint-00000009"), (9, 7, FILE), (8, 8, FILE)):
        place = tmp_path / f"{step}-{folder}"
        (place / f"checkpoint-{folder:08d}").mkdir(parents=True)
        save_file({"a": torch.zeros(1)}, place / FILE, {"step": str(step), "extra": "{}"})
        found = find_checkpoint(place)
        assert found is not None
        assert found.name == wanted


def test_a_run_s_weights_go_into_another_model(tmp_path: Path) -> None:
    """They are those of its checkpoint, without an optimizer; another model is left as it was."""
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    names = ["weight", "bias"]
    optimizer = torch.optim.AdamW([{"params": [model.weight, model.bias], "param_names": names}])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"no checkpoint in .*: train again"):
        load_weights(other, tmp_path)
    save_checkpoint(tmp_path, model, optimizer, 3, {}, run={})
    assert load_weights(other, tmp_path) == 3
    assert all(map(torch.equal, other.parameters(), model.parameters()))
    with pytest.raises(ValueError, match="on the meta device"):
        load_weights(nn.Linear(4, 2, device="meta"), tmp_path)
    smaller = nn.Linear(4, 2, bias=False)
    before = smaller.weight.clone()
    with pytest.raises(ValueError, match="model/bias is in one only"):
        load_weights(smaller, tmp_path)
    assert torch.equal(smaller.weight, before)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match="not as it was written"):
        load_weights(other, tmp_path)


def test_weights_of_other_heads_are_refused(tmp_path: Path) -> None:
    """A model with heads of another size, which no shape tells, is not filled; nor from a file."""

    def made(head_dim: int) -> Transformer:
        plain = ModelConfig(vocab=11, width=32, depth=1, head_dim=head_dim, qk_norm=False)
        return Transformer(plain)

    model, recipe = made(16), replace(Recipe.default(), head_dim=16)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": list(model.parameters()),
                "param_names": [n for n, _ in model.named_parameters()],
            }
        ]
    )
    save_checkpoint(tmp_path, model, optimizer, 3, {}, run={})
    recipe.save(tmp_path / "recipe.json")
    assert load_weights(made(16), tmp_path) == 3
    with pytest.raises(ValueError, match="has heads of 16, and the model has heads of 32"):
        load_weights(made(32), tmp_path)
    with pytest.raises(ValueError, match="give its folder"):
        load_weights(made(16), tmp_path / FILE)


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    """A tensor that has as many numbers in another shape is of another model."""
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.AdamW([{"params": [model.weight], "param_names": ["weight"]}])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, model, optimizer, 1, {}, run={})
    other = nn.Linear(2, 4, bias=False)
    theirs = torch.optim.AdamW([{"params": [other.weight], "param_names": ["weight"]}])
    with pytest.raises(ValueError, match="is of another model"):
        load_checkpoint(tmp_path / FILE, other, theirs)
    load_checkpoint(tmp_path / FILE, model, optimizer)
