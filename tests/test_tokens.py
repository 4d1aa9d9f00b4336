"""Token folders: exact round trips, all-or-nothing writing, strict reading, order by seed."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completedp.common.errors import CompletedpError
from completedp.lm import tokens
from completedp.lm.batches import TokenDataset, permute
from completedp.lm.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer
from completedp.lm.tokens import Manifest, prepare
from completedp.tasks.data import Order, Tokens, make_data

TEXTS = [f"document {n}: " + "word " * (n % 7) for n in range(200)]
BYTES = ByteTokenizer()


def corpus(folder: Path, texts: list[str], name: str = "corpus.jsonl") -> str:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / name).write_text(lines, encoding="utf-8")
    return str(folder / name)


def split_ids(folder: Path, split: str) -> np.ndarray:
    manifest = Manifest.load(folder, verify=True)
    dtype = {"uint16": "<u2", "uint32": "<u4"}[manifest.dtype]
    return np.concatenate(
        [np.fromfile(folder / shard.file, dtype) for shard in manifest.splits[split].shards]
    )


def split_texts(folder: Path, split: str, tokenizer: Tokenizer) -> list[str]:
    ids = split_ids(folder, split)
    ends = np.flatnonzero(ids == tokenizer.eot)
    assert ends[-1] == len(ids) - 1
    return [tokenizer.decode(part) for part in np.split(ids, ends)[:1]] + [
        tokenizer.decode(part[1:]) for part in np.split(ids, ends)[1:-1]
    ]


def error_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(CompletedpError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A token folder of several shards."""
    source = corpus(tmp_path, TEXTS)
    prepare(source, tmp_path / "tokens", BYTES, valid_fraction=0.2, shard_tokens=1000)
    return tmp_path / "tokens"


def edit(folder: Path, change: Callable[[dict], Any]) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
            lambda text: not text.isspace()
        ),
        min_size=2,
        max_size=20,
        unique=True,
    ),
    shard_tokens=st.integers(1, 60),
    fraction=st.sampled_from([0.0, 0.01, 0.3, 0.99]),
)
def test_round_trip(texts: list[str], shard_tokens: int, fraction: float) -> None:
    """The shards of both splits, joined and decoded, are the documents in their order."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        source = corpus(Path(name), texts)
        options: dict[str, Any] = {"valid_fraction": fraction, "shard_tokens": shard_tokens}
        manifest = prepare(source, out, BYTES, **options)
        assert manifest == Manifest.load(out, verify=True)
        assert set(manifest.splits) == ({"train", "valid"} if fraction else {"train"})
        found = {split: split_texts(out, split, BYTES) for split in manifest.splits}
    for split, there in found.items():
        record = manifest.splits[split]
        assert there == [text for text in texts if text in set(there)]
        assert record.documents == len(there) > 0
        assert record.bytes == sum(len(text.encode()) for text in there)
        assert record.tokens == sum(shard.tokens for shard in record.shards)
        assert all(shard.tokens == shard_tokens for shard in record.shards[:-1])
    assert sorted(text for there in found.values() for text in there) == sorted(texts)


def test_bpe_folder(tmp_path: Path) -> None:
    """A BPE folder carries its tokenizer, and decodes with it to the documents."""
    pytest.importorskip("tokenizers")
    tokenizer = BPETokenizer.train(TEXTS, 280)
    texts = [*TEXTS, "forged <|endoftext|> inside"]
    prepare(corpus(tmp_path, texts), tmp_path / "out", tokenizer, valid_fraction=0)
    loaded = BPETokenizer.load(tmp_path / "out" / "tokenizer.json")
    assert Manifest.load(tmp_path / "out").tokenizer == loaded.name == tokenizer.name
    assert split_texts(tmp_path / "out", "train", loaded) == texts


def test_preparation_is_deterministic(tmp_path: Path) -> None:
    """Two preparations of the same source are byte-identical."""
    source = corpus(tmp_path, TEXTS)
    for out in ("one", "two"):
        prepare(source, tmp_path / out, BYTES, shard_tokens=999)
    assert leftovers(tmp_path / "one") == leftovers(tmp_path / "two")
    for name in leftovers(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_chunks_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder does not depend on how much text is tokenised at once."""
    source = corpus(tmp_path, TEXTS)
    whole = prepare(source, tmp_path / "one", BYTES)
    monkeypatch.setattr(tokens, "_CHUNK_CHARACTERS", 50)
    counts: list[tuple[int, int]] = []
    parts = prepare(source, tmp_path / "two", BYTES, progress=lambda *c: counts.append(c))
    assert whole == parts
    assert len(counts) > 10
    assert counts[-1] == (200, sum(split.tokens for split in whole.splits.values()))


