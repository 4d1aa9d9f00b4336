"""Documents, one string at a time, from a source named on the command line.

A source is one of
    stdlib                   the sources of this Python's own library: always there, no download
    a path                   a file, or a folder walked in sorted order, of .txt and .jsonl
                             (plain, .gz or .xz) and .parquet
    hf:OWNER/NAME[@CONFIG]   a Hugging Face dataset, streamed

In .txt a line holding only <|endoftext|> ends a document, and the newline before it belongs to the
separator. Text is read a document at a time, so a corpus may be larger than memory.
"""

import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from completedp.common.errors import CompletedpError, DataWarning, one_line
from completedp.common.extras import import_extra
from completedp.common.files import user_path
from completedp.common.warn import warn

END_OF_TEXT = "<|endoftext|>"

_SUFFIXES = (
    *(f"{kind}{packed}" for kind in (".txt", ".jsonl") for packed in ("", ".gz", ".xz")),
    ".parquet",
)
# Tests are half of the library and mostly tables; installed packages differ between machines.
_STDLIB_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_HUGGING_FACE = re.compile(r"hf:(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<config>[^@\s]+))?")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def names_of(source: str | Sequence[str]) -> tuple[str, ...]:
    """One source or several, as their names."""
    return (source,) if isinstance(source, str) else tuple(source)


def documents(source: str | Sequence[str], *, text_field: str = "text") -> Iterator[str]:
    """The documents of a source, or of several one after another; blank ones are left out.

    Their order never changes. What can be known to be wrong without reading text (a missing path,
    an unsupported suffix, a package to install) is raised here; the rest while iterating.
    """
    return chain.from_iterable([_documents(name, text_field) for name in names_of(source)])


def _documents(source: str, text_field: str) -> Iterator[str]:
    if source.startswith("hf:"):
        found = _hugging_face(source, text_field)
    elif source == "stdlib":
        found = _stdlib(_files(source))
    else:
        files = _files(source)
        if any(_suffix(path) == ".parquet" for path in files):
            import_extra("pyarrow.parquet", "reading .parquet")
        found = (text for path in files for text in _file_documents(path, text_field))
    return _not_blank(found, source)


def fingerprint(source: str | Sequence[str]) -> str:
    """A digest of the names and sizes of the source's files: cheap, and it sees most changes."""
    names = names_of(source)
    if len(names) == 1:
        return _fingerprint(names[0])
    every = "/".join(map(_fingerprint, names))
    return hashlib.blake2b(every.encode(), digest_size=16).hexdigest()


def _fingerprint(source: str) -> str:
    if source.startswith("hf:"):
        return ""  # only the hub knows what is there today
    root = _root(source)
    digest = hashlib.blake2b(digest_size=16)
    for path in _files(source):
        name = path.name if path == root else path.relative_to(root).as_posix()
        digest.update(os.fsencode(f"{name}\0{path.stat().st_size}\0"))  # names may not be UTF-8
    return digest.hexdigest()


def _not_blank(found: Iterator[str], source: str) -> Iterator[str]:
    empty = True
    for text in found:
        if text and not text.isspace():
            empty = False
            yield text
    if empty:
        raise CompletedpError(f"the corpus {source!r} is empty: no document in it holds any text")


def _root(source: str) -> Path:
    return user_path(sysconfig.get_path("stdlib") if source == "stdlib" else source)


def _files(source: str) -> list[Path]:
    """Every file of a source, sorted by path; in a folder, hidden and other files are passed by."""
    root = _root(source)
    if root.is_file():
        if _suffix(root) is None:
            raise CompletedpError(
                f"cannot read {source!r}: its suffix must be one of {', '.join(_SUFFIXES)}"
            )
        return [root]
    if not root.is_dir():
        problem = "is neither a file nor a folder" if root.exists() else "is not there"
        raise CompletedpError(
            f"{source!r} {problem}: give the path of a file or folder, 'stdlib', or "
            "'hf:OWNER/NAME' for a Hugging Face dataset"
        )
    files = []
    for folder, folders, names in os.walk(root):
        # Cut here and not later: site-packages alone may hold more files than the library.
        folders[:] = [name for name in folders if not _left_out(name, source)]
        files += [Path(folder, name) for name in names if not _left_out(name, source)]
    others = [path for path in files if not _wanted(path, source)]
    files = [path for path in files if _wanted(path, source)]
    if not files:
        raise CompletedpError(
            f"the corpus {source!r} is empty: the folder holds no {', '.join(_SUFFIXES)} file"
        )
    if others and source != "stdlib":
        warn(
            f"{len(others):,} of {len(files) + len(others):,} files in {source!r} are passed by, "
            f"such as {min(others).name!r}: of files {', '.join(_SUFFIXES)} are read",
            DataWarning,
        )
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def _left_out(name: str, source: str) -> bool:
    return name in _STDLIB_LEFT_OUT if source == "stdlib" else name.startswith(".")


