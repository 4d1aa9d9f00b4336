"""Token folders: text tokenised once, then read as windows straight from disk.

A folder holds `train-00000.bin`, `valid-00000.bin`, ... (little-endian ids, an end of text after
every document), the tokenizer where it is BPE, and `manifest.json`, which says what is there and
how it was asked for. `prepare` writes one; batches.py reads it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from completedp.common.errors import CompletedpError, DataWarning
from completedp.common.files import json_text, parse_json, temporary_beside, user_path
from completedp.common.warn import warn
from completedp.lm import verified
from completedp.lm.corpora import END_OF_TEXT, documents, fingerprint, names_of
from completedp.lm.tokenizer import BPETokenizer, Tokenizer

SCHEMA = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"

DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_CHUNK_CHARACTERS = 1 << 21  # text tokenised at once: enough to fill the cores, small in memory
_LOOKED_AT = 100_000
_AROUND = 8
"""Characters of the text itself that a tokenizer is tried on."""
_HASH_RANGE = 1 << 64
_SHARD_NAME = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked of `prepare`: an equal request finds the folder ready."""

    source: str
    source_fingerprint: str
    text_field: str
    tokenizer: str
    valid_fraction: float
    shard_tokens: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of token ids."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """Train or valid; `bytes` counts the UTF-8 text alone, for bits per byte."""

    documents: int
    tokens: int
    bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a token folder."""

    schema: int
    request: Request
    vocab: int
    eot: int
    splits: dict[str, Split]

    @property
    def source(self) -> str:
        """Where the text came from, as it was given."""
        return self.request.source

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name."""
        return self.request.tokenizer

    @property
    def dtype(self) -> str:
        """The type of an id on disk, uint16 or uint32."""
        return self.request.dtype

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = False) -> "Manifest":
        """Read strictly and compare with the files there: sizes always, checksums to `verify`
        (what was compared before and did not change since is not read again)."""
        folder = user_path(folder)
        path = folder / MANIFEST
        try:
            data = parse_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CompletedpError(
                f"no token folder at {str(folder)!r}: it has no readable {MANIFEST}; "
                "prepare one with `completedp data`"
            ) from error
        except (ValueError, RecursionError) as error:
            raise CompletedpError(f"{str(path)!r} is not JSON ({error}): prepare again") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if type(schema) is int and schema > SCHEMA:
            raise CompletedpError(
                f"{str(path)!r} has schema {schema} and this completedp reads {SCHEMA}: upgrade it"
            )
        manifest = _parse(cls, data, repr(str(path)), "")
        if manifest.dtype not in DTYPES:
            raise CompletedpError(f"{str(path)!r}: unknown dtype {manifest.dtype!r}: prepare again")
        if not 1 <= manifest.vocab <= 2**31 or manifest.schema != SCHEMA:
            raise CompletedpError(f"{str(path)!r} has impossible numbers: prepare again")
        for name, split in manifest.splits.items():
            if not _SHARD_NAME.fullmatch(name):
                raise CompletedpError(
                    f"{str(path)!r} has a split named {name!r:.60}: prepare again"
                )
            if split.tokens < 1 or split.bytes < 1 or not split.shards:
                raise CompletedpError(f"{str(path)!r} has an empty split: prepare again")
            for shard in split.shards:
                if not _SHARD_NAME.fullmatch(shard.file):
                    raise CompletedpError(
                        f"{str(path)!r} names a shard outside its folder, or as none is named: "
                        f"{shard.file!r:.60}; prepare again"
                    )
                if not _SHA256.fullmatch(shard.sha256):
                    raise CompletedpError(
                        f"{str(path)!r}: the sha256 of {shard.file!r} is {shard.sha256!r:.60}: "
                        "prepare again"
                    )
                _check_shard(folder / shard.file, shard, manifest.dtype)
        if verify:
            every = (shard for split in manifest.splits.values() for shard in split.shards)
            verified.verify(folder, {shard.file: shard.sha256 for shard in every})
        return manifest

    def digest(self) -> str:
        """Equal for equal tokens: of the vocabulary and every shard's checksum."""
        parts = [str(self.vocab)]
        for name in sorted(self.splits):
            parts += [name, *(shard.sha256 for shard in self.splits[name].shards)]
        return hashlib.sha256("/".join(parts).encode()).hexdigest()


