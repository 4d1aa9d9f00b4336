"""Optimizers from a plan: schedules that keep ratios, and states that never bring values back."""

import copy
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import error_of
from models import make_model, make_plan, make_recipe, scale, token_batches, train
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import completedp as cdp
from completedp.apply import adamw as module
from completedp.apply.optimise import attach_schedule, load_optimizer_state, set_learning_rates
from completedp.apply.plan import Plan, plan
from completedp.theory.schedule import Schedule

PER_TYPE = {"lr/type/qkv": 1.0, "eps/type/mlp_in": 2.0, "weight_decay/type/embedding": 1.0}
PLANNED = ("lr", "weight_decay", "eps", "betas", "initial_lr")
SMALL = {"width": 32, "depth": 1, "device": "cpu", "head_dim": 16}


def small_plan(log2: dict[str, float] | None = None, **changes: Any) -> Plan:
    found = make_plan(make_recipe(log2), **(SMALL | changes))
    found.initialise()
    return found


def rates(optimizer: Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def planned_values(optimizer: Optimizer) -> list[tuple[Any, ...]]:
    return [tuple(group.get(name) for name in PLANNED) for group in optimizer.param_groups]


def moments(optimizer: Optimizer) -> dict[str, dict[str, torch.Tensor]]:
    return {
        name: optimizer.state[parameter]
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(warmup=0.2, final=0.1),
        Schedule(kind="constant"),
        Schedule(kind="wsd", decay=0.5),
        Schedule(kind="piecewise", warmup=0.0, boundaries=(0.5,), levels=(1.0, 0.25)),
    ],
    ids=lambda schedule: schedule.kind,
)
def test_attached_schedule_multiplies_planned_rates(schedule: Schedule) -> None:
    """At every step each group's rate is its planned rate times the schedule's multiplier."""
    optimizer = small_plan(PER_TYPE).adamw()
    planned, steps = rates(optimizer), 10
    assert len(set(planned)) > 1
    scheduler = attach_schedule(optimizer, schedule, steps)
    for step in range(steps):
        assert rates(optimizer) == pytest.approx([lr * schedule(step, steps) for lr in planned])
        optimizer.step()
        scheduler.step()
    assert rates(optimizer) == pytest.approx([lr * schedule(steps - 1, steps) for lr in planned])


def test_attached_schedule_keeps_ratios_where_torchs_cosine_does_not() -> None:
    """CosineAnnealingLR with an eta_min pulls the groups together; an attached schedule never."""
    ours, theirs = small_plan(PER_TYPE).adamw(), small_plan(PER_TYPE).adamw()
    ratio = max(rates(ours)) / min(rates(ours))
    for optimizer, scheduler in (
        (ours, attach_schedule(ours, Schedule(warmup=0, final=0.1), 10)),
        (theirs, CosineAnnealingLR(theirs, 10, eta_min=1e-3)),
    ):
        for _ in range(8):
            optimizer.step()
            scheduler.step()
    assert max(rates(ours)) / min(rates(ours)) == pytest.approx(ratio)
    assert max(rates(theirs)) / min(rates(theirs)) < 0.9 * ratio


def test_attaching_twice_starts_from_the_plan() -> None:
    """A second schedule multiplies the planned rates again, not the first one's."""
    optimizer = small_plan().adamw()
    planned = rates(optimizer)
    attach_schedule(optimizer, Schedule(warmup=0.5), 10)
    attach_schedule(optimizer, Schedule(kind="constant", warmup=0), 10)
    assert rates(optimizer) == pytest.approx(planned)


