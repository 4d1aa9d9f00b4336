"""A Lightning module with a planned optimizer (needs pytorch-lightning and transformers).

python examples/lightning_module.py  # seconds on a CPU
python examples/lightning_module.py --width 1024 --depth 16 --rows 64 --length 1024 --steps 10000
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import completedp as cdp

HEAD = 32  # width grows by more heads of the same size
BASE = cdp.Scale(width=64, depth=2, batch=256, tokens=256 * 40)  # where the values were tuned
VALUES = {"lr": 2**-7, "weight_decay": 0.1}


def llama(width: int, depth: int) -> LlamaForCausalLM:
    """An ordinary Llama on bytes; its head is not tied to its embedding."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth}
    config = LlamaConfig(vocab_size=256, num_attention_heads=width // HEAD, **sizes)
    config.tie_word_embeddings = False
    return LlamaForCausalLM(config)


class LanguageModel(lightning.LightningModule):
    """A language model at the target's scale."""

    def __init__(self, recipe: cdp.Recipe, target: cdp.Scale) -> None:
        super().__init__()
        self.model = llama(target.width, target.depth)
        self.plan = cdp.plan(self.model, recipe, target)
        self.plan.initialise(seed=0)

    def training_step(self, tokens: Tensor, index: int) -> Tensor:
        loss = self.model(input_ids=tokens, labels=tokens).loss
        if index % max(self.plan.target.steps // 8, 1) == 0:
            print(f"step {index} loss {loss.item():.3f}")
        return loss

    def configure_optimizers(self) -> Any:
        optimizer, steps = self.plan.adamw(), self.plan.target.steps
        scheduler = cdp.attach_schedule(optimizer, self.plan.recipe.schedule, steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main() -> None:
    """Plan, initialise, and let Lightning train."""
    parser = argparse.ArgumentParser(description=__doc__)
    options = {"width": 128, "depth": 4, "rows": 16, "length": 32, "steps": 40}
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    with torch.device("meta"):  # a base-sized copy, of which only names and shapes are read
        recipe = cdp.Recipe.for_model(llama(BASE.width, BASE.depth), BASE, **VALUES)
    sizes = {"batch": args.rows * args.length, "tokens": args.rows * args.length * args.steps}
    module = LanguageModel(recipe, cdp.Scale(width=args.width, depth=args.depth, **sizes))
    sources = sorted(Path(os.__file__).parent.glob("*.py"))  # the standard library's
    text = bytearray(b"".join(path.read_bytes() for path in sources))
    rows = torch.frombuffer(text, dtype=torch.uint8).long().unfold(0, args.length, args.length)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_steps=args.steps, default_root_dir=folder, devices=1, **quiet
        )
        trainer.fit(module, DataLoader(rows, batch_size=args.rows, shuffle=True))


if __name__ == "__main__":
    main()
