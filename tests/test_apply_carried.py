"""Multipliers that something carries which does nothing: seen where the model is run."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from own_models import Block, NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply import probe as probing
from completedp.apply.plan import plan
from completedp.common.errors import ModelWarning

SMALL, LARGE = (cdp.Scale(width=w, depth=d, batch=64, tokens=6400) for w, d in ((32, 2), (64, 4)))


class GemmaNorm(nn.Module):
    """Stores gain - 1, so that nothing can be folded into it where it decays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class Tied(NanoGPT):
    """Tied, with a head that is called, or whose weight alone is used."""

    def __init__(self, size: cdp.Scale, *, calls_head: bool, gemma: bool = True) -> None:
        super().__init__(size.width, size.depth)
        self.lm_head.weight = self.wte.weight
        self.calls_head = calls_head
        if gemma:
            self.ln_f = GemmaNorm(size.width)  # type: ignore[assignment]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return self.lm_head(x) if self.calls_head else F.linear(x, self.lm_head.weight)


def tied_recipe(**options: bool) -> cdp.Recipe:
    return cdp.Recipe.for_model(Tied(SMALL, calls_head=False, **options), SMALL)


def test_a_hook_on_a_head_that_is_not_called_is_refused() -> None:
    """One line names the module and says to call it; where it is called, the hook is there."""
    message = error_of(plan, Tied(LARGE, calls_head=False), tied_recipe(), LARGE)
    assert "does not call lm_head" in message
    assert "call the module, lm_head(x)" in message
    assert "fold" not in message
    found = plan(Tied(LARGE, calls_head=True), tied_recipe(), LARGE)
    assert (found.ways["output"], found.output_multiplier) == ("hook", 0.5)


def test_where_it_can_be_folded_that_is_said() -> None:
    """Of hooks that were asked for, the line says that folding works too, and it does."""
    recipe = tied_recipe(gemma=False)
    model = Tied(LARGE, calls_head=False, gemma=False)
    assert 'or use multipliers="fold"' in error_of(plan, model, recipe, LARGE, multipliers="hook")
    assert plan(model, recipe, LARGE, multipliers="fold").ways["output"] == "fold"


def test_hooks_that_nobody_saw_called_are_a_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model too large to be run, one warning names the module whose call matters."""
    recipe = tied_recipe()
    monkeypatch.setattr(probing, "MOST_PARAMETERS", 1)
    with pytest.warns(ModelWarning, match=r"a hook on lm_head carries .* nobody saw"):
        plan(Tied(LARGE, calls_head=True), recipe, LARGE)


class Experts(nn.Module):
    """Calls only those experts that have tokens: here the first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 2, bias=False)
        self.experts = nn.ModuleList(
            nn.ModuleDict(
                {
                    "up": nn.Linear(width, 2 * width, bias=False),
                    "down": nn.Linear(2 * width, width, bias=False),
                }
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.experts[0]
        y = first["down"](F.gelu(first["up"](x)))  # type: ignore[index]
        return self.router(x).softmax(-1)[..., :1] * y


def test_experts_without_tokens_may_stay_uncalled() -> None:
    """A branch of which one expert is called can be hooked."""

    def made(size: cdp.Scale) -> NanoGPT:
        model = NanoGPT(size.width, size.depth)
        for block in model.h:
            block.mlp = Experts(size.width)
        return model

    recipe = cdp.Recipe.for_model(made(SMALL), SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = plan(made(LARGE), recipe, LARGE, multipliers="hook")
    assert found.ways["mlp"] == "hook"


class MultipliedBlock(Block):
    """A block that is given its branches' multipliers."""

    def forward(self, x: Tensor, attn: Tensor, mlp: Tensor) -> Tensor:
        x = x + attn * self.attn(self.ln_1(x))
        return x + mlp * self.mlp(self.ln_2(x))


class Buffered(NanoGPT):
    """Has buffers for its multipliers, and multiplies by those of some branches."""

    def __init__(self, size: cdp.Scale, *uses: str) -> None:
        super().__init__(size.width, size.depth)
        self.h = nn.ModuleList(MultipliedBlock(size.width) for _ in range(size.depth))
        self.register_buffer("residual_multipliers", torch.ones(size.depth, 2))
        self.register_buffer("output_multiplier", torch.tensor(1.0))
        self.uses = uses

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        attn, mlp = self.get_buffer("residual_multipliers").unbind(1)
        for layer, block in enumerate(self.h):
            own = (attn[layer] if "attn" in self.uses else torch.ones(()),)
            x = block(x, *own, mlp[layer] if "mlp" in self.uses else torch.ones(()))
        return self.lm_head(self.ln_f(x))


@pytest.mark.parametrize(("uses", "branch"), [((), "attn"), (("mlp",), "attn"), (("attn",), "mlp")])
def test_a_buffer_that_is_not_used_is_refused(uses: tuple[str, ...], branch: str) -> None:
    """One line names it and the branch that it would leave unscaled; folding does without it."""
    recipe = cdp.Recipe.for_model(Buffered(SMALL, *uses), SMALL)
    message = error_of(plan, Buffered(LARGE, *uses), recipe, LARGE)
    assert (
        f"a buffer residual_multipliers, and its forward pass does not multiply the {branch}"
        in (message)
    )
    assert plan(Buffered(LARGE), recipe, LARGE, multipliers="fold").ways["attn"] == "fold"


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 3)])
def test_a_buffer_of_another_shape_is_the_models_own(shape: tuple[int, ...]) -> None:
    """One of the same name that cannot hold the multipliers is neither taken nor written to."""
    model = NanoGPT(LARGE.width, LARGE.depth)
    for name in ("residual_multipliers", "output_multiplier"):
        model.register_buffer(name, torch.full(shape, 0.25))
    small = NanoGPT(SMALL.width, SMALL.depth)
    planned = plan(model, cdp.Recipe.for_model(small, SMALL), LARGE)
    planned.initialise()
    assert "buffer" not in planned.ways.values()
    for name in ("residual_multipliers", "output_multiplier"):
        assert torch.equal(model.get_buffer(name), torch.full(shape, 0.25))
    assert planned.check(planned.adamw()).passed


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_buffer_that_is_used_carries_them(device: str) -> None:
    """It is taken, also of a model without memory; one of the logits, which have no factor here,
    may be idle."""
    recipe = cdp.Recipe.for_model(Buffered(SMALL, "attn", "mlp"), SMALL)
    with torch.device(device):
        model = Buffered(LARGE, "attn", "mlp")
    assert plan(model, recipe, LARGE).ways["attn"] == "buffer"
