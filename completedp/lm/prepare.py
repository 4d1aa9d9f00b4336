"""From a source and a tokenizer's name to a folder of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from completedp.common.errors import CompletedpError
from completedp.common.files import user_path
from completedp.lm.corpora import documents
from completedp.lm.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer
from completedp.lm.tokens import TOKENIZER, Manifest, prepare

VOCAB = 4096
"""Of a BPE, where nothing else is said."""


def prepare_source(
    source: str | Sequence[str],
    out: str,
    *,
    tokenizer: str = "bytes",
    vocab: int | None = None,
    valid_fraction: float = 0.01,
    text_field: str = "text",
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Tokenise a source, or several, with bytes, a BPE trained on them, or one from a file.

    `vocab` is that of the BPE to be trained, `VOCAB` if not given.
    """
    made = choose_tokenizer(tokenizer, source, out, vocab, text_field)
    return prepare(
        source,
        out,
        made,
        valid_fraction=valid_fraction,
        text_field=text_field,
        progress=progress,
    )


def choose_tokenizer(
    name: str, source: str | Sequence[str], out: str, vocab: int | None, text_field: str = "text"
) -> Tokenizer:
    """The tokenizer of that name; a folder already made keeps the BPE that was trained for it."""
    if vocab is not None and name != "bpe":
        raise CompletedpError(
            f"--vocab {vocab} is of a BPE to be trained, and the tokenizer is {name!r}: give "
            "--tokenizer bpe with it"
        )
    if name == "bytes":
        return ByteTokenizer()
    if name == "bpe":
        vocab = VOCAB if vocab is None else vocab
        trained = user_path(out) / TOKENIZER
        if trained.exists():
            found = BPETokenizer.load(trained)
            if found.vocab != vocab:
                raise CompletedpError(
                    f"{out!r} holds a BPE of {found.vocab} tokens and --vocab says {vocab}: "
                    "choose another --out"
                )
            return found
        return BPETokenizer.train(documents(source, text_field=text_field), vocab)
    return BPETokenizer.load(name)
