"""Run a figure: train what is missing, judge, draw, and write it all down.

OUT/NAME.json has the verdict and its numbers, OUT/NAME.svg the drawing, OUT/NAME.json.xz every
measurement. Trials are studies in OUT/NAME-SIZE.db: the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import lzma
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import completedp
from completedp.common.checks import is_finite
from completedp.common.errors import CompletedpError
from completedp.common.files import (
    plain,
    read_json,
    user_path,
    write_bytes_atomically,
    write_json,
    write_text_atomically,
)
from completedp.common.process import only_process
from completedp.evidence.figures.figure import (
    SPEEDS,
    TINY,
    Figure,
    Found,
    cost_text,
    setting_of,
)
from completedp.evidence.figures.lab import Lab, check_sources, stdlib_tokens
from completedp.evidence.figures.noted import note_verdict
from completedp.evidence.figures.registry import figure_named
from completedp.evidence.figures.stopwatch import Stopwatch
from completedp.evidence.plots import require_matplotlib
from completedp.studies.config import WorkerConfig
from completedp.studies.store import Store
from completedp.tasks.sources import overrides_from
from completedp.training.devices import choose_device


def run_figure(
    name: str,
    size: str,
    *,
    out: Path,
    data: str | None = None,
    model: str | None = None,
    loss: str | None = None,
    override: tuple[str, ...] = (),
    store: str | None = None,
    options: WorkerConfig | None = None,
    quiet: bool = False,
) -> tuple[Found, dict[str, Any]]:
    """What a figure found, and the same as it was written to OUT/NAME.json."""
    figure = figure_named(name)
    require_matplotlib()
    out = user_path(out)
    overrides = overrides_from(override)
    place = store or store_of(out, name, size)
    trains = figure.cost(size).trials > 0
    if trains:
        check_sources(size, data, model, loss)  # before anything is made
    elif data or model or loss or override:
        raise CompletedpError(
            f"{name} trains nothing: leave --data, --model, --loss and --override out"
        )
    with only_process(out), Stopwatch(stopwatch_of(out, name, size)) as watch:
        if not quiet:
            print(f"{name}, {size}: {cost_text(figure, size)}", file=sys.stderr, flush=True)
        if trains:
            text = data or stdlib_tokens(out)
            with Store(place) as opened:
                lab = Lab(
                    name,
                    size,
                    opened,
                    data=text,
                    model=model,
                    loss=loss,
                    overrides=overrides,
                    options=options or WorkerConfig(),
                    quiet=quiet,
                    folder=out,
                )
                digest = lab.digest
                found = figure.run(size, lab)
        else:
            digest, found = None, figure.run(size, None)
        seconds = watch.seconds
        if trains:  # what does not is computed anew every time
            seconds = _seconds(out / f"{name}.json", size, seconds)
        device = choose_device((options or WorkerConfig()).device if trains else "cpu")
        trained = {
            "data": "stdlib" if data is None else Path(data).name,
            "digest": digest,
            "model": model or "reference",
            "loss": loss,
            "override": override,
        }
        # A trial that diverged is a measurement, too, and has no number.
        written = plain(_written(figure, size, found, seconds, trained, device))
        write_json(out / f"{name}.json", written)
        write_text_atomically(out / f"{name}.svg", found.svg)
        packed = json.dumps(plain(found.raw), allow_nan=False, separators=(",", ":")).encode()
        write_bytes_atomically(out / f"{name}.json.xz", lzma.compress(packed, preset=9))
        if trains:
            note_verdict(place, name, size)
        watch.finished()
    return found, written


def store_of(out: Path, name: str, size: str) -> str:
    """Where a figure's trials are, if nothing else is said."""
    return str(user_path(out) / f"{name}-{size}.db")


def begun(out: Path, name: str, size: str, store: str | None = None) -> bool:
    """Whether any of a figure's studies is there."""
    place = store or store_of(out, name, size)
    with suppress(CompletedpError), Store(place, create=False) as opened:  # if there is one yet
        return bool(opened.studies())
    return False


def stopwatch_of(out: Path, name: str, size: str) -> Path:
    """Where the seconds of a figure's parts are added up."""
    return out / f"{name}-{size}.seconds"


def text_of(figure: Figure, found: Found) -> str:
    """The verdict for people: the claim, the numbers, what holds."""
    lines = [figure.claim + ".", "", found.text, "", *(str(each) for each in found.findings)]
    return "\n".join(lines)


def raw_of(path: Path) -> Any:
    """The measurements of a figure, as NAME.json.xz has them."""
    return json.loads(lzma.decompress(path.read_bytes()))


def _written(
    figure: Figure,
    size: str,
    found: Found,
    seconds: float,
    trained: Mapping[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    cost = figure.cost(size)
    return {
        "figure": figure.name,
        "claim": figure.claim,
        "paper": figure.paper,
        "size": size,
        **trained,
        "setting": setting_of(figure, size),
        "findings": [vars(finding) for finding in found.findings],
        **found.summary,
        "numbers": found.numbers,
        "seconds": round(seconds, 1),
        "gpu_hours": round(seconds / 3600, 3) if device.type == "cuda" else 0.0,
        "estimated_seconds": None if size == TINY else round(cost.seconds(SPEEDS[size])),
        "versions": {
            "completedp": completedp.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def _seconds(path: Path, size: str, now: float) -> float:
    """How long it took; a run that only read what was there before does not count."""
    if path.exists():
        before = read_json(path, "figure")
        known = before.get("seconds") if before.get("size") == size else None
        if is_finite(known):
            return max(float(known), now)
    return now
