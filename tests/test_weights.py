"""Models are trained as they were given: their tables, their tensors' attributes, what they share;
and what cannot be carried over is said."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_models as own
import pytest
import torch
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.initialise import draw
from completedp.apply.multipliers import is_for_multipliers
from completedp.tasks.data import make_data
from completedp.tasks.task import Task, make_task
from completedp.tasks.weights import give_memory, without_weights
from completedp.training.runner import Runner

CONTEXT = 16
BASE = cdp.Scale(width=16, depth=2, batch=2 * CONTEXT, tokens=2 * CONTEXT * 4)
DATA = {
    split: (rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
    for split, seed in (("train", 0), ("valid", 1))
    for rows in [
        torch.randint(own.VOCAB, (16, CONTEXT + 1), generator=torch.Generator().manual_seed(seed))
    ]
}


class Given(own.NanoGPT):
    """With something of the user's own, put there by `change`."""

    def __init__(self, scale: cdp.Scale, change: Callable[["Given"], None]) -> None:
        super().__init__(scale.width, scale.depth)
        change(self)


def maker(change: Callable[[Any], None]) -> Callable[[cdp.Scale], nn.Module]:
    return lambda scale: Given(scale, change)


def trained(make: Any, folder: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cdp.ScaleWarning)
        warnings.simplefilter("ignore", cdp.DataWarning)
        recipe = cdp.Recipe.for_model(make(BASE), BASE)
        kept = {"context": CONTEXT, "eval_examples": 4, "quiet": True, "device": "cpu"}
        return cdp.train(make, recipe, BASE, DATA, folder, noise_every=0, **kept | options)


@pytest.mark.filterwarnings("error:Casting complex values")
def test_a_complex_table_is_no_real_one(tmp_path: Path) -> None:
    """A rotary table in complex numbers is that in training, too."""
    seen = set()

    def change(model: Any) -> None:
        angles = torch.arange(CONTEXT).outer(torch.arange(4.0))
        model.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles))
        model.wte.register_forward_hook(lambda *_: seen.add(model.freqs.dtype))

    trained(maker(change), tmp_path)
    assert seen == {torch.complex64}


def test_a_table_that_blocks_share_stays_one(tmp_path: Path) -> None:
    """A buffer in several modules is one object with memory, and goes into a checkpoint."""

    def change(model: Any) -> None:
        mask = torch.ones(CONTEXT, CONTEXT).tril()
        for block in model.h:
            block.register_buffer("mask", mask)

    model = give_memory(without_weights(maker(change)(BASE)), "cpu")
    masks = [block.mask for block in model.h]  # type: ignore[union-attr]
    assert masks[0] is masks[1]
    assert trained(maker(change), tmp_path).status == "ok"
    runner = Runner(make_task(maker(change), DATA, context=CONTEXT), device="cpu", compile=False)
    assert runner.in_slots(BASE)


def test_attributes_of_tensors_go_along_and_what_cannot_is_said() -> None:
    """What a tensor has of its own it keeps; a hook on its gradient, and a weight that a list or a
    closure keeps, are warned of, and of others nothing is."""

    def marked(model: Any) -> None:
        model.h[0].mlp.c_fc.weight.gain = 0.5

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        empty = without_weights(maker(marked)(BASE))
        assert give_memory(empty, "cpu").get_parameter("h.0.mlp.c_fc.weight").gain == 0.5  # type: ignore[attr-defined]

    def hooked(model: Any) -> None:
        model.h[0].mlp.c_fc.weight.register_hook(lambda grad: 0 * grad)

    def listed(model: Any) -> None:
        model.heads = [model.lm_head.weight]

    for change, said in (
        (hooked, r"h\.0\.mlp\.c_fc\.weight: a hook on the gradient is left out"),
        (listed, r"lm_head\.weight: kept by more than the model's modules"),
    ):
        with pytest.warns(cdp.ModelWarning, match=said):
            without_weights(maker(change)(BASE))


