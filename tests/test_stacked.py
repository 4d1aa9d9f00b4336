"""Any module trains in slots as it does alone, or is refused in one line."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from models import BASE_SCALE, VOCAB, make_model, make_recipe
from torch import Tensor, nn

from completedp.apply.plan import plan
from completedp.tasks.data import Data, Order, Tokens
from completedp.theory.recipe import Recipe
from completedp.training.memory import is_out_of_memory, slot_memory, slots_that_fit
from completedp.training.slots import Slots
from completedp.training.stacked import reference_loss, vmapped_loss
from completedp.training.trials import Trial

torch.set_num_threads(1)
SLOTS, SEQUENCES, CONTEXT, WIDTH, DEPTH = 3, 2, 12, 64, 2


class Block(nn.Module):
    """A block as people write it: torch's own layers, LayerNorm, grouped keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = (
            nn.LayerNorm(width, bias=False),
            nn.LayerNorm(width, bias=False),
        )
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(width, 2 * width), "out": nn.Linear(width, width)}
        )
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 96), "down": nn.Linear(96, width)})

    def forward(self, x: Tensor, multipliers: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.attn["qkv"](self.attn_norm(x)).split([64, 32, 32], -1)
        q, k, v = (t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in (q, k, v))
        causal = mask is None
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
        x = x + multipliers[0] * self.attn["out"](y.transpose(1, 2).flatten(-2))
        return x + multipliers[1] * self.mlp["down"](F.gelu(self.mlp["up"](self.mlp_norm(x))))


class Plain(nn.Module):
    """A language model that knows nothing of slots."""

    residual_multipliers: Tensor

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))
        self.output_norm = nn.LayerNorm(WIDTH, bias=False)
        self.unembedding = nn.Linear(WIDTH, VOCAB, bias=False)
        self.register_buffer("residual_multipliers", torch.ones(DEPTH, 2))
        self.register_buffer("offsets", torch.linspace(-0.1, 0.1, WIDTH))
        self.masked = masked

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.offsets
        mask = None
        if self.masked:  # a mask of each sequence: causal, and blind to padding
            length = tokens.shape[-1]
            causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
            mask = (causal & (tokens != 0)[:, None, None, :]) | torch.eye(length).bool()
        for layer, block in enumerate(self.blocks):
            x = block(x, self.residual_multipliers[layer], mask)
        return self.unembedding(self.output_norm(x))


class RandomTokens:
    """Stands where a token folder does."""

    def __init__(self, windows: int = 40) -> None:
        self.windows, self.context = windows, CONTEXT
        self._rows = torch.randint(
            VOCAB, (windows, CONTEXT + 1), generator=torch.Generator().manual_seed(0)
        ).numpy()

    def rows(self, indices: Any) -> Any:
        return self._rows[indices]


def token_data() -> Data:
    tokens = Tokens(RandomTokens())
    return Data(train=tokens, valid=tokens, unit=CONTEXT, digest="", name="random")


def stacked_example(
    model: nn.Module,
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor]:
    """Random float64 parameters, and tokens, for every slot."""
    generator = torch.Generator().manual_seed(1)

    def draw(tensor: Tensor) -> Tensor:
        shape = (SLOTS, *tensor.shape)
        return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2

    parameters = {n: draw(p).requires_grad_() for n, p in model.named_parameters()}
    buffers = {n: draw(b) for n, b in model.named_buffers()}
    rows = torch.randint(VOCAB, (SLOTS, SEQUENCES, CONTEXT + 1), generator=generator)
    return parameters, buffers, rows[..., :-1], rows[..., 1:]


def loss_and_grads(loss: Any, example: Any) -> list[Tensor]:
    total = loss(*example).total
    return [total, *torch.autograd.grad(total.sum(), list(example[0].values()))]


