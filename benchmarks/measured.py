"""What checks measured, kept in a small file by size and seed: all else is arithmetic."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from completedp.common.files import write_bytes_atomically
from completedp.evidence.scaling import Measurement
from completedp.theory.recipe import rules_from_dict

FOLDER = Path(__file__).parent / "data"


def write(path: Path, data: dict[str, Any]) -> None:
    """As compressed JSON."""
    packed = json.dumps(data, separators=(",", ":")).encode()
    write_bytes_atomically(path, lzma.compress(packed, preset=9))


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote; nothing where there is no file yet."""
    return json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}


def packed(measurement: Measurement) -> dict[str, Any]:
    """A measurement as plain values: log2 of root mean squares, rounded to 1e-4, [sizes, seeds]."""
    return {
        "axis": measurement.axis,
        "rules": measurement.rules.to_dict(),
        "sizes": list(measurement.sizes),
        "values": {
            " ".join(key): np.round(values, 4).tolist()
            for key, values in measurement.values.items()
        },
    }


def unpacked(data: dict[str, Any], seeds: Sequence[int] | None = None) -> Measurement:
    """The measurement again, of some of its seeds if asked for."""
    values = {}
    for name, each in data["values"].items():
        quantity, kind = name.split()
        array = np.array(each)
        values[quantity, kind] = array if seeds is None else array[:, list(seeds)]
    return Measurement(data["axis"], rules_from_dict(data["rules"]), tuple(data["sizes"]), values)
