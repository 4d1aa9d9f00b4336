"""Metrics: JSON lines always, other sinks if asked for, resumption without repeats."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from completedp.common.errors import CompletedpError
from completedp.common.progress import Reporter, TimeLeft, duration, fitted
from completedp.training.metrics import FILE, Metrics, read_metrics, require_sinks


def test_resuming_drops_what_comes_again(tmp_path: Path) -> None:
    """Lines after the step that a run resumes at are dropped, the others kept."""
    metrics = Metrics(tmp_path)
    for step in range(1, 6):
        metrics.log({"step": step, "loss": float(step)})
    metrics.close()
    Metrics(tmp_path, resume_at=3).close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_line_cut_off_is_left_out(tmp_path: Path) -> None:
    """A last line that a crash cut off is not read."""
    (tmp_path / FILE).write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    """What goes to metrics.jsonl goes to TensorBoard too."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, tensorboard=True)
    metrics.log({"step": 7, "loss": 2.5})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(7, 2.5)]


def test_wandb_gets_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to metrics.jsonl goes to Weights & Biases too, under the run folder's name."""
    seen: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda row, step: seen.append((step, row)), finish=lambda: seen.append("finished")
    )
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: seen.append(options) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    metrics = Metrics(tmp_path, wandb="project", config={"seed": 1})
    metrics.log({"step": 7, "loss": 2.5})
    metrics.close()
    assert seen[0]["project"] == "project"
    assert seen[0]["name"] == tmp_path.name
    assert seen[1:] == [(7, {"loss": 2.5}), "finished"]


def test_missing_sink_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that is not installed is one line that says how to install it."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(CompletedpError, match=r'pip install "completedp\[wandb\]"'):
        require_sinks(tensorboard=False, wandb="project")


def test_plain_progress_ends_with_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, progress is plain lines, the last step's among them."""
    with Reporter("work", 3) as reporter:
        for step in range(1, 4):
            reporter.update(step, lambda: "note")
    assert capsys.readouterr().err.splitlines() == ["work 3/3 note ETA 0:00"]


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (125, "2:05"), (3725, "1:02:05")])
def test_durations(seconds: float, text: str) -> None:
    """Durations read as clocks do."""
    assert duration(seconds) == text


def test_time_left_goes_by_finished_work() -> None:
    """None until there is something to go by; set-up before the first work is no part of the pace;
    at a steady pace the estimate falls by a second every second."""
    now = [0.0]
    left = TimeLeft(clock=lambda: now[0])
    assert left.seconds() is None
    now[0] = 60.0  # of compiling
    left.tell(0.01)
    assert left.seconds() is None
    found = []
    for step in range(2, 50):
        now[0] += 1.0
        left.tell(step / 100)
        found.append(left.seconds())
    assert found == pytest.approx([float(99 - step) for step in range(1, 49)])
    now[0] += 10.0  # without a word: it goes on falling
    assert left.seconds() == pytest.approx(found[-1] - 10)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_line_is_never_cut(width: int) -> None:
    """A progress line fits, keeps count and time, and leaves out whole pieces of its note."""
    note = "best 3.1234, radius 0.50, 13 diverged, slots 100% busy"
    line = fitted("search: trials", "120/300", "ETA 1:02:03", note, 0.4, width)
    assert len(line) <= width
    assert "120/300" in line
    assert "ETA 1:02:03" in line
    kept = line.partition("ETA 1:02:03")[2].strip()
    assert note.startswith(kept)
    assert not kept or note[len(kept) : len(kept) + 1] in ("", ",")
    assert ("━" in line) == (width == 120)


def test_a_long_title_gives_way() -> None:
    """Of a title that does not fit, the end goes; count and time stay."""
    line = fitted("on a scale of many words: trial-steps", "508/546", "ETA 0:07", "", 0.9, 40)
    assert len(line) <= 40
    assert line.endswith("… 508/546 ETA 0:07")


def test_a_log_says_what_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first step is done, that it compiles."""
    with Reporter("work", 3, waiting="compiling") as reporter:
        assert capsys.readouterr().err == "work 0/3 compiling\n"
        reporter.update(3, lambda: "note")
    assert capsys.readouterr().err == "work 3/3 note ETA 0:00\n"
