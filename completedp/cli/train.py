"""The verb `train`: one run of a model with a recipe."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from completedp.cli.shared import Verb, as_config, print_json, register
from completedp.training.config import TrainConfig


@register("train")
@dataclass(frozen=True, kw_only=True)
class TrainVerb(TrainConfig, Verb):
    """Train a model, the reference model or your own, at any scale; the same command resumes."""

    resumes: ClassVar[bool] = True
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        """Train."""
        from completedp.common.process import Interrupted
        from completedp.training.distributed import AgreedError, is_follower
        from completedp.training.loop import train

        try:
            result = train(as_config(self, TrainConfig))
        except (AgreedError, Interrupted) as stop:
            if is_follower():  # the first rank says it for all
                sys.exit(2 if isinstance(stop, AgreedError) else 130)
            raise
        if is_follower():
            return 0
        failed = int(result.status == "diverged")  # a script must not take it for a model
        if self.json:
            print_json(result.to_dict())
            return failed
        line = f"{result.status} after {result.steps:,} steps and {result.tokens:,} tokens"
        if result.valid_loss is not None:
            line += f": validation loss {result.valid_loss:.4f}"
            if result.valid_bits_per_byte is not None:
                line += f" nats per token, {result.valid_bits_per_byte:.4f} bits per byte"
        elif result.last_finite_loss is not None:
            line += f": last training loss {result.last_finite_loss:.4f}"
        if result.critical_batch is not None:
            error = result.critical_batch_error
            sure = "" if error is None else f" +- {error:,.0f}"
            line += f"\ncritical batch {result.critical_batch:,.0f}{sure} tokens (docs/horizon.md)"
        print(f"{line}\n{self.out}")
        return failed
