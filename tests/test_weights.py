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
import torch.nn.functional as F
from helpers import error_of
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.initialise import draw
from completedp.apply.multipliers import is_for_multipliers
from completedp.apply.structure import inside
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


def same_in_slots(make: Any, alone: Any, **options: Any) -> bool:
    """Whether one trial in slots ends as the run that `trained` had."""
    task: Task = make_task(make, DATA, context=CONTEXT, eval_examples=4, **options)
    runner = Runner(task, slots=1, device="cpu", compile=False)
    recipe = cdp.Recipe.for_model(make(BASE), BASE, overrides=options.get("overrides"))
    (outcome,) = runner.run([runner.trial(recipe, BASE, 0, 0)], BASE)
    assert runner.in_slots(BASE)
    return outcome.loss == pytest.approx(alone.valid_loss, rel=1e-5)


class Capped(nn.Module):
    """A wrapper that does something, and calls what it wraps as torch's wrappers do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, tokens: Tensor) -> Tensor:
        return 0.1 * self.module(tokens)


def test_a_wrapper_of_the_users_own_is_part_of_the_model(tmp_path: Path) -> None:
    """What it does is trained, in slots and alone, and checked; torch's own wrappers do nothing."""
    plain = maker(lambda _: None)
    capped = trained(lambda scale: Capped(plain(scale)), tmp_path / "a")
    assert capped.valid_loss != trained(plain, tmp_path / "b").valid_loss
    assert same_in_slots(lambda scale: Capped(plain(scale)), capped)
    assert str(
        cdp.coordcheck(
            lambda scale: Capped(plain(scale)), widths=(16, 32), depths=(1, 2), seeds=1, quiet=True
        )
    )
    inner = plain(BASE)
    assert inside(nn.DataParallel(torch.compile(inner))) is inner  # type: ignore[arg-type]


