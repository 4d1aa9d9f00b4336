"""The probe: models that are not what they look like are caught by what they do."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, hugging_face
from helpers import command, error_of
from models import make_model, scale
from own_models import HEAD, VOCAB, Block, NanoGPT
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import classify
from completedp.apply.inspect import inspect_model
from completedp.apply.plan import plan
from completedp.apply.probe import MOST_PARAMETERS, Probe, probe
from completedp.apply.subject import stand_ins
from completedp.theory.scale import Scale

WIDTH, DEPTH = 64, 2
TARGET = Scale(width=WIDTH, depth=DEPTH, batch=64, tokens=6400)


class PostNorm(Block):
    """The first transformer's: the stream itself is normed."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_1(x + self.attn(x))
        return self.ln_2(x + self.mlp(x))


class ThirdBranch(Block):
    """Adds something that no tensor of its own ends."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.3 * F.gelu(self.ln_1(x))


class NormedBranch(Block):
    """A norm without a module, after a branch's last weights: a factor of theirs is undone."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.rms_norm(self.attn(self.ln_1(x)), (WIDTH,))
        return x + self.mlp(self.ln_2(x))


class LeakyStream(Block):
    """Forgets a tenth of the stream in every block."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - 0.1 * x


class OwnFactor(Block):
    """Multiplies its branches by itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.25 * self.attn(self.ln_1(x))
        return x + 0.25 * self.mlp(self.ln_2(x))


