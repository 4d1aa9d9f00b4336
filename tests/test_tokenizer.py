"""Both tokenizers: exact round trips, an end of text that text cannot forge, clear errors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completedp.common.errors import CompletedpError
from completedp.lm.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer
from completedp.lm.tokens import prepare

package = pytest.importorskip("tokenizers")

CORPUS = [
    "the quick brown fox jumps over the lazy dog. " * 3,
    "caf\u00e9 \u4e2d\u6587 \U0001f600\n",
]
BPE = BPETokenizer.train(CORPUS, 290)
BOTH: list[Tokenizer] = [ByteTokenizer(), BPE]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
both = pytest.mark.parametrize("tokenizer", BOTH, ids=["bytes", "bpe"])


def error_of(call, *arguments) -> str:
    with pytest.raises(CompletedpError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@both
@given(first=text, second=text)
def test_round_trip(tokenizer: Tokenizer, first: str, second: str) -> None:
    """Any text decodes back to itself, ends of text are spelled out, and eot is never encoded."""
    ids = [tokenizer.encode(first), tokenizer.encode(second)]
    for one in ids:
        assert one.dtype == np.int32
        assert tokenizer.eot not in one
        assert np.all((one >= 0) & (one < tokenizer.vocab))
    joined = np.concatenate([ids[0], [tokenizer.eot], ids[1], [tokenizer.eot]])
    assert tokenizer.decode(ids[0]) == first
    assert tokenizer.decode(joined) == f"{first}<|endoftext|>{second}<|endoftext|>"


@both
def test_end_of_text_cannot_be_forged(tokenizer: Tokenizer) -> None:
    """A document that spells the special token gets ordinary ids and decodes back."""
    forged = "a <|endoftext|> b<|endoftext|>"
    ids = tokenizer.encode(forged)
    assert tokenizer.eot not in ids
    assert tokenizer.decode(ids.tolist()) == forged


@both
def test_batch_equals_one_by_one(tokenizer: Tokenizer) -> None:
    """encode_batch gives what encode gives, text by text."""
    texts = [*CORPUS, "", "x"]
    for ids, one in zip(tokenizer.encode_batch(texts), texts, strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(one))
    assert tokenizer.encode_batch([]) == []


@both
def test_decode_refuses_foreign_ids(tokenizer: Tokenizer) -> None:
    """An id outside the vocabulary is quoted rather than dropped."""
    assert str(tokenizer.vocab) in error_of(tokenizer.decode, [0, tokenizer.vocab])
    assert "-1" in error_of(tokenizer.decode, [-1])


def test_bytes() -> None:
    """The byte tokenizer is UTF-8, 257 ids, 256 the last; broken UTF-8 still decodes."""
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab, tokenizer.eot, tokenizer.name) == (257, 256, "bytes")
    assert tokenizer.encode("h\u00e9").tolist() == [104, 0xC3, 0xA9]
    assert tokenizer.decode([0xC3, 104]) == "\ufffdh"


def test_bpe_learns() -> None:
    """A trained BPE has the vocab asked for and says common words in fewer tokens than bytes."""
    assert BPE.vocab == 290
    assert len(BPE.encode("the quick brown fox")) < len("the quick brown fox")


def test_bpe_training_is_deterministic() -> None:
    """The same text gives the same tokenizer and another text another, by name."""
    assert BPETokenizer.train(iter(CORPUS), 290).name == BPE.name
    assert BPETokenizer.train([*CORPUS, "zebra " * 99], 290).name != BPE.name


def test_bpe_save_and_load(tmp_path: Path) -> None:
    """A saved tokenizer loads as the same one, name included, even with the forged token."""
    BPE.save(tmp_path / "t.json")
    loaded = BPETokenizer.load(tmp_path / "t.json")
    assert (loaded.name, loaded.vocab, loaded.eot) == (BPE.name, BPE.vocab, BPE.eot)
    forged = "the fox <|endoftext|>"
    np.testing.assert_array_equal(loaded.encode(forged), BPE.encode(forged))


def test_bpe_truncation_and_padding_are_dropped(tmp_path: Path) -> None:
    """A JSON that truncates or pads is read without either."""
    BPE.save(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    data["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "t.json").write_text(json.dumps(data))
    loaded = BPETokenizer.load(tmp_path / "t.json")
    assert loaded.decode(loaded.encode(CORPUS[0])) == CORPUS[0]
    assert loaded.name == BPE.name


def test_bpe_vocab_too_small() -> None:
    """A BPE vocab below 257 is refused."""
    assert "256" in error_of(BPETokenizer.train, CORPUS, 256)
    assert BPETokenizer.train(CORPUS, 257).vocab == 257


def test_bpe_vocab_too_large() -> None:
    """A vocab that the text cannot fill is an error that says how far it goes."""
    assert "9999" in error_of(BPETokenizer.train, CORPUS, 9999)


def test_bpe_without_end_of_text(tmp_path: Path) -> None:
    """A tokenizer JSON without the end-of-text token is refused and named."""
    BPE.save(tmp_path / "t.json")
    renamed = (tmp_path / "t.json").read_text().replace("<|endoftext|>", "<eos>")
    (tmp_path / "t.json").write_text(renamed)
    message = error_of(BPETokenizer.load, tmp_path / "t.json")
    assert "<|endoftext|>" in message
    assert "t.json" in message


def test_bpe_with_forgeable_end_of_text(tmp_path: Path) -> None:
    """A tokenizer that would read the token out of plain text is refused and named."""
    BPE.save(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    data["added_tokens"][0]["special"] = False
    (tmp_path / "t.json").write_text(json.dumps(data))
    assert "special" in error_of(BPETokenizer.load, tmp_path / "t.json")


def test_bpe_load_errors(tmp_path: Path) -> None:
    """A missing file and a file that is no tokenizer are named."""
    assert "no.json" in error_of(BPETokenizer.load, tmp_path / "no.json")
    (tmp_path / "bad.json").write_text('{"a":\n 1}')
    assert "bad.json" in error_of(BPETokenizer.load, tmp_path / "bad.json")


def test_bpe_needs_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tokenizers package BPE says what to install and bytes work."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert 'needs tokenizers: pip install "completedp[data]"' in error_of(
        BPETokenizer.train, CORPUS, 300
    )
    assert ByteTokenizer().decode([104, 105]) == "hi"


@pytest.mark.parametrize("pattern", [" {2,}", "\n{2,}", "\r\n"])
def test_a_tokenizer_that_joins_spaces_loses_text(pattern: str) -> None:
    """Code that is read without its indents is another text."""
    made = BPETokenizer.train(["some words of a text " * 20], 260)._tokenizer
    made.normalizer = package.normalizers.Replace(package.Regex(pattern), " ")
    assert "loses text" in error_of(BPETokenizer, made, "given")


def test_a_tokenizer_is_tried_on_the_text_itself(tmp_path: Path) -> None:
    """Words that it drops are seen before they are gone from the tokens."""
    made = BPETokenizer.train(["the quick brown fox " * 20], 260)
    made._tokenizer.normalizer = package.normalizers.Replace("quick", "")
    (tmp_path / "text.txt").write_text("the quick brown fox\n<|endoftext|>\nanother one")
    said = error_of(prepare, str(tmp_path / "text.txt"), tmp_path / "tokens", made)
    assert "loses text" in said


@pytest.mark.parametrize("chunk", [100, 10**6])
def test_a_character_that_comes_late_is_tried(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A character that the tokenizer drops is seen wherever it is in the text."""
    made = BPETokenizer.train(["the quick brown fox " * 20], 260)
    made._tokenizer.normalizer = package.normalizers.Replace("\u306f", "")
    monkeypatch.setattr("completedp.lm.tokens._CHUNK_CHARACTERS", chunk)
    monkeypatch.setattr("completedp.lm.tokens._LOOKED_AT", 100)
    text = f"the quick brown fox\n<|endoftext|>\n{'over and over ' * 60}\u306f and on"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    said = error_of(prepare, str(tmp_path / "text.txt"), tmp_path / "tokens", made)
    assert "loses text: '\u306f and on'" in said


def test_a_space_may_be_written_as_sentencepiece_does() -> None:
    """A text with U+2581 is not refused for tokenizers that read it as a space."""
    made = BPETokenizer.train(["some words of a text " * 20], 260)
    made._tokenizer.normalizer = package.normalizers.Replace("\u2581", " ")
    made.check_keeps("a\u2581b")