class Experts(nn.Module):
    """Only the first is ever called."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(own.MLP(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[0](x)


def test_a_tensor_without_a_gradient_yet_is_no_other_model(tmp_path: Path) -> None:
    """A run goes on from its checkpoint where an expert was never called, and ends as in one go."""

    def change(model: Any) -> None:
        for block in model.h:
            block.mlp = Experts(BASE.width)

    make = maker(change)
    assert trained(make, tmp_path / "a", stop_after=2, checkpoint_every=1).status == "stopped"
    again = trained(make, tmp_path / "a", checkpoint_every=1)
    assert again.status == "ok"
    assert again.valid_loss == trained(make, tmp_path / "b", checkpoint_every=1).valid_loss


def test_masking_inputs_in_place_leaves_the_targets(tmp_path: Path) -> None:
    """Inputs and targets of text do not share memory."""
    from studies import write_tokens

    data = make_data(write_tokens(tmp_path), context=CONTEXT)
    rows = data.train.take(np.arange(2))
    inputs, targets = data.train.batch(rows)
    before = targets.clone()
    inputs.zero_()
    assert torch.equal(targets, before)


@pytest.mark.parametrize("default", ["dtype", "device"])
def test_what_is_drawn_depends_on_no_default(default: str) -> None:
    """A seed gives the same weights whatever torch's default type and device are."""
    model = own.NanoGPT(BASE.width, BASE.depth)
    plan = cdp.plan(model, cdp.Recipe.for_model(model, BASE), BASE)
    usual = [draw(tensor, 0) for tensor in plan.tensors]
    if default == "dtype":
        torch.set_default_dtype(torch.float64)
    else:
        torch.set_default_device("meta")
    try:
        other = [draw(tensor, 0) for tensor in plan.tensors]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(map(torch.equal, usual, other))


class Scaled(own.NanoGPT):
    """Its buffer has a multiplier's name, and is no multiplier."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.register_buffer("output_multiplier", torch.full((1,), 4.0))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.output_multiplier


def test_a_buffer_of_that_name_and_another_shape_is_the_models_in_slots(tmp_path: Path) -> None:
    """A trial in slots is the run that `train` has; a parameter is for no multipliers either."""

    def make(scale: cdp.Scale) -> nn.Module:
        return Scaled(scale.width, scale.depth)

    alone = trained(make, tmp_path)
    task: Task = make_task(make, DATA, context=CONTEXT, eval_examples=4)
    runner = Runner(task, slots=1, device="cpu", compile=False)
    recipe = cdp.Recipe.for_model(make(BASE), BASE)
    (outcome,) = runner.run([runner.trial(recipe, BASE, 0, 0)], BASE)
    assert runner.in_slots(BASE)
    assert outcome.loss == pytest.approx(alone.valid_loss, rel=1e-5)
    assert is_for_multipliers(torch.ones(()), "output_multiplier", 2)
    assert not is_for_multipliers(nn.Parameter(torch.ones(())), "output_multiplier", 2)
    assert not is_for_multipliers(torch.ones(()), "scale", 2)
    assert str(cdp.coordcheck(make, widths=(16, 32), depths=(1, 2), seeds=1, quiet=True))


def test_a_compiled_model_is_searched_as_itself() -> None:
    """What `make` gives compiled has the names of the model inside."""
    task = make_task(lambda scale: torch.compile(own.NanoGPT(scale.width, scale.depth)), DATA)
    assert not any("_orig_mod" in name for name, _ in task.model(BASE).named_parameters())


def test_tokens_in_unsigned_arrays_are_tokens() -> None:
    """Arrays of uint16, as nanoGPT writes them, are the same data as tensors."""
    arrays = {
        split: tuple(part.numpy().astype(np.uint16) for part in parts)
        for split, parts in DATA.items()
    }
    assert make_data(arrays, context=CONTEXT).digest == make_data(DATA, context=CONTEXT).digest

    def rows(split: str) -> Any:
        return list(zip(*arrays[split], strict=True))

    assert make_data(rows, context=CONTEXT).digest == make_data(DATA, context=CONTEXT).digest


def test_a_temperature_a_head_says_nothing_of_their_size() -> None:
    """One number a head, typed as a QK norm, leaves the head's size to what was seen."""

    def change(model: Any) -> None:
        for block in model.h:
            block.attn.temperature = nn.Parameter(torch.ones(BASE.width // own.HEAD, 1, 1))
            c_attn = block.attn.c_attn
            c_attn.register_forward_hook(
                lambda _, __, out, attn=block.attn: out * attn.temperature.mean()
            )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe = cdp.Recipe.for_model(
            maker(change)(BASE), BASE, overrides={"temperature": "q_norm"}
        )
    assert recipe.head_dim == own.HEAD