class PerHead(nn.Module):
    """Attention as einsum writes it: a matrix for each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(heads, width, HEAD)) for _ in "qkv")
        self.wo = nn.Parameter(torch.randn(heads, HEAD, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,hdk->bhtk", x, w) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhtk,hkd->btd", y, self.wo)


class PerHeadBlock(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attn = PerHead(width)


class SummedMlp(nn.Module):
    """Its last weights are stacked as those of experts are, and no router chooses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4 * width, width))
        self.down = nn.Parameter(torch.randn(4, width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(x @ self.up.T).unflatten(-1, (4, -1))
        return torch.einsum("btnf,nfd->btd", y, self.down)


class SummedBlock(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.mlp = SummedMlp(width)


def made(block: Callable[[int], nn.Module] = Block, width: int = WIDTH) -> NanoGPT:
    model = NanoGPT(width, DEPTH)
    model.h = nn.ModuleList(block(width) for _ in range(DEPTH))
    return model


def probed(model: nn.Module, overrides: dict[str, str] | None = None) -> Probe:
    return probe(classify(model, overrides))


def test_sound_models_pass() -> None:
    """A pre-norm model is run, all that is claimed of it is seen, and no constant is found."""
    found = probed(made())
    assert not found.skipped
    assert not found.faults
    assert len(found.seen) == 3
    assert found.constants == {}


@pytest.mark.parametrize("family", ["gpt2", "llama", "olmo2", "gemma3_text", "mixtral", "phi"])
def test_families_pass_on_the_meta_device(family: str) -> None:
    """Families with fused, gated, post-normed, parallel and expert branches are as they look."""
    with torch.device("meta"):
        model = hugging_face(family, **FAMILIES[family][0])
    found = probed(model)
    assert not found.skipped
    assert not found.faults


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (PostNorm, "it has a norm on the stream (post-LN)"),
        (ThirdBranch, "or a branch that was not recognised"),
        (LeakyStream, "changes the residual stream by 10%"),
        (NormedBranch, "the attn branch of block 1 is not added in proportion"),
    ],
)
def test_what_no_rule_holds_for_is_refused(block: type[nn.Module], words: str) -> None:
    """Plans and recipes of such a model are one line, unless the user knows better."""
    model = made(block)
    assert words in error_of(cdp.Recipe.for_model, model, TARGET)
    recipe = cdp.Recipe.for_model(model, TARGET, probe=False)
    assert words in error_of(plan, model, recipe, TARGET)
    plan(model, recipe, TARGET, probe=False)


def test_a_wrong_end_of_a_branch_is_seen() -> None:
    """Types that an override names wrongly do not do what their types do."""
    swapped = {r"attn\.c_attn": "attn_out", r"attn\.c_proj": "qkv"}
    assert "changes the residual stream" in probed(made(), swapped).faults[0]


def test_a_wrong_fan_in_is_seen() -> None:
    """A stack that looks like experts, and is summed, has the fan-in of all of it."""
    fault, *_ = probed(made(SummedBlock)).faults
    assert "h.0.mlp.down [4, 64, 64] writes the stream along its dimension 2" in fault
    assert "its fan-in is 256 and not 64" in fault


def test_a_matrix_for_each_head() -> None:
    """Heads read the stream, and what they write is summed: the fan-in grows with the heads."""
    model = made(PerHeadBlock)
    assert not probed(model).faults
    widths = {t.name: t.width for t in classify(model) if t.name.startswith("h.0.attn")}
    assert widths == dict.fromkeys((f"h.0.attn.w{x}" for x in "qkvo"), WIDTH)
    recipe = cdp.Recipe.for_model(model, TARGET)
    large = Scale(width=2 * WIDTH, depth=DEPTH, batch=64, tokens=6400)
    found = plan(made(PerHeadBlock, 2 * WIDTH), recipe, large)
    assert {found[f"h.0.attn.w{x}"].width_ratio for x in "qkvo"} == {2.0}


class Scaled(NanoGPT):
    """Factors of its own on embeddings and logits, of which one moves with the width."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) * math.sqrt(self.wte.embedding_dim)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)) / 4


def test_constants_are_measured_and_recorded() -> None:
    """Factors that no config tells of are in the recipe; a plan says which moved with the width."""
    model = Scaled(WIDTH, DEPTH)
    model.h = nn.ModuleList(OwnFactor(WIDTH) for _ in range(DEPTH))
    recipe = cdp.Recipe.for_model(model, TARGET)
    found = {k: v for k, v in (recipe.constants or {}).items() if not k.startswith("size: ")}
    assert found == pytest.approx(
        {
            "probed: embeddings": 8.0,
            "probed: the attn branch": 0.25,
            "probed: the mlp branch": 0.25,
            "probed: logits": 0.25,
        }
    )
    large = Scale(width=4 * WIDTH, depth=DEPTH, batch=64, tokens=6400)
    model = Scaled(4 * WIDTH, DEPTH)
    model.h = nn.ModuleList(OwnFactor(4 * WIDTH) for _ in range(DEPTH))
    with pytest.warns(UserWarning, match="probed: embeddings = 16 and was 8 at base") as said:
        plan(model, recipe, large)
    assert not any("probed: logits" in str(line.message) for line in said)


def test_granite_s_constants_are_recorded() -> None:
    """A family's own multipliers are in the recipe, by its config and by their effect."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GraniteConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=64,
        vocab_size=96,
        tie_word_embeddings=False,
        embedding_multiplier=12.0,
        logits_scaling=8.0,
    )
    base = Scale(width=32, depth=2, batch=64, tokens=6400)
    recipe = cdp.Recipe.for_model(transformers.GraniteForCausalLM(config), base)
    assert recipe.constants is not None
    assert recipe.constants["config.embedding_multiplier"] == 12.0
    assert recipe.constants["probed: embeddings"] == pytest.approx(12.0)
    assert recipe.constants["probed: logits"] == pytest.approx(1 / 8)


def test_a_setting_that_moved_is_said_once() -> None:
    """What is seen of it by running the model is no second line; another factor beside it is."""
    transformers = pytest.importorskip("transformers")

    def granite(width: int, **settings: float) -> Any:
        config = transformers.GraniteConfig(
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=width // 8,
            num_key_value_heads=width // 8,
            intermediate_size=64,
            vocab_size=96,
            tie_word_embeddings=False,
            **settings,
        )
        return transformers.GraniteForCausalLM(config)

    def said(model: nn.Module) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan(model, recipe, replace(base, width=64))
        lines = [str(line.message) for line in caught]
        return [line.split(" = ")[0] for line in lines if "at base: the model's forward" in line]

    names = [f"{of}_multiplier" for of in ("embedding", "attention", "residual")]
    names += ["logits_scaling"]
    base = Scale(width=32, depth=2, batch=64, tokens=6400)
    with pytest.warns(UserWarning, match="residual_multiplier"):
        recipe = cdp.Recipe.for_model(granite(32, **dict.fromkeys(names, 0.5)), base)
    model = granite(64, **dict.fromkeys(names, 0.25))
    assert sorted(said(model)) == sorted(f"config.{name}" for name in names)
    model = granite(64, **dict.fromkeys(names, 0.25))
    model.model.embedding_multiplier *= 3.0
    assert {"config.embedding_multiplier", "probed: embeddings"} <= set(said(model))


