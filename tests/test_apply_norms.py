"""Norms of people's own making: what they add, what they store, and where they are called."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import error_of
from own_models import NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify, read
from completedp.apply.norms import AskedNorms
from completedp.apply.plan import plan
from completedp.apply.probe import probe

SMALL, LARGE = (cdp.Scale(width=w, depth=d, batch=64, tokens=6400) for w, d in ((32, 2), (64, 4)))


class Norm(nn.Module):
    """A layer norm whose vectors have names of their own."""

    def __init__(self, width: int, gain: str, added: str) -> None:
        super().__init__()
        self.names = gain, added
        self.register_parameter(gain, nn.Parameter(torch.ones(width)))
        self.register_parameter(added, nn.Parameter(torch.zeros(width)))

    def forward(self, x: Tensor) -> Tensor:
        gain, added = (getattr(self, name) for name in self.names)
        return F.layer_norm(x, x.shape[-1:]) * gain + added


class InnerShiftNorm(Norm):
    """Adds before it multiplies, so that a gain of 0 hides what it adds."""

    def forward(self, x: Tensor) -> Tensor:
        gain, added = (getattr(self, name) for name in self.names)
        return (F.layer_norm(x, x.shape[-1:]) + added) * gain


def with_norms(make: Callable[[int], nn.Module], size: cdp.Scale) -> NanoGPT:
    """A model whose norms are all made so."""
    model = NanoGPT(size.width, size.depth)
    for block in model.h:
        block.ln_1, block.ln_2 = make(size.width), make(size.width)
    model.ln_f = make(size.width)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("kind", [Norm, InnerShiftNorm])
@pytest.mark.parametrize("names", [("scale", "shift"), ("g", "b"), ("gamma", "beta")])
def test_what_a_norm_adds_starts_at_zero(kind: type[Norm], names: tuple[str, str]) -> None:
    """Whatever a norm calls its vectors, the gain starts at 1 and what is added at 0."""
    model = with_norms(lambda width: kind(width, *names), SMALL)
    planned = plan(model, cdp.Recipe.for_model(model, SMALL), SMALL)
    gain, added = names
    for norm in ("h.0.ln_1", "ln_f"):
        assert planned[f"{norm}.{gain}"].init_value == 1
        assert planned[f"{norm}.{added}"].init_value == 0
    assert planned[f"h.0.ln_1.{added}"].info.type == "attn_norm_bias"


def test_a_norm_is_asked_what_no_name_tells() -> None:
    """Of names that say nothing, the vector that comes out as it is is what is added."""
    model = with_norms(lambda width: Norm(width, "a_2", "b_2"), SMALL)
    types = {t.name: t.type for t in classify(model)}
    assert types["h.1.ln_2.a_2"] == "mlp_norm"
    assert types["h.1.ln_2.b_2"] == "mlp_norm_bias"


class UnitNorm(nn.Module):
    """Stores gain - 1 where it is told to."""

    def __init__(self, width: int, unit: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), float(not unit)))
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight if self.unit else self.weight)


def test_norms_of_one_class_that_differ_in_a_setting_are_each_asked() -> None:
    """Stored as gain - 1 in blocks and as it is at the end, all gains start at 1 in use."""
    model = with_norms(lambda width: UnitNorm(width, True), SMALL)
    model.ln_f = UnitNorm(32, False)  # type: ignore[assignment]
    planned = plan(model, cdp.Recipe.for_model(model, SMALL), SMALL)
    assert planned["h.0.ln_1.weight"].init_value == 0
    assert planned["ln_f.weight"].init_value == 1


def test_like_norms_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of norms of one class, only those with settings of their own are asked again."""
    asked: list[bool] = []
    norms = [UnitNorm(8, unit) for unit in (True, False, True, False, True)]
    forward = UnitNorm.forward

    def counted(norm: UnitNorm, x: Tensor) -> Tensor:
        asked.append(norm.unit)
        return forward(norm, x)

    monkeypatch.setattr(UnitNorm, "forward", counted)
    answers = AskedNorms()
    assert [answers.offset(norm) for norm in norms] == [1, 0, 1, 0, 1]
    assert asked == [True, False]
    norms[0].unit = False
    assert answers.offset(norms[0]) == 0