def test_a_schedule_can_be_attached_to_any_optimizer() -> None:
    """Groups without `initial_lr` take their current rate for the planned one."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    attach_schedule(optimizer, Schedule(kind="constant", warmup=0.5), 4)
    assert rates(optimizer) == [0.25]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_set_learning_rates(as_tensor: bool) -> None:
    """By hand too, the multiplier applies to planned rates and does not pile up."""
    optimizer = small_plan(PER_TYPE).adamw()
    planned = rates(optimizer)
    if as_tensor:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    for multiplier in (0.5, 0.25):
        set_learning_rates(optimizer, multiplier)
        assert [float(lr) for lr in rates(optimizer)] == pytest.approx(
            [multiplier * lr for lr in planned]
        )


@pytest.mark.parametrize("name", ["lr", "weight_decay", "eps", "betas"])
def test_planned_values_cannot_be_overruled(name: str) -> None:
    """Values come from the recipe: an argument to the contrary is one line that names it."""
    assert name in error_of(small_plan().adamw, **{name: 1e-3})


def test_options_reach_adamw() -> None:
    """Other options are AdamW's own; fused is only a default."""
    found = small_plan()
    assert found.adamw("torch").defaults["fused"] is True
    unfused = found.adamw(foreach=True, amsgrad=True)
    assert not unfused.defaults["fused"]
    assert unfused.defaults["amsgrad"]
    assert isinstance(unfused, AdamW)
    assert found.adamw(maximize=True).defaults["maximize"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, cdp.AdamW),
        ({"implementation": "completedp"}, cdp.AdamW),
        ({"maximize": True}, cdp.AdamW),
        ({"implementation": "torch"}, AdamW),
        *(({name: True}, AdamW) for name in ("fused", "foreach", "capturable", "amsgrad")),
    ],
)
def test_which_adamw_is_given(options: dict[str, Any], expected: type) -> None:
    """This package's, unless torch's is asked for by name or by an option that only it has."""
    assert type(small_plan().adamw(**options)) is expected


