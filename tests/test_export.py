"""Numbers for those who want no library: the exported files do what the plan does."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from families import hugging_face
from helpers import error_of
from models import make_model, make_recipe, scale
from own_models import VOCAB, NanoGPT
from torch import nn

import completedp as cdp
from completedp.apply.export import export
from completedp.apply.plan import Plan, plan
from completedp.cli.main import _parse
from completedp.tasks.sources import model_from
from completedp.theory.schedule import Schedule

LOG2 = {"lr/type/qkv": 1.0, "residual/type/mlp": -1.0, "lr/depth/2": 0.5}


@pytest.fixture
def planned() -> Plan:
    model = make_model(128, 4)
    return plan(model, make_recipe(LOG2), scale(width=128, depth=4), multipliers="fold")


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(text, names)  # our own text, as a user would import it
    return names


def values(groups: list[dict[str, Any]], model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Every tensor's values, by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group["lr"], group["weight_decay"], group["eps"], tuple(group["betas"]))
        for group in groups
        for p in group["params"]
    }


def test_json_has_every_number(planned: Plan) -> None:
    """Groups, initial values and multipliers are those of the plan, exactly."""
    found = json.loads(export(planned, "json"))
    for group in found["groups"]:
        for name in group["names"]:
            tensor = planned[name]
            assert group["lr"] == tensor.lr
            assert group["weight_decay"] == tensor.weight_decay
            assert group["eps"] == tensor.eps
            assert tuple(group["betas"]) == tensor.betas
    starts = {name: (v["std"], v["value"]) for name, v in found["initial"].items()}
    assert starts == {t.name: (t.init_std, t.init_value) for t in planned.tensors}
    assert (found["hooks"], found["buffers"]) == ({}, {})  # nothing is left to apply
    assert found["steps"] == planned.target.steps
    schedule, own = Schedule(**found["schedule"]), planned.recipe.schedule
    assert [schedule(n, 50) for n in range(50)] == [own(n, 50) for n in range(50)]


def test_the_page_lists_the_keys(planned: Plan) -> None:
    """The table under "The numbers alone" has the keys of the JSON, and no others."""
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    part = page.partition("## The numbers alone")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == list(
        json.loads(export(planned, "json"))
    )


def test_the_python_file_makes_the_plans_groups(planned: Plan) -> None:
    """Also of a compiled model, whose names differ, the file's groups have the plan's values."""
    made = run(export(planned, "hf"))
    expected = values(planned.param_groups(), planned.model)
    assert values(made["param_groups"](planned.model), planned.model) == expected
    wrapped = torch.compile(planned.model)
    assert values(made["param_groups"](wrapped), planned.model) == expected
    assert isinstance(made["optimizer"](planned.model), torch.optim.AdamW)


def test_the_python_file_initialises(planned: Plan) -> None:
    """Weights are drawn with the plan's deviations, gains start at 1; other models are refused."""
    made = run(export(planned, "hf"))
    with torch.no_grad():
        for parameter in planned.model.parameters():
            parameter.fill_(7.0)
    torch.manual_seed(0)
    made["initialise"](planned.model)
    for name, parameter in planned.model.named_parameters():
        std, drawn = planned[name].init_std, parameter.detach()
        found = drawn.std() if std else drawn.mean()
        assert float(found) == pytest.approx(std or 1.0, rel=0.05)
    with pytest.raises(ValueError, match=r"blocks\.4"):
        made["param_groups"](make_model(128, 5))


SCHEDULES = [
    Schedule(kind="cosine", warmup=0.1, final=0.1),
    Schedule(kind="wsd", warmup=0.05, decay=0.25, final=0.0),
    Schedule(kind="constant", warmup=0.1),
    Schedule(kind="cosine", warmup=0.1, final=0.1, power=2.0),
    Schedule(kind="wsd", warmup=0.1, decay=0.5, final=0.2, power=0.5),
    Schedule(kind="piecewise", warmup=0.0, boundaries=(0.3, 0.6), levels=(1.0, 0.5, 0.1)),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_the_hf_file_has_the_schedule_and_no_clipping(planned: Plan, schedule: Schedule) -> None:
    """At every step its rates are the plan's times the recipe's schedule, and nothing clips."""
    planned.recipe = replace(planned.recipe, schedule=schedule)
    made, steps = run(export(planned, "hf")), planned.target.steps
    optimizer = made["optimizer"](planned.model)
    scheduler = made["scheduler"](optimizer)
    peaks = [group["initial_lr"] for group in optimizer.param_groups]
    for step in range(steps):
        rates = [peak * schedule(step, steps) for peak in peaks]
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates)
        optimizer.step()
        scheduler.step()
    assert made["ARGUMENTS"] == {"max_steps": steps, "max_grad_norm": 0.0}