def test_a_tensor_of_two_names_in_one_module_stays_one(tmp_path: Path) -> None:
    """A table that is the head's, too, under another name, is one in `train` and in slots."""

    class Raw(own.NanoGPT):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            del self.wte, self.lm_head
            self.table = nn.Parameter(0.02 * torch.randn(own.VOCAB, width))
            self.head = self.table

        def forward(self, tokens: Tensor) -> Tensor:
            x = F.embedding(tokens, self.table) + self.wpe(torch.arange(tokens.shape[-1]))
            for block in self.h:
                x = block(x)
            return F.linear(self.ln_f(x), self.head)

    def make(scale: cdp.Scale) -> nn.Module:
        return Raw(scale.width, scale.depth)

    overrides = {"table": "tied_embedding"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe = cdp.Recipe.for_model(make(BASE), BASE, overrides=overrides)
        options = {"context": CONTEXT, "eval_examples": 4, "quiet": True, "noise_every": 0}
        alone = cdp.train(make, recipe, BASE, DATA, tmp_path, device="cpu", **options)
        assert same_in_slots(make, alone, overrides=overrides)
        model = give_memory(make_task(make, DATA, overrides=overrides).model(BASE), "cpu")
    assert model.table is model.head


def test_a_hook_after_the_gradient_is_said_to_be_left_out() -> None:
    """Hooks of either kind on a tensor's gradient are warned of."""

    def change(model: Any) -> None:
        model.lm_head.weight.register_post_accumulate_grad_hook(lambda _: None)

    with pytest.warns(cdp.ModelWarning, match=r"lm_head\.weight: a hook on the gradient"):
        without_weights(maker(change)(BASE))


def test_a_hook_on_a_modules_gradients_keeps_it_out_of_slots(tmp_path: Path) -> None:
    """Slots do not call it, so trials train one at a time, where it acts as in `train`."""

    def change(model: Any) -> None:
        hook = model.h[0].mlp.c_fc.register_full_backward_hook
        hook(lambda _, grads, __: tuple(0.1 * grad for grad in grads))

    task = make_task(maker(change), DATA, context=CONTEXT, eval_examples=4)
    runner = Runner(task, device="cpu", compile=False)
    with pytest.warns(UserWarning, match="a hook on its gradients"):
        assert not runner.in_slots(BASE)
    recipe = cdp.Recipe.for_model(maker(change)(BASE), BASE)
    (outcome,) = runner.run([runner.trial(recipe, BASE, 0, 0)], BASE)
    assert outcome.loss == pytest.approx(trained(maker(change), tmp_path).valid_loss, rel=1e-6)


def test_recurrent_layers_keep_nothing_of_old_weights() -> None:
    """torch's list of a recurrent layer's weights is of those that are trained."""

    def change(model: Any) -> None:
        model.rnn = nn.LSTM(BASE.width, BASE.width, batch_first=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = give_memory(without_weights(maker(change)(BASE)), "cpu")
    rnn: Any = model.rnn
    assert [id(w) for w in rnn._flat_weights] == [id(p) for p in rnn.parameters()]


@pytest.mark.parametrize("way", ["blocks", "in place", "root"])
def test_compiled_parts_are_searched_as_themselves(way: str) -> None:
    """However a user compiles the model or its blocks, trials share slots, under its own names."""

    def make(scale: cdp.Scale) -> nn.Module:
        model: Any = own.NanoGPT(scale.width, scale.depth)
        if way == "blocks":
            for index, block in enumerate(model.h):
                model.h[index] = torch.compile(block)
        if way == "in place":
            model.h[0].compile()
        return torch.compile(model) if way == "root" else model  # type: ignore[return-value]

    task = make_task(make, DATA, context=CONTEXT, eval_examples=4)
    runner = Runner(task, slots=2, device="cpu", compile=False)
    recipe = cdp.Recipe.for_model(own.NanoGPT(BASE.width, BASE.depth), BASE)
    plain = Runner(
        make_task(maker(lambda _: None), DATA, context=CONTEXT, eval_examples=4),
        slots=2,
        device="cpu",
        compile=False,
    )
    (found,), (wanted,) = (
        each.run([each.trial(recipe, BASE, 0, 0)], BASE) for each in (runner, plain)
    )
    assert runner.in_slots(BASE)
    assert found.loss == wanted.loss


def test_what_make_draws_is_the_same_every_time(tmp_path: Path) -> None:
    """Frozen weights and tables that `make` draws are those of every run and trial, whatever was
    drawn before; and drawing them changes nothing of what others draw."""

    def change(model: Any) -> None:
        model.wpe.weight.requires_grad_(False)
        nn.init.normal_(model.wpe.weight)

    torch.manual_seed(1)
    first = trained(maker(change), tmp_path / "a").valid_loss
    torch.manual_seed(2)
    expected = torch.rand(3)
    torch.manual_seed(2)
    make_task(maker(change), DATA, context=CONTEXT).model(BASE)
    assert torch.equal(torch.rand(3), expected)
    assert trained(maker(change), tmp_path / "b").valid_loss == first


def masked(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """A loss that writes to what it is given."""
    tokens[:, ::4] = 0
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("slots", [1, 2])
def test_a_loss_that_writes_to_its_batch_changes_no_data(slots: int) -> None:
    """The same trial again ends as before: held-out examples are what they were."""
    kept = {split: tuple(part.clone() for part in parts) for split, parts in DATA.items()}
    task = make_task(maker(lambda _: None), kept, loss=masked, context=CONTEXT, eval_examples=4)
    runner = Runner(task, slots=slots, device="cpu", compile=False)
    recipe = cdp.Recipe.for_model(maker(lambda _: None)(BASE), BASE)
    trials = [runner.trial(recipe, BASE, 0, key) for key in range(4)]
    losses = {outcome.loss for outcome in runner.run(trials, BASE)}
    assert len(losses) == 1
    assert torch.equal(kept["valid"][0], DATA["valid"][0])


def test_tables_of_every_kind_go_into_a_checkpoint(tmp_path: Path) -> None:
    """Masks that are views of one table, complex numbers of 16 bytes, an expanded buffer: a run
    ends, and one that goes on ends the same."""

    def change(model: Any) -> None:
        table = torch.ones(CONTEXT, CONTEXT).tril()
        for block in model.h:
            block.register_buffer("mask", table.view(1, 1, CONTEXT, CONTEXT))
        angles = torch.arange(4, dtype=torch.float64)
        model.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        model.register_buffer("wide", torch.zeros(1).expand(4))

    whole = trained(maker(change), tmp_path / "a")
    assert whole.status == "ok"
    assert trained(maker(change), tmp_path / "b", stop_after=2).status == "stopped"
    assert trained(maker(change), tmp_path / "b").valid_loss == whole.valid_loss


class Counting(own.NanoGPT):
    """Its passes count themselves, in a way that no checkpoint has."""

    def __init__(self, width: int, depth: int, way: str) -> None:
        super().__init__(width, depth)
        self.way, self.calls = way, 0
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.way == "attribute":
            self.calls += 1
        elif self.way == "buffer":
            self.passes += 1
        return super().forward(tokens)

    def get_extra_state(self) -> Any:
        return {"way": self.way} if self.way == "state" else torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("way", "said"),
    [("attribute", "calls changes"), ("buffer", "passes changes"), ("state", "Counting changes")],
)
def test_what_no_checkpoint_has_is_said(way: str, said: str, tmp_path: Path) -> None:
    """A run that stops says what one that goes on will begin anew; others say nothing."""

    def make(scale: cdp.Scale) -> nn.Module:
        return Counting(scale.width, scale.depth, way)

    with pytest.warns(cdp.ModelWarning, match=f"{said} in training and is in no checkpoint"):
        trained(make, tmp_path / "a", stop_after=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cdp.ModelWarning)
        way = "none"
        assert trained(make, tmp_path / "b", stop_after=2, checkpoint_every=1).status == "stopped"


def test_a_factor_of_a_multipliers_name_is_asked_about() -> None:
    """A lone number other than 1 may be the model's own; one of 1, or in whole numbers, is not
    spoken of."""

    class Factor(own.NanoGPT):
        def __init__(self, factor: Any) -> None:
            super().__init__(BASE.width, BASE.depth)
            self.register_buffer("output_multiplier", torch.tensor(factor))

        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) * self.output_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cdp.ScaleWarning)
        four, one = (cdp.Recipe.for_model(Factor(factor), BASE) for factor in (4.0, 1.0))
        with pytest.warns(cdp.ModelWarning, match="the buffer output_multiplier holds 4, and"):
            cdp.plan(Factor(4.0), four, BASE)
        warnings.simplefilter("error", cdp.ModelWarning)
        cdp.plan(Factor(1.0), one, BASE)
    assert not is_for_multipliers(torch.tensor(1), "output_multiplier", 2)


