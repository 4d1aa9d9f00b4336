"""What changed, broke or is too little under a run or a search is said, and never trained on."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import own_models
import pytest
import torch
from helpers import command, error_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from completedp.apply.plan import plan
from completedp.common.errors import DataWarning, ScaleWarning
from completedp.common.files import write_text_atomically
from completedp.evidence.reporting.gather import gather
from completedp.lm import tokens, verified
from completedp.lm.prepare import prepare_source
from completedp.lm.reference import ReferenceModel, meta_model
from completedp.lm.shape import Shape
from completedp.lm.tokenizer import BPETokenizer
from completedp.lm.tokens import Manifest
from completedp.lm.transformer import Transformer, is_reference
from completedp.tasks.data import make_data
from completedp.tasks.task import make_task
from completedp.theory.evidence import Evidence
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.checkpoint import FILE, read_about
from completedp.training.config import TrainConfig
from completedp.training.loop import train
from completedp.training.metrics import read_metrics
from completedp.training.runner import Runner
from completedp.training.sequential import OneAtATime
from completedp.training.session import train as train_in_python
from completedp.training.trials import Outcome, Trial

SHAPE = Shape(head_dim=8)
BASE = Scale(width=16, depth=2, batch=64, tokens=64 * 10)
TINY = ["--device", "cpu", "--context", "16", "--eval-sequences", "8"]
SIZES = ["--width", "16", "--depth", "1", "--batch", "64", "--tokens", "640"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(40):
        words = (f"{(i * j) % 97} runs over {(i + j) % 31};" for j in range(40))
        (folder / f"{i:03d}.txt").write_text(" ".join(words))
    prepare_source(str(folder), str(tmp_path / "tokens"), valid_fraction=0.1)
    return tmp_path / "tokens"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    model = meta_model(ReferenceModel(vocab=257, shape=SHAPE).config(BASE))
    return Recipe.for_model(model, BASE, lr=2.0**-7)


def config(data: Path, out: Path, **changes: object) -> TrainConfig:
    settings = {"context": 16, "shape": SHAPE, "eval_sequences": 8}
    return TrainConfig(data=str(data), out=str(out), **(settings | changes))  # type: ignore[arg-type]


def exploding(recipe: Recipe) -> Recipe:
    """So large a rate that the first update is the last that any loss is finite before."""
    return recipe.with_values(lr=1e38).with_rules(beta_rule="power")


# --- NaN


def test_a_run_that_breaks_in_its_last_update_has_diverged(
    data: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """What the last update breaks is `diverged`: no NaN in the result, its file or its metrics."""
    asked = config(data, tmp_path / "run", tokens=BASE.batch)
    result = train(asked, recipe=exploding(recipe), quiet=True)
    assert (result.status, result.steps) == ("diverged", 1)
    assert result.valid_loss is result.valid_bits_per_byte is None
    assert result.train_loss == result.last_finite_loss == pytest.approx(math.log(257), rel=0.1)
    for file in ("result.json", "metrics.jsonl", "plan.json"):
        assert "NaN" not in (tmp_path / "run" / file).read_text()
    assert train(asked, recipe=exploding(recipe), quiet=True) == result


def test_a_last_update_that_breaks_by_size_has_diverged(
    data: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """A loss that is a number, and far above the first one, is no end of a run, either."""
    wild = exploding(recipe).with_values(lr=1e3, weight_decay=0.0)
    result = train(config(data, tmp_path / "run", tokens=BASE.batch), recipe=wild, quiet=True)
    assert (result.status, result.valid_loss) == ("diverged", None)
    outcome = Outcome(trial=None, status="ok", losses=[5.5], valid_loss=12.0)  # type: ignore[arg-type]
    assert (outcome.status, outcome.loss) == ("diverged", math.inf)
    assert Outcome(trial=None, status="ok", losses=[5.5], valid_loss=5.0).status == "ok"  # type: ignore[arg-type]


NO_NUMBER = [
    ("broken", "first loss", "look at the loss, the data and the model: the first loss, before"),
    ("unjudged", "validation", "look at the held-out data, and at loss and model in evaluation"),
]
"""Models that diverge whatever the learning rate: where, and what is said of a run of them."""


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so small a base
@pytest.mark.parametrize(("model", "where", "advice"), NO_NUMBER)
def test_a_run_says_where_it_diverged(
    model: str,
    where: str,
    advice: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the first loss or in validation alone, which no learning rate mends: the advice is of
    these, the page says so, and a training loss that was finite is kept."""
    out = tmp_path / "run"
    Recipe.for_model(getattr(own_models, model)(BASE), BASE).save(tmp_path / "own.json")
    words = f"train --data {data} --out {out} --model own_models:{model}".split()
    words += ["--recipe", str(tmp_path / "own.json"), *TINY]
    for again in ("", "finished before"):
        code, said, error = command(monkeypatch, capsys, *words)
        assert code == 1, error
        assert f", in its {where}" in said
        assert again in said
        assert f"next: {advice}" in error
        assert ("--lr" in error) == (where == "validation")  # where the last update may have
    found = json.loads((out / "result.json").read_text())
    assert found["train_loss"] == found["last_finite_loss"]
    assert (found["train_loss"] is None) == (where == "first loss")
    (part,) = gather([str(out)])
    assert [outcome.measured for outcome in part.outcomes] == [f"diverged in its {where}"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so small a base
@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("broken", "all trials diverged in their first loss, before any update: look at the"),
        ("unjudged", "all trials diverged in validation alone: look at the loss, the data"),
        (None, "all trials diverged: look at the loss, the data and the model, or search from"),
    ],
)
def test_a_search_that_trains_nothing_names_no_ladder(
    model: str | None,
    advice: str,
    data: Path,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where all trials diverged, what to look at is said, and no command that can only fail."""
    words = f"search start --data {data} --store {tmp_path}/s.db --trials 2 --no-compile".split()
    recipe.with_values(lr=2.0**40).save(tmp_path / "wild.json")
    own = ["--model", f"own_models:{model}", *SIZES]
    words += [*TINY, *(own if model else ["--recipe", f"{tmp_path}/wild.json"])]
    code, _, error = command(monkeypatch, capsys, *words)
    assert code == 1
    assert advice in error
    assert "next:" not in error
    assert "search best" not in error


def test_divergence_is_an_exit_code(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """A run that diverged exits with 1, its result on standard output as JSON."""
    exploding(recipe).save(tmp_path / "recipe.json")
    command = [sys.executable, "-m", "completedp", "train", "--data", str(data), "--json"]
    command += ["--recipe", str(tmp_path / "recipe.json"), "--context", "16", "--head-dim", "8"]
    command += ["--tokens", str(BASE.batch), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["status"] == "diverged"


def test_a_trial_that_breaks_in_its_last_update_has_diverged(data: Path, recipe: Recipe) -> None:
    """In slots and one at a time alike."""
    task = make_task(None, str(data), context=16, shape=SHAPE, eval_examples=8)
    short = replace(BASE, tokens=BASE.batch)
    plan = task.plan(exploding(recipe), short)
    slots = Runner(task, device="cpu", compile=False).stack(short, 1)
    alone = OneAtATime(task, short, device=torch.device("cpu"), dtype=torch.float32)
    for stack in (slots, alone):
        (outcome,) = stack.run([Trial(plan=plan, seed=0, steps=1)])
        assert (outcome.status, outcome.valid_loss, outcome.loss) == ("diverged", None, math.inf)


def test_the_last_sound_loss_is_kept(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Of a run that explodes the last loss is the last one before, as in slots."""
    wild = recipe.with_values(lr=1e4, weight_decay=0.0)
    train(config(data, tmp_path / "run", log_every=1), recipe=wild, quiet=True)
    rows = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "diverged"
    assert result["last_finite_loss"] == rows[-2]


# --- Tokens


class _Constant(Transformer):
    """Says that every token is as likely as any."""

    def forward(self, tokens: torch.Tensor, **_: object) -> torch.Tensor:
        return 0 * super().forward(tokens)


def test_what_is_derived_from_the_reference_model_is_a_model_of_its_own(
    data: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """Its own forward pass is what is trained and judged, in slots and alone; so is that of a
    reference model whose parts were replaced or hooked."""
    shape = ReferenceModel(vocab=257, shape=SHAPE)
    uniform = pytest.approx(math.log(257), abs=1e-4)
    task = make_task(lambda scale: _Constant(shape.config(scale)), str(data), context=16)
    runner = Runner(task, slots=1, device="cpu", compile=False)
    (outcome,) = runner.run([runner.trial(recipe, BASE, 0, 0)], BASE, count=1)
    assert outcome.loss == uniform
    ended = train_in_python(
        task.make, recipe, BASE, str(data), tmp_path / "run", context=16, quiet=True
    )
    assert ended.valid_loss == uniform

    config = shape.config(BASE)
    assert is_reference(Transformer(config))
    hooked, replaced, patched = Transformer(config), Transformer(config), Transformer(config)
    hooked.output_norm.register_forward_hook(lambda *_: None)
    replaced.blocks[1].mlp = torch.nn.Identity()
    patched.forward = lambda tokens: tokens
    for model in (hooked, replaced, patched, _Constant(config)):
        assert not is_reference(model)


def other_ids(data: Path) -> None:
    """Other tokens, of the same number, in a shard."""
    shard = data / "train-00000.bin"
    ids = bytearray(shard.read_bytes())
    ids[100], ids[102] = ids[102], ids[100]
    shard.write_bytes(ids)


def test_other_tokens_are_not_trained_on(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Shards that changed since they were written neither begin a run nor go on with one."""
    asked = config(data, tmp_path / "run", stop_after=2)
    train(asked, recipe=recipe, quiet=True)
    other_ids(data)
    for again in (replace(asked, stop_after=4), replace(asked, out=str(tmp_path / "new"))):
        said = error_of(train, again, recipe=recipe, quiet=True)
        assert "train-00000.bin' has changed" in said
    assert "has changed" in error_of(make_task, None, str(data))  # what a search begins with


def test_tokens_are_read_once_to_be_verified(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was verified and has not changed is not read again, by this process or the next."""
    reads: list[list[str]] = []
    plain = verified.digests

    def counted(folder: Path, names: list[str]) -> dict[str, str]:
        reads.append(sorted(names))
        return plain(folder, names)

    monkeypatch.setattr(verified, "digests", counted)
    make_data(str(data), 16)
    make_data(str(data), 16)
    assert reads == [["train-00000.bin", "valid-00000.bin"]]
    monkeypatch.setattr(verified, "_in_this_process", {})  # as in another process
    make_data(str(data), 16)
    assert len(reads) == 1
    shard = data / "valid-00000.bin"
    os.utime(shard, ns=(shard.stat().st_atime_ns, shard.stat().st_mtime_ns))
    make_data(str(data), 16)  # its times were set back, which the inode's tells
    assert reads[1:] == [["valid-00000.bin"]]


def test_a_change_of_the_same_size_and_time_is_seen(data: Path) -> None:
    """A file that is changed and given its old time again is read again."""
    make_data(str(data), 16)
    shard = data / "train-00000.bin"
    times = shard.stat()
    other_ids(data)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "has changed" in error_of(make_data, str(data), 16)


def test_a_read_only_folder_is_verified_too(data: Path) -> None:
    """Where nothing can be kept beside the tokens they are verified all the same."""
    other_ids(data)
    data.chmod(0o555)
    try:
        assert "has changed" in error_of(Manifest.load, data, verify=True)
    finally:
        data.chmod(0o755)


@pytest.mark.parametrize(
    ("batch", "tokens", "words"),
    [(2**20, 2**21, "a step sees some of them twice"), (64, 2**20, r"passes over the [\d,]+ that")],
)
def test_too_little_text_is_said(
    data: Path, recipe: Recipe, tmp_path: Path, batch: int, tokens: int, words: str
) -> None:
    """A batch beyond the text, or many passes over it, are warned of."""
    asked = config(data, tmp_path / "run", batch=batch, tokens=tokens)
    task = make_task(None, str(data), context=16)
    (line,) = task.data.cautions(asked.target(recipe))
    assert re.search(words, line)
    enough = replace(BASE, tokens=BASE.batch * 4)
    assert not list(task.data.cautions(enough))


def test_a_run_warns_of_too_little_text(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """The training loop says it before it trains."""
    asked = config(data, tmp_path / "run", tokens=2**20, stop_after=1)
    with pytest.warns(DataWarning, match="passes over"):
        train(asked, recipe=recipe, quiet=True)


def test_an_unequal_split_is_said(tmp_path: Path) -> None:
    """Of two documents one is the validation set: how much of the text that is, is warned of."""
    for name, size in (("a", 100), ("b", 60)):
        (tmp_path / f"{name}.txt").write_text(f"{name} word " * size)
    with pytest.warns(DataWarning, match=r"validation takes 0\.\d+ of the text .* 0\.01 was asked"):
        prepare_source(str(tmp_path), str(tmp_path / "out"))


def test_a_held_out_part_that_is_too_small_is_said(tmp_path: Path) -> None:
    """Far less than the share that was asked for is warned of, as far more is; about it is not."""
    (tmp_path / "a.txt").write_text("one\n<|endoftext|>\ntwo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manifest = prepare_source(str(tmp_path / "a.txt"), str(tmp_path / "out"))
    request = replace(manifest.request, valid_fraction=0.1)
    for part, warned in ((0.004, True), (0.08, False), (0.5, True)):
        split = manifest.splits["train"]
        sizes = {"train": round(1e6 * (1 - part)), "valid": round(1e6 * part)}
        splits = {name: replace(split, bytes=size) for name, size in sizes.items()}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            tokens._warn_of_shares(splits, request)
        assert len(said) == warned


# --- Tokenizers


def written_tokenizer(path: Path, kind: str) -> Path:
    package = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "the": 1, "quick": 2, "<|endoftext|>": 3}
    if kind == "words":
        made = package.Tokenizer(package.models.WordLevel(words, unk_token="[UNK]"))
        made.pre_tokenizer = package.pre_tokenizers.Whitespace()
    else:  # bytes, without some of them, or all in lower case
        alphabet = sorted(package.pre_tokenizers.ByteLevel.alphabet())
        alphabet = alphabet[: 100 if kind == "some bytes" else None]
        made = package.Tokenizer(package.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
        made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = package.decoders.ByteLevel()
        if kind in ("lower case", "composed"):
            normal = package.normalizers
            made.normalizer = normal.Lowercase() if kind == "lower case" else normal.NFC()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(path))
    return path


@pytest.mark.parametrize("kind", ["words", "some bytes", "lower case"])
def test_tokenizers_that_lose_text_are_refused(tmp_path: Path, kind: str) -> None:
    """A tokenizer that drops, replaces or changes characters is one line that shows what."""
    said = error_of(BPETokenizer.load, written_tokenizer(tmp_path / "tokenizer.json", kind))
    assert "loses text" in said
    assert "byte-level" in said


@pytest.mark.parametrize("kind", ["all bytes", "composed"])
def test_tokenizers_that_keep_text_are_not(tmp_path: Path, kind: str) -> None:
    """All bytes keep any text; how characters are composed may change, as with Qwen's."""
    BPETokenizer.load(written_tokenizer(tmp_path / "tokenizer.json", kind))


# --- Checkpoints


def rewritten(folder: Path, change: Callable[[dict, dict], None]) -> None:
    """The checkpoint with other tensors or metadata."""
    with safe_open(folder / FILE, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(folder / FILE)
    change(tensors, metadata)
    save_file(tensors, folder / FILE, metadata)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_flipped_bits_do_not_resume(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """One bit, anywhere in a checkpoint's tensors, and it is refused."""
    asked, run = config(data, tmp_path / "run", stop_after=2), tmp_path / "run"
    train(asked, recipe=recipe, quiet=True)
    whole = (run / FILE).read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for part in range(8):
        place = start + (len(whole) - start) * part // 8
        flip(run / FILE, place)
        said = error_of(train, replace(asked, stop_after=4), recipe=recipe, quiet=True)
        assert "is not as it was written" in said
        (run / FILE).write_bytes(whole)
    train(replace(asked, stop_after=4), recipe=recipe, quiet=True)


@pytest.mark.parametrize("key", ["step", "extra", "run"])
def test_what_goes_along_is_in_the_checksum(
    data: Path, recipe: Recipe, tmp_path: Path, key: str
) -> None:
    """Another step, loss or run in a checkpoint's metadata is refused as well."""
    asked = config(data, tmp_path / "run", stop_after=2)
    train(asked, recipe=recipe, quiet=True)
    changed = {"step": "1", "extra": '{"first_loss": 1.0}', "run": "{}"}
    rewritten(tmp_path / "run", lambda _, metadata: metadata.update({key: changed[key]}))
    said = error_of(train, replace(asked, stop_after=4), recipe=recipe, quiet=True)
    assert "not as it was written" in said or "of another run" in said


def test_a_checkpoint_knows_its_run(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Another run's checkpoint, or another seed written into config.json, does not resume."""
    asked, run = config(data, tmp_path / "run", stop_after=2), tmp_path / "run"
    train(asked, recipe=recipe, quiet=True)
    saved = json.loads((run / "config.json").read_text())
    write_text_atomically(run / "config.json", json.dumps(saved | {"seed": 1}))
    said = error_of(train, replace(asked, seed=1, stop_after=4), recipe=recipe, quiet=True)
    assert "of another run, whose seed" in said
    other = replace(asked, out=str(tmp_path / "other"))
    train(other, recipe=recipe.with_values(lr=2.0**-6), quiet=True)
    shutil.copy(run / FILE, tmp_path / "other" / FILE)
    again = replace(other, stop_after=4)
    said = error_of(train, again, recipe=recipe.with_values(lr=2.0**-6), quiet=True)
    assert "of another run, whose recipe" in said


def test_older_checkpoints_go_on(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """One without a checksum resumes, and it is said that nobody can tell whether it is whole."""
    asked = config(data, tmp_path / "run", stop_after=2)
    train(asked, recipe=recipe, quiet=True)
    rewritten(tmp_path / "run", lambda _, m: [m.pop(key) for key in ("run", "sha256")])
    with pytest.warns(UserWarning, match="without a checksum"):
        train(replace(asked, stop_after=4), recipe=recipe, quiet=True)
    assert read_about(tmp_path / "run" / FILE).run is not None


def test_the_first_loss_outlives_a_resume(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """A resumed run is still judged by its first loss: one that explodes by size diverges."""
    calm, run = recipe.with_values(lr=1e-6), tmp_path / "run"
    train(config(data, run, stop_after=2), recipe=calm, quiet=True)
    first = read_about(run / FILE).extra["first_loss"]
    assert first == pytest.approx(math.log(257), rel=0.1)

    def louder(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        tensors["model/unembedding.weight"] *= 1e4
        for key in ("sha256", "run"):
            del metadata[key]

    rewritten(run, louder)
    with pytest.warns(UserWarning, match="without a checksum"):
        result = train(config(data, run), recipe=calm, quiet=True)
    assert result.status == "diverged"
    assert result.steps == 3


# --- Recipes


def test_a_key_twice_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    """Of two values for one key none wins: it is named."""
    path = tmp_path / "recipe.json"
    recipe.save(path)
    text = path.read_text().replace('"schema": 3,', '"schema": 3, "head_dim": 4,', 1)
    path.write_text(text)
    assert "'head_dim' is there twice" in error_of(Recipe.load, path)


@pytest.mark.parametrize("name", Recipe.names())
def test_a_shipped_recipe_is_the_identity_at_its_base_with_biases(name: str) -> None:
    """Every value of a plan at the base is the recipe's own, of biases too."""
    recipe = Recipe.shipped(name)
    config = ReferenceModel(vocab=257, shape=Shape(bias=True), head_dim=64).config(recipe.base)
    found = plan(meta_model(config), recipe, recipe.base)
    assert any(tensor.info.type == "qkv_bias" for tensor in found.tensors)
    for tensor in found.tensors:
        assert tensor.width_ratio == 1.0
        for name, value in tensor.values.items():
            assert value.target == pytest.approx(value.base, rel=1e-12), (tensor.name, name)


def test_another_z_loss_than_the_recipe_s_is_said(
    data: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """A recipe records the z-loss that it was tuned with; a run with another one warns."""
    recipe.save(tmp_path / "recipe.json")
    tuned = replace(recipe, evidence=Evidence(z_loss=0.0))
    tuned.save(tmp_path / "recipe.json")
    assert Recipe.load(tmp_path / "recipe.json") == tuned
    with pytest.warns(ScaleWarning, match="z_loss is 0.0001, and the recipe was tuned with 0"):
        train(config(data, tmp_path / "a", stop_after=1), recipe=tuned, quiet=True)
