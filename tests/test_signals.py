"""Ctrl-C: answered at once with what is waited for, and the second one ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from completedp.cli.main import main
from completedp.common.errors import CompletedpError
from completedp.common.process import answered_signals

PATIENCE = 60.0
IN_C = """
import ctypes
from completedp.common.process import answered_signals
lock = ctypes.CDLL(None).pthread_mutex_lock
mutex = ctypes.create_string_buffer(64)
with answered_signals("stopping after this step", hold=True):
    print("ready", flush=True)
    lock(mutex)
    lock(mutex)  # in C and for ever, as a step of minutes: no signal ends it
"""


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def test_a_held_signal_is_answered_and_waits(capfd: pytest.CaptureFixture[str]) -> None:
    """The first Ctrl-C says what it waits for and only sets a flag; the second raises."""
    with answered_signals("stopping after this step", hold=True) as asked:
        assert not asked()
        interrupt()
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    said = capfd.readouterr().err
    assert said == "completedp: Ctrl-C: stopping after this step; Ctrl-C again ends it now\n"


def test_a_signal_that_is_not_held_raises_at_once() -> None:
    """Where nothing can be torn in two, the first Ctrl-C or SIGTERM raises; not in `held`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with (
            pytest.raises(KeyboardInterrupt),
            answered_signals("stopping", hold=False),
        ):
            interrupt(number)
    done = []

    def held_for_a_moment() -> None:
        with answered_signals("stopping", hold=False) as signals:
            with signals.held():
                interrupt()
                done.append("the whole of it")
            done.append("more")

    with pytest.raises(KeyboardInterrupt):
        held_for_a_moment()
    assert done == ["the whole of it"]


def test_handlers_are_as_before() -> None:
    """What was set up for signals before is so again, also the pipe of an event loop."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.getsignal(signal.SIGINT)
    signal.set_wakeup_fd(write)
    try:
        with answered_signals("stopping", hold=True):
            assert signal.getsignal(signal.SIGINT) != before
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        assert signal.set_wakeup_fd(-1) == write
        os.close(read)
        os.close(write)
    assert not any("listen" in thread.name for thread in threading.enumerate())


def test_an_error_after_ctrl_c_is_the_interruption() -> None:
    """A compiler that dies of the terminal's Ctrl-C is no traceback; what users can mend stays."""

    def work(error: Exception, *, after_ctrl_c: bool) -> None:
        with answered_signals("stopping", hold=True):
            if after_ctrl_c:
                interrupt()
            raise error

    with pytest.raises(KeyboardInterrupt):
        work(RuntimeError("g++ died of signal 2"), after_ctrl_c=True)
    with pytest.raises(CompletedpError):
        work(CompletedpError("no room"), after_ctrl_c=True)
    with pytest.raises(RuntimeError):
        work(RuntimeError("a fault"), after_ctrl_c=False)


def test_a_process_inside_c_answers_and_can_be_ended() -> None:
    """While a call into C keeps Python busy the line still comes, and a second Ctrl-C ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", IN_C], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("completedp: Ctrl-C: stopping after this step")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.communicate()


def test_making_tokens_answers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A BPE is trained in one call into C: `data` says at once what Ctrl-C waits for."""
    monkeypatch.setattr("completedp.lm.prepare.prepare_source", lambda *_, **__: interrupt())
    words = ["completedp", "data", "stdlib", "--out", str(tmp_path / "t"), "--tokenizer", "bpe"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    said = capfd.readouterr().err
    assert "Ctrl-C: stopping when the tokenizer returns" in said
    assert "Ctrl-C again ends it now" in said
