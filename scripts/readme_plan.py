"""Write into the README what its ten lines of code print on a terminal of 80 columns.

python scripts/readme_plan.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from pathlib import Path

PAGE = Path(__file__).parent.parent / "README.md"
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_PRINTED = re.compile(r"(```text\n)(.*?)(```)", re.DOTALL)


def with_plan(page: str) -> str:
    """The page, its first block of text made anew from its first block of code."""
    code = _CODE.search(page)
    assert code is not None
    said = io.StringIO()
    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code.group(1), PAGE.name, "exec"), {})
    return _PRINTED.sub(lambda found: found[1] + said.getvalue() + found[3], page, count=1)


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(with_plan(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