def state_of(model: nn.Module) -> dict[str, Any]:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return {
        "values": {k: v.clone() for k, v in model.state_dict().items()},
        "ids": [id(p) for p in model.parameters()],
        "flags": [m.training for m in model.modules()],
        "hooks": hooks,
        "grads": [p.grad for p in model.parameters()],
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize("block", [Block, PostNorm, NormedBranch])
def test_the_model_is_not_changed(block: type[nn.Module]) -> None:
    """Values, flags, hooks, gradients and the random state are as they were."""
    model = made(block)
    model.h[1].eval()
    before = state_of(model)
    probed(model)
    after = state_of(model)
    for key in ("ids", "flags", "hooks", "grads"):
        assert before[key] == after[key]
    assert torch.equal(before["random"], after["random"])
    assert all(torch.equal(v, after["values"][k]) for k, v in before["values"].items())


def test_what_cannot_be_run_is_said() -> None:
    """A model too large, of another input, or compiled is passed by with the reason."""
    with torch.device("meta"):
        large = NanoGPT(2048, 2)
    assert sum(p.numel() for p in large.h.parameters()) > MOST_PARAMETERS
    assert f"more than {MOST_PARAMETERS:,} parameters in its blocks" in probed(large).lines()

    class Mute(NanoGPT):
        def forward(self, tokens: Tensor) -> Tensor:
            raise RuntimeError("not today")

    assert "not today" in probed(Mute(WIDTH, DEPTH)).skipped
    assert "compiled" in probed(torch.compile(made())).skipped  # type: ignore[arg-type]
    assert "reference model" in probed(make_model()).skipped
    frozen = made()
    frozen.h[0].attn.c_proj.weight.requires_grad_(False)  # type: ignore[union-attr]
    assert "is frozen" in probed(frozen).skipped


def test_a_model_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of one model share what was seen; other overrides are another look."""
    model, runs = made(), []
    monkeypatch.setattr(
        model, "forward", lambda tokens: runs.append(1) or NanoGPT.forward(model, tokens)
    )
    recipe = cdp.Recipe.for_model(model, TARGET)
    plan(model, recipe, TARGET)
    once = len(runs)
    plan(model, recipe, TARGET)
    assert len(runs) == once > 0
    plan(model, recipe, TARGET, overrides={"wpe": "embedding"})
    assert len(runs) > once


def test_inspect_shows_what_was_probed() -> None:
    """After the table: what was seen, what is wrong, or why nobody looked."""
    assert "probed: blocks 1 to 2: the stream goes on unchanged" in inspect_model(made())
    assert "probed: WRONG: block 1 changes" in inspect_model(made(PostNorm))
    assert "not probed: it is the reference model" in inspect_model(make_model())


def post_norm(scale: Scale) -> NanoGPT:
    """A model whose plan would be wrong, for the command line."""
    return made(PostNorm, scale.width)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_inspect_of_a_wrong_model_fails(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is printed all the same, and a script sees by the exit code that it is wrong."""
    code, text, errors = command(
        monkeypatch, capsys, "inspect", "test_probe:post_norm", "--width", str(WIDTH), *flags
    )
    assert code == 2
    assert "h.0.attn.c_attn.weight" in text or "h.0-1.attn.c_attn.weight" in text
    assert "it has a norm on the stream (post-LN)" in errors
    assert "Traceback" not in errors


# --- What no rule owns


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class OwnStarts(Block):
    """LayerScale after the attention, and a low-rank addition that starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = LayerScale(width)
        self.low_a = nn.Parameter(torch.randn(4, width))
        self.low_b = nn.Parameter(torch.zeros(width, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.scale(self.attn(y)) + y @ self.low_a.T @ self.low_b.T
        return x + self.mlp(self.ln_2(x))


OWN_STARTS = {"gamma": "attn_post_norm", "low_a": "qkv", "low_b": "attn_out"}


def test_values_that_no_rule_owns_are_kept() -> None:
    """LayerScale's gain, a matrix that starts at 0 and a row of padding stay as they are."""
    model = made(OwnStarts)
    model.wte = nn.Embedding(VOCAB, WIDTH, padding_idx=3)
    recipe = cdp.Recipe.for_model(model, TARGET, overrides=OWN_STARTS, probe=False)
    found = plan(model, recipe, TARGET, probe=False)
    found.initialise()
    block = model.h[0]
    assert torch.equal(block.scale.gamma, torch.full((WIDTH,), 1e-5))
    assert not block.low_b.any()
    assert block.low_a.std() > 0
    assert not model.wte.weight[3].any()
    assert model.wte.weight[4].std() > 0
    assert found["h.0.low_b"].init_std is None
    assert found["h.0.low_b"].init_value == 0


def test_memory_without_values_is_drawn() -> None:
    """A model that was only given memory, all 0, says nothing of where its tensors start."""
    model = made(OwnStarts)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    recipe = cdp.Recipe.for_model(model, TARGET, overrides=OWN_STARTS, probe=False)
    plan(model, recipe, TARGET, probe=False).initialise()
    assert model.h[0].low_b.std() > 0


def test_experts_over_a_dense_base_are_refused() -> None:
    """A recipe of a base without experts does not plan a model that has them."""
    options = FAMILIES["llama"][0]
    dense = hugging_face("llama", **options)
    width, depth = classify(dense).width or 0, classify(dense).depth
    size = scale(width=width, depth=depth)
    recipe = cdp.Recipe.for_model(dense, size)
    experts = hugging_face("mixtral", **FAMILIES["mixtral"][0])
    assert "the recipe's base model had none" in error_of(plan, experts, recipe, size)


def test_it_is_cheap() -> None:
    """Not a clock: no more than a few dozen calls of a block."""
    model, calls = made(), []
    for block in model.h:
        block.register_forward_hook(lambda *_: calls.append(1))
    probed(model)
    assert len(calls) <= 48


class Counting(NanoGPT):
    """Counts its calls in a buffer, as some models count tokens or keep running means."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, *inputs: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return super().forward(*inputs)


def test_a_model_is_left_as_it_was() -> None:
    """What a forward pass writes to while it is probed is a copy."""
    model = Counting(WIDTH, DEPTH)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan(model, cdp.Recipe.for_model(model, TARGET, lr=0.01), TARGET)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


class ListBlock(PostNorm):
    """Gives a list, as the first GPT's blocks do in transformers."""

    def forward(self, x: Tensor) -> Any:
        return [super().forward(x)]


class OfLists(NanoGPT):
    """Takes what its blocks give out of their lists."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.h:
            (x,) = block(x)
        return self.lm_head(self.ln_f(x))


def test_blocks_that_give_lists_are_looked_at() -> None:
    """A norm on the stream is seen whatever a block wraps its output in."""
    model = OfLists(WIDTH, DEPTH)
    model.h = nn.ModuleList(ListBlock(WIDTH) for _ in range(DEPTH))
    assert "post-LN" in error_of(cdp.Recipe.for_model, model, TARGET)


def test_a_large_base_is_looked_at_with_the_memory_of_a_block() -> None:
    """A post-LN model of 25M weights on the meta device is refused; all its blocks share values."""
    with torch.device("meta"):
        model = NanoGPT(512, 8)
        model.h = nn.ModuleList(PostNorm(512) for _ in range(8))
    assert "post-LN" in error_of(cdp.Recipe.for_model, model, scale(width=512, depth=8))
    values = stand_ins(classify(model))
    first, last = (values[f"h.{layer}.attn.c_proj.weight"] for layer in (0, 7))
    assert first is last
    assert values["wte.weight"] is not values["wpe.weight"]


def test_a_large_vocabulary_keeps_nobody_from_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the blocks: a small base with the target's vocabulary is run, too."""
    monkeypatch.setattr("completedp.apply.probe.MOST_PARAMETERS", 16_000_000)
    model = NanoGPT(WIDTH, DEPTH)
    model.wte, model.lm_head = nn.Embedding(150_000, WIDTH), nn.Linear(WIDTH, 150_000, bias=False)
    model.h = nn.ModuleList(PostNorm(WIDTH) for _ in range(DEPTH))
    assert sum(p.numel() for p in model.parameters()) > 16_000_000
    assert "post-LN" in error_of(cdp.Recipe.for_model, model, TARGET)


def test_what_nobody_saw_is_warned_of() -> None:
    """A model that does not run is planned with a warning that says why, a compiled one, whose
    recipe was made with it as it was, without."""

    class Mute(NanoGPT):
        def forward(self, tokens: Tensor) -> Tensor:
            raise RuntimeError("not today")

    mute, plain = Mute(WIDTH, DEPTH), made()
    with pytest.warns(cdp.ModelWarning, match="not today"):
        recipe = cdp.Recipe.for_model(mute, TARGET)
    with pytest.warns(cdp.ModelWarning, match="measure it with coordcheck"):
        plan(mute, recipe, TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cdp.ModelWarning)
        recipe = cdp.Recipe.for_model(plain, TARGET)
        plan(torch.compile(plain), recipe, TARGET)  # type: ignore[arg-type]
    with pytest.warns(cdp.ModelWarning, match="compiled"):
        cdp.Recipe.for_model(torch.compile(made()), TARGET)  # type: ignore[arg-type]


def normed(kind: Any) -> NanoGPT:
    model = made()
    for block in model.h:
        kind(block.mlp.c_proj)  # type: ignore[union-attr]
    return model


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's, of the older one
@pytest.mark.parametrize(
    "kind",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
    ],
)
def test_a_weight_that_is_made_of_others_is_refused(kind: Any) -> None:
    """Under a parametrization no rule, and no folded multiplier, reaches the weight itself."""
    said = error_of(cdp.Recipe.for_model, normed(kind), TARGET)
    assert "the weight of h.0.mlp.c_proj is made of other tensors" in said
    assert "remove_parametrizations" in said


