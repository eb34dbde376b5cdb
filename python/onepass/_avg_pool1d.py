"""AvgPool1d: the direct call, its gradient, and the operator that torch.compile sees."""

from typing import Any, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._torch import (
    DIRECT,
    DIRECT_WITH_GRAD,
    NotCovered,
    define,
    differentiate,
    explain,
    has_known_type,
    is_compiling,
    is_traceable,
    needs_grad,
)

__all__ = ["avg_pool1d"]

Length = Union[int, Sequence[int]]
Window = Tuple[int, int, int, bool, bool]  # kernel, stride, padding, ceil_mode, count_include_pad


def avg_pool1d(
    input: Tensor,
    kernel_size: Length,
    stride: Optional[Length] = None,
    padding: Length = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """torch.nn.functional.avg_pool1d."""
    kernel = _length(kernel_size)
    step = kernel if stride is None or stride == () else _length(stride)
    pad = _length(padding)
    window = (kernel, step, pad, ceil_mode, count_include_pad)
    kind, traceable = 0, False
    if kernel < 1 or step < 1 or pad < 0 or 2 * pad > kernel:
        pass
    elif is_compiling():
        traceable = True
    else:
        kind = _native.kind(input) & ~_native.AUTOCAST  # which leaves it alone
        traceable = not kind and is_traceable(input)
    if (kind or traceable) and _covers(input, window):
        if kind == DIRECT:
            output = _new_output(input, window)
            if _native.avg_pool1d(input, *window, output):
                return output
        elif kind == DIRECT_WITH_GRAD:
            try:
                return _apply(input, *window)
            except NotCovered:
                pass
        elif has_known_type(input):
            return _operator(input, *window)
    return explain(torch.nn.functional.avg_pool1d, "avg_pool1d", {
        "input": input, "kernel_size": kernel_size, "stride": kernel if stride is None else stride,
        "padding": padding, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad})


def _length(given: Length) -> int:
    """The one number in an argument, or -1 if it is for PyTorch to say what is wrong with it."""
    if isinstance(given, (tuple, list)) and len(given) == 1:
        given = given[0]
    return given if isinstance(given, int) else -1


def _covers(input: Tensor, window: Window) -> bool:
    # What has no channels is an error in PyTorch.
    return input.dim() in (2, 3) and input.numel() > 0 and _pooled(input.shape[-1], window) > 0


def _pooled(length: int, window: Window) -> int:
    """How long the pooled axis becomes; include/onepass.h has the same."""
    kernel, stride, padding, ceil_mode, _ = window
    pooled = (length + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (pooled - 1) * stride >= length + padding:
        pooled -= 1  # that window would start in the padding
    return pooled


def _new_output(input: Tensor, window: Window) -> Tensor:
    return input.new_empty((*input.shape[:-1], _pooled(input.shape[-1], window)))


# ---- With the C library -------------------------------------------------------------------------------


class _AvgPool1d(Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, *window: Any) -> Tensor:
        output = _new_output(input, window)
        if not _native.avg_pool1d(input, *window, output):
            raise NotCovered("avg_pool1d")
        ctx.shape, ctx.window = input.shape, window
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        kind = _native.kind(grad)
        if kind & ~_native.AUTOCAST == DIRECT and not torch.is_grad_enabled():
            grad_input = _backward_kernel(grad, ctx.shape, *ctx.window)
        elif not torch.is_grad_enabled() and is_traceable(grad):
            grad_input = _backward_operator(grad, ctx.shape, *ctx.window)
        else:
            # The operator is linear: its gradient does not depend on where it is taken.
            anywhere = torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device,
                                   requires_grad=True)
            grad_input, = differentiate(
                lambda x: torch.nn.functional.avg_pool1d(x, *ctx.window), (anywhere,), (True,),
                grad)
        return (grad_input,) + (None,) * 5


# Function.apply itself only looks whether a functorch transform is active, which is known here.
_apply = super(Function, _AvgPool1d).apply


def _backward_kernel(grad: Tensor, shape: Sequence[int], *window: Any) -> Tensor:
    grad_input = grad.new_empty(shape)
    if not _native.avg_pool1d_backward(grad, *window, grad_input):
        raise NotCovered("avg_pool1d_backward")
    return grad_input


# ---- For torch.compile and export ---------------------------------------------------------------------


def _forward_kernel(input: Tensor, *window: Any) -> Tensor:
    output = _new_output(input, window)
    if not _native.avg_pool1d(input, *window, output):
        raise NotCovered("avg_pool1d")
    return output


def _forward_meta(input: Tensor, *window: Any) -> Tensor:
    return _new_output(input, window)


class _TracedAvgPool1d(_AvgPool1d):
    @staticmethod
    def forward(ctx: Any, input: Tensor, *window: Any) -> Tensor:
        ctx.shape, ctx.window = input.shape, window
        with torch._C._AutoDispatchBelowAutograd():
            return _operator(input, *window)


def _forward_autograd(input: Tensor, *window: Any) -> Tensor:
    if needs_grad(input):
        return _TracedAvgPool1d.apply(input, *window)
    with torch._C._AutoDispatchBelowAutograd():
        return _operator(input, *window)


def _backward_meta(grad: Tensor, shape: Sequence[int], *window: Any) -> Tensor:
    return grad.new_empty(shape)


_WINDOW = "int kernel, int stride, int padding, bool ceil_mode, bool count_include_pad"
_operator = define(
    f"avg_pool1d(Tensor input, {_WINDOW}) -> Tensor",
    _forward_kernel, _forward_meta, _forward_autograd,
)
_backward_operator = define(
    f"avg_pool1d_backward(Tensor grad, SymInt[] shape, {_WINDOW}) -> Tensor",
    _backward_kernel, _backward_meta,
)
