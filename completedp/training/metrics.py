"""Metrics: one JSON object a line, always; TensorBoard and Weights & Biases if asked for."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from completedp.common.extras import import_extra
from completedp.common.files import json_text, parse_json, write_text_atomically

FILE = "metrics.jsonl"


class Metrics:
    """Appends lines, and drops those after `resume_at`, which the resumed run will write again."""

    def __init__(
        self,
        folder: Path,
        *,
        resume_at: int = 0,
        tensorboard: bool = False,
        wandb: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self._sinks: list[Any] = []
        if tensorboard:
            self._sinks.append(_TensorBoard(folder, resume_at))
        if wandb:
            self._sinks.append(_WandB(folder, wandb, config or {}))
        kept = [row for row in read_metrics(folder) if row["step"] <= resume_at]
        write_text_atomically(folder / FILE, "".join(json_text(row, indent=None) for row in kept))
        self._file = (folder / FILE).open("a", encoding="utf-8")

    def log(self, row: dict[str, Any]) -> None:
        """One line; `row` holds at least `step`."""
        self._file.write(json_text(row, indent=None))
        self._file.flush()
        for sink in self._sinks:
            sink.log(row)

    def close(self) -> None:
        """Flush and close every sink."""
        self._file.close()
        for sink in self._sinks:
            sink.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run; what a crash cut off is left out."""
    path = folder / FILE
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = parse_json(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def require_sinks(*, tensorboard: bool, wandb: str | None) -> None:
    """One line if a tracker that is asked for is not installed."""
    for name, wanted in (("tensorboard", tensorboard), ("wandb", wandb)):
        if wanted:
            import_extra(name, f"logging to {name}")


class _TensorBoard:
    def __init__(self, folder: Path, resume_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_at + 1)

    def log(self, row: dict[str, Any]) -> None:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, folder: Path, project: str, config: dict[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        # The id is of the whole path: two folders may share a name.
        run_id = blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
        self._run = wandb.init(
            project=project, id=run_id, name=folder.name, config=config, resume="allow"
        )

    def log(self, row: dict[str, Any]) -> None:
        self._run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def close(self) -> None:
        self._run.finish()
