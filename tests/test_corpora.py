"""Documents from every kind of source, and the one-line errors for what cannot be read."""

import gzip
import json
import lzma
import sys
import types
from pathlib import Path

import pytest

from completedp.common.errors import CompletedpError, DataWarning
from completedp.lm.corpora import documents, fingerprint

TEXTS = ["first\n\ndocument", "second, with <|endoftext|> inside a line", "th\u00efrd"]
OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}


def write(path: Path, raw: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with OPENERS[path.suffix if path.suffix in OPENERS else ""](path, "wb") as file:
        file.write(raw)
    return str(path)


def as_txt(texts: list[str]) -> bytes:
    return "\n<|endoftext|>\n".join(texts).encode() + b"\n"


def as_jsonl(texts: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": 1, field: text}).encode() + b"\n" for text in texts)


def write_parquet(path: Path, **columns: list) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pyarrow.table(columns), path)
    return str(path)


def error_of(source: str, **options: str) -> str:
    with pytest.raises(CompletedpError) as caught:
        list(documents(source, **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_text_files(tmp_path: Path, kind: str, packed: str) -> None:
    """Plain and compressed .txt and .jsonl give back the documents written to them."""
    raw = as_txt(TEXTS) if kind == ".txt" else as_jsonl(TEXTS)
    assert list(documents(write(tmp_path / f"a{kind}{packed}", raw))) == TEXTS


def test_parquet(tmp_path: Path) -> None:
    """A .parquet file gives the rows of its text field, nulls and blanks left out."""
    source = write_parquet(tmp_path / "a.parquet", text=[*TEXTS, None, ""], n=[1, 2, 3, 4, 5])
    assert list(documents(source)) == TEXTS


def test_text_field(tmp_path: Path) -> None:
    """The text field can be named, in .jsonl and in .parquet."""
    source = write(tmp_path / "a.jsonl", as_jsonl(TEXTS, "body"))
    assert list(documents(source, text_field="body")) == TEXTS
    source = write_parquet(tmp_path / "a.parquet", body=TEXTS)
    assert list(documents(source, text_field="body")) == TEXTS


def test_txt_without_separator(tmp_path: Path) -> None:
    """A .txt without a separator line is one document."""
    assert list(documents(write(tmp_path / "a.txt", b"one\n\ntwo\n"))) == ["one\n\ntwo"]


def test_txt_blank_documents_and_line_ends(tmp_path: Path) -> None:
    """Blank documents, a byte order mark and Windows separators leave no trace."""
    raw = b"\xef\xbb\xbfone\r\n<|endoftext|>\r\n \n<|endoftext|>\n<|endoftext|>\ntwo\n<|endoftext|>"
    assert list(documents(write(tmp_path / "a.txt", raw))) == ["one", "two"]


def test_jsonl_blank_lines(tmp_path: Path) -> None:
    """Blank lines and null texts in .jsonl are passed by."""
    raw = b'\n{"text": "one"}\n  \n{"text": null}\n{"text": ""}\n{"text": "a\\u0000b"}'
    assert list(documents(write(tmp_path / "a.jsonl", raw))) == ["one", "a\0b"]


def test_folder_is_walked_in_order(tmp_path: Path) -> None:
    """A folder is read recursively, sorted by path, hidden files passed by, and others with a
    word."""
    write(tmp_path / "b.jsonl", as_jsonl(["b"]))
    write(tmp_path / "a" / "2.txt.gz", b"a2")
    write(tmp_path / "a" / "1.TXT", b"a1")
    write(tmp_path / "README.md", b"not text")
    write(tmp_path / ".cache" / "c.txt", b"hidden")
    write_parquet(tmp_path / "c.parquet", text=["c"])
    with pytest.warns(DataWarning, match=r"1 of 5 files in .* are passed by, such as 'README.md'"):
        assert list(documents(str(tmp_path))) == ["a1", "a2", "b", "c"]


def test_documents_are_streamed(tmp_path: Path) -> None:
    """The first documents come out before the rest of the file has been looked at."""
    source = write(tmp_path / "a.txt", b"one\n<|endoftext|>\ntwo\n<|endoftext|>\nbad \xff\n")
    found = documents(source)
    assert next(found) == "one"
    assert next(found) == "two"
    with pytest.raises(CompletedpError):
        next(found)


def test_stdlib() -> None:
    """The standard library is there, large enough to train on, and the same twice."""
    found = list(documents("stdlib"))
    assert sum(map(len, found)) > 5_000_000
    assert found == list(documents("stdlib"))
    assert Path(types.__file__).read_text(encoding="utf-8") in found


def test_stdlib_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests, caches, installed packages and sources in other encodings are left out."""
    for name in ("b.py", "a/x.py", "site-packages/n.py", "test/n.py", "a/tests/n.py", "n.txt"):
        write(tmp_path / name, name.encode())
    write(tmp_path / "__pycache__" / "n.py", b"n")
    write(tmp_path / "latin.py", b"# \xe9")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert list(documents("stdlib")) == ["a/x.py", "b.py"]


def test_fingerprint(tmp_path: Path) -> None:
    """The fingerprint follows names and sizes of the files and nothing else."""
    write(tmp_path / "one" / "a.txt", b"abc")
    write(tmp_path / "two" / "a.txt", b"abc")
    assert fingerprint(str(tmp_path / "one")) == fingerprint(str(tmp_path / "two"))
    write(tmp_path / "two" / "a.txt", b"abcd")
    assert fingerprint(str(tmp_path / "one")) != fingerprint(str(tmp_path / "two"))
    assert fingerprint("hf:owner/name") == ""


def test_missing_path() -> None:
    """A path that does not exist is quoted, and the other kinds of source are named."""
    message = error_of("no/such/file.txt")
    assert "'no/such/file.txt'" in message
    assert "stdlib" in message
    with pytest.raises(CompletedpError):
        documents("no/such/file.txt")  # at once, not at the first document


def test_unsupported_suffix(tmp_path: Path) -> None:
    """A file of another kind is refused with the list of suffixes that are read."""
    message = error_of(write(tmp_path / "a.csv", b"a,b"))
    assert "a.csv" in message
    assert ".jsonl.xz" in message


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"<|endoftext|>\n<|endoftext|>\n"])
def test_empty_corpus(tmp_path: Path, raw: bytes) -> None:
    """A corpus without any text is an error, whether a file or a folder."""
    assert "is empty" in error_of(write(tmp_path / "a.txt", raw))
    (tmp_path / "folder").mkdir()
    assert "is empty" in error_of(str(tmp_path / "folder"))


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl"])
@pytest.mark.parametrize(("bad", "word"), [(b"\0", "NUL"), (b"\xff", "UTF-8")])
def test_binary(tmp_path: Path, suffix: str, bad: bytes, word: str) -> None:
    """A NUL byte or invalid UTF-8 names the file and the byte's offset in the text."""
    good = as_jsonl(TEXTS) if "json" in suffix else as_txt([*TEXTS, ""])
    message = error_of(write(tmp_path / f"a{suffix}", good + b"abc" + bad))
    assert word in message
    assert f"a{suffix}'" in message
    assert f"offset {len(good) + 3};" in message


def test_damaged_archive(tmp_path: Path) -> None:
    """A truncated or mislabelled compressed file is named."""
    whole = gzip.compress(as_txt(TEXTS * 100))
    (tmp_path / "a.txt.gz").write_bytes(whole[:-20])
    (tmp_path / "b.txt.xz").write_bytes(b"not xz at all")
    assert "a.txt.gz" in error_of(str(tmp_path / "a.txt.gz"))
    assert "b.txt.xz" in error_of(str(tmp_path / "b.txt.xz"))


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{broken", "not JSON"),
        (b'{"body": "x"}', "no field 'text'"),
        (b'["x"]', "no field 'text'"),
        (b'{"text": 3}', "int, not text"),
        (b'{"text": "\\ud800"}', "surrogate"),
    ],
)
def test_bad_jsonl_line(tmp_path: Path, line: bytes, word: str) -> None:
    """A bad .jsonl line is named by file and line."""
    message = error_of(write(tmp_path / "a.jsonl", as_jsonl(TEXTS) + line))
    assert word in message
    assert "a.jsonl:4'" in message


def test_bad_parquet(tmp_path: Path) -> None:
    """A .parquet without the field, with another type, or not parquet at all is named."""
    source = write_parquet(tmp_path / "a.parquet", n=[1, 2])
    assert "no field 'text', only ['n']" in error_of(source)
    assert "int, not text" in error_of(source, text_field="n")
    assert "b.parquet" in error_of(write(tmp_path / "b.parquet", b"not parquet"))


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow a .parquet source says what to install."""
    source = write(tmp_path / "a.parquet", b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert error_of(source) == 'reading .parquet needs pyarrow: pip install "completedp[data]"'


def fake_datasets(monkeypatch: pytest.MonkeyPatch, rows: list[dict]) -> list[tuple]:
    calls: list[tuple] = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> list[dict]:
        calls.append((name, config, split, streaming))
        if name == "no/such":
            raise RuntimeError("Dataset 'no/such'\ndoes not exist")
        return rows

    module = types.ModuleType("datasets")
    module.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    """hf:OWNER/NAME[@CONFIG] streams the train split of that dataset."""
    calls = fake_datasets(monkeypatch, [{"text": text} for text in [*TEXTS, ""]])
    source = "hf:togethercomputer/RedPajama-Data-1T-Sample"
    assert list(documents(source)) == TEXTS
    assert list(documents("hf:owner/name@en.v1")) == TEXTS
    assert calls == [
        ("togethercomputer/RedPajama-Data-1T-Sample", None, "train", True),
        ("owner/name", "en.v1", "train", True),
    ]


def test_hugging_face_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad name, a missing field and the package's own errors are one line each."""
    fake_datasets(monkeypatch, [{"content": "x"}])
    assert "hf:OWNER/NAME@CONFIG" in error_of("hf:")
    assert "hf:OWNER/NAME@CONFIG" in error_of("hf:a/b/c")
    assert "no field 'text', only ['content']" in error_of("hf:owner/name")
    assert "does not exist" in error_of("hf:no/such")


def test_hugging_face_needs_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the datasets package an hf: source says what to install."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = 'reading hf: sources needs datasets: pip install "completedp[data]"'
    assert error_of("hf:owner/name") == message