def test_what_only_torchs_adamw_is_good_for() -> None:
    """A GPU without Triton, or with weights that the kernel does not take, gets torch's."""
    on = [torch.empty(2, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    assert module.suits(on)
    cuda = [SimpleNamespace(is_cpu=False, is_cuda=True, dtype=t.dtype) for t in on]
    assert module.suits(cuda[:1]) == (module.triton is not None)
    assert not module.suits(cuda)


def test_unknown_implementations_and_options_are_errors() -> None:
    """A name that is none is quoted; what this package's AdamW cannot do is said."""
    assert "'fast'" in error_of(small_plan().adamw, "fast")
    assert "amsgrad" in error_of(small_plan().adamw, "completedp", amsgrad=True)


@pytest.mark.parametrize(("first", "then"), [("torch", "completedp"), ("completedp", "torch")])
@pytest.mark.parametrize("load", ["own", "planned"])
def test_states_go_from_one_adamw_to_the_other(first: str, then: str, load: str) -> None:
    """A run that changes its AdamW half-way ends with the bits of one that never did.

    torch's own loading also brings how the other ran, fused or not, so there but for rounding.
    """
    batches = token_batches(6)
    through = small_plan(PER_TYPE)
    train(through.model, through.adamw(then), batches)  # type: ignore[arg-type]
    half, rest = small_plan(PER_TYPE), small_plan(PER_TYPE)
    optimizer = half.adamw(first)  # type: ignore[arg-type]
    train(half.model, optimizer, batches[:3])
    rest.model.load_state_dict(half.model.state_dict())
    resumed = rest.adamw(then)  # type: ignore[arg-type]
    state = copy.deepcopy(optimizer.state_dict())
    resumed.load_state_dict(state) if load == "own" else load_optimizer_state(resumed, state)
    train(rest.model, resumed, batches[3:])
    for name, value in through.model.state_dict().items():
        other = rest.model.state_dict()[name]
        torch.testing.assert_close(value, other)
        assert load == "own" or torch.equal(value, other), name


@pytest.mark.parametrize("rules", [cdp.Rules(), cdp.Rules(weight_decay="independent")])
@pytest.mark.parametrize("implementation", ["torch", "completedp"])
def test_a_fresh_optimizer_passes_the_check(rules: cdp.Rules, implementation: Any) -> None:
    """What the plan makes holds what was planned, also half-way through a schedule."""
    found = make_plan(make_recipe(PER_TYPE, rules=rules), **SMALL)
    optimizer = found.adamw(implementation)
    scheduler = attach_schedule(optimizer, Schedule(), 10)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    check = found.check(optimizer)
    assert check.passed
    assert str(len(found.tensors)) in str(check)


def _rate(optimizer: Optimizer) -> None:
    CosineAnnealingLR(optimizer, 10, eta_min=1e-3)
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * group["lr"] + 1e-3


def _times(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= factor


def _twice(optimizer: Optimizer) -> None:
    optimizer.param_groups.append(optimizer.param_groups[0])


def _stranger(optimizer: Optimizer) -> None:
    optimizer.add_param_group({"params": [("stranger", nn.Parameter(torch.ones(7)))]})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_rate, ["schedule", "of its planned lr", "attach_schedule"]),
        (lambda o: o.param_groups[0].update(initial_lr=9.0), ["lr is 9, planned"]),
        (lambda o: o.param_groups[0].update(weight_decay=9.0), ["weight_decay is 9, planned"]),
        (lambda o: o.param_groups[0].update(eps=9.0), ["eps is 9, planned"]),
        (lambda o: o.param_groups[0].update(betas=(0.5, 0.95)), ["beta1 is 0.5, planned"]),
        (lambda o: o.param_groups[0].pop("eps"), ["no eps, planned"]),
        (lambda o: o.param_groups[0].update(betas=(0.9,)), ["no beta2, planned"]),
        (lambda o: o.param_groups[0].update(betas=0.9), ["no beta1, planned", "no beta2"]),
        (lambda o: o.param_groups[2].update(lr=math.nan), ["lr is nan now"]),
        (partial(_times, factor=math.inf), ["lr is inf now"]),
        (partial(_times, factor=-1.0), ["lr is -", "which no schedule makes"]),
        (partial(_times, factor=10.0), ["above its planned", "a schedule only lowers it"]),
        (lambda o: o.param_groups.pop(), ["is in no groups"]),
        (_twice, ["is in 2 groups"]),
        (_stranger, ["a tensor [7] that is not planned"]),
    ],
)
def test_the_check_lists_each_difference(spoil: Any, words: list[str]) -> None:
    """Rates pulled apart, changed values, and tensors missing, doubled or strange are all told."""
    found = small_plan(PER_TYPE)
    optimizer = found.adamw()
    spoil(optimizer)
    check = found.check(optimizer)
    assert not check.passed
    for word in words:
        assert word in str(check)


def test_a_long_check_is_cut() -> None:
    """With many differences the first are printed and the rest counted; all are kept."""
    found = make_plan(make_recipe(), **(SMALL | {"depth": 4, "width": 64}))
    optimizer = found.adamw()
    for group in optimizer.param_groups:
        group["eps"] = 1.0
    check = found.check(optimizer)
    assert len(check.differences) == len(found.tensors)
    assert f"and {len(found.tensors) - 20} more" in str(check)


def trained(log2: dict[str, float] | None = None, steps: int = 3) -> tuple[Plan, AdamW]:
    found = small_plan(log2)
    optimizer = found.adamw()
    train(found.model, optimizer, token_batches(steps))
    return found, optimizer


@pytest.mark.parametrize("cut", ["same", "one group a tensor"])
def test_resuming_is_bit_equal(cut: str) -> None:
    """A run stopped, saved and resumed ends with the bits of one that was never stopped."""
    batches = token_batches(6)
    through = small_plan()
    train(through.model, through.adamw(), batches)
    first = small_plan()
    optimizer = first.adamw()
    if cut != "same":
        optimizer = AdamW(
            [
                {**group, "params": [parameter], "param_names": [name]}
                for group in reversed(first.param_groups())
                for name, parameter in zip(group["param_names"], group["params"], strict=True)
            ],
            fused=True,
        )
    train(first.model, optimizer, batches[:3])
    weights, state = (copy.deepcopy(x.state_dict()) for x in (first.model, optimizer))
    second = small_plan()
    second.model.load_state_dict(weights)
    resumed = second.adamw()
    load_optimizer_state(resumed, state)
    train(second.model, resumed, batches[3:])
    for name, value in through.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.parametrize("scheduler_first", [False, True])
