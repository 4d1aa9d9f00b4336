"""SHA-256 of files, several at a time: one core hashes slower than a good disk reads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from completedp.common.progress import Reporter

_AT_ONCE = 1 << 22
_SHOWN_FROM = 1 << 31
"""Bytes to read from which on there is a line of progress: seconds of work."""
_MEGABYTE = 1_000_000


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """By name, the SHA-256 of files in a folder, in hexadecimal."""
    paths = {name: folder / name for name in names}
    total, done, ended = sum(p.stat().st_size for p in paths.values()), 0, threading.Event()
    lock = threading.Lock()
    with ExitStack() as stack:
        reporter = None
        if total >= _SHOWN_FROM:
            title = f"verify {str(folder)!r}: MB"
            reporter = stack.enter_context(Reporter(title, total // _MEGABYTE))

        def count(size: int) -> None:
            nonlocal done
            with lock:
                done += size
                if reporter is not None:
                    reporter.update(done // _MEGABYTE, lambda: "")

        pool = stack.enter_context(ThreadPoolExecutor(min(8, os.cpu_count() or 1)))
        stack.callback(ended.set)  # called first: an interrupted pool does not read to the end
        futures = {name: pool.submit(_digest, path, count, ended) for name, path in paths.items()}
        return {name: future.result() for name, future in futures.items()}


def _digest(path: Path, count: Callable[[int], None], ended: threading.Event) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_AT_ONCE))
    with path.open("rb", buffering=0) as file:
        while (size := file.readinto(buffer)) and not ended.is_set():
            digest.update(buffer[:size])
            count(size)
    return digest.hexdigest()
