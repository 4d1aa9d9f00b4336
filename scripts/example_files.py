"""Write the files of examples/ into the pages that show them, between their markers.

python scripts/example_files.py

A page shows a file where it has the two markers: `<!-- file: examples/NAME (make docs) -->` and
`<!-- file: end -->`. So the file is the one copy, and readers of the site have it too.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SHOWN = re.compile(
    r"(<!-- file: (examples/[\w.]+) \(make docs\) -->\n).*?(<!-- file: end -->)", re.DOTALL
)
_LANGUAGES = {".py": "python", ".sbatch": "bash"}


def with_files(page: str) -> str:
    """The page with what is between its markers made anew."""

    def block(found: re.Match[str]) -> str:
        path = ROOT / found[2]
        text = path.read_text(encoding="utf-8").rstrip("\n")
        return f"{found[1]}```{_LANGUAGES[path.suffix]}\n{text}\n```\n{found[3]}"

    return _SHOWN.sub(block, page)


def shown(page: str) -> list[str]:
    """The files that a page shows."""
    return [path for _, path, _ in _SHOWN.findall(page)]


def main() -> None:
    """Rewrite the pages."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (new := with_files(page)) != page:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