class NormedLinear(nn.Linear):
    """The rows of its weight have size 1, whatever they are."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, F.normalize(self.weight, dim=-1), self.bias)


class NormedProduct(nn.Linear):
    """What it gives has size 1, as queries behind a norm have."""

    def forward(self, input: Tensor) -> Tensor:
        return F.normalize(super().forward(input), dim=-1)


class OwnNormedLinear(nn.Module):
    """The same without a class of torch's."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_out, fan_in))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=-1))


@pytest.mark.parametrize("linear", [NormedLinear, OwnNormedLinear])
def test_a_weight_whose_size_does_nothing_is_refused(linear: Any) -> None:
    """Normalised in the forward pass it is made of others as under a parametrization; a product
    that is normalised is not."""
    for kind in (linear, NormedProduct):
        model = made()
        for block in model.h:
            block.mlp.c_fc = kind(WIDTH, 4 * WIDTH)
        faults = probed(model).faults
        if kind is NormedProduct:
            assert not faults
        else:
            assert "what h.0.mlp.c_fc gives is the same with twice its weight" in faults[0]


class Gated(Block):
    """One trained number, which starts at 0, multiplies both branches."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.alpha * self.attn(self.ln_1(x))
        return x + self.alpha * self.mlp(self.ln_2(x))


def test_a_lone_number_that_is_trained_is_no_factor() -> None:
    """What stands in for it is 1, and not noise that a recipe would keep."""
    assert probed(made(Gated), {"alpha": "mlp_in_bias"}).constants == {}


class OnlyMLP(Block):
    """A block of one branch."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.ln_2(x))


def test_blocks_without_attention_are_looked_at() -> None:
    """One branch is probed as two are, and what is frozen may be made of other tensors."""
    model = made()
    model.h = nn.ModuleList(OnlyMLP(WIDTH) for _ in range(DEPTH))
    for block in model.h:
        del block.attn, block.ln_1
    model.aux = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cdp.ModelWarning)
        cdp.Recipe.for_model(model, TARGET)
    assert not probe(classify(model)).skipped


def test_a_wide_reference_model_is_no_stranger() -> None:
    """However large, it is known."""
    base = Scale(width=768, depth=3, batch=1024, tokens=1024 * 1000)
    with torch.device("meta"):
        model = cdp.Transformer(cdp.ModelConfig(vocab=256, width=768, depth=3, head_dim=64))
    with warnings.catch_warnings():
        warnings.simplefilter("error", cdp.ModelWarning)
        cdp.Recipe.for_model(model, base)
