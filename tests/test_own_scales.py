"""Own scales: a table that multiplies by sqrt(width), as Gemma's, trains as one that does not."""

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import error_of
from models import make_recipe, scale, token_batches, train
from own_models import VOCAB, NanoGPT
from test_tied import VALUES, Logits, hugging_face
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.own_scales import own_scales
from completedp.apply.plan import Plan, plan
from completedp.apply.probe import probe

WIDE = scale(width=128)
NO_DECAY = ("output_norm", "hidden_norm")  # Gemma's norms store gain - 1
TABLE = "model.embed_tokens.weight"
pytestmark = pytest.mark.filterwarnings("ignore::completedp.ScaleWarning")


def gemma(width: int, **options: Any) -> Any:
    """A tiny one, in float64."""
    return hugging_face("gemma3_text", width, **options).double()


def recipe_of(base: nn.Module) -> cdp.Recipe:
    return cdp.Recipe.for_model(base, scale(), **VALUES, no_decay=NO_DECAY)


def set_scale(model: Any, factor: float) -> Any:
    """The same model with another factor in its table."""
    model.model.embed_tokens.embed_scale.fill_(factor)
    return model


def curve(found: Plan) -> list[float]:
    found.initialise(3)
    return train(Logits(found.model), found.adamw(), token_batches(12))


@pytest.mark.parametrize("way", ["fold", "hook"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_factor_that_grows_trains_as_one_that_does_not(tied: bool, way: Any) -> None:
    """sqrt(128) where the base had 8, and 8 kept by hand: one loss curve over 12 steps of AdamW."""
    recipe = recipe_of(gemma(64, tie_word_embeddings=tied))
    grown, kept = (gemma(128, tie_word_embeddings=tied) for _ in range(2))
    found = plan(grown, recipe, WIDE, multipliers=way)
    same = plan(set_scale(kept, 8.0), recipe, WIDE, multipliers=way)
    assert found[TABLE].own_growth == pytest.approx(math.sqrt(2))
    assert same[TABLE].own_growth == 1.0
    losses = curve(found)
    assert losses == pytest.approx(curve(same), rel=1e-5)  # its norms compute in float32
    assert max(losses) - min(losses) > 0.01


def test_the_values_by_hand() -> None:
    """W' = W / g: init and lr over g, eps and decay times g; tied logits are 1/m_N times g."""
    model = gemma(64)
    recipe = recipe_of(model)
    found = plan(gemma(128), recipe, WIDE, multipliers="hook")
    g, m = math.sqrt(2), 2.0
    table = found[TABLE]
    assert table.init_std == pytest.approx(VALUES["init_std"] / g)
    assert table.lr == pytest.approx(VALUES["lr"] / g)
    assert table.eps == pytest.approx(VALUES["eps"] / m * g)
    assert table.weight_decay == pytest.approx(VALUES["weight_decay"] * g)
    assert found.output_multiplier == pytest.approx(g / m)
    assert "its table's own factor, 8 at base and here 11.3137" in table.explain("lr")
    assert plan(model, recipe, scale())[TABLE].lr == VALUES["lr"]  # at base nothing moves


def test_it_is_no_longer_warned_of() -> None:
    """What a plan sets right needs no word; a recipe that records no factors still gets one."""
    recipe = recipe_of(gemma(64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cdp.ScaleWarning)
        plan(gemma(128), recipe, WIDE)
    with pytest.warns(UserWarning, match="embed_scale = 11.3"):
        plan(gemma(128), replace(recipe, constants=None), WIDE)


def test_another_familys_recipe_had_no_factor() -> None:
    """By a recipe of a base without one, all of it is taken out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that the recipe does not know
        found = plan(gemma(128), make_recipe(), WIDE)
    assert found[TABLE].own_growth == pytest.approx(math.sqrt(128))


def test_on_the_meta_device() -> None:
    """A model without weights has the same plan."""
    recipe = recipe_of(gemma(64))
    with torch.device("meta"):
        meta = plan(gemma(128), recipe, WIDE)
    found = plan(gemma(128), recipe, WIDE)
    for one, other in zip(meta.tensors, found.tensors, strict=True):
        assert one.knobs == pytest.approx(other.knobs)
        assert one.own_growth == pytest.approx(other.own_growth)


def test_gradients_are_those_that_the_rules_speak_of() -> None:
    """eps follows the gradient of a table without the factor, and the check measures that one."""
    check = cdp.gradcheck(
        lambda scale: hugging_face("gemma3_text", scale.width, scale.depth, vocab_size=257),
        widths=(32, 64, 128),
        depths=(2, 4),
        seeds=1,
        batch=256,
        quiet=True,
    )
    (row,) = (
        row
        for row in check.rows
        if (row.axis, row.quantity, row.what) == ("width", "gradient", "tied_embedding")
    )
    assert row.slope == pytest.approx(-1.0, abs=0.2)  # and -0.5 with the factor


class Table(nn.Embedding):
    """Says that it multiplies, and does so by something else."""

    embed_scale = 8.0

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 4.0


def test_a_table_that_does_otherwise_than_it_says() -> None:
    """The factor that would be taken out is not the one that is there: refused, with both."""
    model = NanoGPT(64, 2)
    model.wte = Table(VOCAB, 64)
    message = error_of(cdp.Recipe.for_model, model, scale())
    assert "wte.embed_scale is 8, and what it looks up is multiplied by 4" in message


def test_a_plain_tables_attribute_is_not_its_own() -> None:
    """What nn.Embedding itself does not multiply by is not taken out of it."""
    model = NanoGPT(64, 2)
    model.wte.embed_scale = 8.0
    assert not own_scales(classify(model), make_recipe())


class Positions(NanoGPT):
    """Multiplies its tokens and what the head reads, with something in between each time."""

    def forward(self, tokens: Tensor) -> Tensor:
        width = self.wte.embedding_dim
        x = self.wte(tokens) * math.sqrt(width)
        x = x + self.wpe(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x) / math.sqrt(width))


def test_factors_before_positions_and_before_the_head_are_seen() -> None:
    """Of what comes into the blocks the tokens' part has a factor, whatever is added to it."""
    recipe = cdp.Recipe.for_model(Positions(64, 2), scale())
    found = {k: v for k, v in (recipe.constants or {}).items() if not k.startswith("size: ")}
    assert found == pytest.approx({"probed: embeddings": 8.0, "probed: what the head reads": 0.125})
    with pytest.warns(UserWarning, match="probed: ") as said:
        plan(Positions(128, 2), recipe, WIDE)
    lines = [str(line.message) for line in said]
    assert lines[0].startswith("probed: embeddings = 11.3137 and was 8 at base")
    assert lines[1].startswith("probed: what the head reads = 0.0883883 and was 0.125 at base")


def test_a_model_that_was_not_run_is_said_to_have_them() -> None:
    """A base's factors that nobody sees at the target are told with their values."""
    recipe = cdp.Recipe.for_model(Positions(64, 2), scale())
    with pytest.warns(UserWarning, match="this model was not run") as said:
        plan(Positions(128, 2), recipe, WIDE, probe=False)
    assert "multiplied embeddings by 8, and" in str(said[0].message)
    assert "multiplied what the head reads by 0.125, and" in str(said[1].message)


def test_a_norm_of_the_sum_has_no_factor() -> None:
    """What is not one number times the tokens is none: here a norm of embedding and position."""

    class Normed(NanoGPT):
        def forward(self, tokens: Tensor) -> Tensor:
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
            x = nn.functional.layer_norm(self.wte(tokens) + self.wpe(positions), (64,))
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    assert "embeddings" not in probe(classify(Normed(64, 2))).constants
