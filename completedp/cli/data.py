"""The verb `data`: tokenise text into a folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from tyro.conf import Positional

from completedp.cli.shared import Verb, name_next, print_json, register
from completedp.common.errors import CompletedpError

_WAITS_FOR = "stopping when the tokenizer returns from what it is at"


@register("data")
@dataclass(frozen=True, kw_only=True)
class DataVerb(Verb):
    """Tokenise text into a folder that `train` reads."""

    sources: Positional[tuple[str, ...]]
    """One or more: stdlib, a .txt/.jsonl/.parquet file or a folder of them, hf:OWNER/NAME[@CONFIG].
    """
    out: str
    """Folder to write."""
    tokenizer: str = "bytes"
    """bytes, bpe (train one of --vocab tokens on the source), or a tokenizer's JSON file."""
    vocab: int | None = None
    """Vocabulary of a BPE to be trained; 4096 if not given."""
    valid_fraction: float = 0.01
    """Share of the documents held out for validation."""
    text_field: str = "text"
    """The field of .jsonl, .parquet and hf: records that holds the text."""
    json: bool = False
    """Print the manifest as JSON."""

    def run(self) -> int:
        """Tokenise, or find it done."""
        from completedp.common.process import answered_signals
        from completedp.lm.prepare import prepare_source
        from completedp.lm.tokens import Manifest

        if not self.sources:
            raise CompletedpError("which text? Give files, folders, hf:OWNER/NAME or stdlib")
        # Training a BPE is one call into C, of up to minutes.
        with answered_signals(_WAITS_FOR, hold=False), _counter("tokenise") as progress:
            manifest: Manifest = prepare_source(
                self.sources,
                self.out,
                tokenizer=self.tokenizer,
                vocab=self.vocab,
                valid_fraction=self.valid_fraction,
                text_field=self.text_field,
                progress=progress,
            )
        if self.json:
            print_json(asdict(manifest))
            return 0
        for name, split in manifest.splits.items():
            print(
                f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, "
                f"{split.bytes:,} bytes of text"
            )
        print(f"vocabulary {manifest.vocab} ({manifest.tokenizer}), in {self.out}")
        if "valid" in manifest.splits:  # without, nothing can be searched
            name_next(f"completedp search start --data {shlex.quote(self.out)} --dry-run")
        return 0


@contextlib.contextmanager
def _counter(title: str) -> Any:
    """Documents and tokens so far, on standard error."""
    said = [time.monotonic()]
    live = sys.stderr.isatty()

    def show(documents: int, tokens: int) -> None:
        now = time.monotonic()
        if now - said[0] >= (0.2 if live else 5.0):
            said[0] = now
            end = "\r" if live else "\n"
            print(f"{title}: {documents:,} documents, {tokens:,} tokens", end=end, file=sys.stderr)

    yield show
    if live:
        print(file=sys.stderr)
