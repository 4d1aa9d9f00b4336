"""What mkdocs does besides (mkdocs.yml names this file): the README is the home page, and links
that leave docs/ go to the repository, or are plain text while the site knows none."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def home(readme: str) -> str:
    """The README as a page of docs/: its links and pictures start there."""
    return readme.replace("](docs/", "](")


def outside_links(markdown: str, page: str, repository: str = "") -> str:
    """Links of a page to files that are not in docs/, as links to the repository or as text."""

    def replace(found: re.Match[str]) -> str:
        text, target, _ = found.groups()
        path = _resolve(page, target)
        if path.parts[:1] == ("docs",):
            return text if target.endswith("/") else found.group()  # a folder is no page
        name = path.as_posix()
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/main/{name})"
        return text if text.strip("/`") in name else f"{text} (`{name}`)"

    return _LINK.sub(replace, markdown)


def _resolve(page: str, target: str) -> PurePosixPath:
    """A link of a page of docs/, as a path from the root of the repository."""
    parts: list[str] = ["docs", *PurePosixPath(page).parent.parts]
    for part in PurePosixPath(target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the home page."""
    from mkdocs.structure.files import File

    text = home((ROOT / "README.md").read_text(encoding="utf-8"))
    text = text.replace("](CITATION.cff)", "](../CITATION.cff)")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Mend links that leave docs/."""
    return outside_links(markdown, page.file.src_uri, config.repo_url or "")
