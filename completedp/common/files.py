"""Reading and writing small files: never half of one, never a traceback for a bad one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from completedp.common.errors import CompletedpError


def parse_json(text: str) -> Any:
    """JSON as people mean it: no key twice, of which one would win unseen."""
    return json.loads(text, object_pairs_hook=_each_once)


def json_text(data: Any, *, indent: int | None = 2) -> str:
    """JSON that any program reads; a number that it has no word for is a fault of ours."""
    return json.dumps(data, indent=indent, allow_nan=False) + "\n"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} is there twice: remove one of them")
        found[key] = value
    return found


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file; whatever is wrong with it is one line."""
    try:
        data = parse_json(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CompletedpError(f"no {what} at {str(path)!r}") from None
    except IsADirectoryError:
        raise CompletedpError(f"{str(path)!r} is a folder, not a {what}") from None
    except OSError as error:
        raise CompletedpError(f"cannot read {what} {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CompletedpError(f"{str(path)!r} is not a {what}: {error}") from None
    if not isinstance(data, dict):
        raise CompletedpError(f"{str(path)!r} is not a {what}: it is not a JSON object")
    return data


def write_text_atomically(path: Path, text: str) -> None:
    """Write beside `path`, flush to disk, then rename over it: all or nothing."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """The same, of bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