class TitanConfig:
    """What `configure` needs of torchtitan's Trainer.Config: its own parts, real ones."""

    def __init__(self) -> None:
        from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
        from torchtitan.config import TrainingConfig

        self.optimizer = default_adamw()
        self.optimizer.implementation = "for-loop"
        self.lr_scheduler = LRSchedulersContainer.Config()
        self.training = TrainingConfig()


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=lambda s: s.kind)
def test_torchtitan_takes_the_file(planned: Plan, schedule: Schedule) -> None:
    """Real torchtitan makes the plan's groups of it, also of wrapped blocks, with its schedule."""
    pytest.importorskip("torchtitan.components.optimizer")
    from torchtitan.components.optimizer import OptimizersContainer

    planned.recipe = replace(planned.recipe, schedule=schedule)
    made, model, steps = run(export(planned, "torchtitan")), planned.model, planned.target.steps
    config = made["configure"](TitanConfig())
    expected = values(planned.param_groups(), model)
    for n, block in enumerate(model.blocks):
        model.blocks[n] = torch.compile(block, backend="eager")
    container = OptimizersContainer(config.optimizer, model_parts=[model])
    groups = [group for each in container.optimizers for group in each.param_groups]
    found = {name.replace("_orig_mod.", ""): v for name, v in values(groups, model).items()}
    assert found == expected
    peaks = [group["lr"] for group in groups]
    schedulers = config.lr_scheduler.build(optimizers=container, training_steps=7)
    for step in range(steps):
        rates = [peak * schedule(step, steps) for peak in peaks]
        assert [group["lr"] for group in groups] == pytest.approx(rates)
        container.step()
        schedulers.step()
    assert (config.training.steps, config.training.max_norm) == (steps, float("inf"))
    with pytest.raises(ValueError, match="matched no parameters"):
        OptimizersContainer(config.optimizer, model_parts=[model.blocks])


def test_torchtitan_has_no_power(planned: Plan) -> None:
    """A fall with a power is left to the user, and not made a straight one."""
    falls = Schedule(kind="wsd", warmup=0.1, decay=0.5, power=2.0)
    planned.recipe = replace(planned.recipe, schedule=falls)
    with pytest.warns(UserWarning, match="no schedule wsd with power .*the run will differ"):
        text = export(planned, "torchtitan")
    assert run(text)["SCHEDULE"] is None


def test_a_hugging_face_model_is_not_torchtitan_s(planned: Plan) -> None:
    """Names that no model of torchtitan's has are warned of, and in no other export."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "vocab_size": 64}
    model = hugging_face("llama", intermediate_size=128, num_key_value_heads=1, **sizes)
    there = scale(width=64, depth=2)
    found = plan(model, cdp.Recipe.for_model(model, there), there, multipliers="fold")
    with pytest.warns(UserWarning, match="names of LlamaForCausalLM's .*--model module:function"):
        export(found, "torchtitan")
    export(found, "hf")
    export(planned, "torchtitan")


def test_torchtitan_patterns_are_anchored(planned: Plan) -> None:
    """A group's pattern matches its own tensors, wrapped or not, and no other name."""
    made = run(export(planned, "torchtitan"))
    names = [name for group in made["GROUPS"] for name in group["names"]]
    assert sorted(names) == sorted(t.name for t in planned.tensors)
    for group in made["GROUPS"]:
        found = re.compile(made["pattern"](group["names"]))
        assert [name for name in names if found.search(name)] == group["names"]
        name = group["names"][0]
        assert found.search(f"_orig_mod.{name}")
        assert found.search(name.replace(".", "._checkpoint_wrapped_module.", 1))
        assert not found.search(f"x.{name}")
        assert not found.search(f"{name}_scale")
        assert not found.search(name.replace(".", "_"))


def test_multipliers_that_numbers_cannot_carry() -> None:
    """A plan whose multipliers are buffers exports as JSON alone, and says what to do."""
    found = plan(make_model(128, 4), make_recipe(), scale(width=128, depth=4))
    message = error_of(export, found, "hf")
    assert "fold" in message
    left = json.loads(export(found, "json"))
    assert left["buffers"] == {"residual_multipliers": [[0.5, 0.5]] * 4}
    hooks = plan(make_model(128, 4), make_recipe(), scale(width=128, depth=4), multipliers="hook")
    assert json.loads(export(hooks, "json"))["hooks"]["blocks.3.mlp.down"] == 0.5