def test_split_is_by_text(tmp_path: Path) -> None:
    """Held-out documents do not depend on order, duplicates go together, the share is right."""
    held_out = []
    for name, texts in (("a", TEXTS), ("b", TEXTS[::-1] + TEXTS)):
        source = corpus(tmp_path, texts, f"{name}.jsonl")
        prepare(source, tmp_path / name, BYTES, valid_fraction=0.2)
        valid = split_texts(tmp_path / name, "valid", BYTES)
        assert set(valid).isdisjoint(split_texts(tmp_path / name, "train", BYTES))
        held_out.append(set(valid))
    assert held_out[0] == held_out[1]
    assert 20 <= len(held_out[0]) <= 60


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_neither_split_is_empty(tmp_path: Path, fraction: float) -> None:
    """Where every hash falls on one side, the nearest document moves to the other."""
    source = corpus(tmp_path, ["a", "b", "c"])
    manifest = prepare(source, tmp_path / "out", BYTES, valid_fraction=fraction)
    counts = {name: split.documents for name, split in manifest.splits.items()}
    assert counts == ({"train": 2, "valid": 1} if fraction < 0.5 else {"train": 1, "valid": 2})
    hashes = {t: hashlib.blake2b(t.encode(), digest_size=8).digest() for t in "abc"}
    valid = split_texts(tmp_path / "out", "valid", BYTES)
    assert sorted(valid) == sorted(sorted(hashes, key=hashes.__getitem__)[: len(valid)])


@pytest.mark.parametrize("texts", [["alone"], ["alone", "alone"]])
def test_one_document(tmp_path: Path, texts: list[str]) -> None:
    """One document, even repeated, cannot be split, and is allowed without validation."""
    source = corpus(tmp_path, texts)
    message = error_of(prepare, source, tmp_path / "out", BYTES)
    assert "held out by document" in message
    assert "a line <|endoftext|> ends one" in message
    assert leftovers(tmp_path) == ["corpus.jsonl"]
    manifest = prepare(source, tmp_path / "out", BYTES, valid_fraction=0)
    assert list(manifest.splits) == ["train"]
    assert "no split 'valid'" in error_of(TokenDataset, tmp_path / "out", "valid", 4)


class Huge(ByteTokenizer):
    """Ids that need 32 bits."""

    name = "huge"
    vocab = 70_000
    eot = 69_999

    def encode(self, text: str) -> np.ndarray:
        return super().encode(text) + 66_000


def test_dtype(tmp_path: Path) -> None:
    """Ids are uint16 where the vocab fits, uint32 where not, and never cut silently."""
    source = corpus(tmp_path, TEXTS)
    assert prepare(source, tmp_path / "small", BYTES).dtype == "uint16"
    assert prepare(source, tmp_path / "huge", Huge()).dtype == "uint32"
    (window,) = TokenDataset(tmp_path / "huge", "train", 5).rows(np.array([0]))
    np.testing.assert_array_equal(window, Huge().encode("docume"))


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_interrupted_preparation(tmp_path: Path, failure: type[BaseException]) -> None:
    """An error or an interrupt half way leaves nothing at `out` nor beside it."""
    source = corpus(tmp_path, TEXTS)

    def stop(documents: int, tokens: int) -> None:
        raise failure

    with pytest.raises(failure):
        prepare(source, tmp_path / "deep" / "out", BYTES, progress=stop)
    assert leftovers(tmp_path / "deep") == []


