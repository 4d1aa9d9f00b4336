"""AdamW in one launch: torch's AdamW in all but speed."""

import copy
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import error_of
from models import make_plan, make_recipe, token_batches, train
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import completedp as cdp
from completedp.apply import adamw as module
from completedp.apply.adamw import AdamW
from completedp.bench.config import OptimizerBenchConfig
from completedp.bench.optimizer import bench_optimizer_text
from completedp.theory.schedule import Schedule

SHAPES = ((), (0,), (1,), (7,), (3, 5), (1023,), (1025,), (65, 64), (8193,), (2, 3, 4, 5))
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def make_groups(
    dtype: torch.dtype = torch.float32, device: str = "cpu", **changes: Any
) -> list[dict[str, Any]]:
    """A group for every shape, and one of two tensors; no two share a value. The same each time."""
    random, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    groups = []
    for shapes in (*((shape,) for shape in SHAPES), ((4,), (9, 2))):
        lr, eps, slow = (10.0 ** random.uniform((-4, -10, -3), (-2, -6, -1))).tolist()
        tensors = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
        group = {
            "params": [nn.Parameter(tensor) for tensor in tensors],
            "lr": lr,
            "eps": eps,
            "betas": (random.uniform(0, 0.99), 1 - slow),
            "weight_decay": (0.0, 0.1, 3.0)[len(groups) % 3],
        }
        groups.append(group | changes)
    return groups


def torch_adamw(groups: list[dict[str, Any]], **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups, **({"fused": True} | options))


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def set_gradients(optimizer: Optimizer, step: int, without: bool = True) -> None:
    """Gradients of that step, of sizes that differ; `without` some at times."""
    generator = torch.Generator().manual_seed(step)
    for index, p in enumerate(parameters(optimizer)):
        gradient = torch.randn(p.shape, generator=generator) * 10.0 ** (index % 4 - 2)
        p.grad = gradient.to(p.device, p.dtype)
        if without and (step + index) % 5 == 0:
            p.grad = None


def run(optimizer: Optimizer, steps: range | int, *others: Any, without: bool = True) -> None:
    for step in range(steps) if isinstance(steps, int) else steps:
        set_gradients(optimizer, step, without)
        optimizer.step()
        for other in others:
            other.step()


def everything(optimizer: Optimizer) -> list[Tensor]:
    """Parameters, and what the optimizer keeps of each."""
    kept = [optimizer.state[p] for p in parameters(optimizer)]
    return [
        *(p.detach() for p in parameters(optimizer)),
        *(state[name] for state in kept for name in ("step", "exp_avg", "exp_avg_sq")),
    ]


def assert_same(ours: Optimizer, theirs: Optimizer, rtol: float = 0.0) -> None:
    for one, two in zip(everything(ours), everything(theirs), strict=True):
        torch.testing.assert_close(one, two, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", TYPES)
def test_equals_torch_to_the_bit(dtype: torch.dtype) -> None:
    """On a CPU, 25 steps of many groups under a schedule, some gradients missing, are torch's."""
    ours, theirs = AdamW(make_groups(dtype)), torch_adamw(make_groups(dtype))
    for optimizer in (ours, theirs):
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        run(optimizer, 25, schedule)
    assert_same(ours, theirs)
    assert {p.dtype for p in everything(ours)} == {dtype, torch.float32}


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}])
def test_equals_torch_unfused(options: dict[str, bool]) -> None:
    """torch's other ways to run AdamW agree to the rounding of float64."""
    ours = AdamW(make_groups(torch.float64))
    theirs = torch_adamw(make_groups(torch.float64), fused=None, **options)
    run(ours, 25)
    run(theirs, 25)
    assert_same(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("changes", [{"maximize": True}, {"lr": torch.tensor(3e-3)}])
def test_options_of_groups(changes: dict[str, Any]) -> None:
    """`maximize` and rates that are tensors do what they do in torch."""
    ours, theirs = AdamW(make_groups(**changes)), torch_adamw(make_groups(**changes))
    for optimizer in (ours, theirs):
        run(optimizer, 5)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"] = group["lr"] * 0.5
        run(optimizer, range(5, 10))
    assert_same(ours, theirs)


def test_defaults_are_torchs() -> None:
    """Without values, parameters alone make the optimizer that torch makes."""
    ours, theirs = AdamW([nn.Parameter(torch.ones(3))]), torch_adamw([nn.Parameter(torch.ones(3))])
    run(ours, 5)
    run(theirs, 5)
    assert_same(ours, theirs)
    assert ours.defaults | {"fused": True} == theirs.defaults
    assert isinstance(ours, torch.optim.AdamW)
    assert cdp.AdamW is AdamW


def test_layouts_complex_and_named_parameters() -> None:
    """Transposed, sliced, channels-last and complex parameters are updated as torch does."""

    def odd() -> list[tuple[str, nn.Parameter]]:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(2, 4, 6, 2, 2, generator=generator)
        odd = (
            x.permute(3, 2, 0, 1),
            y[:, ::2],
            y.to(memory_format=torch.channels_last),
            x.to(torch.complex64),
        )
        return [(f"p{i}", nn.Parameter(tensor)) for i, tensor in enumerate(odd)]

    ours, theirs = AdamW(odd()), torch_adamw(odd(), fused=None)
    run(ours, 5, without=False)
    run(theirs, 5, without=False)
    assert_same(ours, theirs, rtol=1e-6)
    assert ours.param_groups[0]["param_names"] == ["p0", "p1", "p2", "p3"]


def test_groups_can_be_added() -> None:
    """A group added in the middle of training has its own values and counts its own steps."""
    later = {"lr": 0.5, "betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.0}
    found = []
    for make in (AdamW, torch_adamw):
        optimizer = make(make_groups())
        run(optimizer, 10)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(5, 2))], **later})
        run(optimizer, range(10, 20))
        found.append(optimizer)
    assert_same(*found)
    assert len({float(state["step"]) for state in found[0].state.values()}) > 1


