"""What changes in a nanoGPT-style script: three lines, marked below (and the head is untied).

python examples/nanogpt.py  # seconds on a CPU; with width and depth: nanogpt.py 768 12
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import completedp as cdp

HEAD, LENGTH, ROWS, STEPS = 32, 32, 16, 40
BASE = cdp.Scale(width=64, depth=2, batch=256, tokens=256 * 40)  # where the values were tuned
WIDTH, DEPTH = (int(x) for x in sys.argv[1:] or (128, 4))


class Attention(nn.Module):
    """Causal, its queries, keys and values in one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).unflatten(-1, (3, -1, HEAD)).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.ModuleDict):
    """Two residual branches."""

    def __init__(self, width: int) -> None:
        wide = {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        norms = {name: nn.LayerNorm(width) for name in ("ln_1", "ln_2")}
        super().__init__(norms | {"attn": Attention(width), "mlp": nn.ModuleDict(wide)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self["attn"](self["ln_1"](x))
        return x + self["mlp"]["c_proj"](F.gelu(self["mlp"]["c_fc"](self["ln_2"](x))))


class GPT(nn.Module):
    """Bytes to logits."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(256, width), "wpe": nn.Embedding(LENGTH, width)}
        blocks = {"h": nn.Sequential(*(Block(width) for _ in range(depth)))}
        self.transformer = nn.ModuleDict(parts | blocks | {"ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        wte, wpe, h, ln_f = self.transformer.values()
        return self.lm_head(ln_f(h(wte(tokens) + wpe(torch.arange(tokens.shape[1])))))


recipe = cdp.Recipe.for_model(GPT(BASE.width, BASE.depth), BASE, lr=2**-7, weight_decay=0.1)
target = cdp.Scale(width=WIDTH, depth=DEPTH, batch=ROWS * LENGTH, tokens=ROWS * LENGTH * STEPS)
model = GPT(WIDTH, DEPTH)
plan = cdp.plan(model, recipe, target)  # 1. new
plan.initialise(seed=0)  # 2. was: model.apply(init_weights)
optimizer = plan.adamw()  # 3. was: torch.optim.AdamW(model.parameters(), lr=...)
scheduler = cdp.attach_schedule(optimizer, recipe.schedule, target.steps)
torch.manual_seed(0)
text = b"".join(path.read_bytes() for path in sorted(Path(torch.__file__).parent.glob("*.py")))
data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
for step in range(STEPS):
    tokens = data[torch.randint(len(data) - LENGTH, (ROWS, 1)) + torch.arange(LENGTH + 1)]
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 8 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.3f}")
