"""Spent: what a study's trials cost, in seconds of the devices that trained them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from completedp.common.errors import CompletedpError
from completedp.studies.store import Study

_DEVICES, _LADDER = "devices", "ladder seconds"
"""Notes of a study."""
UNKNOWN = "unknown device"
"""Of workers that did not say, as those of older versions."""


def note_device(study: Study, worker: str, device: str) -> None:
    """Keep with the study what a worker trains on."""
    study.change_note(_DEVICES, lambda old: (old or {}) | {worker: device})


def device_seconds(study: Study) -> dict[str, float]:
    """By device: how long workers had trials in hand that they finished, and ladders took.

    Trials of a worker share its device, so time in which it had several counts once; pauses do not
    count, nor what was lost with a worker that died.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    for row in study.trials(curves=False):
        if row.finished_at is not None:
            spans.setdefault(row.worker, []).append((row.started_at, row.finished_at))
    devices, seconds = study.get_note(_DEVICES) or {}, study.get_note(_LADDER) or {}
    for worker, own in spans.items():
        device = devices.get(worker, UNKNOWN)
        seconds[device] = seconds.get(device, 0.0) + covered(own)
    return seconds


@contextmanager
def ladder_time(study: Study, device: str, seconds: dict[str, float]) -> Iterator[None]:
    """Time a ladder: added to `seconds`, and kept with the study for one that goes on later."""
    began = time.monotonic()
    try:
        yield
    finally:
        took = time.monotonic() - began
        seconds[device] = seconds.get(device, 0.0) + took
        with suppress(CompletedpError):  # a store that is gone takes nothing with it
            study.change_note(_LADDER, lambda old: _added(old or {}, device, took))


def _added(old: dict[str, float], device: str, took: float) -> dict[str, float]:
    return old | {device: old.get(device, 0.0) + took}


def covered(spans: list[tuple[float, float]]) -> float:
    """The length that spans of a line cover together.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (10.0, 11.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
