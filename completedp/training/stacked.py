"""One model, many sets of parameters: a loss for each slot of a stack.

The reference model runs on stacked parameters as it is. Any other module is mapped over the slots
by `torch.func.vmap`, with attention folded: it has no parameters, so to it slots are only more
sequences, and the fused kernels stay in use (vmap has no rule for them on a CPU, and would loop).
"""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from completedp.apply.called import call_with, names_of
from completedp.common.errors import CompletedpError, short
from completedp.lm.loss import Loss, language_model_loss
from completedp.lm.transformer import Block, Transformer
from completedp.tasks.data import Batch, Data, copies
from completedp.tasks.losses import ModelLoss, next_token_loss
from completedp.tasks.task import TABLES_NEED
from completedp.training.feeds import sample_batch
from completedp.training.left_behind import left_behind, with_memory

Tensors = dict[str, Tensor]
StackedLoss = Callable[..., Loss]
"""Parameters, buffers and a batch's tensors, all with a leading dimension of slots, to losses."""


def reference_loss(
    model: Transformer, z_loss: float = 0.0, chunk: int | None = None, *, compile: bool = False
) -> StackedLoss:
    """The reference model's language-model loss.

    Compiled, it is two programs: a block's, which all blocks share, and that of what follows them.
    Compiling takes as long for 64 blocks as for one.
    """
    together = _Reference(model, z_loss, chunk, compile)

    def stacked(parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> Loss:
        return functional_call(together, _inside(parameters, buffers), (inputs, targets))

    return stacked


def vmapped_loss(
    model: nn.Module,
    loss: ModelLoss | None = None,
    *,
    autocast: torch.dtype | None = None,
    compile: bool = False,
) -> StackedLoss:
    """Any module's loss; next-token cross-entropy of its logits if none is given.

    Compiled, it is one program for the shapes of its first call. Modules that draw random numbers
    or keep statistics of a batch are refused: a slot has to train as it would alone.
    """
    _refuse(model)
    together = _WithLoss(model, loss or next_token_loss)
    names = names_of(together)

    def one(tensors: Tensors, *batch: Tensor) -> Tensor:
        return call_with(together, tensors, batch, names=names)

    def stacked(parameters: Tensors, buffers: Tensors, *batch: Tensor) -> Loss:
        narrow = torch.autocast(batch[0].device.type, autocast, enabled=autocast is not None)
        with _said_plainly(), narrow, _FoldedAttention():
            total = vmap(one)(_inside(parameters, buffers), *batch)
        return Loss(total, total.detach())

    return _Traced(stacked) if compile else stacked


class CannotStackError(CompletedpError):
    """A model that cannot train in slots, and why."""


def probe(
    model: nn.Module, loss: ModelLoss | None, data: Data, device: torch.device, examples: int
) -> None:
    """Raise CannotStackError unless two slots of the model train as each would alone."""
    sample = sample_batch(data, examples, device)
    batch = tuple(part.expand(2, *part.shape[1:]) for part in sample)

    def stacked(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return torch.zeros(2, *tensor.shape, device=device, dtype=tensor.dtype)
        return tensor.detach().to(device).expand(2, *tensor.shape).clone()

    parameters = {name: stacked(p).requires_grad_() for name, p in model.named_parameters()}
    buffers = {name: stacked(buffer) for name, buffer in model.named_buffers()}
    alone = tuple(part[0] for part in sample)
    if device.type != "cpu":
        check_lookups(model, loss or next_token_loss, tuple(part[:1].cpu() for part in alone))
    _refuse_what_is_left(model, loss or next_token_loss, alone)
    try:
        found = vmapped_loss(model, loss)(parameters, buffers, *batch)
        if found.total.shape != (2,):
            raise CompletedpError(
                f"the loss must be one number, and has shape {list(found.total.shape[1:])}"
            )
        grads = torch.autograd.grad(found.total.sum(), list(parameters.values()), allow_unused=True)
    except CompletedpError:
        raise
    except Exception as error:  # an operator without a rule, or one that fails alone too
        raise CannotStackError(f"it cannot be mapped over slots ({short(error)})") from None
    for name, grad in zip(parameters, grads, strict=True):
        if grad is None:
            raise CannotStackError(
                f"{name} has no part in the loss, and its optimizer would leave it"
            )


def check_lookups(model: nn.Module, loss: ModelLoss, batch: Batch) -> None:
    """Raise where the model reads past a table: a GPU says no more than that something failed."""
    try:
        loss(with_memory(model, batch[0].device), *batch)
    except IndexError as error:
        raise CompletedpError(
            f"the model looks up an entry that it does not have ({short(error)}): {TABLES_NEED}"
        ) from None
    except Exception:  # it may have kernels for a GPU alone
        return


def _refuse_what_is_left(model: nn.Module, loss: ModelLoss, batch: Batch) -> None:
    """What a pass leaves in the model would have to be kept, and reset, for each slot."""
    try:
        left = left_behind(model, loss, batch)
    except Exception as error:
        if not dict(model.named_buffers()):  # mapping it says what is wrong
            return
        raise CannotStackError(f"its loss fails ({short(error)})") from None
    if left:
        raise CannotStackError(f"its forward pass changes {left}")


def compiled(function: Callable[..., Any], *, dynamic: bool = False) -> Callable[..., Any]:
    """`torch.compile` with a cache of its own.

    Dynamo counts recompilations by code object and gives up after a few; every stack has shapes of
    its own, and a process may go through many stacks.
    """
    own = types.FunctionType(
        function.__code__.replace(), function.__globals__, closure=function.__closure__
    )
    return torch.compile(own, dynamic=dynamic)


class _Traced:
    """A mapped loss, compiled when it is first called.

    Dynamo does not follow vmap into a module with attention folded; a trace of the operators, on
    tensors without memory, has neither.
    """

    def __init__(self, stacked: StackedLoss) -> None:
        self._stacked = stacked
        self._program: Callable[..., Any] | None = None

    def __call__(self, *tensors: Any) -> Loss:
        if self._program is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                trace = make_fx(self._stacked, tracing_mode="fake", _allow_non_fake_inputs=True)
                self._program = torch.compile(trace(*tensors), dynamic=False)
        return self._program(*tensors)


def _inside(parameters: Tensors, buffers: Tensors) -> Tensors:
    """Names as they are in a module that holds the model as `model`."""
    return {f"model.{name}": value for name, value in {**parameters, **buffers}.items()}


class _Reference(nn.Module):
    """The reference model with its loss, block by block."""

    def __init__(self, model: Transformer, z_loss: float, chunk: int | None, compile: bool) -> None:
        super().__init__()
        self.model, self.z_loss, self.chunk = model, z_loss, chunk
        self._block: Callable[..., Tensor] = compiled(Block.forward) if compile else Block.forward
        self._end = compiled(_end) if compile else _end

    def forward(self, inputs: Tensor, targets: Tensor) -> Loss:
        model = self.model
        x = model.embedding(inputs)
        for layer, block in enumerate(model.blocks):
            x = self._block(block, x, *model.block_inputs(layer, x))
        return self._end(model, x, targets, self.z_loss, self.chunk)


def _end(model: Transformer, x: Tensor, targets: Tensor, z_loss: float, chunk: int | None) -> Loss:
    head = model.unembedding
    return language_model_loss(
        model.features(x), head.weight, targets, bias=head.bias, z_loss=z_loss, chunk=chunk
    )


class _WithLoss(nn.Module):
    """A module whose forward pass is the loss, so that `functional_call` reaches the model."""

    def __init__(self, model: nn.Module, loss: ModelLoss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.model, *copies(batch))


class _FoldedAttention(TorchFunctionMode):
    """Sends every call of torch's attention through `_Attention`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return _Attention.apply(*_attention_arguments(*args, **(kwargs or {})))


def _attention_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...]:
    if dropout_p > 0:
        raise CannotStackError(
            f"attention with dropout_p = {dropout_p:g} cannot train in slots: set it to 0"
        )
    return query, key, value, attn_mask, is_causal, scale, enable_gqa


class _Attention(torch.autograd.Function):
    """Attention that under vmap takes its slots as more sequences."""

    @staticmethod
    def forward(*args: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, mask, is_causal, scale, enable_gqa = args
        return F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        # Autograd is below vmap here, and follows what is called: no backward of our own.
        slots = info.batch_size

        def stacked(tensor: Tensor, dim: int | None) -> Tensor:
            return tensor.expand(slots, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        query, key, value = (stacked(*pair) for pair in zip(args[:3], in_dims[:3], strict=True))
        mask = args[3]
        if mask is not None:  # to [slots, sequences, heads or 1, queries, keys]
            mask = stacked(mask, in_dims[3])
            mask = mask[:, *(None,) * (query.dim() - mask.dim())]
            mask = mask.expand(-1, query.shape[1], *(-1,) * (mask.dim() - 2)).flatten(0, 1)
        folded = (tensor.flatten(0, -4) for tensor in (query, key, value))
        out = _Attention.forward(*folded, mask, *args[4:])
        return out.unflatten(0, query.shape[:-3]), 0


def _refuse(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise CannotStackError(
                f"{where} drops units at random, and a slot has to train as it would alone: "
                "set its p to 0"
            )
        if module._backward_hooks or module._backward_pre_hooks:
            raise CannotStackError(f"{where} has a hook on its gradients, which slots go past")
        if isinstance(module, _BatchNorm):
            raise CannotStackError(
                f"{where} keeps statistics of its batches, which slots cannot: "
                "use a layer or group norm"
            )


@contextlib.contextmanager
def _said_plainly() -> Iterator[None]:
    """What vmap cannot map, in one line that says what to do."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if "randomness" in message:
            raise CannotStackError(
                "the model draws random numbers in its forward pass (dropout, noise): slots need "
                "one without"
            ) from None
        if "data-dependent control flow" in message or ".item()" in message:
            raise CannotStackError(
                "the model's forward pass branches on the values of tensors (if, while, .item()): "
                "slots run one program for all, so write the branch with torch.where"
            ) from None
        raise
