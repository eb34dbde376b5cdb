"""LayerNorm: the direct call, its gradient, and the operator that torch.compile sees."""

import math
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._activations import activate, activation_code
from ._norm_operator import LAYER, NOTHING, Norm, dense, fit
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
    to_float32,
    way_back,
    way_of_watched,
)

__all__ = ["add_layer_norm", "layer_norm"]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *,
    activation: Optional[str] = None,
) -> Tensor:
    """torch.nn.functional.layer_norm, and then the activation: "relu", "gelu", "gelu_tanh" or "silu"."""
    if activation is not None:
        done = _call_fused(input, None, normalized_shape, weight, bias, eps, activation)
        if done is not None:
            return done[0]
        return activate(layer_norm(input, normalized_shape, weight, bias, eps), activation)
    if is_compiling():
        way = OPERATOR
    else:
        way = _native.kind_or_small(input, weight, bias) or way_of_watched(input, weight, bias)
        if way == SMALL:  # first, as it is all that such a call costs
            try:
                return torch.layer_norm(input, normalized_shape, weight, bias, eps)
            except ERRORS as error:
                raise _explain(error, input, normalized_shape, weight, bias, eps) from None
        if way & DIRECT and input.is_cuda:
            if torch.is_autocast_enabled():
                input, weight, bias = to_float32(input), to_float32(weight), to_float32(bias)
            input = input.contiguous()  # rows with gaps would be read element by element
    if way == DIRECT:
        output = _native.layer_norm(input, normalized_shape, weight, bias, eps, _native.NO_STATISTICS)
        if output is not None:
            return output
    elif way == DIRECT_WITH_GRAD:
        try:
            return _apply(input, normalized_shape, weight, bias, eps)
        except NotCovered:
            pass
    elif way == OPERATOR and eps >= 0 and _covers(input, normalized_shape, weight, bias):
        return _operator(input, normalized_shape, weight, bias, eps)[0]
    try:
        return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)
    except ERRORS as error:
        raise _explain(error, input, normalized_shape, weight, bias, eps) from None


def _explain(
    error: Exception,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Exception:
    return explain(error, "layer_norm", input=input, normalized_shape=normalized_shape, weight=weight,
                   bias=bias, eps=eps)


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    activation: Optional[str] = None,
) -> Tuple[Tensor, Tensor]:
    """layer_norm(input + residual, ...), and input + residual."""
    done = _call_fused(input, residual, normalized_shape, weight, bias, eps, activation)
    if done is not None:
        return done[0], done[1]
    try:
        total = torch.add(input, residual)
    except ERRORS as error:
        raise explain(error, "add_layer_norm", input=input, residual=residual) from None
    return layer_norm(total, normalized_shape, weight, bias, eps, activation=activation), total


_FUSED = Norm("fused_layer_norm", LAYER, "layer_norm")


def _call_fused(
    input: Tensor,
    residual: Optional[Tensor],
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
    activation: Optional[str],
) -> Optional[Tuple[Optional[Tensor], ...]]:
    code = activation_code(activation)
    if isinstance(normalized_shape, int):  # an error; not an axis
        return None
    return _FUSED.call((LAYER, normalized_shape, 0, 0, eps, False, False, 0.0, code), NOTHING, input,
                       residual, weight, bias)


def _covers(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
) -> bool:
    """For those who look at tensors without data; where there is data the C library decides."""
    if not isinstance(normalized_shape, (tuple, list)) or not has_known_type(input):
        return False
    shape = tuple(normalized_shape)
    if not 1 <= len(shape) <= input.dim():
        return False
    return tuple(input.shape[-len(shape):]) == shape and fit(input, shape, weight, bias)


# ---- With the C library -------------------------------------------------------------------------


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
        results = _native.layer_norm(
            input, normalized_shape, weight, bias, eps, _native.STATISTICS)
        if results is None:
            raise NotCovered("layer_norm")
        ctx.save_for_backward(input, weight, bias)
        ctx.rest = (normalized_shape, eps, results[1])
        return results[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: None) -> Tuple[Optional[Tensor], ...]:
        input, weight, bias = ctx.saved_tensors
        shape, eps, statistics = ctx.rest
        needs = ctx.needs_input_grad
        wanted = (needs[0], needs[2], needs[3])
        way = way_back(grad, input, weight, bias)
        grads: Optional[Tuple[Optional[Tensor], ...]] = None
        if way == DIRECT:
            # An expanded gradient, as of sum(), would be read element by element.
            grads = _native.layer_norm_backward(
                grad.contiguous(), input, shape, weight, bias, statistics, wanted[1], wanted[2])
        elif way == OPERATOR and isinstance(statistics, Tensor):
            grads = _backward_operator(grad, input, shape, weight, bias, statistics, wanted)
        if grads is None:
            grads = differentiate(
                lambda x, w, b: torch.nn.functional.layer_norm(x, shape, w, b, eps),
                (input, weight, bias), wanted, grad)
        kept = [grad if want else None for grad, want in zip(grads, wanted)]
        return kept[0], None, kept[1], kept[2], None


_apply = quick_apply(_LayerNorm)

# ---- For torch.compile and export ---------------------------------------------------------------


def _forward(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Optional[Tuple[Tensor, Tensor]]:
    """The output, and what its gradient needs to know of each row."""
    return _native.layer_norm(
        dense(LAYER, input), normalized_shape, weight, bias, eps, _native.STATISTICS_TENSOR)


def _forward_meta(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
) -> Tuple[Tensor, Tensor]:
    output = torch.empty_like(input, memory_format=torch.contiguous_format)
    rows = math.prod(input.shape[:input.dim() - len(normalized_shape)])
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    return output, input.new_empty((2, rows), dtype=dtype)


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
        with below_autograd():
            output, statistics = _operator(input, normalized_shape, weight, bias, eps)
        ctx.save_for_backward(input, weight, bias)
        ctx.rest = (normalized_shape, eps, statistics)
        ctx.mark_non_differentiable(statistics)
        return output, statistics


def _backward(
    grad: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Tensor,
    wanted: List[bool],
) -> Optional[Tuple[Optional[Tensor], ...]]:
    return _native.layer_norm_backward(grad.contiguous(), dense(LAYER, input), normalized_shape, weight,
                                       bias, statistics, wanted[1], wanted[2])


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
        for tensor, want in zip((input, weight, bias), (True, wanted[1], wanted[2]))
    )


_operator = define(
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor)",
    _forward, _forward_meta, _TracedLayerNorm.apply, casts=True,
)
_backward_operator = define(
    "layer_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor? weight,"
    " Tensor? bias, Tensor statistics, bool[3] wanted) -> (Tensor, Tensor, Tensor)",
    _backward, _backward_meta,
)
