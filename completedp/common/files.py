"""Reading and writing small files: never half of one, never a traceback for a bad one."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from completedp.common.errors import CompletedpError

_LONGEST_NAME = 255
"""Bytes, as in most file systems."""
_TEMPORARY = ".part"
"""How names of files end that are being written."""


class CannotWriteError(OSError, CompletedpError):
    """A file or a folder that the system does not let anybody write."""

    def __str__(self) -> str:
        return f"cannot write: {os_line(self)}"


def os_line(error: OSError) -> str:
    """What the system says of a file, and what to do about it."""
    what = f"{error.strerror or error}{f' {error.filename!r}' if error.filename else ''}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{what}: make room on the disk and run the same command again"
    if error.errno == errno.EMFILE:
        return f"{what}: raise the limit with `ulimit -n 4096`"
    refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    if refused or isinstance(error, CannotWriteError):
        return f"{what}: choose a place that you may write to, or change its permissions"
    return what


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses inside is said of this path, in one line."""
    try:
        yield
    except CompletedpError:
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise CannotWriteError(error.errno, error.strerror, str(path)) from error


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, whose `~` is a home; an empty one would be the working folder.

    >>> user_path("runs/a").name
    'a'
    """
    if not isinstance(path, str | os.PathLike) or not str(path).strip() or "\0" in str(path):
        raise CompletedpError(f"{path!r:.60} is no path: give the name of a file or a folder")
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in Path(path).parts):
        raise CompletedpError(f"{str(path)!r:.60}... has a name that is too long for a file")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = Path(path).parts[0]
        raise CompletedpError(
            f"{str(path)!r:.200}: there is no home {home!r:.60} here: write the path in full"
        ) from None


def make_folder(folder: Path) -> None:
    """Make a folder and those that it is in; a file that is in its way is named."""
    with writing(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            there = next(path for path in (folder, *folder.parents) if path.exists())
            raise CompletedpError(
                f"{str(there)!r} is a file: name a folder, there or to be made"
            ) from None


def parse_json(text: str) -> Any:
    """JSON as people mean it: no key twice, of which one would win unseen."""
    return json.loads(text, object_pairs_hook=_each_once)


def plain(value: Any) -> Any:
    """The same in what JSON has: lists, keys that are text, None for a number that is none.

    >>> plain({0.5: (1.0, math.inf)})
    {'0.5': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    if path.is_char_device():  # which may have no end
        raise CompletedpError(f"{str(path)!r} is a device, not a {what}")
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


def write_json(path: Path, data: Any) -> None:
    """Write JSON that any program reads, all or nothing."""
    write_text_atomically(path, json_text(data))


def write_text_atomically(path: Path, text: str) -> None:
    """Write beside `path`, flush to disk, then rename over it: all or nothing."""
    write_bytes_atomically(path, text.encode("utf-8", errors="replace"))


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """The same, of bytes. A pipe or a device is written to, and where a link points is written."""
    with writing(path):
        _write_bytes(path, data)


def _write_bytes(path: Path, data: bytes) -> None:
    if path.is_dir():
        raise CompletedpError(f"{str(path)!r} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(data)
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    with temporary_beside(path) as temporary:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def check_replaceable(path: Path, begins: str, what: str) -> None:
    """Raise where something else is there already than an earlier one of what is to be written."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(begins))
    if start and start.decode("utf-8", errors="replace") != begins:
        raise CompletedpError(
            f"{str(path)!r} is there, and is no {what}: name another file, or move it away"
        )


@contextmanager
def temporary_beside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A new file, or folder, beside `path` for the caller to rename to it; else it is removed.

    It is locked for as long as it is ours. So one that nobody holds was left by a kill, and the
    next one for the same path clears it away.
    """
    make_folder(path.parent)
    clear_left(path.parent, path.name)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        try:
            if folder:
                temporary.mkdir()
            else:
                temporary.touch(exist_ok=False)
        except OSError as error:
            error.filename = str(path)  # nobody knows of the other
            raise
        with ExitStack() as stack:
            # Another process may clear it away until it is locked.
            with suppress(FileNotFoundError):
                _is_ours(stack.enter_context(_opened(temporary)))
            if not temporary.exists():
                continue
            try:
                yield temporary
            finally:
                _remove(temporary)
            return


def clear_left(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left in a folder: of one file, or of all that are in it."""
    pattern = f".{escape(name)}.*{_TEMPORARY}" if name else f".*{_TEMPORARY}"
    for left in folder.glob(pattern):
        with suppress(OSError), _opened(left) as handle:  # another may clear it at the same time
            if _is_ours(handle):
                _remove(left)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_ours(handle: int) -> bool:
    """Lock an open file or folder; False where another holds it, or its disk knows no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
