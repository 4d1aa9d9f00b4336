"""One process to a run folder, and signals that wait for the end of a step."""

from __future__ import annotations

import fcntl
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from completedp.common.errors import CompletedpError

LOCK = ".lock"


class Interrupted(KeyboardInterrupt):
    """Asked to stop, and everything is saved."""


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a run folder, making it if need be; a second process is told so. Dies with us."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CompletedpError(f"another process is training into {str(folder)!r}") from None
        yield  # the file stays: were it removed, a third process could lock a new one


@contextmanager
def held_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM only set a flag, which the caller asks for between steps.

    Were they to strike inside an optimizer step, some tensors would be a step ahead of others. A
    second Ctrl-C does not wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread is told of signals
        return
    seen: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if seen and number == signal.SIGINT:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
