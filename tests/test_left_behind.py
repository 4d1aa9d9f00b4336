"""What a forward pass leaves in its model, for whatever trains there next."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from completedp.training.left_behind import left_behind

BATCH = (torch.arange(6).reshape(2, 3), torch.ones(2))


class Keeps(nn.Module):
    """A table, and something that it keeps of what it looked up."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner, self.what = nn.Embedding(8, 4), what
        self.count, self.first, self.size, self.norm = 0, True, None, None
        self.seen: list[float] = []
        self.aside: dict[str, Any] = {"steps": {}}
        self.mean = torch.zeros(4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inner(tokens)
        mean = x.detach().mean((0, 1))
        match self.what:
            case "count":
                self.count += 1
            case "first":
                self.first = False
            case "seen":
                self.seen.append(float(mean.sum()))
            case "aside":
                self.aside["steps"]["n"] = self.aside["steps"].get("n", 0) + 1
            case "mean":
                self.mean = 0.9 * self.mean + 0.1 * mean
            case "norm":  # of the first batch, for ever
                self.norm = x.detach().std() if self.norm is None else self.norm
            case "average":
                self.average.lerp_(mean, 0.1)  # type: ignore[operator]
            case "size":
                self.size = tokens.shape[-1]
            case "penalty":
                self.mean = x.square().mean((0, 1))  # with its graph, for the loss
            case "table":
                self.aside.setdefault("table", torch.arange(tokens.shape[-1]))
        return x


def loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return (model(tokens).sum() - targets.sum()).square()


@pytest.mark.parametrize("what", ["count", "first", "seen", "aside", "mean", "norm", "average"])
def test_what_a_later_pass_may_read_is_named(what: str) -> None:
    """Counts, flags, lists, averages and values of a first batch are seen, wherever they are."""
    kind = "a buffer" if what == "average" else "an attribute"
    model = Keeps(what)
    with torch.device("meta"):
        model.inner = nn.Embedding(8, 4)
    assert left_behind(nn.Sequential(model), loss, BATCH) == f"0.{what}, {kind}"
    assert (model.count, model.seen, model.norm) == (0, [], None)  # a copy was run


@pytest.mark.parametrize("what", ["nothing", "size", "penalty", "table"])
def test_what_the_next_pass_writes_anew_is_no_matter(what: str) -> None:
    """What depends on the last pass alone, or on shapes, leads from no trial to another."""
    assert left_behind(Keeps(what), loss, BATCH) == ""
