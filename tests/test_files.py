"""Files: written whole or not at all, and nothing half-written outlives the next start."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import error_of
from import_graph import package_sources

from completedp.common.errors import CompletedpError
from completedp.common.files import (
    clear_left,
    read_json,
    temporary_beside,
    user_path,
    write_text_atomically,
)
from completedp.common.process import only_process
from completedp.lm.tokenizer import ByteTokenizer
from completedp.lm.tokens import prepare
from completedp.training import checkpoint

KILLED = """
import os, signal, sys
from pathlib import Path
from completedp.common.files import temporary_beside
with temporary_beside(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as temporary:
    (temporary / "part" if temporary.is_dir() else temporary).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_while_writing(path: Path, kind: str = "file") -> list[str]:
    """What a process leaves in the folder that is killed in the middle of a write."""
    command = [sys.executable, "-c", KILLED, str(path), kind]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    return names(path.parent)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_write_leaves_nothing_behind_the_next(tmp_path: Path) -> None:
    """The next write of a file clears away what a killed one left, and only that."""
    (tmp_path / ".mine.part").write_text("a user's own")
    path = tmp_path / "result.json"
    left = killed_while_writing(path)
    assert len(left) == 2
    write_text_atomically(path, "whole")
    assert names(tmp_path) == [".mine.part", "result.json"]
    assert path.read_text() == "whole"


def test_a_run_folder_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    """Whoever takes a run folder clears what was left in it, of any file."""
    killed_while_writing(tmp_path / checkpoint.FILE)
    killed_while_writing(tmp_path / "checkpoint-00000007", "folder")
    with only_process(tmp_path):
        assert names(tmp_path) == [".lock"]


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """A temporary file that somebody holds is not cleared away."""
    with temporary_beside(tmp_path / "a") as first:
        clear_left(tmp_path)
        with temporary_beside(tmp_path / "a") as second:
            assert first.exists()
            assert first != second
        assert names(tmp_path) == [first.name]
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_opened", [False, True])
def test_one_cleared_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    """Another process may clear a file between its making and its lock, before it is opened and
    after: it is made once more."""
    made: list[Path] = []
    touch = Path.touch

    def swept(path: Path, **options: object) -> None:
        touch(path)
        made.append(path)
        if len(made) == 1:
            path.unlink()
            if is_opened:  # and cleared afterwards
                (path.parent / path.name).symlink_to(os.devnull)

    monkeypatch.setattr(Path, "touch", swept)
    monkeypatch.setattr(Path, "exists", lambda path, **_: path.is_file())
    write_text_atomically(tmp_path / "a", "whole")
    assert len(made) == 2
    assert (tmp_path / "a").read_text() == "whole"


def test_a_killed_data_leaves_nothing_behind_the_next(tmp_path: Path) -> None:
    """A folder of tokens that was never finished goes when the same one is made."""
    text = tmp_path / "text"
    text.mkdir()
    for name in "ab":
        (text / f"{name}.txt").write_text(f"{name} word " * 20)
    left = killed_while_writing(tmp_path / "tokens", "folder")
    assert len(left) == 2
    prepare(str(text), tmp_path / "tokens", ByteTokenizer(), valid_fraction=0.5)
    assert names(tmp_path) == ["text", "tokens"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle leaves the old file and no other."""
    path = tmp_path / "a"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text_atomically(path, "new")
    assert names(tmp_path) == ["a"]
    assert path.read_text() == "old"


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    """Where a link points is written, all or nothing; what is no file is written to as it is."""
    there, link, pipe = tmp_path / "there", tmp_path / "link", tmp_path / "pipe"
    there.write_text("old")
    link.symlink_to(there)
    write_text_atomically(link, "new")
    assert link.is_symlink()
    assert there.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text_atomically(pipe, "said")
    assert os.read(reader, 100) == b"said"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A run that is to go where a file is says so."""
    (tmp_path / "taken").write_text("x")
    with pytest.raises(CompletedpError, match="taken' is a file: name a folder"):
        only_process(tmp_path / "taken").__enter__()
    with pytest.raises(CompletedpError, match="taken' is a file: name a folder"):
        write_text_atomically(tmp_path / "taken" / "runs" / "a", "x")


def test_no_error_names_the_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is called by its own name, not by that of the part being written."""
    assert error_of(write_text_atomically, tmp_path, "x").startswith(f"'{tmp_path}' is a folder")

    def refused(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(OSError, match="Permission denied") as caught:
        write_text_atomically(tmp_path / "a", "x")
    assert caught.value.filename == str(tmp_path / "a")
    said = f"cannot write: Permission denied {str(tmp_path / 'a')!r}: choose a place that you may"
    assert error_of(write_text_atomically, tmp_path / "a", "x").startswith(said)


def test_a_path_of_a_user_that_is_not_there() -> None:
    """A home that nobody has, and what is no path, are one line that quotes what was written."""
    assert user_path("~/runs") == Path.home() / "runs"
    found = error_of(user_path, Path("~nosuchuser/runs"))
    assert found.startswith("'~nosuchuser/runs': ")
    assert "'~nosuchuser'" in found
    for path in ("", " ", None, 3):
        assert error_of(user_path, path).startswith(f"{path!r} is no path")


def test_homes_are_looked_up_in_one_place() -> None:
    """No other file of the package expands a `~`, which fails for a user that is not there."""
    by = [file for file, text in package_sources().items() if "expanduser(" in text]
    assert by == ["common/files.py"]


def test_a_name_that_no_file_can_have_is_one_line() -> None:
    """It is quoted in part, before anything is looked for."""
    assert "a name that is too long" in error_of(user_path, "x" * 300)
    assert "a name that is too long" in error_of(user_path, "runs/" + "\u00e9" * 200)
    assert user_path("/".join(["x" * 200] * 3))


def test_a_device_is_no_file() -> None:
    """One that has no end is not read to it."""
    assert "'/dev/zero' is a device, not a recipe" in error_of(
        read_json, Path("/dev/zero"), "recipe"
    )
