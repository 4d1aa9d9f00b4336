"""The training loop: one run, from a config to a folder of results.

The folder holds config.json, recipe.json, plan.json, metrics.jsonl, result.json and, on the way,
a checkpoint. The same command resumes what it finds and ends bit-equal on a CPU. Divergence is a
result, not a crash. Under torchrun every rank runs this loop on its part of each batch, and the
first one writes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from completedp.apply.optimise import set_learning_rates
from completedp.common.errors import CompletedpError
from completedp.common.files import read_json, write_text_atomically
from completedp.common.process import Interrupted, held_signals, only_process
from completedp.common.progress import Reporter
from completedp.lm.batches import Batches, TokenDataset, validation_batches
from completedp.lm.loss import Loss
from completedp.lm.tokens import Manifest
from completedp.theory.recipe import Recipe
from completedp.training.build import choose_dtype, loss_of, model_config, planned_meta_model
from completedp.training.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from completedp.training.config import TrainConfig, same_run
from completedp.training.distributed import Ranks, distribute, joined
from completedp.training.metrics import Metrics, require_sinks

DIVERGED_ABOVE = 2.0
"""A loss this many times the first one's is divergence, as is one that is not finite."""
EVALUATION_TOKENS = 65_536
"""An evaluation takes about this many tokens at a time."""
CHECK_EVERY, CHECK_SECONDS = 20, 2.0
"""On a GPU losses are read every so many steps, as reading one waits for the device; or seconds,
if that is sooner."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended."""

    status: str
    """ok, diverged, or stopped (before its last step; the same command goes on)."""
    steps: int
    tokens: int
    train_loss: float | None
    """Cross-entropy of the last step, if finite."""
    valid_loss: float | None
    """Cross-entropy on held-out text, at the end."""
    valid_bits_per_byte: float | None
    last_finite_loss: float | None
    parameters: int
    seconds: float
    """Of training in this process; a resumed run adds its earlier parts."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class _DivergedError(Exception):
    """Raised inside the loop when a loss says so."""


def train(config: TrainConfig, *, recipe: Recipe | None = None, quiet: bool = False) -> Result:
    """Run, or resume, or return what a finished run found."""
    folder = Path(config.out).expanduser()
    with joined(config.device) as ranks, ExitStack() as stack:
        if not ranks.first:  # whose warnings are those of all
            stack.enter_context(warnings.catch_warnings(action="ignore", category=UserWarning))
        done = None
        with ranks.together():
            recipe = recipe or config.load_recipe()
            manifest = Manifest.load(config.data)
            # What makes this run the run it is; on disk beside how it was asked for.
            identity = {"data_digest": manifest.digest(), "recipe_digest": _digest(recipe)}
            if ranks.first:
                done = _finished(folder, config, identity)
        done = ranks.share(done)
        if done is not None:
            return done
        ranks.check_same(identity)
        with ranks.together():
            require_sinks(tensorboard=config.tensorboard, wandb=config.wandb)
            run = _Run(config, recipe, manifest, folder, ranks, quiet)
        run.build()
        with ranks.together():
            if ranks.first:
                stack.enter_context(only_process(folder))
        interrupted = stack.enter_context(held_signals())
        run.open(identity)
        try:
            return ranks.share(run.go(interrupted))
        finally:
            run.close()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        config: TrainConfig,
        recipe: Recipe,
        manifest: Manifest,
        folder: Path,
        ranks: Ranks,
        quiet: bool,
    ) -> None:
        self.config, self.recipe, self.folder, self.ranks = config, recipe, folder, ranks
        self.quiet = quiet or not ranks.first
        self.target = config.target(recipe)
        self.manifest = manifest
        self.train_data = TokenDataset(config.data, "train", config.context)
        self.valid_data = TokenDataset(config.data, "valid", config.context)
        sequences = config.sequences(self.target.batch, ranks.world)
        self.batches = Batches(self.train_data, sequences, config.seed)
        self.model, self.plan = planned_meta_model(
            model_config(config.shape, manifest.vocab, self.target, recipe.head_dim),
            recipe,
            self.target,
            choose_dtype(config.dtype, ranks.device),
        )
        if config.clip:
            warnings.warn(
                "gradient clipping changes the gradients that the rules scale eps to",
                stacklevel=3,
            )

    def build(self) -> None:
        """Memory, initial values, the loss in training and in evaluation, and the optimizer."""
        config, ranks = self.config, self.ranks
        self.loss: Callable[..., Loss]
        self.evaluation_loss: Callable[..., Loss]
        if ranks.alone:
            self.model.to_empty(device=ranks.device)
            self.plan.initialise(config.seed)
            compiled = torch.compile(loss_of, dynamic=False) if config.compile else loss_of
            self.loss = partial(compiled, self.model)
            self.evaluation_loss = partial(loss_of, self.model)
        else:
            self.loss = self.evaluation_loss = distribute(
                self.model,
                self.plan,
                ranks,
                parallel=config.parallel,
                seed=config.seed,
                compile=config.compile,
            )
        self.optimizer = self.plan.adamw()

    def open(self, identity: dict[str, str]) -> None:
        """Go back to the checkpoint, if there is one, and write what the run is."""
        config, folder, ranks = self.config, self.folder, self.ranks
        self.step, self.seconds_before, self.first_loss = 0, 0.0, math.nan
        self.last_finite: float | None = None
        checkpoint = None
        with ranks.together():
            checkpoint = find_checkpoint(folder) if ranks.first else None
        checkpoint = ranks.share(checkpoint)
        if checkpoint is not None:
            self.step, extra = load_checkpoint(checkpoint, self.model, self.optimizer, ranks)
            self.seconds_before = float(extra.get("seconds", 0.0))
            self.first_loss = float(extra.get("first_loss", math.nan))
            self.last_finite = extra.get("last_finite_loss")
        self.metrics: Metrics | None = None
        with ranks.together():
            if not 0 <= self.step <= self.target.steps:
                raise CompletedpError(
                    f"{str(folder)!r} has a checkpoint of step {self.step}, outside the run's "
                    f"{self.target.steps} steps: remove it to start over"
                )
            if ranks.first:
                self.recipe.save(folder / "recipe.json")
                _write_json(folder / "plan.json", self.plan.to_dict())
                _write_json(folder / "config.json", config.to_dict() | identity)  # says whose
                self.metrics = Metrics(
                    folder,
                    resume_at=self.step,
                    tensorboard=config.tensorboard,
                    wandb=config.wandb,
                    config=config.to_dict(),
                )
        self.began = self.read_last = time.monotonic()
        self.start = self.step
        self.read_at = self.step + 1
        self.stop_asked = False
        self.pending: list[tuple[int, Tensor]] = []

    def close(self) -> None:
        """Flush and close the files."""
        if self.metrics is not None:
            self.metrics.close()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.began

    def go(self, interrupted: Callable[[], bool]) -> Result:
        """Train to the end, or to divergence, or to where the config or a signal says to stop."""
        config, steps = self.config, self.target.steps
        last = min(steps, config.stop_after or steps)
        try:
            with Reporter("train", steps, self.step, quiet=self.quiet) as reporter:
                while self.step < last:
                    self._update(steps)
                    if self.step >= self.read_at or self.step == last:
                        self._read(interrupted())
                        reporter.update(self.step, self._note)
                    at_end = self.step == steps
                    if config.eval_every and self.step % config.eval_every == 0 and not at_end:
                        self._log({"step": self.step, "valid_loss": self._evaluate()})
                    every = config.checkpoint_every
                    if every and self.step % every == 0 and not at_end:
                        self._save()
                    # One of many ranks stops when all have heard of it, at the next reading.
                    if self.stop_asked or (self.ranks.alone and interrupted()):
                        self._save()
                        raise Interrupted
            if last < steps:
                self._save()
        except _DivergedError:
            return self._finish("diverged")
        return self._finish("stopped" if last < steps else "ok")

    def _update(self, steps: int) -> None:
        """One optimizer step on this rank's part of one batch, in micro-batches."""
        config, ranks = self.config, self.ranks
        set_learning_rates(self.optimizer, self.recipe.schedule(self.step, steps))
        indices = self.batches.indices(self.step)
        own = len(indices) // ranks.world
        inputs, targets = self.train_data.take(indices[ranks.rank * own :][:own])
        micro = config.micro_batch or own
        parts = own // micro
        losses: list[Tensor] = []
        for part in range(parts):
            rows = slice(part * micro, (part + 1) * micro)
            with self._gradients_stay() if part < parts - 1 else nullcontext():
                loss = self.loss(
                    torch.from_numpy(inputs[rows]).to(ranks.device, non_blocking=True),
                    torch.from_numpy(targets[rows]).to(ranks.device, non_blocking=True),
                    config.z_loss,
                )
                (loss.total / parts).backward()
            losses.append(loss.cross_entropy)
        if config.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.pending.append((self.step, torch.stack(losses).mean()))

    def _gradients_stay(self) -> AbstractContextManager[None]:
        """Copies add up their gradients and send them once; shards have no room for whole ones."""
        if isinstance(self.loss, DistributedDataParallel):
            return self.loss.no_sync()
        return nullcontext()

    def _read(self, interrupted: bool = False) -> None:
        """Bring the losses since the last reading to the host, log some, judge all.

        Of many ranks the mean counts; and whether to stop, and when to read again, is agreed on.
        """
        steps, now = self.target.steps, time.monotonic()
        losses = torch.stack([loss for _, loss in self.pending])
        *losses, asked, seconds = zip(
            *self.ranks.gather(losses, (interrupted, now - self.read_last)), strict=True
        )
        self.stop_asked = any(asked)
        pace = CHECK_SECONDS * len(self.pending) / max(seconds)  # steps
        on_cpu = self.ranks.device.type == "cpu"
        self.read_at = self.step + (1 if on_cpu else max(1, min(CHECK_EVERY, int(pace))))
        self.read_last = now
        for (step, _), each in zip(self.pending, losses, strict=True):
            loss = sum(each) / len(each)
            if step == 1:
                self.first_loss = loss
            diverged = not math.isfinite(loss) or loss > DIVERGED_ABOVE * self.first_loss
            if math.isfinite(loss):
                self.last_finite = loss
            if step % self.config.log_every == 0 or step in (1, steps) or diverged:
                self._log_step(step, loss)
            if diverged:
                self.step = step
                raise _DivergedError
        self.pending.clear()

    def _log(self, row: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.log(row)

    def _log_step(self, step: int, loss: float) -> None:
        done = (self.step - self.start) * self.target.batch
        row = {
            "step": step,
            "tokens": step * self.target.batch,
            "loss": loss if math.isfinite(loss) else None,
            "lr_multiplier": self.recipe.schedule(step - 1, self.target.steps),
            "tokens_per_second": done / max(1e-9, time.monotonic() - self.began),
        }
        self._log(row)

    def _evaluate(self) -> float:
        return evaluate(self.evaluation_loss, self.valid_data, self.config, self.ranks)

    def _note(self) -> str:
        rate = (self.step - self.start) * self.target.batch / (time.monotonic() - self.began)
        lr = max(group["lr"] for group in self.optimizer.param_groups)
        return f"loss {self.last_finite:.4f} lr {lr:.2e} {rate:,.0f} tokens/s"

    def _save(self) -> None:
        if self.pending:
            self._read()
        extra = {
            "seconds": self.seconds,
            "first_loss": self.first_loss,
            "last_finite_loss": self.last_finite,
        }
        save_checkpoint(self.folder, self.model, self.optimizer, self.step, extra, self.ranks)

    def _finish(self, status: str) -> Result:
        valid = None
        if status == "ok":
            valid = self._evaluate()
            self._log({"step": self.step, "valid_loss": valid})
            if self.config.checkpoint_every:
                self._save()
        result = Result(
            status=status,
            steps=self.step,
            tokens=self.step * self.target.batch,
            train_loss=None if status == "diverged" else self.last_finite,
            valid_loss=valid,
            valid_bits_per_byte=bits_per_byte(valid, self.manifest, "valid"),
            last_finite_loss=self.last_finite,
            parameters=sum(p.numel() for p in self.model.parameters()),
            seconds=self.seconds,
        )
        if self.ranks.first:
            _write_json(self.folder / "result.json", result.to_dict())
        return result


@torch.no_grad()
def evaluate(
    loss: Callable[..., Loss], data: TokenDataset, config: TrainConfig, ranks: Ranks
) -> float:
    """Mean cross-entropy over the same held-out windows every time, shared among the ranks."""
    windows = evaluation_windows(data, config.eval_sequences)
    parts = windows.tensor_split(ranks.world)  # the first is the longest
    own = parts[ranks.rank]
    size = config.micro_batch or max(1, EVALUATION_TOKENS // config.context)
    total = 0.0
    for start in range(0, len(parts[0]), size):
        rows = own[start : start + size]
        # A rank with nothing left still takes part: shards are gathered by all ranks together.
        taken = (rows if len(rows) else windows[:1]).to(ranks.device)
        total += float(loss(taken[:, :-1], taken[:, 1:]).cross_entropy) * len(rows)
    sums = ranks.gather(torch.zeros(0), (total,))
    return sum(part for (part,) in sums) / len(windows)


def evaluation_windows(data: TokenDataset, sequences: int) -> Tensor:
    """The held-out windows [sequences, context + 1] that every evaluation of a split takes."""
    (inputs, targets), *_ = validation_batches(data, min(sequences, data.windows), 1)
    return torch.cat([torch.from_numpy(inputs), torch.from_numpy(targets[:, -1:])], dim=1)


def bits_per_byte(loss: float | None, manifest: Manifest, split: str) -> float | None:
    """Nats per token as bits per byte of text, which compares across tokenisers."""
    if loss is None:
        return None
    part = manifest.splits[split]
    return loss / math.log(2) * part.tokens / part.bytes


def _finished(folder: Path, config: TrainConfig, identity: dict[str, str]) -> Result | None:
    """The result of a finished run of this config; a different run in the folder is an error."""
    if not (folder / "config.json").exists():
        return None
    old = read_json(folder / "config.json", "run's config")
    new = json.loads(json.dumps(config.to_dict()))
    differs = same_run(old, new)
    if differs is not None:
        raise CompletedpError(
            f"{str(folder)!r} holds another run: its {differs} is {old.get(differs)!r}, "
            f"here it is {new.get(differs)!r}; choose another --out"
        )
    for key, value in identity.items():
        if old.get(key) != value:
            what = key.removesuffix("_digest")
            raise CompletedpError(
                f"{str(folder)!r} holds another run: its {what} had other contents; "
                "choose another --out"
            )
    if not (folder / "result.json").exists():
        return None
    saved = read_json(folder / "result.json", "run's result")
    if saved.keys() != Result.__dataclass_fields__.keys():
        raise CompletedpError(f"{str(folder / 'result.json')!r} is not a run's result: remove it")
    result = Result(**saved)
    return None if result.status == "stopped" else result


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(recipe.to_dict(), sort_keys=True).encode()).hexdigest()


def _write_json(path: Path, data: dict[str, Any]) -> None:
    write_text_atomically(path, json.dumps(data, indent=2) + "\n")