@pytest.mark.parametrize("multipliers", ["auto", "fold"])
def test_the_command_says_what_groups_leave_out(
    multipliers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the JSON has multipliers for the forward pass, a line beside it says so."""
    words = ["plan", "--depth", "8", "--export", "json", "--multipliers", multipliers]
    assert main(words) == 0
    said = capsys.readouterr()
    left = json.loads(said.out)["buffers"]
    assert ("residual_multipliers" in left) == (multipliers == "auto")
    assert ("the forward pass has to multiply by what buffers say" in said.err) == bool(left)


def main(words: list[str]) -> int:
    """The command line, in this process."""
    return _parse(words).run()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model of the user's own in it, to work in."""
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "from completedp import ModelConfig, Transformer\n"
        "def small():\n"
        "    return Transformer(ModelConfig(vocab=96, width=128, depth=4, head_dim=16))\n"
        "def nothing():\n"
        "    return 3\n"
        "def at(scale):\n"
        "    sizes = {'width': scale.width, 'depth': scale.depth}\n"
        "    return Transformer(ModelConfig(vocab=96, head_dim=16, **sizes))\n"
        "def sized(width, depth):\n"
        "    return None\n"
        "def broken():\n"
        "    raise SystemExit('by itself')\n"
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_models", None)


def test_inspect_a_function_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has every tensor with its role; `--json` the same, and overrides are heeded."""
    assert main(["inspect", "my_models:small"]) == 0
    text = capsys.readouterr().out
    assert "blocks.0-3.mlp.down.weight" in text
    assert "unembedding" in text
    assert main(["inspect", "my_models:small", "--json", "--override", "mlp.up=mlp_gate"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["how"] for r in rows if r["type"] == "mlp_gate"} == {"override"}


def test_inspect_a_hugging_face_config(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with a config.json is enough: no weights are read."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
    more = {"intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.Qwen3Config(**sizes, **more, tie_word_embeddings=False)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(here / "tiny")
    assert main(["inspect", f"hf:{here / 'tiny'}"]) == 0
    assert "model.layers.0-1.self_attn.q_norm.weight" in capsys.readouterr().out


def test_plan_of_a_model_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function of nothing has its own size, one of a scale any; exports are the library's."""
    make_recipe(LOG2).save(here / "r.json")
    arguments = ["plan", "--recipe", "r.json", "--multipliers", "fold", "--export", "json"]
    with torch.device("meta"):
        model = make_model(128, 4)
    expected = plan(model, make_recipe(LOG2), scale(width=128, depth=4), multipliers="fold")
    for sized in (["my_models:small"], ["my_models:at", "--width", "128", "--depth", "4"]):
        assert main([*arguments, "--model", *sized]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(export(expected, "json"))
    other = _parse([*arguments, "--model", "my_models:small", "--width", "64"])
    assert "has width 128, not the 64 asked for" in error_of(other.run)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("qwen", ["'qwen'", "hf:OWNER/NAME", "module:function"]),
        ("no_such_module:make", ["no_such_module"]),
        ("my_models:no_such", ["'no_such'", "my_models"]),
        ("my_models:nothing", ["int", "Module"]),
        ("hf:./no-such-folder", ["no-such-folder"]),
        ("my_models:sized", ["'my_models:sized'", "one completedp.Scale", "depth"]),
        ("my_models:broken", ["SystemExit", "by itself"]),
        (".my_models:small", ["'.my_models:small'"]),
    ],
)
def test_models_that_are_not_there(here: Path, source: str, said: list[str]) -> None:
    """Each is one line that quotes what was asked for."""
    message = error_of(model_from, source, scale(), {})
    for word in said:
        assert word in message


def test_a_config_that_makes_no_model(here: Path) -> None:
    """A folder whose config.json is wrong is one line that names it."""
    pytest.importorskip("transformers")
    (here / "odd").mkdir()
    (here / "odd" / "config.json").write_text('{"model_type": "llama", "hidden_size": "x"}')
    assert "odd" in error_of(model_from, f"hf:{here / 'odd'}", scale(), {})


def test_padding_starts_at_zero_in_every_file() -> None:
    """The row that no gradient reaches is zero after the file's `initialise` and the plan's."""
    model, base = NanoGPT(16, 2), cdp.Scale(width=16, depth=2, batch=8, tokens=800)
    model.wte = nn.Embedding(VOCAB, 16, padding_idx=3)
    planned = cdp.plan(model, cdp.Recipe.for_model(model, base, lr=0.01), base, multipliers="fold")
    for initialise in (
        planned.initialise,
        partial(run(export(planned, "hf"))["initialise"], model),
    ):
        torch.nn.init.ones_(model.wte.weight)
        initialise()
        drawn = model.wte.weight.detach()
        assert (drawn == 0).all(dim=1).nonzero().flatten().tolist() == [3]
    assert json.loads(export(planned, "json"))["padding"] == {"wte.weight": 3}