def _wanted(path: Path, source: str) -> bool:
    by_name = path.suffix == ".py" if source == "stdlib" else _suffix(path) is not None
    return by_name and path.is_file()


def _suffix(path: Path) -> str | None:
    return next((suffix for suffix in _SUFFIXES if path.name.lower().endswith(suffix)), None)


def _stdlib(files: list[Path]) -> Iterator[str]:
    for path in files:
        try:
            yield path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:  # a few sources declare another encoding
            continue


def _file_documents(path: Path, field: str) -> Iterator[str]:
    suffix = _suffix(path) or ""
    try:
        if suffix == ".parquet":
            yield from _parquet(path, field)
        elif suffix.startswith(".jsonl"):
            yield from _jsonl(path, field)
        else:
            yield from _txt(path)
    except CompletedpError:
        raise
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise CompletedpError(f"cannot read {str(path)!r}: {_one_line(error)}") from error


def _txt(path: Path) -> Iterator[str]:
    separator = END_OF_TEXT.encode()
    lines: list[bytes] = []
    start = 0
    for offset, line in _lines(path):
        if line.startswith(separator) and line.rstrip(b"\r\n") == separator:
            yield _document(lines, path, start)
            lines = []
            start = offset + len(line)
        else:
            lines.append(line)
    yield _document(lines, path, start)


def _document(lines: list[bytes], path: Path, start: int) -> str:
    """Joined lines without the last newline, so that a document is the same wherever it stands."""
    text = _decode(b"".join(lines), path, start)
    return text.removesuffix("\n").removesuffix("\r")


def _jsonl(path: Path, field: str) -> Iterator[str]:
    for number, (offset, line) in enumerate(_lines(path), start=1):
        if line.isspace():
            continue
        where = repr(f"{path}:{number}")
        text = _decode(line, path, offset)
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CompletedpError(f"{where} is not JSON ({error}): mend the line") from error
        if not isinstance(row, dict) or field not in row:
            there = sorted(row) if isinstance(row, dict) else type(row).__name__
            raise CompletedpError(f"{where} has no field {field!r}, only {there}: name another")
        yield _text(row[field], field, where)


def _parquet(path: Path, field: str) -> Iterator[str]:
    parquet = import_extra("pyarrow.parquet", "reading .parquet")
    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if field not in names:
            raise CompletedpError(
                f"{str(path)!r} has no field {field!r}, only {sorted(names)}: name another"
            )
        for batch in file.iter_batches(columns=[field], batch_size=1024):
            for value in batch.column(0).to_pylist():
                yield _text(value, field, repr(str(path)))


def _hugging_face(source: str, field: str) -> Iterator[str]:
    match = _HUGGING_FACE.fullmatch(source)
    if match is None:
        raise CompletedpError(
            f"cannot read {source!r} as a dataset's name: write hf:OWNER/NAME or "
            "hf:OWNER/NAME@CONFIG"
        )
    datasets = import_extra("datasets", "reading hf: sources")

    def rows() -> Iterator[str]:
        try:
            name, config = match["name"], match["config"]
            for row in datasets.load_dataset(name, config, split="train", streaming=True):
                if field not in row:
                    raise CompletedpError(
                        f"{source!r} has no field {field!r}, only {sorted(row)}: name another"
                    )
                yield _text(row[field], field, repr(source))
        except CompletedpError:
            raise
        except Exception as error:  # the package raises many kinds: network, name, config
            raise CompletedpError(f"cannot read {source!r}: {_one_line(error)}") from error

    return rows()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Byte offset (in the unpacked text) and line, for every line of the file."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    with opener(path, "rb") as raw:
        # A second buffer because the readline of gzip and lzma is Python code.
        file = cast(BinaryIO, io.BufferedReader(cast(Any, raw), 1 << 20))
        offset = 0
        for line in file:
            skip = len(_BYTE_ORDER_MARK) if not offset and line.startswith(_BYTE_ORDER_MARK) else 0
            yield offset + skip, line[skip:]
            offset += len(line)


def _decode(raw: bytes, path: Path, start: int) -> str:
    """UTF-8, or an error that names the byte where the file stops being text."""
    nul = raw.find(b"\0")
    if nul >= 0:
        raise CompletedpError(
            f"{str(path)!r} is binary: a NUL byte at offset {start + nul}; give UTF-8 text"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CompletedpError(
            f"{str(path)!r} is not UTF-8: byte 0x{raw[error.start]:02x} at offset "
            f"{start + error.start}; give UTF-8 text"
        ) from error


def _text(value: object, field: str, where: str) -> str:
    """The value of a text field; a null is a blank document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise CompletedpError(f"field {field!r} of {where} is {kind}, not text: name another")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
        raise CompletedpError(
            f"field {field!r} of {where} is not text: half a surrogate pair at character "
            f"{error.start}; mend it"
        ) from error
    return value


def _one_line(error: Exception) -> str:
    return one_line(error) or type(error).__name__
