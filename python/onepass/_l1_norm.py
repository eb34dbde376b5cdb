"""L1Norm: the direct call, its gradient, and the operator that torch.compile sees."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._torch import (
    DIRECT,
    DIRECT_WITH_GRAD,
    ERRORS,
    OPERATOR,
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

__all__ = ["l1_norm"]


def l1_norm(input: Tensor, dim: int = 1, mode: str = "mean", eps: float = 0.0) -> Tensor:
    """input / (mean of abs(input) over dim + eps), or with mode="sum" over the sum."""
    if mode != "mean" and mode != "sum":
        raise ValueError(f'l1_norm(): mode must be "mean" or "sum", but got {mode!r}')
    by_sum = mode == "sum"
    if is_compiling():
        way = OPERATOR
    else:
        way = _native.kind(input) or way_of_watched(input)
    if way == DIRECT:
        output = _native.l1_norm(input, dim, by_sum, eps)
        if output is not None:
            return output
    elif way == DIRECT_WITH_GRAD:
        try:
            return _apply(input, dim, by_sum, eps)
        except NotCovered:
            pass
    elif way == OPERATOR and _covers(input, dim, eps):
        return _operator(input, dim, by_sum, eps)
    try:
        return _by_torch(input, dim, by_sum, eps)
    except ERRORS as error:
        raise explain(error, "l1_norm", input=input, dim=dim, mode=mode, eps=eps) from None


def _covers(input: Tensor, dim: int, eps: float) -> bool:
    """For those who look at tensors without data; where there is data the C library decides."""
    return has_known_type(input) and -input.dim() <= dim < input.dim() and eps >= 0


def _by_torch(input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    size = torch.abs(input)
    if by_sum and isinstance(input, Tensor) and not size.is_floating_point():
        size.mean(dim)  # an error for integers: what has no mean is not to have a sum
    scale = size.sum(dim, keepdim=True) if by_sum else size.mean(dim, keepdim=True)
    return input / (scale + eps if eps != 0 else scale)


# ---- With the C library -------------------------------------------------------------------------


class _L1Norm(Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.options = (dim, by_sum, eps)
        output = _native.l1_norm(input, dim, by_sum, eps)
        if output is None:
            raise NotCovered("l1_norm")
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        input, = ctx.saved_tensors
        way = way_back(grad, input)
        grad_input: Optional[Tensor] = None
        if way == DIRECT:
            grad_input = _native.l1_norm_backward(grad, input, *ctx.options)
        elif way == OPERATOR:
            grad_input = _backward_operator(grad, input, *ctx.options)
        if grad_input is None:
            grad_input, = differentiate(
                lambda x: _by_torch(x, *ctx.options), (input,), (True,), grad)
        return grad_input, None, None, None


_apply = quick_apply(_L1Norm)

# ---- For torch.compile and export ---------------------------------------------------------------


def _meta(*arguments: Any) -> Tensor:
    """Of both directions: the tensor before dim is x."""
    return torch.empty_like(arguments[-4])


class _TracedL1Norm(_L1Norm):
    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.options = (dim, by_sum, eps)
        with below_autograd():
            return _operator(input, dim, by_sum, eps)


_operator = define(
    "l1_norm(Tensor input, int dim, bool by_sum, float eps) -> Tensor",
    _native.l1_norm, _meta, _TracedL1Norm.apply,
)
_backward_operator = define(
    "l1_norm_backward(Tensor grad, Tensor input, int dim, bool by_sum, float eps) -> Tensor",
    _native.l1_norm_backward, _meta,
)
