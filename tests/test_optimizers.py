"""A second optimizer, made of nothing but its registration: sign momentum for hidden matrices."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import error_of
from models import BASE_SCALE, make_model, make_plan, make_recipe, scale, token_batches, train
from safetensors.torch import load_file
from torch import Tensor

import completedp as cdp
from completedp.apply.export import export
from completedp.apply.optimise import set_learning_rates
from completedp.apply.plan import Plan
from completedp.apply.table import render
from completedp.apply.updates import UPDATES, Update, each
from completedp.evidence.gradcheck import invariant_rows
from completedp.lm.prepare import prepare_source
from completedp.lm.reference import ReferenceModel, meta_model
from completedp.lm.shape import Shape
from completedp.studies.space import check_coordinates, make_space
from completedp.tasks.data import make_data, training_batches
from completedp.theory.hparams import Values
from completedp.theory.optimizers import OPTIMIZERS, Knob, Optimizer
from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role
from completedp.theory.rules import Rules, Shift
from completedp.theory.rules_page import factors_table, rules_page
from completedp.theory.scale import Ratios, Scale
from completedp.theory.tables import ONE, TABLES, Columns, Exponents, register
from completedp.training.checkpoint import FILE
from completedp.training.config import TrainConfig
from completedp.training.loop import train as train_run
from completedp.training.slots import Slots
from completedp.training.trials import Trial

SIGNUM = Optimizer(
    name="signum",
    knobs=(
        Knob(name="lr", value="signum_lr", rule="lr", power=1),
        Knob(name="weight_decay", rule="weight_decay", default=0.1, may_be_zero=True),
        Knob(name="momentum", rule="one_minus_momentum", default=0.9, is_complement=True),
    ),
    rules=("lr", "weight_decay", "one_minus_momentum"),
)
# Not those of AdamW, so that none of its cells can pass for one of these.
LR = Exponents(width=-0.75, depth=-0.25)
DECAY = Exponents(width=0.75)
SIZE: dict[str, dict[Role, Columns]] = {
    "lr": {Role.HIDDEN_WEIGHT: (LR, LR, LR, LR)},
    "weight_decay": {Role.HIDDEN_WEIGHT: (DECAY, DECAY, DECAY, DECAY)},
    "one_minus_momentum": {Role.HIDDEN_WEIGHT: (ONE, ONE, ONE, ONE)},
}
TIME: dict[str, Columns] = {
    "lr": (ONE, ONE, ONE, Exponents(batch=0.25, tokens=-0.25)),
    "weight_decay": (ONE, ONE, ONE, Exponents(batch=0.75, tokens=-0.75)),
    "one_minus_momentum": (ONE, ONE, ONE, Exponents(batch=1.0, tokens=-1.0)),
}
BY_ROLE = {"hidden_weight": "signum"}


def sign_momentum(p: Tensor, g: Tensor, m: Tensor, factors: Tensor) -> None:
    lr, decay, momentum = each(factors, p)
    m.mul_(momentum).add_((1.0 - momentum) * g)
    p.mul_(1.0 - lr * decay).sub_(lr * m.sign())


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(SIGNUM, SIZE, TIME)
    UPDATES["signum"] = Update(state=("momentum_buffer",), apply=sign_momentum)
    yield
    _forget("signum")
    UPDATES.pop("signum", None)


def _forget(name: str) -> None:
    OPTIMIZERS.pop(name, None)
    for table in TABLES.values():
        table.optimizers.pop(name, None)


def mixed(**options: Any) -> Recipe:
    values = {"signum_lr": 2**-10, "momentum": 0.8, "weight_decay": 0.3}
    return make_recipe(rules=Rules(optimizer=BY_ROLE), **(values | options))


def is_hidden(name: str, planned: Plan) -> bool:
    return planned[name].info.role is Role.HIDDEN_WEIGHT


def test_values_come_from_its_own_rows() -> None:
    """A role's tensors have its optimizer's values by its rows; all others are as without it."""
    sizes = {"width": 256, "depth": 4, "batch": 4096, "tokens": 64 * 1024 * 16}
    found = make_plan(mixed(), **sizes)
    plain = make_plan(make_recipe(weight_decay=0.3), **sizes)
    for tensor in found.tensors:
        if not is_hidden(tensor.name, found):
            assert tensor.to_dict() == plain[tensor.name].to_dict()
            continue
        widths, depth = 256 / 64, 4 / 2
        assert tensor.lr == pytest.approx(2**-10 * widths**-0.75 * depth**-0.25 * 0.25**0.25)
        assert tensor.weight_decay == pytest.approx(0.3 * widths**0.75 * 0.25**0.75)
        assert 1 - tensor.momentum == pytest.approx(0.2 * 0.25)
        assert tensor.init_std == plain[tensor.name].init_std
        assert not hasattr(tensor, "eps")
        assert "eps" not in tensor.to_dict()
    assert found.optimizers == ("adamw", "signum")


def test_factors_compose() -> None:
    """From a to b to c is from a to c, and ratio 1 is the identity, for every row it has."""
    rules = Rules(optimizer=BY_ROLE)
    first = Ratios(width=2, depth=3, batch=4, tokens=8)
    then = Ratios(width=3, depth=2, batch=2, tokens=2)
    both = Ratios(width=6, depth=6, batch=8, tokens=16)
    for name, value in rules.factors("hidden_weight", both).to_dict().items():
        a, b = (getattr(rules.factors("hidden_weight", r), name) for r in (first, then))
        assert a * b == pytest.approx(value)
        assert getattr(rules.factors("hidden_weight", Ratios()), name) == 1
    assert list(vars(rules.factors("hidden_weight", both))) == [
        "init_std",
        "lr",
        "weight_decay",
        "one_minus_momentum",
        "multiplier",
    ]
    assert rules.factors("hidden_norm", both) == cdp.factors("hidden_norm", both)


def test_a_recipe_with_it_saves_and_loads(tmp_path: Path) -> None:
    """The file names the roles that AdamW does not train, and has the values that they need."""
    recipe = mixed()
    recipe.save(tmp_path / "recipe.json")
    data = json.loads((tmp_path / "recipe.json").read_text())
    assert data["rules"]["optimizer"] == BY_ROLE
    assert (data["values"]["signum_lr"], data["values"]["momentum"]) == (2**-10, 0.8)
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    assert hash(recipe.rules) == hash(Rules(optimizer=BY_ROLE))
    assert recipe.with_rules(optimizer="adamw").rules.to_dict()["optimizer"] == "adamw"
    plain = make_recipe()
    assert "momentum" not in plain.to_dict()["values"]
    switched = plain.with_values(signum_lr=0.5).with_rules(optimizer=BY_ROLE)
    assert switched.values.momentum == 0.9
    assert "signum needs a value signum_lr" in error_of(plain.with_rules, optimizer=BY_ROLE)
    assert "unknown value 'beta3'" in error_of(plain.with_values, beta3=0.5)
    assert "momentum = 1" in error_of(recipe.with_values, momentum=1)
    _forget("signum")
    assert "'signum'" in error_of(Recipe.load, tmp_path / "recipe.json")


def test_rules_in_one_form() -> None:
    """Mappings that mean the same are equal; roles and optimizers that do not go together are
    one line."""
    assert Rules(optimizer={}) == Rules() == Rules(optimizer={"hidden_norm": "adamw"})
    assert Rules(optimizer=BY_ROLE | {"qk_norm": "adamw"}) == Rules(optimizer=BY_ROLE)
    assert "signum has no rules for hidden_norm" in error_of(
        Rules, optimizer={"hidden_norm": "signum"}
    )
    assert "write {'hidden_weight': 'signum'}" in error_of(Rules, optimizer="signum")
    assert "'sgd'" in error_of(Rules, optimizer={"hidden_weight": "sgd"})
    assert "'head'" in error_of(Rules, optimizer={"head": "signum"})
    shift = Shift(role="hidden_weight", hyperparameter="eps", axis="width", by=1.0)
    assert "'eps'" in error_of(Rules, optimizer=BY_ROLE, shifts=(shift,))


def test_the_search_space_has_its_coordinates() -> None:
    """Each value is tuned for the types whose optimizer has it, within limits at every scale."""
    recipe = mixed()
    space = make_space(recipe, "kronecker", scales=[scale(batch=4 * BASE_SCALE.batch)])
    names = set(space.coordinates)
    assert {"signum_lr/type/qkv", "one_minus_momentum/type/mlp_out", "signum_lr/depth/1"} <= names
    assert {"lr/type/embedding", "weight_decay/type/qkv", "eps/type/attn_norm"} <= names
    assert not {"lr/type/qkv", "eps/type/qkv", "signum_lr/type/embedding"} & names
    at = space.coordinates.index("one_minus_momentum/type/qkv")
    assert 2 ** (2 * space.bounds.high[at]) * 0.2 * 4 == pytest.approx(0.999)
    point = space.bounds.start.copy()
    point[at] = -1.0
    moved = make_plan(space.recipe(recipe, point), width=64, depth=2)
    assert moved["blocks.0.attn.qkv.weight"].momentum == pytest.approx(0.9)
    assert moved["blocks.0.mlp.down.weight"].momentum == pytest.approx(0.8)
    assert "'eps/type/qkv' changes nothing" in error_of(check_coordinates, recipe, ["eps/type/qkv"])
    check_coordinates(recipe, ["eps/depth/1", "signum_lr/global", "residual/type/mlp"])
    plain = make_recipe()
    assert "changes nothing" in error_of(check_coordinates, plain, ["signum_lr/global"])
    assert "'signum_lr'" in error_of(make_space, plain, "type", tunables=("signum_lr",))
    assert "signum_lr/global" not in make_space(plain, "global").coordinates


def test_tables_and_words_show_its_values() -> None:
    """The plan's table has a column for it, `explain` its factors, the rules its rows."""
    found = make_plan(mixed())
    name = "blocks.0.attn.qkv.weight"
    table = render(found, width=240)
    assert "momentum" in table
    (row,) = (line for line in table.splitlines() if "attn.qkv.weight" in line)
    assert f"-> {found[name].lr:.3g}" in row
    assert row.count("0.8") == 1
    text = found.explain(name)
    assert "trained by signum" in text
    assert "1 - momentum = 0.2 (value)" in text
    assert "width 2^-0.75" in found.explain(name, "lr")
    assert "has no 'eps'" in error_of(found.explain, name, "eps")
    rows = factors_table(Rules(optimizer=BY_ROLE), Ratios(width=16)).splitlines()
    assert "one_minus_momentum" in rows[1]
    (row,) = (line for line in rows if line.startswith("hidden_weight"))
    assert "0.125" in row
    assert "| hidden_weight | m_N^(-1/2) | m_N^(-3/4)" in rules_page()


