"""Slots: a trial in a slot is the trial alone, whatever its neighbours do."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from completedp.apply.plan import Plan, plan
from completedp.common.errors import CompletedpError
from completedp.lm.prepare import prepare_source
from completedp.lm.reference import meta_model
from completedp.lm.shape import Shape
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.tasks.data import make_data
from completedp.tasks.task import make_task
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Ratios, Scale
from completedp.training.config import TrainConfig
from completedp.training.loop import train
from completedp.training.metrics import read_metrics
from completedp.training.runner import Runner
from completedp.training.slots import Slots
from completedp.training.trials import Outcome, Trial

torch.set_num_threads(1)
CONTEXT, SEQUENCES = 16, 4
BASE = Scale(width=16, depth=2, batch=CONTEXT * SEQUENCES, tokens=CONTEXT * SEQUENCES * 30)
TARGET = replace(BASE, width=32)
OPTIONS = {"head_dim": 8, "bias": True, "output_bias": True}
CONFIG = ModelConfig(vocab=257, width=32, depth=2, **OPTIONS)  # type: ignore[arg-type]
SHAPE = Shape(**OPTIONS)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for i in range(60):
        (folder / f"{i:03d}.txt").write_text(f"slot {i} holds trial {i * i} " * 12)
    prepare_source(str(folder), str(folder / "tokens"), valid_fraction=0.1)
    return str(folder / "tokens")


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    base = ModelConfig(vocab=257, width=16, depth=2, **OPTIONS)  # type: ignore[arg-type]
    made = Recipe.for_model(meta_model(base), BASE, lr=2.0**-6, weight_decay=0.3, eps=1e-6)
    multipliers = {"lr/type/qkv": 0.7, "lr/depth/2": -0.4, "residual/type/mlp": -0.3}
    return replace(made, hyperparameters=replace(made.hyperparameters, log2=multipliers))


def plan_for(recipe: Recipe) -> Plan:
    return plan(meta_model(CONFIG), recipe, TARGET)


def make_slots(data: str, count: int, **options: object) -> Slots:
    settings = {"examples": SEQUENCES, "max_steps": 60, "eval_examples": 8, "z_loss": 1e-4}
    settings |= {"weights": torch.float64, "count": count} | options
    return Slots(meta_model(CONFIG), make_data(data, CONTEXT), **settings)  # type: ignore[arg-type]


def by_key(outcomes: list[Outcome]) -> dict[object, Outcome]:
    return {outcome.key: outcome for outcome in outcomes}


@pytest.mark.parametrize("convention", ["torch", "independent"])
@pytest.mark.parametrize("parameterisation", ["completedp", "completep"])
def test_a_slot_agrees_with_the_loop(
    data: str, recipe: Recipe, tmp_path: Path, convention: str, parameterisation: str
) -> None:
    """The same point, seed and data give the loop's loss curve and validation loss, to 1e-9."""
    recipe = recipe.with_rules(weight_decay=convention, parameterisation=parameterisation)
    recipes = [recipe, recipe.with_values(lr=2.0**-7, beta1=0.8)]
    trials = [
        Trial(plan=plan_for(r), seed=seed, steps=30, key=(i, seed))
        for i, r in enumerate(recipes)
        for seed in (0, 1)
    ]
    found = by_key(list(make_slots(data, 4).run(trials)))
    for i, alone in enumerate(recipes):
        config = TrainConfig(
            data=data,
            out=str(tmp_path / f"{i}"),
            width=TARGET.width,
            context=CONTEXT,
            seed=1,
            shape=SHAPE,
            dtype="float64",
            log_every=1,
            eval_sequences=8,
            checkpoint_every=0,
        )
        result = train(config, recipe=alone, quiet=True)
        curve = [r["loss"] for r in read_metrics(tmp_path / f"{i}") if "loss" in r]
        outcome = found[i, 1]
        assert outcome.status == "ok"
        assert outcome.losses == pytest.approx(curve, abs=1e-9)
        assert outcome.valid_loss == pytest.approx(result.valid_loss, abs=1e-9)