def test_closures_are_called_with_gradients_on() -> None:
    """The closure's gradients are used, and its loss is what `step` returns."""
    p = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = AdamW([p], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == 5.0
    assert optimizer.step() is None


def saved(optimizer: Optimizer) -> dict[str, Any]:
    """Its state, through a file."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(state: dict[str, Any], weights: list[Tensor], make: Callable[..., Optimizer]) -> Any:
    optimizer = make([{"params": group["params"]} for group in make_groups()])
    with torch.no_grad():
        for p, value in zip(parameters(optimizer), weights, strict=True):
            p.copy_(value)
    optimizer.load_state_dict(state)
    return optimizer


@pytest.mark.parametrize("options", [{}, {"fused": None}, {"fused": None, "foreach": True}])
def test_torchs_state_goes_on_here(options: dict[str, Any]) -> None:
    """A state of torch's AdamW, however it ran, loads here with its values, and goes on."""
    through = torch_adamw(make_groups(), **options)
    run(through, 10)
    ours = resumed(saved(through), [p.detach().clone() for p in parameters(through)], AdamW)
    assert_same(ours, through)
    run(ours, range(10, 20))
    run(through, range(10, 20))
    assert_same(ours, through, rtol=1e-6 if options else 0.0)
    assert [g["lr"] for g in ours.param_groups] == [g["lr"] for g in through.param_groups]


def test_this_state_goes_on_in_torch() -> None:
    """A state of this AdamW has torch's keys, and torch's AdamW trains on from it."""
    through = AdamW(make_groups())
    run(through, 10)
    state = saved(through)
    theirs = torch_adamw(make_groups())
    run(theirs, 10)
    assert state["state"][0].keys() == theirs.state_dict()["state"][0].keys()
    assert state["param_groups"][0].keys() == theirs.state_dict()["param_groups"][0].keys()
    weights = [p.detach().clone() for p in parameters(through)]
    theirs = resumed(state, weights, torch_adamw)
    run(theirs, range(10, 20))
    again = resumed(saved(through), weights, AdamW)
    run(again, range(10, 20))
    run(through, range(10, 20))
    assert_same(again, through)
    assert_same(theirs, through, rtol=1e-6)


def test_copies_go_on() -> None:
    """A deep copy is an optimizer of its own that does the same."""
    ours = AdamW(make_groups())
    run(ours, 5)
    other = copy.deepcopy(ours)
    run(ours, range(5, 10))
    run(other, range(5, 10))
    assert_same(ours, other)
    assert parameters(ours)[0] is not parameters(other)[0]


def test_plans_train_the_same() -> None:
    """On a plan's groups, with an attached schedule and a checkpoint between, it is plan.adamw."""
    log2 = {"lr/type/qkv": 1.0, "eps/type/mlp_in": 2.0, "weight_decay/type/embedding": 1.0}
    batches, trained = token_batches(6), []
    for ours in (True, False):
        plan = make_plan(make_recipe(log2), width=32, depth=1, device="cpu")
        plan.initialise()
        optimizer: Any = AdamW(plan.param_groups()) if ours else plan.adamw()
        schedule = cdp.attach_schedule(optimizer, Schedule(warmup=0.5), 6)
        for batch in batches[:3]:
            train(plan.model, optimizer, [batch])
            schedule.step()
        state = copy.deepcopy(optimizer.state_dict())
        optimizer = plan.adamw() if ours else AdamW(plan.param_groups())  # the other goes on
        cdp.load_optimizer_state(optimizer, state)
        train(plan.model, optimizer, batches[3:])
        trained.append(plan.model.state_dict())
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": -1.0}, "lr = -1.0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": torch.tensor(-1.0)}, "lr = -1.0"),
        ({"lr": torch.ones(2)}, "lr = tensor"),
        ({"eps": -1e-8}, "eps = -1e-08"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"betas": (1.0, 0.9)}, "beta1 = 1.0 must be below 1"),
        ({"betas": (0.9, -0.1)}, "beta2 = -0.1"),
        ({"betas": (0.9,)}, "betas = (0.9,)"),
        ({"betas": 0.9}, "betas = 0.9"),
        ({"amsgrad": True}, "amsgrad"),
        ({"foreach": True}, "foreach"),
        ({"capturable": True}, "capturable"),
        ({"differentiable": True}, "differentiable"),
    ],
)
def test_bad_options_are_one_line(changes: dict[str, Any], words: str) -> None:
    """A mistake, for all groups or in one, is one line that quotes it."""
    assert words in error_of(AdamW, [nn.Parameter(torch.ones(2))], **changes)
    assert words in error_of(AdamW, [{"params": [nn.Parameter(torch.ones(2))], **changes}])