@pytest.mark.parametrize("compile", [False, True])
def test_vmap_agrees_with_the_reference_stack(compile: bool) -> None:
    """The reference model by vmap gives the losses and gradients of its own stacked form."""
    model = make_model(WIDTH, DEPTH, device="meta", bias=True, output_bias=True)
    example = stacked_example(model)
    native = loss_and_grads(reference_loss(model, compile=compile), example)
    mapped = loss_and_grads(vmapped_loss(model), example)
    for one, other in zip(native, mapped, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("compile", [False, True])
def test_vmap_agrees_with_one_at_a_time(masked: bool, compile: bool) -> None:
    """A stack of a plain module gives each slot the loss and gradients it has alone."""
    model = Plain(masked).double()
    example = stacked_example(model)
    found = loss_and_grads(vmapped_loss(model, compile=compile), example)
    parameters, buffers, inputs, targets = example
    for slot in range(SLOTS):
        own = {n: t[slot].detach().requires_grad_() for n, t in parameters.items()}
        tensors = own | {n: b[slot] for n, b in buffers.items()}
        logits = torch.func.functional_call(model, tensors, (inputs[slot],))
        alone = F.cross_entropy(logits.flatten(0, 1), targets[slot].flatten())
        grads = torch.autograd.grad(alone, list(own.values()))
        for one, other in zip([alone, *grads], found, strict=True):
            torch.testing.assert_close(one, other[slot], rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_attention_is_not_a_loop() -> None:
    """Attention is one call for all slots: vmap's slow fallback warns, and here must not."""
    model = Plain().double()
    vmapped_loss(model)(*stacked_example(model))


def test_any_module_trains_in_slots() -> None:
    """A plain module's trials in slots, with its plan, end as torch's AdamW trains them alone."""
    model = Plain().double()
    scale = replace(BASE_SCALE, batch=SEQUENCES * CONTEXT, tokens=SEQUENCES * CONTEXT * 10)
    with torch.device("meta"):
        blank = Plain()
    recipe = Recipe.for_model(blank, scale, lr=2.0**-6, weight_decay=0.2, eps=1e-6)
    plans = [plan(model, recipe.with_values(lr=lr), scale) for lr in (2.0**-6, 2.0**-8)]
    trials = [
        Trial(plan=p, seed=seed, steps=10, key=(i, seed))
        for i, p in enumerate(plans)
        for seed in (0, 1)
    ]
    data = Tokens(RandomTokens())
    slots = Slots(
        model,
        token_data(),
        count=3,
        examples=SEQUENCES,
        max_steps=10,
        weights=torch.float64,
        eval_examples=0,
    )
    found = {outcome.key: outcome.losses for outcome in slots.run(trials)}
    for i, planned in enumerate(plans):
        planned.initialise(seed=1)
        optimizer = planned.adamw()
        losses = []
        for step in range(10):
            rows = data.take(Order(data, SEQUENCES, 1).steps(step, step + 1)[0])
            inputs, targets = data.batch(rows)
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * recipe.schedule(step, 10)
            optimizer.step()
            losses.append(loss.item())
        assert found[i, 1] == pytest.approx(losses, abs=1e-9)


class Refused(nn.Module):
    """An embedding, and something that slots cannot do."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
        self.what = what
        if what == "module dropout":
            self.drop = nn.Dropout(0.1)
        if what == "batch norm":
            self.norm = nn.BatchNorm1d(VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.what == "dropout":
            x = F.dropout(x, 0.1)
        if self.what == "attention dropout":
            x = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.1)[
                :, 0
            ]
        if self.what == "branch" and x.sum() > 0:
            x = 2 * x
        if self.what == "item":
            x = x * x.sum().item()
        return x


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("module dropout", "drop (Dropout) drops units at random"),
        ("batch norm", "norm (BatchNorm1d) keeps statistics"),
        ("dropout", "draws random numbers"),
        ("attention dropout", "dropout_p = 0.1"),
        ("branch", "write the branch with torch.where"),
        ("item", "write the branch with torch.where"),
    ],
)
def test_what_slots_cannot_do(what: str, said: str) -> None:
    """Randomness, batch statistics and branches on values are refused, each with what to do."""
    model = Refused(what)
    example = stacked_example(model)
    assert said in error_of(lambda: vmapped_loss(model)(*example))


def test_dropout_that_is_off_is_welcome() -> None:
    """Dropout of probability 0 does not stand in the way."""
    model = nn.Sequential(nn.Embedding(VOCAB, VOCAB), nn.Dropout(0.0))
    vmapped_loss(model)(*stacked_example(model))


def small_stack(count: int | None, **options: Any) -> tuple[Slots, list[Trial]]:
    model = make_model(WIDTH, DEPTH, device="meta")
    scale = replace(BASE_SCALE, batch=SEQUENCES * CONTEXT, tokens=SEQUENCES * CONTEXT * 30)
    planned = plan(model, make_recipe(), scale)
    slots = Slots(model, token_data(), count=count, examples=SEQUENCES, max_steps=30, **options)
    trials = [Trial(plan=planned, seed=n, steps=5 + n, key=n) for n in range(10)]
    return slots, trials


def test_out_of_memory_goes_on_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that no longer fit are halved with a warning; no trial is lost and none ends twice."""
    slots, trials = small_stack(8)
    expected = {o.key: o.losses for o in slots.run(trials)}
    slots, trials = small_stack(8)
    advance, steps = Slots._advance, iter(range(10**6))

    def scarce(self: Slots) -> Tensor:
        if (self.count > 4 and next(steps) >= 7) or self.count > 8:  # some have finished by then
            raise torch.OutOfMemoryError("CUDA out of memory")
        return advance(self)

    monkeypatch.setattr(Slots, "_advance", scarce)
    with pytest.warns(UserWarning, match="8 slots do not fit .* going on with 4"):
        outcomes = list(slots.run(trials))
    assert slots.count == 4
    assert sorted(o.key for o in outcomes) == list(range(10))
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected[outcome.key], abs=1e-5)


def test_one_slot_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """When not even one slot fits, the device's own error is not hidden."""

    def never(self: Slots) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Slots, "_advance", never)
    slots, trials = small_stack(2)
    with pytest.warns(UserWarning, match="going on with 1"), pytest.raises(torch.OutOfMemoryError):
        list(slots.run(trials))