def test_resuming_with_a_schedule_is_bit_equal(scheduler_first: bool) -> None:
    """The first step after a resume is at the schedule's rate for it, and not at its first one."""
    batches, schedule = token_batches(8), Schedule(kind="cosine", warmup=0.2)

    def run(model: nn.Module, optimizer: AdamW, scheduler: Any, some: list[Tensor]) -> None:
        for batch in some:
            train(model, optimizer, [batch])
            scheduler.step()

    through = small_plan(PER_TYPE)
    optimizer = through.adamw()
    run(through.model, optimizer, attach_schedule(optimizer, schedule, 8), batches)
    first = small_plan(PER_TYPE)
    optimizer = first.adamw()
    scheduler = attach_schedule(optimizer, schedule, 8)
    run(first.model, optimizer, scheduler, batches[:5])
    saved = [copy.deepcopy(x.state_dict()) for x in (first.model, optimizer, scheduler)]
    second = small_plan(PER_TYPE)
    second.model.load_state_dict(saved[0])
    optimizer = second.adamw()
    scheduler = attach_schedule(optimizer, schedule, 8)
    if scheduler_first:
        scheduler.load_state_dict(saved[2])
    load_optimizer_state(optimizer, saved[1])
    if not scheduler_first:
        scheduler.load_state_dict(saved[2])
    run(second.model, optimizer, scheduler, batches[5:])
    for name, value in through.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.parametrize("log2", [{}, PER_TYPE])
@pytest.mark.parametrize("saved_by", ["ours", "LambdaLR"])
def test_a_loaded_schedule_goes_on_with_the_planned_rates(
    log2: dict[str, float], saved_by: str
) -> None:
    """A scheduler's state brings its step alone: the rates are those of the new plan, whatever
    plan it was saved with and however that cut the groups."""
    schedule = Schedule(warmup=0.2)
    old = small_plan().adamw()
    before: Any = attach_schedule(old, schedule, 8)
    if saved_by == "LambdaLR":
        before = LambdaLR(old, lambda step: schedule(step, 8))
    for _ in range(3):
        old.step()
        before.step()
    found = make_plan(make_recipe(log2, lr=2**-6), **SMALL)
    optimizer = found.adamw()
    planned = rates(optimizer)
    scheduler = attach_schedule(optimizer, schedule, 8)
    load_optimizer_state(optimizer, old.state_dict())
    scheduler.load_state_dict(copy.deepcopy(before.state_dict()))
    assert rates(optimizer) == scheduler.get_last_lr()
    for step in (3, 4):
        assert rates(optimizer) == pytest.approx([lr * schedule(step, 8) for lr in planned])
        assert found.check(optimizer).passed
        optimizer.step()
        scheduler.step()
    assert set(scheduler.state_dict()) == {"last_epoch", "_step_count"}
    assert "lacks last_epoch" in error_of(scheduler.load_state_dict, {})


def test_the_check_knows_the_attached_schedule() -> None:
    """Rates that are all off by one factor look like a schedule's; not beside the one attached."""
    found = small_plan(PER_TYPE)
    optimizer = found.adamw()
    scheduler = attach_schedule(optimizer, Schedule(kind="constant", warmup=0), 10)
    assert found.check(optimizer).passed
    set_learning_rates(optimizer, 0.5)
    (difference,) = found.check(optimizer).differences
    assert "the schedule attached to it gives" in difference
    assert f"at its step {scheduler.last_epoch}" in difference
    del scheduler
    assert found.check(optimizer).passed


