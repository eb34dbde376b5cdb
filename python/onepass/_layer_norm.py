"""LayerNorm: the direct call, its gradient, and the operator that torch.compile sees."""

import math
from typing import Any, List, Optional, Sequence, Tuple

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

__all__ = ["layer_norm"]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.layer_norm."""
    if is_compiling():
        traceable = True
    else:
        kind = _native.kind(input, weight, bias)
        if kind & _native.AUTOCAST:
            kind -= _native.AUTOCAST
            if input.is_cuda and torch.is_autocast_enabled():
                input, weight, bias = _to_float32(input), _to_float32(weight), _to_float32(bias)
        if kind == DIRECT:
            output = torch.empty_like(input, memory_format=torch.contiguous_format)
            if _native.layer_norm(input, normalized_shape, weight, bias, eps, output, None):
                return output
        elif kind == DIRECT_WITH_GRAD:
            try:
                return _apply(input, normalized_shape, weight, bias, eps)
            except NotCovered:
                pass
        traceable = not kind and is_traceable(input, weight, bias)
    if traceable and _covers(input, normalized_shape, weight, bias):
        return _operator(input, normalized_shape, weight, bias, eps)[0]
    return explain(torch.nn.functional.layer_norm, "layer_norm", {
        "input": input, "normalized_shape": normalized_shape, "weight": weight, "bias": bias,
        "eps": eps})


def _covers(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
) -> bool:
    """For those who look at tensors without data; where there is data the C library decides."""
    shape = tuple(normalized_shape)
    if not has_known_type(input) or not 1 <= len(shape) <= input.dim():
        return False
    if tuple(input.shape[-len(shape):]) != shape:
        return False
    halves = (torch.float16, torch.bfloat16)
    for parameter in (weight, bias):
        if parameter is None:
            continue
        if tuple(parameter.shape) != shape or parameter.device != input.device:
            return False
        if parameter.dtype != input.dtype and not (
            parameter.dtype == torch.float32 and input.dtype in halves
        ):
            return False
    return weight is None or bias is None or weight.dtype == bias.dtype


def _to_float32(tensor: Optional[Tensor]) -> Optional[Tensor]:
    """What autocast on CUDA does to the arguments of layer_norm."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.float()


# ---- With the C library -------------------------------------------------------------------------------


def _rows(input: Tensor, normalized_shape: Sequence[int]) -> int:
    return math.prod(input.shape[:input.dim() - len(normalized_shape)])


def _new_statistics(input: Tensor, normalized_shape: Sequence[int]) -> Tensor:
    """Room for the mean and 1/deviation of each row."""
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    return input.new_empty((2, _rows(input, normalized_shape)), dtype=dtype)


def _forward(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Tuple[Tensor, Tensor]:
    output = torch.empty_like(input, memory_format=torch.contiguous_format)
    statistics = _new_statistics(input, normalized_shape)
    if not _native.layer_norm(input, normalized_shape, weight, bias, eps, output, statistics):
        raise NotCovered("layer_norm")
    return output, statistics


def _backward(
    grad: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Tensor,
    wanted: Sequence[bool],
) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    # An expanded gradient, as of sum(), would be read element by element.
    grad, input = grad.contiguous(), input.contiguous()
    grad_input = torch.empty_like(input)
    grad_weight = torch.empty_like(weight) if wanted[1] else None
    grad_bias = torch.empty_like(bias) if wanted[2] else None
    if not _native.layer_norm_backward(grad, input, normalized_shape, weight, statistics,
                                       grad_input, grad_weight, grad_bias):
        raise NotCovered("layer_norm_backward")
    return grad_input if wanted[0] else None, grad_weight, grad_bias


class _LayerNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        eps: float,
    ) -> Tensor:
        output, statistics = _forward(input, normalized_shape, weight, bias, eps)
        ctx.save_for_backward(input, weight, bias, statistics)
        ctx.normalized_shape, ctx.eps = normalized_shape, eps
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: None) -> Tuple[Optional[Tensor], ...]:
        input, weight, bias, statistics = ctx.saved_tensors
        shape = ctx.normalized_shape
        needs = ctx.needs_input_grad
        wanted = (needs[0], needs[2], needs[3])
        grads: Tuple[Optional[Tensor], ...]
        kind = _native.kind(grad, input, weight, bias)
        if kind & ~_native.AUTOCAST == DIRECT and not torch.is_grad_enabled():
            grads = _backward(grad, input, shape, weight, bias, statistics, wanted)
        elif not torch.is_grad_enabled() and is_traceable(grad, input, weight, bias):
            results = _backward_operator(grad, input, shape, weight, bias, statistics, wanted)
            grads = tuple(result if want else None for result, want in zip(results, wanted))
        else:
            grads = differentiate(
                lambda x, w, b: torch.nn.functional.layer_norm(x, shape, w, b, ctx.eps),
                (input, weight, bias), wanted, grad)
        return grads[0], None, grads[1], grads[2], None


# Function.apply itself only looks whether a functorch transform is active, which is known here.
_apply = super(Function, _LayerNorm).apply

# ---- For torch.compile and export ---------------------------------------------------------------------


def _forward_meta(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Tuple[Tensor, Tensor]:
    output = torch.empty_like(input, memory_format=torch.contiguous_format)
    return output, _new_statistics(input, normalized_shape)


class _TracedLayerNorm(_LayerNorm):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        eps: float,
    ) -> Tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            output, statistics = _operator(input, normalized_shape, weight, bias, eps)
        ctx.save_for_backward(input, weight, bias, statistics)
        ctx.normalized_shape, ctx.eps = normalized_shape, eps
        ctx.mark_non_differentiable(statistics)
        return output, statistics


def _forward_autograd(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Tuple[Tensor, Tensor]:
    if needs_grad(input, weight, bias):
        return _TracedLayerNorm.apply(input, normalized_shape, weight, bias, eps)
    with torch._C._AutoDispatchBelowAutograd():
        return _operator(input, normalized_shape, weight, bias, eps)


def _forward_autocast(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Tuple[Tensor, Tensor]:
    with torch.autocast("cuda", enabled=False):
        return _operator(_to_float32(input), normalized_shape, _to_float32(weight),
                         _to_float32(bias), eps)


def _backward_kernel(
    grad: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Tensor,
    wanted: List[bool],
) -> Tuple[Tensor, ...]:
    grads = _backward(grad, input, normalized_shape, weight, bias, statistics, wanted)
    return tuple(input.new_empty(0) if grad is None else grad for grad in grads)


def _backward_meta(
    grad: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Tensor,
    wanted: List[bool],
) -> Tuple[Tensor, ...]:
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if want
        else input.new_empty(0)
        for tensor, want in zip((input, weight, bias), wanted)
    )


_operator = define(
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor)",
    _forward, _forward_meta, _forward_autograd, _forward_autocast,
)
_backward_operator = define(
    "layer_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor? weight,"
    " Tensor? bias, Tensor statistics, bool[3] wanted) -> (Tensor, Tensor, Tensor)",
    _backward_kernel, _backward_meta,
)