def test_a_lazy_layer_is_asked_to_run_first() -> None:
    """A tensor without a shape is one line that names it."""
    model: Any = own.NanoGPT(BASE.width, BASE.depth)
    model.lm_head = nn.LazyLinear(own.VOCAB, bias=False)
    assert error_of(cdp.Recipe.for_model, model, BASE) == (
        "lm_head.weight has no shape before the model has run once: call it on a batch first"
    )


def test_a_recipe_of_a_users_model_is_none_of_the_reference_model(tmp_path: Path) -> None:
    """Where `make` was forgotten, what the recipe names says that it needs one."""
    from studies import write_tokens

    model = own.NanoGPT(BASE.width, BASE.depth)
    recipe = cdp.Recipe.for_model(model, BASE, overrides={"wpe": "position"})
    message = error_of(make_task, None, write_tokens(tmp_path), recipe=recipe)
    assert "tuned on a model of the user's own, whose tensors it names ('wpe'): model is" in message


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_narrow_tokens_are_tokens(dtype: torch.dtype) -> None:
    """Numbers that no table can be asked by are those that one can, for next-token loss alone."""
    narrow = {split: tuple(part.clamp(max=100).to(dtype) for part in DATA[split]) for split in DATA}
    wide = {split: tuple(part.long() for part in parts) for split, parts in narrow.items()}
    found, wanted = (make_task(maker(lambda _: None), data).data for data in (narrow, wide))
    assert found.digest == wanted.digest
    own_loss = make_task(maker(lambda _: None), narrow, loss=masked).data
    assert own_loss.train.take(np.arange(1))[0].dtype == dtype  # type: ignore[union-attr]