def test_a_rate_in_a_tensor_stays_one() -> None:
    """An attached schedule fills a group's tensor, and what it began with is not filled too."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = AdamW([weight], lr=torch.tensor(0.5), capturable=False)
    lr = optimizer.param_groups[0]["lr"]
    scheduler = attach_schedule(optimizer, Schedule(kind="constant", warmup=0.5), 8)
    for expected in (0.125, 0.25, 0.375, 0.5, 0.5):
        assert optimizer.param_groups[0]["lr"] is lr
        assert float(lr) == expected
        assert optimizer.param_groups[0]["initial_lr"] == 0.5
        optimizer.step()
        scheduler.step()


def test_no_adamw_of_a_model_on_meta() -> None:
    """Its parameters are not those that to_empty makes: one line says what to do first."""
    found = make_plan(make_recipe(), **(SMALL | {"device": "meta"}))
    assert "plan.initialise, before plan.adamw" in error_of(found.adamw)


@pytest.mark.parametrize(("old", "new"), [({}, PER_TYPE), (PER_TYPE, {}), (PER_TYPE, PER_TYPE)])
def test_states_bring_moments_and_never_values(
    old: dict[str, float], new: dict[str, float]
) -> None:
    """Moments arrive by name however the groups were cut, and planned values stay.

    Of the rates only how far a schedule had taken them comes back: here to a quarter.
    """
    _, before = trained(old)
    optimizer = small_plan(new, width=32).adamw(foreach=True)
    set_learning_rates(optimizer, 0.25)
    values = planned_values(optimizer)
    set_learning_rates(optimizer, 0.5)
    state = copy.deepcopy(before.state_dict())
    for group in state["param_groups"]:
        group.update(lr=2.25, weight_decay=9.0, eps=9.0, betas=(0.1, 0.2), initial_lr=9.0)
    load_optimizer_state(optimizer, state)
    assert planned_values(optimizer) == values
    assert not optimizer.param_groups[0]["fused"]
    expected, found = moments(before), moments(optimizer)
    assert expected.keys() == found.keys()
    for name, theirs in expected.items():
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(found[name][key], theirs[key]), (name, key)


def test_torchs_own_loading_would_bring_values_back() -> None:
    """The fault that `load_optimizer_state` avoids: torch's load_state_dict overwrites the plan."""
    optimizer = small_plan().adamw()
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["lr"] = 9.0
    optimizer.load_state_dict(state)
    assert set(rates(optimizer)) == {9.0}


def test_loading_does_not_change_the_state() -> None:
    """The state that was handed in can be used again."""
    _, before = trained()
    state = copy.deepcopy(before.state_dict())
    kept = copy.deepcopy(state)
    load_optimizer_state(small_plan(PER_TYPE).adamw(), state)
    assert state["param_groups"] == kept["param_groups"]
    assert state["state"].keys() == kept["state"].keys()


def test_states_without_names_load_when_groups_agree() -> None:
    """A state saved without tensor names goes by position, if the groups are of the same sizes."""
    _, before = trained()
    state = copy.deepcopy(before.state_dict())
    for group in state["param_groups"]:
        del group["param_names"]
        group.update(lr=9.0, weight_decay=9.0, eps=9.0, betas=(0.1, 0.2), initial_lr=9.0)
    optimizer = small_plan().adamw()
    names = [group["param_names"] for group in optimizer.param_groups]
    values = planned_values(optimizer)
    load_optimizer_state(optimizer, state)
    assert planned_values(optimizer) == values
    assert [group["param_names"] for group in optimizer.param_groups] == names
    assert torch.equal(
        moments(optimizer)["unembedding.weight"]["exp_avg"],
        moments(before)["unembedding.weight"]["exp_avg"],
    )
    error_of(load_optimizer_state, small_plan(PER_TYPE).adamw(), state)


@pytest.mark.parametrize("other", [{"depth": 2}, {"width": 64}, {"vocab": 97}])
def test_states_of_another_model_are_one_line_errors(other: dict[str, Any]) -> None:
    """A state with other tensors, or the same names in other shapes, is refused and names one."""
    _, before = trained()
    optimizer = small_plan(**other).adamw()
    values = planned_values(optimizer)
    message = error_of(load_optimizer_state, optimizer, copy.deepcopy(before.state_dict()))
    assert "another model" in message
    assert "weight" in message
    assert planned_values(optimizer) == values
    assert not optimizer.state


