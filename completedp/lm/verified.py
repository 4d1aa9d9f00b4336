"""Whether files still hold what was written: their checksums, at the speed of the disk.

A file that was read once and found right is not read again while its size and its times of change
are the same. That is kept beside the files, where the folder may be written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from completedp.common.digests import digests
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, write_json

KNOWN = ".verified.json"

_in_this_process: dict[Path, tuple[str, list[int]]] = {}
"""By file, the checksum that was found and when; a folder may be read-only."""


def verify(folder: Path, checksums: Mapping[str, str]) -> None:
    """Raise unless every file of the folder has its SHA-256."""
    known = _known(folder)
    unread = [name for name in checksums if known.get(name) != _now(folder, name, checksums)]
    if not unread:
        return
    stamps = {name: _now(folder, name, checksums) for name in unread}
    found = digests(folder, unread)
    for name in unread:
        if found[name] != checksums[name]:
            raise CompletedpError(
                f"{str(folder / name)!r} has changed since it was written: prepare the folder "
                "again, or bring the file back"
            )
        _in_this_process[(folder / name).absolute()] = stamps[name]
    plain = {name: list(stamp) for name, stamp in (known | stamps).items() if name in checksums}
    with suppress(OSError):  # read-only: the price is paid by the next process again
        write_json(folder / KNOWN, plain)


def _now(folder: Path, name: str, checksums: Mapping[str, str]) -> tuple[str, list[int]]:
    """What is to be known of a file as it is: its checksum, its size, and when it was changed.

    The time of change of the inode is among them: it cannot be set back, as the other can.
    """
    about = (folder / name).stat()
    return checksums[name], [about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _known(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """By name, what was found right before; what cannot be read is found again."""
    found: dict[str, tuple[str, list[int]]] = {}
    with suppress(CompletedpError):
        for name, stamp in read_json(folder / KNOWN, "list of verified files").items():
            if isinstance(stamp, list) and len(stamp) == 2:
                found[name] = (stamp[0], stamp[1])
    top = folder.absolute()
    return found | {p.name: stamp for p, stamp in _in_this_process.items() if p.parent == top}