def test_the_number_of_slots_follows_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a count as many slots as fit are made: never none, nor more than pay or are used."""
    model = make_model(WIDTH, DEPTH, device="meta")
    loss = reference_loss(model)
    rows = (torch.zeros(1, SEQUENCES, CONTEXT, dtype=torch.int64),) * 2
    each = slot_memory(model, loss, rows)
    parameters = sum(p.numel() for p in model.parameters())
    assert each > 16 * parameters

    def fitting(free: float, trials: int | None = None) -> int:
        monkeypatch.setattr("completedp.training.memory.free_memory", lambda device: int(free))
        return slots_that_fit(model, loss, rows, trials=trials)

    assert fitting(5.2 * each / 0.85) == 5
    assert fitting(0.5 * each) == 1
    assert fitting(1e6 * each) == 16
    assert fitting(1e6 * each, trials=3) == 3
    assert fitting(1e6 * each, trials=18) == 9  # two rounds either way
    monkeypatch.setattr("completedp.training.memory.free_memory", lambda device: 6.5 * each)
    assert small_stack(None)[0].count == 5


def test_memory_of_a_slot_grows_with_its_batch() -> None:
    """Twice the sequences keep twice the activations."""
    model = make_model(WIDTH, DEPTH, device="meta")
    loss = reference_loss(model)
    sizes = [
        slot_memory(model, loss, (torch.zeros(1, n, CONTEXT, dtype=torch.int64),) * 2)
        for n in (8, 16, 32)
    ]
    assert (sizes[2] - sizes[1]) == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.05)


def test_what_counts_as_out_of_memory() -> None:
    """Both torch's device error and the host allocator's are seen for what they are."""
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