def test_param_groups_work_in_the_users_own_adamw() -> None:
    """The groups are plain: torch's AdamW takes them and trains as `plan.adamw()` does."""
    first, second = small_plan(PER_TYPE), small_plan(PER_TYPE)
    batches = token_batches(2)
    train(first.model, first.adamw(), batches)
    train(second.model, AdamW(second.param_groups(), fused=True), batches)
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_public_names() -> None:
    """The package gives these functions without an import of its rooms."""
    assert cdp.attach_schedule is attach_schedule
    assert cdp.load_optimizer_state is load_optimizer_state
    assert isinstance(make_model(), cdp.Transformer)


def test_a_rate_of_zero_is_a_difference() -> None:
    """An optimizer whose rates were all set to zero differs from the plan, in lines."""
    planned = make_plan(make_recipe(PER_TYPE), **SMALL)
    optimizer = planned.adamw("torch")
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 0.0
    found = planned.check(optimizer)
    assert not found.passed
    assert "lr" in str(found)


@pytest.mark.parametrize("way", ["buffer", "hook"])
def test_multipliers_that_are_not_attached_are_told(way: Any) -> None:
    """A model that was loaded needs `attach`, which no optimizer shows: said until it is done."""
    model = make_model(device="cpu", depth=2)
    planned = plan(model, make_recipe({"residual/global": 1.0}), scale(), multipliers=way)
    optimizer = planned.adamw()
    before = planned.check(optimizer)
    assert before.passed
    assert before.cautions
    assert all("call plan.attach()" in line for line in before.cautions)
    assert "and the model beside it:" in str(before)
    planned.attach()
    assert not planned.check(optimizer).cautions
    first = planned.tensors[0].name
    planned.map.parameters()[first].requires_grad_(False)
    assert planned.check(optimizer).cautions == (
        f"{first} is frozen, and was planned to be trained",
    )


def test_what_torch_alone_can_do_is_torchs() -> None:
    """Options that need torch's AdamW give it, as the docstring says, and none of ours breaks."""
    planned = make_plan(make_recipe(PER_TYPE), **SMALL)
    for option in ("amsgrad", "foreach", "differentiable", "fused"):
        assert type(planned.adamw(**{option: True})) is torch.optim.AdamW


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (torch.optim.Adam, "stepped by Adam,"),
        (torch.optim.RAdam, "stepped by RAdam,"),
        (torch.optim.NAdam, "stepped by NAdam,"),
        (partial(torch.optim.SGD, lr=0.1), "stepped by SGD,"),
        (type("Mine", (torch.optim.Adam,), {}), "stepped by Mine,"),
        (partial(AdamW, maximize=True), "maximize=True"),
        (partial(AdamW, amsgrad=True), "amsgrad=True"),
    ],
)
def test_the_check_knows_other_optimizers(made: Any, word: str) -> None:
    """The planned values in an optimizer that does something else with them are not the plan."""
    found = small_plan(PER_TYPE)
    check = found.check(made(found.param_groups()))
    assert word in str(check)
    assert found.check(AdamW(found.param_groups())).passed
    assert found.check(cdp.AdamW(found.param_groups())).passed


def test_the_check_looks_into_wrappers() -> None:
    """An AdamW inside of another optimizer, as ZeRO has it, is AdamW."""

    class Wrapper(Optimizer):
        def __init__(self, inner: Optimizer) -> None:
            self.optim, self.param_groups = inner, inner.param_groups

    Wrapper.__module__ = "torch.distributed.optim.zero_redundancy_optimizer"
    found = small_plan(PER_TYPE)
    assert found.check(Wrapper(AdamW(found.param_groups()))).passed
    assert "stepped by RAdam" in str(found.check(Wrapper(torch.optim.RAdam(found.param_groups()))))