def test_float32_follows_the_loop_to_rounding(data: str, recipe: Recipe) -> None:
    """In float32 a slot follows its float64 self to rounding."""
    trial = Trial(plan=plan_for(recipe), seed=0, steps=20)
    (exact,) = make_slots(data, 1).run([trial])
    (rounded,) = make_slots(data, 1, weights=torch.float32).run([trial])
    assert rounded.losses == pytest.approx(exact.losses, abs=1e-3)


def test_a_run_in_parts_is_the_run(data: str, recipe: Recipe) -> None:
    """Begun where another trial ended, in another slot, training is what it is in one go, and two
    that begin there do not touch each other's."""
    planned = plan_for(recipe)
    (whole,) = make_slots(data, 1).run([Trial(plan=planned, seed=3, steps=30)])
    slots = make_slots(data, 2)
    (first,) = slots.run([Trial(plan=planned, seed=3, steps=30, until=13)])
    assert first.state is not None
    assert first.losses == whole.losses[:13]
    rest = Trial(plan=planned, seed=3, steps=30, begin=first.state)
    other = replace(rest, plan=plan_for(recipe.with_values(lr=2.0**-4)), key="other")
    ended = by_key(list(slots.run([other, rest])))
    assert ended[None].losses == pytest.approx(whole.losses[13:], abs=1e-12)
    assert ended[None].valid_loss == pytest.approx(whole.valid_loss, abs=1e-12)
    assert ended[None].state is None
    assert ended["other"].valid_loss != pytest.approx(whole.valid_loss, abs=1e-4)


def test_a_part_that_is_none_is_refused(data: str, recipe: Recipe) -> None:
    """A trial that ends before it begins, or after its run does, is one line."""
    for until in (0, 31):
        trial = Trial(plan=plan_for(recipe), seed=0, steps=30, until=until)
        with pytest.raises(CompletedpError, match=f"until {until}"):
            list(make_slots(data, 1).run([trial]))


def test_refilling_changes_nothing(data: str, recipe: Recipe) -> None:
    """Trials of different lengths through two slots end as they do one at a time."""
    lengths = (7, 30, 12, 5, 26, 1)
    trials = [
        Trial(plan=plan_for(recipe.with_values(lr=2.0 ** -(5 + n % 3))), seed=n, steps=s, key=n)
        for n, s in enumerate(lengths)
    ]
    together = by_key(list(make_slots(data, 2).run(trials)))
    assert len(together) == len(trials)
    alone = make_slots(data, 1)
    for trial in trials:
        (outcome,) = alone.run([trial])
        assert together[trial.key].losses == pytest.approx(outcome.losses, abs=1e-9)
        assert together[trial.key].valid_loss == pytest.approx(outcome.valid_loss, abs=1e-9)
        assert len(outcome.losses) == trial.steps


def test_divergence_stays_in_its_slot(data: str, recipe: Recipe) -> None:
    """A neighbour that turns to NaN leaves the others' curves bit-equal to those without it."""
    tame = [Trial(plan=plan_for(recipe), seed=n, steps=30, key=n) for n in range(3)]
    wild = recipe.with_values(lr=1e300, weight_decay=0.0)
    planted = [tame[0], Trial(plan=plan_for(wild), seed=9, steps=30, key="wild"), *tame[1:]]
    clean = [tame[0], Trial(plan=plan_for(recipe), seed=9, steps=30, key="wild"), *tame[1:]]
    with_nan = by_key(list(make_slots(data, 4, weights=torch.float32).run(planted)))
    without = by_key(list(make_slots(data, 4, weights=torch.float32).run(clean)))
    assert with_nan["wild"].status == "diverged"
    assert with_nan["wild"].valid_loss is None
    assert all(math.isfinite(loss) for loss in with_nan["wild"].losses)
    assert len(with_nan["wild"].losses) < 20
    for n in range(3):
        assert with_nan[n].losses == without[n].losses
        assert with_nan[n].valid_loss == without[n].valid_loss


