"""What a study knows a model by is the same in another process."""

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import own_models as own

from completedp.tasks.sources import name_of

SCRIPT = """
import functools
from completedp.tasks.sources import name_of

class Config:
    def __init__(self, size, inner=None):
        self.size, self.inner = size, inner

class Slotted:
    __slots__ = ("a",)

def make(scale, *more, **others): ...
def other(scale): ...

junk = [object() for _ in range({junk})]
print(name_of(functools.partial(make, cfg=Config({size}))))
print(name_of(functools.partial(make, Config({size}, Config(2)), [Slotted()], {{"f": other}})))
print(name_of(functools.partial(make, lambda scale: {size}, names={{"a", "b", "c", "d"}})))
print(name_of(lambda scale, cfg=Config({size}): cfg.size in {{"a", "b", "c", "d"}}))
"""


def names(size: int, junk: int) -> list[str]:
    """Those of a script, in a process with other addresses and another order of sets."""
    script = SCRIPT.format(size=size, junk=junk)
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": str(junk)},
        cwd=Path(__file__).parent.parent,
    )
    return done.stdout.split("\n")[:-1]


def test_an_object_in_a_partial_is_the_same_in_another_process() -> None:
    """It goes by its class and attributes, and not by where it lies in memory."""
    first = names(1, 1)
    assert first == names(1, 5_000)
    assert all(one != other for one, other in zip(first, names(3, 1), strict=True))


def test_names_of_plain_values_are_those_of_older_versions() -> None:
    """A study of a partial that was begun before goes on."""
    given: dict[str, Any] = {"cfg": {"a": [1, 2.5, "at 0x12"], "b": (None, True)}, "depth": 3}
    old = hashlib.blake2b(repr(((), given)).encode(), digest_size=4).hexdigest()
    assert name_of(functools.partial(own.nano, **given)) == f"own_models:nano({old})"
