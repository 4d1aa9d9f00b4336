"""FSDP2 (fully_shard) on a Hugging Face Llama that is never whole on any device.

torchrun --nproc-per-node 2 examples/fsdp2.py  # on CPUs with gloo, on GPUs with nccl
torchrun --nproc-per-node 8 examples/fsdp2.py --width 4096 --depth 32 --length 2048 --steps 10000
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import completedp as cdp

HEAD = 32  # width grows by more heads of the same size
BASE = cdp.Scale(width=64, depth=2, batch=256, tokens=256 * 40)  # where the values were tuned
VALUES = {"lr": 2**-7, "weight_decay": 0.1}


def llama(width: int, depth: int) -> LlamaForCausalLM:
    """An ordinary Llama on bytes, on the meta device: names and shapes, no memory."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth}
    config = LlamaConfig(vocab_size=256, num_attention_heads=width // HEAD, **sizes)
    config.tie_word_embeddings = False
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def main() -> None:
    """Shard, plan, initialise, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    options = {"width": 128, "depth": 4, "rows": 8, "length": 32, "steps": 40}
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    recipe = cdp.Recipe.for_model(llama(BASE.width, BASE.depth), BASE, **VALUES)
    batch = ranks * args.rows * args.length  # tokens a step, of all ranks together
    sizes = {"batch": batch, "tokens": batch * args.steps}
    target = cdp.Scale(width=args.width, depth=args.depth, **sizes)

    model = llama(args.width, args.depth)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device=device)
    # Buffers that are computed, not trained, are lost with to_empty: compute them again.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)
    plan = cdp.plan(model, recipe, target)
    plan.initialise(seed=0)  # each rank keeps its part; the draw is the same for any number of them
    optimizer = plan.adamw()
    scheduler = cdp.attach_schedule(optimizer, recipe.schedule, target.steps)
    text = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator, window = torch.Generator().manual_seed(rank), torch.arange(args.length)
    for step in range(target.steps):
        starts = torch.randint(len(data) - args.length, (args.rows, 1), generator=generator)
        tokens = data[starts + window].to(device)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if rank == 0 and (step % max(target.steps // 8, 1) == 0 or step == target.steps - 1):
            print(f"step {step} loss {loss.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