def _parse(kind: Any, value: Any, file: str, where: str) -> Any:
    """JSON to the dataclasses above: every key known, none missing, every type exact."""
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        for key in sorted(value.keys() ^ hints.keys()):
            problem = "has an unknown key" if key in value else "lacks the key"
            raise CompletedpError(f"{file} {problem} {f'{where}{key}'!r}: prepare again")
        return kind(**{k: _parse(t, value[k], file, f"{where}{k}.") for k, t in hints.items()})
    if get_origin(kind) is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        return tuple(_parse(item, v, file, f"{where}{i}.") for i, v in enumerate(value))
    if get_origin(kind) is dict and isinstance(value, dict):
        item = get_args(kind)[1]
        return {k: _parse(item, v, file, f"{where}{k}.") for k, v in value.items()}
    if type(value) is kind:
        return value
    key = where.removesuffix(".") or "the whole"
    wanted = getattr(kind, "__name__", str(kind))
    raise CompletedpError(
        f"{file}: {key!r} must be {wanted}, not {type(value).__name__}: prepare again"
    )


def _check_shard(path: Path, shard: Shard, dtype: str) -> None:
    if not path.is_file():
        raise CompletedpError(f"the shard {str(path)!r} is missing: prepare the folder again")
    size, wanted = path.stat().st_size, shard.tokens * DTYPES[dtype].itemsize
    if size != wanted:
        raise CompletedpError(
            f"the shard {str(path)!r} holds {size} bytes where {wanted} were written: "
            "prepare the folder again"
        )