def test_early_stop_frees_the_slot(data: str, recipe: Recipe) -> None:
    """A trial that the rule stops ends as `stopped`, and the next takes its slot."""
    trials = [Trial(plan=plan_for(recipe), seed=n, steps=50, key=n) for n in range(3)]
    slots = make_slots(data, 1)
    outcomes = list(slots.run(trials, stop=lambda running: [t.key == 1 for t, _ in running]))
    assert [o.status for o in outcomes] == ["ok", "stopped", "ok"]
    assert len(outcomes[1].losses) == 20


@pytest.mark.slow
def test_mixed_trials_keep_slots_busy(data: str, recipe: Recipe) -> None:
    """Different lengths, divergences and early stops leave over 95% of the slot-steps at work."""
    wild = plan_for(recipe.with_values(lr=1e300))
    tame = plan_for(recipe)
    trials = [
        Trial(plan=wild if n % 9 == 4 else tame, seed=n, steps=30 + 7 * (n % 5), key=n)
        for n in range(80)
    ]
    slots = make_slots(data, 4, weights=torch.float32)
    outcomes = list(slots.run(trials, stop=lambda running: [t.key % 11 == 3 for t, _ in running]))
    assert len(outcomes) == 80
    assert {o.status for o in outcomes} == {"ok", "diverged", "stopped"}
    assert slots.busy_steps / slots.slot_steps > 0.95


def test_a_slot_starts_as_the_plan_does(data: str, recipe: Recipe) -> None:
    """A slot's first weights are those of `plan.initialise` with the same seed."""
    slots = make_slots(data, 2, weights=torch.float32)
    trial = Trial(plan=plan_for(recipe), seed=5, steps=1)
    slots.fill(1, trial)
    model = Transformer(CONFIG)
    plan(model, recipe, TARGET).initialise(seed=5)
    for name, parameter in model.named_parameters():
        assert torch.equal(slots._parameters[name][1], parameter)


def test_compiled_slots_agree(data: str, recipe: Recipe) -> None:
    """The compiled program trains what the plain one does, and refills without compiling again."""
    trials = [Trial(plan=plan_for(recipe), seed=n, steps=4 + 3 * n, key=n) for n in range(4)]
    plain = by_key(list(make_slots(data, 2).run(trials)))
    slots = make_slots(data, 2, compile=True)
    found = by_key(list(slots.run(trials[:2])))
    stats = torch._dynamo.utils.counters["stats"]
    made = stats["unique_graphs"]
    assert made >= 3  # a block, what follows the blocks, and AdamW
    found |= by_key(list(slots.run(trials)))
    assert stats["unique_graphs"] == made
    for n in range(4):
        assert found[n].losses == pytest.approx(plain[n].losses, abs=1e-9)


def test_depth_costs_no_compiling(data: str, recipe: Recipe) -> None:
    """A deeper model compiles as many programs as a shallow one: blocks share theirs."""
    stats = torch._dynamo.utils.counters["stats"]
    made = []
    for depth in (2, 5):
        before = stats["unique_graphs"]
        deep = meta_model(replace(CONFIG, depth=depth))
        planned = plan(deep, recipe, replace(TARGET, depth=depth))
        text = make_data(data, CONTEXT)
        slots = Slots(deep, text, count=2, examples=SEQUENCES, max_steps=3, compile=True)
        list(slots.run([Trial(plan=planned, seed=0, steps=3)]))
        made.append(stats["unique_graphs"] - before)
    assert made[0] == made[1] > 0


