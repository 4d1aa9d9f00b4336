"""Transfer: a plan's numbers without a model, and without torch."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import BASE, error_of
from models import make_plan, make_recipe, scale

import completedp as cdp
from completedp.theory.recipe import Recipe
from completedp.theory.roles import MODULE_TYPES, Role, Width, width_of_type
from completedp.theory.rules import HYPERPARAMETERS
from completedp.theory.tables import TABLES, Parameterisation, check_complete
from completedp.theory.transfer import Transfer

FULL = {"bias": True, "output_bias": True, "mlp": "swiglu"}
SEARCHED = {
    "lr/global": 0.3,
    "lr/type/qkv": -1.5,
    "lr/depth/1": 0.7,
    "eps/layer/mlp_out/2": -4.0,
    "one_minus_beta1/type/k_norm": -1.0,
    "one_minus_beta2/depth/2": 1.0,
    "init_std/type/unembedding": -0.5,
    "residual/type/attn": 0.25,
    "residual/depth/2": -0.25,
}
TARGETS: list[dict[str, int]] = [
    {},
    {"width": 192, "depth": 5},
    {"width": 256, "depth": 3, "batch": 3 * BASE["batch"], "tokens": 5 * BASE["tokens"]},
    {"width": 32, "depth": 1, "tokens": 4 * BASE["tokens"]},
]
RULES: dict[str, dict[str, Any]] = {
    "completedp": {},
    "completep": {"parameterisation": "completep", "alpha": 0.5},
    "choices": {"beta_rule": "power", "token_exponent": 0.3, "no_decay": ("hidden_norm",)},
    "independent": {"rules": cdp.Rules(weight_decay="independent", alpha=0.7)},
}
WITHOUT_TORCH = """
import json, sys
import completedp as cdp
recipe, target, wanted = json.loads(sys.stdin.read())
transfer = cdp.Transfer(cdp.Recipe.from_dict(recipe), cdp.Scale(**target))
values = [transfer.value(*each) for each in wanted]
assert "torch" not in sys.modules
print(json.dumps([[value.base, value.target, value.trace] for value in values]))
"""


def without_torch(recipe: Recipe, target: cdp.Scale, wanted: list[Any]) -> list[Any]:
    """Base, target and trace of the wanted values, worked out by a process without torch."""
    text = json.dumps([recipe.to_dict(), target.to_dict(), wanted])
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], input=text, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("choice", RULES)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_transfer_alone_gives_a_plans_numbers(choice: str, target: dict[str, int]) -> None:
    """A process without torch has every value, base and trace of the model's plan, to the bit."""
    recipe = make_recipe(SEARCHED, model=FULL, **RULES[choice])
    found = make_plan(recipe, **({"width": 64, "depth": 2} | target), **FULL)
    wanted, expected = [], []
    for tensor in found.tensors:
        info = tensor.info
        for name, value in tensor.values.items():
            what = (name, info.type, info.layer)
            if name == "multiplier" and found.map.ends(info) in ("attn", "mlp"):
                what = ("residual", found.map.ends(info), info.layer)
            wanted.append(what)
            expected.append([value.base, value.target, [list(term) for term in value.trace]])
    assert without_torch(recipe, found.target, wanted) == expected


def test_a_width_of_its_own() -> None:
    """A type whose width grows otherwise takes its own ratio; the model's is only the default."""
    transfer = Transfer(make_recipe(), scale(width=256))
    assert transfer.value("lr", "mlp_out", 1).target == 2**-9
    assert transfer.value("lr", "mlp_out", 1, width_ratio=1.0).target == 2**-7
    assert transfer.width_ratio("mlp_out", 512) == 2.0
    assert transfer.width_ratio("mlp_out", 1024) == 4.0


@pytest.mark.parametrize("module_type", ["q_norm", "output_bias", "latent_up"])
def test_no_width_of_its_own(module_type: str) -> None:
    """Heads, logits, and types that the base had none of grow as the model does."""
    transfer = Transfer(make_recipe(model=FULL), scale(width=256))
    assert transfer.width_ratio(module_type, 7) == 4.0