def test_sparse_gradients_are_refused() -> None:
    """A sparse gradient is one line."""
    p = nn.Parameter(torch.ones(4, 2))
    p.grad = torch.ones(4, 2).to_sparse()
    assert "sparse" in error_of(AdamW([p]).step)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch_adamw(make_groups(), fused=None, amsgrad=True), "amsgrad"),
        (lambda: torch.optim.SGD(make_groups(), momentum=0.9), "no step"),
        (lambda: torch_adamw([{"params": g["params"][::-1]} for g in make_groups()]), "shape"),
    ],
)
def test_other_states_are_refused(make: Callable[[], Optimizer], words: str) -> None:
    """A state with amsgrad, of another optimizer or another model is refused before it changes."""
    other, ours = make(), AdamW(make_groups())
    run(other, 2, without=False)
    run(ours, 2, without=False)
    before = copy.deepcopy(everything(ours))
    assert words in error_of(ours.load_state_dict, other.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(before, everything(ours), strict=True))


def test_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a CUDA graph's capture `step` says so, and leaves everything as it was."""
    ours = AdamW(make_groups())
    set_gradients(ours, 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "CUDA graph" in error_of(ours.step)
    assert not ours.state


def test_compiled_functions_can_step() -> None:
    """Called from a compiled function, `step` runs as it always does."""
    ours, theirs = AdamW(make_groups()), torch_adamw(make_groups())
    set_gradients(ours, 0, without=False)
    set_gradients(theirs, 0, without=False)
    torch.compile(lambda: ours.step(), backend="eager")()
    theirs.step()
    assert_same(ours, theirs)


def test_sharded_parameters(tmp_path: Path) -> None:
    """DTensors are updated shard by shard, and their moments are DTensors of the same placement."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = make_groups()[4:]
        theirs = torch_adamw(make_groups()[4:])
        for group in whole:
            group["params"] = [
                nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))
                for p in group["params"]
            ]
        ours = AdamW(whole)
        for step in range(5):
            set_gradients(theirs, step)
            for one, two in zip(parameters(ours), parameters(theirs), strict=True):
                placement = Shard(0) if step % 2 else Replicate()
                one.grad = two.grad
                if two.grad is not None:
                    one.grad = distribute_tensor(two.grad, mesh, [placement])
            ours.step()
            theirs.step()
        for one, two in zip(everything(ours), everything(theirs), strict=True):
            assert isinstance(one, DTensor) == (one.dim() > 0)
            assert torch.equal(one.full_tensor() if isinstance(one, DTensor) else one, two)
        ours.load_state_dict(copy.deepcopy(ours.state_dict()))
        ours.step()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_bench_optimizer() -> None:
    """`bench optimizer` times every way on the same groups and gives the ratios."""
    command = [sys.executable, "-m", "completedp", "bench", "optimizer", "--device", "cpu"]
    options = ["--shapes", "tiny", "--steps", "1", "--json"]
    result = subprocess.run([*command, *options], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    ways = {row["way"]: row["groups"] for row in found["rows"]}
    assert ways["torch fused, one group"] == 1
    assert ways["torch fused"] == ways["torch foreach"] == ways["completedp"] == 35
    assert all(row["ms"] > 0 for row in found["rows"])
    assert found["ratios"]["tiny"]["torch_fused_over_completedp"] > 0
    assert "tiny: " in bench_optimizer_text(found)
    assert "steps = 0" in error_of(OptimizerBenchConfig, steps=0)
    twice = error_of(OptimizerBenchConfig, shapes=("tiny", "tiny"))
    assert "must name each once" in twice


def compare_steps(dtype: torch.dtype, device: str, steps: int, **changes: Any) -> None:
    """Each step, from the state torch's fused AdamW has come to, ends where torch's does.

    The stated rounding: each number is off by one unit of its type or 1e-6 of the larger of what
    it is made of, as the kernel keeps in float32 what torch has in float64.
    """
    groups, same = make_groups(dtype, device, **changes), make_groups(dtype, device, **changes)
    for chosen in (groups, same):  # an address that is no multiple of 16
        chosen[5]["params"] = [nn.Parameter(torch.ones(100, device=device, dtype=dtype)[1:])]
    ours, theirs = AdamW(groups), torch_adamw(same)
    rtol = max(4 * torch.finfo(torch.float32).eps, torch.finfo(dtype).eps)
    for step in range(steps):
        for optimizer in (ours, theirs):
            set_gradients(optimizer, step)
            # Its square overflows, and stays so; torch's fused makes that nan on a GPU.
            if step == 1 and dtype != torch.float16 and device == "cpu":
                parameters(optimizer)[7].grad[0, 0] = 1e20  # type: ignore[index]
            optimizer.step()
        for one, two in zip(parameters(ours), parameters(theirs), strict=True):
            torch.testing.assert_close(one, two, rtol=rtol, atol=1e-7)
            for name, value in theirs.state[two].items():
                torch.testing.assert_close(
                    ours.state[one][name].to(value.device), value, rtol=rtol, atol=3e-5
                )
            one.data.copy_(two.data)
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))


def interpreted() -> bool:
    return module.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(not interpreted(), reason="needs triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", module._TYPES)
@pytest.mark.parametrize("changes", [{}, {"maximize": True}, {"lr": torch.tensor(3e-3)}])
def test_interpreted_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    """The kernel, run by Triton's interpreter on a CPU, steps as torch's fused AdamW."""
    monkeypatch.setattr(module, "_fits", lambda p, g, m, v: True)
    if "lr" in changes:  # by its address, as one on a GPU
        monkeypatch.setattr(module, "_device_lr", lambda lr, device: lr)
    compare_steps(dtype, "cpu", 8, **changes)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("changes", [{}, {"maximize": True}, {"lr": torch.tensor(3e-3)}])
def test_gpu_equals_torchs_fused(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    """On a GPU each of 25 steps is that of torch's fused AdamW but for the stated rounding."""
    changes = {name: x.cuda() if name == "lr" else x for name, x in changes.items()}
    compare_steps(dtype, "cuda", 25, **changes)


@pytest.mark.gpu
@needs_gpu
def test_gpu_overflow() -> None:
    """A gradient whose square overflows stops its own weight for good, as in torch's foreach."""
    weights = [nn.Parameter(torch.ones(4, device="cuda")) for _ in range(2)]
    ours, theirs = AdamW(weights[:1]), torch_adamw(weights[1:], fused=False, foreach=True)
    for step in range(5):
        for optimizer, weight in ((ours, weights[0]), (theirs, weights[1])):
            weight.grad = torch.full_like(weight, 0.1)
            if step == 1:
                weight.grad[0] = 1e20
            optimizer.step()
        torch.testing.assert_close(*weights)
    assert ours.state[weights[0]]["exp_avg_sq"][0] == torch.inf


@pytest.mark.gpu
@needs_gpu
def test_gpu_sees_a_gradient_change_its_layout() -> None:
    """A gradient that keeps its address but not its strides is read by its strides."""
    weights = [nn.Parameter(torch.ones(8, 8, device="cuda")) for _ in range(2)]
    ours, theirs = AdamW(weights[:1]), torch_adamw(weights[1:], fused=False, foreach=True)
    rising = torch.arange(64.0, device="cuda").reshape(8, 8) - 9
    for gradient in (rising, rising.T, rising):
        for optimizer, weight in ((ours, weights[0]), (theirs, weights[1])):
            weight.grad = gradient
            optimizer.step()
        torch.testing.assert_close(*weights)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_gpu_is_one_launch_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of groups on a GPU, new gradients each step, are one launch and no sync."""
    launches = []
    real = module._launch
    monkeypatch.setattr(module, "_launch", lambda *key: (launches.append(key), real(*key)))
    tensors = [nn.Parameter(torch.randn(1000 + 8 * i, device="cuda")) for i in range(300)]
    lr = torch.tensor(1e-3, device="cuda")
    ours = AdamW([{"params": [p], "lr": lr if i % 2 else 1e-4 * i} for i, p in enumerate(tensors)])
    before = [p.detach().clone() for p in tensors]
    for step in range(4):
        for p in tensors:
            p.grad = torch.randn_like(p)
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            ours.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(launches) == 4
    assert sum(torch.equal(p, old) for p, old in zip(tensors, before, strict=True)) == 1  # lr = 0
