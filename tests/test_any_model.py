"""Any model in every verb: searched, swept and trained from Python and from the command line."""

import functools
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_models as own
import pytest
import torch
from helpers import error_of
from studies import write_tokens
from torch import Tensor, nn

import completedp as cdp
from completedp.apply.classify import read
from completedp.lm.reference import ReferenceModel
from completedp.lm.shape import Shape
from completedp.studies.session import search
from completedp.studies.spec import StudySpec
from completedp.studies.store import Store
from completedp.tasks.losses import next_token_loss
from completedp.tasks.sources import HuggingFace, maker_from, name_of
from completedp.tasks.task import Task, make_task
from completedp.theory.scale import Ratios, Scale
from completedp.training.devices import choose_device
from completedp.training.metrics import read_metrics
from completedp.training.runner import Runner
from completedp.training.sequential import OneAtATime
from completedp.training.slots import Slots
from completedp.training.stacked import check_lookups

torch.set_num_threads(1)
CONTEXT, STEPS = 16, 12
TEXT = Scale(width=16, depth=2, batch=4 * CONTEXT, tokens=4 * CONTEXT * STEPS)
IMAGES = Scale(width=16, depth=2, batch=8, tokens=8 * STEPS)
QUICK: dict[str, Any] = {"slots": 3, "device": "cpu", "compile": False, "quiet": True}
VIT: dict[str, Any] = {
    "data": own.images,
    "loss": own.classification,
    "overrides": own.VIT_OVERRIDES,
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokens(tmp_path_factory.mktemp("text"))


def case(name: str, tokens: str) -> tuple[Any, dict[str, Any]]:
    """A user's model, and what it is searched with."""
    text = {"base": TEXT, "context": CONTEXT, "data": tokens}
    return {
        "nano": (own.nano, text),
        "qwen3": (own.qwen3, text),
        "vit": (own.vit, {"base": IMAGES, **VIT}),
        "masked": (own.masked, text | {"data": own.masked_text, "loss": own.masked_loss}),
    }[name]


def task_of(name: str, tokens: str) -> tuple[Task, Scale]:
    make, options = case(name, tokens)
    base = options.pop("base")
    return make_task(make, eval_examples=8, **options), base


NAMES = ["nano", "qwen3", "vit", "masked"]


@pytest.mark.parametrize("name", NAMES)
def test_one_call_searches_a_users_model(name: str, tokens: str, tmp_path: Path) -> None:
    """One call searches it in slots, a second goes on, and the best recipe has its ladder."""
    make, options = case(name, tokens)
    options |= {"store": str(tmp_path / "search.db"), "eval_examples": 8, "space": "type"}
    with search(make, trials=5, **options, **QUICK) as study:
        losses = {row.number: row.loss for row in study.trials()}
    assert sorted(losses) == list(range(5))
    assert all(loss is not None and loss < 10 for loss in losses.values())
    with search(make, trials=7, **options, **QUICK) as study:
        assert {row.number: row.loss for row in study.trials()[:5]} == losses
        rung = options["base"].times(Ratios(width=2, depth=1.5, tokens=2))
        recipe = study.best(rungs=[rung], seeds=2, quiet=True)
    assert recipe.base == options["base"]
    assert recipe.overrides == options.get("overrides", {})
    assert recipe.evidence is not None
    assert [each.scale for each in recipe.evidence.rungs] == [options["base"], rung]
    assert recipe.evidence.ranges(recipe.base)["width"] == (1.0, 2.0)
    # The recipe alone, with nothing said again, plans the larger model.
    assert cdp.plan(make(rung), recipe, rung).ratios.width == 2.0


@pytest.mark.parametrize("name", NAMES)
def test_slots_agree_with_one_at_a_time(name: str, tokens: str) -> None:
    """A user's model trains in a slot as it does alone: every loss, and on held-out data."""
    task, base = task_of(name, tokens)
    runner = Runner(task, slots=2, device="cpu", compile=False)
    alone = OneAtATime(task, base, device=choose_device("cpu"), dtype=torch.float32)
    recipe = task.recipe(base, lr=2.0**-6)
    trials = [runner.trial(recipe.with_values(lr=lr), base, 3, lr) for lr in (2.0**-6, 2.0**-8)]
    stack = runner.stack(base)
    assert isinstance(stack, Slots)
    together = {outcome.key: outcome for outcome in stack.run(trials)}
    for outcome in alone.run(trials):
        found = together[outcome.key]
        assert found.losses == pytest.approx(outcome.losses, rel=2e-4)
        assert found.valid_loss == pytest.approx(outcome.valid_loss, rel=2e-4)
        assert found.losses[-1] < found.losses[0]


def test_a_model_that_slots_refuse_is_searched_all_the_same(tokens: str, tmp_path: Path) -> None:
    """Dropout keeps a model out of slots: it trains one trial at a time, and a line says why."""
    options: dict[str, Any] = {"context": CONTEXT, "store": str(tmp_path / "s.db"), "trials": 3}
    with (
        pytest.warns(UserWarning, match="one trial at a time: attention with dropout_p = 0.1"),
        search(own.nano_with_dropout, TEXT, tokens, eval_examples=8, **options, **QUICK) as study,
    ):
        assert [row.status for row in study.trials()] == ["ok"] * 3


class Hooked(nn.Module):
    """A block whose branches end in norms: its multipliers are hooks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = own.CausalSelfAttention(width), own.MLP(width)
        self.post_attention_layernorm = nn.LayerNorm(width, elementwise_affine=False)
        self.post_feedforward_layernorm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(x))
        return x + self.post_feedforward_layernorm(self.mlp(x))


def hooked(scale: Scale) -> nn.Module:
    """A nanoGPT of such blocks."""
    model = own.NanoGPT(scale.width, scale.depth)
    model.h = nn.ModuleList(Hooked(scale.width) for _ in range(scale.depth))
    return model


def test_a_model_with_hooks_is_searched_one_at_a_time(tokens: str, tmp_path: Path) -> None:
    """Multipliers by hooks differ from trial to trial, which one program for all cannot have."""
    options: dict[str, Any] = {"context": CONTEXT, "store": str(tmp_path / "s.db"), "trials": 3}
    with (
        pytest.warns(UserWarning, match="one trial at a time: the multipliers of its residual"),
        search(hooked, TEXT, tokens, eval_examples=8, **options, **QUICK) as study,
    ):
        losses = [row.loss for row in study.trials()]
    assert len(set(losses)) == 3


@pytest.mark.parametrize("name", ["nano", "vit", "masked"])
def test_the_loop_agrees_with_a_slot(name: str, tokens: str, tmp_path: Path) -> None:
    """`cdp.train` gives the loss curve that the same trial has in a slot, also when resumed."""
    make, options = case(name, tokens)
    base = options.pop("base")
    task, _ = task_of(name, tokens)
    recipe = task.recipe(base, lr=2.0**-6)
    target = base.times(Ratios(width=2))
    runner = Runner(task, slots=1, device="cpu", compile=False)
    (slot,) = runner.run([runner.trial(recipe, target, 5, None)], target)
    arguments = (make, recipe, target, options.pop("data"), tmp_path / "run")
    options |= {"seed": 5, "log_every": 1, "eval_examples": 8, "device": "cpu", "quiet": True}
    assert cdp.train(*arguments, stop_after=5, **options).status == "stopped"
    result = cdp.train(*arguments, **options)
    curve = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert curve == pytest.approx(slot.losses, rel=2e-4)
    assert result.valid_loss == pytest.approx(slot.valid_loss, rel=2e-4)


@pytest.mark.parametrize("name", ["vit", "masked"])
def test_a_users_model_is_swept(name: str, tokens: str, tmp_path: Path) -> None:
    """A sweep of any coordinate of a user's model has a verdict at every scale, and resumes."""
    make, options = case(name, tokens)
    settings: dict[str, Any] = {"vary": "lr/type/qkv", "octaves": (-2, 0, 2), "seeds": 1}
    settings |= {"factors": (1, 2), "eval_examples": 8, "out": tmp_path / "sweep"}
    found = cdp.sweep(make, **options, **settings, **QUICK)
    assert [(line.axis, line.factor) for line in found.lines] == [("base", 1), ("width", 2)]
    assert all(len(line.losses) == 3 for line in found.lines)
    again = cdp.sweep(make, **options, **settings, **QUICK)
    assert again.to_dict() == found.to_dict()
    assert "lr/type/qkv" in str(found)


def test_a_hugging_face_config_grows(tmp_path: Path) -> None:
    """`hf:` at a width and depth is the family's own model of that size, tokens as the data's."""
    from transformers import Qwen3Config

    own.qwen3_config(Qwen3Config, 32, 3).save_pretrained(tmp_path)
    make = maker_from(f"hf:{tmp_path}", vocab=own.VOCAB)
    assert isinstance(make, HuggingFace)
    for width, depth in ((16, 2), (64, 5)):
        scale = replace(TEXT, width=width, depth=depth)
        mine, theirs = make(scale), own.qwen3(scale)
        shapes = [{n: p.shape for n, p in m.named_parameters()} for m in (mine, theirs)]
        assert shapes[0] == shapes[1]
    assert "multiple of 16" in error_of(make, replace(TEXT, width=24))


def test_heads_are_counted_in_whole_numbers() -> None:
    """A width that is a multiple of a head has its heads, whatever its ratio is as a fraction."""
    from transformers import Qwen3Config

    for heads in (14, 25, 71):
        sizes = {"num_attention_heads": heads, "num_key_value_heads": heads}
        config = Qwen3Config(hidden_size=64 * heads, head_dim=64, **sizes)
        make = HuggingFace("hf:model", config)
        for more in range(1, 100):
            scaled = make.scaled(replace(TEXT, width=64 * more, depth=2))
            assert scaled.num_attention_heads == scaled.num_key_value_heads == more


class Patches(own.ViT):
    """A ViT whose patches are embedded by a convolution."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.patch_embedding = nn.Conv2d(1, width, own.PATCH, own.PATCH, bias=False)  # type: ignore[assignment]

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding(images[:, None]).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def test_a_convolution_embeds_patches(tmp_path: Path) -> None:
    """Patches by a convolution are an input's embedding, as wide as its output, and searched."""

    def make(scale: Scale) -> nn.Module:
        return Patches(scale.width, scale.depth)

    task = make_task(make, own.images, loss=own.classification, overrides=own.VIT_OVERRIDES)
    tensor = task.plan(task.recipe(IMAGES), IMAGES.times(Ratios(width=2)))["patch_embedding.weight"]
    assert (tensor.info.width, tensor.width_ratio) == (32, 2.0)
    store = str(tmp_path / "search.db")
    with search(make, IMAGES, **VIT, trials=3, store=store, eval_examples=8, **QUICK) as study:
        assert [row.status for row in study.trials()] == ["ok"] * 3


def test_a_search_says_its_doubts_its_cost_and_what_it_found(
    tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, too: a base that is too short before it is searched, and the ladder at the end."""
    loud = QUICK | {"quiet": False, "context": CONTEXT, "eval_examples": 8}
    with pytest.warns(cdp.ScaleWarning, match="base is small or short: .*12 steps"):
        study = search(own.nano, TEXT, tokens, trials=2, store=str(tmp_path / "s.db"), **loud)
    assert "cost: 2 trials" in capsys.readouterr().err
    study.best((), seeds=1)
    study.close()
    said = capsys.readouterr().err
    assert "cost: " in said
    assert "1 fresh seed:" in said
    assert "    start " in said


def test_a_recipe_brings_its_overrides(tmp_path: Path) -> None:
    """What a recipe was searched with need not be said again: to sweep, to search, to train and
    for what these cost."""
    given = make_task(own.vit, own.images, loss=own.classification, overrides=own.VIT_OVERRIDES)
    recipe = given.recipe(IMAGES)
    rest = {"data": own.images, "loss": own.classification, "eval_examples": 8}
    with search(own.vit, recipe=recipe, **rest, trials=1, store=str(tmp_path / "s.db"), **QUICK):
        pass
    found = cdp.sweep(
        own.vit, recipe=recipe, **rest, factors=(1,), seeds=1, out=tmp_path / "sweep", **QUICK
    )
    assert len(found.lines) == 1
    result = cdp.train(own.vit, recipe, IMAGES, out=tmp_path / "run", device="cpu", **rest)
    assert result.status == "ok"


def test_frozen_tensors_keep_a_model_out_of_slots(tokens: str) -> None:
    """A frozen tensor has no plan: the model trains one trial at a time, with its own values."""

    def make(scale: Scale) -> nn.Module:
        model = own.nano(scale)
        model.wpe.requires_grad_(False)  # type: ignore[union-attr]
        return model

    task = make_task(make, tokens, context=CONTEXT, eval_examples=8)
    runner = Runner(task, device="cpu", compile=False)
    trial = runner.trial(task.recipe(TEXT), TEXT, 0, None)
    with pytest.warns(UserWarning, match=r"wpe\.weight is frozen"):
        (outcome,) = runner.run([trial], TEXT)
    assert outcome.status == "ok"


HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "completedp"]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in the folder of this file, whose modules it finds."""
    found = subprocess.run(
        [*COMMAND, *arguments], cwd=HERE, capture_output=True, text=True, **options
    )
    assert found.returncode == 0, found.stderr
    return found


def sized(scale: Scale) -> list[str]:
    return [part for name, size in scale.to_dict().items() for part in (f"--{name}", str(size))]


def vit_options(tmp_path: Path) -> list[str]:
    sources = ["--model", "own_models:vit", "--data", "own_models:images"]
    return [*sources, "--loss", "own_models:classification", "--store", str(tmp_path / "s.db")]


OVERRIDES = ["--override", *(f"{pattern}={kind}" for pattern, kind in own.VIT_OVERRIDES.items())]
ALONE = ["--no-compile", "--device", "cpu", "--slots", "2", "--lease", "2"]


def test_the_command_line_searches_a_users_model(tmp_path: Path) -> None:
    """start, worker and best of a ViT from the command line; killed with -9, start goes on."""
    start = [*COMMAND, "search", "start", *vit_options(tmp_path), *OVERRIDES, *ALONE]
    start += ["--eval-sequences", "8", *sized(replace(IMAGES, tokens=8 * 60))]
    victim = subprocess.Popen(
        [*start, "--trials", "40"], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(600):
        time.sleep(0.1)
        if (tmp_path / "s.db").exists() and finished(tmp_path) >= 2:
            break
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    before = finished(tmp_path)
    assert 2 <= before < 40
    with Store(str(tmp_path / "s.db")) as store:
        kept = {row.number: row.loss for row in store.study().trials() if row.state == "finished"}
        spec = StudySpec.from_dict(store.study().spec)
    assert spec.task["model"] == "own_models:vit"
    # The rest is cut short: only what was running has to be run again, by a worker.
    with Store(str(tmp_path / "s.db")) as store:
        database = store._database
        database.run(
            lambda c: c.exec_driver_sql(f"UPDATE completedp_studies SET budget = {before + 2}"),
            write=True,
        )
    run("search", "worker", *vit_options(tmp_path), *ALONE)
    with Store(str(tmp_path / "s.db")) as store:
        rows = store.study().trials()
    assert all(row.state == "finished" for row in rows)
    assert {row.number: row.loss for row in rows if row.number in kept} == kept
    out = tmp_path / "recipe.json"
    said = run("search", "best", *vit_options(tmp_path), *ALONE, "--seeds", "1", "--out", str(out))
    assert "fresh seed" in said.stdout
    assert cdp.Recipe.load(out).overrides == own.VIT_OVERRIDES


@pytest.mark.slow
def test_the_command_line_takes_functions_and_configs(tokens: str, tmp_path: Path) -> None:
    """A nanoGPT by name and a Qwen3 by its config are searched by one command each."""
    from transformers import Qwen3Config

    own.qwen3_config(Qwen3Config, 32, 3).save_pretrained(tmp_path / "qwen3")
    settings = ["--data", tokens, "--context", str(CONTEXT), "--eval-sequences", "8", *sized(TEXT)]
    for model in ("own_models:nano", f"hf:{tmp_path / 'qwen3'}"):
        store = str(tmp_path / f"{model.split(':')[0]}.db")
        said = run(
            "search",
            "start",
            "--model",
            model,
            "--trials",
            "3",
            "--store",
            store,
            "--json",
            *settings,
            *ALONE,
        )
        assert json.loads(said.stdout)["counts"]["finished"] == 3


def finished(tmp_path: Path) -> int:
    with Store(str(tmp_path / "s.db")) as store:
        names = store.studies()
        return store.study().counts()["finished"] if names else 0


@pytest.mark.slow
def test_python_and_the_command_line_mean_the_same_study(tokens: str, tmp_path: Path) -> None:
    """A search begun by the command goes on from Python, of a user's model and the reference."""
    settings = ["--data", tokens, "--context", str(CONTEXT), "--eval-sequences", "8", *sized(TEXT)]
    options: dict[str, Any] = {"base": TEXT, "data": tokens, "context": CONTEXT}
    cases = {
        "own": (["--model", "own_models:nano"], own.nano),
        "reference": (["--head-dim", "8"], ReferenceModel(vocab=257, shape=Shape(head_dim=8))),
    }
    for name, (model, make) in cases.items():
        store = str(tmp_path / f"{name}.db")
        run("search", "start", "--trials", "1", "--store", store, *model, *settings, *ALONE)
        with search(make, **options, trials=2, store=store, eval_examples=8, **QUICK) as study:
            assert len({row.worker for row in study.trials()}) == 2


def test_a_stream_that_ends_is_no_trial(tokens: str) -> None:
    """Data that end, or change their size, are one line, in slots, alone and in the loop."""

    def short(split: str, examples: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        source = own.masked_text(split, examples, seed)
        return itertools.islice(source, 5) if split == "train" else source

    def uneven(split: str, examples: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step, (inputs, labels) in enumerate(own.masked_text(split, examples, seed)):
            keep = examples - (step == 3 and split == "train")
            yield inputs[:keep], labels[:keep]

    for data, said in ((short, "ended after 5 batches"), (uneven, "batch 3 of the data")):
        task = make_task(own.masked, data, loss=own.masked_loss, context=CONTEXT, eval_examples=8)
        runner = Runner(task, slots=2, device="cpu", compile=False)
        trial = runner.trial(task.recipe(TEXT), TEXT, 0, None)
        alone = OneAtATime(task, TEXT, device=choose_device("cpu"), dtype=torch.float32)
        for outcomes in (runner.run([trial], TEXT), alone.run([trial])):
            assert said in error_of(list, outcomes)


def test_train_refuses_options_that_it_would_not_use(tokens: str, tmp_path: Path) -> None:
    """What belongs to the recipe or the task is refused, not swallowed."""
    task, base = task_of("nano", tokens)
    arguments = (own.nano, task.recipe(base), base, tokens, tmp_path / "run")
    assert "'lr'" in error_of(cdp.train, *arguments, context=CONTEXT, lr=0.1)


def test_the_command_line_trains_on_images(tmp_path: Path) -> None:
    """`train` of a ViT ends with its loss, which is not of tokens."""
    task = make_task(own.vit, **VIT)
    task.recipe(IMAGES).save(tmp_path / "recipe.json")
    sources = vit_options(tmp_path)[:-2]
    said = run(
        "train",
        *sources,
        "--recipe",
        str(tmp_path / "recipe.json"),
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "run"),
        "--eval-sequences",
        "8",
    )
    assert "validation loss" in said.stdout
    assert f"and {IMAGES.tokens} examples: validation loss" in said.stdout
    assert f" {IMAGES.tokens} examples, " in said.stderr
    assert " examples/s" in said.stderr
    assert not re.search(r"\d tokens|tokens/s", said.stdout + said.stderr)


def test_what_is_no_text_is_counted_in_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cautions, estimates, progress and the ladder's lines count what the data have."""
    options: dict[str, Any] = VIT | QUICK | {"quiet": False, "store": str(tmp_path / "s.db")}
    study = search(own.vit, IMAGES, trials=1, space="global", **options)
    recipe = study.best(rungs=[IMAGES.times(Ratios(width=2))], seeds=1)
    said = "".join(capsys.readouterr())
    assert f"width 32, depth 2, batch 8 examples, {IMAGES.tokens} examples" in said
    assert not re.search(r"\d tokens", said)
    assert recipe.evidence is not None
    assert recipe.evidence.tokens_per_parameter is None  # what is enough is known of text alone
    target = recipe.base.times(Ratios(width=2))
    assert "a parameter" not in str(cdp.plan(own.vit(target), recipe, target, probe=False))
    data = make_task(own.vit, **VIT).data
    (caution,) = data.cautions(replace(IMAGES, tokens=100 * IMAGES.tokens))
    assert "9,600 examples are" in caution
    assert "take fewer examples" in caution
    text = make_task(own.masked, own.masked_text, loss=own.masked_loss, context=CONTEXT)
    assert text.data.counted == "tokens"


class OnlyInTraining(own.ViT):
    """Gives nothing but zeros in evaluation, so that its loss there is that of guessing."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * float(self.training)


def only_in_training(scale: Scale) -> nn.Module:
    """Left in evaluation mode by its maker."""
    return OnlyInTraining(scale.width, scale.depth).eval()


def test_models_train_in_training_mode_and_are_judged_in_evaluation(tmp_path: Path) -> None:
    """In slots, alone and in the loop a model is judged as it would serve."""
    task = make_task(only_in_training, eval_examples=8, **VIT)
    recipe = task.recipe(IMAGES)
    runner = Runner(task, slots=1, device="cpu", compile=False)
    trial = runner.trial(recipe, IMAGES, 0, None)
    alone = OneAtATime(task, IMAGES, device=choose_device("cpu"), dtype=torch.float32)
    guessing = pytest.approx(math.log(own.CLASSES))
    for outcomes in (runner.run([trial], IMAGES), alone.run([trial])):
        (outcome,) = outcomes
        assert outcome.valid_loss == guessing
        assert outcome.losses[-1] < outcome.losses[0]
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu", "quiet": True, **VIT}
    result = cdp.train(only_in_training, recipe, IMAGES, eval_examples=8, eval_every=4, **options)
    assert result.valid_loss == guessing
    assert result.train_loss == pytest.approx(outcome.losses[-1], rel=2e-4)


def below_zero(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """A loss that is negative from the start."""
    return own.classification(model, images, labels) - 3.0


def test_losses_below_zero_are_no_divergence(tmp_path: Path) -> None:
    """What a loss is counted from does not matter: a search of a shifted one finds the same."""
    found = []
    for name, loss in (("plain", own.classification), ("shifted", below_zero)):
        options = VIT | {"loss": loss, "store": str(tmp_path / f"{name}.db"), "trials": 3}
        with search(own.vit, IMAGES, eval_examples=8, **options, **QUICK) as study:
            found.append([row.loss for row in study.trials()])
    assert found[1] == pytest.approx([x - 3.0 for x in found[0]], rel=1e-4)


def test_functions_without_names_are_told_apart(tmp_path: Path) -> None:
    """A study does not go on with another lambda, closure or partial than it began with."""
    options = VIT | {"store": str(tmp_path / "s.db"), "eval_examples": 8}

    def scaled_by(factor: float) -> Any:
        return lambda model, images, labels: factor * own.classification(model, images, labels)

    options["loss"] = scaled_by(1.0)
    search(own.vit, IMAGES, trials=1, **options, **QUICK).close()
    search(own.vit, IMAGES, trials=2, **options | {"loss": scaled_by(1.0)}, **QUICK).close()
    again = options | {"loss": scaled_by(100.0)}
    assert "task.loss" in error_of(search, own.vit, IMAGES, trials=2, **again, **QUICK)
    partials = [functools.partial(own.classification, weight=w) for w in (1, 2)]
    assert name_of(partials[0]) != name_of(partials[1])


class Counting(own.ViT):
    """Keeps a count in a buffer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        self.seen.add_(1)  # type: ignore[operator]
        return super().forward(images) * (1 + 0.01 * self.seen)  # type: ignore[operator]


class CountingInPython(own.ViT):
    """Keeps a count as an attribute."""

    seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += self.training
        return super().forward(images) * (1 + 0.01 * self.seen)


@pytest.mark.parametrize("kind", [Counting, CountingInPython])
@pytest.mark.parametrize("slots", [1, 2])
def test_what_a_pass_changes_keeps_a_model_out_of_slots(kind: Any, slots: int) -> None:
    """State that a forward pass keeps cannot leak from one trial into the next."""
    task = make_task(lambda s: kind(s.width, s.depth), eval_examples=8, **VIT)
    runner = Runner(task, slots=slots, device="cpu", compile=False)
    trials = [runner.trial(task.recipe(IMAGES), IMAGES, 0, key) for key in range(3)]
    with pytest.warns(UserWarning, match="its forward pass changes seen"):
        one, *others = runner.run(trials, IMAGES)
    assert all(one.losses == other.losses for other in others)


def on_meta(scale: Scale) -> nn.Module:
    """A model made without memory, its buffers' values lost."""
    with torch.device("meta"):
        return Counting(scale.width, scale.depth)


def test_models_that_cannot_be_trained_are_one_line(tokens: str) -> None:
    """Buffers without values, exits, failing losses and odd examples are said in a line."""

    def leaves(scale: Scale) -> nn.Module:
        sys.exit(3)

    def broken(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return own.classification(model, images, labels[:-1])

    def odd(split: str) -> list[dict[str, Tensor]]:
        first = {"x": torch.zeros(2), "y": torch.ones(())}
        return [first, {"x": torch.zeros(2), "z": torch.ones(())}]

    assert "buffer seen is on the meta device" in error_of(make_task(on_meta, **VIT).blank, IMAGES)
    assert "SystemExit: 3" in error_of(make_task(leaves, **VIT).blank, IMAGES)
    task = make_task(own.vit, **VIT | {"loss": broken})
    alone = OneAtATime(task, IMAGES, device=choose_device("cpu"), dtype=torch.float32)
    trial = Runner(task, device="cpu").trial(task.recipe(IMAGES), IMAGES, 0, None)
    assert "own_models:vit fails on a batch: ValueError" in error_of(list, alone.run([trial]))
    assert "other keys, ['x', 'z']" in error_of(make_task, own.vit, odd)


def test_a_maker_builds_a_new_model_at_every_call(tokens: str) -> None:
    """A function that gives one model again and again is told so: trials cannot share it."""
    model = own.NanoGPT(TEXT.width, TEXT.depth)
    task = make_task(lambda scale: model, tokens, context=CONTEXT)
    task.blank(TEXT)
    assert "gave the same model twice" in error_of(task.model, TEXT)


def test_dropout_is_seeded_and_resumes(tokens: str, tmp_path: Path) -> None:
    """With dropout a run is the same when asked for again, when resumed, and as a trial alone."""
    task = make_task(own.nano_with_dropout, tokens, context=CONTEXT, eval_examples=8)
    recipe = task.recipe(TEXT)
    options: dict[str, Any] = {"context": CONTEXT, "seed": 3, "device": "cpu", "quiet": True}
    options |= {"eval_examples": 8}

    def trained(name: str, **more: Any) -> Any:
        arguments = (own.nano_with_dropout, recipe, TEXT, tokens, tmp_path / name)
        return cdp.train(*arguments, **options, **more)

    whole = trained("whole")
    trained("parts", stop_after=5)
    assert trained("parts").valid_loss == whole.valid_loss
    alone = OneAtATime(task, TEXT, device=choose_device("cpu"), dtype=torch.float32)
    (outcome,) = alone.run([Runner(task, device="cpu").trial(recipe, TEXT, 3, None)])
    assert outcome.valid_loss == pytest.approx(whole.valid_loss, rel=2e-4)


def test_a_lookup_past_a_table_is_one_line_on_a_gpu_too() -> None:
    """A context longer than a model's positions is said before a GPU kernel could fail on it."""
    model = own.nano(Scale(width=16, depth=1, batch=128, tokens=128))
    fits, long = (torch.zeros(1, n, dtype=torch.int64) for n in (64, 65))
    check_lookups(model, next_token_loss, (fits, fits))
    message = error_of(check_lookups, model, next_token_loss, (long, long))
    assert "looks up an entry that it does not have" in message
    assert "every position of the context" in message


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_search_of_a_gpu_says_what_is_too_long(tokens: str, tmp_path: Path) -> None:
    """On a GPU such a search ends with that line, not with a failed kernel."""
    base = Scale(width=16, depth=1, batch=256, tokens=2560)
    message = error_of(
        search, own.nano, base, tokens, 4, str(tmp_path / "s.db"), 128, device="cuda", quiet=True
    )
    assert "looks up an entry that it does not have" in message


def test_a_run_with_other_overrides_is_another_run(tokens: str, tmp_path: Path) -> None:
    """Resumed from Python with other overrides, and so with other values, a run is refused."""
    recipe = make_task(None, tokens, context=CONTEXT, shape=Shape(head_dim=8)).recipe(TEXT, lr=0.01)
    options: dict[str, Any] = {"data": tokens, "out": tmp_path / "run", "context": CONTEXT}
    options |= {"device": "cpu", "quiet": True}
    first, other = {r"attn\.out": "attn_out"}, {r"attn\.out": "mlp_out"}
    cdp.train(None, recipe, TEXT, overrides=first, stop_after=2, **options)
    assert "override" in error_of(cdp.train, None, recipe, TEXT, overrides=other, **options)
    assert cdp.train(None, recipe, TEXT, overrides=first, **options).status == "ok"


class WithPatchBias(own.ViT):
    """As most have it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.patch_embedding = nn.Linear(own.PATCH**2, width)


def with_patch_bias(scale: Scale) -> nn.Module:
    return WithPatchBias(scale.width, scale.depth)


def test_the_bias_of_patches_is_of_the_input() -> None:
    """Named with its weight, the bias of an embedding has the input's rules, whose eps falls with
    the width as its gradient does, and starts at 0."""
    recipe = cdp.Recipe.for_model(with_patch_bias(IMAGES), IMAGES, overrides=own.VIT_OVERRIDES)
    wide = replace(IMAGES, width=64)
    found = cdp.plan(with_patch_bias(wide), recipe, wide)
    bias, weight = found["patch_embedding.bias"], found["patch_embedding.weight"]
    assert (bias.info.type, bias.info.role) == ("embedding_bias", "input_bias")
    assert (bias.lr, bias.eps, bias.init_value) == (weight.lr, weight.eps, 0.0)
    assert bias.eps == pytest.approx(recipe.values.eps / 4)
    vit = VIT | {"make": with_patch_bias}
    check = cdp.gradcheck(
        **vit, widths=(16, 32, 64, 128), depths=(2,), batch=64, steps=4, quiet=True
    )
    (row,) = [r for r in check.rows if (r.quantity, r.what) == ("gradient", "embedding_bias")]
    assert row.expected == -1.0
    assert row.verdict == "pass"


def test_the_width_of_images_is_that_of_the_norms(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a table of tokens the blocks' norms tell the width of the stream, so that matrices
    in blocks are known by what they read and write, and no type is offered that cannot be."""
    with torch.device("meta"):
        reading = read(with_patch_bias(IMAGES))
    known = {tensor.name: tensor.type for tensor in reading.known}
    assert known["blocks.0.attn.c_attn.weight"] == "qkv"
    assert known["blocks.0.mlp.c_proj.weight"] == "mlp_out"
    offered = {kind for each in reading.suggestions for kind in each.types}
    assert not offered & {"latent_up", "q_norm", "k_norm"}


def detached(model: nn.Module, *batch: Tensor) -> Tensor:
    return next_token_loss(model, *batch).detach()


def test_a_loss_that_moves_nothing_is_one_line(tokens: str, tmp_path: Path) -> None:
    """A loss that was detached is told, by a run and by a search, before anything is trained."""
    recipe = cdp.Recipe.for_model(own.nano(TEXT), TEXT, lr=0.01)
    options: dict[str, Any] = {"data": tokens, "loss": detached, "context": CONTEXT, "quiet": True}
    out = {"out": tmp_path / "run", "device": "cpu"}
    assert "does not depend on any weight" in error_of(
        cdp.train, own.nano, recipe, TEXT, **options, **out
    )


def test_a_context_of_nothing_is_refused(tokens: str) -> None:
    """0 is not the usual context."""
    assert "context = 0" in error_of(make_task, None, tokens, context=0)


def test_large_seeds_are_seeds(tokens: str, tmp_path: Path) -> None:
    """A time in milliseconds is a seed that people give; a model that draws has it, too."""
    recipe = cdp.Recipe.for_model(own.nano_with_dropout(TEXT), TEXT, lr=0.01)
    options: dict[str, Any] = {"data": tokens, "context": CONTEXT, "quiet": True, "device": "cpu"}
    run = cdp.train(
        own.nano_with_dropout, recipe, TEXT, out=tmp_path / "run", seed=1_763_427_600_000, **options
    )
    assert run.status == "ok"


FACTOR = 1.0


def scaled_classification(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """A loss whose code may change under its name."""
    return FACTOR * own.classification(model, images, labels)


def test_a_loss_that_changed_under_its_name_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of two functions of one name would be compared: the study, and its ladder, refuse."""
    options = VIT | {"store": str(tmp_path / "s.db"), "loss": scaled_classification}
    study = search(own.vit, IMAGES, trials=2, eval_examples=8, **options, **QUICK)
    before = study.trials()
    monkeypatch.setitem(globals(), "FACTOR", 100.0)
    for call in (
        lambda: search(own.vit, IMAGES, trials=3, eval_examples=8, **options, **QUICK),
        lambda: study.best((), seeds=1, quiet=True),
    ):
        message = error_of(call)
        assert "was changed since the study 'search' began" in message
        assert "another name or store" in message
    assert [row.loss for row in study.trials()] == [row.loss for row in before]
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    search(own.vit, IMAGES, trials=3, eval_examples=8, **options, **QUICK).close()
    study.close()


def one_by_one(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """No loss: one for each example."""
    return nn.functional.cross_entropy(model(images), labels, reduction="none")


def test_a_loss_that_cannot_be_leaves_no_study(tmp_path: Path) -> None:
    """After a mistake the corrected call takes the same store."""
    options = VIT | {"store": str(tmp_path / "s.db"), "trials": 1, "eval_examples": 8}
    wrong = options | {"loss": one_by_one}
    assert "one number" in error_of(search, own.vit, IMAGES, **wrong, **QUICK)
    search(own.vit, IMAGES, **options, **QUICK).close()


def test_a_search_in_which_nothing_trains_fails(tmp_path: Path) -> None:
    """A search or a sweep that came to no loss at all does not exit with 0."""
    sources = ["--model", "own_models:vit", "--data", "own_models:images", *OVERRIDES]
    sources += ["--loss", "own_models:no_number", "--no-compile", "--device", "cpu"]
    sources += sized(IMAGES)
    for verb, rest in (
        (["search", "start"], ["--trials", "2", "--store", str(tmp_path / "s.db")]),
        (["sweep"], ["--factors", "1", "--seeds", "1", "--out", str(tmp_path / "sweep")]),
    ):
        done = subprocess.run(
            [*COMMAND, *verb, *sources, *rest], cwd=HERE, capture_output=True, text=True
        )
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