def test_bad_corpus_leaves_nothing(tmp_path: Path) -> None:
    """A corpus that turns out unreadable half way leaves nothing at `out`."""
    source = corpus(tmp_path, TEXTS)
    with Path(source).open("a") as file:
        file.write("{broken\n")
    assert "corpus.jsonl:201" in error_of(prepare, source, tmp_path / "out", BYTES)
    assert leftovers(tmp_path) == ["corpus.jsonl"]


def test_equal_request_is_reused(tmp_path: Path) -> None:
    """An equal request reads the folder that is there and writes nothing."""
    source = corpus(tmp_path, TEXTS)
    first = prepare(source, tmp_path / "out", BYTES)

    def stop(documents: int, tokens: int) -> None:
        raise AssertionError("tokenised again")

    assert prepare(source, tmp_path / "out", BYTES, progress=stop) == first


def test_other_request_is_refused(tmp_path: Path) -> None:
    """A folder prepared otherwise, or from text since changed, is kept and the difference named."""
    source = corpus(tmp_path, TEXTS)
    first = prepare(source, tmp_path / "out", BYTES)
    message = error_of(prepare, source, tmp_path / "out", BYTES, valid_fraction=0.5)
    assert "valid_fraction=0.01 (not 0.5)" in message
    assert "tokenizer='bytes' (not 'huge')" in error_of(prepare, source, tmp_path / "out", Huge())
    corpus(tmp_path, TEXTS[1:])
    assert "source_fingerprint" in error_of(prepare, source, tmp_path / "out", BYTES)
    assert Manifest.load(tmp_path / "out", verify=True) == first


def test_out_is_taken(tmp_path: Path) -> None:
    """Something else at `out` is left alone; an empty folder is used."""
    source = corpus(tmp_path, TEXTS)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("dear")
    assert "is no token folder" in error_of(prepare, source, tmp_path / "taken", BYTES)
    assert "is no token folder" in error_of(prepare, source, source, BYTES)
    assert "is a file: name a folder" in error_of(prepare, source, Path(source) / "below", BYTES)
    (tmp_path / "empty").mkdir()
    assert prepare(source, tmp_path / "empty", BYTES).vocab == 257


def test_lost_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another process finishes the same folder first, its result is the result."""
    source, out = corpus(tmp_path, TEXTS), tmp_path / "out"
    other = prepare(source, tmp_path / "other", BYTES)

    def finish_first(documents: int, tokens: int) -> None:
        (tmp_path / "other").rename(out)

    assert prepare(source, out, BYTES, progress=finish_first) == other
    assert leftovers(tmp_path) == ["corpus.jsonl", "out"]


@pytest.mark.parametrize("options", [{"valid_fraction": 1.0}, {"shard_tokens": 0}])
def test_bad_options(tmp_path: Path, options: dict[str, Any]) -> None:
    """An option out of its range is quoted."""
    (name,) = options
    message = error_of(prepare, corpus(tmp_path, TEXTS), tmp_path / "out", BYTES, **options)
    assert f"{name}={options[name]}" in message


def test_manifest_says_what_is_there(folder: Path) -> None:
    """The manifest names source, tokenizer, vocab, eot and dtype, and every shard's checksum."""
    data = json.loads((folder / "manifest.json").read_text())
    manifest = Manifest.load(folder)
    assert data["schema"] == 1
    assert (manifest.vocab, manifest.eot, manifest.dtype) == (257, 256, "uint16")
    assert manifest.source.endswith("corpus.jsonl")
    assert len(manifest.splits["train"].shards) > 2
    for shard in manifest.splits["train"].shards:
        raw = (folder / shard.file).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == shard.sha256


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(extra=1), "unknown key 'extra'"),
        (lambda d: d["splits"]["train"].update(extra=1), "unknown key 'splits.train.extra'"),
        (lambda d: d.pop("eot"), "lacks the key 'eot'"),
        (lambda d: d.update(vocab="257"), "'vocab' must be int, not str"),
        (lambda d: d.update(vocab=True), "'vocab' must be int, not bool"),
        (lambda d: d["request"].update(dtype="int8"), "unknown dtype 'int8'"),
        (lambda d: d.update(schema=2, new={}), "schema 2"),
    ],
)
def test_strict_manifest(folder: Path, change: Callable[[dict], Any], words: str) -> None:
    """An unknown or missing key, a wrong type and a newer schema are each named."""
    edit(folder, change)
    message = error_of(Manifest.load, folder)
    assert words in message
    assert "manifest.json" in message