def test_groups_are_of_one_optimizer() -> None:
    """Groups are asked for by optimizer; AdamW alone refuses tensors that are another's."""
    found = make_plan(mixed(), device="cpu")
    assert "adamw and signum" in error_of(found.param_groups)
    groups = {name: found.param_groups(name) for name in found.optimizers}
    names = {o: [n for group in g for n in group["param_names"]] for o, g in groups.items()}
    assert names["signum"] == [t.name for t in found.tensors if is_hidden(t.name, found)]
    assert sorted(names["signum"] + names["adamw"]) == sorted(t.name for t in found.tensors)
    values = {"lr", "initial_lr", "weight_decay", "momentum"}
    assert groups["signum"][0].keys() == {"params", "param_names", "optimizer"} | values
    assert "optimizer" not in groups["adamw"][0]
    assert "is trained by signum" in error_of(found.adamw)
    assert "'muon' trains no tensor" in error_of(found.param_groups, "muon")
    assert [g.get("optimizer") for g in json.loads(export(found, "json"))["groups"]].count("signum")
    assert "AdamW alone" in error_of(export, found, "hf")
    del UPDATES["signum"]
    assert "has rules and no update" in error_of(found.optimizer)


def test_the_check_reads_its_values() -> None:
    """`plan.check` takes all optimizers together, and finds a value that moved."""
    found = make_plan(mixed(), device="cpu")
    optimizer = found.optimizer()
    assert found.check(optimizer).passed
    apart = cdp.AdamW(found.param_groups("adamw"))
    theirs = torch.optim.SGD(found.param_groups("signum"))
    assert found.check(apart, theirs).passed
    assert "in no groups" in str(found.check(apart))
    theirs.param_groups[0]["momentum"] = 0.5
    assert "momentum is 0.5, planned 0.8" in str(found.check(apart, theirs))