def test_impossible_stacks(data: str, recipe: Recipe) -> None:
    """No slots, a trial that is too long and a plan of another model are one line each."""
    with pytest.raises(CompletedpError, match="slots = 0"):
        make_slots(data, 0)
    slots = make_slots(data, 1)
    with pytest.raises(CompletedpError, match="61 steps does not fit a stack of 60"):
        list(slots.run([Trial(plan=plan_for(recipe), seed=0, steps=61)]))
    deeper = replace(CONFIG, depth=3)
    other = plan(meta_model(deeper), recipe, replace(TARGET, depth=3))
    with pytest.raises(CompletedpError, match="another model"):
        list(slots.run([Trial(plan=other, seed=0, steps=5)]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_slots_follow_the_loop(data: str, recipe: Recipe, tmp_path: Path) -> None:
    """In bfloat16 on a GPU, compiled and recorded, a slot follows the loop within 0.05 nats."""
    steps = 30
    config = TrainConfig(
        data=data,
        out=str(tmp_path / "alone"),
        width=TARGET.width,
        context=CONTEXT,
        seed=1,
        shape=SHAPE,
        device="cuda",
        dtype="bfloat16",
        log_every=1,
        eval_sequences=8,
        checkpoint_every=0,
    )
    result = train(config, recipe=recipe, quiet=True)
    curve = [r["loss"] for r in read_metrics(tmp_path / "alone") if "loss" in r]
    trials = [Trial(plan=plan_for(recipe), seed=n, steps=steps, key=n) for n in range(4)]
    slots = Slots(
        meta_model(CONFIG, torch.bfloat16),
        make_data(data, CONTEXT),
        count=3,
        examples=SEQUENCES,
        max_steps=60,
        device="cuda",
        z_loss=1e-4,
        eval_examples=8,
        compile=True,
    )
    found = by_key(list(slots.run(trials)))[1]
    assert found.losses == pytest.approx(curve, abs=0.05)
    assert found.valid_loss == pytest.approx(result.valid_loss, abs=0.05)


def test_a_second_scale_is_not_left_with_the_rest(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the stack of one scale holds the memory, that of the next takes its place."""
    task = make_task(None, data, context=16, shape=Shape(head_dim=8))
    runner = Runner(task, compile=False, device="cpu")
    full = lambda device: 0 if runner._stacks else 10**12  # noqa: E731
    monkeypatch.setattr("completedp.training.memory.free_memory", full)
    base = Scale(width=16, depth=1, batch=16, tokens=64)
    for width in (1, 2, 1):
        assert runner.stack(base.times(Ratios(width=width)), 6).count == 6
        assert len(runner._stacks) == 1


def test_scales_that_have_few_slots_even_alone_keep_their_stacks(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clearing the others gains nothing it is tried once, and then both stay."""
    task = make_task(None, data, context=16, shape=Shape(head_dim=8))
    runner = Runner(task, compile=False, device="cpu")
    base = Scale(width=16, depth=1, batch=16, tokens=64)
    scales = [base, base.times(Ratios(depth=2))]
    made: list[Scale] = []
    make = runner._make
    monkeypatch.setattr(
        runner, "_make", lambda scale, _, trials: made.append(scale) or make(scale, 2, trials)
    )
    for _ in range(4):
        for scale in scales:
            runner.stack(scale, 300)
    assert len(made) <= 6  # twice at most for each, and again what went for it
    before = [runner.stack(scale, 300) for scale in scales]
    assert [runner.stack(scale, 300) for scale in scales] == before


def test_a_stack_with_room_leaves_the_others(data: str) -> None:
    """A scale that gets about as many slots as there can be drops nobody."""
    task = make_task(None, data, context=16, shape=Shape(head_dim=8))
    runner = Runner(task, compile=False, device="cpu")
    base = Scale(width=16, depth=1, batch=16, tokens=64)
    first = runner.stack(base, 4)
    runner.stack(base.times(Ratios(depth=2)), 4)
    assert runner.stack(base, 4) is first
