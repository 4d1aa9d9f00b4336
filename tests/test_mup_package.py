"""Our `mup` rules beside the `mup` package from PyPI, on an MLP and on the reference transformer.

The package multiplies what its readout reads by 1/m and leaves the readout's weight alone. Our
rules leave the forward pass alone and change the weight's values. Adam's symmetry maps one to the
other: W' = cW behind a multiplier 1/c has init std x c, lr x c, eps / c and weight decay / c.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mup
import pytest
import torch
import torch.nn.functional as F
from models import VOCAB, make_model, make_plan, make_recipe, token_batches, train
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

import completedp as cdp

RATIOS = [1, 2, 8]
TRAINED = [1, 2, 3]
WIDTH = 64
STEPS = 20
# Large enough for weight decay to matter in twenty steps; eps is given by each test.
GLOBAL = {"lr": 2**-5, "weight_decay": 1.0, "init_std": 0.1}
BETAS = (0.9, 0.95)
NO_EPS = 1e-30
FULL = {"bias": True, "output_bias": True, "mlp": "swiglu"}
MLP_ROLES = {
    "input.weight": "input_embedding",
    "input.bias": "hidden_bias",
    "hidden.0.weight": "hidden_weight",
    "hidden.0.bias": "hidden_bias",
    "hidden.1.weight": "hidden_weight",
    "hidden.1.bias": "hidden_bias",
    "unembedding.weight": "output_weight",
    "unembedding.bias": "output_bias",
}
HEAD = "unembedding.weight"

Values = dict[str, float]
"""lr, weight_decay, multiplier, and init_std of a matrix."""


class MLP(nn.Module):
    """One-hot tokens to logits: an input layer, two hidden layers, an output layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(VOCAB, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.unembedding = nn.Linear(width, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.input(F.one_hot(tokens, VOCAB).to(self.input.weight.dtype))
        for layer in self.hidden:
            x = layer(F.gelu(x))
        return self.unembedding(F.gelu(x))


def with_readout(model: nn.Module) -> nn.Module:
    """The model with the package's layer in place of its output layer."""
    old = model.unembedding
    bias = old.bias is not None
    model.unembedding = mup.MuReadout(old.in_features, old.out_features, bias=bias)
    return model


def with_base_shapes(
    make: Callable[..., nn.Module], sizes: Mapping[str, Any], rescale_params: bool = True
) -> nn.Module:
    """The package's model of these sizes, its base shapes those of the model of base sizes."""
    base, delta = with_readout(make(width=WIDTH)), with_readout(make(width=2 * WIDTH))
    model = with_readout(make(**sizes))
    return mup.set_base_shapes(model, base, delta=delta, rescale_params=rescale_params)


def drawn_std(parameter: Tensor) -> float:
    """The std with which `mup.init.normal_` draws: over the same draw of a standard normal."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        mup.init.normal_(parameter, std=GLOBAL["init_std"])
        torch.manual_seed(0)
        return (parameter / torch.empty_like(parameter).normal_()).median().item()


def forward_multiplier(layer: nn.Linear) -> float:
    """By what a layer's product with its input is multiplied, seen from outside."""
    x = torch.linspace(-1, 2, layer.in_features)
    bias = 0 if layer.bias is None else layer.bias
    return ((layer(x) - bias) / F.linear(x, layer.weight)).median().item()


def their_values(model: nn.Module) -> dict[str, Values]:
    """What the package's optimizer, initialiser and readout give every tensor."""
    options = {name: GLOBAL[name] for name in ("lr", "weight_decay")}
    optimizer = mup.MuAdamW(model.parameters(), **options)
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = {option: groups[parameter][option] for option in options}
        found[name]["multiplier"] = 1.0
        if parameter.ndim == 2:
            found[name]["init_std"] = drawn_std(parameter)
    found[HEAD]["multiplier"] = forward_multiplier(model.unembedding)
    return found


def mlp_values(m: float, parameterisation: str = "mup") -> dict[str, Values]:
    """What our rules give every tensor of the MLP, by its role: `plan` is for transformers."""
    found = {}
    for name, role in MLP_ROLES.items():
        factors = cdp.factors(role, cdp.Ratios(width=m), parameterisation=parameterisation)
        found[name] = {key: value * getattr(factors, key) for key, value in GLOBAL.items()}
        found[name]["multiplier"] = factors.multiplier
        if not cdp.Role(role).is_matrix:
            del found[name]["init_std"]
    return found


def transformer_plan(sizes: Mapping[str, Any], eps: float = 1e-8, **options: Any) -> cdp.Plan:
    """Our plan for a reference model; the feed-forward width in `sizes` is the target's alone."""
    recipe = make_recipe(model=options, parameterisation="mup", eps=eps, **GLOBAL)
    return make_plan(recipe, depth=2, device="cpu", **{**options, **sizes})


def transformer_values(sizes: Mapping[str, Any], **options: Any) -> dict[str, Values]:
    """What our plan gives every tensor of the reference model."""
    names = ("lr", "weight_decay", "multiplier", "init_std")
    return {
        t.name: {name: getattr(t, name) for name in names if getattr(t, name) is not None}
        for t in transformer_plan(sizes, **options).tensors
    }


def behind_multiplier(values: Values, c: float) -> Values:
    """The values with which c times the weight, behind a multiplier 1/c, trains the same."""
    powers = {"lr": 1, "init_std": 1, "weight_decay": -1, "multiplier": -1}
    return {name: value * c ** powers[name] for name, value in values.items()}


def assert_side_by_side(ours: dict[str, Values], theirs: dict[str, Values], m: float) -> None:
    """The same for every tensor; for the output weight, the same behind the package's 1/m."""
    assert list(ours) == list(theirs)
    assert theirs[HEAD] == pytest.approx(GLOBAL | {"multiplier": 1 / m}, rel=1e-6)
    assert ours[HEAD]["multiplier"] == 1
    translated = ours | {HEAD: behind_multiplier(ours[HEAD], m)}
    for name, values in theirs.items():
        assert translated[name] == pytest.approx(values, rel=1e-6), name


@pytest.mark.parametrize("m", RATIOS)
def test_mlp_values(m: int) -> None:
    """Every tensor of an MLP has the package's learning rate, decay, init std and multiplier."""
    theirs = their_values(with_base_shapes(MLP, {"width": m * WIDTH}))
    assert_side_by_side(mlp_values(m), theirs, m)
    assert theirs["hidden.0.weight"]["lr"] == pytest.approx(GLOBAL["lr"] / m)
    assert theirs["input.weight"]["lr"] == GLOBAL["lr"]


@pytest.mark.parametrize("m", RATIOS)
@pytest.mark.parametrize("options", [{}, FULL, {"qk_norm": False}], ids=["plain", "full", "no qk"])
def test_transformer_values(options: dict[str, Any], m: int) -> None:
    """A plan gives every tensor of a transformer what the package gives it."""
    sizes = {"width": m * WIDTH}
    model = with_base_shapes(lambda width: make_model(width, **options), sizes)
    assert_side_by_side(transformer_values(sizes, **options), their_values(model), m)


def test_feed_forward_that_grows_faster() -> None:
    """At width x2 with a feed-forward x8, both take every matrix's own fan-in."""
    sizes = {"width": 2 * WIDTH, "mlp_width": 8 * 4 * WIDTH}
    theirs = their_values(with_base_shapes(make_model, sizes))
    assert_side_by_side(transformer_values(sizes), theirs, 2)
    assert theirs["blocks.0.mlp.up.weight"]["lr"] == GLOBAL["lr"] / 2
    assert theirs["blocks.0.mlp.down.weight"]["lr"] == GLOBAL["lr"] / 8


def test_feed_forward_that_does_not_grow() -> None:
    """The package refuses a feed-forward of fixed width; we plan it by each matrix's fan-in."""
    options = {"mlp_width": 4 * WIDTH}
    with pytest.raises(AssertionError, match=r"mlp\.up .* not type `MuReadout`"):
        with_base_shapes(lambda width: make_model(width, **options), {"width": 8 * WIDTH})
    ours = transformer_values({"width": 8 * WIDTH}, **options)
    assert ours["blocks.0.mlp.up.weight"]["lr"] == pytest.approx(GLOBAL["lr"] / 8)
    assert ours["blocks.0.mlp.down.weight"]["lr"] == GLOBAL["lr"]


@pytest.mark.parametrize("m", RATIOS[1:])
def test_rescaled_default_initialisation(m: int) -> None:
    """torch's own draws, as the package rescales them, have the ratios of our init stds."""
    torch.manual_seed(0)
    base, wide = (with_base_shapes(MLP, {"width": k * WIDTH}) for k in (1, m))
    stds = [{n: p.std().item() for n, p in model.named_parameters()} for model in (base, wide)]
    found = {name: stds[1][name] / stds[0][name] for name in stds[0]}
    for name, values in mlp_values(m).items():
        expected = behind_multiplier(values, m if name == HEAD else 1)
        if "init_std" in expected:
            assert found[name] == pytest.approx(expected["init_std"] / GLOBAL["init_std"], rel=0.05)
        else:  # the package draws biases, with a std that does not change; ours start at 0
            assert found[name] == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("m", RATIOS)
def test_completep_keeps_the_multiplier(m: int) -> None:
    """CompleteP's output row is the package's readout as it stands, but for the weight decay."""
    theirs = their_values(with_base_shapes(MLP, {"width": m * WIDTH}))[HEAD]
    ours = mlp_values(m, "completep")[HEAD]
    assert ours == pytest.approx(theirs | {"weight_decay": m * GLOBAL["weight_decay"]}, rel=1e-6)


def our_mlp(m: int, eps: float) -> tuple[nn.Module, Optimizer, dict[str, float]]:
    """The MLP in float64 with our values, its optimizer, and every tensor's eps."""
    torch.manual_seed(0)
    model, values = MLP(m * WIDTH).double(), mlp_values(m)
    ratios = cdp.Ratios(width=m)
    every_eps = {
        name: eps * cdp.factors(role, ratios, parameterisation="mup").eps
        for name, role in MLP_ROLES.items()
    }
    groups = []
    for name, parameter in model.named_parameters():
        std = values[name].get("init_std", 0.0)
        nn.init.normal_(parameter, std=std)
        options = {key: values[name][key] for key in ("lr", "weight_decay")}
        groups.append({"params": [parameter], "eps": every_eps[name], **options})
    return model, AdamW(groups, betas=BETAS, foreach=False), every_eps


def our_transformer(m: int, eps: float) -> tuple[nn.Module, Optimizer, dict[str, float]]:
    """The same for the reference model, all of it from its plan."""
    found = transformer_plan({"width": m * WIDTH}, eps, **FULL)
    found.model.double()
    found.initialise()
    every_eps = {t.name: t.eps for t in found.tensors}
    return found.model, found.adamw(foreach=False), every_eps


OURS = {"mlp": our_mlp, "transformer": our_transformer}
MAKERS = {"mlp": MLP, "transformer": lambda width: make_model(width, **FULL)}


def their_losses(kind: str, m: int, start: dict[str, Tensor], eps: dict[str, float]) -> list[float]:
    """Losses of the package's model, from our model's weights, the head's m times as large."""
    with torch.random.fork_rng():
        model = with_base_shapes(MAKERS[kind], {"width": m * WIDTH}, rescale_params=False).double()
    model.load_state_dict(start | {HEAD: m * start[HEAD]})
    groups = [{"params": [p], "eps": eps[name]} for name, p in model.named_parameters()]
    options = {"lr": GLOBAL["lr"], "weight_decay": GLOBAL["weight_decay"], "betas": BETAS}
    return train(model, mup.MuAdamW(groups, **options, foreach=False), token_batches(STEPS))


def compare(kind: str, m: int, eps: float, *, map_eps: bool) -> tuple[list[float], list[float]]:
    """Our losses and the package's, which has one eps, or ours tensor by tensor."""
    model, optimizer, every_eps = OURS[kind](m, eps)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    mapped = every_eps | {HEAD: every_eps[HEAD] / m}
    theirs = their_losses(kind, m, start, mapped if map_eps else dict.fromkeys(every_eps, eps))
    return train(model, optimizer, token_batches(STEPS)), theirs


@pytest.mark.parametrize("m", TRAINED)
@pytest.mark.parametrize("kind", OURS)
def test_the_same_function(kind: str, m: int) -> None:
    """While eps is negligible, ours and the package's train the same function, step by step."""
    ours, theirs = compare(kind, m, NO_EPS, map_eps=False)
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert max(ours) - min(ours) > 0.05  # they do train


@pytest.mark.parametrize("kind", OURS)
def test_eps_is_the_difference(kind: str) -> None:
    """An eps that matters, which the package does not scale, is all that sets the two apart."""
    ours, theirs = compare(kind, 3, 1e-3, map_eps=True)
    assert ours == pytest.approx(theirs, rel=1e-9)
    ours, theirs = compare(kind, 3, 1e-3, map_eps=False)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) > 1e-4
