"""Plant single errors in the core and see whether the tests notice.

    python scripts/mutants.py                     # or make mutants; all of them, two at a time
    python scripts/mutants.py --only slots.py     # those whose file or text has this in it
    python scripts/mutants.py --jobs 8 --again    # also those that are known already

The errors are data, in mutants.toml. Each is planted in a copy of the tree, never in the checkout,
and the tests that it names are run there: one that fails has killed it. What is known is kept in
.mutants.json and is found out again when a file that it rests on has changed, so the same command
goes on where it stopped. The tests are also run without any error, as they have to pass then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
LIST = ROOT / "scripts" / "mutants.toml"
KNOWN = ROOT / ".mutants.json"
COPIED = ("completedp", "tests", "benchmarks", "scripts", "examples", "docs")
COPIED_FILES = ("pyproject.toml", "README.md", "Makefile", "CHANGELOG.md", "CONTRIBUTING.md")
WANTED = 0.95
"""The part that has to be killed."""
SECONDS = 300
"""After which a run of tests counts as one that noticed: an error may make a loop endless."""
KILLED, SURVIVED = "killed", "survived"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One error: in a file of the package, what was there once and what takes its place."""

    file: str
    was: str
    now: str
    tests: list[str]
    why: str = ""

    @property
    def title(self) -> str:
        """A line that tells it from the others."""
        line = next(
            (b for a, b in zip_lines(self.was, self.now) if a != b),
            f"without {self.was.strip().splitlines()[0]}",
        )
        return f"{self.file}: {line.strip()[:90]}"

    def planted(self, source: str) -> str:
        """The file with the error in it."""
        if source.count(self.was) != 1 or self.was == self.now:
            raise ValueError(
                f"{self.file} has {source.count(self.was)} times {self.was!r}: mend {LIST.name}"
            )
        return source.replace(self.was, self.now)

    def digest(self, tree: Path) -> str:
        """Of all that the answer rests on, as far as that is cheap: error, package and tests."""
        names = sorted({test.partition("::")[0] for test in self.tests})
        parts = [self.was, self.now, *self.tests, (tree / "completedp" / self.file).read_text()]
        parts += [(tree / "tests" / name).read_text() for name in names]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def zip_lines(was: str, now: str) -> Iterable[tuple[str, str]]:
    """Lines side by side."""
    return zip(was.splitlines(), now.splitlines(), strict=False)


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """All of them."""
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]]


def copy_tree(to: Path) -> None:
    """What tests need of the checkout."""
    skip = shutil.ignore_patterns("__pycache__", "*.pyc", "results")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=skip)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, to / name)


def run_tests(
    tree: Path, tests: Sequence[str], seconds: float | None = SECONDS
) -> tuple[bool, str]:
    """Whether the tests pass in a tree, and the end of what they print."""
    paths = [str(tree / "tests" / test) for test in tests]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    one_thread = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=os.environ | one_thread,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end within {seconds} s"
    if done.returncode not in (0, 1, 2):  # 2: what is tested cannot even be imported
        raise SystemExit(f"{' '.join(tests)}: pytest said {done.stdout[-800:]}{done.stderr[-800:]}")
    lines = done.stdout.strip().splitlines() or [""]
    return done.returncode == 0, next((x for x in lines if x.startswith("FAILED")), lines[-1])


def try_mutant(mutant: Mutant, tree: Path) -> str:
    """Plant it in a tree of its own, test, and take it out again."""
    path = tree / "completedp" / mutant.file
    source = path.read_text("utf-8")
    try:
        path.write_text(mutant.planted(source), "utf-8")
        passed, _ = run_tests(tree, mutant.tests)
    finally:
        path.write_text(source, "utf-8")
    return SURVIVED if passed else KILLED


def main() -> int:
    """Try them, print a line each and a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="those whose file or text has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--again", action="store_true", help="also those that are known already")
    options = parser.parse_args()
    mutants = [m for m in read_mutants() if options.only in f"{m.file}{m.was}{m.now}{m.why}"]
    known: dict[str, str] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    keys = {m.title: m.digest(ROOT) for m in mutants}
    left = [m for m in mutants if options.again or keys[m.title] not in known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            copy_tree(Path(folder, str(job)))
            trees.put(Path(folder, str(job)))

        def answer(mutant: Mutant) -> tuple[Mutant, str, float]:
            began, tree = time.monotonic(), trees.get()
            try:
                return mutant, try_mutant(mutant, tree), time.monotonic() - began
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(options.jobs) as pool:
            sound = pool.submit(check_sound, left, trees)
            for done, (mutant, found, seconds) in enumerate(pool.map(answer, left), start=1):
                known[keys[mutant.title]] = found
                KNOWN.write_text(json.dumps(known, indent=0))
                print(f"{done}/{len(left)} {found:<9}{seconds:4.0f} s  {mutant.title}", flush=True)
            if said := sound.result():
                KNOWN.unlink(missing_ok=True)
                raise SystemExit(f"the tests fail without any error planted: {said}")
    return summary(mutants, {m.title: known[keys[m.title]] for m in mutants})


def check_sound(mutants: Sequence[Mutant], trees: SimpleQueue[Path]) -> str:
    """Which of the tests fail without any error: such would kill everything."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    whole = {test for test in tests if "::" not in test}
    tests = [test for test in tests if test in whole or test.partition("::")[0] not in whole]
    if not tests:
        return ""
    print(f"{len(mutants)} to try, and their tests without any", flush=True)
    tree = trees.get()
    try:
        passed, said = run_tests(tree, tests, None)
    finally:
        trees.put(tree)
    return "" if passed else said


def summary(mutants: Sequence[Mutant], found: dict[str, str]) -> int:
    """Print it; 1 where too few were killed."""
    survivors = [mutant for mutant in mutants if found[mutant.title] == SURVIVED]
    killed = len(mutants) - len(survivors)
    print(f"{killed} of {len(mutants)} killed ({killed / max(1, len(mutants)):.0%})")
    for mutant in survivors:
        print(f"survived: {mutant.title}{f' ({mutant.why})' if mutant.why else ''}")
    return 0 if killed >= WANTED * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
