"""L1Norm: the direct call, its gradient, and the operator that torch.compile sees."""

from typing import Any, Optional, Tuple

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

__all__ = ["l1_norm"]


def l1_norm(input: Tensor, dim: int = 1, mode: str = "mean", eps: float = 0.0) -> Tensor:
    """input / (mean of abs(input) over dim + eps), or with mode="sum" over the sum."""
    if mode != "mean" and mode != "sum":
        raise ValueError(f'l1_norm(): mode must be "mean" or "sum", but got {mode!r}')
    by_sum = mode == "sum"
    if is_compiling():
        traceable = True
    else:
        kind = _native.kind(input) & ~_native.AUTOCAST  # which leaves it alone
        if kind == DIRECT:
            output = torch.empty_like(input)
            if _native.l1_norm(input, dim, by_sum, eps, output):
                return output
        elif kind == DIRECT_WITH_GRAD:
            try:
                return _apply(input, dim, by_sum, eps)
            except NotCovered:
                pass
        traceable = not kind and is_traceable(input)
    if traceable and has_known_type(input) and -input.dim() <= dim < input.dim():
        return _operator(input, dim, by_sum, eps)
    return explain(_by_torch, "l1_norm", {
        "input": input, "dim": dim, "by_sum": by_sum, "eps": eps})


def _by_torch(input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    if not (input.is_floating_point() or input.is_complex()):
        raise RuntimeError(f"l1_norm(): input must be of a floating-point type, not {input.dtype}")
    size = input.abs()
    scale = size.sum(dim, keepdim=True) if by_sum else size.mean(dim, keepdim=True)
    return input / (scale + eps if eps != 0 else scale)


# ---- With the C library -------------------------------------------------------------------------------


class _L1Norm(Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
        output = torch.empty_like(input)
        if not _native.l1_norm(input, dim, by_sum, eps, output):
            raise NotCovered("l1_norm")
        ctx.save_for_backward(input)
        ctx.options = (dim, by_sum, eps)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        input, = ctx.saved_tensors
        kind = _native.kind(grad, input)
        if kind & ~_native.AUTOCAST == DIRECT and not torch.is_grad_enabled():
            grad_input = torch.empty_like(input)
            if not _native.l1_norm_backward(grad, input, *ctx.options, grad_input):
                raise NotCovered("l1_norm_backward")
        elif not torch.is_grad_enabled() and is_traceable(grad, input):
            grad_input = _backward_operator(grad, input, *ctx.options)
        else:
            grad_input, = differentiate(
                lambda x: _by_torch(x, *ctx.options), (input,), (True,), grad)
        return grad_input, None, None, None


# Function.apply itself only looks whether a functorch transform is active, which is known here.
_apply = super(Function, _L1Norm).apply

# ---- For torch.compile and export ---------------------------------------------------------------------


def _forward_kernel(input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    output = torch.empty_like(input, memory_format=torch.contiguous_format)
    if not _native.l1_norm(input, dim, by_sum, eps, output):
        raise NotCovered("l1_norm")
    return output


def _forward_meta(input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


class _TracedL1Norm(_L1Norm):
    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.options = (dim, by_sum, eps)
        with torch._C._AutoDispatchBelowAutograd():
            return _operator(input, dim, by_sum, eps)


def _forward_autograd(input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    if needs_grad(input):
        return _TracedL1Norm.apply(input, dim, by_sum, eps)
    with torch._C._AutoDispatchBelowAutograd():
        return _operator(input, dim, by_sum, eps)


def _backward_kernel(grad: Tensor, input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    grad_input = torch.empty_like(input, memory_format=torch.contiguous_format)
    if not _native.l1_norm_backward(grad, input, dim, by_sum, eps, grad_input):
        raise NotCovered("l1_norm_backward")
    return grad_input


def _backward_meta(grad: Tensor, input: Tensor, dim: int, by_sum: bool, eps: float) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


_operator = define(
    "l1_norm(Tensor input, int dim, bool by_sum, float eps) -> Tensor",
    _forward_kernel, _forward_meta, _forward_autograd,
)
_backward_operator = define(
    "l1_norm_backward(Tensor grad, Tensor input, int dim, bool by_sum, float eps) -> Tensor",
    _backward_kernel, _backward_meta,
)