def test_factors_are_a_transfer_of_ones() -> None:
    """The public factors are what a recipe's values are multiplied by, for every role."""
    recipe = make_recipe(model=FULL, alpha=0.6)
    transfer = Transfer(recipe, scale(width=192, depth=6, tokens=3 * BASE["tokens"]))
    for module_type in recipe.types:
        role = MODULE_TYPES[module_type]
        factors = recipe.rules.factors(role, transfer.ratios).to_dict()
        for name in transfer.hyperparameters(module_type):
            value = transfer.value(name, module_type)
            if name.startswith("beta"):
                grown = (1 - value.target) / (1 - value.base)
                assert grown == pytest.approx(factors["one_minus_beta"])
            else:
                assert value.target / value.base == pytest.approx(factors[name])


def test_traces_multiply_to_values() -> None:
    """The factors of a value multiply to it, those of a borrowed type too."""
    transfer = Transfer(make_recipe(SEARCHED), scale(width=192, depth=6))
    for module_type in ("qkv", "latent_up", "latent_norm"):
        for name in ("lr", "eps", "weight_decay"):
            value = transfer.value(name, module_type, 3)
            assert math.prod(x for _, x in value.trace) == pytest.approx(value.target, rel=1e-12)
    assert transfer.is_borrowed("latent_up")
    assert "role" in dict(transfer.value("lr", "latent_up", 3).trace)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("lr", "attention"), "'attention'"),
        (("momentum", "qkv"), "'momentum'"),
        (("init_std", "attn_norm"), "hyperparameter of attn_norm 'init_std'"),
        (("residual", "qkv"), "'qkv'"),
        (("lr", "qkv", 9), "layer = 9"),
        (("lr", "qkv", 0), "layer = 0"),
    ],
)
def test_what_there_is_no_value_of(arguments: tuple[Any, ...], word: str) -> None:
    """An unknown name, a vector's init and a layer that is not there are one line quoting it."""
    assert word in error_of(Transfer(make_recipe(), scale()).value, *arguments)


def test_roles_carry_their_facts() -> None:
    """Every role says whether it is drawn, where it is and what it scales with."""
    assert {role for role in Role if role.is_matrix} == {
        *("input_embedding", "tied_embedding", "hidden_weight", "output_weight")
    }
    assert {role for role in Role if not role.in_blocks} == {
        *("input_embedding", "input_bias", "tied_embedding"),
        *("output_norm", "output_weight", "output_bias"),
    }
    assert {role for role in Role if role.width.is_the_models} == {"qk_norm", "output_bias"}
    assert width_of_type("qkv_bias") is Width.FAN_IN
    assert width_of_type("mlp_in_bias") is Width.LENGTH


@pytest.mark.parametrize("name", TABLES)
def test_a_cell_that_is_not_written_down_is_an_error(name: str) -> None:
    """The table has every cell; one left out is told by its coordinates, and is never x1."""
    table = TABLES[name]
    check_complete(table)
    for hyperparameter in HYPERPARAMETERS:
        start, adamw = dict(table.start), dict(table.optimizers["adamw"])
        for part in (start, adamw):
            if hyperparameter in part:
                cells = part[hyperparameter].items()
                part[hyperparameter] = {r: c for r, c in cells if r is not Role.QK_NORM}
        broken = Parameterisation(
            name=name, start=start, residual=table.residual, optimizers={"adamw": adamw}
        )
        message = error_of(check_complete, broken)
        for word in (name, hyperparameter, "qk_norm", "adamw"):
            assert word in message


def test_docs_name_the_file_of_the_table() -> None:
    """The page of rules says where the table is."""
    root = Path(cdp.__file__).parents[1]
    assert (root / "completedp" / "theory" / "tables.py").exists()
    assert "completedp/theory/tables.py" in (root / "docs" / "rules.md").read_text()