class Embedder(nn.Module):
    """A table with a norm after it."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.tok, self.norm = table, nn.LayerNorm(table.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.tok(tokens))


class Embedded(NanoGPT):
    """Tied, with a norm inside the module of its embedding, and perhaps one before the logits."""

    def __init__(self, width: int, depth: int, *, final: bool) -> None:
        super().__init__(width, depth)
        self.lm_head.weight = self.wte.weight
        self.wte = Embedder(self.wte)  # type: ignore[assignment]
        if not final:
            self.ln_f = nn.Identity()  # type: ignore[assignment]


class EarlyNorm(NanoGPT):
    """Tied; its one norm outside the blocks, of a given name, follows the embedding."""

    def __init__(self, width: int, depth: int, name: str) -> None:
        super().__init__(width, depth)
        self.ln_f, self.norm_name = nn.Identity(), name  # type: ignore[assignment]
        blocks = self.h  # which are made after the norm
        del self.h
        self.add_module(name, nn.LayerNorm(width))
        self.h = blocks
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.get_submodule(self.norm_name)(self.wte(tokens))
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


@pytest.mark.parametrize(
    ("model", "norm"),
    [
        (Embedded(32, 2, final=True), "wte.norm"),
        (Embedded(32, 2, final=False), "wte.norm"),
        (EarlyNorm(32, 2, "emb_norm"), "emb_norm"),
    ],
)
def test_the_embeddings_norm_is_not_the_output_norm(model: nn.Module, norm: str) -> None:
    """Alone or beside another, called so or in one module with the table, it is unknown."""
    assert f"2 tensors: {norm}.weight [32], {norm}.bias [32]" in error_of(classify, model)
    (suggestion,) = read(model).suggestions
    assert suggestion.types == ()


def test_a_norm_before_the_blocks_is_not_guessed() -> None:
    """Of a name that says nothing, the only norm outside the blocks is taken for none."""
    model = EarlyNorm(32, 2, "n0")
    assert "cannot tell the role of 2 tensors: n0.weight" in error_of(classify, model)
    assert [s.guess for s in read(model).suggestions] == [None]


def test_a_name_that_lies_is_seen_by_running() -> None:
    """A norm of the embedding that is called as the last one is called is a fault."""
    faults = probe(classify(EarlyNorm(32, 2, "norm"))).faults
    assert any("norm was taken for the norm before the logits" in line for line in faults)


@pytest.mark.parametrize("name", ["emb_norm", "n0"])
def test_nothing_is_folded_into_the_embeddings_norm(name: str) -> None:
    """Also where an override calls it an output norm, the logits' factor is not in its gain."""
    names = {f"^{name}": "output_norm"}
    recipe = cdp.Recipe.for_model(EarlyNorm(32, 2, name), SMALL, overrides=names)
    model = EarlyNorm(64, 4, name)
    if name == "n0":
        message = error_of(plan, model, recipe, LARGE)
        assert "n0.weight is called before the blocks" in message
        assert 'use multipliers="hook"' in message
        planned = plan(model, recipe, LARGE, multipliers="hook")
    else:
        planned = plan(model, recipe, LARGE)
    assert planned.ways["output"] == "hook"
    assert planned[f"{name}.weight"].init_value == 1
    assert planned.output_multiplier == 0.5
    beside = {"wte.norm": "output_norm"}
    recipe = cdp.Recipe.for_model(Embedded(32, 2, final=True), SMALL, overrides=beside)
    planned = plan(Embedded(64, 4, final=True), recipe, LARGE)
    assert planned["wte.norm.weight"].init_value == 1
    assert planned["ln_f.weight"].init_value == 0.5


def test_a_norm_that_counts_is_left_as_it_was() -> None:
    """Asking a norm what its vectors do moves none of its running statistics."""
    model = NanoGPT(SMALL.width, SMALL.depth)
    model.ln_f = nn.BatchNorm1d(SMALL.width)  # type: ignore[assignment]
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert before
    classify(model)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
