"""The loss: whole and in chunks the same, equal to torch's, and never with all logits at once."""

from typing import Any

import models  # noqa: F401  (one thread)
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from completedp.lm import loss as loss_module
from completedp.lm.loss import language_model_loss

dimensions = st.integers(1, 7)


def problem(
    batch: int = 2,
    length: int = 9,
    width: int = 4,
    vocab: int = 23,
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[dict[str, Tensor], Tensor]:
    """Leaves that want gradients (features, weight, bias), and targets."""
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(dtype).requires_grad_()

    leaves = {"features": leaf(batch, length, width), "weight": leaf(vocab, width)}
    if bias:
        leaves["bias"] = leaf(vocab)
    return leaves, torch.randint(vocab, (batch, length), generator=generator)


def value_and_gradients(
    leaves: dict[str, Tensor], targets: Tensor, scale: float = 1.0, **options: Any
) -> tuple[float, float, dict[str, Tensor]]:
    found = language_model_loss(targets=targets, **leaves, **options)
    gradients = torch.autograd.grad(scale * found.total, list(leaves.values()))
    return found.total.item(), found.cross_entropy.item(), dict(zip(leaves, gradients, strict=True))


@given(
    batch=dimensions,
    length=dimensions,
    width=dimensions,
    vocab=st.integers(1, 40),
    bias=st.booleans(),
    chunk=st.integers(1, 60),
    z_loss=st.sampled_from([0.0, 1e-4, 0.3]),
    seed=st.integers(0, 100),
)
def test_chunked_equals_whole(
    batch: int,
    length: int,
    width: int,
    vocab: int,
    bias: bool,
    chunk: int,
    z_loss: float,
    seed: int,
) -> None:
    """For any shape and chunk the value and all gradients are the whole form's, to 1e-12."""
    leaves, targets = problem(batch, length, width, vocab, bias, seed=seed)
    whole = value_and_gradients(leaves, targets, chunk=0, z_loss=z_loss, scale=3.0)
    parts = value_and_gradients(leaves, targets, chunk=chunk, z_loss=z_loss, scale=3.0)
    assert parts[:2] == pytest.approx(whole[:2], rel=1e-12, abs=1e-12)
    for name, gradient in whole[2].items():
        torch.testing.assert_close(parts[2][name], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [None, 0, 1, 5, 18, 1000])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_torchs_cross_entropy(chunk: int | None, z_loss: float, bias: bool) -> None:
    """The total is F.cross_entropy plus z_loss times the mean squared logsumexp."""
    leaves, targets = problem(bias=bias)
    logits = F.linear(*leaves.values()).flatten(0, 1)
    cross_entropy = F.cross_entropy(logits, targets.flatten())
    total = cross_entropy + z_loss * logits.logsumexp(-1).square().mean()
    expected = torch.autograd.grad(total, list(leaves.values()))
    found = value_and_gradients(leaves, targets, chunk=chunk, z_loss=z_loss)
    assert found[:2] == pytest.approx((total.item(), cross_entropy.item()), rel=1e-12)
    for name, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(found[2][name], gradient, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("chunk", [0, 4])
def test_gradients_are_right(chunk: int) -> None:
    """The written gradients agree with finite differences."""
    leaves, targets = problem(1, 5, 3, 6)

    def total(*tensors: Tensor) -> Tensor:
        named = dict(zip(leaves, tensors, strict=True))
        return language_model_loss(targets=targets, **named, z_loss=0.2, chunk=chunk).total

    assert torch.autograd.gradcheck(total, tuple(leaves.values()))


@pytest.mark.parametrize("frozen", ["features", "weight", "bias"])
def test_frozen_inputs_get_no_gradient(frozen: str) -> None:
    """An input that wants no gradient gets none, and the others keep theirs."""
    leaves, targets = problem()
    _, _, expected = value_and_gradients(leaves, targets, chunk=0)
    leaves[frozen].requires_grad_(False)
    language_model_loss(targets=targets, **leaves, chunk=4).total.backward()
    for name, leaf in leaves.items():
        if name == frozen:
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad, expected[name], rtol=1e-11, atol=1e-12)


class Sizes(TorchDispatchMode):
    """Notes the shape of every tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()
        self.operations: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        self.operations.append(str(function))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.shapes.add(tuple(tensor.shape))
        return out

    @property
    def largest(self) -> int:
        return max(torch.Size(shape).numel() for shape in self.shapes)


@pytest.mark.parametrize(("chunk", "whole"), [(8, False), (0, True)])
def test_logits_are_never_whole(chunk: int, whole: bool) -> None:
    """In chunks no tensor of positions x vocabulary is made, forward or backward; whole, one is."""
    leaves, targets = problem(4, 16, 4, 101)
    with Sizes() as seen:
        language_model_loss(targets=targets, **leaves, z_loss=0.1, chunk=chunk).total.backward()
    assert (seen.largest >= 64 * 101) == whole
    if not whole:
        assert seen.largest <= 8 * 101


@pytest.mark.parametrize("chunk", [0, 5])
def test_works_without_gradients(chunk: int) -> None:
    """Under no_grad the value is the same and carries no graph."""
    leaves, targets = problem()
    expected = value_and_gradients(leaves, targets, chunk=0, z_loss=0.1)
    with torch.no_grad():
        found = language_model_loss(targets=targets, **leaves, z_loss=0.1, chunk=chunk)
    assert (found.total.item(), found.cross_entropy.item()) == pytest.approx(expected[:2])
    assert not found.total.requires_grad


def test_no_gradient_work_without_gradients() -> None:
    """Under no_grad no gradient is computed: one matrix product for each chunk and no more."""
    leaves, targets = problem(bias=False)
    with torch.no_grad(), Sizes() as seen:
        language_model_loss(targets=targets, **leaves, chunk=6)
    products = [name for name in seen.operations if ".mm" in name or "addmm" in name]
    assert len(products) == 3


def test_cross_entropy_is_for_reports_only() -> None:
    """The reported cross-entropy carries no gradient, in either form."""
    leaves, targets = problem()
    for chunk in (0, 4):
        found = language_model_loss(targets=targets, **leaves, z_loss=0.1, chunk=chunk)
        assert not found.cross_entropy.requires_grad
        assert found.total.requires_grad
        assert found.total > found.cross_entropy


def test_chunk_is_chosen_by_the_number_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a chunk size, few logits are made whole and many in chunks of about the limit."""
    leaves, targets = problem(4, 16, 4, 101)
    largest = {}
    for limit in (64 * 101, 16 * 101):
        monkeypatch.setattr(loss_module, "CHUNK_LOGITS", limit)
        monkeypatch.setattr(loss_module, "CHUNK_POSITIONS", 1)
        with Sizes() as seen:
            language_model_loss(targets=targets, **leaves)
        largest[limit] = seen.largest
    assert largest == {64 * 101: 64 * 101, 16 * 101: 16 * 101}


@pytest.mark.parametrize("chunk", [0, 5])
def test_narrow_features_and_wide_weights(chunk: int) -> None:
    """With bfloat16 features and float32 weights the loss is float32, gradients as their inputs."""
    leaves, targets = problem(dtype=torch.float32)
    exact = value_and_gradients(leaves, targets, chunk=0)
    leaves["features"] = leaves["features"].detach().bfloat16().requires_grad_()
    found = language_model_loss(targets=targets, **leaves, chunk=chunk)
    assert found.total.dtype == torch.float32
    found.total.backward()
    assert leaves["features"].grad.dtype == torch.bfloat16
    assert leaves["weight"].grad.dtype == torch.float32
    assert found.total.item() == pytest.approx(exact[0], rel=2e-2)
    torch.testing.assert_close(leaves["weight"].grad, exact[2]["weight"], rtol=0.05, atol=5e-3)


def test_large_logits_stay_finite() -> None:
    """Logits of thousands neither overflow nor lose the loss."""
    leaves, targets = problem(bias=False)
    leaves = {name: (leaf.detach() * 100).requires_grad_() for name, leaf in leaves.items()}
    whole = value_and_gradients(leaves, targets, chunk=0)
    parts = value_and_gradients(leaves, targets, chunk=4)
    assert parts[0] == pytest.approx(whole[0])
    assert all(torch.isfinite(gradient).all() for gradient in parts[2].values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("vocabulary", [257, 4096, 50_257])
def test_gpu_fused_softmax(vocabulary: int, compile: bool) -> None:
    """On a GPU the one-pass softmax gives the plain loss and its gradients, slots and all."""
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"generator": generator, "device": "cuda"}
    features = torch.randn(3, 2, 20, 64, **options).bfloat16().requires_grad_()
    weight = (torch.randn(3, vocabulary, 64, **options) * 0.2).requires_grad_()
    targets = torch.randint(vocabulary, (3, 2, 20), **options)
    loss = torch.compile(language_model_loss, dynamic=False) if compile else language_model_loss
    found = []
    for chunk in (0, 40, 16):
        made = loss(features, weight, targets, z_loss=0.01, chunk=chunk)
        grads = torch.autograd.grad(made.total.sum(), (features, weight))
        found.append([made.total, made.cross_entropy, *(g.float() for g in grads)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=0.02, atol=2e-3 * one.abs().max().item())
