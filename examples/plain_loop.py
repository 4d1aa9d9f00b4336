"""A plain PyTorch loop on a Hugging Face Llama, its hyperparameters carried from a smaller one.

python examples/plain_loop.py  # seconds on a CPU
python examples/plain_loop.py --width 1024 --depth 16 --batch 131072 --tokens 1000000000 \
    --length 1024 --device cuda
"""

import argparse
import os
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import completedp as cdp

HEAD = 32  # width grows by more heads of the same size
BASE = cdp.Scale(width=64, depth=2, batch=256, tokens=256 * 40)  # where the values were tuned
VALUES = {"lr": 2**-7, "weight_decay": 0.1}


def llama(width: int, depth: int, length: int) -> LlamaForCausalLM:
    """An ordinary Llama on bytes; its head is not tied to its embedding."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        max_position_embeddings=length,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    """Plan, initialise, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=512, help="tokens a step")
    parser.add_argument("--tokens", type=int, default=512 * 40, help="tokens in all")
    parser.add_argument("--length", type=int, default=32, help="tokens a sequence")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    with torch.device("meta"):  # a base-sized copy, of which only names and shapes are read
        base_model = llama(BASE.width, BASE.depth, args.length)
    recipe = cdp.Recipe.for_model(base_model, BASE, **VALUES)  # or Recipe.load("recipe.json")
    target = cdp.Scale(width=args.width, depth=args.depth, batch=args.batch, tokens=args.tokens)

    model = llama(args.width, args.depth, args.length).to(args.device)
    plan = cdp.plan(model, recipe, target)
    plan.initialise(seed=0)
    optimizer = plan.adamw()
    scheduler = cdp.attach_schedule(optimizer, recipe.schedule, target.steps)
    print(plan)

    sources = sorted(Path(os.__file__).parent.glob("*.py"))  # the standard library's
    text = bytearray(b"".join(path.read_bytes() for path in sources))
    data = torch.frombuffer(text, dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(0)
    rows, window = args.batch // args.length, torch.arange(args.length)
    for step in range(target.steps):
        starts = torch.randint(len(data) - args.length, (rows, 1), generator=generator)
        tokens = data[starts + window].to(args.device)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % max(target.steps // 8, 1) == 0 or step == target.steps - 1:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
