"""AvgPool1d: the direct call, its gradient, and the operator that torch.compile sees."""

from typing import Any, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._pool_operator import pooled_length
from ._torch import (
    DIRECT,
    DIRECT_WITH_GRAD,
    ERRORS,
    OPERATOR,
    SMALL,
    NotCovered,
    below_autograd,
    define,
    differentiate,
    explain,
    has_known_type,
    is_compiling,
    quick_apply,
    way_back,
    way_of_watched,
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
    if is_compiling():
        way = OPERATOR
    else:
        way = _native.kind_or_small_on_gpu(input) or way_of_watched(input)
        if way == SMALL:
            input = input.contiguous()  # PyTorch's gradient of others is not always right
            # Lines are rows as well, and as such need no axis put in and taken out again, which would be
            # two more nodes of the graph.
            try:
                if input.dim() == 3:
                    return torch._C._nn.avg_pool2d(
                        input, (1, _length(kernel_size)), None if stride is None else (1, _length(stride)),
                        (0, _length(padding)), ceil_mode, count_include_pad)
            except ERRORS:  # what avg_pool1d has to say of it is said below
                pass
    if way == DIRECT:
        output = _native.avg_pool1d(
            input, kernel_size, stride, padding, ceil_mode, count_include_pad)
        if output is not None:
            return output
    elif way == DIRECT_WITH_GRAD or way == OPERATOR:
        kernel = _length(kernel_size)
        step = kernel if stride is None else _length(stride)
        window = (kernel, step, _length(padding), ceil_mode, count_include_pad)
        if way == DIRECT_WITH_GRAD:
            try:
                return _apply(input, *window)
            except NotCovered:
                pass
        elif _covers(input, window):
            return _operator(input, *window)
    try:
        return torch.nn.functional.avg_pool1d(
            input, kernel_size, () if stride is None else stride, padding, ceil_mode,
            count_include_pad)
    except ERRORS as error:
        raise explain(error, "avg_pool1d", input=input, kernel_size=kernel_size, stride=stride,
                      padding=padding, ceil_mode=ceil_mode,
                      count_include_pad=count_include_pad) from None


def _length(given: Length) -> int:
    """The one number in an argument, or -1 if it is for PyTorch to say what is wrong with it."""
    if isinstance(given, int):
        return given
    if isinstance(given, (tuple, list)) and len(given) == 1 and isinstance(given[0], int):
        return given[0]
    return -1


def _covers(input: Tensor, window: Window) -> bool:
    """For those who look at tensors without data; where there is data the C library decides."""
    kernel, stride, padding, _, _ = window
    if kernel < 1 or stride < 1 or not 0 <= 2 * padding <= kernel:
        return False
    if not has_known_type(input) or input.dim() not in (2, 3) or input.numel() == 0:
        return False
    return _pooled(input.shape[-1], window) > 0


def _pooled(length: int, window: Window) -> int:
    """How long the pooled axis becomes."""
    kernel, stride, padding, ceil_mode, _ = window
    return pooled_length(length, kernel, stride, padding, 1, ceil_mode)


# ---- With the C library -------------------------------------------------------------------------


class _AvgPool1d(Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, *window: Any) -> Tensor:
        ctx.shape, ctx.window = input.shape, window
        output = _native.avg_pool1d(input, *window)
        if output is None:
            raise NotCovered("avg_pool1d")
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        way = way_back(grad)
        grad_input: Optional[Tensor] = None
        if way == DIRECT:
            grad_input = _native.avg_pool1d_backward(grad, ctx.shape[-1], *ctx.window)
        elif way == OPERATOR:
            grad_input = _backward_operator(grad, ctx.shape[-1], *ctx.window)
        if grad_input is None:
            # The operator is linear: its gradient does not depend on where it is taken.
            anywhere = torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device,
                                   requires_grad=True)
            grad_input, = differentiate(
                lambda x: torch.nn.functional.avg_pool1d(x, *ctx.window), (anywhere,), (True,),
                grad)
        return (grad_input,) + (None,) * 5


_apply = quick_apply(_AvgPool1d)

# ---- For torch.compile and export ---------------------------------------------------------------


def _forward_meta(input: Tensor, *window: Any) -> Tensor:
    return input.new_empty((*input.shape[:-1], _pooled(input.shape[-1], window)))


class _TracedAvgPool1d(_AvgPool1d):
    @staticmethod
    def forward(ctx: Any, input: Tensor, *window: Any) -> Tensor:
        ctx.shape, ctx.window = input.shape, window
        with below_autograd():
            return _operator(input, *window)


def _backward_meta(grad: Tensor, length: int, *window: Any) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], length))


_WINDOW = "int kernel, int stride, int padding, bool ceil_mode, bool count_include_pad"
_operator = define(
    f"avg_pool1d(Tensor input, {_WINDOW}) -> Tensor",
    _native.avg_pool1d, _forward_meta, _TracedAvgPool1d.apply,
)
_backward_operator = define(
    f"avg_pool1d_backward(Tensor grad, SymInt length, {_WINDOW}) -> Tensor",
    _native.avg_pool1d_backward, _backward_meta,
)
