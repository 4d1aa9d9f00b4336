"""One process to a run folder, and signals that are answered at once and obeyed when it is safe."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from completedp.common.errors import CompletedpError
from completedp.common.files import clear_left, make_folder, writing
from completedp.common.terminal import say

LOCK = ".lock"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEAF_SECONDS = 3.0
"""So long after a second Ctrl-C that Python has not heard, being inside C, the process is ended."""
_OVER = b"\0"


class Interrupted(KeyboardInterrupt):
    """Asked to stop, and everything is saved."""


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a run folder, making it if need be; a second process is told so. Dies with us.

    What a killed process left half-written in it is cleared away.
    """
    make_folder(folder)
    path = folder / LOCK
    with writing(path):
        opened = path.open("w")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CompletedpError(
                f"another process is at work in {str(folder)!r}: wait for it, end it, or choose "
                "another folder"
            ) from None
        clear_left(folder)
        yield  # the file stays: were it removed, a third process could lock a new one


class Signals:
    """Ctrl-C and SIGTERM as they came. Calling it says whether any has.

    Held, the first one only waits to be asked for; else it raises KeyboardInterrupt. A second
    Ctrl-C always does.
    """

    def __init__(self, *, hold: bool) -> None:
        self.seen: list[int] = []
        self._hold = hold

    def __call__(self) -> bool:
        return bool(self.seen)

    def obey(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.seen.append(number)
        if not self._hold or (len(self.seen) > 1 and number == signal.SIGINT):
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold them for a moment, for what must not be torn in two."""
        self._hold, before = True, self._hold
        try:
            yield
        finally:
            self._hold = before
        if self.seen and not before:
            raise KeyboardInterrupt


@contextmanager
def answered_signals(waits_for: str, *, hold: bool) -> Iterator[Signals]:
    """Ctrl-C and SIGTERM are answered at once with a line; the second Ctrl-C ends the process.

    Hold them where they could strike inside an optimizer step that is to be saved: some tensors
    would be a step ahead of others. `waits_for` says what is waited for.

    A long call into C, such as a compiled step, keeps Python from handling signals. So the answer
    comes from a thread, which also ends the process where a second Ctrl-C is not heard.
    """
    signals = Signals(hold=hold)
    if threading.current_thread() is not threading.main_thread():
        yield signals  # only the main thread is told of signals
        return
    with _spoken_answer(waits_for, heard=lambda: len(signals.seen)):
        before = {number: signal.signal(number, signals.obey) for number in _SIGNALS}
        try:
            yield signals
        except Exception as error:
            # Ctrl-C also goes to compilers that were started, and the first to be heard of it may
            # be that one of them died.
            if signals() and not isinstance(error, CompletedpError):
                raise KeyboardInterrupt from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _spoken_answer(waits_for: str, heard: Callable[[], int]) -> Iterator[None]:
    """A thread that says what a signal waits for; Python writes their numbers into a pipe."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def listen() -> None:
        came = interrupts = 0
        while (number := os.read(read, 1)) != _OVER:
            if number[0] not in _SIGNALS:
                continue
            came += 1
            interrupts += number[0] == signal.SIGINT
            if came == 1:
                name = "Ctrl-C" if interrupts else "SIGTERM"
                say(f"{name}: {waits_for}; Ctrl-C again ends it now")
            elif interrupts and number[0] == signal.SIGINT:
                timer = threading.Timer(_DEAF_SECONDS, _end_if_deaf, (heard, came))
                timer.daemon = True
                timer.start()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(write, _OVER)
        thread.join()
        os.close(read)
        os.close(write)


def _end_if_deaf(heard: Callable[[], int], came: int) -> None:
    """End the process, as kill -9 would, where Python has not been told of the signals yet."""
    if heard() < came:
        say("ended")
        os._exit(128 + signal.SIGINT)
