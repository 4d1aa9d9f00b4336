"""The training loop: one run, from a config to a folder of results.

The folder holds config.json, recipe.json, plan.json, metrics.jsonl, result.json and, on the way,
a checkpoint. The same command resumes what it finds and ends bit-equal on a CPU. Divergence is a
result, not a crash. Under torchrun every rank runs this loop on its part of each batch, and the
first one writes.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from completedp.apply.optimise import set_learning_rates
from completedp.common.errors import CompletedpError, DataWarning, ScaleWarning
from completedp.common.files import user_path, write_json
from completedp.common.process import Interrupted, answered_signals, only_process
from completedp.common.progress import Reporter
from completedp.common.surface import option
from completedp.common.warn import warn
from completedp.lm.loss import Loss
from completedp.lm.tokens import Manifest
from completedp.lm.transformer import is_reference
from completedp.tasks.data import Batch, Order, Stream, held_out_batches
from completedp.tasks.same_code import noted
from completedp.tasks.task import Task, task_from
from completedp.tasks.weights import give_memory
from completedp.theory.horizon import is_batch_known
from completedp.theory.recipe import Recipe
from completedp.theory.scale import Scale
from completedp.training.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from completedp.training.config import TrainConfig, run_settings
from completedp.training.devices import choose_dtype
from completedp.training.distributed import Ranks, distribute, joined
from completedp.training.folder import (
    Result,
    check_extra,
    check_own,
    code_noted,
    finished_run,
    recipe_digest,
)
from completedp.training.metrics import Metrics, require_sinks
from completedp.training.noise import NoiseWindow, gradients, parts_for_noise, squares
from completedp.training.trials import (
    CHECK_EVERY,
    EVALUATION_TOKENS,
    check_has_gradient,
    finite,
    is_divergence,
    seed_step,
)
from completedp.training.unkept import Unkept

CHECK_SECONDS = 2.0
"""On a GPU losses are read after so many seconds, if that is sooner than after CHECK_EVERY."""


class _DivergedError(Exception):
    """Raised inside the loop when a loss says so."""


def train(
    config: TrainConfig,
    *,
    task: Task | None = None,
    recipe: Recipe | None = None,
    quiet: bool = False,
) -> Result:
    """Run, or resume, or return what a finished run found.

    `task` and `recipe` stand in for what the config names.
    """
    folder = user_path(config.out)
    with joined(config.device) as ranks, ExitStack() as stack:
        if not ranks.first:  # whose warnings are those of all
            stack.enter_context(warnings.catch_warnings(action="ignore", category=UserWarning))
        done = None
        with ranks.together():
            recipe = recipe or config.load_recipe()
            task = task or task_from(config, recipe)
            # What makes this run the run it is; on disk beside how it was asked for.
            identity = {"data_digest": task.data.digest, "recipe_digest": recipe_digest(recipe)}
            code: dict[str, Any] = {}
            if ranks.first:
                code = noted(task, recipe)
                done = finished_run(folder, config, identity, code)
        done = ranks.share(done)
        if done is not None:
            return done
        ranks.check_same(identity)
        with ranks.together():
            require_sinks(tensorboard=config.tensorboard, wandb=config.wandb)
            run = _Run(config, task, recipe, folder, ranks, quiet)
        run.build()
        with ranks.together():
            if ranks.first:
                stack.enter_context(only_process(folder))
                done = finished_run(folder, config, identity, code)  # by another, meanwhile
        done = ranks.share(done)
        if done is not None:
            return done
        compiles = ", the first of which compiles," if config.compile else ""
        waits_for = f"stopping after this step{compiles} to save a checkpoint"
        interrupted = stack.enter_context(answered_signals(waits_for, hold=True))
        run.open(identity, code)
        try:
            return ranks.share(run.go(interrupted))
        finally:
            run.close()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        recipe: Recipe,
        folder: Path,
        ranks: Ranks,
        quiet: bool,
    ) -> None:
        self.config, self.task, self.folder, self.ranks = config, task, folder, ranks
        self.recipe, self.quiet = recipe, quiet or not ranks.first
        self.target = config.target(recipe)
        self.examples = config.examples(task.data.examples(self.target.batch), ranks.world)
        self.dtype = choose_dtype(config.dtype, ranks.device)
        weights = torch.promote_types(self.dtype, torch.float32)  # never kept below
        narrow = self.dtype if self.dtype != weights else None
        model = task.model(self.target, narrow)
        # Of what is floating point alone: `.to(dtype)` takes complex rotary tables for real ones.
        self.model = model.double() if weights == torch.float64 else model.float()
        self._is_reference = is_reference(self.model)  # sharded, it is of another class
        self.plan = task.plan(recipe, self.target, self.model)
        # Whoever called cdp.train, which called `train`, is told.
        for line in (*self.plan.cautions, *_other_loss(task, recipe, self.target)):
            warn(line, ScaleWarning)
        for line in task.data.cautions(self.target):
            warn(line, DataWarning)
        if config.clip:
            warn(
                "gradient clipping changes the gradients that the rules scale eps to",
            )

    def build(self) -> None:
        """Memory, initial values, the loss in training and in evaluation, and the optimizer."""
        config, ranks = self.config, self.ranks
        self.loss: Callable[..., Loss]
        self.evaluation_loss: Callable[..., Loss]
        if ranks.alone:
            give_memory(self.model, ranks.device)
            self.plan.initialise(config.seed)
            self.loss = self.task.batch_loss(self.model, self.dtype, compile=config.compile)
            self.evaluation_loss = self.task.batch_loss(self.model, self.dtype)
        else:
            self.loss = self.evaluation_loss = distribute(
                self.model,
                self.plan,
                self.task.batch_loss(self.model, self.dtype),
                ranks,
                parallel=config.parallel,
                seed=config.seed,
                compile=config.compile,
            )
        self.optimizer = self.plan.optimizer()
        tensors = self.plan.map.parameters()
        self.tables = [tensors[t.name] for t in self.plan.map if t.type == "embedding"]

    def open(self, identity: dict[str, str], code: dict[str, Any]) -> None:
        """Go back to the checkpoint, if there is one, and write what the run is."""
        config, folder, ranks = self.config, self.folder, self.ranks
        self.step, self.seconds_before, self.first_loss = 0, 0.0, math.nan
        self.last_finite: float | None = None
        checkpoint, noise = None, []
        with ranks.together():
            checkpoint = find_checkpoint(folder) if ranks.first else None
        checkpoint = ranks.share(checkpoint)
        self.identity = json.loads(json.dumps(run_settings(config))) | identity
        if checkpoint is not None:
            with ranks.together():
                check_own(checkpoint, self.identity)
            about = load_checkpoint(checkpoint, self.model, self.optimizer, ranks)
            self.step, extra = about.step, about.extra
            check_extra(checkpoint, extra)
            self.seconds_before = float(extra.get("seconds", 0.0))
            first = extra.get("first_loss")
            self.first_loss = math.nan if first is None else float(first)
            self.last_finite = extra.get("last_finite_loss")
            noise = extra.get("gradient_noise", [])
        self.noise = NoiseWindow(self.target.batch, noise)
        self.metrics: Metrics | None = None
        with ranks.together():
            if not 0 <= self.step <= self.target.steps:
                raise CompletedpError(
                    f"{str(folder)!r} has a checkpoint of step {self.step}, outside the run's "
                    f"{self.target.steps} steps: remove it to start over"
                )
            if ranks.first:
                self._say_where_it_begins((folder / "config.json").exists())
                self.recipe.save(folder / "recipe.json")
                write_json(folder / "plan.json", self.plan.to_dict())
                whose = identity | code_noted(folder, code)
                write_json(folder / "config.json", config.to_dict() | whose)
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
        self.pending_noise: list[tuple[int, Tensor]] = []
        self.stream: Iterator[Batch] | None = None
        self.unkept = Unkept(self.model)

    def _say_where_it_begins(self, again: bool) -> None:
        """A run that goes on, or cannot: who killed it wants to know how much was lost."""
        if again and not self.quiet:
            where = f"goes on after step {self.step:,} of {self.target.steps:,}"
            if not self.step:
                where = "was begun and has no checkpoint yet: from the first step again"
            print(f"{self.folder} {where}", file=sys.stderr, flush=True)

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
        last, save_every = min(steps, config.stop_after or steps), config.save_every(steps)
        try:
            waiting = "compiling" if config.compile else ""
            with Reporter("train", steps, self.step, quiet=self.quiet, waiting=waiting) as reporter:
                while self.step < last:
                    self._update(steps)
                    self.unkept.begin()
                    at_end, every = self.step == steps, config.eval_every
                    is_judged = every > 0 and self.step % every == 0 and not at_end
                    # Before a held-out loss, too: trackers drop rows that go back.
                    if self.step >= self.read_at or self.step == last or is_judged:
                        self._read(interrupted())
                        reporter.update(self.step, self._note)
                    if is_judged:
                        self._log({"step": self.step, "valid_loss": finite(self._evaluate())})
                    if save_every and self.step % save_every == 0 and not at_end:
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
        config = self.config
        set_learning_rates(self.optimizer, self.recipe.schedule(self.step, steps))
        rows = self._rows()
        if not self._is_reference:  # which draws nothing
            seed_step(config.seed, self.step, self.ranks.rank)
        noisy = self._measures_noise()
        parts, loss_of = (self.noise_parts, self.noise_loss) if noisy else (self.parts, self.loss)
        micro, first = len(rows[0]) // parts, []
        losses: list[Tensor] = []
        for part in range(parts):
            taken = tuple(column[part * micro : (part + 1) * micro] for column in rows)
            ends = part == parts - 1 or (noisy and part == parts // 2 - 1)
            with nullcontext() if ends else self._gradients_stay():
                loss = loss_of(*self._batch(taken))
                check_has_gradient(loss.total)
                (loss.total / parts).backward()
            losses.append(loss.cross_entropy)
            if noisy and part == parts // 2 - 1:
                first = gradients(self.optimizer)
        if noisy:
            found = squares(self.optimizer, first, self.noise_share, self.ranks.world, self.tables)
            self.pending_noise.append((self.step + 1, found))
        if config.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.pending.append((self.step, torch.stack(losses).mean()))

    @property
    def own_examples(self) -> int:
        """Of each step, on this rank."""
        return self.examples // self.ranks.world

    @property
    def parts(self) -> int:
        """Micro-batches of a step."""
        return self.own_examples // (self.config.micro_batch or self.own_examples)

    @property
    def noise_parts(self) -> int:
        """The same where the gradient's noise is measured; 1 where it cannot be."""
        return parts_for_noise(self.parts, self.own_examples)

    @property
    def noise_share(self) -> float:
        """Of the batch, what is in the part that is compared with the rest."""
        return self.noise_parts // 2 / self.noise_parts

    @property
    def noise_loss(self) -> Callable[..., Loss]:
        """The loss of a part; one that no other step has the size of is not compiled for."""
        whole = self.noise_parts == self.parts or not self.ranks.alone
        return self.loss if whole else self.evaluation_loss

    def _measures_noise(self) -> bool:
        """Whether the next step does; the first has nothing to weigh gradients by."""
        every = self.config.measure_noise_every
        due = every > 0 and (self.step + 1) % every == 0
        return due and self.step > 0 and self.noise_parts > 1

    def _rows(self) -> Batch:
        """This rank's part of the step's examples, on the CPU."""
        train, config = self.task.data.train, self.config
        own = self.own_examples
        if isinstance(train, Stream):
            rows = self._next_of_stream(train)
        else:
            order = Order(train, self.examples, config.seed).steps(self.step, self.step + 1)
            return train.take(order[0][self.ranks.rank * own :][:own])
        return tuple(column[self.ranks.rank * own :][:own] for column in rows)

    def _next_of_stream(self, stream: Stream) -> Batch:
        """The next batch; a resumed run first passes over what was trained on."""
        if self.stream is None:
            batches = stream.for_training(self.examples, self.config.seed)
            self.stream = islice(batches, self.step, None)
        return next(self.stream)

    def _batch(self, rows: Batch) -> Batch:
        train = self.task.data.train
        moved = tuple(column.to(self.ranks.device, non_blocking=True) for column in rows)
        return moved if isinstance(train, Stream) else train.batch(moved)

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
            diverged = is_divergence(loss, self.first_loss)
            if not diverged:
                self.last_finite = loss
            if step % self.config.log_every == 0 or step in (1, steps) or diverged:
                self._log_step(step, loss)
            self._read_noise(step)  # where it belongs: trackers drop rows that go back
            if diverged:
                self.step = step
                raise _DivergedError
        self.pending.clear()

    def _read_noise(self, now: int) -> None:
        """Bring what was measured at a step to the host; log the batch that the last few give."""
        while self.pending_noise and self.pending_noise[0][0] <= now:
            step, local = self.pending_noise.pop(0)
            self.noise.add([sum(each) for each in zip(*self.ranks.gather(local), strict=True)])
            named = {"critical_batch": self.noise.critical_batch}
            named["noise_scale"] = self.noise.noise_scale
            row = {name: found.batch for name, found in named.items() if found is not None}
            if row:
                self._log({"step": step, **row})

    def _log(self, row: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.log(row)

    def _log_step(self, step: int, loss: float) -> None:
        done = (self.step - self.start) * self.target.batch
        row = {
            "step": step,
            "tokens": step * self.target.batch,
            "loss": finite(loss),
            "lr_multiplier": self.recipe.schedule(step - 1, self.target.steps),
            "tokens_per_second": done / max(1e-9, time.monotonic() - self.began),
        }
        self._log(row)

    def _evaluate(self) -> float:
        self.model.eval()
        try:
            return evaluate(
                self.evaluation_loss, self.task, self.config, self.ranks, self.evaluation_size
            )
        finally:
            self.model.train()

    @property
    def evaluation_size(self) -> int:
        """Examples at a time; as in training where a loss of the user's own may depend on it."""
        if self.config.micro_batch is not None:
            return self.config.micro_batch
        if self._is_reference:
            return max(1, EVALUATION_TOKENS // self.task.data.unit)
        return self.examples

    def _note(self) -> str:
        rate = (self.step - self.start) * self.target.batch / (time.monotonic() - self.began)
        lr = max(group["lr"] for group in self.optimizer.param_groups)
        found = self.noise.critical_batch
        known = found is not None and is_batch_known(found.batch, found.error)
        noise = f", critical batch {found.batch:,.0f}" if found is not None and known else ""
        return (
            f"loss {self.last_finite:.4f} lr {lr:.2e} {rate:,.0f} {self.task.data.counted}/s{noise}"
        )

    def _save(self) -> None:
        if self.pending:
            self._read()
        if self.step < self.target.steps and self.ranks.first:
            self.unkept.say()
        extra = {
            "seconds": self.seconds,
            "first_loss": finite(self.first_loss),
            "last_finite_loss": self.last_finite,
            "gradient_noise": self.noise.last,
        }
        save_checkpoint(
            self.folder,
            self.model,
            self.optimizer,
            self.step,
            extra,
            self.ranks,
            run=self.identity,
        )

    def _finish(self, status: str) -> Result:
        valid, train_loss = None, None if status == "diverged" else self.last_finite
        if status == "ok":
            # The last update's own loss is never read: what it broke is seen here, or nowhere.
            valid = finite(self._evaluate())
            broken = valid is None or is_divergence(valid, self.first_loss)
            status, valid = ("diverged", None) if broken else ("ok", valid)
            self._log({"step": self.step, "valid_loss": valid})
            if self.config.save_every(self.target.steps):
                self._save()
        critical, plain = self.noise.critical_batch, self.noise.noise_scale
        result = Result(
            status=status,
            steps=self.step,
            tokens=self.step * self.target.batch,
            train_loss=train_loss,
            valid_loss=valid,
            valid_bits_per_byte=bits_per_byte(valid, self.task.data.manifest, "valid"),
            last_finite_loss=self.last_finite,
            parameters=sum(p.numel() for p in self.model.parameters()),
            seconds=self.seconds,
            critical_batch=None if critical is None else critical.batch,
            critical_batch_error=None if critical is None else critical.error,
            noise_scale=None if plain is None else plain.batch,
        )
        if self.ranks.first:
            write_json(self.folder / "result.json", result.to_dict())
        return result


@torch.no_grad()
def evaluate(
    loss: Callable[..., Loss], task: Task, config: TrainConfig, ranks: Ranks, size: int
) -> float:
    """Mean loss over the same held-out examples every time, shared among the ranks."""
    held_out = task.data.evaluation(config.eval_sequences)
    batches = list(held_out_batches(task.data, held_out, size, ranks.device))
    total, count = 0.0, sum(examples for _, examples in batches)
    for turn in range(math.ceil(len(batches) / ranks.world)):
        mine = turn * ranks.world + ranks.rank
        # A rank with nothing left still takes part: shards are gathered by all ranks together.
        batch, examples = batches[mine] if mine < len(batches) else (batches[0][0], 0)
        total += float(loss(*batch).cross_entropy) * examples
    sums = ranks.gather(torch.zeros(0), (total,))
    return sum(part for (part,) in sums) / count


def bits_per_byte(loss: float | None, manifest: Manifest | None, split: str) -> float | None:
    """Nats per token as bits per byte of text, which compares across tokenisers."""
    if loss is None or manifest is None:
        return None
    part = manifest.splits[split]
    return loss / math.log(2) * part.tokens / part.bytes


def _other_loss(task: Task, recipe: Recipe, target: Scale) -> Iterator[str]:
    """Values that were tuned with another weight of the z-loss were tuned for another loss."""
    tuned = recipe.evidence.z_loss if recipe.evidence is not None else None
    own = task.identity(target)["z_loss"]
    if None not in (tuned, own) and tuned != own:
        there = f"z_loss is {own:g}, and the recipe was tuned with {tuned:g}"
        yield f"{there}: take {option('z_loss')} {tuned:g}"