def prepare(
    source: str | Sequence[str],
    out: str | Path,
    tokenizer: Tokenizer,
    *,
    valid_fraction: float = 0.01,
    shard_tokens: int = 100_000_000,
    text_field: str = "text",
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Tokenise a source, or several, into the folder `out`; an equal one is reused.

    All of it is written, or nothing.

    A document is held out when a hash of its text falls below `valid_fraction` of the range, so the
    order does not matter and duplicates stay on one side. Where that leaves a side without any
    document, the one with the nearest hash moves over. `progress(documents, tokens)` is called now
    and then with the counts so far.
    """
    if not 0 <= valid_fraction < 1:
        raise CompletedpError(f"valid_fraction={valid_fraction} must be 0 or more and below 1")
    if shard_tokens < 1:
        raise CompletedpError(f"shard_tokens={shard_tokens} must be 1 or more")
    request = Request(
        source=", ".join(names_of(source)),
        source_fingerprint=fingerprint(source),
        text_field=text_field,
        tokenizer=tokenizer.name,
        valid_fraction=float(valid_fraction),
        shard_tokens=shard_tokens,
        dtype="uint16" if tokenizer.vocab <= 1 << 16 else "uint32",
    )
    out = user_path(out).absolute()
    if (out / MANIFEST).exists():
        return _reuse(out, request)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CompletedpError(
            f"{str(out)!r} exists and is no token folder: choose another or remove it"
        )
    try:
        with temporary_beside(out, folder=True) as temporary:
            manifest = _write(temporary, source, request, tokenizer, progress)
            try:
                temporary.rename(out)
            except OSError:  # somebody else finished the same folder first
                if not (out / MANIFEST).exists():
                    raise
                manifest = _reuse(out, request)
    except OSError as error:
        raise CompletedpError(
            f"cannot write {str(out)!r} ({error.strerror or error}): make room, or choose a folder "
            "that you may write to"
        ) from error
    return manifest


def _reuse(out: Path, request: Request) -> Manifest:
    manifest = Manifest.load(out)
    there, asked = asdict(manifest.request), asdict(request)
    differ = [
        f"{key}={there[key]!r} (not {asked[key]!r})" for key in asked if there[key] != asked[key]
    ]
    if differ:
        raise CompletedpError(
            f"{str(out)!r} was prepared with {', '.join(differ)}: choose another or remove it"
        )
    return manifest


def _write(
    folder: Path,
    source: str | Sequence[str],
    request: Request,
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    threshold = int(request.valid_fraction * _HASH_RANGE)
    splits, lowest, highest = _write_splits(folder, source, request, tokenizer, threshold, progress)
    if request.valid_fraction and len(splits) < 2:
        # Only a small corpus gets here, so reading it once more costs less than a pass to count.
        if lowest == highest:
            raise CompletedpError(
                f"the corpus {request.source!r} is one document, and validation is held out by "
                "document: give two different ones or more (in a text file a line <|endoftext|> "
                "ends one). A valid_fraction of 0 holds nothing out, and search and train need it"
            )
        for path in folder.iterdir():
            path.unlink()
        threshold = lowest + 1 if "train" in splits else highest
        splits, *_ = _write_splits(folder, source, request, tokenizer, threshold, progress)
    _warn_of_shares(splits, request)
    if isinstance(tokenizer, BPETokenizer):
        tokenizer.save(folder / TOKENIZER)
    manifest = Manifest(
        schema=SCHEMA, request=request, vocab=tokenizer.vocab, eot=tokenizer.eot, splits=splits
    )
    (folder / MANIFEST).write_text(json_text(asdict(manifest)), encoding="utf-8")
    return manifest


def _warn_of_shares(splits: dict[str, Split], request: Request) -> None:
    """Few documents, or of very unequal length, cannot be shared out as asked."""
    if "valid" not in splits:
        return
    sizes = {name: split.bytes for name, split in splits.items()}
    share, asked = sizes["valid"] / sum(sizes.values()), request.valid_fraction
    if abs(share - asked) > max(0.05, asked) or share < asked / 4:
        count = sum(split.documents for split in splits.values())
        warn(
            f"validation takes {share:.2g} of the text of {request.source!r}, where {asked:g} was "
            f"asked for: documents are held out whole, and there are {count:,}; where a file "
            f"holds several, put a line {END_OF_TEXT} between them",
            DataWarning,
        )


def _write_splits(
    folder: Path,
    source: str | Sequence[str],
    request: Request,
    tokenizer: Tokenizer,
    threshold: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Split], int, int]:
    """One pass over the source: the splits that got a document, lowest and highest hash seen."""
    writers = {name: _SplitWriter(folder, name, request) for name in ("train", "valid")}
    eot = np.array([tokenizer.eot], np.int32)
    lowest, highest = _HASH_RANGE, -1
    seen: set[str] = set()
    for texts in _chunks(documents(source, text_field=request.text_field)):
        if isinstance(tokenizer, BPETokenizer):
            if highest < 0:  # before much is written
                tokenizer.check_keeps("\n".join(texts)[:_LOOKED_AT])
            tokenizer.check_keeps("\n".join(_around_new(texts, seen)))
        parts: dict[str, list[np.ndarray]] = {name: [] for name in writers}
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            raw = text.encode("utf-8")
            place = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")
            lowest, highest = min(lowest, place), max(highest, place)
            name = "valid" if place < threshold else "train"
            writers[name].documents += 1
            writers[name].bytes += len(raw)
            parts[name] += [ids, eot]
        for name, arrays in parts.items():
            if arrays:
                writers[name].append(np.concatenate(arrays))
        if progress is not None:
            every = writers.values()
            progress(sum(w.documents for w in every), sum(w.tokens for w in every))
    splits = {name: writer.split() for name, writer in writers.items() if writer.documents}
    return splits, lowest, highest


def _around_new(texts: list[str], seen: set[str]) -> Iterator[str]:
    """The text around every character that was not seen before: a tokenizer may lack some."""
    for text in texts:
        new = set(text) - seen
        seen |= new
        for character in sorted(new):
            at = text.index(character)
            yield text[max(0, at - _AROUND) : at + _AROUND]


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _SplitWriter:
    """Appends ids to the shards of one split, each filled before the next is begun."""

    def __init__(self, folder: Path, name: str, request: Request) -> None:
        self.documents = self.tokens = self.bytes = 0
        self._folder, self._name = folder, name
        self._dtype, self._limit = DTYPES[request.dtype], request.shard_tokens
        self._full: list[Shard] = []
        self._filled, self._digest = 0, hashlib.sha256()

    def append(self, ids: np.ndarray) -> None:
        self.tokens += len(ids)
        while len(ids):
            part, ids = np.split(ids, [self._limit - self._filled])
            raw = part.astype(self._dtype).tobytes()
            with (self._folder / self._file()).open("ab") as file:
                file.write(raw)
            self._digest.update(raw)
            self._filled += len(part)
            if self._filled == self._limit:
                self._finish()

    def split(self) -> Split:
        if self._filled:
            self._finish()
        return Split(
            documents=self.documents, tokens=self.tokens, bytes=self.bytes, shards=tuple(self._full)
        )

    def _file(self) -> str:
        return f"{self._name}-{len(self._full):05d}.bin"

    def _finish(self) -> None:
        digest = self._digest.hexdigest()
        self._full.append(Shard(file=self._file(), tokens=self._filled, sha256=digest))
        self._filled, self._digest = 0, hashlib.sha256()
