"""Try the wheel in dist/ as a user without this repository: a bare environment, nothing else.

    python scripts/try_wheel.py --python python3.13

Makes an environment with that Python, installs the newest wheel with what it asks for and no
extras, and runs what needs none. Says each command, and how large the wheel is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LARGEST = 640_000
"""Bytes, compressed. It is code alone, and every file counts."""
NO_TORCH_YET = (
    "import sys, completedp; assert 'torch' not in sys.modules; "
    "from importlib.resources import files; assert (files('completedp') / 'py.typed').is_file(); "
    "print('completedp', completedp.__version__, 'on Python', sys.version.split()[0])"
)
ALL_NAMES = "from completedp import *; import torch; print('torch', torch.__version__)"
SMALL = (
    "--data tokens --out run --recipe adamw-reference --context 64 --eval-sequences 8 "
    "--width 64 --depth 1 --batch 256 --tokens 64K"
)


def newest_wheel() -> Path:
    """The wheel that was built last."""
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit("no wheel in dist/: python -m hatchling build -t wheel -d dist")
    return wheels[-1]


def main() -> None:
    """Install and try; the first command that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to try it with")
    interpreter = parser.parse_args().python
    wheel = newest_wheel()
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size:,} bytes")
    if size > LARGEST:
        sys.exit(f"the wheel is larger than {LARGEST:,} bytes")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run([interpreter, "-m", "venv", "bare"], folder)
        python, command = (str(folder / "bare" / "bin" / name) for name in ("python", "completedp"))
        run([python, "-m", "pip", "install", "--quiet", str(wheel)], folder)
        run([python, "-c", NO_TORCH_YET], folder)
        run([python, "-c", ALL_NAMES], folder)
        for line in (
            "--help",
            "rules --ratios width=4,depth=4",
            "recipe show default",
            "plan --width 512 --depth 8",
            "data stdlib --out tokens",
            f"train {SMALL}",
            "doctor",
        ):
            run([command, *line.split()], folder)
        # An extra that is missing is one line.
        run([command, *["data", "stdlib", "--out", "more", "--tokenizer", "bpe"]], folder, code=2)
    print("the wheel works")


def run(command: list[str], folder: Path, code: int = 0) -> None:
    """A command that has to end with this code, away from the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    print("$", " ".join([Path(command[0]).name, *command[1:]]), flush=True)
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    said = (result.stdout.strip() + "\n" + result.stderr.strip()).strip()
    print("  " + "\n  ".join(said.splitlines()[-2:]))
    if result.returncode != code:
        sys.exit(f"exit code {result.returncode}, not {code}:\n{said}")


if __name__ == "__main__":
    main()