def test_damaged_folder(folder: Path) -> None:
    """A missing manifest, broken JSON, and missing, truncated or altered shards are each named."""
    shard = folder / "train-00001.bin"
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-2])
    assert f"holds {len(raw) - 2} bytes where {len(raw)}" in error_of(Manifest.load, folder)
    shard.write_bytes(b"\0" + raw[1:])
    assert "has changed" in error_of(Manifest.load, folder, verify=True)
    shard.unlink()
    assert "train-00001.bin' is missing" in error_of(TokenDataset, folder, "train", 4)
    (folder / "manifest.json").write_text("{")
    assert "is not JSON" in error_of(Manifest.load, folder)
    (folder / "manifest.json").write_text("[]")
    assert "must be Manifest, not list" in error_of(Manifest.load, folder)
    (folder / "manifest.json").unlink()
    assert "no token folder" in error_of(Manifest.load, folder)


@pytest.mark.parametrize("context", [1, 7, 64])
def test_windows(folder: Path, context: int) -> None:
    """Windows are a context apart within each shard."""
    dataset = TokenDataset(folder, "train", context)
    wanted = []
    for shard in dataset.manifest.splits["train"].shards:
        ids = np.fromfile(folder / shard.file, "<u2")
        starts = range(0, len(ids) - context, context)
        wanted += [ids[start : start + context + 1] for start in starts]
    assert len(dataset) == dataset.windows == len(wanted)
    order = np.arange(dataset.windows)[::-1]
    np.testing.assert_array_equal(dataset.rows(order), np.array(wanted)[order])


def test_window_out_of_range(folder: Path) -> None:
    """A window that is not there is an IndexError, negative ones too."""
    dataset = TokenDataset(folder, "train", 8)
    with pytest.raises(IndexError):
        dataset.rows(np.array([dataset.windows]))
    with pytest.raises(IndexError):
        dataset.rows(np.array([0, -1]))