def test_the_invariants_are_of_its_rows() -> None:
    """The gradient check's arithmetic takes what an optimizer has: no floor without an eps."""
    rows = [row for row in invariant_rows(Rules(optimizer=BY_ROLE)) if row.what == "hidden_weight"]
    at = {(row.quantity, row.axis): row.verdict for row in rows}
    assert at["decay", "batch"] == at["memory", "tokens"] == "pass"
    assert at["noise", "batch"] == "fail"  # of these made-up rows
    assert not any(row.quantity == "floor" for row in rows)


@pytest.mark.parametrize("way", ["fold", "hook"])
def test_multipliers_fold_by_its_powers(way: str) -> None:
    """A multiplier in the weights, by its own powers of c, trains as one in the forward pass."""
    curves = []
    for multipliers in ("buffer", way):
        model = make_model(128, 4).double()
        target = scale(width=128, depth=4)
        found = cdp.plan(model, mixed(), target, multipliers=multipliers)  # type: ignore[arg-type]
        found.initialise(3)
        curves.append(train(model, found.optimizer(), token_batches(6)))
    assert curves[0] == pytest.approx(curves[1], rel=1e-9)


CONTEXT, SEQUENCES, STEPS = 16, 4, 24
SHAPE = Shape(head_dim=8)
SMALL = Scale(width=16, depth=2, batch=CONTEXT * SEQUENCES, tokens=CONTEXT * SEQUENCES * STEPS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for i in range(40):
        (folder / f"{i:03d}.txt").write_text(f"sign {i} of momentum {i * i} " * 12)
    prepare_source(str(folder), str(folder / "tokens"), valid_fraction=0.1)
    return str(folder / "tokens")


def small(optimizer: Any = BY_ROLE, lr: float = 2**-6) -> Recipe:
    base = meta_model(ReferenceModel(vocab=257, shape=SHAPE).config(SMALL))
    values = {"lr": lr, "signum_lr": 2**-9, "momentum": 0.8, "weight_decay": 0.3, "eps": 1e-6}
    made = Recipe.for_model(base, SMALL, rules=Rules(optimizer=optimizer), **values)
    apart = {
        "signum_lr/type/qkv": 0.7,
        "one_minus_momentum/depth/2": -0.4,
        "lr/type/embedding": 0.5,
    }
    return replace(made, hyperparameters=replace(made.hyperparameters, log2=apart))


def plan_of(recipe: Recipe, device: str = "meta") -> Plan:
    with torch.device(device):
        model = cdp.Transformer(ReferenceModel(vocab=257, shape=SHAPE).config(SMALL))
    return cdp.plan(model.double() if device == "cpu" else model, recipe, SMALL)


def by_hand(recipe: Recipe, data: str, seed: int) -> list[float]:
    """Losses of a loop that knows sign momentum and AdamW from their papers alone."""
    planned = plan_of(recipe, "cpu")
    planned.initialise(seed)
    parameters = dict(planned.model.named_parameters())
    kept = {n: [torch.zeros_like(p), torch.zeros_like(p)] for n, p in parameters.items()}
    losses = []
    batches = training_batches(make_data(data, CONTEXT), SEQUENCES, seed, torch.device("cpu"))
    for step, (tokens, targets) in zip(range(STEPS), batches, strict=False):
        logits = planned.model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        grads = torch.autograd.grad(loss, list(parameters.values()))
        losses.append(loss.item())
        now = recipe.schedule(step, STEPS)
        with torch.no_grad():
            for (name, p), g in zip(parameters.items(), grads, strict=True):
                values, (m, v) = planned[name].values, kept[name]
                lr, decay = values["lr"].target * now, values["weight_decay"].target
                p -= lr * decay * p
                if is_hidden(name, planned):
                    momentum = values["momentum"].target
                    m.copy_(momentum * m + (1 - momentum) * g)
                    p -= lr * torch.sign(m)
                    continue
                b1, b2 = values["beta1"].target, values["beta2"].target
                m.copy_(b1 * m + (1 - b1) * g)
                v.copy_(b2 * v + (1 - b2) * g**2)
                hat = (v / (1 - b2 ** (step + 1))).sqrt() + values["eps"].target
                p -= lr * m / (1 - b1 ** (step + 1)) / hat
    return losses


def in_a_plain_loop(recipe: Recipe, data: str, seed: int) -> list[float]:
    """Losses of a loop on `plan.optimizer()`."""
    planned = plan_of(recipe, "cpu")
    planned.initialise(seed)
    optimizer, losses = planned.optimizer(), []
    batches = training_batches(make_data(data, CONTEXT), SEQUENCES, seed, torch.device("cpu"))
    for step, (tokens, targets) in zip(range(STEPS), batches, strict=False):
        set_learning_rates(optimizer, recipe.schedule(step, STEPS))
        logits = planned.model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def make_slots(data: str, count: int, **options: Any) -> Slots:
    settings = {"examples": SEQUENCES, "max_steps": STEPS, "weights": torch.float64}
    model = meta_model(ReferenceModel(vocab=257, shape=SHAPE).config(SMALL))
    return Slots(model, make_data(data, CONTEXT), count=count, **(settings | options))


def test_training_equals_a_loop_by_hand(data: str) -> None:
    """The plain loop and slots, where trials with values of their own share a program and follow
    each other, train as a loop that was written by hand."""
    recipes = [small(), small().with_values(signum_lr=2**-8, momentum=0.5), small(lr=2**-5)]
    trials = [Trial(plan=plan_of(r), seed=i, steps=STEPS, key=i) for i, r in enumerate(recipes)]
    in_slots = {
        outcome.key: outcome.losses for outcome in make_slots(data, 2, z_loss=0.0).run(trials)
    }
    assert in_slots[0] != in_slots[1]
    for seed, recipe in enumerate(recipes):
        expected = by_hand(recipe, data, seed)
        assert expected[-1] < expected[0] - 0.5
        assert in_a_plain_loop(recipe, data, seed) == pytest.approx(expected, rel=1e-9)
        assert in_slots[seed] == pytest.approx(expected, rel=1e-9)


def test_a_stack_goes_from_one_assignment_to_another(data: str) -> None:
    """Runs of other optimizers follow each other in one stack as in new ones; within a run they
    cannot be mixed, which is one line."""
    stack = make_slots(data, 2)
    trials = [
        Trial(plan=plan_of(small(optimizer)), seed=0, steps=STEPS)
        for optimizer in (BY_ROLE, "adamw", BY_ROLE)
    ]
    curves = [[outcome.losses for outcome in stack.run([trial])] for trial in trials]
    fresh = [[outcome.losses for outcome in make_slots(data, 2).run([t])] for t in trials]
    assert curves == fresh
    assert curves[0] != curves[1]
    message = error_of(lambda: list(stack.run(trials)))
    assert "the same optimizers" in message


def test_a_run_resumes_with_its_state(data: str, tmp_path: Path) -> None:
    """A run stopped and resumed is the run in one go: what each optimizer keeps is in the file."""
    settings = {"context": CONTEXT, "shape": SHAPE, "eval_sequences": 8, "log_every": 1}
    whole = TrainConfig(data=data, out=str(tmp_path / "whole"), **settings)  # type: ignore[arg-type]
    parts = replace(whole, out=str(tmp_path / "parts"), stop_after=STEPS // 2)
    train_run(whole, recipe=small(), quiet=True)
    assert train_run(parts, recipe=small(), quiet=True).status == "stopped"
    train_run(replace(parts, stop_after=None), recipe=small(), quiet=True)
    first, second = (load_file(tmp_path / name / FILE) for name in ("whole", "parts"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert "optimizer/momentum_buffer/blocks.0.attn.qkv.weight" in first
    assert "optimizer/exp_avg_sq/blocks.0.attn.qkv.weight" not in first
    assert "optimizer/exp_avg_sq/embedding.weight" in first


def test_several_optimizers_load_as_one() -> None:
    """State goes through `state_dict` and back, and each part looks at what it is given."""
    model = make_model()
    found = cdp.plan(model, mixed(), BASE_SCALE)
    found.initialise()
    batches = token_batches(6)
    optimizer = found.optimizer()
    train(model, optimizer, batches[:3])
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = train(model, optimizer, batches[3:])
    resumed = found.optimizer()
    model.load_state_dict(state[0])
    resumed.load_state_dict(state[1])
    assert train(model, resumed, batches[3:]) == expected
    del state[1]["state"][0]["exp_avg_sq"]
    assert "it is not AdamW's" in error_of(found.optimizer().load_state_dict, state[1])


def test_a_cell_that_is_not_written_down_is_an_error() -> None:
    """An optimizer has all its rows for every role that it has any for."""
    lion = replace(SIGNUM, name="lion")
    try:
        short = {name: row for name, row in SIZE.items() if name != "weight_decay"}
        assert "no cell for weight_decay of hidden_weight with lion" in error_of(
            register, lion, short, TIME
        )
        more = SIZE | {"lr": {**SIZE["lr"], Role.QK_NORM: (LR, LR, LR, LR)}}
        assert "of qk_norm with lion" in error_of(register, lion, more, TIME)
        odd = replace(lion, knobs=(replace(SIGNUM.knobs[0], value="beta1"), *SIGNUM.knobs[1:]))
        assert "call it by another name" in error_of(register, odd, SIZE, TIME)
    finally:
        _forget("lion")


def test_values_are_in_one_order() -> None:
    """Values given in another order are equal, print alike, and do not change."""
    one, other = Values(lr=0.1, momentum=0.5, eps=1e-9), Values(eps=1e-9, momentum=0.5, lr=0.1)
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    with pytest.raises(AttributeError):
        one.lr = 1.0


def test_its_memory_is_kept_too() -> None:
    """`keep` keeps the memory of an optimizer that was registered, as it does AdamW's."""
    ratios = Ratios(batch=4)
    for rule, factor in (("keep", 1.0), ("linear", 4.0)):
        rules = Rules(optimizer=BY_ROLE, beta_rule=rule)
        found = rules.factors("hidden_weight", ratios).to_dict()
        assert found["one_minus_momentum"] == pytest.approx(factor)
