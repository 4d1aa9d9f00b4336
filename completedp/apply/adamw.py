"""AdamW that updates every tensor in one launch, however many groups there are.

torch's fused AdamW launches at least once for each group, and values per module make a group of
every tensor. Here the values are a table with a row for each tensor: its addresses, its size, its
learning rate, decay, betas, eps and bias corrections. A Triton program looks up the tensor that
its block is of, so groups cost nothing.
"""

# triton comes with the CUDA builds of torch alone, so a type checker may not find it.
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from completedp.common.checks import check_number, check_one_of
from completedp.common.errors import CompletedpError

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

Implementation = Literal["auto", "completedp", "torch"]
_BLOCK = 1024
"""Elements of a program."""
_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What the kernel takes; it computes in float32."""
_PLAIN = (Tensor, torch.nn.Parameter)
_ONE = torch.ones((), device="cpu", dtype=torch.float32)
_MOMENTS = ("exp_avg", "exp_avg_sq")
_UNSUPPORTED = ("amsgrad", "foreach", "capturable", "differentiable")
_TORCH_ONLY = {*_UNSUPPORTED, "fused"}


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with the same arguments, groups and state, in one launch a step.

    Values have torch's units: lr and eps per step, weight_decay as a multiple of lr.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = AdamW([{"params": [weight], "lr": 0.1, "weight_decay": 0.0}])
    >>> weight.grad = torch.ones(2)
    >>> optimizer.step()
    >>> [round(value, 3) for value in weight.tolist()]
    [0.9, 0.9]

    One launch for each device and type of parameter, and one more for tensors whose addresses are
    not multiples of 16; `step` does not wait for it. Contiguous CUDA tensors of float32, bfloat16
    and float16 go this way, where there is Triton; all others are torch's to update, group by
    group, on a CPU fused. Results equal torch's fused AdamW: on a CPU to the bit, on a GPU but for
    rounding, as the kernel computes in float32 what torch does partly in float64. Where the square
    of a gradient overflows, that one weight stands still, as with torch's foreach; torch's fused
    makes it nan.

    Checkpoints go from torch's AdamW to this and back, of FSDP2's DTensors too: each rank updates
    its own shards. Learning rates may be floats or tensors, and schedulers may change them.

    Step counts and bias corrections are on the host, as in torch without `capturable`: a CUDA graph
    would repeat those of one step, so capturing `step` is refused. Under `torch.compile` it runs
    as it is, outside the graph. amsgrad is refused.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        values = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        other = {"amsgrad": amsgrad, "foreach": foreach, "capturable": capturable}
        _check(values | other | {"differentiable": differentiable})
        super().__init__(params, **values, maximize=maximize)  # `fused` has no say: this is fused
        self._known: dict[Tensor, tuple[Any, ...]] = {}
        """What a look at each parameter gave, and what it looked like then: looks take time."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, with the values checked."""
        _check(self.defaults | param_group)
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            if group.get("amsgrad"):
                raise CompletedpError("the optimizer state is of amsgrad, which is not supported")
            for parameter in group["params"]:  # beside others there may be another optimizer's
                _check_state(parameter, state["state"].get(parameter, {}))
        super().__setstate__(state)
        self._known = {}
        for group in self.param_groups:  # how torch's AdamW ran says nothing about this one
            group.update(foreach=None, capturable=False, differentiable=False, fused=None)
            for parameter in group["params"]:
                if moments := self.state.get(parameter):  # torch's fused counts on the device
                    moments["step"] = moments["step"].to("cpu", torch.float32)

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise CompletedpError(
                "AdamW.step cannot be captured in a CUDA graph, which would repeat the values of "
                "one step: use torch.optim.AdamW(capturable=True)"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        launches: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for group in self.param_groups:
            rest = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                p, g, m, v, count = self._tensors(parameter)
                places = (p.data_ptr(), g.data_ptr(), m.data_ptr(), v.data_ptr())
                layout = (p.dtype, g.dtype, p.is_contiguous(), g.is_contiguous(), p.numel())
                now = (places, layout)
                known = self._known.get(parameter)
                if known is None or known[0] != now:
                    known = self._known[parameter] = (now, *_look(p, g, m, v, places))
                _, place, launch = known
                if launch is None:
                    rest.append((p, g, m, v, count))
                else:
                    launches.setdefault(launch, []).append((place, count, group))
            if rest:
                _by_torch(group, rest)
        for key, rows in launches.items():
            _launch(*key, rows)
        return loss

    def _tensors(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Of this rank: weights, gradient, moments, step count."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if gradient.is_sparse:
            raise CompletedpError("AdamW does not take sparse gradients")
        if not state:
            state["step"] = torch.zeros((), device="cpu", dtype=torch.float32)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        if type(parameter) in _PLAIN:
            return parameter, gradient, state["exp_avg"], state["exp_avg_sq"], state["step"]
        placements = getattr(parameter, "placements", None)
        if placements is not None and gradient.placements != placements:  # type: ignore[attr-defined]
            gradient = gradient.redistribute(parameter.device_mesh, placements)  # type: ignore[attr-defined]
        whole = (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
        return *(t.to_local() if hasattr(t, "to_local") else t for t in whole), state["step"]  # type: ignore[attr-defined]


def make_adamw(
    groups: list[dict[str, Any]], implementation: Implementation = "auto", **options: Any
) -> torch.optim.AdamW:
    """The one above where it is as good as torch's, or better; torch's for options it alone has."""
    check_one_of("implementation", implementation, get_args(Implementation))
    for name in options:
        check_one_of("option", name, ("maximize", *sorted(_TORCH_ONLY)))
    parameters = [p for group in groups for p in group["params"]]
    if implementation == "auto":
        ours = not _TORCH_ONLY & options.keys() and suits(parameters)
        implementation = "completedp" if ours else "torch"
    if implementation == "completedp":
        return AdamW(groups, **options)
    if not _TORCH_ONLY & options.keys() - {"amsgrad"}:
        # torch's fused one on a CPU goes by addresses without a look at the strides.
        options["fused"] = all(p.is_cuda or (p.is_cpu and p.is_contiguous()) for p in parameters)
    return torch.optim.AdamW(groups, **options)


def suits(parameters: Iterable[Tensor]) -> bool:
    """Whether this is as quick as torch's fused AdamW for all of these, and as exact."""
    return all(
        p.is_cpu or (triton is not None and p.is_cuda and p.dtype in _TYPES) for p in parameters
    )


def _check(values: dict[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if values.get(name):
            raise CompletedpError(f"AdamW does not support {name}: use torch.optim.AdamW for it")
    for name in ("lr", "eps", "weight_decay"):
        value = values[name]
        if isinstance(value, Tensor) and name == "lr" and value.numel() == 1:
            value = value.item()
        check_number(name, value, low=0)
    betas = values["betas"]
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise CompletedpError(f"betas = {betas!r} must be two numbers")
    for name, beta in zip(("beta1", "beta2"), betas, strict=True):
        check_number(name, beta, low=0, high=1)
        if beta == 1:
            raise CompletedpError(f"{name} = {beta!r} must be below 1")


def _check_state(parameter: Tensor, state: dict[str, Any]) -> None:
    """The state of one parameter must be AdamW's, and of its shape."""
    if not state:
        return
    for name in ("step", *_MOMENTS):
        if name not in state:
            raise CompletedpError(f"the optimizer state has no {name}: it is not AdamW's")
        if name != "step" and state[name].shape != parameter.shape:
            raise CompletedpError(
                f"the optimizer state is of another model: {name} has shape "
                f"{list(state[name].shape)} where the parameter has {list(parameter.shape)}"
            )


def _look(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, places: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[Any, ...] | None]:
    """Addresses and size, and which launch they go with if the kernel takes them."""
    aligned = all(place % 16 == 0 for place in places)
    launch = (p.device, p.dtype, aligned) if _fits(p, g, m, v) else None
    return (*places, p.numel()), launch


def _fits(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> bool:
    """Whether the kernel takes these."""
    return (
        triton is not None
        and p.is_cuda
        and p.dtype in _TYPES
        and p.dtype == g.dtype == m.dtype == v.dtype
        and p.device == g.device == m.device == v.device
        and p.numel() == g.numel() == m.numel() == v.numel()
        and _in_order(p, g, m, v)
    )


def _in_order(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> bool:
    """Whether element i of one lies where element i of the others does."""
    return p.is_contiguous() and g.is_contiguous() and m.is_contiguous() and v.is_contiguous()


def _by_torch(group: dict[str, Any], tensors: list[tuple[Tensor, ...]]) -> None:
    """What the kernel does not take, as torch does it: on a CPU fused, elsewhere as it chooses."""
    values = {name: group[name] for name in ("lr", "weight_decay", "eps", "maximize")}
    values |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "amsgrad": False}
    chosen: dict[torch.dtype | None, list[tuple[Tensor, ...]]] = {}
    for p, g, m, v, step in tensors:
        # The fused one goes by addresses without a look at the strides.
        fused = p.is_cpu and p.is_floating_point() and _in_order(p, g, m, v)
        chosen.setdefault(p.dtype if fused else None, []).append((p, g, m, v, step))
    for dtype, some in chosen.items():
        p, g, m, v, steps = (list(column) for column in zip(*some, strict=True))
        if dtype is None:
            adamw(p, g, m, v, [], steps, has_complex=any(t.is_complex() for t in p), **values)
        else:
            torch._foreach_add_(steps, _ONE, alpha=1.0)
            torch._fused_adamw_(p, g, m, v, [], steps, **values)


def _launch(
    device: torch.device, dtype: torch.dtype, aligned: bool, rows: list[tuple[Any, ...]]
) -> None:
    """Count the steps, write the table, send it in one copy, and run the kernel."""
    places, steps, groups = zip(*rows, strict=True)
    torch._foreach_add_(steps, _ONE, alpha=1.0)
    # torch gives pinned memory out again only after the copy from it is done.
    pin = device.type == "cuda"
    table = torch.empty((11, len(rows)), device="cpu", dtype=torch.int64, pin_memory=pin)
    whole = table.numpy()
    whole[:5] = np.array(places, dtype=np.uint64).T.view(np.int64)
    blocks = -(-whole[4] // _BLOCK)
    whole[5] = np.cumsum(blocks) - blocks  # the first program of each tensor
    lrs = [_device_lr(group["lr"], device) for group in groups]
    whole[6] = [0 if lr is None else lr.data_ptr() for lr in lrs]
    values = np.array([_values(*pair) for pair in zip(groups, lrs, strict=True)]).T
    lr, decay, beta1, beta2, eps, sign = values
    time = np.array([step.item() for step in steps])
    whole[7:].view(np.float32).reshape(8, -1)[:] = (
        lr,
        decay,
        1 - beta1,  # and not beta1: near 1, float32 would lose digits of it
        1 - beta2,
        eps,
        sign,
        1 / (1 - beta1**time),
        1 / np.sqrt(1 - beta2**time),
    )
    programs = int(blocks.sum())
    if not programs:
        return
    on_device = table.to(device, non_blocking=True)
    with torch.cuda.device_of(on_device):
        _kernel[(programs,)](
            on_device,
            len(rows),
            TYPE=getattr(tl, _TYPES[dtype]),
            ALIGNED=aligned,
            BLOCK=_BLOCK,
            enable_fp_fusion=True,
        )


def _device_lr(lr: float | Tensor, device: torch.device) -> Tensor | None:
    """A rate that is on a device stays there: the kernel reads it by its address."""
    if isinstance(lr, Tensor) and lr.is_cuda:
        return lr.to(device, torch.float32, non_blocking=True)
    return None


def _values(group: dict[str, Any], device_lr: Tensor | None) -> tuple[float, ...]:
    """lr, weight decay, betas, eps, and the sign of the gradient."""
    lr = float(group["lr"]) if device_lr is None else 0.0
    sign = -1.0 if group["maximize"] else 1.0
    return lr, group["weight_decay"], *group["betas"], group["eps"], sign


if triton is not None:

    @triton.jit(do_not_specialize=["count"])
    def _kernel(  # Triton reads annotations as its own, so there are none
        table,
        count,
        TYPE: tl.constexpr,
        ALIGNED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        program = tl.program_id(0)
        first = table + 5 * count
        row, end = program * 0, program * 0 + count
        while end - row > 1:  # the last tensor that starts at this program or before
            middle = (row + end) // 2
            after = tl.load(first + middle) > program
            end = tl.where(after, middle, end)
            row = tl.where(after, row, middle)
        begin = (program - tl.load(first + row)) * BLOCK
        left = tl.load(table + 4 * count + row) - begin
        p = _pointer(table + row, begin, TYPE, ALIGNED)
        g = _pointer(table + count + row, begin, TYPE, ALIGNED)
        m = _pointer(table + 2 * count + row, begin, TYPE, ALIGNED)
        v = _pointer(table + 3 * count + row, begin, TYPE, ALIGNED)
        values = (table + 7 * count).to(tl.pointer_type(tl.float32)) + row
        lr = tl.load(values)
        lr_address = tl.load(table + 6 * count + row)
        if lr_address != 0:
            lr = tl.load(lr_address.to(tl.pointer_type(tl.float32)))
        decay = lr * tl.load(values + count)
        weight1 = tl.load(values + 2 * count)
        weight2 = tl.load(values + 3 * count)
        eps = tl.load(values + 4 * count)
        sign = tl.load(values + 5 * count)
        size = lr * tl.load(values + 6 * count)
        root = tl.load(values + 7 * count)
        at = tl.arange(0, BLOCK)
        if left >= BLOCK:  # without a mask, loads are of many elements at once
            _update(p, g, m, v, at, None, decay, weight1, weight2, eps, sign, size, root)
        else:
            _update(p, g, m, v, at, at < left, decay, weight1, weight2, eps, sign, size, root)

    @triton.jit
    def _pointer(cell, begin, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
        start = tl.load(cell).to(tl.pointer_type(TYPE)) + begin
        return tl.multiple_of(start, 16) if ALIGNED else start

    @triton.jit
    def _update(p, g, m, v, at, inside, decay, weight1, weight2, eps, sign, size, root):
        gradient = tl.load(g + at, mask=inside).to(tl.float32) * sign
        first = tl.load(m + at, mask=inside).to(tl.float32)
        second = tl.load(v + at, mask=inside).to(tl.float32)
        weights = tl.load(p + at, mask=inside).to(tl.float32)
        first = first - weight1 * first + weight1 * gradient
        kept = second - weight2 * second
        kept = tl.where(second == float("inf"), second, kept)  # not inf - inf
        second = kept + weight2 * (gradient * gradient)
        weights -= decay * weights
        weights -= size * first / (tl.sqrt_rn(second) * root + eps)
        tl.store(m + at, first.to(m.dtype.element_ty), mask=inside)
        tl.store(v + at, second.to(v.dtype.element_ty), mask=inside)
        tl.store(p + at, weights.to(p.dtype.element_ty), mask=inside)