def test_read_only_folder(folder: Path) -> None:
    """A folder without write permission is read like any other, and batches may be written to."""
    for path in [*folder.iterdir(), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        rows = TokenDataset(folder, "train", 8).rows(np.array([0, 1]))
        rows += 1
    finally:
        folder.chmod(0o755)


def test_context_too_long(folder: Path) -> None:
    """A context longer than any shard is an error naming it and the tokens there are."""
    tokens_there = Manifest.load(folder).splits["train"].tokens
    message = error_of(TokenDataset, folder, "train", 5000)
    assert "context 5000" in message
    assert f"{tokens_there} tokens" in message
    assert "context=0" in error_of(TokenDataset, folder, "train", 0)


@given(size=st.integers(1, 5000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_permutation(size: int, seed: int, epoch: int) -> None:
    """For any size, seed and epoch every index is hit exactly once."""
    order = permute(np.arange(size), size, seed, np.full(size, epoch))
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_permutation_quality() -> None:
    """Orders look random: unrelated across seeds and epochs, no serial correlation, uniform."""
    size = 4001
    keys = [(seed, epoch) for seed in range(6) for epoch in range(6)]
    orders = np.stack([permute(np.arange(size), size, s, np.full(size, e)) for s, e in keys])
    limit = 5 / np.sqrt(size)  # five standard deviations of a correlation of unrelated orders
    across = np.corrcoef(np.vstack([orders, np.arange(size)])) - np.eye(len(keys) + 1)
    assert np.abs(across).max() < limit
    for lag in (1, 2, 63, 64):  # 64 is the number of columns
        serial = [np.corrcoef(order[:-lag], order[lag:])[0, 1] for order in orders]
        assert np.abs(serial).max() < limit
    fixed = (orders == np.arange(size)).sum()  # a random permutation has one on average
    assert fixed < 3 * len(keys)


def test_small_permutations_are_uniform() -> None:
    """Over many seeds each of the 24 orders of four windows comes up about equally often."""
    count = 6000
    index = np.tile(np.arange(4), count)
    orders = permute(index, 4, 7, np.repeat(np.arange(count), 4)).reshape(count, 4)
    _, seen = np.unique(orders @ (4 ** np.arange(4)), return_counts=True)
    assert len(seen) == 24
    assert ((seen - count / 24) ** 2 / (count / 24)).sum() < 60  # chi-square, 23 degrees: p ~ 4e-5


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_steps_cover_each_epoch(folder: Path, size: int) -> None:
    """Each epoch visits every window once, in another order, also when steps straddle epochs."""
    tokens = Tokens(TokenDataset(folder, "train", 16))
    count = len(tokens)
    stream = Order(tokens, size, seed=3).steps(0, -(-3 * count // size)).ravel()
    epochs = stream[: 3 * count].reshape(3, count)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(count), (3, 1)))
    assert not np.array_equal(epochs[0], epochs[1])


def test_the_order_resumes(folder: Path) -> None:
    """A run resumed at a step sees the examples of the uninterrupted one, and seeds differ."""
    tokens = Tokens(TokenDataset(folder, "train", 16))
    whole = Order(tokens, 8, seed=5).steps(0, 40)
    for step in range(25, 40):
        resumed = Order(Tokens(TokenDataset(folder, "train", 16)), 8, seed=5)
        np.testing.assert_array_equal(whole[step], resumed.steps(step, step + 1)[0])
    assert not np.array_equal(Order(tokens, 8, seed=6).steps(0, 1)[0], whole[0])


def test_a_batch_is_inputs_and_targets(folder: Path) -> None:
    """What the loss takes is the folder's windows, as int64: each token's target is the next."""
    dataset = TokenDataset(folder, "train", 16)
    tokens, some = Tokens(dataset), np.arange(3, 9)
    inputs, targets = (part.numpy() for part in tokens.batch(tokens.take(some)))
    assert inputs.dtype == targets.dtype == np.int64
    np.testing.assert_array_equal(inputs, dataset.rows(some)[:, :-1])
    np.testing.assert_array_equal(targets, dataset.rows(some)[:, 1:])


def test_batch_order_is_kept() -> None:
    """The order is part of the format: a change would break resumed runs, so it is pinned."""
    order = permute(np.arange(10), 10, 0, np.zeros(10, np.int64))
    assert order.tolist() == [9, 0, 6, 7, 1, 2, 5, 3, 4, 8]


def test_evaluation_takes_the_same_windows(folder: Path) -> None:
    """Evaluation takes the same distinct windows every time, spread from first to last."""
    data = make_data(str(folder), 8)
    count = len(data.valid)  # type: ignore[arg-type]
    (first,), (again,) = data.evaluation(12), data.evaluation(12)
    np.testing.assert_array_equal(first[0], again[0])
    spread = np.array([int(count / 12 * place) for place in range(12)])
    expected = Tokens(TokenDataset(folder, "valid", 8)).take(spread)
    np.testing.assert_array_equal(first[0], expected[0])
    (whole,) = data.evaluation(10 * count)
    assert len(whole[0]) == count
