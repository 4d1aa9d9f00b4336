"""Text to token ids and back: bytes as they are, or byte-level BPE.

Both have the same face, `Tokenizer`. The end-of-text id is added by whoever joins documents and
never comes out of `encode`: a document that spells `<|endoftext|>` is encoded as ordinary text.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

import numpy as np

from completedp.common.errors import CompletedpError, one_line
from completedp.common.extras import import_extra
from completedp.common.files import user_path
from completedp.lm.corpora import END_OF_TEXT

if TYPE_CHECKING:
    import tokenizers

_SMALLEST_BPE = 257  # every byte and the end of text
_LARGEST_BPE = 2**21
_EVERY_BYTE = "".join(
    (
        "The Quick fox, 0123456789:\n\tif x_1 != {[(y)]}: # 'a' \"b\" `c` ",
        "~ $ % ^ & * + | < > ? / \\ two  four    tabs\t\tend\n\n\nlines\r\nof others\r\n",
        *map(chr, range(0xA1, 0x180)),  # accents, and each byte that continues a character
        *map(chr, range(0x400, 0x800, 64)),  # the leading bytes of two
        *(chr(point) for point in (0x905, 0xE01, 0x1E00, 0x2713, 0x3042, 0x4E2D, 0x6587, 0xAC00)),
        *(chr(point) for point in (0x1F600, 0x1F9EA, 0x10348, 0x2000B)),
    )
)
"""Text of many scripts, with upper case and without what tokenizers may compose otherwise."""


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of the UTF-8 text, 256 ends a text. Needs no training."""

    name = "bytes"
    vocab = 257
    eot = 256

    def encode(self, text: str) -> np.ndarray:
        """The bytes of the text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Bytes that are not UTF-8, as a model may emit, become the replacement character."""
        array = _checked(ids, self.vocab)
        pieces = np.split(array, np.flatnonzero(array == self.eot))
        raw = END_OF_TEXT.encode().join(
            (piece[1:] if index else piece).astype(np.uint8).tobytes()
            for index, piece in enumerate(pieces)
        )
        return raw.decode("utf-8", errors="replace")


class BPETokenizer:
    """Byte-level BPE through the `tokenizers` package: no text is ever unknown to it."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", origin: str) -> None:
        """`origin` names the tokenizer in errors; `train` and `load` are the usual ways in."""
        # The largest id, not the count: ids may have holes and the model is indexed by id. Asked
        # first, as the package makes room for all of them.
        self.vocab: int = max(tokenizer.get_vocab().values(), default=0) + 1
        if self.vocab > _LARGEST_BPE:
            raise CompletedpError(
                f"the tokenizer {origin} has a token of id {self.vocab - 1}, and a model has a row "
                f"for every id below: number its tokens from 0 on (at most {_LARGEST_BPE})"
            )
        eot = tokenizer.token_to_id(END_OF_TEXT)
        if eot is None:
            raise CompletedpError(
                f"the tokenizer {origin} has no {END_OF_TEXT!r} token: add it as a special token"
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Spelled-out special tokens are text. This is a switch of the object, not of its JSON.
        tokenizer.encode_special_tokens = True
        if eot in tokenizer.encode(END_OF_TEXT, add_special_tokens=False).ids:
            raise CompletedpError(
                f"the tokenizer {origin} reads {END_OF_TEXT!r} inside a text as the end of it: "
                "mark that token as special in its JSON"
            )
        self._tokenizer = tokenizer
        self.eot: int = eot
        self.check_keeps(_EVERY_BYTE, origin)
        digest = hashlib.sha256(tokenizer.to_str().encode("utf-8")).hexdigest()
        self.name: str = f"bpe{self.vocab}-{digest[:8]}"

    def check_keeps(self, sample: str, origin: str = "given") -> None:
        """Raise where a text does not come back from ids: some bytes are missing, words unknown,
        letters made small, spaces that are one where there were more. How a character is composed,
        and a space in front, may differ."""
        ids = self._tokenizer.encode(sample, add_special_tokens=False).ids
        kept = self._tokenizer.decode(ids, skip_special_tokens=False)
        # U+2581 is how some write a space, and so read it as one.
        texts = (text.replace("\u2581", " ") for text in (sample, kept))
        before, after = (normalize("NFKC", text).strip() for text in texts)
        if before != after:
            same = next(
                (
                    i
                    for i, pair in enumerate(zip(before, after, strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(before), len(after)),
            )
            raise CompletedpError(
                f"the tokenizer {origin} loses text: {before[same : same + 8]!r} comes back as "
                f"{after[same : same + 8]!r}; give one of byte-level BPE, or with byte fallback, "
                "that neither changes nor drops characters"
            )

    @classmethod
    def train(cls, documents: Iterable[str], vocab: int) -> "BPETokenizer":
        """Learn `vocab` tokens, bytes and end of text among them; the same text gives the same."""
        if vocab > _LARGEST_BPE:
            raise CompletedpError(f"a BPE vocab of {vocab} is too large: at most {_LARGEST_BPE}")
        if vocab < _SMALLEST_BPE:
            raise CompletedpError(
                f"a BPE vocab of {vocab} is too small: 256 bytes and the end of text need "
                f"{_SMALLEST_BPE} or more"
            )
        package = import_extra("tokenizers", "a BPE tokenizer")
        byte_level = package.pre_tokenizers.ByteLevel
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
        tokenizer.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(byte_level.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents, trainer)
        learned = tokenizer.get_vocab_size()
        if learned < vocab:
            raise CompletedpError(
                f"a BPE vocab of {vocab} cannot be learned: the text has only enough for "
                f"{learned}; ask for that or give more text"
            )
        return cls(tokenizer, "just trained")

    @classmethod
    def load(cls, path: str | Path) -> "BPETokenizer":
        """Read a JSON written by `save` or by the `tokenizers` package."""
        path = user_path(path)
        package = import_extra("tokenizers", "a BPE tokenizer")
        if not path.is_file():
            raise CompletedpError(f"no tokenizer file {str(path)!r}: give a tokenizers JSON")
        try:
            tokenizer = package.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise CompletedpError(
                f"{str(path)!r} is not a tokenizers JSON ({one_line(error)}): give another file"
            ) from error
        return cls(tokenizer, repr(str(path)))

    def save(self, path: str | Path) -> None:
        """Write the JSON that `load` reads."""
        Path(path).write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")

    def encode(self, text: str) -> np.ndarray:
        """The ids of one text; many are faster together."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Many texts at once, on all cores."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in encoded]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids; broken UTF-8 becomes the replacement character."""
        checked = _checked(ids, self.vocab).tolist()
        return self._tokenizer.decode(checked, skip_special_tokens=False)


Tokenizer = ByteTokenizer | BPETokenizer
"""Ids are int32 arrays; equal names mean equal ids for every text; `vocab` is one more than the
largest id, and `eot` the one that ends a document, which `decode` spells out."""


def _checked(ids: Sequence[int] | np.ndarray, vocab: int) -> np.ndarray:
    array = np.asarray(ids, np.int64).reshape(-1)
    wrong = array[(array < 0) | (array >= vocab)]
    if wrong.size:
        raise CompletedpError(
            f"token id {wrong[0]} is outside this tokenizer's 0 to {vocab - 1}: "
            "decode with the tokenizer the text was encoded with"
        )
    return array
