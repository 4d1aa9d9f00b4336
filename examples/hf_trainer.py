"""Hugging Face's Trainer with a planned optimizer (needs transformers and accelerate).

python examples/hf_trainer.py  # seconds on a CPU
python examples/hf_trainer.py --width 1024 --depth 16 --rows 64 --length 1024 --steps 10000
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Trainer, TrainingArguments

import completedp as cdp

HEAD = 32  # width grows by more heads of the same size
BASE = cdp.Scale(width=64, depth=2, batch=256, tokens=256 * 40)  # where the values were tuned
VALUES = {"lr": 2**-7, "weight_decay": 0.1}


def config(width: int, depth: int) -> Qwen3Config:
    """An ordinary Qwen3 on bytes; its head is not tied to its embedding."""
    return Qwen3Config(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        head_dim=HEAD,
        tie_word_embeddings=False,
    )


def main() -> None:
    """Plan, initialise, and let the Trainer train."""
    parser = argparse.ArgumentParser(description=__doc__)
    options = {"width": 128, "depth": 4, "rows": 16, "length": 32, "steps": 40}
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    with torch.device("meta"):  # a base-sized copy, of which only names and shapes are read
        base_model = AutoModelForCausalLM.from_config(config(BASE.width, BASE.depth))
    recipe = cdp.Recipe.for_model(base_model, BASE, **VALUES)  # or Recipe.load("recipe.json")
    batch = args.rows * args.length  # tokens a step: count every process and accumulation step
    target = cdp.Scale(width=args.width, depth=args.depth, batch=batch, tokens=batch * args.steps)

    model = AutoModelForCausalLM.from_config(config(args.width, args.depth))
    plan = cdp.plan(model, recipe, target)
    plan.initialise(seed=0)
    optimizer = plan.adamw()
    scheduler = cdp.attach_schedule(optimizer, recipe.schedule, target.steps)

    sources = sorted(Path(os.__file__).parent.glob("*.py"))  # the standard library's
    text = bytearray(b"".join(path.read_bytes() for path in sources))
    rows = torch.frombuffer(text, dtype=torch.uint8).long().unfold(0, args.length, args.length)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=target.steps,
            per_device_train_batch_size=args.rows,
            max_grad_norm=0.0,  # clipping, on by default, would rescale what eps is planned for
            logging_steps=max(target.steps // 8, 1),
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        )
        dataset = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(
            model, arguments, train_dataset=dataset, optimizers=(optimizer, scheduler)
        )
        trainer.train()


if __name__ == "__main__":
    main()
